"""Who trains and who tests: stratified by class, whole patients on one side, drawn from a seed."""

from __future__ import annotations

import csv
import difflib
import io
import os
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scmil.errors import SplitError
from scmil.core.files import column_names, no_formula, unquoted, write_atomically

Labels: TypeAlias = Sequence[int | None]
Groups: TypeAlias = Sequence[str | None]
COLUMNS = ("repeat", "fold", "part", "bag")
SEEDS_A_REPEAT = 1000


class Split(NamedTuple):
    """Positions of the bags to train on, to test on, and to choose the epoch or the threshold on."""

    train: tuple[int, ...]
    test: tuple[int, ...]
    valid: tuple[int, ...] = ()


def stratified_folds(labels: Labels, folds: int, seed: int, groups: Groups | None = None) -> list[Split]:
    """Deal the bags of each class to the folds in turn, in an order drawn from the seed: every bag is tested once.

    With `groups` (the patient of each bag, or None) a patient's bags stay together: patients are dealt, big ones first, each
    to the fold that has the fewest bags of the patient's main class.

    >>> [split.test for split in stratified_folds([0, 0, 1, 1], folds=2, seed=0)]
    [(0, 2), (1, 3)]
    >>> [split.test for split in stratified_folds([0, 0, 0, 1, 1], 2, seed=0, groups=["ann", "ann", None, "bob", "cy"])]
    [(0, 1, 4), (2, 3)]
    """
    values = _checked(labels)
    most, noun = _rarest(values, groups)
    if not 2 <= folds <= most:
        raise SplitError(f"folds = {folds}: at least 2, and at most {most}, the number of {noun} of the rarest class.")
    parts = _deal(values, groups, [1 / folds] * folds, seed)
    everyone = set(range(len(values)))
    return [Split(tuple(sorted(everyone.difference(part))), part) for part in parts]


def repeated_folds(
    labels: Labels, folds: int, repeats: int, seed: int, groups: Groups | None = None
) -> list[list[Split]]:
    """Deal again for every repeat: repeat r is `stratified_folds` with the seed `seed + 1000 r`.

    Seeds that are less than 1000 apart share no repeat.

    >>> repeats = repeated_folds([0, 0, 1, 1], folds=2, repeats=5, seed=0)
    >>> len(repeats), repeats[0] == stratified_folds([0, 0, 1, 1], folds=2, seed=0)
    (5, True)
    """
    if repeats < 1:
        raise SplitError(f"repeats = {repeats}: at least 1 is needed.")
    return [stratified_folds(labels, folds, seed + SEEDS_A_REPEAT * repeat, groups) for repeat in range(repeats)]


def holdout(
    labels: Labels, test: float = 0.2, valid: float = 0.0, seed: int = 0, groups: Groups | None = None
) -> Split:
    """Set one share of every class aside for the test, and one for validation if asked: each gets at least one bag.

    >>> split = holdout([0] * 10 + [1] * 5, test=0.2, valid=0.2)
    >>> len(split.train), len(split.test), len(split.valid)
    (9, 3, 3)
    """
    if not (0 < test < 1 and 0 <= valid < 1 and test + valid < 1):
        raise SplitError(f"test = {test}, valid = {valid}: shares between 0 and 1 that leave something to train on.")
    shares = [1 - test - valid, test, valid] if valid else [1 - test, test]
    return Split(*_share_out(_checked(labels), groups, shares, seed))


def with_validation(split: Split, labels: Labels, fraction: float, seed: int, groups: Groups | None = None) -> Split:
    """Take a share of the training bags, of every class at least one, for validation; the test bags stay as they are.

    >>> with_validation(Split(train=(0, 1, 2, 3, 4, 5), test=(6, 7)), [0, 1] * 4, fraction=0.34, seed=0)
    Split(train=(1, 2, 4, 5), test=(6, 7), valid=(0, 3))
    """
    if split.valid:
        raise SplitError(f"the split has {len(split.valid)} bags for validation already.")
    if not 0 < fraction < 1:
        raise SplitError(f"fraction = {fraction}: a share between 0 and 1 is needed.")
    values = _checked([labels[i] for i in split.train])
    inside = None if groups is None else [groups[i] for i in split.train]
    train, valid = _share_out(values, inside, [1 - fraction, fraction], seed)
    return Split(tuple(split.train[i] for i in train), split.test, tuple(split.train[i] for i in valid))


