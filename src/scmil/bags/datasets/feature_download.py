"""Download published features: listed first, bounded in size, checked, resumed, unpacked safely."""

from __future__ import annotations

import json
import os
import tarfile
import zipfile
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from scmil.bags.datasets.feature_sets import FeatureSet
from scmil.core.atomic import write_atomically
from scmil.core.download import TIMEOUT_S, download
from scmil.core.download import cache as cache_folder
from scmil.core.extras import import_extra
from scmil.core.fingerprint import sha256_of_file
from scmil.core.safe_io import check_archive
from scmil.core.tables import read_json
from scmil.errors import DataError

RECORD = "feature_set.json"
ARCHIVES = (".tar.gz", ".tgz", ".tar", ".zip")
LONGEST_LISTING = 2**26
GIGABYTE = 10**9


class RemoteFile(NamedTuple):
    """A file to download; size and SHA-256 where the server publishes them."""

    path: str
    url: str
    size: int | None
    sha256: str


class Listing(NamedTuple):
    """What would be downloaded."""

    files: tuple[RemoteFile, ...]
    revision: str

    @property
    def size(self) -> int:
        """The number of bytes that are known."""
        return sum(file.size or 0 for file in self.files)


def list_files(chosen: FeatureSet, url: str | None = None) -> Listing:
    """List the files of a set without downloading them.

    Args:
        chosen: The set.
        url: The address of an archive, for sets without a public address, or for a copy.

    Raises:
        DataError: If the set has no address, or the server does not answer.
    """
    if url is not None:
        name = PurePosixPath(url.partition("?")[0]).name
        return Listing((RemoteFile(name, url, _ask_size(url), ""),), "")
    if not chosen.hub:
        raise DataError(
            f"{chosen.name} cannot be downloaded automatically: {chosen.hint}. Download it in a "
            f"browser, then give the address or the file: scmil get {chosen.name} --url ADDRESS, "
            "or unpack it and use the folder."
        )
    page = _hub_page(chosen)
    files = tuple(_remote_files(chosen, page))
    if not files:
        folders = sorted({each["rfilename"].partition("/")[0] for each in page["siblings"]})
        raise DataError(
            f"{chosen.source} has no files that match {', '.join(chosen.include)}. It has: "
            f"{', '.join(folders[:20])}. The authors may have renamed them; download them by hand."
        )
    return Listing(files, str(page.get("sha", "")))


def download_features(
    chosen: FeatureSet,
    listing: Listing,
    out: Path | None = None,
    most_bytes: int = 100 * GIGABYTE,
) -> Path:
    """Download and unpack a set, unless it is there, and return the folder of its features.

    Archives are unpacked where they are and then deleted. A break is resumed by the next call.

    Raises:
        DataError: If the set is larger than `most_bytes`, a file is not the published one, or an
            archive would write outside the folder.
    """
    folder = chosen.folder(out)
    place = folder / chosen.place
    if (folder / RECORD).is_file():
        _check_record(folder / RECORD, chosen)
        return place
    if listing.size > most_bytes:
        raise DataError(
            f"{chosen.name} has {listing.size / GIGABYTE:.1f} GB, and at most "
            f"{most_bytes / GIGABYTE:g} GB are allowed. Allow more with --max-size, or choose "
            "another set."
        )
    digests = {file.path: _fetch(chosen, file, folder, most_bytes) for file in listing.files}
    page = {
        "name": chosen.name,
        "source": chosen.source,
        "revision": listing.revision,
        "licence": chosen.licence,
        "encoders": dict(chosen.encoders),
        "protocol": chosen.protocol,
        "sha256": digests,
    }
    write_atomically(folder / RECORD, json.dumps(page, indent=2).encode())
    return place


def _check_record(path: Path, chosen: FeatureSet) -> None:
    name = dict(read_json(path)).get("name")
    if name != chosen.name:
        raise DataError(
            f"{path.parent} has the features {name!r}, and not {chosen.name!r}. Use another folder."
        )


def _fetch(chosen: FeatureSet, file: RemoteFile, folder: Path, most_bytes: int) -> str:
    """Download one file and unpack it if it is an archive; return its SHA-256."""
    path = folder / _safe_path(file.path)
    done = path.with_name(f"{path.name}.unpacked")
    if done.is_file():
        return done.read_text().strip()
    if chosen.gated and not file.url:
        _fetch_gated(chosen, file, folder)  # without a check of its content
        digest = sha256_of_file(path)
    else:
        download(file.url, path, file.sha256, most_bytes=file.size or most_bytes)
        digest = file.sha256 or sha256_of_file(path)
    _check_file_digest(chosen, file, path, digest)
    if path.name.endswith(ARCHIVES):
        unpack(path, path.parent, most_bytes)
        write_atomically(done, digest.encode())
        path.unlink()
    return digest


