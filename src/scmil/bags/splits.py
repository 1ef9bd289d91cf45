"""Random training, validation and test splits, stratified by class and grouped by patient."""

from __future__ import annotations

import csv
import difflib
import os
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scmil.core.atomic import write_atomically
from scmil.core.tables import column_names, csv_bytes, unescape_formula
from scmil.errors import SplitError

Labels: TypeAlias = Sequence[int | None]
Groups: TypeAlias = Sequence[str | None]
COLUMNS = ("repeat", "fold", "part", "bag")
SEEDS_A_REPEAT = 1000


class Split(NamedTuple):
    """Positions of the training and test bags, and of those that choose epoch and threshold."""

    train: tuple[int, ...]
    test: tuple[int, ...]
    valid: tuple[int, ...] = ()


def stratified_folds(
    labels: Labels, folds: int, seed: int, groups: Groups | None = None
) -> list[Split]:
    """Return stratified cross-validation folds: every bag is in one test split.

    With `groups` (the patient of each bag, or None) the bags of a patient stay together. Patients
    with many bags are assigned first, each to the fold with the fewest bags of the patient's main
    class.

    >>> [split.test for split in stratified_folds([0, 0, 1, 1], folds=2, seed=0)]
    [(0, 2), (1, 3)]
    >>> patients = ["ann", "ann", None, "bob", "cy"]
    >>> [split.test for split in stratified_folds([0, 0, 0, 1, 1], 2, seed=0, groups=patients)]
    [(0, 1, 4), (2, 3)]
    """
    values = _check_labels(labels)
    most, noun = _count_rarest(values, groups)
    if not 2 <= folds <= most:
        raise SplitError(
            f"folds = {folds}: use at least 2, and at most {most}, the number of {noun} of the "
            "rarest class."
        )
    subsets = _assign(values, groups, [1 / folds] * folds, seed)
    everyone = set(range(len(values)))
    return [Split(tuple(sorted(everyone.difference(subset))), subset) for subset in subsets]


def repeated_folds(
    labels: Labels, folds: int, repeats: int, seed: int, groups: Groups | None = None
) -> list[list[Split]]:
    """Return new folds for every repeat: repeat r has the seed `seed + 1000 r`.

    Seeds that differ by less than 1000 share no repeat.

    >>> repeats = repeated_folds([0, 0, 1, 1], folds=2, repeats=5, seed=0)
    >>> len(repeats), repeats[0] == stratified_folds([0, 0, 1, 1], folds=2, seed=0)
    (5, True)
    """
    if repeats < 1:
        raise SplitError(f"repeats = {repeats}: use at least 1.")
    return [
        stratified_folds(labels, folds, seed + SEEDS_A_REPEAT * repeat, groups)
        for repeat in range(repeats)
    ]


def holdout(
    labels: Labels,
    test: float = 0.2,
    valid: float = 0.0,
    seed: int = 0,
    groups: Groups | None = None,
) -> Split:
    """Return one stratified split; the test split, and validation if requested, have every class.

    >>> split = holdout([0] * 10 + [1] * 5, test=0.2, valid=0.2)
    >>> len(split.train), len(split.test), len(split.valid)
    (9, 3, 3)
    """
    if not (0 < test < 1 and 0 <= valid < 1 and test + valid < 1):
        raise SplitError(
            f"test = {test}, valid = {valid}: use fractions between 0 and 1 whose sum is below 1, "
            "so that bags are left to train on."
        )
    shares = [1 - test - valid, test, valid] if valid else [1 - test, test]
    return Split(*_assign_all_classes(_check_labels(labels), groups, shares, seed))


def with_validation(
    split: Split, labels: Labels, fraction: float, seed: int, groups: Groups | None = None
) -> Split:
    """Move a fraction of the training bags to a validation split that has every class.

    The test bags do not change.

    >>> split = Split(train=(0, 1, 2, 3, 4, 5), test=(6, 7))
    >>> with_validation(split, [0, 1] * 4, fraction=0.34, seed=0)
    Split(train=(1, 2, 4, 5), test=(6, 7), valid=(0, 3))
    """
    if split.valid:
        raise SplitError(
            f"the split already has {len(split.valid)} validation bags. Give a split without them."
        )
    if not 0 < fraction < 1:
        raise SplitError(f"fraction = {fraction}: use a number between 0 and 1.")
    values = _check_labels([labels[i] for i in split.train])
    train_groups = None if groups is None else [groups[i] for i in split.train]
    train, valid = _assign_all_classes(values, train_groups, [1 - fraction, fraction], seed)
    return Split(
        tuple(split.train[i] for i in train), split.test, tuple(split.train[i] for i in valid)
    )


