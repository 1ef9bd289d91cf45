from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn import metrics as sklearn

from scmil.errors import DataError
from scmil.stats import metrics

Array = NDArray[np.float64]


def bags(c: int, b: int = 60, seed: int = 0) -> tuple[NDArray[np.int64], Array]:
    """Labels of all classes and probabilities that know something of them, with many ties."""
    generator = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(c), generator.integers(c, size=b - c)])
    votes = generator.integers(1, 6, size=(b, c)) + 2 * np.eye(c, dtype=int)[labels]
    return labels, votes / votes.sum(1, keepdims=True)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("c", [2, 3, 5])
def test_every_metric_is_that_of_scikit_learn(c: int, seed: int) -> None:
    labels, p = bags(c, seed=seed)
    binary = c == 2
    decided = (p[:, 1] > 0.4).astype(int) if binary else p.argmax(1)
    expected = {
        "accuracy": sklearn.accuracy_score(labels, decided),
        "auc": sklearn.roc_auc_score(labels, p[:, 1] if binary else p, multi_class="ovr"),
        "balanced_accuracy": sklearn.balanced_accuracy_score(labels, decided),
        "f1": sklearn.f1_score(labels, decided, average="binary" if binary else "macro"),
        "brier": ((p - np.eye(c)[labels]) ** 2).sum() / len(p) / (2 if binary else 1),
    }
    if binary:
        assert expected["brier"] == pytest.approx(sklearn.brier_score_loss(labels, p[:, 1]))
    scores = metrics.score_all(labels, p, threshold=0.4)
    assert {name: scores[name] for name in expected} == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("c", [2, 4])
def test_all_at_once_are_those_one_by_one(c: int) -> None:
    labels, p = bags(c)
    one_by_one = {
        "accuracy": metrics.accuracy(labels, p, 0.3),
        "auc": metrics.auc(labels, p),
        "balanced_accuracy": metrics.balanced_accuracy(labels, p, 0.3),
        "f1": metrics.f1(labels, p, 0.3),
        "brier": metrics.brier(labels, p),
        "calibration_error": metrics.calibration_error(labels, p),
    }
    assert metrics.score_all(labels, p, 0.3) == one_by_one
    assert tuple(one_by_one) == metrics.METRICS


def test_what_is_better_is_known_for_every_metric() -> None:
    labels, good = bags(2, b=400)
    bad = good[:, ::-1]
    better, worse = metrics.score_all(labels, good), metrics.score_all(labels, bad)
    assert {
        name: better[name] > worse[name] for name in metrics.METRICS
    } == metrics.LARGER_IS_BETTER


def test_one_class_has_no_auc_but_all_else() -> None:
    scores = metrics.score_all([1, 1], [[0.2, 0.8], [0.6, 0.4]])
    assert np.isnan(scores.pop("auc"))
    assert scores == pytest.approx(
        {
            "accuracy": 0.5,
            "balanced_accuracy": 0.5,
            "f1": 2 / 3,
            "brier": 0.2,
            "calibration_error": 0.4,
        }
    )
    assert np.isnan(metrics.auc([2, 2], [[0.2, 0.3, 0.5]] * 2))


def test_a_class_that_is_absent_has_no_say_in_the_mean() -> None:
    labels, p = bags(3)
    present = labels != 2
    expected = [sklearn.roc_auc_score(labels[present] == k, p[present, k]) for k in (0, 1)]
    assert metrics.auc(labels[present], p[present]) == pytest.approx(np.mean(expected))
    assert metrics.balanced_accuracy([0, 1], [[0.9, 0.1, 0], [0.9, 0.1, 0]]) == 0.5
    assert metrics.f1([0, 0], [[0.9, 0.1], [0.8, 0.2]]) == 0


def test_many_scorings_at_once_are_each_on_its_own() -> None:
    generator = np.random.default_rng(1)
    labels, scores = generator.integers(2, size=(7, 30)), generator.integers(12, size=(7, 30)) / 11
    labels[3] = 1
    own = [metrics.auc(y, np.stack([1 - s, s], 1)) for y, s in zip(labels, scores)]
    np.testing.assert_array_equal(metrics.auc_many(labels, scores), own)
    shared = [sklearn.roc_auc_score(labels[0], s) for s in scores]
    np.testing.assert_allclose(metrics.auc_many(labels[0], scores), shared, rtol=1e-12)
    right = [metrics.accuracy(labels[0], np.stack([1 - s, s], 1), 0.4) for s in scores]
    np.testing.assert_array_equal(metrics.accuracy_many(labels[0], scores, 0.4), right)


