from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scmil.models.aggregators import names as aggregators
from scmil.errors import OptionError, UnknownNameError
from scmil.training.recipes import Lookahead, Recipe, clip_each, make_optimiser, official, recipe, registry

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
]

# ------------------------------------------------------------------------------------------------------------ by name


def test_the_recipes_have_the_names_of_their_authors_methods() -> None:
    assert registry.names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_name_stands_for_a_recipe_that_can_be_changed(name: str) -> None:
    assert recipe(name).epochs > 1
    assert asdict(recipe(name, epochs=1)) == {**asdict(recipe(name)), "epochs": 1}
    assert make_optimiser(recipe(name), [(nn.Parameter(torch.ones(2, 2)), True)]).param_groups


def test_the_papers_recipe_is_the_default() -> None:
    assert recipe("paper") == Recipe()


def test_a_name_that_is_nearly_right_is_told() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown recipe 'papr'\. Did you mean 'paper'\?"):
        recipe("papr")


def test_an_unknown_setting_is_refused_with_those_there_are() -> None:
    with pytest.raises(OptionError, match=r"rate.*It takes: epochs, learning_rate, weight_decay"):
        recipe("paper", rate=1.0)


@pytest.mark.parametrize(
    ("aggregator", "settings"),
    [
        ("mean", {"optimiser": "adam", "learning_rate": 1e-4, "weight_decay": 1e-4, "schedule": "constant"}),
        ("abmil-gated", {"optimiser": "adam", "learning_rate": 1e-4, "weight_decay": 1e-4, "epochs": 200}),
        ("dsmil", {"betas": (0.5, 0.9), "learning_rate": 1e-4, "weight_decay": 1e-3, "final_rate": 5e-6, "epochs": 50}),
        ("transmil", {"optimiser": "lookahead-radam", "learning_rate": 2e-4, "weight_decay": 1e-5, "epochs": 200}),
        ("dtfd-afs", {"schedule": "steps", "learning_rate": 1e-4, "weight_decay": 1e-4, "clip": 5.0, "epochs": 200}),
        ("dtfd-maxmin", {"schedule": "steps", "clip": 5.0}),
        ("ilra", {"learning_rate": 1e-4, "weight_decay": 0.0, "schedule": "cosine", "epochs": 100}),
        ("mi-net-rc", {"optimiser": "sgd", "schedule": "time-decay", "decay_weights_only": True}),
    ],
)
def test_an_aggregator_has_the_recipe_of_its_authors(aggregator: str, settings: dict[str, Any]) -> None:
    met = asdict(official(aggregator))
    assert {name: met[name] for name in settings} == settings


@pytest.mark.parametrize("aggregator", aggregators())
def test_every_aggregator_has_a_recipe_that_needs_no_validation_part(aggregator: str) -> None:
    assert official(aggregator).patience is None


def test_an_aggregator_that_nobody_has_has_no_recipe() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown aggregator 'dsmill'\. Did you mean 'dsmil'\?"):
        official("dsmill")


# ----------------------------------------------------------------------------------------------------------- problems


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
        ("optimiser", "adamw", "one of adam, sgd, lookahead-radam"),
        ("schedule", "linear", "one of cosine, constant, time-decay, steps"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(setting: str, value: Any, wanted: str) -> None:
    with pytest.raises(OptionError) as caught:
        Recipe(**{setting: value})
    assert str(caught.value) == f"{setting} = {value!r}: {wanted}."


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(OptionError) as caught:
        Recipe(epochs=0, learning_rate=-1, optimiser="adamw", schedule="linear", clip=-2.0)
    problems = str(caught.value).split("; ")
    assert [problem.split(" = ")[0] for problem in problems] == [
        "epochs", "learning_rate", "clip", "optimiser", "schedule",
    ]  # fmt: skip


def test_betas_may_come_as_a_list_out_of_a_file() -> None:
    assert Recipe(betas=[0.5, 0.9]) == Recipe(betas=(0.5, 0.9))  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------------- schedules


def rates_of_torch(
    make: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler], rate: float, epochs: int
) -> list[float]:
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=rate)
    scheduler, rates = make(optimiser), []
    for _ in range(epochs):
        rates.append(float(optimiser.param_groups[0]["lr"]))
        optimiser.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("final", [0.0, 5e-6])
def test_cosine_falls_as_torchs_does(final: float) -> None:
    ours = Recipe(epochs=13, learning_rate=2e-4, final_rate=final)
    expected = rates_of_torch(
        lambda optimiser: torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=13, eta_min=final), 2e-4, 13
    )
    assert [ours.rate(epoch, step=99) for epoch in range(13)] == pytest.approx(expected, rel=1e-12)


def test_steps_fall_to_a_fifth_half_way_as_torchs_do() -> None:
    ours = Recipe(epochs=10, learning_rate=1e-3, schedule="steps")
    expected = rates_of_torch(
        lambda optimiser: torch.optim.lr_scheduler.MultiStepLR(optimiser, milestones=[5], gamma=0.2), 1e-3, 10
    )
    assert [ours.rate(epoch, step=99) for epoch in range(10)] == pytest.approx(expected, rel=1e-12)


def test_of_an_odd_number_of_epochs_the_middle_one_keeps_the_rate() -> None:
    ours = Recipe(epochs=5, learning_rate=1.0, schedule="steps")
    assert [ours.rate(epoch, 0) for epoch in range(5)] == [1, 1, 1, 0.2, 0.2]


