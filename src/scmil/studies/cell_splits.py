"""The splits of a run, and the seeds of its models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scmil.studies.data_sites import site_groups, split_by_site
from scmil.studies.plan import Cell

if TYPE_CHECKING:
    from scmil.bags.bag import BagSet
    from scmil.bags.splits import Split


def model_seed(seed: int, repeat: int, fold: int) -> int:
    """The seed of a model; equal for all methods, so that they are compared in pairs."""
    return 1_000_003 * seed + 1_000 * repeat + fold


def splits_of(cell: Cell, bags: BagSet, inner: bool) -> list[list[Split]]:
    """The folds of every repeat.

    With `inner`, each has a validation split, taken from its training bags if necessary; without,
    none has, and its bags are trained on.
    """
    from scmil.bags.checks import patients_of
    from scmil.bags.splits import check_split, with_validation

    protocol, groups = cell.settings.protocol, patients_of(bags)
    splits = _outer_splits(cell, bags)
    for split in (split for folds in splits for split in folds):
        check_split(split, bags.ids, groups)
    if not inner:
        return [
            [split._replace(train=split.train + split.valid, valid=()) for split in folds]
            for folds in splits
        ]
    return [
        [
            split
            if split.valid
            else with_validation(
                split, list(bags.labels), protocol.valid, protocol.seed + 1000 * r + f, groups
            )
            for f, split in enumerate(folds)
        ]
        for r, folds in enumerate(splits)
    ]


def _outer_splits(cell: Cell, bags: BagSet) -> list[list[Split]]:
    """Training and test bags, by the table of splits or by the kind that the protocol names."""
    from scmil.bags.checks import patients_of
    from scmil.bags.datasets.cohorts import official_splits
    from scmil.bags.splits import holdout, load_splits, repeated_folds

    protocol, labels, groups = cell.settings.protocol, list(bags.labels), patients_of(bags)
    seed, repeats = protocol.seed, protocol.repeats
    if (sites := site_groups(cell.settings.data, bags)) is not None:
        return split_by_site(protocol, bags, sites)
    if protocol.splits is not None:
        return load_splits(protocol.splits, bags.ids)
    if protocol.kind == "official":
        dataset = cell.settings.data.dataset
        return official_splits(dataset, bags, repeats, protocol.valid, seed)
    if protocol.kind == "holdout":
        return [
            [holdout(labels, protocol.test, 0.0, seed + 1000 * repeat, groups)]
            for repeat in range(repeats)
        ]
    return repeated_folds(labels, protocol.folds, repeats, seed, groups)
