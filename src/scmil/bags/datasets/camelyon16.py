"""CAMELYON16: 399 slides of lymph nodes with or without metastases, 270 for training, 129 for test.

The list is the organisers', without normal_086, which became tumor_111, and without test_049, which
shows the same tissue as another slide. In 20 training slides and in test_114 not every tumour is
annotated: they have a label, but are left out of localisation scores. The patients are not
published.
"""

from __future__ import annotations

from scmil.bags.bag import BagSet
from scmil.bags.datasets.cohorts import Cohort, register_cohort
from scmil.bags.splits import SEEDS_A_REPEAT, Split, with_validation
from scmil.errors import SplitError


def camelyon16_splits(
    bags: BagSet, runs: int = 5, valid: float = 0.1, seed: int = 0
) -> list[list[Split]]:
    """Return the official test split, with a new random validation split for each run.

    >>> import torch
    >>> from scmil.bags.bag import Bag
    >>> ids = [f"{kind}_{i:03}" for kind in ("normal", "tumor") for i in range(1, 6)]
    >>> ids += ["test_001", "test_003"]
    >>> bags = BagSet([Bag(bag_id, torch.zeros(1, 2), COHORT.of(bag_id)[0]) for bag_id in ids])
    >>> [[split]] = camelyon16_splits(bags, runs=1, valid=0.2)
    >>> len(split.train), len(split.valid), [bags.ids[i] for i in split.test]
    (8, 2, ['test_001', 'test_003'])
    """
    parts = [(listed.part if (listed := COHORT.find(bag_id)) else None) for bag_id in bags.ids]
    if None in parts:
        raise SplitError(
            f"bag {bags.ids[parts.index(None)]!r} is not of CAMELYON16, so it has no official "
            "split. Remove it, or use another kind of split."
        )
    train, test = (
        tuple(i for i, part in enumerate(parts) if part == name) for name in ("train", "test")
    )
    if not test:
        raise SplitError(
            f"none of the {len(bags)} bags is of the official test split, test_001 to test_130. "
            "Add bags of the test slides."
        )
    return [
        [with_validation(Split(train, test), bags.labels, valid, seed + SEEDS_A_REPEAT * run)]
        for run in range(runs)
    ]


COHORT = register_cohort(
    Cohort(
        "camelyon16",
        "399 slides of lymph nodes, is there a metastasis?",
        "camelyon16.csv",
        classes=("normal", "tumor"),
        splits=camelyon16_splits,
        not_listed={
            "normal_086": "normal_086 is the earlier name of tumor_111: rename it",
            "test_049": "test_049 shows the same tissue as another slide, and was withdrawn",
        },
        preset="biopsy",  # the others miss all tissue of pale slides, such as normal_027
    )
)


def not_exhaustively_annotated() -> list[str]:
    """Return the slides in which not every tumour is annotated.

    >>> slides = not_exhaustively_annotated()
    >>> len(slides), slides[0], slides[-1]
    (21, 'tumor_010', 'test_114')
    """
    return [listed.slide for listed in COHORT.listed if listed.annotation == "partial"]
