"""Reports of survival, numbers, grades and several labels, from files alone."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from synthetic_target_run import write_target_run

from scmil.core.tables import records_csv
from scmil.errors import DataError
from scmil.report import (
    comparisons_for_terminal,
    read_run,
    rows_for_terminal,
    verdict,
    write_report,
)
from scmil.report.run import Key
from scmil.report.target_comparisons import (
    compare_target_methods,
    compare_targets,
    find_risk_groups,
)
from scmil.report.target_run import HeldOutRows, TargetRun, explained_selection
from scmil.report.target_tables import confusion_of, label_rows, metric_rows
from scmil.stats.paired_tests import corrected_t, holm

TASKS = ("survival", "regression", "ordinal", "multilabel")
MAIN = {
    "survival": "C index",
    "regression": "R²",
    "ordinal": "quadratic kappa",
    "multilabel": "macro AUC",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {task: write_target_run(tmp_path_factory.mktemp(task), task, folds=4) for task in TASKS}


def read(path: Path) -> TargetRun:
    run = read_run(path)
    assert isinstance(run, TargetRun)
    return run


@pytest.mark.parametrize("task", TASKS)
def test_each_task_has_its_sections(runs: dict[str, Path], task: str) -> None:
    html, md, tex = (path.read_text() for path in write_report(runs[task]))
    section = {
        "survival": "Risk groups",
        "regression": "Predicted against observed",
        "ordinal": "Confusion of grades",
        "multilabel": "Labels",
    }
    headings = re.findall("<h2>(.*?)</h2>", html)
    assert headings[0] == "Results"
    assert section[task] in headings
    assert not (set(section.values()) - {section[task]}) & set(headings)
    for text in (html, md):
        assert MAIN[task] in text
        assert "95 % interval" in text
        assert "paired bootstrap over patients" in text
        assert "last epoch; nothing is selected" in text
        assert "biased upwards" in text  # test-tuned
    assert "<b>run</b>" not in html
    assert r"\begin{tabular}" in tex
    assert "threshold" not in html.replace("decision threshold of a model", "")


@pytest.mark.parametrize("task", TASKS)
def test_the_verdict_says_what_is_above_chance_and_what_differs(
    runs: dict[str, Path], task: str
) -> None:
    run = read(runs[task])
    text = verdict(run)
    assert re.search(r"lies above chance \(0(\.5)?\) in [123] of 3 results", text)
    assert "plain + SC changed" in text
    [first, *_] = compare_target_methods(run)
    assert first.found.p < 0.05  # with these models; another training set may give another result
    assert ("a difference that chance alone would rarely make" in text) == first.significant
    assert first.significant or task in ("survival", "multilabel")
    assert "On cohort, baseline is better than none of the 2 networks" in text
    assert "Selecting the epoch on the test fold changes" in text
    tables = rows_for_terminal(run)
    assert [table.rows[1][0] for table in tables] == ["plain + SC"] * 2
    assert comparisons_for_terminal(run) is not None


def test_noise_is_not_above_chance(tmp_path: Path) -> None:
    skill = {"plain": 0.0, "plain + SC": 0.0}
    run = read(write_target_run(tmp_path, "survival", protocols=("last",), skill=skill))
    assert "lies above chance (0.5) in none of 2 results" in verdict(run)
    assert not any(each.significant for each in compare_target_methods(run))


def test_a_difference_is_that_of_the_results(runs: dict[str, Path]) -> None:
    for task, path in runs.items():
        run = read(path)
        first = compare_target_methods(run)[0]
        means = [
            run.results[Key(name, "cohort", "last")].metrics[run.main].mean
            for name in ("plain + SC", "plain")
        ]
        assert first.found.difference == pytest.approx(means[0] - means[1], abs=1e-6), task


def test_p_values_are_corrected_over_all_comparisons_of_a_protocol(tmp_path: Path) -> None:
    skill = {"plain": 0.2, "plain + SC": 1.0, "plain + linear": 0.4}
    run = read(write_target_run(tmp_path, "regression", protocols=("last",), skill=skill))
    compared = compare_target_methods(run)
    expected = holm([each.p for each in compared])
    assert [each.holm_p for each in compared] == expected.tolist()
    assert len(compared) == 2


def test_a_difference_that_depends_on_the_training_set_is_not_significant(tmp_path: Path) -> None:
    skill = {"plain": 0.2, "plain + SC": 1.0}
    path = write_target_run(
        tmp_path, "regression", protocols=("last",), n=60, repeats=6, skill=skill
    )
    [first] = compare_target_methods(read(path))
    assert first.significant
    assert first.p == max(first.found.p, first.fold_p)
    table = path / "folds.csv"
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    # In every second fold the other method wins: other training sets, another result.
    changed = [row | {"r2": str(float(row["r2"]) - 5 * int(row["fold"]))} for row in rows[:12]]
    table.write_bytes(records_csv([*rows[12:], *changed]))
    [second] = compare_target_methods(read(path))
    differences = [float(a["r2"]) - float(b["r2"]) for a, b in zip(rows[12:], changed, strict=True)]
    assert second.fold_p == pytest.approx(corrected_t(differences, 1 / 2))
    assert second.found.p == first.found.p < 0.05 < second.fold_p == second.p
    assert not second.significant
    assert (
        "no difference that exceeds the variation between training sets (p = " in second.sentence()
    )


def test_intervals_are_over_patients_and_not_over_slides(tmp_path: Path) -> None:
    skill = {"plain": 0.5, "plain + SC": 0.7}
    path = write_target_run(
        tmp_path, "regression", protocols=("last",), n=60, slides=6, skill=skill
    )
    run = read(path)
    keys = [Key(name, "cohort", "last") for name in ("plain + SC", "plain")]
    assert int(run.held_out[keys[0]].patients.max()) + 1 == 10
    by_patient = compare_targets(run, *keys).found.interval
    for name in ("cohort--0", "cohort--1"):
        table = path / "cells" / name / "predictions.csv"
        table.write_text(re.sub(r",p\d+,", ",,", table.read_text()))
    by_slide = compare_targets(read(path), *keys).found.interval
    assert by_patient != by_slide


def test_patients_are_grouped_by_most_of_their_predictions() -> None:
    rows = HeldOutRows(
        repeats=np.array([0, 0, 0, 0, 1, 1, 1, 1]),
        bags=np.array(["a", "b", "c", "d"] * 2),
        patients=np.array([0, 0, 1, 2] * 2),
        observed=np.array([[1.0, 1.0], [1.0, 1.0], [5.0, 1.0], [6.0, 0.0]] * 2),
        predicted=np.array([[0.0, high] for high in (0, 1, 0, 0, 1, 1, 0, 1)]),
    )
    found = find_risk_groups(rows)
    assert found.sizes == {"low risk": 2, "high risk": 1}
    assert found.groups["high risk"].times.tolist() == [1.0]
    assert found.test is not None


def test_one_risk_group_has_no_test() -> None:
    rows = HeldOutRows(
        np.zeros(2, int), np.array(["a", "b"]), np.arange(2), np.ones((2, 2)), np.ones((2, 2))
    )
    assert find_risk_groups(rows).test is None


def test_curves_have_numbers_at_risk_and_the_test(runs: dict[str, Path]) -> None:
    html = write_report(runs["survival"], ["html"])[0].read_text()
    assert "Patients at risk" in html
    assert re.search(r"plain \+ SC: \d+ low risk, \d+ high risk; log-rank test p", html)
    assert "median risk of its training patients" in html
    assert "AUC at" in html
    assert "integrated Brier score" in html


def test_each_label_has_a_row_and_the_macro_average(runs: dict[str, Path]) -> None:
    rows = label_rows(read(runs["multilabel"]), "cohort", "last")
    assert [row.label for row in rows[:4]] == ["high", "low", "noise", "macro average"]
    assert rows[1].slides < rows[0].slides == 40  # some are missing
    means = [row.estimates[0].mean for row in rows[:4] if row.estimates[0]]
    assert means[3] == pytest.approx(np.mean(means[:3]), abs=1e-6)


def test_the_confusion_counts_each_slide_once(runs: dict[str, Path]) -> None:
    run = read(runs["ordinal"])
    grades, counts = confusion_of(run, Key("plain + SC", "cohort", "last"))
    assert grades == ["1", "2", "3", "4"]
    assert counts.sum() == pytest.approx(40)
    assert counts.trace() == pytest.approx(40)  # its skill is perfect


def test_the_best_is_marked_and_small_errors_are_better(runs: dict[str, Path]) -> None:
    run = read(runs["regression"])
    rows = metric_rows(run, "cohort", "last")
    assert [row.best[-1] for row in rows] == [False, True, False]  # mean absolute error
    assert not any(any(row.best) for row in metric_rows(run, "cohort", "test-tuned"))


def test_results_of_other_bags_are_not_compared(tmp_path: Path) -> None:
    path = write_target_run(tmp_path, "ordinal", protocols=("last",))
    table = path / "cells" / "cohort--1" / "predictions.csv"
    table.write_text(table.read_text().replace(",s1,", ",other,"))
    with pytest.raises(DataError, match="not tested on the same bags and values of 'cohort'"):
        write_report(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"task": "survival"', '"task": "cure"', "unknown task 'cure'"),
        ('"targets": {', '"target": {', "without the targets of its task"),
    ],
)
def test_a_damaged_plan_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = write_target_run(tmp_path, "survival", protocols=("last",))
    plan = path / "experiment.json"
    plan.write_text(plan.read_text().replace(old, new, 1))
    with pytest.raises(DataError, match=message):
        read_run(path)


def test_damaged_predictions_are_named(tmp_path: Path) -> None:
    path = write_target_run(tmp_path, "ordinal", protocols=("last",), n=20)
    table = path / "cells" / "cohort--0" / "predictions.csv"
    lines = table.read_text().splitlines()
    table.write_text("\n".join(lines[:-1]))
    with pytest.raises(DataError, match="39 predictions by protocol 'last', expected 40"):
        read_run(path)
    cells = lines[1].split(",")
    cells[5] = "9"
    table.write_text("\n".join([lines[0], ",".join(cells), *lines[2:]]))
    with pytest.raises(DataError, match="line 2, observed: '9' is not a grade"):
        read_run(path)


def test_an_unfinished_experiment_has_a_report(tmp_path: Path) -> None:
    path = write_target_run(tmp_path, "survival", protocols=("last",))
    (path / "results.csv").write_text("cell,dataset,arm,protocol\n")
    html = write_report(path, ["html"])[0].read_text()
    assert "unfinished: 0 of 3 runs have results" in html


def test_protocols_of_others_have_no_definition() -> None:
    assert explained_selection("mine") == "“mine”"


def test_the_plan_of_classes_has_no_task(tmp_path: Path) -> None:
    path = write_target_run(tmp_path, "survival", protocols=("last",))
    plan = json.loads((path / "experiment.json").read_text())
    del plan["task"]
    (path / "experiment.json").write_text(json.dumps(plan))
    with pytest.raises(DataError, match="without the column 'accuracy'"):
        read_run(path)
