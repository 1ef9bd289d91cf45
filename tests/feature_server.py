"""A local server of public features: archives by address, and data sets as on the hub."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import torch

Files = dict[str, bytes]
COMMIT = "c" * 40


class FeatureServer:
    """Files by path; `cut` is the number of bytes after which the next answer ends, once."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.files: Files = {}
        self.sets: dict[str, Files] = {}
        self.cut: int | None = None
        self.asked: list[tuple[str, str]] = []  # path and range
        self.wrong_digest = False

    def page(self, name: str) -> bytes:
        """The description of a data set, as the hub gives it."""
        siblings = [
            {
                "rfilename": path,
                "size": len(content),
                "lfs": {
                    "size": len(content),
                    "sha256": "0" * 64
                    if self.wrong_digest
                    else hashlib.sha256(content).hexdigest(),
                    "pointerSize": 100,
                },
            }
            for path, content in self.sets[name].items()
        ]
        return json.dumps({"id": name, "sha": COMMIT, "siblings": siblings}).encode()

    def answer(self, path: str) -> bytes | None:
        if hit := re.match(r"/api/datasets/([^/]+/[^/?]+)", path):
            return self.page(hit[1]) if hit[1] in self.sets else None
        if hit := re.match(r"/datasets/([^/]+/[^/]+)/resolve/[^/]+/([^?]+)", path):
            return self.sets.get(hit[1], {}).get(hit[2])
        return self.files.get(path)


@contextmanager
def feature_server() -> Iterator[FeatureServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state: FeatureServer = self.server.state  # type: ignore[attr-defined]
            content, wanted = state.answer(self.path), self.headers.get("Range", "")
            state.asked.append((self.path, wanted))
            if content is None:
                self.send_error(404)
                return
            start = int(wanted[6:].partition("-")[0]) if wanted else 0
            self.send_response(206 if wanted else 200)
            if wanted:
                end = len(content) - 1
                self.send_header("Content-Range", f"bytes {start}-{end}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - start))
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            if self.command == "GET":
                body, state.cut, cut = content[start:], None, state.cut
                self.wfile.write(body if cut is None else body[:cut])

        do_HEAD = do_GET

        def log_message(self, *args: object) -> None:
            pass

    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.state = FeatureServer(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server.state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def features_of(slide: str, dim: int = 6) -> np.ndarray:
    seed = int(hashlib.sha256(slide.encode()).hexdigest()[:8], 16)
    return np.random.default_rng(seed).normal(size=(4, dim)).astype(np.float32)


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def pt(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    torch.save(torch.from_numpy(array), file)
    return file.getvalue()


def tar(files: Files) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def zipped(files: Files) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


# ------------------------------------------------------------------------------------------ layouts


def torchmil_files(slides: dict[str, int], encoder: str = "UNI") -> Files:
    """Archives of arrays below dataset/patches_512, and splits.csv."""
    base = "dataset/patches_512"
    arrays = {
        f"features/features_{encoder}": {name: npy(features_of(name)) for name in slides},
        "labels": {name: npy(np.array([label])) for name, label in slides.items()},
        "patch_labels": {name: npy(np.zeros(4, np.int64)) for name in slides},
        "coords": {name: npy(np.arange(8).reshape(4, 2) * 512) for name in slides},
    }
    files = {}
    for folder, content in arrays.items():
        parent, _, last = f"{base}/{folder}".rpartition("/")
        members = {f"{last}/{name}.npy": value for name, value in content.items()}
        files[f"{parent}/{last}.tar.gz"] = tar(members)
    rows = [["bag_name", "split"], *([name, "train"] for name in slides)]
    files["dataset/splits.csv"] = "\n".join(map(",".join, rows)).encode()
    files["README.md"] = b"not wanted"
    return files


def clam_files(slides: dict[str, int], folder: str, encoder: str = "uni") -> Files:
    """One tensor per slide, not in an archive."""
    return {f"{folder}/{encoder}/pt_files/{name}.pt": pt(features_of(name)) for name in slides}


def histossl_files(slides: dict[str, int]) -> Files:
    address = np.array([[1, x, y] for x in (0, 1) for y in (0, 1)], np.float32)
    return {
        f"{name}/features.npy": npy(np.concatenate([address, features_of(name)], 1))
        for name in slides
    }


def array_files(slides: dict[str, int], folder: str) -> Files:
    return {f"{folder}/{name}.pt": pt(features_of(name)) for name in slides}


def dsmil_files(slides: dict[str, int], folder: str = "") -> Files:
    """A folder per class with one table per slide, and the index."""
    files, index = {}, io.StringIO()
    rows = csv.writer(index)
    rows.writerow(["0", "label"])
    for name, label in slides.items():
        path = f"{folder}{('normal', 'tumor')[label]}/{name}.csv"
        table = io.StringIO()
        writer = csv.writer(table)
        writer.writerow(range(6))
        writer.writerows([[f"{value:.4f}" for value in row] for row in features_of(name)])
        files[path] = table.getvalue().encode()
        rows.writerow([path, label])
    files[f"{folder}Camelyon16.csv"] = index.getvalue().encode()
    return files
