"""Memory that is used again, instead of being given back and asked for page by page."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def memory_is_kept() -> Iterator[None]:
    """Ask the C library to keep freed memory for the next step, where it can be asked (glibc), and to return it at the end.

    Every step, of training or of encoding, needs the same megabytes again. By default they go back to the system and come
    again page by page, which took up to half of a step where it was measured.

    >>> with memory_is_kept():
    ...     sum(bytes(10))
    0
    """
    trim, largest_mapped, gibibyte = -1, -3, 2**30
    try:
        library = ctypes.CDLL(None)
        library.mallopt(largest_mapped, 2**25)
        library.mallopt(trim, gibibyte)
    except (OSError, AttributeError, TypeError):  # another C library: nothing to ask
        yield
        return
    try:
        yield
    finally:
        library.mallopt(largest_mapped, 2**17)  # glibc's documented defaults
        library.mallopt(trim, 2**17)
        library.malloc_trim(0)
