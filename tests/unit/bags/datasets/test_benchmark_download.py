"""Downloads of benchmarks: only on request, checked, and stored."""

from __future__ import annotations

import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from benchmark_files import compress, save, toy

from scmil import load_dataset
from scmil.bags import datasets
from scmil.bags.datasets import benchmark_download as download
from scmil.bags.datasets import classic
from scmil.bags.datasets.classic import BENCHMARKS, Original, content_hash
from scmil.errors import DataError


class Server(ThreadingHTTPServer):
    """Serves a folder on this computer and counts the requests."""

    requests = 0

    def finish_request(self, *args: object) -> None:
        self.requests += 1
        super().finish_request(*args)  # type: ignore[arg-type]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A stand-in for the public servers, which has a toy fox and a toy tiger in one archive, a toy
    MUSK in another.
    """
    monkeypatch.setenv("no_proxy", "*")
    (tmp_path / "www").mkdir()
    with Server(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "www"))) as server:
        at = f"http://127.0.0.1:{server.server_port}"
        known = {
            "fox": replace(
                BENCHMARKS["fox"], original=Original(f"{at}/animals.tgz", "Fox/data_100x100.svm")
            ),
            "tiger": replace(
                BENCHMARKS["tiger"],
                original=Original(f"{at}/animals.tgz", "Tiger/data_100x100.svm"),
            ),
            "musk1": replace(
                BENCHMARKS["musk1"], original=Original(f"{at}/musk+1.zip", "clean1.data")
            ),
            "corel-dogs": BENCHMARKS["corel-dogs"],
        }
        for seed, name in enumerate(["fox", "tiger", "musk1"]):
            known[name] = replace(known[name], sha256=content_hash(toy(seed)), in_package=False)
        monkeypatch.setattr(classic, "BENCHMARKS", known)
        thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.01))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def pack_animals(folder: Path, tiger_seed: int = 1) -> None:
    with tarfile.open(folder / "www" / "animals.tgz", "w:gz") as archive:
        evil = tarfile.TarInfo("../../Fox/data_100x100.svm")
        evil.type, evil.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(evil)
        for seed, name in ((0, "Fox"), (tiger_seed, "Tiger")):
            file = save(toy(seed), folder / "packing", f"{name}/data_100x100.svm")
            archive.add(file, f"MilData/{name}/data_100x100.svm")


def kept(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "cache" / "scmil").iterdir())


def test_a_download_is_checked_and_all_data_sets_of_the_archive_are_stored(
    server: Server, tmp_path: Path
) -> None:
    pack_animals(tmp_path)
    assert content_hash(load_dataset("fox", download=True)) == content_hash(toy(0))
    assert content_hash(load_dataset("tiger")) == content_hash(toy(1))
    assert datasets.fetch("fox") == tmp_path / "cache" / "scmil" / "fox.npz"
    assert server.requests == 1
    assert kept(tmp_path) == ["fox.npz", "tiger.npz"]


def test_nothing_is_downloaded_without_a_request(server: Server, tmp_path: Path) -> None:
    pack_animals(tmp_path)
    with pytest.raises(DataError, match="fox is not on this computer"):
        load_dataset("fox")
    datasets.dataset_status()
    assert server.requests == 0


def test_a_download_with_other_content_is_rejected_and_not_stored(
    server: Server, tmp_path: Path
) -> None:
    pack_animals(tmp_path, tiger_seed=5)
    with pytest.raises(DataError, match="these are not the bags of tiger"):
        datasets.fetch("fox")
    assert kept(tmp_path) == []  # not even the fox, which is right: the archive is another one
    (tmp_path / "www" / "animals.tgz").write_bytes(b"<html>moved</html>")
    with pytest.raises(DataError, match="cannot be read as fox: damaged, or not an archive"):
        datasets.fetch("fox")
    assert kept(tmp_path) == []


@pytest.mark.parametrize("member", ["clean1.data", "sub/clean1.data", "clean1.data.Z"])
@pytest.mark.usefixtures("server")
def test_musk_comes_out_of_a_zip_compressed_or_not(member: str, tmp_path: Path) -> None:
    content = save(toy(2), tmp_path, "clean1.data").read_bytes()
    with zipfile.ZipFile(tmp_path / "www" / "musk+1.zip", "w") as archive:
        archive.writestr("clean1.names", "about the data")
        archive.writestr(member, compress(content) if member.endswith("Z") else content)
    assert content_hash(load_dataset("musk1", download=True)) == content_hash(toy(2))


@pytest.mark.usefixtures("server")
def test_the_error_for_a_failed_download_states_the_cause(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"animals\.tgz: cannot be downloaded \(HTTP Error 404"):
        datasets.fetch("fox")
    with pytest.raises(DataError, match="only https and http"):
        datasets.fetch("fox", url=(tmp_path / "animals.tgz").as_uri())
    with pytest.raises(
        DataError,
        match=r"corel-dogs has no public file that can be downloaded\. Do one of these: put",
    ):
        datasets.fetch("corel-dogs")
    with pytest.raises(
        DataError, match=r"digits cannot be downloaded\. Benchmarks that can: fox, tiger, musk1"
    ):
        datasets.fetch("digits")
    (tmp_path / "www" / "musk+1.zip").write_bytes(zip_of("other.txt"))
    with pytest.raises(DataError, match=r"the archive has no file clean1\.data"):
        datasets.fetch("musk1")


def test_a_download_without_end_is_stopped(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "www" / "animals.tgz").write_bytes(bytes(2**20))
    monkeypatch.setattr(download, "MOST_BYTES", 2**19)
    with pytest.raises(DataError, match="so it is not the expected file"):
        datasets.fetch("fox")
    assert kept(tmp_path) == []


def zip_of(member: str, content: bytes = b"") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(member, content)
    return file.getvalue()
