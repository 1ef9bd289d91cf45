"""A comparison of models with and without sparse coding."""

from __future__ import annotations

from pathlib import Path

import pytest
from study_cases import open_clam_cohort, read_rows

from scmil import studies
from scmil.errors import OptionError
from scmil.studies.compare import comparison
from scmil.studies.settings import DataSettings


@pytest.mark.slow
def test_a_comparison_has_three_methods_per_aggregator_and_a_baseline(tmp_path: Path) -> None:
    data = open_clam_cohort(tmp_path)
    compared = studies.compare_aggregators(
        data, tmp_path / "out", ["mean"], folds=2, epochs=2, atoms=9, jobs=1
    )
    assert compared.outcome.failed == {}
    arms = [
        row["arm"] for row in read_rows(tmp_path / "out/results.csv") if row["level"] == "slide"
    ]
    assert arms == ["mean", "mean + SC", "mean + linear", "logistic regression on mean and maximum"]
    assert "In short: on this data" in compared.verdict
    assert (
        "a logistic regression on the mean and the maximum of each bag is better than"
        in compared.verdict
    )
    page = (tmp_path / "out/report.html").read_text()
    assert "Multiply-adds" in page
    assert "By patient" in page


@pytest.mark.slow
def test_rrt_is_a_rival_in_the_place_of_sparse_coding(tmp_path: Path) -> None:
    data = open_clam_cohort(tmp_path)
    compared = studies.compare_aggregators(
        data, tmp_path / "out", ["mean"], folds=2, epochs=2, atoms=9, jobs=1, refine=["sc", "rrt"]
    )
    assert compared.outcome.failed == {}
    arms = [
        row["arm"] for row in read_rows(tmp_path / "out/results.csv") if row["level"] == "slide"
    ]
    assert arms == ["mean", "mean + SC", "mean + rrt", "logistic regression on mean and maximum"]
    assert "Compared with RRT's re-embedding in its place, sparse coding" in compared.verdict
    assert (
        "with the re-embedding of RRT-MIL in its place"
        in (tmp_path / "out/experiment.json").read_text()
    )


def test_an_unknown_layer_is_an_error() -> None:
    with pytest.raises(OptionError, match=r"refine: unknown rtt\. Known: sc, linear, rrt"):
        comparison(DataSettings("musk1", True), ["mean"], refine=["rtt"])
