"""Access control: only small GET requests from the viewer's own page on this computer pass."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

from scmil.viz.viewer.connections import admit

LONGEST_ADDRESS = 4096  # bytes of path and query together
MOST_HEADERS = 16 * 2**10  # bytes
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
HEADERS = {
    # No browser stores the tissue of a patient, or shows it under the name of another slide.
    "Cache-Control": "no-store",
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
COOKIE = "scmil"
# A browser that comes from a file, which is another site, would not send the new cookie with an
# HTTP redirect. It does send it when a page of this site, such as this one, redirects.
REDIRECT_PAGE = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>scmil view</title><link rel="icon" href="data:,">
<meta http-equiv="refresh" content="0; url=./"></head>
<body><p><a href="./">scmil view</a></p></body></html>
"""
Scope = MutableMapping[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]


class Guard:
    """ASGI middleware that checks every request, and adds the security headers to every response.

    All addresses begin with a prefix that is random for each server, so that no browser mixes up
    responses of two servers. The token is in the first address only; it is replaced by a cookie
    that scripts and other sites cannot read. Cookies are sent to all ports of a host, but this one
    only to addresses with the prefix, which other servers do not know.
    """

    def __init__(
        self,
        app: App,
        port: int,
        prefix: str,
        token: str,
        arrived: Callable[[], None] = lambda: None,
    ) -> None:
        self.app, self.prefix, self.token, self.arrived = app, prefix, token, arrived
        self.hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Pass a request on, or reject it."""
        if scope["type"] != "http":
            return
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }

        async def send_with_headers(message: Scope) -> None:
            if message["type"] == "http.response.start":
                strict = [
                    (name.lower().encode(), value.encode()) for name, value in HEADERS.items()
                ]
                message = {**message, "headers": [*message.get("headers", ()), *strict]}
            await send(message)

        if rejection := self.rejection(scope, headers):
            status, reason = rejection
            await send_response(send_with_headers, status, reason.encode())
            return
        admit(scope)
        path = scope["path"].removeprefix(f"/{self.prefix}")
        if self._has_token(scope) and path == "/":
            cookie = f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/{self.prefix}/"
            await send_response(
                send_with_headers,
                200,
                REDIRECT_PAGE,
                {"content-type": "text/html; charset=utf-8", "set-cookie": cookie},
            )
            self.arrived()
        else:
            await self.app({**scope, "path": path}, receive, send_with_headers)

    def rejection(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        """Status and reason if a request is rejected; None if it is accepted."""
        length = len(scope.get("raw_path") or scope["path"].encode()) + len(scope["query_string"])
        origin = headers.get("origin")
        if length > LONGEST_ADDRESS:
            return 414, "the address is too long."
        if sum(len(name) + len(value) for name, value in scope["headers"]) > MOST_HEADERS:
            return 431, "the headers are too long."
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            return 413, "requests must not have a body."
        if headers.get("host") not in self.hosts:
            return 421, "only this computer has access, as 127.0.0.1 or localhost."
        if (
            origin is not None and origin.removeprefix("http://") not in self.hosts
        ) or _is_cross_site(headers):
            return 403, "requests from other sites are rejected."
        if scope["method"] != "GET":
            return 405, "only GET requests are accepted."
        if not (self._has_prefix(scope) and (self._has_token(scope) or self._has_cookie(headers))):
            return 401, "open the address that scmil view printed; it contains a secret token."
        return None

    def _has_prefix(self, scope: Scope) -> bool:
        first, slash, _ = scope["path"].removeprefix("/").partition("/")
        return bool(slash) and _is_secret(first, self.prefix)

    def _has_token(self, scope: Scope) -> bool:
        token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        return _is_secret(token, self.token)

    def _has_cookie(self, headers: dict[str, str]) -> bool:
        pairs = (pair.strip().partition("=") for pair in headers.get("cookie", "").split(";"))
        return any(name == COOKIE and _is_secret(value, self.token) for name, _, value in pairs)


def _is_secret(text: str, secret: str) -> bool:
    """Compare with a secret in constant time, which reveals nothing about it."""
    return secrets.compare_digest(text.encode("utf-8", "replace"), secret.encode())


def _is_cross_site(headers: dict[str, str]) -> bool:
    """Whether another site sent the request; links to the page (with its token) are allowed."""
    same_site = headers.get("sec-fetch-site", "none") in ("same-origin", "none")
    return not same_site and headers.get("sec-fetch-mode") != "navigate"


async def send_response(
    send: Any, status: int, body: bytes, headers: dict[str, str] | None = None
) -> None:
    """Send a short response, and close the connection."""
    all_headers = {
        "content-type": "text/plain; charset=utf-8",
        "connection": "close",
        **(headers or {}),
    }
    raw = [(name.encode(), value.encode()) for name, value in all_headers.items()]
    raw.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