def check_split(split: Split, ids: Sequence[str], groups: Groups | None = None) -> None:
    """Refuse a split that leaks or misses a side: a bag in two parts, a patient in two parts, nothing to train or test.

    >>> check_split(Split(train=(0,), test=(1,)), ids=["a", "b"], groups=["ann", "ann"])
    Traceback (most recent call last):
    ...
    scmil.errors.SplitError: patient 'ann' is in both train and test (slides a, b). Split by patient: groups = the patient
    of every bag.
    """
    parts = split._asdict()
    for name, part in parts.items():
        if not part and name != "valid":
            raise SplitError(f"{name} is empty: every split needs bags to train on and bags to test on.")
        outside = [i for i in part if not 0 <= i < len(ids)]
        if outside:
            raise SplitError(f"{name} has the position {outside[0]}, but there are {len(ids)} bags.")
        if len(set(part)) < len(part):
            raise SplitError(f"{name} has bag {ids[_first_repeated(part)]!r} twice.")
    for (one, first), (other, second) in combinations(parts.items(), 2):
        shared = sorted(set(first) & set(second))
        if shared:
            raise SplitError(f"bag {ids[shared[0]]!r} is in both {one} and {other}. A bag belongs to one part.")
        if groups is not None:
            _check_patients(one, first, other, second, ids, groups)


def save_splits(path: str | os.PathLike[str], splits: Sequence[Sequence[Split]], ids: Sequence[str]) -> None:
    """Write the splits of every repeat as a table that people read too: repeat, fold, part, bag; one line a bag."""
    _positions(ids)
    for split in (split for folds in splits for split in folds):
        check_split(split, ids)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for repeat, folds in enumerate(splits):
        for fold, split in enumerate(folds):
            for name, part in split._asdict().items():
                table.writerows((repeat, fold, name, no_formula(ids[i])) for i in part)
    write_atomically(Path(path), text.getvalue().encode("utf-8", "surrogateescape"))


