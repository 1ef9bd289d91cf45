"""Who may ask, and for what: the page's own browser on this computer, small requests that change nothing."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

from scmil.viewer.connections import admit

LONGEST_ADDRESS = 4096  # bytes of path and query together
MOST_HEADERS = 16 * 2**10  # bytes
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
HEADERS = {
    "Cache-Control": "no-store",  # tissue of a patient stays in no browser, and is shown under no other name
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
COOKIE = "scmil"
# The browser may come from a file, which is another site: to a redirection it would not send the cookie that it was given.
# It sends it when a page of this site, which this is, leads on.
ARRIVED = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>scmil view</title><link rel="icon" href="data:,">
<meta http-equiv="refresh" content="0; url=./"></head>
<body><p><a href="./">scmil view</a></p></body></html>
"""
Scope = MutableMapping[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]


class Guard:
    """A gate in front of an application: each request passes all checks, and every answer carries the strict headers.

    All addresses begin with a prefix that is drawn at each start, so that no browser takes an answer of an earlier start
    for one of this. The secret comes once in the address; a cookie that no script and no other site can use takes its place.
    Cookies go to every port of a host: this one only to addresses with the prefix, which other servers do not know.
    """

    def __init__(
        self, app: App, port: int, prefix: str, token: str, arrived: Callable[[], None] = lambda: None
    ) -> None:
        self.app, self.prefix, self.token, self.arrived = app, prefix, token, arrived
        self.hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}

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
            await answer(sealed, refusal[0], refusal[1].encode())
            return
        admit(scope)
        path = scope["path"].removeprefix(f"/{self.prefix}")
        if self._comes_with_token(scope) and path == "/":
            cookie = f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/{self.prefix}/"
            await answer(sealed, 200, ARRIVED, {"content-type": "text/html; charset=utf-8", "set-cookie": cookie})
            self.arrived()
        else:
            await self.app({**scope, "path": path}, receive, sealed)

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
        if not (self._comes_with_prefix(scope) and (self._comes_with_token(scope) or self._comes_with_cookie(headers))):
            return 401, "open the address that scmil view has printed: it has a secret in it."
        return None

    def _comes_with_prefix(self, scope: Scope) -> bool:
        first, slash, _ = scope["path"].removeprefix("/").partition("/")
        return bool(slash) and _same(first, self.prefix)

    def _comes_with_token(self, scope: Scope) -> bool:
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        return _same(given, self.token)

    def _comes_with_cookie(self, headers: dict[str, str]) -> bool:
        pairs = (pair.strip().partition("=") for pair in headers.get("cookie", "").split(";"))
        return any(name == COOKIE and _same(value, self.token) for name, _, value in pairs)


def _same(given: str, secret: str) -> bool:
    """Whether a secret is right, in a time that does not say how much of it is."""
    return secrets.compare_digest(given.encode("utf-8", "replace"), secret.encode())


def _from_elsewhere(headers: dict[str, str]) -> bool:
    """Whether a browser says that another site asks; to follow a link to the page, with its secret, is everybody's right."""
    here = headers.get("sec-fetch-site", "none") in ("same-origin", "none")
    return not here and headers.get("sec-fetch-mode") != "navigate"


async def answer(send: Any, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
    """Send a short answer, and close the connection."""
    all_headers = {"content-type": "text/plain; charset=utf-8", "connection": "close", **(headers or {})}
    raw = [(name.encode(), value.encode()) for name, value in all_headers.items()]
    raw.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
