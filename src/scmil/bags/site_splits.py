"""Splits that keep all slides of a site together, so that a model is tested on sites that it was
not trained on.

A group is a site with all its patients; a patient with slides of two sites joins them. Groups are
few and large and have several classes, so many random orders of assigning them are tried, and the
assignment with the class counts nearest to the shares is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scmil.bags.slide_columns import read_slide_column
from scmil.bags.slide_ids import slide_id
from scmil.bags.splits import SEEDS_A_REPEAT, Split
from scmil.core.shapes import Numbers
from scmil.core.text import first_names
from scmil.errors import DataError, SplitError

ORDERS = 200


def read_sites(path: str | Path, column: str, ids: Sequence[str]) -> list[str]:
    """Read the site of each bag from a column of a label table.

    Args:
        path: The table.
        column: Name of the column.
        ids: The bags.

    Returns:
        The site of each bag.

    Raises:
        DataError: There is no such column, or a bag has no site.
    """
    records = read_slide_column(path, column)
    found = [records.get(slide_id(bag_id)) for bag_id in ids]
    sites = [None if record is None else record.label for record in found]
    if lost := [bag_id for bag_id, site in zip(ids, sites, strict=True) if site is None]:
        raise DataError(
            f"{path}: {len(lost)} of {len(ids)} bags have no site in the column {column!r} "
            f"({first_names(lost)}). Fill in the column, or leave these bags out."
        )
    return [str(site) for site in sites]


def join_groups(sites: Sequence[str], patients: Sequence[str | None] | None) -> list[str]:
    """The group of each bag: its site, joined with other sites that share one of its patients.

    >>> join_groups(["a", "b", "b", "c"], ["ann", "ann", None, "cy"])
    ['a', 'a', 'a', 'c']
    """
    joined = {site: site for site in sites}

    def root(site: str) -> str:
        while joined[site] != site:
            site = joined[site]
        return site

    first: dict[str, str] = {}
    for site, patient in zip(sites, patients or [None] * len(sites), strict=True):
        if patient is not None:
            one, other = sorted((root(first.setdefault(patient, site)), root(site)))
            joined[other] = one
    return [root(site) for site in sites]


def site_folds(
    labels: Sequence[int | None], folds: int, repeats: int, seed: int, groups: Sequence[str]
) -> list[list[Split]]:
    """Cross-validation folds of whole groups; every bag is in one test split of each repeat.

    Args:
        labels: Class of each bag.
        folds: Number of folds, at most the number of groups.
        repeats: Number of repeats, each with another seed.
        seed: Seed of the assignment.
        groups: The group of each bag, see `join_groups`.

    Returns:
        The folds of every repeat.

    Raises:
        SplitError: There are too few groups, or a fold would lack a class.

    >>> split = site_folds([0, 1, 0, 1], 2, 1, 0, ["a", "a", "b", "b"])[0][0]
    >>> split.train, split.test
    ((2, 3), (0, 1))
    """
    everyone = set(range(len(labels)))
    return [
        [
            Split(tuple(sorted(everyone.difference(test))), test)
            for test in _assign_groups(labels, groups, [1 / folds] * folds, own)
        ]
        for own in (seed + SEEDS_A_REPEAT * repeat for repeat in range(repeats))
    ]


def site_holdout(
    labels: Sequence[int | None], test: float, seed: int, groups: Sequence[str]
) -> Split:
    """One test split of whole groups.

    >>> site_holdout([0, 1] * 3, 0.34, 0, ["a", "a", "b", "b", "c", "c"]).train
    (0, 1, 4, 5)
    """
    if not 0 < test < 1:
        raise SplitError(f"test = {test}: use a fraction between 0 and 1.")
    return Split(*_assign_groups(labels, groups, [1 - test, test], seed))


def _assign_groups(
    labels: Sequence[int | None], groups: Sequence[str], shares: Sequence[float], seed: int
) -> list[tuple[int, ...]]:
    """Divide groups by shares; each subset has every class."""
    names = sorted(set(groups))
    if len(names) < len(shares) or None in labels:
        raise SplitError(
            f"{len(names)} sites for {len(shares)} splits, and a site cannot be divided"
            + (", and some bags have no label" if None in labels else "")
            + ". Use fewer folds, or another column."
        )
    values = np.array([label or 0 for label in labels])
    classes = np.unique(values)
    of_group = np.array([names.index(group) for group in groups])
    content = np.array(
        [
            [np.count_nonzero((of_group == g) & (values == c)) for c in classes]
            for g in range(len(names))
        ]
    )
    wanted = np.outer(shares, content.sum(0))
    generator = np.random.default_rng(seed)
    best, lowest = None, np.inf
    for _ in range(ORDERS):
        order = np.argsort(-content.sum(1) * generator.uniform(0.5, 1.5, len(names)))
        chosen, cost = _assign_in_order(content, wanted, order)
        if cost < lowest:
            best, lowest = chosen, cost
    if best is None:
        raise SplitError(
            f"no division of {len(names)} sites into {len(shares)} splits has every class in each "
            "of them. Use fewer folds, or leave out sites with one class."
        )
    return [
        tuple(np.flatnonzero(best[of_group] == subset).tolist()) for subset in range(len(shares))
    ]


def _assign_in_order(
    content: NDArray[np.int64], wanted: Numbers, order: NDArray[np.int64]
) -> tuple[NDArray[np.int64], float]:
    """Put each group where the class counts come nearest to the wanted ones; the cost is infinite
    if a subset lacks a class.
    """
    held = np.zeros_like(wanted)
    chosen = np.zeros(len(content), dtype=np.int64)
    for group in order:
        change = (((held + content[group] - wanted) ** 2 - (held - wanted) ** 2) / wanted).sum(1)
        chosen[group] = int(change.argmin())
        held[chosen[group]] += content[group]
    cost = float(((held - wanted) ** 2 / wanted).sum())
    return chosen, cost if (held > 0).all() else float("inf")
