"""A damaged file is read or refused by name, whatever the damage: the campaign's fuzzing, a few hundred inputs."""

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

import kill  # noqa: E402
import mutations  # noqa: E402
import page  # noqa: E402
import soak  # noqa: E402
import whole  # noqa: E402
from mutations import CHANGES, mutated  # noqa: E402


def test_no_input_does_more_than_be_refused(tmp_path: Path) -> None:
    for package in ("openslide", "openpyxl", "shapely", "defusedxml"):
        pytest.importorskip(package)
    out = tmp_path / "fuzz.json"
    command = [sys.executable, CAMPAIGN / "fuzz.py", "--inputs", "400", "--seed", "1", "--processes", "1", "--out", out]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    page = json.loads(out.read_text())
    assert page["findings"] == []
    assert set(page["outcomes"]) == {"ok", "refused"}
    assert sum(page["outcomes"].values()) == page["inputs"] >= 390


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_every_change_takes_an_empty_file_too(change: object) -> None:
    for content in (b"", b"x", bytes(range(256))):
        changed = bytearray(content)
        change(changed, Random(0), [content])  # type: ignore[operator]


def test_the_same_seed_gives_the_same_inputs() -> None:
    seeds = [b"slide_id,label\ns1,0\n", b"other"]
    assert [mutated(seeds, Random(n)) for n in range(50)] == [mutated(seeds, Random(n)) for n in range(50)]
    assert len({mutated(seeds, Random(n)) for n in range(50)}) > 40


@pytest.mark.parametrize("module", [kill, mutations, page, soak, whole], ids=lambda module: module.__name__)
def test_the_examples_of_the_campaign_are_true(module: object) -> None:
    found = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)  # type: ignore[arg-type]
    assert found.attempted
    assert not found.failed


def test_the_page_says_what_the_results_say() -> None:
    assert page.PAGE.read_text() == page.page(), (
        "the results are newer than docs/reliability.md: python campaign/page.py"
    )
