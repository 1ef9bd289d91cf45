"""A local server of files, which answers for missing ones as the Hugging Face hub does."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

Files = dict[str, bytes]


@contextmanager
def hub_server() -> Iterator[tuple[str, Files, list[str]]]:
    """The address, the files by path, and the paths that were requested.

    Paths with 'gated' are refused; 'nobody' is an owner that does not exist.
    """
    files: Files = {}
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            content = files.get(self.path)
            self.send_response(403 if "gated" in self.path else 404 if content is None else 200)
            if "gated" in self.path:
                self.send_header("X-Error-Code", "GatedRepo")
            elif content is None:
                missing = "RepoNotFound" if "nobody" in self.path else "EntryNotFound"
                self.send_header("X-Error-Code", missing)
            else:
                self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
                self.send_header("X-Repo-Commit", "c" * 40)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content or b"")

        do_HEAD = do_GET

        def log_message(self, *args: object) -> None:
            pass

    running = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{running.server_port}", files, asked
    finally:
        running.shutdown()
        running.server_close()
        thread.join()
