"""Models learn a time, a number, a grade and several labels, and nothing where there is none."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from target_cohort import DIM, make_bags, make_targets, make_witness_bags

import scmil
from scmil.bags.bag import Bag
from scmil.bags.scaling import moments
from scmil.bags.splits import Split
from scmil.bags.targets import Targets
from scmil.errors import DataError, OptionError
from scmil.models.model import MILModel
from scmil.models.objective_start import start_at_frequencies
from scmil.models.objectives import (
    CoxObjective,
    MultilabelObjective,
    Objective,
    OrdinalObjective,
    RegressionObjective,
    SurvivalObjective,
    model_outputs,
    objective_json,
)
from scmil.models.survival_bins import survival_edges
from scmil.training.checkpoint import TrainingState
from scmil.training.folds import fit_folds
from scmil.training.recipes import Recipe
from scmil.training.target_steps import score_outputs

pytestmark = pytest.mark.slow  # models are trained

RECIPE = Recipe(epochs=6, learning_rate=3e-3, weight_decay=0.0)


def objective_of(task: str, values: np.ndarray) -> Objective:
    kinds: dict[str, Callable[[], Objective]] = {
        "survival": lambda: SurvivalObjective(
            tuple(survival_edges(values[:, 0], values[:, 1]).tolist())
        ),
        "cox": lambda: CoxObjective(risk_set=20),
        "regression": lambda: RegressionObjective(float(values.mean()), float(values.std())),
        "ordinal": lambda: OrdinalObjective(4),
        "multilabel": lambda: MultilabelObjective(3),
    }
    return kinds[task]()


def make_model(
    objective: Objective, aggregator: str = "abmil", seed: int = 0, **options: Any
) -> MILModel:
    return scmil.build_model(
        DIM,
        model_outputs(objective),
        aggregator,
        embed=[16],
        output=objective_json(objective),
        seed=seed,
        **options,
    )


def train_and_score(
    task: str, signal: float, aggregator: str = "mean", sparse_coding: bool = False
) -> float:
    bags, shares = make_bags(140, signal)
    targets = make_targets("survival" if task == "cox" else task, shares)
    train, test = bags[:80], bags[80:]
    objective = objective_of(task, targets.array([bag.id for bag in train]))
    options = {"sparse_coding": {"atoms": 32}} if sparse_coding else {}
    model = make_model(objective, aggregator, **options)
    scmil.fit(model, train, recipe=RECIPE, targets=targets)
    values = targets.array([bag.id for bag in test])
    return score_outputs(targets, objective, values, scmil.predict(model, test).double().numpy())


@pytest.mark.parametrize(
    ("task", "least"),
    [("survival", 0.7), ("cox", 0.7), ("regression", 0.6), ("ordinal", 0.6), ("multilabel", 0.6)],
)
def test_the_planted_signal_is_found(task: str, least: float) -> None:
    assert train_and_score(task, signal=1.0) > least


@pytest.mark.parametrize(
    ("task", "most"),
    [
        ("survival", 0.62),
        ("cox", 0.62),
        ("regression", 0.15),
        ("ordinal", 0.3),
        ("multilabel", 0.65),
    ],
)
def test_without_a_signal_nothing_is_found(task: str, most: float) -> None:
    assert train_and_score(task, signal=0.0) < most


@pytest.mark.parametrize("aggregator", ["mean", "max", "dsmil", "mi-net-ds", "dtfd-afs"])
def test_other_aggregators_and_sparse_coding_learn_times(aggregator: str) -> None:
    assert train_and_score("survival", 1.0, aggregator, sparse_coding=aggregator == "mean") > 0.58


def train_attention(
    make: Callable[..., tuple[list[Bag], np.ndarray]], seed: int, start: bool, epochs: int
) -> tuple[float, float]:
    """The concordance on other bags, and the entropy of the attention relative to the mean's."""
    bags, signal = make(180, seed=seed)
    scaling = moments(bags[:80])
    bags = [scaling.apply_to_bag(bag) for bag in bags]
    targets = make_targets("survival", signal, seed)
    train, test = bags[:80], bags[80:]
    values = targets.array([bag.id for bag in train])
    objective = objective_of("survival", values)
    model = make_model(start_at_frequencies(objective, values) if start else objective, seed=seed)
    recipe = Recipe(epochs=epochs, learning_rate=1e-3)
    scmil.fit(model, train, recipe=recipe, targets=targets, seed=seed)
    outputs = scmil.predict(model, test).double().numpy()
    assert model.objective is not None
    score = score_outputs(targets, model.objective, targets.array([b.id for b in test]), outputs)
    with torch.no_grad():
        attention = torch.stack([model(bag.features).attention for bag in test])
    entropy = -(attention * attention.clamp(min=1e-12).log()).sum(1).mean()
    return score, float(entropy) / math.log(attention.shape[1])


@pytest.mark.slow
def test_attention_does_not_collapse_before_it_finds_the_signal() -> None:
    """The mean of the bag is the signal. From hazards of one half, attention follows the base rate
    to single instances, and the signal is lost.
    """
    zero, start = (
        np.mean([train_attention(make_bags, seed, start, epochs=6) for seed in (0, 1)], axis=0)
        for start in (False, True)
    )
    assert start[0] > zero[0] + 0.05
    assert start[1] > 0.9 > 0.8 > zero[1]


@pytest.mark.slow
def test_attention_finds_times_that_few_instances_show() -> None:
    found = [train_attention(make_witness_bags, seed, True, epochs=20) for seed in (0, 2)]
    assert np.mean(found, axis=0)[0] > 0.65


