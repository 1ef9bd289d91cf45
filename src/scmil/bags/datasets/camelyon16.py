"""CAMELYON16: 399 slides of lymph nodes, 270 to train on and 129 to test on; is there a metastasis?

The organisers' list without normal_086, which became tumor_111, and without test_049, which shows the same tissue as another
slide. In 20 training slides and in test_114 not every tumour is outlined: they have a label, but count in no score of
localisation. Who the patients are is not published.
"""

from __future__ import annotations

from scmil.bags.bag import BagSet
from scmil.bags.datasets.cohorts import Cohort, enrol
from scmil.errors import SplitError
from scmil.bags.splits import SEEDS_A_REPEAT, Split, with_validation


def official_splits(bags: BagSet, runs: int = 5, valid: float = 0.1, seed: int = 0) -> list[list[Split]]:
    """Test on the official test part, and draw a share of the official training part for validation anew in each run.

    >>> import torch
    >>> from scmil.bags.bag import Bag
    >>> ids = [f"{kind}_{i:03}" for kind in ("normal", "tumor") for i in range(1, 6)] + ["test_001", "test_003"]
    >>> bags = BagSet([Bag(id, torch.zeros(1, 2), COHORT.of(id)[0]) for id in ids])
    >>> [[split]] = official_splits(bags, runs=1, valid=0.2)
    >>> len(split.train), len(split.valid), [bags.ids[i] for i in split.test]
    (8, 2, ['test_001', 'test_003'])
    """
    parts = [(listed.part if (listed := COHORT.find(id)) else None) for id in bags.ids]
    if None in parts:
        raise SplitError(f"bag {bags.ids[parts.index(None)]!r} is not of CAMELYON16. Split these bags in another way.")
    train, test = (tuple(i for i, part in enumerate(parts) if part == name) for name in ("train", "test"))
    if not test:
        raise SplitError(f"none of the {len(bags)} bags is of the official test part, test_001 to test_130.")
    return [
        [with_validation(Split(train, test), bags.labels, valid, seed + SEEDS_A_REPEAT * run)] for run in range(runs)
    ]


COHORT = enrol(
    Cohort(
        "camelyon16",
        "399 slides of lymph nodes, is there a metastasis?",
        "camelyon16.csv",
        classes=("normal", "tumor"),
        splits=official_splits,
        not_listed={
            "normal_086": "normal_086 is the earlier name of tumor_111: rename it",
            "test_049": "test_049 shows the same tissue as another slide, and was withdrawn",
        },
        preset="biopsy",  # the others lose whole slides that are pale, such as normal_027
    )
)


def not_exhaustively_annotated() -> list[str]:
    """The slides in which not every tumour is outlined: leave them out of scores of localisation.

    >>> len(not_exhaustively_annotated()), not_exhaustively_annotated()[0], not_exhaustively_annotated()[-1]
    (21, 'tumor_010', 'test_114')
    """
    return [listed.slide for listed in COHORT.listed if listed.annotation == "partial"]
