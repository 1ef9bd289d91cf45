"""Memory is kept while asked, and what the C library does not know is no error."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from scmil.core.memory import memory_is_kept


def test_what_happens_inside_happens() -> None:
    with memory_is_kept():
        done = sum(bytes(range(4)))
    assert done == 6


def test_an_error_inside_comes_out() -> None:
    with pytest.raises(RuntimeError, match="inside"), memory_is_kept():
        raise RuntimeError("inside")


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: Any) -> Any:
        raise OSError("no such library")

    monkeypatch.setattr(ctypes, "CDLL", unknown)
    with memory_is_kept():
        pass