def small(task: str) -> tuple[list[Bag], Targets, Objective]:
    bags, shares = make_bags(12)
    targets = make_targets(task, shares)
    return bags, targets, objective_of(task, targets.array([bag.id for bag in bags]))


@pytest.mark.parametrize("aggregator", ["abmil", "dsmil"])
def test_the_gradient_of_a_risk_set_is_that_of_all_bags_at_once(
    aggregator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two passes, one bag in memory at a time, against one graph with all bags."""
    bags, targets, _ = small("survival")
    objective = CoxObjective(risk_set=12)
    model = make_model(objective, aggregator).double()
    doubled = [Bag(bag.id, bag.features.double()) for bag in bags]
    recorded: dict[str, torch.Tensor] = {}
    step = torch.optim.Adam.step

    def record(self: Any, *arguments: Any) -> Any:
        recorded.update({n: p.grad.clone() for n, p in model.named_parameters()})
        return step(self, *arguments)

    monkeypatch.setattr(torch.optim.Adam, "step", record)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    history = scmil.fit(model, doubled, recipe=Recipe(epochs=1), targets=targets)
    assert recorded

    fresh = make_model(objective, aggregator).double()
    fresh.load_state_dict(before | dict(fresh.named_buffers()))
    order = [bag.id for bag in doubled]
    predictions = [fresh(bag.features) for bag in doubled]
    values = torch.tensor(targets.array(order))
    weights = getattr(fresh.aggregate, "loss_weights", (1.0, 0.0))
    parts = [torch.stack([p.logits for p in predictions])]
    if predictions[0].auxiliary:
        parts.append(torch.stack([torch.stack(p.auxiliary).mean(0) for p in predictions]))
    loss = sum(
        weight * objective.losses(part[:, 1:] - part[:, :1], values)
        for weight, part in zip(weights, parts, strict=False)
    )
    loss.backward()
    assert history.train_loss[0] == pytest.approx(loss.item(), abs=1e-5)
    for name, parameter in fresh.named_parameters():
        assert torch.allclose(recorded[name], parameter.grad, atol=1e-6), name


def test_risk_sets_hold_all_bags_and_never_a_single_one() -> None:
    from scmil.bags.loader import Loader
    from scmil.training.target_steps import _risk_sets

    bags = make_bags(13)[0]
    state = TrainingState.__new__(TrainingState)
    state.loader = Loader(budget=0)
    for size, expected in ((4, [4, 4, 5]), (6, [6, 7]), (13, [13]), (50, [13]), (1, [1] * 13)):
        sets = list(_risk_sets(state, bags, list(range(13)), size))
        assert [len(part) for part in sets] == expected
        assert sorted(bag.id for part in sets for bag in part) == sorted(bag.id for bag in bags)


@pytest.mark.parametrize("task", ["survival", "regression", "ordinal", "multilabel"])
def test_validation_chooses_the_best_epoch(task: str) -> None:
    bags, targets, objective = small(task)
    model = make_model(objective)
    history = scmil.fit(model, bags[:6], bags[6:], RECIPE, targets=targets)
    assert len(history.valid_score) == len(history.valid_loss) == 6
    assert history.valid_auc == history.valid_accuracy == []
    best = history.best_epoch
    finite = [score for score in history.valid_score if score == score]
    assert not finite or history.valid_score[best - 1] == max(finite)


@pytest.mark.parametrize("task", ["survival", "cox"])
def test_an_interrupted_training_ends_with_the_same_weights(task: str, tmp_path: Path) -> None:
    bags, targets, objective = small("survival")
    objective = CoxObjective(5) if task == "cox" else objective
    whole, part = make_model(objective), make_model(objective)
    scmil.fit(whole, bags, recipe=RECIPE, targets=targets)
    file = tmp_path / "checkpoint"

    def stop(epoch: int) -> None:
        if epoch == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scmil.fit(part, bags, recipe=RECIPE, targets=targets, checkpoint=file, progress=stop)
    resumed = make_model(objective)
    scmil.fit(resumed, bags, recipe=RECIPE, targets=targets, checkpoint=file)
    for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)
    others = make_targets("survival", make_bags(12)[1], seed=5)
    with pytest.raises(scmil.ScmilError, match="another training"):
        scmil.fit(make_model(objective), bags, recipe=RECIPE, targets=others, checkpoint=file)


def test_models_and_targets_of_different_tasks_are_rejected() -> None:
    bags, targets, objective = small("regression")
    model = make_model(objective)
    cases: Sequence[tuple[object, type[Exception], str]] = (
        (lambda: scmil.fit(model, bags), OptionError, "pass `targets`"),
        (
            lambda: scmil.fit(scmil.build_model(DIM, 2), bags, targets=targets),
            OptionError,
            "'regression' for a model of the task 'class'",
        ),
        (
            lambda: scmil.fit(model, bags, targets=small("ordinal")[1]),
            OptionError,
            "'ordinal' for a model of the task 'regression'",
        ),
        (
            lambda: scmil.fit(model, [*bags, Bag("new", torch.ones(2, DIM))], targets=targets),
            DataError,
            "slide 'new' has no value",
        ),
        (lambda: scmil.fit(model, [], targets=targets), DataError, "no bags"),
        (
            lambda: scmil.fit(model, bags, targets=targets, class_weights=[1.0, 1.0]),
            OptionError,
            "class_weights need classes",
        ),
        (
            lambda: fit_folds([model], bags, [Split((0, 1), (2,))]),
            OptionError,
            "Train each fold with fit",
        ),
    )
    for call, kind, message in cases:
        with pytest.raises(kind, match=message):
            call()