def test_calibration_is_measured_in_ten_bins() -> None:
    p1 = np.array([0.05, 0.05, 0.95, 0.95, 0.95, 1.0, 0.31, 0.39])
    labels = np.array([0, 1, 1, 1, 0, 1, 0, 0])
    gaps = [abs(0.1 - 1), abs(0.95 * 3 + 1 - 3), abs(0.31 + 0.39)]  # bins 0, 9 and 3
    assert metrics.calibration_error(labels, np.stack([1 - p1, p1], 1)) == pytest.approx(
        sum(gaps) / 8
    )


def test_calibration_of_more_classes_is_that_of_the_likeliest() -> None:
    p = [[0.8, 0.1, 0.1], [0.8, 0.1, 0.1], [0.2, 0.2, 0.6]]
    assert metrics.calibration_error([0, 1, 2], p) == pytest.approx(
        (abs(1.6 - 1) + abs(0.6 - 1)) / 3
    )


def test_the_threshold_decides_between_two_classes_only() -> None:
    assert metrics.decide([[0.5, 0.5], [0.49, 0.51]]).tolist() == [0, 1]
    assert metrics.decide([[0.2, 0.5, 0.3], [0.1, 0.2, 0.7]], threshold=0.9).tolist() == [1, 2]


def test_the_youden_threshold_is_the_best_of_the_roc_curve() -> None:
    labels, p = bags(2, b=200)
    scores = p[:, 1]
    false_positive, true_positive, _ = sklearn.roc_curve(labels, scores)
    threshold = metrics.youden_threshold(labels, scores)
    j = (scores[labels == 1] > threshold).mean() - (scores[labels == 0] > threshold).mean()
    assert j == pytest.approx((true_positive - false_positive).max())


@pytest.mark.parametrize(
    ("labels", "scores", "threshold"),
    [
        ([0, 1], [0.2, 0.4], 0.3),
        ([0, 1, 0, 1], [0.1, 0.2, 0.4, 0.8], 0.6),  # 0.15 is as good, but farther from 0.5
        ([1, 1], [0.2, 0.4], 0.5),
        ([0, 1], [0.7, 0.7], 0.5),  # all in one class is all that can be done
        ([1, 0], [0.6, 0.8], 0.5),  # the wrong way round: the same
        ([1, 0], [0.1, 0.3], 0.5),
    ],
)
def test_the_youden_threshold_of_small_examples(
    labels: list[int], scores: list[float], threshold: float
) -> None:
    assert metrics.youden_threshold(labels, scores) == pytest.approx(threshold)


def test_neighbouring_floats_are_still_separated() -> None:
    low = 0.5
    for _ in range(3):
        high = np.nextafter(low, 1)
        assert low <= metrics.youden_threshold([0, 1], [low, high]) < high
        low = float(high)


@pytest.mark.parametrize(
    ("labels", "probabilities", "message"),
    [
        ([0, 1], [[0.5, 0.5]], r"labels \(2,\) and probabilities \(1, 2\)"),
        ([0], [[1.0]], r"b > 0 and c > 1"),
        ([], np.zeros((0, 2)), r"b > 0 and c > 1"),
        ([0, 1], [[0.5, 0.5], [np.nan, 0.5]], "1 of 2 bags have a probability that is not finite"),
        ([0, 2], [[0.5, 0.5]] * 2, "integers from 0 to 1"),
        ([0, -1], [[0.5, 0.5]] * 2, "integers from 0 to 1"),
        ([0.0, 0.5], [[0.5, 0.5]] * 2, "integers from 0 to 1"),
    ],
)
@pytest.mark.parametrize(
    "metric", [metrics.score_all, metrics.auc, metrics.accuracy, metrics.brier]
)
def test_what_cannot_be_scored_raises(
    metric: Callable[..., object],
    labels: list[float],
    probabilities: list[list[float]],
    message: str,
) -> None:
    with pytest.raises(DataError, match=message):
        metric(labels, probabilities)


def test_scorings_that_do_not_fit_raise() -> None:
    with pytest.raises(DataError, match=r"labels \(2,\) and scores \(1, 3\)"):
        metrics.auc_many([0, 1], [[0.1, 0.2, 0.3]])
    with pytest.raises(DataError, match="1 of 2 scores are not finite"):
        metrics.youden_threshold([0, 1], [0.5, np.inf])
    with pytest.raises(DataError, match="labels must be 0 or 1"):
        metrics.accuracy_many([0, 2], [[0.5, 0.5]])
