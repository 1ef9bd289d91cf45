"""The methods and the grid of an experiment as runs."""

from __future__ import annotations

from typing import Any

from scmil.studies.plan import make_plan

MUSK1: dict[str, Any] = {"data": {"dataset": "musk1"}}


def test_arms_times_grid_are_the_cells() -> None:
    plan = make_plan(
        {
            "grid": {"data.dataset": ["musk1", "elephant"]},
            "arms": [
                {"name": "plain"},
                {"name": "SC", "against": "plain", "model": {"sparse_coding": True}},
            ],
        },
        "mine",
    )
    assert [cell.name for cell in plan.cells] == [
        "musk1--plain",
        "elephant--plain",
        "musk1--sc",
        "elephant--sc",
    ]
    assert plan.datasets == ["musk1", "elephant"]
    assert plan.arms == (("plain", None), ("SC", "plain"))
    assert plan.cells[2].settings.model.sparse_coding is True
    assert plan.cells[0].settings.model.sparse_coding is False


def test_a_grid_without_arms_names_them_and_pair_says_what_is_compared() -> None:
    plan = make_plan(
        {
            **MUSK1,
            "grid": {
                "model.aggregator": ["abmil", "mean"],
                "model.sparse_coding": [False, {"atoms": 16}],
            },
            "report": {"pair": "model.sparse_coding"},
        },
        "mine",
    )
    assert plan.arms == (
        ("abmil", None),
        ("abmil sparse_coding=atoms=16", "abmil"),
        ("mean", None),
        ("mean sparse_coding=atoms=16", "mean"),
    )


def test_arms_that_differ_in_capitals_only_get_folders_of_their_own() -> None:
    plan = make_plan({**MUSK1, "arms": [{"name": "mi-Net"}, {"name": "MI-Net"}]}, "mine")
    assert [cell.name for cell in plan.cells] == ["musk1--mi-net", "musk1--mi-net-2"]


def test_a_grid_of_layers_has_one_without_any() -> None:
    layers = ["none", "sparse-coding", "linear", "rrt"]
    plan = make_plan(
        {
            **MUSK1,
            "model": {"sparse_coding": {"atoms": 16}, "embed": [16]},
            "grid": {"model.aggregator": ["abmil", "mean"], "model.refine": layers},
            "arms": [
                {
                    "name": "logistic regression",
                    "grid": False,
                    "model": {
                        "aggregator": "logistic-mean-max",
                        "refine": "none",
                        "embed": [],
                    },
                }
            ],
            "report": {"pair": "model.refine"},
        },
        "mine",
    )
    assert dict(plan.arms)["abmil + linear"] == "abmil"
    assert [name for name, _ in plan.arms] == [
        *(
            f"{name}{layer}"
            for name in ("abmil", "mean")
            for layer in ("", " + SC", " + linear", " + rrt")
        ),
        "logistic regression",
    ]
    without = plan.cells[0].settings.model
    assert (without.refine, without.sparse_coding) == (None, False)
    assert not plan.cells[-1].settings.model.has_layer


def test_a_method_outside_of_the_grid_has_one_run() -> None:
    document = {
        **MUSK1,
        "grid": {"training.epochs": [1, 2]},
        "arms": [{"name": "a"}, {"name": "b", "grid": False}],
    }
    plan = make_plan(document, "mine")
    assert [cell.arm for cell in plan.cells] == ["a epochs=1", "a epochs=2", "b"]
