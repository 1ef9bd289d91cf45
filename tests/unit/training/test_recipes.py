from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
import torch
from torch import nn

from scmil.errors import OptionError, UnknownNameError
from scmil.models.aggregators import names as aggregators
from scmil.training.optimisers import Group, make_optimiser
from scmil.training.recipes import OPTIMISERS, Recipe, official, recipe, registry

NAMES = [
    "paper",
    "paper-slides",
    "mi-net",
    "abmil",
    "abmil-slides",
    "dsmil",
    "dsmil-slides",
    "transmil",
    "dtfd",
    "ilra",
    "transformer",
    "rrt",
    "wikg",
    "s4mil",
    "patch-gcn",
    "clam",
    "acmil",
    "attrimil",
    "dgr-mil",
]

# ------------------------------------------------------------------------------------------ by name


def test_recipes_are_named_after_methods() -> None:
    assert registry.names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_named_recipe_accepts_changes(name: str) -> None:
    assert recipe(name).epochs > 1
    assert asdict(recipe(name, epochs=1)) == {**asdict(recipe(name)), "epochs": 1}
    parameters = [(nn.Parameter(torch.ones(2, 2)), Group(decayed=True))]
    assert make_optimiser(recipe(name), parameters).param_groups


def test_the_papers_recipe_is_the_default() -> None:
    assert recipe("paper") == Recipe()


def test_an_unknown_name_raises_with_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown recipe 'papr'\. Did you mean 'paper'\?"):
        recipe("papr")


def test_an_unknown_setting_raises_with_a_list_of_the_known_ones() -> None:
    with pytest.raises(OptionError, match=r"rate.*It takes: epochs, learning_rate, weight_decay"):
        recipe("paper", rate=1.0)


@pytest.mark.parametrize(
    ("aggregator", "settings"),
    [
        (
            "mean",
            {
                "optimiser": "adam",
                "learning_rate": 1e-4,
                "weight_decay": 1e-4,
                "schedule": "constant",
            },
        ),
        (
            "abmil-gated",
            {"optimiser": "adam", "learning_rate": 1e-4, "weight_decay": 1e-4, "epochs": 200},
        ),
        (
            "dsmil",
            {
                "betas": (0.5, 0.9),
                "learning_rate": 1e-4,
                "weight_decay": 1e-3,
                "final_rate": 5e-6,
                "epochs": 50,
            },
        ),
        (
            "transmil",
            {
                "optimiser": "lookahead-radam",
                "learning_rate": 2e-4,
                "weight_decay": 1e-5,
                "epochs": 200,
            },
        ),
        (
            "dtfd-afs",
            {
                "schedule": "steps",
                "learning_rate": 1e-4,
                "weight_decay": 1e-4,
                "clip": 5.0,
                "epochs": 200,
            },
        ),
        ("dtfd-maxmin", {"schedule": "steps", "clip": 5.0}),
        ("ilra", {"learning_rate": 1e-4, "weight_decay": 0.0, "schedule": "cosine", "epochs": 100}),
        ("transformer", {"optimiser": "adamw", "schedule": "one-cycle", "epochs": 32}),
        ("rrt", {"learning_rate": 2e-4, "weight_decay": 1e-5, "schedule": "cosine"}),
        ("wikg", {"learning_rate": 1e-4, "weight_decay": 1e-5, "epochs": 100}),
        ("patch-gcn", {"learning_rate": 2e-4, "weight_decay": 1e-5, "epochs": 20}),
        ("s4mil", {"weight_decay": 1e-5, "decay_weights_only": True, "epochs": 200}),
        ("mi-net-rc", {"optimiser": "sgd", "schedule": "time-decay", "decay_weights_only": True}),
    ],
)
def test_an_aggregator_has_the_recipe_of_its_authors(
    aggregator: str, settings: dict[str, Any]
) -> None:
    actual = asdict(official(aggregator))
    assert {name: actual[name] for name in settings} == settings


@pytest.mark.parametrize("aggregator", aggregators())
def test_official_recipes_need_no_validation_bags(aggregator: str) -> None:
    assert official(aggregator).patience is None


def test_the_official_recipes_of_the_methods_with_own_losses() -> None:
    assert official("clam-sb") == official("clam-mb") == recipe("clam")
    assert official("acmil").optimiser == "adamw"
    assert official("attrimil").rate(199, 0) == 2e-4
    dgr = official("dgr-mil")
    assert (dgr.rate(0, 0), dgr.rate(10, 0)) == (pytest.approx(5e-4 / 11), 5e-4)
    assert dgr.rate(200, 0) == pytest.approx(1e-5)


def test_momentum_without_nesterov_is_plain_sgd() -> None:
    for name, nesterov in (("sgd", True), ("sgd-momentum", False)):
        optimiser = make_optimiser(
            Recipe(optimiser=name), [(nn.Parameter(torch.ones(2, 2)), Group(True))]
        )
        assert optimiser.param_groups[0]["nesterov"] is nesterov
        assert optimiser.param_groups[0]["momentum"] == 0.9


def test_an_unknown_aggregator_has_no_official_recipe() -> None:
    with pytest.raises(
        UnknownNameError, match=r"unknown aggregator 'dsmill'\. Did you mean 'dsmil'\?"
    ):
        official("dsmill")


