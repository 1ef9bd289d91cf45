"""Free memory, peak memory of this process, and reuse of freed memory."""

from __future__ import annotations

import ctypes
import gc
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
STATUS = Path("/proc/self/status")
UNKNOWN_FREE = 2**30  # assumed where the system does not report its free memory


def read_memory_table(path: Path) -> dict[str, int]:
    """Read a table of Linux, such as /proc/meminfo, as bytes by name.

    Raises:
        OSError: If there is no such table, as on other systems.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "meminfo"
    >>> _ = path.write_text("MemTotal:     2048 kB\\nHugePages_Total:  0\\n")
    >>> read_memory_table(path)
    {'MemTotal': 2097152}
    """
    rows = re.findall(r"^(\w+):\s+(\d+) kB", path.read_text("ascii", "replace"), re.MULTILINE)
    return {name: 1024 * int(kilobytes) for name, kilobytes in rows}


def free_memory() -> int:
    """Bytes that can be allocated without swapping; 1 GiB if the system does not report them.

    >>> free_memory() > 0
    True
    """
    try:
        return read_memory_table(MEMINFO)["MemAvailable"]
    except (OSError, KeyError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return UNKNOWN_FREE


class PeakMemory:
    """The peak resident memory of this process above its present memory, as Linux counts it."""

    def __init__(self) -> None:
        # Present memory is what is in use: garbage would be freed during the measurement, and freed
        # memory that the C library keeps would be used again without being counted.
        gc.collect()
        with suppress(OSError, AttributeError, TypeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)
        try:
            # Resets the peak, so that the memory of earlier work in this process does not count.
            Path("/proc/self/clear_refs").write_text("5")
            self._start: int | None = read_memory_table(STATUS)["VmRSS"]
        except (OSError, KeyError):
            self._start = None

    def mib(self) -> float | None:
        """The peak in MiB; None where the system does not report it."""
        if self._start is None:
            return None
        # Both counts are approximate, so that the difference can be negative.
        return round(max(read_memory_table(STATUS)["VmHWM"] - self._start, 0) / 2**20, 1)


@contextmanager
def memory_is_kept() -> Iterator[None]:
    """Let the C library (glibc) keep freed memory inside the block, and return it at the end.

    Each step of training or encoding allocates the same amount of memory again. By default, glibc
    returns it to the system, and the system provides it again page by page; this took up to half of
    the time of a step.

    >>> with memory_is_kept():
    ...     sum(bytes(10))
    0
    """
    trim, largest_mapped, gibibyte = -1, -3, 2**30
    try:
        library = ctypes.CDLL(None)
        library.mallopt(largest_mapped, 2**25)
        library.mallopt(trim, gibibyte)
    except (OSError, AttributeError, TypeError):  # another C library
        yield
        return
    try:
        yield
    finally:
        library.mallopt(largest_mapped, 2**17)  # glibc's documented defaults
        library.mallopt(trim, 2**17)
        library.malloc_trim(0)


# glibc maps larger allocations for themselves and returns them when they are freed, whatever its
# settings are.
ALWAYS_MAPPED = 2**25
PAGE, HUGE_PAGES = 4096, 14  # MADV_HUGEPAGE of Linux


def advise_huge_pages(address: int, size: int) -> None:
    """Ask Linux for pages of 2 MiB in new memory of more than 32 MiB; nothing happens elsewhere.

    Such memory is provided page by page each time that it is allocated: 17 ms for 49 MB in pages of
    4 KiB, 3 ms in huge ones.

    Args:
        address: The first byte.
        size: Number of bytes.

    >>> advise_huge_pages(0, 100)
    """
    if size <= ALWAYS_MAPPED:
        return
    start, end = -(-address // PAGE) * PAGE, (address + size) // PAGE * PAGE
    with suppress(OSError, AttributeError, TypeError):  # another system
        advise = ctypes.CDLL(None).madvise
        advise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), HUGE_PAGES)