def load_splits(path: str | os.PathLike[str], ids: Sequence[str]) -> list[list[Split]]:
    """Read what `save_splits` wrote, or a table of the same columns from anywhere: repeats and folds by their number."""
    positions = _positions(ids)
    repeats: dict[int, dict[int, dict[int, str]]] = {}  # repeat, fold, position: part
    for where, row in _rows(path):
        repeat, fold = (_number(row[column], column, where) for column in COLUMNS[:2])
        if row["part"] not in Split._fields:
            raise SplitError(f"{where}: part is {row['part']!r}; train, test or valid is needed.")
        if row["bag"] not in positions:
            near = difflib.get_close_matches(row["bag"], ids, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Ids here are such as {', '.join(ids[:3])}."
            raise SplitError(f"{where}: unknown bag {row['bag']!r}. {hint}")
        bags = repeats.setdefault(repeat, {}).setdefault(fold, {})
        if positions[row["bag"]] in bags:
            raise SplitError(f"{where}: bag {row['bag']!r} is a second time in fold {fold} of repeat {repeat}.")
        bags[positions[row["bag"]]] = row["part"]
    if not repeats:
        raise SplitError(f"{path}: no line after the first, so no splits.")
    for repeat, folds in repeats.items():
        for fold, bags in folds.items():
            for part in {"train", "test"}.difference(bags.values()):
                raise SplitError(f"{path}: fold {fold} of repeat {repeat} has no line with part = {part}.")
    return [[_split(folds[fold]) for fold in sorted(folds)] for _, folds in sorted(repeats.items())]


def _checked(labels: Labels) -> NDArray[np.int64]:
    unlabelled = [i for i, label in enumerate(labels) if label is None]
    if unlabelled:
        raise SplitError(
            f"{len(unlabelled)} of {len(labels)} bags have no label (the first is number {unlabelled[0]}). "
            "Only labelled bags can be split by class: leave the others out."
        )
    values = np.asarray(labels, dtype=np.int64)
    if len(np.unique(values)) < 2:
        raise SplitError(f"{len(values)} bags of one class or none: at least 2 classes are needed.")
    return values


def _units(groups: Groups | None, bags: int) -> list[list[int]]:
    """Bags that must stay together."""
    if groups is None:
        return [[i] for i in range(bags)]
    if len(groups) != bags:
        raise SplitError(f"{len(groups)} groups for {bags} bags: one for every bag is needed, None if it is unknown.")
    units: dict[str | int, list[int]] = {}
    for i, group in enumerate(groups):
        units.setdefault(i if group is None else group, []).append(i)
    return list(units.values())


def _rarest(values: NDArray[np.int64], groups: Groups | None) -> tuple[int, str]:
    """The number of parts that can all have every class, and what was counted."""
    classes_met = [value for unit in _units(groups, len(values)) for value in np.unique(values[unit])]
    return int(np.unique(classes_met, return_counts=True)[1].min()), "bags" if groups is None else "patients"


def _share_out(
    values: NDArray[np.int64], groups: Groups | None, shares: list[float], seed: int
) -> list[tuple[int, ...]]:
    most, noun = _rarest(values, groups)
    if most < len(shares):
        raise SplitError(
            f"{len(shares)} parts, but only {most} {noun} of the rarest class: every part needs at least one. "
            "Leave the class out, or ask for fewer parts."
        )
    return _deal(values, groups, shares, seed)


def _deal(values: NDArray[np.int64], groups: Groups | None, shares: list[float], seed: int) -> list[tuple[int, ...]]:
    """Deal class by class: the next unit goes where its middle would lie lowest, counted in the part's share."""
    units = _units(groups, len(values))
    classes = np.unique(values)
    content = np.array([[np.count_nonzero(values[unit] == value) for value in classes] for unit in units])
    share, generator = np.array(shares), np.random.default_rng(seed)
    parts: list[list[int]] = [[] for _ in shares]
    held = np.zeros((len(shares), len(classes)))
    for column in range(len(classes)):
        order = generator.permutation(np.flatnonzero(content.argmax(1) == column))
        order = order[np.argsort(-content[order].sum(1), kind="stable")]
        for dealt, unit in enumerate(order):
            level = (held[:, column] + content[unit, column] / 2) / share
            without = held[:, column] == 0
            if len(order) - dealt <= without.sum():  # the last units are kept for parts that have none
                level[~without] = np.inf
            part = np.lexsort((held.sum(1) / share, level))[0]  # of equal parts the one with fewer bags, then the first
            parts[part] += units[unit]
            held[part] += content[unit]
    if (held == 0).any():
        value = classes[(held == 0).any(0)][0]
        raise SplitError(
            f"a part would have no bag of class {value}: its patients have mostly bags of other classes. Use fewer folds."
        )
    return [tuple(sorted(part)) for part in parts]


def _check_patients(
    one: str, first: tuple[int, ...], other: str, second: tuple[int, ...], ids: Sequence[str], groups: Groups
) -> None:
    here = {groups[i]: ids[i] for i in first if groups[i] is not None}
    for i in second:
        if groups[i] in here:
            raise SplitError(
                f"patient {groups[i]!r} is in both {one} and {other} (slides {here[groups[i]]}, {ids[i]}). "
                "Split by patient: groups = the patient of every bag."
            )


def _first_repeated(part: Sequence[int]) -> int:
    seen: set[int] = set()
    return next(i for i in part if i in seen or seen.add(i))  # type: ignore[func-returns-value]


def _positions(ids: Sequence[str]) -> dict[str, int]:
    positions = {bag: i for i, bag in enumerate(ids)}
    if len(positions) < len(ids):
        twice = next(bag for i, bag in enumerate(ids) if positions[bag] != i)
        raise SplitError(f"two bags have the id {twice!r}: a file of splits needs an id of its own for every bag.")
    return positions


def _rows(path: str | os.PathLike[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """The lines of the table, each with the words that say where it is."""
    try:
        with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            table = csv.DictReader(file)
            met = table.fieldnames or []
            missing = [column for column in COLUMNS if column not in met]
            if missing:
                expected = f"Expected {','.join(COLUMNS)}; met {column_names(met)}."
                raise SplitError(f"{path}, line 1: no column {', '.join(missing)}. {expected}")
            for row in table:
                where = f"{path}, line {table.line_num}"
                if any(row[column] is None for column in COLUMNS):
                    raise SplitError(f"{where}: fewer values than columns. Expected {','.join(COLUMNS)}.")
                yield where, {**row, "bag": unquoted(row["bag"])}
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SplitError(f"{path}: cannot be read as a table of splits: {error}.") from error


def _number(text: str, column: str, where: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise SplitError(f"{where}: {column} is {text!r}; a whole number from 0 on is needed.")
    return int(text)


def _split(bags: dict[int, str]) -> Split:
    return Split(**{name: tuple(i for i, part in bags.items() if part == name) for name in Split._fields})
