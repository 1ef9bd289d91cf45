"""A damaged file is read or rejected by name: a short form of the campaign."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

CAMPAIGN = Path(__file__).parents[2] / "campaign"
sys.path.insert(0, str(CAMPAIGN))

import kill_checks  # noqa: E402
import mutations  # noqa: E402
import page  # noqa: E402
import soak  # noqa: E402
import whole  # noqa: E402
from mutations import CHANGES, mutate  # noqa: E402


@pytest.mark.slow
def test_every_damaged_file_is_read_or_rejected(tmp_path: Path) -> None:
    for package in ("openslide", "openpyxl", "shapely", "defusedxml"):
        pytest.importorskip(package)
    out = tmp_path / "fuzz.json"
    command = [
        sys.executable,
        CAMPAIGN / "fuzz.py",
        "--inputs",
        "200",
        "--seed",
        "1",
        "--processes",
        "1",
        "--out",
        out,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    page = json.loads(out.read_text())
    assert page["findings"] == []
    assert set(page["outcomes"]) == {"ok", "refused"}
    assert sum(page["outcomes"].values()) == page["inputs"] >= 195


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_every_change_accepts_an_empty_file_and_alters_a_long_one(change: object) -> None:
    for content in (b"", b"x"):
        change(bytearray(content), Random(0), [content])  # type: ignore[operator]
    content, results = bytes(range(256)) * 4, set()
    for seed in range(20):
        changed = bytearray(content)
        change(changed, Random(seed), [content])  # type: ignore[operator]
        results.add(bytes(changed))
    assert results - {content}


def test_the_same_seed_gives_the_same_inputs() -> None:
    seeds = [b"slide_id,label\ns1,0\n", b"other"]
    assert [mutate(seeds, Random(n)) for n in range(50)] == [
        mutate(seeds, Random(n)) for n in range(50)
    ]
    assert len({mutate(seeds, Random(n)) for n in range(50)}) > 40


@pytest.mark.parametrize(
    "module", [kill_checks, mutations, page, soak, whole], ids=lambda module: module.__name__
)
def test_the_examples_of_the_campaign_are_true(module: object) -> None:
    found = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)  # type: ignore[arg-type]
    assert found.attempted
    assert not found.failed


def test_the_reliability_page_matches_the_results() -> None:
    assert page.PAGE.read_text() == page.page(), (
        "the results are newer than docs/reliability.md: python campaign/page.py"
    )
