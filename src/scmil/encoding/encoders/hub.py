"""Weights from the Hugging Face hub, and digests of files that were published without one.

Access to gated repositories is handled by `huggingface_hub` with the login of the user. scmil
neither reads nor stores tokens, and runs no code of a repository.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from scmil.core.atomic import write_atomically
from scmil.core.extras import import_extra
from scmil.core.fingerprint import sha256_of_file
from scmil.errors import DiskFullError, WeightsError

LOGIN = "log in with: hf auth login"


def cache_folder() -> Path:
    """The folder in which huggingface_hub keeps files."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    base = os.environ.get("HF_HOME") or Path(home) / "huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or Path(base) / "hub")


def cached_file(repository: str, file: str, revision: str = "") -> Path | None:
    """The file of a repository in the cache of huggingface_hub, or None; nothing is imported."""
    folder = cache_folder() / f"models--{repository.replace('/', '--')}"
    commit = revision
    if (reference := folder / "refs" / (revision or "main")).is_file():
        commit = reference.read_text().strip()
    path = folder / "snapshots" / commit / file
    return path if commit and path.is_file() else None


def fetch(name: str, repository: str, file: str, revision: str = "") -> Path:
    """Download a file of a repository through huggingface_hub, and return its path in the cache.

    Raises:
        MissingExtraError: If huggingface_hub is not installed.
        WeightsError: If access is denied, or the file cannot be downloaded.
    """
    hub = import_extra("huggingface_hub", "hub")
    page = f"https://huggingface.co/{repository}"
    endpoint = os.environ.get("HF_ENDPOINT")
    # Not its retries: the error says what failed. Its modules are attributes only once imported.
    import_extra("huggingface_hub.utils.logging", "hub").set_verbosity_error()
    try:
        path = hub.hf_hub_download(repository, file, revision=revision or None, endpoint=endpoint)
    except OSError as error:
        if isinstance(error, DiskFullError):
            raise
        raise WeightsError(_explain(name, page, file, error)) from None
    except Exception as error:  # the client has errors of several packages
        raise WeightsError(_explain(name, page, file, error)) from None
    return Path(path)


def _explain(name: str, page: str, file: str, error: Exception) -> str:
    """Why a download failed and what to do, by the class of the error of huggingface_hub."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    manual = f"Or give the file with --weights: {file} of {page}."
    if "GatedRepoError" in kinds:
        return (
            f"{name}: {page} is gated, and your account has no access. Request access on that "
            f"page, wait for the approval, and {LOGIN}. {manual}"
        )
    if "RepositoryNotFoundError" in kinds:
        return (
            f"{name}: {page} does not exist, or is not visible without a login. If it exists, "
            f"{LOGIN}. {manual}"
        )
    unreachable = "LocalEntryNotFoundError" in kinds
    if kinds & {"EntryNotFoundError", "RevisionNotFoundError"} and not unreachable:
        return (
            f"{name}: {page} has no file {file} in this revision. The authors may have renamed it; "
            f"look at {page}/tree/main. {manual}"
        )
    reason = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
    return f"{name}: {file} cannot be downloaded from {page} ({reason}). Try again. {manual}"


def record_hash(path: Path, md5: str = "") -> None:
    """Write the SHA-256 of a downloaded file beside it; an MD5 that is known is checked first."""
    if md5:
        with path.open("rb") as file:
            actual = hashlib.file_digest(file, "md5").hexdigest()
        if actual != md5:
            path.unlink()
            raise WeightsError(
                f"{path}: md5 {actual}, expected {md5}. This is not the published file; it was "
                "deleted. Download it again."
            )
    write_atomically(_record_of(path), f"{sha256_of_file(path)}\n".encode())


def recorded_hash(path: Path) -> str:
    """The SHA-256 that was recorded when a file was downloaded, or an empty text."""
    record = _record_of(path)
    return record.read_text().strip() if record.is_file() else ""


def _record_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")
