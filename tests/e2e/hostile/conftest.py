"""All tests here run with little memory and in limited time."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest


def processor_seconds() -> float:
    """Of this process and its children: other work on the machine does not count."""
    return sum(os.times()[:4])


@pytest.fixture(autouse=True)
def _little_memory_and_time() -> Iterator[None]:
    """A gigabyte beside what is in use, and a minute of processor time."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, before[1]))
    start = processor_seconds()
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert processor_seconds() < start + 60  # each takes a part of a second