def _check_file_digest(chosen: FeatureSet, file: RemoteFile, path: Path, digest: str) -> None:
    """Reject another file than the published one, or than that of the first download."""
    record = cache_folder() / "features" / f"{chosen.name}.sha256.json"
    recorded = dict(read_json(record)) if record.is_file() else {}
    expected = file.sha256 or recorded.get(file.path, digest)
    if digest != expected:
        path.unlink()
        origin = (
            "as published"
            if file.sha256
            else f"as recorded at the first download. If the authors have replaced it, delete "
            f"{record}"
        )
        raise DataError(
            f"{file.path} of {chosen.name}: sha256 {digest}, expected {expected}, {origin}. The "
            "file was deleted; download it again."
        )
    if not file.sha256:
        write_atomically(record, json.dumps({**recorded, file.path: digest}, indent=2).encode())


def unpack(archive: Path, folder: Path, most_bytes: int) -> None:
    """Unpack an archive into a folder; members outside of it, links and bombs are rejected."""
    try:
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as opened:
                check_archive(opened)
                _check_total(sum(each.file_size for each in opened.infolist()), most_bytes)
                for name in opened.namelist():
                    _safe_path(name)
                opened.extractall(folder)
        else:
            with tarfile.open(archive) as opened_tar:
                _check_total(sum(each.size for each in opened_tar), most_bytes)
                opened_tar.extractall(folder, filter="data")
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise DataError(
            f"{archive}: cannot be unpacked ({error}). Delete it and download it again."
        ) from None


def _check_total(size: int, most_bytes: int) -> None:
    if size > most_bytes:
        raise DataError(
            f"the archive has {size / GIGABYTE:.1f} GB unpacked, and at most "
            f"{most_bytes / GIGABYTE:g} GB are allowed. Allow more with --max-size."
        )


def _safe_path(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or not name:
        raise DataError(f"{name!r} is outside the folder of the set; nothing was written.")
    return path


# ------------------------------------------------------------------------------------------ servers


def _hub_page(chosen: FeatureSet) -> dict[str, Any]:
    """The description of a data set of the hub, with its files."""
    if chosen.gated:
        return _gated_page(chosen)
    address = f"{_endpoint()}/api/datasets/{chosen.hub}/revision/{chosen.revision}?blobs=true"
    try:
        with urlopen(_request(address), timeout=TIMEOUT_S) as answer:
            return dict(json.loads(answer.read(LONGEST_LISTING)))
    except (URLError, OSError, ValueError) as error:
        raise DataError(
            f"{chosen.source}: its files cannot be listed ({error}). Try again, or download them "
            "in a browser."
        ) from None


def _remote_files(chosen: FeatureSet, page: dict[str, Any]) -> Sequence[RemoteFile]:
    revision = page.get("sha") or chosen.revision
    base = f"{_endpoint()}/datasets/{chosen.hub}/resolve/{revision}"
    files = []
    for each in page.get("siblings", ()):
        name, stored = str(each["rfilename"]), each.get("lfs") or {}
        if any(fnmatch(name, pattern) for pattern in chosen.include):
            url = "" if chosen.gated else f"{base}/{quote(name)}"
            size = stored.get("size") or each.get("size")
            files.append(RemoteFile(name, url, size, str(stored.get("sha256") or "")))
    return files


def _gated_page(chosen: FeatureSet) -> dict[str, Any]:
    hub = import_extra("huggingface_hub", "hub")
    try:
        info = hub.HfApi(endpoint=_endpoint()).dataset_info(
            chosen.hub, revision=chosen.revision, files_metadata=True
        )
    except Exception as error:  # the client has errors of several packages
        raise DataError(_explain_gate(chosen, error)) from None
    siblings = [
        {"rfilename": each.rfilename, "size": each.size, "lfs": dict(each.lfs or {})}
        for each in info.siblings or ()
    ]
    return {"sha": info.sha, "siblings": siblings}


def _fetch_gated(chosen: FeatureSet, file: RemoteFile, folder: Path) -> None:
    hub = import_extra("huggingface_hub", "hub")
    try:
        hub.hf_hub_download(
            chosen.hub,
            file.path,
            repo_type="dataset",
            revision=chosen.revision,
            local_dir=folder,
            endpoint=_endpoint(),
        )
    except Exception as error:
        raise DataError(_explain_gate(chosen, error)) from None


def _explain_gate(chosen: FeatureSet, error: Exception) -> str:
    reason = str(error).partition("\n")[0]
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "HfHubHTTPError" not in kinds or "LocalEntryNotFoundError" in kinds:  # no answer of the hub
        return f"{chosen.name}: {chosen.source} cannot be reached ({reason}). Try again."
    return (
        f"{chosen.name}: {chosen.source} is gated ({reason}). Request access on that page, wait "
        "for the approval, and log in with: hf auth login."
    )


def _ask_size(url: str) -> int | None:
    try:
        with urlopen(_request(url, "HEAD"), timeout=TIMEOUT_S) as answer:
            length = answer.headers.get("Content-Length")
    except (URLError, OSError, ValueError):
        return None  # the download itself says what is wrong
    return int(length) if length else None


def _request(url: str, method: str = "GET") -> Request:
    return Request(url, headers={"User-Agent": "scmil"}, method=method)


def _endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
