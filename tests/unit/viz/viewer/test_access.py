"""Requests that are accepted, and requests that are rejected."""

from __future__ import annotations

from http.client import HTTPConnection

import pytest

pytest.importorskip("starlette", reason="starlette is not installed")
pytest.importorskip("openslide", reason="openslide is not installed")
from viewer_case import (
    ask,
    status,
)

from scmil.viz.viewer import Server


def test_the_token_becomes_a_cookie_that_scripts_cannot_read(server: Server) -> None:
    answer, page = ask(server, f"/?token={server.token}", Cookie="")
    assert answer.status == 200
    # A redirection from a file, another site, would come without the cookie.
    assert b'content="0; url=./"' in page
    cookie = answer.headers["set-cookie"]
    assert f"Path=/{server.prefix}/" in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert status(server, "/", Cookie=cookie.partition(";")[0]) == 200


@pytest.mark.parametrize(
    "path", ["/", "/api/slides", "/static/app.js", "/dz/0/10/0_0.jpg", "/nothing"]
)
def test_requests_without_the_token_are_rejected(server: Server, path: str) -> None:
    assert status(server, path, Cookie="") == 401
    assert status(server, path, Cookie="scmil=guess") == 401
    assert status(server, f"{path}?token=guess", Cookie="") == 401
    assert status(server, path, Cookie=f"other={server.token}") == 401


@pytest.mark.parametrize(
    "path", ["/", "/{other}/", "/{other}/api/slides", "/{prefix}", "//{prefix}/", "/api/slides"]
)
def test_requests_without_the_prefix_are_rejected(server: Server, path: str) -> None:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=120)
    path = path.format(prefix=server.prefix, other="x" * len(server.prefix))
    for query in ("", f"?token={server.token}"):
        connection.request("GET", path + query, headers={"Cookie": server.cookie})
        answer = connection.getresponse()
        assert answer.status == 401
        answer.read()
    connection.close()


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "127.0.0.1",
        "127.0.0.1:1",
        "0.0.0.0:{port}",
        "[::1]:{port}",
    ],
)
def test_another_host_is_rejected(server: Server, host: str) -> None:
    assert status(server, "/api/slides", Host=host.format(port=server.port)) == 421


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://localhost:{port}"]
)
def test_another_origin_is_rejected(server: Server, origin: str) -> None:
    assert status(server, "/api/slides", Origin=origin.format(port=server.port)) == 403


def test_cross_site_requests_are_rejected_except_links(server: Server) -> None:
    assert (
        status(server, "/api/slides", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors") == 403
    )
    # Another port.
    assert status(server, "/api/slides", Sec_Fetch_Site="same-site", Sec_Fetch_Mode="cors") == 403
    assert status(server, "/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate") == 200
    assert (
        status(
            server,
            "/api/slides",
            Origin=f"http://localhost:{server.port}",
            Host=f"localhost:{server.port}",
        )
        == 200
    )


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE"])
def test_only_get_is_accepted(server: Server, method: str) -> None:
    assert ask(server, "/api/slides", method)[0].status == 405


def test_oversize_requests_are_rejected(server: Server) -> None:
    assert status(server, "/api/slides?x=" + "a" * 5000) == 414
    assert ask(server, "/api/slides", "GET", b"x")[0].status == 413
    assert status(server, "/api/slides", Transfer_Encoding="chunked") == 413
    assert status(server, "/api/slides", X="a" * 40_000) == 431


@pytest.mark.parametrize(
    "path", ["/", "/api/slides", "/dz/0/10/0_0.jpg", "/nothing", "/?token=guess"]
)
def test_every_answer_carries_the_strict_headers(server: Server, path: str) -> None:
    headers = ask(server, path, Cookie="" if "guess" in path else server.cookie)[0].headers
    policy = headers["content-security-policy"]
    assert policy.startswith(
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:"
    )
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["server"] is None
