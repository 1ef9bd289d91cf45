from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import pytest
import torch
from torch import Tensor, nn

from scmil import Bag, MILModel, build_model
from scmil.bags.hdf5 import map_features, write_bag
from scmil.errors import BagError, ShapeError
from scmil.models.aggregators import Prediction, names
from scmil.models.aggregators.abmil import ABMIL
from scmil.models.aggregators.dtfd import DTFD
from scmil.models.aggregators.pooling import Pooling
from scmil.models.streaming import (
    _KERNELS,
    _RunningSoftmax,
    _slice_rows,
    call_model,
    forward_bag,
    predict_bag,
)

IN_BLOCKS = ["mean", "max", "abmil", "abmil-gated", "dsmil", "dtfd-afs", "dtfd-maxmin"]
IN_BLOCKS += ["clam-sb", "clam-mb", "acmil", "attrimil"]


def corners(n: int) -> Tensor:
    """Positions of n tiles in rows of six, for aggregators that use them."""
    return 256 * torch.stack([torch.arange(n) % 6, torch.arange(n) // 6], 1)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scmil.models.streaming.BLOCK_ROWS", 7)
    monkeypatch.setattr("scmil.models.streaming.RECOMPUTED_ROWS", 20)


def model_of(
    name: str, classes: int = 2, dtype: torch.dtype = torch.float32, **options: Any
) -> MILModel:
    options = {"embed": [16], "sparse_coding": {"atoms": 16}, "seed": 1, **options}
    return build_model(9, classes, name, **options).to(dtype).eval()


def numbers(prediction: Prediction) -> list[Tensor]:
    return [prediction.logits, prediction.attention, *prediction.auxiliary]


class RecordingFeatures:
    """Features that record the largest number of rows that was read at once."""

    def __init__(self, features: Tensor) -> None:
        self.features, self.shape, self.most = features.numpy(), tuple(features.shape), 0

    def __getitem__(self, rows: slice) -> Any:
        self.most = max(self.most, len(self.features[rows]))
        return self.features[rows]

    def __array__(self, *_: Any, **__: Any) -> Any:
        self.most = len(self.features)
        return self.features


# --------------------------------------------------------------------------------------- prediction


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("cached", [0, 2**25])
@pytest.mark.parametrize("name", IN_BLOCKS)
def test_blocks_of_rows_give_the_same_prediction_as_the_whole_bag(
    name: str,
    cached: int,
    classes: int,
    dtype: torch.dtype,
    tolerance: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scmil.models.streaming.CACHED_NUMBERS", cached)
    model, x = model_of(name, classes, dtype), 3 * torch.randn(50, 9, dtype=dtype)
    with torch.no_grad():
        expected = numbers(call_model(model, x, corners(50)))
    recording = RecordingFeatures(x)
    streamed = predict_bag(model, recording, xy=corners(50))
    for actual, wanted in zip(numbers(streamed), expected, strict=True):
        torch.testing.assert_close(actual, wanted, atol=tolerance, rtol=0)
    assert recording.most <= 7


@pytest.mark.parametrize("name", [name for name in names() if name not in IN_BLOCKS])
def test_an_aggregator_without_a_kernel_reads_the_whole_bag(name: str) -> None:
    model, x = model_of(name), torch.randn(30, 9)
    with torch.no_grad():
        expected = numbers(call_model(model, x, corners(30)))
    recording = RecordingFeatures(x)
    predicted = numbers(predict_bag(model, recording, xy=corners(30)))
    assert all(torch.equal(a, b) for a, b in zip(predicted, expected, strict=True))
    assert recording.most == 30


def test_attention_of_max_pooling_is_shared_by_ties_in_different_blocks() -> None:
    model = MILModel(nn.Identity(), nn.Identity(), Pooling(2, 2, "max"), 2).eval()
    x = torch.zeros(20, 2)
    x[3, 0] = x[15, 0] = 1  # column 0 has two maxima, in different blocks; column 1 has twenty
    attention = predict_bag(model, x).attention
    assert attention[3] == attention[15] == pytest.approx((1 / 2 + 1 / 20) / 2)
    assert attention.sum() == pytest.approx(1)


def test_features_may_be_memory_mapped_in_hdf5_or_in_half_precision(tmp_path: Path) -> None:
    model, x = model_of("abmil-gated"), torch.randn(40, 9).half()
    write_bag(Bag("slide", x), path := tmp_path / "slide.h5")
    expected = predict_bag(model, x.float()).logits
    assert torch.equal(predict_bag(model, map_features(path)).logits, expected)
    with h5py.File(path) as file:
        assert torch.equal(predict_bag(model, file["features"]).logits, expected)
    assert torch.equal(predict_bag(model, x).logits, expected)
    assert torch.equal(
        predict_bag(model, x[:5].numpy()).logits, predict_bag(model, x[:5].float()).logits
    )


@pytest.mark.parametrize("classes", [2, 3])
def test_dtfd_selects_extremes_whose_softmax_would_round_to_the_same_value(classes: int) -> None:
    net, n = DTFD(4, classes), 10_000
    projected, prediction = (
        torch.randn(n, classes),
        Prediction(torch.arange(classes).float(), torch.full((n,), 1e-9)),
    )
    activation = torch.softmax(1e-9 * projected.double(), 1)[:, classes - 1]
    assert torch.softmax(1e-9 * projected, 1)[:, classes - 1].unique().numel() < 5, (
        "float32 does not separate them"
    )
    assert net.extremes(projected, prediction).tolist() == [
        int(activation.argmax()),
        int(activation.argmin()),
    ]


def test_prediction_restores_the_training_mode_and_has_no_gradient() -> None:
    model = model_of("mi-net", sparse_coding=None).train()
    prediction = predict_bag(model, torch.ones(30, 9))
    assert model.training
    assert not prediction.logits.requires_grad
    assert torch.equal(prediction.logits, predict_bag(model, torch.ones(30, 9)).logits), (
        "no dropout"
    )


def test_a_model_whose_rows_interact_reads_the_whole_bag() -> None:
    class Centred(nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            return h - h.mean(0)

    model = MILModel(
        nn.Sequential(nn.Linear(9, 4), Centred()), nn.Identity(), ABMIL(4, 2), 9
    ).eval()
    x = torch.randn(30, 9)
    with torch.no_grad():
        assert torch.equal(predict_bag(model, x).logits, model(x).logits)


def test_a_subclass_of_an_aggregator_reads_the_whole_bag() -> None:
    class Doubled(ABMIL):
        def forward(self, h: Tensor) -> Prediction:
            prediction = super().forward(h)
            return prediction._replace(logits=2 * prediction.logits)

    assert Doubled not in _KERNELS
    model, x = MILModel(nn.Identity(), nn.Identity(), Doubled(9, 2), 9).eval(), torch.randn(30, 9)
    with torch.no_grad():
        assert torch.equal(predict_bag(model, x).logits, model(x).logits)
        assert torch.equal(forward_bag(model, x).logits, model(x).logits)


@pytest.mark.parametrize("run", [predict_bag, forward_bag])
def test_large_and_small_bags_raise_the_same_errors(run: Any) -> None:
    model, x = model_of("abmil"), torch.zeros(30, 9)
    x[17, 3], x[25, 0] = torch.nan, torch.inf
    for bad in (x, torch.zeros(30, 8), torch.zeros(30), torch.zeros(0, 9)):
        with pytest.raises(BagError) as expected:
            model(bad)
        with pytest.raises(type(expected.value)) as raised:
            run(model, bad)
        assert str(raised.value) == str(expected.value)
    with pytest.raises(ShapeError):
        run(model, torch.zeros(30, 8))


def test_blocks_have_nearly_the_same_length_and_cover_all_rows() -> None:
    for n in (1, 7, 8, 50):
        lengths = [rows.stop - rows.start for rows in _slice_rows(n)]
        assert sum(lengths) == n
        assert max(lengths) <= 7
        assert max(lengths) - min(lengths) <= 1


def test_the_running_softmax_is_stable_for_large_scores_and_empty_columns() -> None:
    h, scores = (
        torch.randn(40, 3),
        torch.linspace(-200, 500, 40)[torch.randperm(40)][:, None].repeat(1, 2),
    )
    scores[:20, 1] = -torch.inf
    running = _RunningSoftmax()
    for rows in _slice_rows(40):
        running.add(scores[rows], h[rows])
    torch.testing.assert_close(running.mean, torch.softmax(scores, 0).T @ h)


@pytest.mark.parametrize("name", [*IN_BLOCKS, "transmil", "mi-net"])
@pytest.mark.parametrize("n", [5, 50])
def test_on_block_receives_every_row_once_and_in_order(name: str, n: int) -> None:
    model, x = model_of(name), torch.randn(n, 9)
    blocks: list[tuple[Tensor, Tensor]] = []
    prediction = predict_bag(model, x, lambda *rows: blocks.append(rows), corners(n))
    embedded, refined = (torch.cat(column) for column in zip(*blocks, strict=True))
    with torch.no_grad():
        torch.testing.assert_close(embedded, model.embed(x))
        torch.testing.assert_close(refined, model.refine(model.embed(x)))
    assert max(len(rows) for rows, _ in blocks) <= 7
    again = predict_bag(model, x, xy=corners(n))
    for actual, expected in zip(numbers(prediction), numbers(again), strict=True):
        assert torch.equal(actual, expected)


def test_on_block_reports_no_row_twice_if_rows_are_recomputed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scmil.models.streaming.CACHED_NUMBERS", 0)
    lengths: list[int] = []
    predict_bag(model_of("dsmil"), torch.randn(50, 9), lambda _, h: lengths.append(len(h)))
    assert sum(lengths) == 50


@pytest.mark.parametrize("rows", [5, 50])
def test_a_model_in_training_mode_predicts_without_dropout_and_stays_in_it(rows: int) -> None:
    embed = nn.Sequential(nn.Linear(9, 9), nn.Dropout(0.5))
    model, x = MILModel(embed, nn.Identity(), Pooling(9, 2), 9), torch.randn(rows, 9)
    expected = predict_bag(model.eval(), x).logits
    torch.testing.assert_close(predict_bag(model.train(), x).logits, expected)
    assert model.training
    assert embed[1].training


# ----------------------------------------------------------------------------------------- training


@pytest.mark.parametrize("name", [*IN_BLOCKS, "transmil", "ilra"])
def test_recomputation_gives_the_same_gradients(name: str) -> None:
    x, gradients = torch.randn(50, 9, dtype=torch.float64), []
    for run in (call_model, forward_bag):
        model = model_of(name, dtype=torch.float64).train()
        torch.manual_seed(3)
        model.loss(run(model, x, corners(50)), 1).backward()
        gradients.append([p.grad for p in model.parameters()])
    assert any(g is not None and g.abs().max() > 1e-8 for g in gradients[0])
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(recomputed, plain, atol=1e-10, rtol=1e-8)


def test_recomputation_repeats_the_dropout_of_the_embedding() -> None:
    model = MILModel(
        nn.Sequential(nn.Linear(9, 9), nn.Dropout(0.5)), nn.Identity(), Pooling(9, 2), 9
    ).train()
    x = torch.randn(30, 9)
    prediction = forward_bag(model, x)
    prediction.logits[0].backward()
    weight, kept = model.aggregate.classifier.weight.detach(), model.embed[0].bias.grad
    shares = kept / weight[0] / 2 * 30  # how many rows dropout let through in each column
    torch.testing.assert_close(shares, shares.round(), atol=1e-3, rtol=0)
    assert 0 < shares.min() < shares.max() < 30


def test_large_bags_store_only_codes_for_the_backward_pass() -> None:
    def kept(run: Any) -> int:
        sizes: list[int] = []
        model, x = model_of("abmil-gated"), torch.randn(200, 9)

        def record(tensor: Tensor) -> Tensor:
            if tensor.untyped_storage().data_ptr() != x.untyped_storage().data_ptr():
                sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
            run(model, x)
        return sum(sizes)

    whole, in_blocks = kept(lambda model, x: model(x)), kept(forward_bag)
    assert in_blocks < whole / 5
    assert in_blocks >= 200 * 16


def test_small_bags_are_not_recomputed() -> None:
    model, calls = model_of("abmil"), []
    model.refine.register_forward_hook(lambda *_: calls.append(1))
    model.loss(forward_bag(model, torch.randn(20, 9)), 1).backward()
    assert len(calls) == 1
    model.loss(forward_bag(model, torch.randn(21, 9)), 1).backward()
    assert len(calls) == 1 + 2 * len(_slice_rows(21))


def test_half_precision_features_are_converted_for_training() -> None:
    model = model_of("abmil").train()
    x = torch.randn(30, 9).half()
    assert torch.equal(forward_bag(model, x).logits, forward_bag(model, x.float()).logits)
    assert torch.equal(forward_bag(model, x[:5]).logits, model(x[:5].float()).logits)
