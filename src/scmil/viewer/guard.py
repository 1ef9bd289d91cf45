"""Who may ask, and for what: the page's own browser on this computer, small requests that change nothing."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

LONGEST_ADDRESS = 4096  # bytes of path and query together
MOST_HEADERS = 16 * 2**10  # bytes
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
Scope = MutableMapping[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]


class Guard:
    """A gate in front of an application: each request passes all checks, and every answer carries the strict headers.

    The secret comes once in the address; a cookie that no script and no other site can use takes its place.
    """

    def __init__(self, app: App, port: int, token: str) -> None:
        self.app, self.token = app, token
        self.hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self.cookie = f"scmil_{port}"  # browsers do not tell ports apart, so that two viewers would share one

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}

        async def sealed(message: Scope) -> None:
            if message["type"] == "http.response.start":
                strict = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *strict]}
            await send(message)

        if refusal := self.refusal(scope, headers):
            await answer(sealed, *refusal)
        elif self._comes_with_token(scope) and scope["path"] == "/":
            cookie = f"{self.cookie}={self.token}; HttpOnly; SameSite=Strict; Path=/"
            await answer(sealed, 303, "", {"location": "/", "set-cookie": cookie, "cache-control": "no-store"})
        else:
            await self.app(scope, receive, sealed)

    def refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        """Why a request is refused; None if it is not."""
        asked = len(scope.get("raw_path") or scope["path"].encode()) + len(scope["query_string"])
        origin = headers.get("origin")
        if asked > LONGEST_ADDRESS:
            return 414, "the address is too long."
        if sum(len(name) + len(value) for name, value in scope["headers"]) > MOST_HEADERS:
            return 431, "the headers are too long."
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            return 413, "requests have no body here."
        if headers.get("host") not in self.hosts:
            return 421, "this page is served to this computer only, as 127.0.0.1 or localhost."
        if (origin is not None and origin.removeprefix("http://") not in self.hosts) or _from_elsewhere(headers):
            return 403, "another page has asked for this."
        if scope["method"] != "GET":
            return 405, "there is nothing to change here, only to GET."
        if not (self._comes_with_token(scope) or self._comes_with_cookie(headers)):
            return 401, "open the address that scmil view has printed: it has a secret in it."
        return None

    def _comes_with_token(self, scope: Scope) -> bool:
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        return self._is_token(given)

    def _comes_with_cookie(self, headers: dict[str, str]) -> bool:
        pairs = (pair.strip().partition("=") for pair in headers.get("cookie", "").split(";"))
        return any(name == self.cookie and self._is_token(value) for name, _, value in pairs)

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode("utf-8", "replace"), self.token.encode())


def _from_elsewhere(headers: dict[str, str]) -> bool:
    """Whether a browser says that another site asks; to follow a link to the page, with its secret, is everybody's right."""
    here = headers.get("sec-fetch-site", "none") in ("same-origin", "none")
    return not here and headers.get("sec-fetch-mode") != "navigate"


async def answer(send: Any, status: int, words: str, headers: dict[str, str] | None = None) -> None:
    """Send a short plain answer."""
    all_headers = {"content-type": "text/plain; charset=utf-8", "connection": "close", **(headers or {})}
    raw = [(name.encode(), value.encode()) for name, value in all_headers.items()]
    body = words.encode()
    raw.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
