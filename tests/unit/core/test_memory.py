"""Free memory, peak memory, and the settings of the C library."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scmil.core.memory import ALWAYS_MAPPED, advise_huge_pages, free_memory, memory_is_kept

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
DEFAULT = 128 * 1024  # of both, in glibc


class RecordingLibrary:
    """Stands in for the C library and records the calls."""

    def __init__(self) -> None:
        self.options: dict[int, int] = {}
        self.trimmed = 0

    def mallopt(self, option: int, value: int) -> int:
        self.options[option] = value
        return 1

    def malloc_trim(self, pad: int) -> int:
        self.trimmed += 1
        return 1


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> RecordingLibrary:
    recording = RecordingLibrary()
    monkeypatch.setattr(ctypes, "CDLL", lambda _: recording)
    return recording


def test_freed_memory_is_kept_inside_the_block_only(library: RecordingLibrary) -> None:
    with memory_is_kept():
        assert library.options[TRIM_THRESHOLD] >= 2**30
        assert library.options[MMAP_THRESHOLD] >= 2**25  # the largest value that glibc accepts
        assert library.trimmed == 0
    assert library.options == {TRIM_THRESHOLD: DEFAULT, MMAP_THRESHOLD: DEFAULT}
    assert library.trimmed == 1


def test_the_defaults_return_after_an_error_as_well(library: RecordingLibrary) -> None:
    with pytest.raises(RuntimeError, match="inside"), memory_is_kept():
        raise RuntimeError("inside")
    assert library.options == {TRIM_THRESHOLD: DEFAULT, MMAP_THRESHOLD: DEFAULT}
    assert library.trimmed == 1


def test_a_c_library_without_mallopt_is_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_error(_: Any) -> Any:
        raise OSError("no such library")

    monkeypatch.setattr(ctypes, "CDLL", raise_error)
    ran = False
    with memory_is_kept():
        ran = True
    assert ran


def test_free_memory_is_one_gibibyte_where_the_system_does_not_report_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def raise_error(*_: object, **__: object) -> str:
        raise OSError

    assert free_memory() > 2**20
    monkeypatch.setattr("scmil.core.memory.Path.read_text", raise_error)
    assert free_memory() > 2**20
    monkeypatch.setattr("os.sysconf", raise_error)
    assert free_memory() == 2**30


needs_peak = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="only Linux reports the peak of a process"
)


# In a process of its own: in that of the tests, threads and memory of other tests count as well.
PEAK = """
import ctypes, gc
import numpy as np
from scmil.core.memory import PeakMemory

def use_memory(mib=64):
    "Write to a block of memory, and free it."
    np.ones(mib * 2**17)

peak = PeakMemory()
use_memory()
print(peak.mib())
print(PeakMemory().mib())

gc.disable()
cycle = [np.ones(128 * 2**17)]
cycle.append(cycle)
del cycle
peak = PeakMemory()
gc.collect()  # as Python does at any allocation
use_memory()
print(peak.mib())

library, trim, largest_mapped = ctypes.CDLL(None), -1, -3
library.mallopt(largest_mapped, 2**25)  # as in `memory_is_kept`
library.mallopt(trim, 2**30)
blocks = [np.ones(2**17) for _ in range(200)]
last = np.ones(2**10)  # above the blocks, so that the C library does not return them
del blocks
library.mallopt(largest_mapped, 2**17)
library.mallopt(trim, 2**17)
peak = PeakMemory()
use_memory()
print(peak.mib())
"""


@pytest.fixture(scope="module")
def peaks() -> list[float]:
    run = [sys.executable, "-c", PEAK]
    return [float(line) for line in subprocess.check_output(run, text=True).splitlines()]


@needs_peak
def test_peak_memory_counts_memory_that_was_freed_again(peaks: list[float]) -> None:
    assert peaks[0] == pytest.approx(64, abs=8)


@needs_peak
def test_peak_memory_does_not_count_earlier_work(peaks: list[float]) -> None:
    assert peaks[1] < 8


@needs_peak
def test_garbage_of_earlier_work_does_not_hide_a_peak(peaks: list[float]) -> None:
    assert peaks[2] == pytest.approx(64, abs=8)


@needs_peak
def test_memory_that_the_c_library_keeps_does_not_hide_a_peak(peaks: list[float]) -> None:
    assert peaks[3] == pytest.approx(64, abs=8)


SMAPS = Path("/proc/self/smaps")


@pytest.mark.skipif(not SMAPS.is_file(), reason="the mappings of a process cannot be read here")
def test_new_memory_of_more_than_32_mib_is_in_huge_pages() -> None:
    size = ALWAYS_MAPPED + 2**20
    mapped = mmap.mmap(-1, size)
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))

    def is_advised() -> bool:
        own = SMAPS.read_text().partition(f"\n{address:08x}-")[2]
        flags = next(line for line in own.splitlines() if line.startswith("VmFlags"))
        return "hg" in flags.split()

    advise_huge_pages(address, ALWAYS_MAPPED)
    assert not is_advised()
    advise_huge_pages(address, size)
    assert is_advised()
