"""The summary paragraph of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from synthetic_run import small_run, write_run

from scmil.report import (
    read_run,
    verdict,
)
from scmil.report.comparisons import compare_methods


def test_the_verdict_reports_a_large_gain_as_significant_and_a_small_one_not(
    tmp_path: Path,
) -> None:
    methods = (("A", None), ("B", "A"))
    common = {
        "methods": methods,
        "protocols": ["last"],
        "published": {},
        "bags": 60,
        "repeats": 3,
        "folds": 10,
    }
    (tmp_path / "large").mkdir()
    (tmp_path / "small").mkdir()
    large = verdict(read_run(small_run(tmp_path / "large", skill={"A": 0.5, "B": 6.0}, **common)))
    small = verdict(read_run(small_run(tmp_path / "small", skill={"A": 1.5, "B": 1.5}, **common)))
    assert "2 of 2 comparisons show a significant gain and 0 a significant loss" in large
    assert "2 of these 2 remain significant after Holm's correction" in large
    assert "none of the 2 comparisons shows a significant difference" in small


def test_the_verdict_of_a_single_comparison_is_its_sentence(tmp_path: Path) -> None:
    run = read_run(
        small_run(tmp_path, methods=(("A", None), ("B", "A")), datasets=["d"], published={})
    )
    first = next(each for each in compare_methods(run) if each.protocol == "last")
    assert first.accuracy.sentence() in verdict(run)


COMPARED = (("A", None), ("A + SC", "A"), ("A + linear", "A"), ("LR", None))

MODELS: dict[str, dict[str, object]] = {
    "A": {"aggregator": "abmil", "sparse_coding": False, "refine": None},
    "A + SC": {"aggregator": "abmil", "sparse_coding": {"atoms": 9}, "refine": None},
    "A + linear": {"aggregator": "abmil", "sparse_coding": {"atoms": 9}, "refine": "linear"},
    "LR": {"aggregator": "logistic-mean-max", "sparse_coding": False, "refine": None},
}


def verdict_of(folder: Path, **skill: float) -> str:
    by_method = dict(zip(MODELS, skill.values(), strict=True))
    write_run(
        folder,
        COMPARED,
        ["ours"],
        skill=by_method,
        failed=(),
        published={},
        bags=120,
        repeats=2,
        folds=5,
    )
    plan = json.loads((folder / "experiment.json").read_text())
    for cell in plan["cells"]:
        cell["settings"] = {"model": MODELS[cell["arm"]]}
    (folder / "experiment.json").write_text(json.dumps(plan))
    return verdict(read_run(folder))


def test_a_gain_shared_by_a_linear_layer_is_not_credited_to_sparse_coding(tmp_path: Path) -> None:
    summary = verdict_of(tmp_path, plain=0.3, coded=2.5, linear=2.5, logistic=0.1)
    assert (
        "In short: on this data an additional layer helps, but a linear layer does as well as "
        "sparse coding." in summary
    )
    assert "sparse coding makes no significant difference" in summary
    assert (
        "a logistic regression on the mean and the maximum of each bag is better than none of the "
        "3 networks" in summary
    )


def test_a_gain_over_the_control_is_reported(tmp_path: Path) -> None:
    summary = verdict_of(tmp_path, plain=0.2, coded=1.6, linear=0.2, logistic=9.0)
    assert (
        "In short: on this data sparse coding helps, and more than a linear layer in its place."
        in summary
    )
    assert "is better than all 3 networks: AUC " in summary


def test_a_loss_and_no_difference_are_reported_differently(tmp_path: Path) -> None:
    assert "on this data sparse coding lowers accuracy." in verdict_of(
        tmp_path / "harm", plain=3, coded=0.2, linear=3, logistic=1
    )
    nothing = verdict_of(tmp_path / "nothing", plain=1.5, coded=1.5, linear=1.5, logistic=1)
    assert "on this data there is no evidence that sparse coding helps." in nothing


def test_random_projections_are_not_reported_as_sparse_coding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = {**MODELS["A + SC"], "refine": "random"}
    monkeypatch.setitem(MODELS, "A + SC", random)
    summary = verdict_of(tmp_path, plain=0.3, coded=2.5, linear=2.5, logistic=0.1)
    assert "sparse coding" not in summary
