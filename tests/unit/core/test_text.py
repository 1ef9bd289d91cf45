from __future__ import annotations

import os

import pytest

from scmil.core.text import describe_error, printable
from scmil.errors import SlideError


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("a\x9b2Jb", r"a\x9b2Jb"),
        ("gpj.\u202etumour", r"gpj.\u202etumour"),
        ("a\u2066b\u2069", r"a\u2066b\u2069"),
        ("a\r\nb\x7f", r"a\r\nb\x7f"),
        (os.fsdecode(b"\xff"), r"\udcff"),
        ("µm Größe 組織 [bold]", "µm Größe 組織 [bold]"),
    ],
)
def test_characters_that_control_a_terminal_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_causes_without_a_text_are_described_by_their_type() -> None:
    assert describe_error(OSError()) == "OSError"
    assert describe_error(SlideError()) == "SlideError"
    assert describe_error(MemoryError("4 GB")) == "not enough memory: 4 GB"