def test_time_decay_depends_on_the_steps_alone() -> None:
    ours = Recipe(learning_rate=5e-4, schedule="time-decay")
    assert [ours.rate(epoch, step) for epoch, step in ((0, 0), (7, 0), (0, 10_000), (3, 30_000))] == pytest.approx(
        [5e-4, 5e-4, 5e-4 / 2, 5e-4 / 4]
    )


def test_constant_is_constant() -> None:
    assert {Recipe(schedule="constant", learning_rate=0.3).rate(epoch, 50 * epoch) for epoch in range(40)} == {0.3}


# --------------------------------------------------------------------------------------------------------- optimisers


class Toy:
    """A weight and a bias whose gradients are known: those of half the squared distance to 3."""

    def __init__(self) -> None:
        self.weight, self.bias = nn.Parameter(torch.tensor([[1.0, -2.0]])), nn.Parameter(torch.tensor([0.5]))

    def walk(self, optimiser: torch.optim.Optimizer, steps: int) -> list[Tensor]:
        for _ in range(steps):
            optimiser.zero_grad()
            loss = sum(((p - 3) ** 2).sum() / 2 for p in (self.weight, self.bias))
            assert isinstance(loss, Tensor)
            loss.backward()
            optimiser.step()
        return [self.weight.detach(), self.bias.detach()]

    def with_recipe(self, steps: int = 9, **settings: Any) -> list[Tensor]:
        return self.walk(make_optimiser(Recipe(**settings), [(self.weight, True), (self.bias, False)]), steps)


def test_adam_is_torchs_with_coupled_decay() -> None:
    toy = Toy()
    torchs = torch.optim.Adam([toy.weight, toy.bias], lr=0.1, betas=(0.5, 0.9), weight_decay=0.2)
    torch.testing.assert_close(
        Toy().with_recipe(learning_rate=0.1, betas=(0.5, 0.9), weight_decay=0.2), toy.walk(torchs, 9)
    )


def test_sgd_is_torchs_with_nesterovs_momentum() -> None:
    toy = Toy()
    torchs = torch.optim.SGD([toy.weight, toy.bias], lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.2)
    torch.testing.assert_close(
        Toy().with_recipe(optimiser="sgd", learning_rate=0.1, weight_decay=0.2), toy.walk(torchs, 9)
    )


@pytest.mark.parametrize("optimiser", ["adam", "sgd", "lookahead-radam"])
def test_biases_are_spared_of_decay_if_asked(optimiser: str) -> None:
    def end(**settings: Any) -> list[Tensor]:
        return Toy().with_recipe(optimiser=optimiser, learning_rate=0.1, **settings)

    (plain_w, plain_b), (all_w, all_b) = end(weight_decay=0.0), end(weight_decay=0.5)
    spared_w, spared_b = end(weight_decay=0.5, decay_weights_only=True)
    assert torch.equal(spared_b, plain_b)
    assert torch.equal(spared_w, all_w)
    assert not torch.equal(all_b, plain_b)
    assert not torch.equal(all_w, plain_w)


def test_lookahead_goes_half_of_the_way_every_sixth_step() -> None:
    """By hand: RAdam's first steps are plain momentum steps, corrected for their start, so with gradient 1 each is -rate."""
    parameter = nn.Parameter(torch.tensor(10.0, dtype=torch.float64))
    optimiser = Lookahead([parameter], lr=1.0)
    places = []
    for _ in range(5):
        parameter.grad = torch.ones_like(parameter)
        optimiser.step()
        places.append(parameter.item())
    assert places == pytest.approx([9, 8, 7, 6, 5])

    n, beta = 6, 0.999  # the sixth step is RAdam's first that is rectified
    longest = 2 / (1 - beta) - 1
    length = longest - 2 * n * beta**n / (1 - beta**n)
    rectification = math.sqrt((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length))
    parameter.grad = torch.ones_like(parameter)
    optimiser.step()
    assert length > 5
    assert parameter.item() == pytest.approx((10 + (5 - rectification)) / 2, abs=1e-7)


def test_lookahead_starts_again_from_where_it_went_back_to() -> None:
    fast, slow = nn.Parameter(torch.tensor(10.0)), 10.0
    parameter = nn.Parameter(torch.tensor(10.0))
    plain, ahead = torch.optim.RAdam([fast], lr=0.1), Lookahead([parameter], lr=0.1)
    for step in range(1, 19):
        for p, optimiser in ((fast, plain), (parameter, ahead)):
            p.grad = torch.ones_like(p)
            optimiser.step()
        if step % 6 == 0:  # the gradient is constant, so RAdam moves alike wherever it is
            slow += (fast.item() - slow) / 2
            with torch.no_grad():
                fast.fill_(slow)
        assert parameter.item() == pytest.approx(fast.item(), abs=1e-5)
    assert slow < 10


def test_a_tensor_without_a_gradient_takes_no_step_and_counts_none() -> None:
    late, early = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(1.0))
    optimiser = Lookahead([late, early], lr=0.1)
    for step in range(8):
        early.grad = torch.ones_like(early) if step < 6 else None
        late.grad = torch.ones_like(late) if step >= 2 else None
        optimiser.step()
    assert torch.equal(late, early)


# ----------------------------------------------------------------------------------------------------------- clipping


def test_the_gradient_of_each_module_is_clipped_apart() -> None:
    large, also_large, small = (nn.Parameter(torch.zeros(1)) for _ in range(3))
    large.grad, also_large.grad, small.grad = torch.tensor([30.0]), torch.tensor([-40.0]), torch.tensor([0.5])
    clip_each([[large, also_large], [small]], limit=5.0)
    torch.testing.assert_close(torch.cat([large.grad, also_large.grad]), torch.tensor([3.0, -4.0]))
    assert small.grad.item() == 0.5
