from __future__ import annotations

import pytest
import torch

from scmil.models.aggregators.dgr import DGRMIL


def build(**options: object) -> DGRMIL:
    torch.manual_seed(0)
    return DGRMIL(6, 2, width=16, **options)  # type: ignore[arg-type]


def test_the_centre_of_the_class_moves_in_training() -> None:
    model, h = build(dropout=0.0), torch.randn(9, 6)
    for label, moved in ((0, [True, False]), (1, [False, True]), (2, [False, True])):
        before = model.centres.clone()
        prediction = model(h)
        model.own_loss(prediction, torch.tensor(label))
        assert [not torch.equal(a, b) for a, b in zip(before, model.centres)] == moved
        expected = 0.4 * before[int(moved[1])] + 0.6 * prediction.extras[0]
        torch.testing.assert_close(model.centres[int(moved[1])], expected)
    model.eval()
    before = model.centres.clone()
    model.own_loss(model(h), torch.tensor(0))
    assert torch.equal(model.centres, before)


def test_the_losses_start_after_the_warm_up() -> None:
    model, h = build(warm_up=10), torch.randn(9, 6)
    losses = []
    for epoch in (0, 9, 10):
        model.set_epoch(epoch)
        losses.append(model.own_loss(model(h), torch.tensor(1)).item())
    assert losses[:2] == [0, 0]
    assert losses[2] != 0


def test_parallel_vectors_have_a_large_finite_loss() -> None:
    model, h = build(), torch.randn(9, 6)
    different = model.own_loss(model(h), torch.tensor(1)).item()
    with torch.no_grad():
        model.vectors[:] = model.vectors[0]
    same = model.own_loss(model(h), torch.tensor(1))
    assert same.isfinite()
    assert same > different + 1


def test_dropout_drops_whole_channels() -> None:
    model = build(dropout=0.5)
    with torch.no_grad():
        model.network[1].bias.fill_(5.0)  # type: ignore[operator, union-attr]
    embedded = model._embed(torch.randn(50, 6), 0.5)
    dropped = (embedded == 0).all(0)
    assert 0 < dropped.sum() < 16
    assert (embedded[:, ~dropped] > 0).float().mean() > 0.9


def test_wrong_options_are_rejected() -> None:
    with pytest.raises(ValueError, match="divides its width by 8 heads, and 20 does not divide"):
        DGRMIL(6, 2, width=20)
    with pytest.raises(ValueError, match="vectors = 0: at least one"):
        DGRMIL(6, 2, vectors=0)
