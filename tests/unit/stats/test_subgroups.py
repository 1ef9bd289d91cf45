"""Metrics of subgroups, and gaps that are found if they are there and only then."""

from __future__ import annotations

import numpy as np
import pytest

from scmil.errors import DataError
from scmil.stats.metrics import auc
from scmil.stats.small_samples import proportion_interval
from scmil.stats.subgroups import MISSING, SlideOutcomes, compare_subgroups


def outcomes(seed: int, slides: int = 120, shift: np.ndarray | float = 2.0) -> SlideOutcomes:
    """Scores of slides of two classes; `shift` is the distance of the classes."""
    labels = np.arange(slides) % 2
    scores = np.random.default_rng(seed).normal(size=slides) + shift * (labels - 0.5)
    p = 1 / (1 + np.exp(-scores))
    right = ((p > 0.5) == labels).astype(float)
    return SlideOutcomes(labels, right, np.stack([1 - p, p], 1), [None] * slides)


def test_the_metrics_of_a_group_are_those_of_its_slides() -> None:
    tested = outcomes(0)
    site = [("a", "b", "c")[i // 2 % 3] for i in range(120)]
    table = compare_subgroups(tested, {"site": site}, permutations=10)
    rows = np.array([name == "b" for name in site])
    group = next(group for group in table.groups if group.name == "b")
    assert (group.slides, group.patients, group.small) == (40, 40, False)
    labels, right = tested.labels[rows], tested.right[rows]
    assert group.metrics["accuracy"].value == right.mean()
    assert group.metrics["accuracy"].interval == proportion_interval(right)
    assert group.metrics["auc"].value == auc(labels, tested.probabilities[rows])
    assert group.metrics["sensitivity"].value == right[labels == 1].mean()
    assert group.metrics["specificity"].interval == proportion_interval(right[labels == 0])


def test_the_gap_is_between_the_best_and_the_worst_group_and_p_is_adjusted() -> None:
    bad = np.array([i // 2 % 3 == 2 for i in range(120)])
    tested = outcomes(1, shift=np.where(bad, 0.0, 4.0))
    columns = {
        "site": ["abc"[i // 2 % 3] for i in range(120)],
        "sex": ["fm"[i // 6 % 2] for i in range(120)],
    }
    table = compare_subgroups(tested, columns, permutations=400)
    assert table.worst is not None
    assert (table.worst.column, table.worst.worst) == ("site", "c")
    values = [group.metrics["auc"].value for group in table.groups if group.column == "site"]
    gap = next(gap for gap in table.gaps if (gap.column, gap.metric) == ("site", "auc"))
    assert gap.difference == pytest.approx(max(values) - min(values))
    assert gap.p == pytest.approx(1 / 401)
    assert gap.adjusted == pytest.approx(8 / 401)  # 2 columns x 4 metrics
    assert all(gap.adjusted > 0.3 for gap in table.gaps if gap.column == "sex")


def test_without_a_gap_p_values_are_not_small_too_often() -> None:
    site = ["abc"[i // 2 % 3] for i in range(90)]
    p = [
        [gap.p for gap in compare_subgroups(outcomes(seed, 90), {"site": site}, 30).gaps]
        for seed in range(20)
    ]
    assert (np.array(p) < 0.1).mean() < 0.16


def test_a_different_share_of_classes_is_no_gap() -> None:
    """All positives are found and a third of the negatives is not, in both groups; their
    accuracies differ because one has more negatives.
    """
    labels = np.array([1] * 60 + [0] * 12 + [1] * 12 + [0] * 60)
    right = np.where((labels == 0) & (np.arange(144) % 3 == 0), 0.0, 1.0)
    p = np.where(labels == 1, 0.9, 0.1 + 0.5 * (1 - right))
    tested = SlideOutcomes(labels, right, np.stack([1 - p, p], 1), [None] * 144)
    table = compare_subgroups(tested, {"site": ["a"] * 72 + ["b"] * 72}, permutations=200)
    gap = next(gap for gap in table.gaps if gap.metric == "accuracy")
    assert gap.difference > 0.15
    assert gap.p > 0.3


def test_slides_of_a_patient_stay_together() -> None:
    """One patient with many wrong slides is one exception, not many."""
    labels = np.arange(200) % 2
    patients = [f"p{i % 2}-{i // 20}" for i in range(200)]  # 10 slides each
    right = np.array([0.0 if name in ("p0-0", "p1-0") else 1.0 for name in patients])
    p = np.where(labels == 1, 0.9, 0.1)
    site = ["a" if i < 100 else "b" for i in range(200)]
    together = SlideOutcomes(labels, right, np.stack([1 - p, p], 1), patients)
    alone = SlideOutcomes(labels, right, together.probabilities, [None] * 200)
    by_patient, by_slide = (
        next(
            gap.p
            for gap in compare_subgroups(each, {"site": site}, 200).gaps
            if gap.metric == "accuracy"
        )
        for each in (together, alone)
    )
    assert by_slide < 0.02 < 0.2 < by_patient


def test_small_groups_and_missing_values_are_marked_and_not_compared() -> None:
    tested = outcomes(2, slides=60)
    site = ["a"] * 28 + ["b"] * 24 + ["c"] * 4 + [None] * 4
    table = compare_subgroups(tested, {"site": site}, permutations=10)
    assert {group.name: group.small for group in table.groups} == {
        "a": False,
        "b": False,
        "c": True,
        MISSING: True,
    }
    assert {name for gap in table.gaps for name in (gap.best, gap.worst)} == {"a", "b"}
    few = compare_subgroups(tested, {"site": ["a"] * 56 + ["b"] * 4}, permutations=10)
    assert (few.gaps, few.not_compared, few.worst) == ((), ("site",), None)


def test_three_classes_have_a_balanced_accuracy() -> None:
    generator = np.random.default_rng(0)
    labels = np.arange(90) % 3
    p = generator.dirichlet([1, 1, 1], size=90)
    tested = SlideOutcomes(labels, (p.argmax(1) == labels).astype(float), p, [None] * 90)
    table = compare_subgroups(tested, {"sex": ["fm"[i // 45] for i in range(90)]}, 10)
    group = table.groups[0]
    recalls = [tested.right[:45][labels[:45] == c].mean() for c in range(3)]
    assert group.metrics["balanced_accuracy"].value == pytest.approx(np.mean(recalls))
    assert set(group.metrics) == {"accuracy", "auc", "balanced_accuracy"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([str(i) for i in range(120)], "age has 120 different values, and at most 12 groups"),
        (["x"] * 120, "age has 1 different values in the tested slides"),
        (["x", "y"], "age: 2 values for 120 slides"),
    ],
)
def test_columns_that_are_no_groups_are_rejected(values: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        compare_subgroups(outcomes(0), {"age": values})