# ----------------------------------------------------------------------------------------- problems


@pytest.mark.parametrize(
    ("setting", "value", "wanted"),
    [
        ("epochs", 0, "a whole number from 1 to 100000"),
        ("epochs", 10**9, "a whole number from 1 to 100000"),
        ("epochs", 2.5, "a whole number from 1 to 100000"),
        ("learning_rate", 0.0, "a number from 1e-12 to 1e+06"),
        ("learning_rate", "fast", "a number from 1e-12 to 1e+06"),
        ("learning_rate", math.inf, "a number from 1e-12 to 1e+06"),
        ("weight_decay", -1e-9, "a number from 0 to 1e+06"),
        ("final_rate", math.nan, "a number from 0 to 1e+06"),
        ("clip", 0.0, "a number from 1e-12 to 1e+12"),
        ("clip", True, "a number from 1e-12 to 1e+12"),
        ("patience", 0, "a whole number from 1 to 100000"),
        ("patience", 1.5, "a whole number from 1 to 100000"),
        ("betas", (0.9, 1.0), "two numbers from 0 to below 1"),
        ("betas", (0.9,), "two numbers from 0 to below 1"),
        ("optimiser", "adagrad", f"one of {', '.join(OPTIMISERS)}"),
        ("schedule", "linear", "one of cosine, constant, time-decay, steps, one-cycle"),
        ("decay_weights_only", 1, "true or false"),
        ("decay_sparse_coding", "yes", "true or false"),
    ],
)
def test_an_invalid_setting_raises(setting: str, value: Any, wanted: str) -> None:
    with pytest.raises(OptionError) as caught:
        Recipe(**{setting: value})
    assert str(caught.value) == f"{setting} = {value!r}: {wanted}."


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(OptionError) as caught:
        Recipe(epochs=0, learning_rate=-1, optimiser="adagrad", schedule="linear", clip=-2.0)
    problems = str(caught.value).split("; ")
    assert [problem.split(" = ")[0] for problem in problems] == [
        "epochs", "learning_rate", "clip", "optimiser", "schedule",
    ]  # fmt: skip


def test_betas_may_be_a_list() -> None:
    assert Recipe(betas=[0.5, 0.9]) == Recipe(betas=(0.5, 0.9))  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------- schedules


def rates_of_torch(
    make: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler],
    rate: float,
    epochs: int,
) -> list[float]:
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=rate)
    scheduler, rates = make(optimiser), []
    for _ in range(epochs):
        rates.append(float(optimiser.param_groups[0]["lr"]))
        optimiser.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("final", [0.0, 5e-6])
def test_the_cosine_schedule_equals_that_of_torch(final: float) -> None:
    ours = Recipe(epochs=13, learning_rate=2e-4, final_rate=final)
    expected = rates_of_torch(
        lambda optimiser: torch.optim.lr_scheduler.CosineAnnealingLR(
            optimiser, T_max=13, eta_min=final
        ),
        2e-4,
        13,
    )
    assert [ours.rate(epoch, step=99) for epoch in range(13)] == pytest.approx(expected, rel=1e-12)


def test_the_step_schedule_equals_that_of_torch() -> None:
    ours = Recipe(epochs=10, learning_rate=1e-3, schedule="steps")
    expected = rates_of_torch(
        lambda optimiser: torch.optim.lr_scheduler.MultiStepLR(
            optimiser, milestones=[5], gamma=0.2
        ),
        1e-3,
        10,
    )
    assert [ours.rate(epoch, step=99) for epoch in range(10)] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("epochs", [2, 3, 10, 32])
def test_the_one_cycle_schedule_equals_that_of_torch(epochs: int) -> None:
    ours = Recipe(epochs=epochs, learning_rate=1e-4, schedule="one-cycle")
    expected = rates_of_torch(
        lambda optimiser: torch.optim.lr_scheduler.OneCycleLR(
            optimiser, max_lr=1e-4, total_steps=epochs
        ),
        1e-4,
        epochs,
    )
    actual = [ours.rate(epoch, step=99) for epoch in range(epochs)]
    assert actual == pytest.approx(expected, rel=1e-9)


def test_one_epoch_of_one_cycle_has_a_rate() -> None:
    assert 0 < Recipe(epochs=1, schedule="one-cycle").rate(0, 0) <= 1e-4


def test_the_middle_of_an_odd_number_of_epochs_keeps_the_rate() -> None:
    ours = Recipe(epochs=5, learning_rate=1.0, schedule="steps")
    assert [ours.rate(epoch, 0) for epoch in range(5)] == [1, 1, 1, 0.2, 0.2]


def test_time_decay_depends_only_on_the_steps() -> None:
    ours = Recipe(learning_rate=5e-4, schedule="time-decay")
    assert [
        ours.rate(epoch, step) for epoch, step in ((0, 0), (7, 0), (0, 10_000), (3, 30_000))
    ] == pytest.approx([5e-4, 5e-4, 5e-4 / 2, 5e-4 / 4])


def test_the_constant_schedule_is_constant() -> None:
    assert {
        Recipe(schedule="constant", learning_rate=0.3).rate(epoch, 50 * epoch)
        for epoch in range(40)
    } == {0.3}
