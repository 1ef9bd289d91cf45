from __future__ import annotations

import numpy as np
import pytest
import torch

from scmil.bags.bag import Bag
from scmil.training.baseline import STRENGTHS, choose_strength, fit_baseline, mean_and_max


def drawn(seed: int = 0, classes: int = 2) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    labels = np.arange(60) % classes
    return generator.normal(size=(60, 6)) + 1.5 * np.eye(6)[labels], labels


@pytest.mark.parametrize("classes", [2, 3])
def test_it_says_what_scikit_learn_says(classes: int) -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, labels = drawn(classes=classes)
    theirs = (
        make_pipeline(StandardScaler(), LogisticRegression(C=0.1)).fit(x, labels).predict_proba(x)
    )
    ours = fit_baseline(x, labels.tolist(), classes, strength=0.1).predict(x)
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_a_bag_becomes_the_mean_and_the_maximum_of_each_feature() -> None:
    bags = [Bag(str(i), torch.randn(4 + i, 3)) for i in range(3)]
    expected = [[*bag.features.numpy().mean(0), *bag.features.numpy().max(0)] for bag in bags]
    np.testing.assert_allclose(mean_and_max(bags), expected, rtol=1e-5)


def test_a_class_that_no_bag_has_gets_no_chance() -> None:
    x, labels = drawn()
    p = fit_baseline(x, labels.tolist(), classes=3, strength=1.0).predict(x)
    assert p.shape == (60, 3)
    assert (p[:, 2] == 0).all()
    np.testing.assert_allclose(p.sum(1), 1)


def test_a_constant_feature_changes_nothing() -> None:
    x, labels = drawn()
    wider = np.concatenate([x, np.full((60, 1), 7.0)], 1)
    one, other = (fit_baseline(part, labels.tolist(), 2, 0.1).predict(part) for part in (x, wider))
    np.testing.assert_allclose(one, other, atol=1e-4)


def test_strength_is_chosen_on_the_validation_part() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(60, 200))  # many features, few bags: a weak penalty learns the noise
    labels = np.arange(60) % 2
    x[:, 0] += labels
    chosen = choose_strength(x, labels, range(40), range(40, 60), classes=2)
    assert chosen in STRENGTHS
    scores = {}
    for strength in STRENGTHS:
        p = fit_baseline(x[:40], labels[:40].tolist(), 2, strength).predict(x[40:])[:, 1]
        scores[strength] = (p[labels[40:] == 1][:, None] > p[labels[40:] == 0][None]).mean()
    assert scores[chosen] == max(scores.values())


def test_order_and_number_of_instances_do_not_matter() -> None:
    x = torch.randn(7, 3)
    once, twice = mean_and_max([Bag("a", x)]), mean_and_max([Bag("a", torch.cat([x.flip(0), x]))])
    np.testing.assert_allclose(once, twice, atol=1e-6)


def test_parameters_of_two_and_of_three_classes() -> None:
    counts = []
    for classes in (2, 3):
        x, labels = drawn(classes=classes)
        fitted = fit_baseline(x, labels.tolist(), classes, 1.0)
        counts.append((fitted.parameters, fitted.multiply_adds))
    assert counts == [(7, 6), (21, 18)]
