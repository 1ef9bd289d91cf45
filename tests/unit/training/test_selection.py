"""Model selection on a validation split."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from scmil import Bag, Recipe, build_model, fit
from scmil.training.history import History
from scmil.training.recipes import recipe
from scmil.training.selection import best_candidate, choose_candidate, choose_threshold


@pytest.mark.parametrize(
    ("aucs", "losses", "expected"),
    [
        ([0.6, 0.9, 0.7], [0.1, 0.9, 0.2], 1),  # the AUC comes before the loss
        ([0.9, 0.9, 0.7], [0.5, 0.4, 0.1], 1),  # equal AUC: the lowest loss
        ([0.9, 0.9, 0.9], [0.4, 0.4, 0.4], 0),  # equal in both: the first
        ([math.nan, 0.1], [0.1, 0.9], 1),  # an undefined AUC counts as 0
        ([math.nan, math.nan], [0.2, 0.1], 1),
    ],
)
def test_the_best_candidate_has_the_highest_auc_then_the_lowest_loss(
    aucs: list[float], losses: list[float], expected: int
) -> None:
    assert best_candidate(aucs, losses) == expected
    assert History(valid_auc=aucs, valid_loss=losses).best_epoch == expected + 1


def test_auc_and_loss_are_computed_from_the_probabilities_of_each_candidate() -> None:
    labels = np.array([0, 0, 1])
    second = np.array(
        [
            [0.1, 0.2, 0.3],  # AUC 1, large loss for the last bag
            [0.1, 0.9, 0.8],  # AUC 0.5
            [0.1, 0.2, 0.7],  # AUC 1, the smallest loss
        ]
    )
    assert choose_candidate(labels, np.stack([1 - second, second], axis=2)) == 2


def test_the_threshold_separates_two_classes_and_is_one_half_otherwise() -> None:
    labels = np.array([0, 0, 1])
    p = np.array([0.1, 0.2, 0.4])
    assert choose_threshold(labels, np.stack([1 - p, p], 1)) == pytest.approx(0.3)
    assert choose_threshold(np.array([0, 1, 2]), np.eye(3)) == 0.5
    assert choose_threshold(np.array([], np.int64), np.empty((0, 2))) == 0.5
    assert choose_threshold(np.array([1, 1]), np.array([[0.2, 0.8], [0.3, 0.7]])) == 0.5


def test_dtfd_chooses_among_the_last_fifth_of_the_epochs() -> None:
    dtfd = recipe("dtfd")
    assert (dtfd.epochs, dtfd.first_candidate) == (200, 161)
    history = History(valid_loss=[0.1, 0.4, 0.3, 0.5, 0.2], valid_auc=[1.0, 0.9, 0.9, 0.8, 0.7])
    assert history.best_epoch == 1
    history.first_candidate = recipe("dtfd", epochs=5).first_candidate
    assert history.best_epoch == 5
    assert History(valid_loss=[0.1], valid_auc=[1.0]).best_epoch == 1
    history = History(valid_loss=[0.1], valid_auc=[1.0])
    history.first_candidate = 2
    assert history.best_epoch is None  # the training is not that far


def test_candidates_before_the_first_are_not_chosen() -> None:
    labels = np.array([0, 1])
    better, worse = [[0.9, 0.1], [0.2, 0.8]], [[0.3, 0.7], [0.6, 0.4]]
    probabilities = np.array([better, worse, better, worse])
    assert choose_candidate(labels, probabilities) == 0
    assert choose_candidate(labels, probabilities, first=1) == 2
    assert choose_candidate(labels, probabilities, first=3) == 3
    assert choose_candidate(labels, probabilities[:1], first=3) == 0


def test_training_ends_with_the_best_weights_of_the_last_epochs() -> None:
    torch.manual_seed(0)
    bags = [Bag(str(i), torch.randn(4, 6), label=i % 2) for i in range(8)]
    settings = Recipe(epochs=5, learning_rate=0.05, select_after=0.8)
    model = build_model(6, 2, "abmil", embed=[4], seed=0)
    history = fit(model, bags, bags[:4], settings)
    assert history.best_epoch == 5
    last = build_model(6, 2, "abmil", embed=[4], seed=0)
    fit(last, bags, recipe=Recipe(epochs=5, learning_rate=0.05))
    for actual, expected in zip(model.parameters(), last.parameters(), strict=True):
        assert torch.equal(actual, expected)


def test_files_of_a_recipe_without_the_choice_are_as_before() -> None:
    assert "select_after" not in Recipe().to_json()
    assert recipe("dtfd").to_json()["select_after"] == 0.8
