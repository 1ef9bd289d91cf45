"""The files of an experiment: written once, never mixed, complete after every run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from study_cases import EPOCHS, plan_of_table, read_rows

from scmil.errors import ConfigError, OutputError
from scmil.studies.runner import run

pytestmark = pytest.mark.slow  # models are trained
ALL_RESAMPLES = True


def test_every_run_writes_all_its_files(table: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    outcome = run(
        plan_of_table(table),
        tmp_path / "out",
        jobs=1,
        progress=lambda *message: seen.append(message),
    )
    assert (outcome.before, outcome.finished, outcome.failed) == (0, 2, {})
    assert seen[-1][1:] == (2 * EPOCHS, 2 * EPOCHS)  # nested trains once more
    results = read_rows(tmp_path / "out" / "results.csv")
    assert [(row["arm"], row["protocol"]) for row in results] == [
        (arm, protocol) for arm in ("plain", "SC") for protocol in ("last", "nested", "test-tuned")
    ]
    assert len(read_rows(tmp_path / "out" / "folds.csv")) == 2 * 3 * 6
    cell = tmp_path / "out" / "cells" / "bags--sc"
    predictions = read_rows(cell / "predictions.csv")
    assert len(predictions) == 3 * 2 * 24  # every bag once a repeat and protocol
    history = read_rows(cell / "history.csv")
    assert [row["training"] for row in history] == ["full"] * EPOCHS + ["inner"] * EPOCHS
    result = json.loads((cell / "result.json").read_text())
    assert 0 < result["density"] <= 1
    assert result["settings"]["model"]["sparse_coding"]["atoms"] == 9


@pytest.mark.slow
def test_parallel_runs_give_the_same_numbers(table: Path, tmp_path: Path) -> None:
    for name, jobs in (("one", 1), ("two", 2)):
        run(plan_of_table(table), tmp_path / name, jobs=jobs)
    assert without_times(tmp_path / "one") == without_times(tmp_path / "two")


def without_times(out: Path) -> list[dict[str, str]]:
    return [
        {key: value for key, value in row.items() if key != "seconds"}
        for row in read_rows(out / "results.csv")
    ]


def test_a_finished_run_is_not_repeated(table: Path, tmp_path: Path) -> None:
    plan, out = plan_of_table(table), tmp_path / "out"
    assert run(plan, out, jobs=1, only="*--plain").finished == 1
    assert len(read_rows(out / "results.csv")) == 3
    before = (out / "cells/bags--plain/result.json").stat().st_mtime_ns
    outcome = run(plan, out, jobs=1)
    assert (outcome.before, outcome.finished) == (1, 1)
    assert (out / "cells/bags--plain/result.json").stat().st_mtime_ns == before


def test_results_of_other_settings_are_rejected(table: Path, tmp_path: Path) -> None:
    run(plan_of_table(table), tmp_path / "out", jobs=1, only="*--plain")
    with pytest.raises(
        ConfigError, match="1 results were made with other settings; the first is 'bags--plain'"
    ):
        run(plan_of_table(table, training={"epochs": 2}), tmp_path / "out", jobs=1)
    with pytest.raises(ConfigError, match="--only x: no run has such a name"):
        run(plan_of_table(table), tmp_path / "out", only="x")


def test_a_run_that_fails_is_recorded_and_the_others_continue(table: Path, tmp_path: Path) -> None:
    plan = plan_of_table(table)
    small = tmp_path / "small.csv"
    small.write_text("bag,label,f0\na,0,1\nb,1,2\n")
    first, *others = plan.cells
    data = replace(first.settings.data, dataset=str(small))
    first = replace(first, settings=replace(first.settings, data=data))
    plan = replace(plan, cells=(first, *others))
    outcome = run(plan, tmp_path / "out", jobs=1)
    assert outcome.finished == 1
    assert outcome.failed["bags--plain"].startswith("SplitError: ")
    assert (
        json.loads((tmp_path / "out/cells/bags--plain/failed.json").read_text())["traceback"]
        is None
    )


@pytest.mark.parametrize("name", ["results.csv", "report.md", "experiment.json"])
def test_a_run_does_not_replace_foreign_files(name: str, table: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text('{"format": "theirs"}')
    with pytest.raises(OutputError, match=f"{name} .*not written by scmil run"):
        run(plan_of_table(table), out, jobs=1)
    assert {path.name: path.read_text() for path in out.iterdir()} == {name: '{"format": "theirs"}'}