def check_split(split: Split, ids: Sequence[str], groups: Groups | None = None) -> None:
    """Raise if training or test bags are missing, or a bag or patient is in two subsets.

    >>> check_split(Split(train=(0,), test=(1,)), ids=["a", "b"], groups=["ann", "ann"])
    Traceback (most recent call last):
    ...
    scmil.errors.SplitError: patient 'ann' is in both train and test (slides a, b). Split by
    patient: groups = the patient of every bag.
    """
    subsets = split._asdict()
    for name, subset in subsets.items():
        _check_subset(name, subset, ids)
    for (one, first), (other, second) in combinations(subsets.items(), 2):
        shared = sorted(set(first) & set(second))
        if shared:
            raise SplitError(
                f"bag {ids[shared[0]]!r} is in both {one} and {other}. Each bag must be in one of "
                "them only."
            )
        if groups is not None:
            _check_patients(one, first, other, second, ids, groups)


def _check_subset(name: str, subset: Sequence[int], ids: Sequence[str]) -> None:
    """Raise if a subset of a split is empty, has invalid positions, or has a bag twice."""
    if not subset and name != "valid":
        raise SplitError(f"{name} is empty. A split needs bags to train on and bags to test on.")
    outside = [i for i in subset if not 0 <= i < len(ids)]
    if outside:
        raise SplitError(
            f"{name} has the position {outside[0]}, but there are {len(ids)} bags. Make the split "
            "for these bags."
        )
    if len(set(subset)) < len(subset):
        raise SplitError(f"{name} has bag {ids[_first_repeated(subset)]!r} twice. Remove one.")


def save_splits(
    path: str | os.PathLike[str], splits: Sequence[Sequence[Split]], ids: Sequence[str]
) -> None:
    """Write the splits of every repeat as a CSV file: repeat, fold, part, bag; one line per bag."""
    _positions(ids)
    for split in (split for folds in splits for split in folds):
        check_split(split, ids)
    rows = (
        (repeat, fold, name, ids[i])
        for repeat, folds in enumerate(splits)
        for fold, split in enumerate(folds)
        for name, subset in split._asdict().items()
        for i in subset
    )
    write_atomically(Path(path), csv_bytes([COLUMNS, *rows], errors="surrogateescape"))


def load_splits(path: str | os.PathLike[str], ids: Sequence[str]) -> list[list[Split]]:
    """Read a file of `save_splits`, or another table with its columns, as repeats of folds."""
    positions = _positions(ids)
    repeats: dict[int, dict[int, dict[int, str]]] = {}  # repeat, fold, position: subset
    for where, row in _read_split_rows(path):
        repeat, fold = (_parse_number(row[column], column, where) for column in COLUMNS[:2])
        if row["part"] not in Split._fields:
            raise SplitError(f"{where}: part is {row['part']!r}, but must be train, test or valid.")
        if row["bag"] not in positions:
            near = difflib.get_close_matches(row["bag"], ids, n=1)
            hint = (
                f"Did you mean {near[0]!r}?"
                if near
                else f"The ids of the bags are such as {', '.join(ids[:3])}."
            )
            raise SplitError(f"{where}: unknown bag {row['bag']!r}. {hint}")
        bags = repeats.setdefault(repeat, {}).setdefault(fold, {})
        if positions[row["bag"]] in bags:
            raise SplitError(
                f"{where}: bag {row['bag']!r} is listed twice in fold {fold} of repeat {repeat}. "
                "Remove one line."
            )
        bags[positions[row["bag"]]] = row["part"]
    if not repeats:
        raise SplitError(f"{path}: the table has a header but no rows. Add a row for each bag.")
    for repeat, folds in repeats.items():
        for fold, bags in folds.items():
            for name in {"train", "test"}.difference(bags.values()):
                raise SplitError(
                    f"{path}: fold {fold} of repeat {repeat} has no line with part = {name}. Each "
                    "fold needs train and test."
                )
    return [
        [_make_split(folds[fold]) for fold in sorted(folds)] for _, folds in sorted(repeats.items())
    ]


def _check_labels(labels: Labels) -> NDArray[np.int64]:
    """Return the labels as an array, or raise if one is unknown or there is only one class."""
    unlabelled = [i for i, label in enumerate(labels) if label is None]
    if unlabelled:
        raise SplitError(
            f"{len(unlabelled)} of {len(labels)} bags have no label; the first is at position "
            f"{unlabelled[0]}. Bags are split by class: leave out those without a label."
        )
    values = np.asarray(labels, dtype=np.int64)
    if len(np.unique(values)) < 2:
        raise SplitError(
            f"{len(values)} bags with fewer than 2 classes. Add bags of another class."
        )
    return values


def _group_bags(groups: Groups | None, bags: int) -> list[list[int]]:
    """Return the positions of bags that stay together; a bag without a patient is a group."""
    if groups is None:
        return [[i] for i in range(bags)]
    if len(groups) != bags:
        raise SplitError(
            f"{len(groups)} groups for {bags} bags. Give one group for every bag, None if unknown."
        )
    units: dict[str | int, list[int]] = {}
    for i, group in enumerate(groups):
        units.setdefault(i if group is None else group, []).append(i)
    return list(units.values())


