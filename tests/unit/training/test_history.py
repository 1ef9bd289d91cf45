"""A history records the step of the sparse coding layer, and reports one that is too long."""

from __future__ import annotations

import pytest
import torch

from scmil import Recipe, build_model, fit
from scmil.bags.bag import Bag
from scmil.sparse_coding.layer import StepWarning

BAGS = [
    Bag(str(i), torch.randn(6, 8, generator=torch.Generator().manual_seed(i)), label=i % 2)
    for i in range(4)
]


def test_the_step_of_each_epoch_is_that_of_the_layer() -> None:
    model = build_model(8, 2, "mean", sparse_coding=True, embed=(), seed=0)
    history = fit(model, BAGS, recipe=Recipe(epochs=2))
    assert len(history.step) == 2
    assert history.step[-1] == pytest.approx(model.refine.step())


def test_a_model_without_sparse_coding_has_no_step() -> None:
    history = fit(build_model(8, 2, "mean", embed=(), seed=0), BAGS, recipe=Recipe(epochs=2))
    assert (history.step, history.step_note()) == ([], None)


def test_a_step_that_became_too_long_is_reported_with_its_epoch() -> None:
    model = build_model(8, 2, "mean", sparse_coding=True, embed=(), seed=0)
    with pytest.warns(StepWarning):
        history = fit(model, BAGS, recipe=Recipe(epochs=3, learning_rate=0.5))
    note = history.step_note()
    assert note is not None
    assert (
        f"rose to {max(history.step):.2f} in epoch {history.step.index(max(history.step)) + 1}"
        in note
    )
