"""All tests here run with little memory and in limited time."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _little_memory_and_time() -> Iterator[None]:
    """A gigabyte beside what is in use, and ten seconds."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, before[1]))
    start = time.monotonic()
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    # The machine may be busy; alone each takes a part of a second.
    assert time.monotonic() < start + 60
