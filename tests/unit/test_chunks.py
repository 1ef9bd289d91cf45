from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import pytest
import torch
from torch import Tensor, nn

from scmil import Bag, MILModel, build_model
from scmil.models.aggregators import Prediction, names
from scmil.models.aggregators.abmil import ABMIL
from scmil.models.aggregators.dtfd import DTFD
from scmil.models.aggregators.pooling import Pooling
from scmil.bags.hdf5 import map_features, write_bag
from scmil.models.streaming import _RULES, _blocks, _RunningSoftmax, forward, predict_bag
from scmil.errors import BagError, ShapeError

IN_BLOCKS = ["mean", "max", "abmil", "abmil-gated", "dsmil", "dtfd-afs", "dtfd-maxmin"]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scmil.models.streaming.BLOCK_ROWS", 7)
    monkeypatch.setattr("scmil.models.streaming.RECOMPUTED_ROWS", 20)


def model_of(name: str, classes: int = 2, dtype: torch.dtype = torch.float32, **options: Any) -> MILModel:
    options = {"embed": [16], "sparse_coding": {"atoms": 16}, "seed": 1, **options}
    return build_model(9, classes, name, **options).to(dtype).eval()


def numbers(prediction: Prediction) -> list[Tensor]:
    return [prediction.logits, prediction.attention, *prediction.auxiliary]


class Watched:
    """Features that remember how many rows were asked for at once."""

    def __init__(self, features: Tensor) -> None:
        self.features, self.shape, self.most = features.numpy(), tuple(features.shape), 0

    def __getitem__(self, rows: slice) -> Any:
        self.most = max(self.most, len(self.features[rows]))
        return self.features[rows]

    def __array__(self, *_: Any, **__: Any) -> Any:
        self.most = len(self.features)
        return self.features