def _count_rarest(values: NDArray[np.int64], groups: Groups | None) -> tuple[int, str]:
    """Return the number of bags or patients of the rarest class, and which of them it counts."""
    classes = [
        value for unit in _group_bags(groups, len(values)) for value in np.unique(values[unit])
    ]
    counts = np.unique(classes, return_counts=True)[1]
    return int(counts.min()), "bags" if groups is None else "patients"


def _assign_all_classes(
    values: NDArray[np.int64], groups: Groups | None, shares: list[float], seed: int
) -> list[tuple[int, ...]]:
    """Divide bags by shares, or raise if a class is too rare to be in every subset."""
    most, noun = _count_rarest(values, groups)
    if most < len(shares):
        raise SplitError(
            f"{len(shares)} splits, but the rarest class has only {most} {noun}, and every split "
            "needs one. Leave the class out, or use fewer splits."
        )
    return _assign(values, groups, shares, seed)


def _assign(
    values: NDArray[np.int64], groups: Groups | None, shares: list[float], seed: int
) -> list[tuple[int, ...]]:
    """Divide bags by shares, class by class.

    A group goes to the subset whose count of the class, with half of the group, is the lowest
    relative to its share.
    """
    units = _group_bags(groups, len(values))
    classes = np.unique(values)
    content = np.array(
        [[np.count_nonzero(values[unit] == value) for value in classes] for unit in units]
    )
    share, generator = np.array(shares), np.random.default_rng(seed)
    subsets: list[list[int]] = [[] for _ in shares]
    held = np.zeros((len(shares), len(classes)))
    for column in range(len(classes)):
        order = generator.permutation(np.flatnonzero(content.argmax(1) == column))
        order = order[np.argsort(-content[order].sum(1), kind="stable")]
        for assigned, unit in enumerate(order):
            level = (held[:, column] + content[unit, column] / 2) / share
            without = held[:, column] == 0
            # The last units are reserved for subsets without the class.
            if len(order) - assigned <= without.sum():
                level[~without] = np.inf
            # Of equal subsets the one with fewer bags, then the first.
            chosen = np.lexsort((held.sum(1) / share, level))[0]
            subsets[chosen] += units[unit]
            held[chosen] += content[unit]
    if (held == 0).any():
        value = classes[(held == 0).any(0)][0]
        raise SplitError(
            f"a split would have no bag of class {value}, because its patients have mostly bags of "
            "other classes. Use fewer folds."
        )
    return [tuple(sorted(subset)) for subset in subsets]


def _check_patients(
    one: str,
    first: tuple[int, ...],
    other: str,
    second: tuple[int, ...],
    ids: Sequence[str],
    groups: Groups,
) -> None:
    """Raise if a patient has bags in both subsets."""
    here = {groups[i]: ids[i] for i in first if groups[i] is not None}
    for i in second:
        if groups[i] in here:
            raise SplitError(
                f"patient {groups[i]!r} is in both {one} and {other} (slides {here[groups[i]]}, "
                f"{ids[i]}). Split by patient: groups = the patient of every bag."
            )


def _first_repeated(subset: Sequence[int]) -> int:
    seen: set[int] = set()
    return next(i for i in subset if i in seen or seen.add(i))  # type: ignore[func-returns-value]


def _positions(ids: Sequence[str]) -> dict[str, int]:
    """Return the position of each id, or raise if two bags have the same id."""
    positions = {bag: i for i, bag in enumerate(ids)}
    if len(positions) < len(ids):
        twice = next(bag for i, bag in enumerate(ids) if positions[bag] != i)
        raise SplitError(
            f"two bags have the id {twice!r}. A split file needs a different id for every bag."
        )
    return positions


def _read_split_rows(path: str | os.PathLike[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the rows of the table, each with its file and line for messages."""
    try:
        with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            table = csv.DictReader(file)
            header = table.fieldnames or []
            missing = [column for column in COLUMNS if column not in header]
            if missing:
                raise SplitError(
                    f"{path}, line 1: no column {', '.join(missing)}. Expected "
                    f"{','.join(COLUMNS)}; found {column_names(header)}."
                )
            for row in table:
                where = f"{path}, line {table.line_num}"
                if any(row[column] is None for column in COLUMNS):
                    raise SplitError(
                        f"{where}: fewer values than columns. Expected {','.join(COLUMNS)}."
                    )
                yield where, {**row, "bag": unescape_formula(row["bag"])}
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SplitError(
            f"{path}: cannot be read as a table of splits: {error}. Write it again."
        ) from error


def _parse_number(text: str, column: str, where: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise SplitError(f"{where}: {column} is {text!r}, but must be an integer from 0.")
    return int(text)


def _make_split(bags: dict[int, str]) -> Split:
    return Split(
        **{name: tuple(i for i, part in bags.items() if part == name) for name in Split._fields}
    )
