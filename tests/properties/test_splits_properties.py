from __future__ import annotations

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scmil.bags.splits import Split, check_split, holdout, stratified_folds, with_validation
from scmil.errors import SplitError

seeds = st.integers(0, 10_000)
patients = st.one_of(st.none(), st.sampled_from([f"patient {i}" for i in range(15)]))


def shuffled(counts: list[int], seed: int) -> list[int]:
    """Labels of bags: so many of each class."""
    return np.random.default_rng(seed).permutation(np.repeat(range(len(counts)), counts)).tolist()


def counts(least: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(least, 30), min_size=2, max_size=3)


@settings(deadline=None)
@given(counts(10), st.integers(2, 10), seeds)
def test_folds_are_a_partition_with_even_classes(bags: list[int], folds: int, seed: int) -> None:
    labels = shuffled(bags, seed)
    splits = stratified_folds(labels, folds, seed)
    assert sorted(i for split in splits for i in split.test) == list(range(len(labels)))
    for split in splits:
        assert sorted(split.train + split.test) == list(range(len(labels)))
    for value in set(labels):
        counts = [sum(labels[i] == value for i in split.test) for split in splits]
        assert max(counts) - min(counts) <= 1
    sizes = [len(split.test) for split in splits]
    assert max(sizes) - min(sizes) <= 1
    assert splits == stratified_folds(labels, folds, seed)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 1), patients), min_size=6, max_size=60),
    st.integers(2, 4),
    seeds,
)
def test_patients_never_cross_folds(
    bags: list[tuple[int, str | None]], folds: int, seed: int
) -> None:
    labels, groups = [label for label, _ in bags], [group for _, group in bags]
    try:
        splits = stratified_folds(labels, folds, seed, groups)
    except SplitError:
        assume(False)
    assert sorted(i for split in splits for i in split.test) == list(range(len(bags)))
    for split in splits:
        check_split(split, [str(i) for i in range(len(bags))], groups)
        assert {labels[i] for i in split.test} == {labels[i] for i in split.train} == {0, 1}
    assert splits == stratified_folds(labels, folds, seed, groups)


@settings(deadline=None)
@given(st.lists(st.integers(1, 4), min_size=8, max_size=24), st.integers(2, 4), seeds)
def test_folds_of_whole_patients_differ_by_one_patient_at_most(
    sizes: list[int], folds: int, seed: int
) -> None:
    owner = np.repeat(np.arange(len(sizes)), sizes)
    # Every patient is of one class.
    labels, groups = (owner % 2).tolist(), [f"patient {i}" for i in owner]
    splits = stratified_folds(labels, folds, seed, groups)
    for value in (0, 1):
        counts = [sum(labels[i] == value for i in split.test) for split in splits]
        assert max(counts) - min(counts) <= max(sizes)


@settings(deadline=None)
@given(counts(3), st.floats(0.05, 0.5), st.floats(0.05, 0.4), seeds)
def test_shares_are_those_asked_for(bags: list[int], test: float, valid: float, seed: int) -> None:
    labels = shuffled(bags, seed)
    split = holdout(labels, test, valid, seed)
    check_split(split, [str(i) for i in range(len(labels))])
    assert sorted(split.train + split.test + split.valid) == list(range(len(labels)))
    for value in set(labels):
        for part, share in (
            (split.test, test),
            (split.valid, valid),
            (split.train, 1 - test - valid),
        ):
            count = sum(labels[i] == value for i in part)
            assert count >= 1
            assert abs(count - share * bags[value]) < 2


@settings(deadline=None)
@given(counts(4), st.floats(0.05, 0.9), seeds)
def test_validation_has_every_class_and_takes_from_training_alone(
    bags: list[int], fraction: float, seed: int
) -> None:
    labels = shuffled(bags, seed)
    plain = stratified_folds(labels, 2, seed)[0]
    split: Split = with_validation(plain, labels, fraction, seed)
    check_split(split, [str(i) for i in range(len(labels))])
    assert sorted(split.train + split.valid) == list(plain.train)
    assert split.test == plain.test
    assert {labels[i] for i in split.valid} == {labels[i] for i in split.train} == set(labels)
    assert split == with_validation(plain, labels, fraction, seed)
