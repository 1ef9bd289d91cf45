"""Downloads go on where they broke off, and nothing wrong or half is ever under the final name."""

from __future__ import annotations

import errno
import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from scmil.core import download as downloads
from scmil.core.download import download
from scmil.errors import DataError, DiskFullError

CONTENT = bytes(range(256)) * 4000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves one file; options let it ignore ranges, close early, shift ranges or redirect."""

    content = CONTENT
    knows_ranges = True
    hangs_up_after: int | None = None
    shifts_ranges = 0
    elsewhere = ""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/weights.pth"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.asked.append(asked)
        if self.server.elsewhere and self.path != "/elsewhere":
            self.answer(302, b"", Location=self.server.elsewhere)
            return
        content, start = self.server.content, 0
        if asked and self.server.knows_ranges:
            start = int(asked.removeprefix("bytes=").removesuffix("-")) + self.server.shifts_ranges
            if start >= len(content):
                self.answer(416, b"", Content_Range=f"bytes */{len(content)}")
                return
            self.answer(
                206,
                content[start:],
                Content_Range=f"bytes {start}-{len(content) - 1}/{len(content)}",
            )
            return
        self.answer(200, content)

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.server.hangs_up_after])


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    with Server() as server:
        thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.01))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_a_file_arrives_whole_in_a_new_folder(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "new" / "weights.pth"
    download(server.url, path, SHA256)
    assert path.read_bytes() == CONTENT
    assert left(path.parent) == ["weights.pth"]


def test_a_broken_download_goes_on_from_where_it_was(server: Server, tmp_path: Path) -> None:
    path, server.hangs_up_after = tmp_path / "weights.pth", 300_000
    with pytest.raises(
        DataError, match=r"ended after 300000 of 1024000 bytes\. Try again: the download resumes"
    ):
        download(server.url, path, SHA256)
    assert not path.exists()
    server.hangs_up_after = None
    download(server.url, path, SHA256)
    assert path.read_bytes() == CONTENT
    assert server.asked == [None, "bytes=300000-"]


def test_a_half_file_of_a_killed_process_is_continued(server: Server, tmp_path: Path) -> None:
    (tmp_path / "weights.pth.part").write_bytes(CONTENT[:1000])
    download(server.url, tmp_path / "weights.pth", SHA256)
    assert (tmp_path / "weights.pth").read_bytes() == CONTENT
    assert server.asked == ["bytes=1000-"]


def test_a_server_without_ranges_sends_the_whole_file(server: Server, tmp_path: Path) -> None:
    (tmp_path / "weights.pth.part").write_bytes(b"something that would be in the way")
    server.knows_ranges = False
    download(server.url, tmp_path / "weights.pth", SHA256)
    assert (tmp_path / "weights.pth").read_bytes() == CONTENT


def test_a_part_that_was_complete_already_is_only_renamed(server: Server, tmp_path: Path) -> None:
    (tmp_path / "weights.pth.part").write_bytes(CONTENT)
    download(server.url, tmp_path / "weights.pth", SHA256)
    assert (tmp_path / "weights.pth").read_bytes() == CONTENT
    assert len(server.asked) == 1


def test_a_part_that_is_longer_than_the_file_is_thrown_away(server: Server, tmp_path: Path) -> None:
    (tmp_path / "weights.pth.part").write_bytes(CONTENT + b"more")
    download(server.url, tmp_path / "weights.pth", SHA256)
    assert (tmp_path / "weights.pth").read_bytes() == CONTENT
    assert server.asked == [f"bytes={len(CONTENT) + 4}-", None]


def test_another_range_than_was_requested_is_rejected(server: Server, tmp_path: Path) -> None:
    (tmp_path / "weights.pth.part").write_bytes(CONTENT[:1000])
    server.shifts_ranges = 7
    with pytest.raises(DataError, match="another range than was requested"):
        download(server.url, tmp_path / "weights.pth", SHA256)
    assert (tmp_path / "weights.pth.part").read_bytes() == CONTENT[:1000]


@pytest.mark.parametrize("sha256", ["0" * 64, "f37072fd"])
def test_another_content_is_rejected_and_deleted(
    server: Server, tmp_path: Path, sha256: str
) -> None:
    with pytest.raises(DataError, match=f"sha256 {SHA256}, expected {sha256}"):
        download(server.url, tmp_path / "weights.pth", sha256)
    assert left(tmp_path) == []


def test_the_first_digits_of_a_hash_are_checked_too(server: Server, tmp_path: Path) -> None:
    download(server.url, tmp_path / "weights.pth", SHA256[:8])
    assert (tmp_path / "weights.pth").is_file()


def test_a_download_without_end_is_stopped(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"more than 0 MB, so it is not the expected file"):
        download(server.url, tmp_path / "weights.pth", SHA256, most_bytes=2**19)
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    "url", ["http://example.org/weights.pth", "file:///etc/passwd", "weights.pth"]
)
def test_only_https_is_downloaded(url: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="only https is supported"):
        download(url, tmp_path / "weights.pth")


def test_a_redirection_to_plain_http_is_rejected(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        downloads, "LOCAL_HOSTS", ("127.0.0.1",)
    )  # so that localhost is another computer
    server.elsewhere = f"http://localhost:{server.server_port}/elsewhere"
    with pytest.raises(DataError, match=r"http://localhost:.*/elsewhere: only https is supported"):
        download(server.url, tmp_path / "weights.pth", SHA256)
    assert left(tmp_path) == []


def test_two_processes_that_want_the_same_file_do_not_mix_it(
    server: Server, tmp_path: Path
) -> None:
    both = [
        threading.Thread(target=download, args=(server.url, tmp_path / "weights.pth", SHA256))
        for _ in range(2)
    ]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert (tmp_path / "weights.pth").read_bytes() == CONTENT
    assert server.asked == [None]  # the second one found what the first had downloaded


def test_a_server_error_or_timeout_is_reported(server: Server, tmp_path: Path) -> None:
    dead = server.url.replace(str(server.server_port), "9")
    with pytest.raises(DataError, match=r"cannot be downloaded .*refused"):
        download(dead, tmp_path / "weights.pth")
    (tmp_path / "weights.pth.part").write_bytes(b"half")
    server.elsewhere = dead
    with pytest.raises(DataError, match="cannot be downloaded"):
        download(server.url, tmp_path / "weights.pth")
    assert (tmp_path / "weights.pth.part").read_bytes() == b"half"


def test_a_full_disk_is_called_so(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(downloads, "_write_response", full)
    with pytest.raises(DiskFullError, match="no space is left"):
        download(server.url, tmp_path / "weights.pth")
