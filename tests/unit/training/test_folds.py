from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from scmil import Bag, MILModel, Recipe, build_model, fit, fit_folds, predict
from scmil.bags.scaling import moments
from scmil.bags.splits import Split, stratified_folds
from scmil.errors import DataError, OptionError, SplitError

TABLE_2 = [
    "mi-net-instance", "mi-net", "mi-net-ds", "mi-net-rc", "abmil", "abmil-gated", "gnn-mil",
    "dp-minn", "nlmil", "anlmil", "dsmil",
]  # fmt: skip
LABELS = [0, 1] * 4
SPLITS = stratified_folds(LABELS, folds=3, seed=0)
SHORT = Recipe(epochs=2, learning_rate=1e-2)


@pytest.fixture(autouse=True)
def in_double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def some_bags() -> list[Bag]:
    """Bags of one to five instances: the stack must not depend on equal sizes."""
    generator = torch.Generator().manual_seed(0)
    sizes = [3, 1, 5, 2, 4, 3, 2, 5]
    return [
        Bag(f"bag {i}", torch.randn(n, 8, generator=generator) + LABELS[i], label=LABELS[i])
        for i, n in enumerate(sizes)
    ]


def builder(name: str, refine: str | None = None, **options: Any) -> Callable[[int], MILModel]:
    embed = None if name in ("mi-net-ds", "mi-net-rc") else [9]
    sizes = {"atoms": 16} if refine in ("sparse-coding", "linear", "random") else None
    return lambda seed: build_model(
        8, 2, {"name": name, **options}, sizes, refine=refine, embed=embed, seed=seed
    )


def weights(model: MILModel) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_alike(some: MILModel, other: MILModel, tolerance: float = 1e-10) -> None:
    for (name, one), two in zip(weights(some).items(), weights(other).values(), strict=True):
        assert torch.allclose(one, two, rtol=0, atol=tolerance), name


def assert_folds_are_fits(
    build: Callable[[int], MILModel], recipe: Recipe, splits: Sequence[Split] = SPLITS
) -> None:
    bags, start = some_bags(), weights(build(0))
    together = [build(fold) for fold in range(len(splits))]
    history = fit_folds(together, bags, splits, recipe, seed=5)
    for fold, split in enumerate(splits):
        alone = build(fold)
        scaling = moments([bags[i] for i in split.train])
        train, test = (
            [scaling.apply_to_bag(bags[i]) for i in part] for part in (split.train, split.test)
        )
        losses = fit(alone, train, recipe=recipe, seed=5).train_loss
        assert_alike(together[fold], alone)
        assert not together[fold].training
        assert history.train_loss[:, fold] == pytest.approx(losses, abs=1e-10)
        assert history.probabilities[-1, fold, list(split.test)] == pytest.approx(
            predict(alone, test).numpy(), abs=1e-6
        )
    moved = [
        name
        for name, tensor in weights(together[0]).items()
        if not torch.equal(tensor, start[name])
    ]
    assert moved, "nothing was trained, so nothing was compared"


# --------------------------------------------------------------------------- the same as one by one


@pytest.mark.parametrize("name", TABLE_2)
def test_stacked_folds_equal_separate_trainings(name: str) -> None:
    assert_folds_are_fits(builder(name), SHORT)


@pytest.mark.parametrize("refine", ["sparse-coding", "linear", "random", "normalise"])
@pytest.mark.parametrize("name", ["abmil-gated", "dsmil"])
def test_stacked_folds_equal_separate_trainings_with_every_refinement(
    name: str, refine: str
) -> None:
    assert_folds_are_fits(builder(name, refine), SHORT)