# --------------------------------------------------------------------------------------------------------- prediction


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("kept", [0, 2**25])
@pytest.mark.parametrize("name", IN_BLOCKS)
def test_a_bag_in_blocks_is_the_bag_in_one_piece(
    name: str, kept: int, classes: int, dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scmil.models.streaming.KEPT_NUMBERS", kept)
    model, x = model_of(name, classes, dtype), 3 * torch.randn(50, 9, dtype=dtype)
    with torch.no_grad():
        expected = numbers(model(x))
    watched = Watched(x)
    for met, wanted in zip(numbers(predict_bag(model, watched)), expected, strict=True):
        torch.testing.assert_close(met, wanted, atol=tolerance, rtol=0)
    assert watched.most <= 7


@pytest.mark.parametrize("name", [name for name in names() if name not in IN_BLOCKS])
def test_an_aggregator_without_a_rule_runs_in_one_piece(name: str) -> None:
    model, x = model_of(name), torch.randn(30, 9)
    with torch.no_grad():
        expected = numbers(model(x))
    watched = Watched(x)
    assert all(torch.equal(a, b) for a, b in zip(numbers(predict_bag(model, watched)), expected, strict=True))
    assert watched.most == 30


def test_attention_of_a_maximum_divides_ties_over_blocks() -> None:
    model = MILModel(nn.Identity(), nn.Identity(), Pooling(2, 2, "max"), 2).eval()
    x = torch.zeros(20, 2)
    x[3, 0] = x[15, 0] = 1  # two winners, in different blocks; and twenty in the second column
    attention = predict_bag(model, x).attention
    assert attention[3] == attention[15] == pytest.approx((1 / 2 + 1 / 20) / 2)
    assert attention.sum() == pytest.approx(1)


def test_features_may_be_mapped_or_in_hdf5_or_half_as_precise(tmp_path: Path) -> None:
    model, x = model_of("abmil-gated"), torch.randn(40, 9).half()
    write_bag(Bag("slide", x), path := tmp_path / "slide.h5")
    expected = predict_bag(model, x.float()).logits
    assert torch.equal(predict_bag(model, map_features(path)).logits, expected)
    with h5py.File(path) as file:
        assert torch.equal(predict_bag(model, file["features"]).logits, expected)
    assert torch.equal(predict_bag(model, x).logits, expected)
    assert torch.equal(predict_bag(model, x[:5].numpy()).logits, predict_bag(model, x[:5].float()).logits)


@pytest.mark.parametrize("classes", [2, 3])
def test_dtfd_chooses_by_activations_that_differ_in_their_last_digits_only(classes: int) -> None:
    net, n = DTFD(4, classes), 10_000
    projected, said = torch.randn(n, classes), Prediction(torch.arange(classes).float(), torch.full((n,), 1e-9))
    activation = torch.softmax(1e-9 * projected.double(), 1)[:, classes - 1]
    assert torch.softmax(1e-9 * projected, 1)[:, classes - 1].unique().numel() < 5, "float32 does not tell them apart"
    assert net.extremes(projected, said).tolist() == [int(activation.argmax()), int(activation.argmin())]


def test_prediction_keeps_the_mode_and_no_gradients() -> None:
    model = model_of("mi-net", sparse_coding=None).train()
    prediction = predict_bag(model, torch.ones(30, 9))
    assert model.training
    assert not prediction.logits.requires_grad
    assert torch.equal(prediction.logits, predict_bag(model, torch.ones(30, 9)).logits), "no dropout"


def test_a_module_that_looks_at_other_rows_is_not_cut() -> None:
    class Centred(nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            return h - h.mean(0)

    model = MILModel(nn.Sequential(nn.Linear(9, 4), Centred()), nn.Identity(), ABMIL(4, 2), 9).eval()
    x = torch.randn(30, 9)
    with torch.no_grad():
        assert torch.equal(predict_bag(model, x).logits, model(x).logits)


def test_a_kind_of_aggregator_that_somebody_derived_is_not_cut() -> None:
    class Louder(ABMIL):
        def forward(self, h: Tensor) -> Prediction:
            said = super().forward(h)
            return said._replace(logits=2 * said.logits)

    assert Louder not in _RULES
    model, x = MILModel(nn.Identity(), nn.Identity(), Louder(9, 2), 9).eval(), torch.randn(30, 9)
    with torch.no_grad():
        assert torch.equal(predict_bag(model, x).logits, model(x).logits)
        assert torch.equal(forward(model, x).logits, model(x).logits)


@pytest.mark.parametrize("ask", [predict_bag, forward])
def test_a_large_bag_is_refused_in_the_same_words_as_a_small_one(ask: Any) -> None:
    model, x = model_of("abmil"), torch.zeros(30, 9)
    x[17, 3], x[25, 0] = torch.nan, torch.inf
    for bad in (x, torch.zeros(30, 8), torch.zeros(30), torch.zeros(0, 9)):
        with pytest.raises(BagError) as expected:
            model(bad)
        with pytest.raises(type(expected.value)) as met:
            ask(model, bad)
        assert str(met.value) == str(expected.value)
    with pytest.raises(ShapeError):
        ask(model, torch.zeros(30, 8))


def test_blocks_have_nearly_the_same_length_and_cover_all_rows() -> None:
    for n in (1, 7, 8, 50):
        lengths = [rows.stop - rows.start for rows in _blocks(n)]
        assert sum(lengths) == n
        assert max(lengths) <= 7
        assert max(lengths) - min(lengths) <= 1


def test_the_running_softmax_meets_scores_that_overflow_and_columns_that_are_empty_for_a_while() -> None:
    h, scores = torch.randn(40, 3), torch.linspace(-200, 500, 40)[torch.randperm(40)][:, None].repeat(1, 2)
    scores[:20, 1] = -torch.inf
    running = _RunningSoftmax()
    for rows in _blocks(40):
        running.add(scores[rows], h[rows])
    torch.testing.assert_close(running.mean, torch.softmax(scores, 0).T @ h)


# ----------------------------------------------------------------------------------------------------------- training


@pytest.mark.parametrize("name", [*IN_BLOCKS, "transmil", "ilra"])
def test_recomputation_gives_the_same_gradients(name: str) -> None:
    x, gradients = torch.randn(50, 9, dtype=torch.float64), []
    for ask in (lambda model, x: model(x), forward):
        model = model_of(name, dtype=torch.float64).train()
        torch.manual_seed(3)
        model.loss(ask(model, x), 1).backward()
        gradients.append([p.grad for p in model.parameters()])
    assert any(g is not None and g.abs().max() > 1e-8 for g in gradients[0])
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(recomputed, plain, atol=1e-10, rtol=1e-8)


def test_dropout_in_the_embedding_falls_alike_when_it_is_computed_again() -> None:
    model = MILModel(nn.Sequential(nn.Linear(9, 9), nn.Dropout(0.5)), nn.Identity(), Pooling(9, 2), 9).train()
    x = torch.randn(30, 9)
    said = forward(model, x)
    said.logits[0].backward()
    weight, kept = model.aggregate.classifier.weight.detach(), model.embed[0].bias.grad
    shares = kept / weight[0] / 2 * 30  # how many rows dropout let through in each column
    torch.testing.assert_close(shares, shares.round(), atol=1e-3, rtol=0)
    assert 0 < shares.min() < shares.max() < 30


def test_what_a_large_bag_keeps_for_backward_is_its_codes() -> None:
    def kept(ask: Any) -> int:
        sizes: list[int] = []
        model, x = model_of("abmil-gated"), torch.randn(200, 9)

        def note(tensor: Tensor) -> Tensor:
            if tensor.untyped_storage().data_ptr() != x.untyped_storage().data_ptr():
                sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            ask(model, x)
        return sum(sizes)

    whole, in_blocks = kept(lambda model, x: model(x)), kept(forward)
    assert in_blocks < whole / 5
    assert in_blocks >= 200 * 16


def test_small_bags_are_not_computed_twice() -> None:
    model, calls = model_of("abmil"), []
    model.refine.register_forward_hook(lambda *_: calls.append(1))
    model.loss(forward(model, torch.randn(20, 9)), 1).backward()
    assert len(calls) == 1
    model.loss(forward(model, torch.randn(21, 9)), 1).backward()
    assert len(calls) == 1 + 2 * len(_blocks(21))


def test_features_of_half_precision_train_as_they_are() -> None:
    model = model_of("abmil").train()
    x = torch.randn(30, 9).half()
    assert torch.equal(forward(model, x).logits, forward(model, x.float()).logits)
    assert torch.equal(forward(model, x[:5]).logits, model(x[:5].float()).logits)
