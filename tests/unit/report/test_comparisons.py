"""Comparisons of methods with their reference methods."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from synthetic_run import small_run

from scmil.errors import DataError
from scmil.report import (
    read_run,
    write_report,
)
from scmil.report.comparisons import across_datasets, compare_methods, protocol_effects
from scmil.report.run import Key
from scmil.stats import significance
from scmil.stats.metrics import decide


def test_comparisons_are_those_of_the_files(run: Path) -> None:
    read = read_run(run)
    a, b = (Key(method, "musk1", "last") for method in ("ABMIL + SC", "ABMIL | a_b"))
    each = next(c for c in compare_methods(read) if (c.method, c.dataset, c.protocol) == a)
    gains = np.array([read.folds[a][place] - read.folds[b][place] for place in read.folds[a]])
    assert each.accuracy.delta == pytest.approx(gains.mean())
    assert each.accuracy.p == pytest.approx(significance.corrected_t(gains, test_share=0.1))
    tested = read.predictions[a]
    hits = decide(tested.probabilities) == tested.labels
    # Ten folds of six bags each.
    assert hits.mean() == pytest.approx(read.results[a].metrics["accuracy"].mean)
    scores = [
        [
            read.predictions[key].probabilities[read.predictions[key].bags == str(bag), 1].mean()
            for bag in range(60)
        ]
        for key in (a, b)
    ]
    assert each.auc == pytest.approx(significance.delong(np.arange(60) % 2, *scores))
    assert each.published == pytest.approx(0.069)


def test_the_order_of_lines_does_not_matter(tmp_path: Path) -> None:
    before = compare_methods(read_run(small_run(tmp_path)))
    path = tmp_path / "cells" / "musk1--method-1" / "predictions.csv"
    header, *lines = path.read_text().splitlines()
    path.write_text("\n".join([header, *reversed(lines)]) + "\n")
    assert compare_methods(read_run(tmp_path)) == before


def test_bags_are_decided_by_the_threshold_of_their_fold(tmp_path: Path) -> None:
    """With a threshold of 1 both methods predict every bag as negative, so they are equal."""
    small_run(
        tmp_path,
        methods=(("A", None), ("B", "A")),
        datasets=["d"],
        protocols=["nested"],
        published={},
    )
    [before] = compare_methods(read_run(tmp_path))
    for path in tmp_path.glob("cells/*/predictions.csv"):
        path.write_text(path.read_text().replace(",0.52,", ",1,"))
    [after] = compare_methods(read_run(tmp_path))
    assert before.interval != (0, 0)
    assert after.interval == (0, 0)


def test_holm_corrects_over_data_sets(run: Path) -> None:
    pair = [
        c
        for c in compare_methods(read_run(run))
        if (c.method, c.protocol) == ("ABMIL + SC", "last")
    ]
    raw = [each.accuracy.signed_rank.p for each in pair]
    assert len(raw) == 2
    assert [each.holm_p for each in pair] == pytest.approx(significance.holm(raw).tolist())


def test_methods_tested_on_different_bags_are_not_compared(tmp_path: Path) -> None:
    small_run(tmp_path)
    path = tmp_path / "cells" / "musk1--method-1" / "predictions.csv"
    path.write_text(re.sub(r"^(\w+,\d+,\d+),7,", r"\1,other,", path.read_text(), flags=re.M))
    with pytest.raises(
        DataError,
        match=r"'ABMIL \+ SC' and 'ABMIL \| a_b' were not tested on the same folds and bags",
    ):
        write_report(tmp_path)


def test_five_data_sets_are_tested_together_and_fewer_are_not(tmp_path: Path) -> None:
    methods, datasets = (("A", None), ("B", "A")), ["a", "bb", "ccc", "dddd", "eeeee"]
    small_run(
        tmp_path,
        methods=methods,
        datasets=datasets,
        skill={"A": 1.5, "B": 5.0},
        protocols=["last"],
        published={},
    )
    compared = compare_methods(read_run(tmp_path))
    [together] = across_datasets(compared)
    assert together.p == together.smallest_p == 0.0625
    assert "p = 0.06 (the smallest possible p with 5 data sets is 0.0625)" in together.sentence()
    [fewer] = across_datasets(compared[:4])
    assert math.isnan(fewer.p)
    assert "too few data sets" in fewer.sentence()


def test_the_effect_of_the_protocol_is_the_gain_over_the_leakage_free_result(run: Path) -> None:
    row = protocol_effects(read_run(run))[0]
    last, _, tuned = row.accuracies
    assert row.gain == pytest.approx(tuned - last)
    assert row.gain > 0
    assert row.published_gain == pytest.approx(0.9 - last)


def test_three_classes_have_no_delong_test(tmp_path: Path) -> None:
    small_run(
        tmp_path,
        methods=(("A", None), ("B", "A")),
        datasets=["d"],
        protocols=["last"],
        published={},
    )
    for path in tmp_path.glob("cells/*/predictions.csv"):
        header, *lines = path.read_text().splitlines()
        path.write_text("\n".join([f"{header},p2", *(f"{line},0" for line in lines)]) + "\n")
    [each] = compare_methods(read_run(tmp_path))
    assert each.auc is None
    assert write_report(tmp_path)
