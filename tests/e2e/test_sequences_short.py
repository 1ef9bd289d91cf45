"""Every result belongs to the present data: a short form of the campaign."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys
from pathlib import Path

import pytest

CAMPAIGN = Path(__file__).parents[2] / "campaign"
sys.path.insert(0, str(CAMPAIGN))

import browser  # noqa: E402
import sequence  # noqa: E402


def test_every_number_and_picture_is_that_of_a_fresh_run_or_the_command_is_rejected(
    tmp_path: Path,
) -> None:
    for package in ("openslide", "tifffile", "sklearn", "starlette", "uvicorn"):
        pytest.importorskip(package)
    out = tmp_path / "sequence.json"
    words = ["--sequences", "1", "--seed", "1", "--processes", "1", "--shorten", "0", "--out", out]
    done = subprocess.run(
        [sys.executable, CAMPAIGN / "sequence.py", *words], capture_output=True, text=True
    )
    page = json.loads(out.read_text())
    assert page["findings"] == [], done.stdout
    assert done.returncode == 0, done.stdout + done.stderr
    assert page["sequences"] == 1
    assert page["outcomes"]["equal"] >= 3


def test_the_same_seed_gives_the_same_actions() -> None:
    assert [sequence.sequence(3, n) for n in range(20)] == [
        sequence.sequence(3, n) for n in range(20)
    ]
    assert len({name for n in range(50) for name, _ in sequence.sequence(3, n)}) > 15


def test_the_test_browser_caches_what_the_headers_allow() -> None:
    cache = browser.Browser()
    for header, stays in (
        ("private, max-age=60", True),
        ("no-store", False),
        ("no-cache, max-age=60", False),
        ("", False),
    ):
        answer = type("Answer", (), {"status": 200, "headers": {"cache-control": header}})()
        cache._keep(header, answer, b"picture")  # type: ignore[arg-type]
        assert (header in cache.cached) is stays


def test_the_doctests_of_the_sequences_pass() -> None:
    found = doctest.testmod(sequence)
    assert found.attempted
    assert not found.failed