@pytest.mark.parametrize(
    "options",
    [
        {"nonnegative": True, "output": "joined", "learning": {"unit_norm": True, "rate": 0.1}},
        {"output": "denoised", "learning": {"reconstruction": 0.5, "unit_norm": True}},
        {"dictionary": "kmeans", "learning": {"warmup": 1}},
        {"dictionary": "instances", "output": "joined", "learning": {"scale": "unit"}},
        {"dictionary": "online", "learning": {"scale": "gain", "reconstruction": 0.1}},
        {"learning": {"scale": "gain"}},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["abmil-gated", "dsmil"])  # its own stacked kernel, and vmap
def test_stacked_folds_follow_every_option_of_the_layer(name: str, options: dict[str, Any]) -> None:
    # Entries of DCT atoms of 9 features are equal, and so are products with them: rounding, which
    # differs between processors, would decide which of two atoms gets a gradient.
    layer = {"atoms": 8, "dictionary": "random", **options}

    def build(seed: int) -> MILModel:
        return build_model(8, 2, name, layer, embed=[9], seed=seed)

    assert_folds_are_fits(build, SHORT)


def test_stacked_folds_equal_separate_trainings_if_a_matrix_has_its_own_block() -> None:
    def build(seed: int) -> MILModel:
        # 64 x 256 is not small.
        return build_model(8, 2, "abmil-gated", {"atoms": 256}, embed=[64], seed=seed)

    assert_folds_are_fits(build, SHORT)


def test_stacked_folds_equal_separate_trainings_if_a_graph_is_built_in_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scmil.models.aggregators.gnn.EDGE_ROWS", 2)
    assert_folds_are_fits(builder("gnn-mil"), SHORT)


@pytest.mark.parametrize("dropout", [0.0, 0.5, 0.9])
def test_stacked_and_separate_trainings_draw_the_same_dropout(dropout: float) -> None:
    assert_folds_are_fits(builder("mi-net", dropout=dropout), SHORT)


@pytest.mark.parametrize(
    "changes",
    [
        {"optimiser": "sgd", "schedule": "time-decay"},
        {
            "optimiser": "sgd",
            "schedule": "constant",
            "decay_weights_only": True,
            "weight_decay": 0.1,
        },
        # 15 or more steps: Lookahead goes back twice.
        {"optimiser": "lookahead-radam", "epochs": 3},
        {"clip": 0.01},
        {"clip": 0.01, "decay_weights_only": True},
        {"decay_weights_only": True, "weight_decay": 0.5},
        {"schedule": "steps"},
        {"betas": (0.5, 0.9), "final_rate": 1e-3},
    ],
    ids=str,
)
def test_stacked_folds_follow_every_recipe(changes: dict[str, Any]) -> None:
    assert_folds_are_fits(builder("abmil-gated", "sparse-coding"), replace(SHORT, **changes))


def test_folds_of_different_size_count_their_own_steps() -> None:
    splits = [Split((0, 1), (2, 3)), Split((0, 1, 2, 3, 4, 5, 6), (7,))]
    assert_folds_are_fits(
        builder("abmil"), replace(SHORT, optimiser="sgd", schedule="time-decay"), splits
    )
    assert_folds_are_fits(builder("abmil"), SHORT, splits)


@pytest.mark.parametrize("jobs", [1, 2])
def test_stacked_folds_use_class_weights(jobs: int) -> None:
    build, weights = builder("abmil-gated"), [[1.0, 5.0], [2.0, 0.5], [1.0, 1.0]]
    models = [build(fold) for fold in range(3)]
    history = fit_folds(
        models,
        some_bags(),
        SPLITS,
        SHORT,
        seed=1,
        standardise=False,
        jobs=jobs,
        class_weights=weights,
    )
    for fold, model in enumerate(models):
        alone = build(fold)
        train = [some_bags()[i] for i in SPLITS[fold].train]
        losses = fit(alone, train, recipe=SHORT, seed=1, class_weights=weights[fold]).train_loss
        assert_alike(model, alone)
        np.testing.assert_allclose(history.train_loss[:, fold], losses, rtol=1e-6)


def test_class_weights_need_one_row_per_fold() -> None:
    build = builder("abmil")
    with pytest.raises(OptionError, match="class_weights: 1 rows for 3 splits"):
        fit_folds(
            [build(fold) for fold in range(3)],
            some_bags(),
            SPLITS,
            SHORT,
            class_weights=[[1.0, 2.0]],
        )


@pytest.mark.slow
def test_two_processes_give_the_same_results_as_one() -> None:
    build = builder("abmil-gated", "sparse-coding")
    one, two = ([build(fold) for fold in range(3)] for _ in range(2))
    expected = fit_folds(one, some_bags(), SPLITS, SHORT, seed=1)
    found = fit_folds(two, some_bags(), SPLITS, SHORT, seed=1, jobs=2)
    np.testing.assert_allclose(found.probabilities, expected.probabilities, atol=1e-6)
    np.testing.assert_allclose(found.train_loss, expected.train_loss, atol=1e-10)
    for some, other in zip(one, two, strict=True):
        assert_alike(some, other)
        assert not other.training


# ------------------------------------------------------------------------------ what is evaluated


def test_test_and_validation_bags_are_evaluated_and_training_bags_are_not() -> None:
    splits = [Split((0, 1, 2, 3), (4, 5), (6, 7)), Split((4, 5, 6, 7), (0, 1))]
    build = builder("abmil")
    probabilities = fit_folds([build(0), build(1)], some_bags(), splits, SHORT).probabilities
    evaluated = np.array([[0, 0, 0, 0, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0, 0, 0]], bool)
    assert (np.isfinite(probabilities).all(-1) == evaluated).all()
    assert np.isnan(probabilities[:, ~evaluated]).all()
    np.testing.assert_allclose(probabilities[:, evaluated].sum(-1), 1, atol=1e-6)


def test_evaluating_the_last_epoch_gives_the_last_of_all_evaluations() -> None:
    build = builder("abmil")
    every, last = (
        fit_folds([build(fold) for fold in range(3)], some_bags(), SPLITS, SHORT, look=look)
        for look in ("every", "last")
    )
    assert np.isnan(last.probabilities[0]).all()
    np.testing.assert_array_equal(last.probabilities[-1], every.probabilities[-1])
    np.testing.assert_array_equal(last.train_loss, every.train_loss)


@pytest.mark.parametrize("part", ["test", "valid"])
def test_training_does_not_depend_on_bags_of_other_splits(part: str) -> None:
    bags, build = some_bags(), builder("abmil-gated", "sparse-coding")
    [split] = [Split((0, 1, 2, 3), (4, 5), (6, 7))]
    hidden = getattr(split, part)
    spoiled = [
        replace(bag, features=bag.features * 100 + 7) if i in hidden else bag
        for i, bag in enumerate(bags)
    ]
    outcomes = []
    for version in (bags, spoiled):
        models = [build(0), build(1)]
        history = fit_folds(models, version, [split, split], SHORT)
        outcomes.append((models, history))
    (before, first), (after, second) = outcomes
    for some, other in zip(before, after, strict=True):
        assert all(
            torch.equal(one, two)
            for one, two in zip(some.parameters(), other.parameters(), strict=True)
        )
    np.testing.assert_array_equal(first.train_loss, second.train_loss)
    assert not np.array_equal(first.probabilities[:, :, hidden], second.probabilities[:, :, hidden])


def test_training_depends_on_training_bags() -> None:
    bags, build = some_bags(), builder("abmil-gated")
    spoiled = [replace(bags[0], features=-bags[0].features), *bags[1:]]
    split, (one, two) = Split((0, 1, 2, 3), (4, 5)), (build(0), build(0))
    fit_folds([one], bags, [split], SHORT)
    fit_folds([two], spoiled, [split], SHORT)
    assert not torch.equal(one.embed[0].weight, two.embed[0].weight)


def test_features_are_not_scaled_without_standardise() -> None:
    bags, build = some_bags(), builder("abmil")
    together, alone = build(0), build(0)
    fit_folds([together], bags, SPLITS[:1], SHORT, seed=2, standardise=False)
    fit(alone, [bags[i] for i in SPLITS[0].train], recipe=SHORT, seed=2)
    assert_alike(together, alone)


# ---------------------------------------------------------------------------------- around training


def test_progress_is_called_every_epoch_and_the_global_generator_is_restored() -> None:
    seen: list[int] = []
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    models = [builder("mi-net")(fold) for fold in range(3)]
    fit_folds(models, some_bags(), SPLITS, SHORT, progress=seen.append)
    assert seen == [1, 2]
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize(("models", "splits"), [(2, 3), (0, 0), (3, 1)])
def test_the_number_of_models_must_equal_the_number_of_splits(models: int, splits: int) -> None:
    with pytest.raises(
        SplitError, match=f"{models} models for {splits} splits: one model per split"
    ):
        fit_folds(
            [builder("mean")(fold) for fold in range(models)], some_bags(), SPLITS[:splits], SHORT
        )


def test_bags_without_labels_raise() -> None:
    with pytest.raises(DataError, match=r"bags without a label: x\."):
        fit_folds(
            [builder("mean")(0)], [*some_bags(), Bag("x", torch.zeros(2, 8))], SPLITS[:1], SHORT
        )


def test_an_unknown_look_raises() -> None:
    with pytest.raises(OptionError, match="look = 'lats': 'every' or 'last' is expected"):
        fit_folds([builder("mean")(0)], some_bags(), SPLITS[:1], SHORT, look="lats")
