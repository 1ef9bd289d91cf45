"""What every registered aggregator promises. A new one is tested here from the moment it is
registered.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scmil import build_model, load_model, save_model
from scmil.bags.bag import Bag
from scmil.bags.splits import Split
from scmil.errors import BagError, ShapeError
from scmil.models import aggregators
from scmil.models.model import MILModel
from scmil.models.streaming import call_model, predict_bag
from scmil.training.fitting import fit
from scmil.training.folds import fit_folds
from scmil.training.recipes import Recipe

NAMES = aggregators.names()
DIM = 20
WITHOUT: dict[str, Any] = {}
WITH: dict[str, Any] = {"sparse_coding": {"atoms": 64, "layers": 3}}
CONTROL: dict[str, Any] = {"refine": "linear", "sparse_coding": {"atoms": 64}}


def has_more_than_logits(name: str) -> bool:
    """Whether an aggregator uses positions, or has a loss or state of its own."""
    factory = aggregators.entry(name).factory
    return any(hasattr(factory, key) for key in ("uses_positions", "own_loss", "stackable"))


every_name = pytest.mark.parametrize("name", NAMES)
every_arm = pytest.mark.parametrize(
    "arm", [WITHOUT, WITH, CONTROL], ids=["without", "with", "control"]
)


# Options for aggregators whose own widths take minutes.
SIZES: dict[str, dict[str, Any]] = {"dgr-mil": {"width": 32, "warm_up": 1}}


def model_for(name: str, arm: dict[str, Any], classes: int = 2, seed: int = 0) -> MILModel:
    return build_model(DIM, classes, {"name": name, **SIZES.get(name, {})}, seed=seed, **arm)


def positions(n: int) -> Tensor:
    """Corners of n tiles on a square grid; the contract tests pass them to every model, and
    `call_model` passes them on to aggregators that use positions.
    """
    side = max(1, round(n**0.5))
    place = torch.arange(n)
    return 256 * torch.stack([place % side, place // side], 1)


def call(model: MILModel, x: Tensor, xy: Tensor | None = None) -> aggregators.Prediction:
    return call_model(model, x, positions(len(x)) if xy is None else xy)


def test_the_seventeen_of_the_paper_are_there() -> None:
    paper = (
        "mean max mi-net-instance mi-net mi-net-ds mi-net-rc abmil abmil-gated gnn-mil dp-minn "
        "nlmil anlmil dsmil "
        "transmil dtfd-maxmin dtfd-afs ilra"
    )
    # And others may stand beside them.
    assert paper.split() == [name for name in NAMES if name in paper.split()]


def test_there_are_at_least_28() -> None:
    assert len(NAMES) >= 28


@every_name
def test_it_declares_itself(name: str) -> None:
    factory = aggregators.entry(name).factory
    assert isinstance(factory.permutation_invariant, bool)  # type: ignore[attr-defined]
    assert isinstance(factory.embedding, aggregators.Embedding)  # type: ignore[attr-defined]
    assert isinstance(getattr(factory, "uses_positions", False), bool)
    assert isinstance(getattr(factory, "stackable", True), bool)
    assert 0 < len(aggregators.entry(name).summary) < 60
    assert factory.__doc__


@every_name
@every_arm
@pytest.mark.parametrize("n", [1, 37])
@pytest.mark.parametrize("classes", [2, 3])
def test_prediction(name: str, arm: dict[str, Any], n: int, classes: int) -> None:
    model = model_for(name, arm, classes)
    for mode in (True, False):
        prediction = call(model.train(mode), torch.randn(n, DIM))
        assert prediction.logits.shape == (classes,)
        assert prediction.logits.isfinite().all()
        assert prediction.attention.shape == (n,)
        assert (prediction.attention >= 0).all()
        assert prediction.attention.sum().item() == pytest.approx(1, abs=1e-4)
        assert all(logits.shape == (classes,) for logits in prediction.auxiliary)
        assert all(isinstance(extra, Tensor) for extra in prediction.extras)
        loss = model.loss(prediction, classes - 1)
        assert loss.shape == ()
        assert loss.isfinite()


@every_name
def test_the_rival_of_sparse_coding_stands_in_its_place(name: str) -> None:
    model = build_model(DIM, 2, name, refine="rrt", seed=0)
    prediction = call(model, torch.randn(70, DIM))
    model.loss(prediction, 1).backward()
    assert prediction.logits.isfinite().all()
    assert all(p.grad is not None for p in model.refine.parameters())


@pytest.mark.slow
@every_name
@pytest.mark.parametrize("arm", [WITHOUT, WITH], ids=["without", "with"])
def test_a_whole_slide(name: str, arm: dict[str, Any]) -> None:
    model = model_for(name, arm)
    # The cost of self-attention is quadratic in the number of instances. Large bags of the sparse
    # coding layer are tested in tests/unit/sparse_coding.
    instances = 2_003 if name == "transformer" or arm is WITH else 5_003
    prediction = call(model, torch.randn(instances, DIM))
    model.loss(prediction, 1).backward()
    assert prediction.attention.sum().item() == pytest.approx(1, abs=1e-3)
    assert all(
        parameter.grad is None or parameter.grad.isfinite().all()
        for parameter in model.parameters()
    )


@every_name
@every_arm
def test_float64(name: str, arm: dict[str, Any]) -> None:
    prediction = call(model_for(name, arm).double(), torch.randn(9, DIM, dtype=torch.float64))
    assert prediction.logits.dtype == prediction.attention.dtype == torch.float64


@every_name
@pytest.mark.parametrize("arm", [WITHOUT, WITH], ids=["without", "with"])
def test_the_order_of_instances_is_free_where_it_is_claimed(name: str, arm: dict[str, Any]) -> None:
    model = model_for(name, arm).double().eval()
    # RRT has one instance in each region up to 64, and its order is free.
    x, order = torch.randn(130, DIM, dtype=torch.float64), torch.randperm(130)
    straight, shuffled = call(model, x), call(model, x[order], positions(130)[order])
    same = torch.allclose(straight.logits, shuffled.logits, atol=1e-9)
    assert same == model.aggregate.permutation_invariant
    if same:
        torch.testing.assert_close(straight.attention[order], shuffled.attention)


@every_name
@every_arm
def test_gradients_reach_every_parameter(name: str, arm: dict[str, Any]) -> None:
    model = model_for(name, arm)
    reached: set[str] = set()
    for seed in range(5):  # dropout and dead ReLUs hide some in one draw
        torch.manual_seed(seed)
        model.zero_grad()
        # RRT needs more than 64 instances to have several in one region.
        model.loss(call(model, torch.randn(80, DIM)), seed % 2).backward()
        reached |= {
            key for key, p in model.named_parameters() if p.grad is not None and (p.grad != 0).any()
        }
    assert reached == {key for key, _ in model.named_parameters()}


@every_name
@every_arm
def test_it_is_saved_and_loaded_bit_for_bit(name: str, arm: dict[str, Any], tmp_path) -> None:  # type: ignore[no-untyped-def]
    model, x = model_for(name, arm, classes=3).eval(), torch.randn(12, DIM)
    again = load_model(save_model(model, tmp_path)).eval()
    for one, other in zip(call(model, x)[:2], call(again, x)[:2], strict=True):
        assert torch.equal(one, other)


@every_name
def test_evaluation_repeats(name: str) -> None:
    model, x = model_for(name, WITH).eval(), torch.randn(40, DIM)
    assert torch.equal(call(model, x).logits, call(model, x).logits)


@every_name
def test_it_learns_to_separate_two_bags(name: str) -> None:
    model = model_for(name, WITH)
    generator = torch.Generator().manual_seed(0)
    negative = torch.randn(20, DIM, generator=generator)
    positive = torch.randn(20, DIM, generator=generator)
    positive[:8] += 4 * torch.linspace(-1, 1, DIM)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)

    def margin() -> float:
        model.eval()
        scores = [call(model, bag).logits.detach() for bag in (positive, negative)]
        return float((scores[0][1] - scores[0][0]) - (scores[1][1] - scores[1][0]))

    before = margin()
    for _ in range(60):
        model.train()
        optimiser.zero_grad()
        (model.loss(call(model, positive), 1) + model.loss(call(model, negative), 0)).backward()
        optimiser.step()
    assert margin() > max(before, 0) + 0.3


@every_name
@pytest.mark.parametrize(
    ("bag", "error", "message"),
    [
        (torch.zeros(0, DIM), BagError, "the bag is empty"),
        (
            torch.full((3, DIM), float("nan")),
            BagError,
            "3 of the bag's 3 instances have NaN or infinite features",
        ),
        (
            torch.zeros(3, DIM + 1),
            ShapeError,
            f"{DIM + 1}-dimensional features, but this model was built for {DIM}",
        ),
        (torch.zeros(DIM), ShapeError, "a bag is a matrix"),
    ],
    ids=["empty", "NaN", "width", "vector"],
)
def test_bad_bags_are_rejected(
    name: str, bag: Tensor, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call(model_for(name, WITHOUT), bag, positions(3))


@every_name
def test_positions_are_used_where_they_are_declared(name: str) -> None:
    model, x = model_for(name, WITHOUT).eval(), torch.randn(23, DIM)
    if not aggregators.uses_positions(model.aggregate):
        assert torch.equal(model(x).logits, model(x, positions(23)).logits)
        return
    for forward in (model, lambda x: predict_bag(model, x)):
        with pytest.raises(BagError, match="the bag has no tile positions"):
            forward(x)
    with pytest.raises(ShapeError, match=r"positions of shape \(22, 2\), but \(23, 2\) is needed"):
        model(x, positions(22))
    # Positions change the prediction or the loss.
    losses = [model.loss(model(x, xy), 1) for xy in (positions(23), positions(23).flip(0))]
    assert losses[0] != losses[1]


@pytest.mark.parametrize("name", [name for name in NAMES if has_more_than_logits(name)])
def test_folds_train_as_single_models(name: str) -> None:
    # Others are tested in tests/unit/training/test_folds.py.
    generator = torch.Generator().manual_seed(0)
    bags = [
        Bag(
            str(i),
            torch.randn(12, DIM, generator=generator, dtype=torch.float64),
            label=i % 2,
            xy=positions(12),
        )
        for i in range(4)
    ]
    splits = [Split((0, 1, 2), (3,)), Split((1, 2, 3), (0,))]
    recipe = Recipe(epochs=2, learning_rate=1e-3)
    models, singles = (
        [model_for(name, {"embed": [9]}, seed=fold).double() for fold in range(2)] for _ in range(2)
    )
    history = fit_folds(models, bags, splits, recipe, standardise=False)
    assert history.probabilities.shape == (2, 2, 4, 2)
    for fold, split in enumerate(splits):
        losses = fit(singles[fold], [bags[i] for i in split.train], recipe=recipe).train_loss
        assert history.train_loss[:, fold].tolist() == pytest.approx(losses, abs=1e-8)
        stacked = models[fold].state_dict()
        for key, tensor in singles[fold].state_dict().items():
            torch.testing.assert_close(stacked[key], tensor, rtol=0, atol=1e-8, msg=key)


def test_one_file_and_one_decorator_are_enough() -> None:
    @aggregators.register("first-instance", "the first instance decides")
    class First(nn.Module):
        """The first instance decides."""

        permutation_invariant = False
        embedding = aggregators.Embedding(widths=(8,))

        def __init__(self, dim: int, classes: int) -> None:
            super().__init__()
            self.head = nn.Linear(dim, classes)

        def forward(self, h: Tensor) -> aggregators.Prediction:
            return aggregators.Prediction(
                self.head(h[0]), nn.functional.one_hot(torch.tensor(0), len(h)).float()
            )

    try:
        model = build_model(DIM, 2, "first-instance", sparse_coding=True)
        assert model(torch.randn(5, DIM)).logits.shape == (2,)
    finally:
        del aggregators.registry._entries["first-instance"]
