"""TCGA-NSCLC: 1 042 diagnostic slides of lung cancer, 530 adenocarcinomas (LUAD) and 512 squamous
cell carcinomas (LUSC).

The list of slides is DSMIL's, of 945 patients; the SC-MIL paper uses 1 037 of them and does not
name the other five. The patient is the first three parts of a barcode.
"""

from __future__ import annotations

from scmil.bags.bag import BagSet
from scmil.bags.datasets.cohorts import Cohort, register_cohort
from scmil.bags.splits import SEEDS_A_REPEAT, Split, stratified_folds, with_validation
from scmil.errors import SplitError

FOLDS = 4


def patient(slide: str) -> str:
    """Return the patient of a slide.

    >>> patient("TCGA-05-4244-01Z-00-DX1.d4ff32cd-38cf-40ea-8213-45c2b100ac01")
    'TCGA-05-4244'
    """
    return "-".join(slide.split("-")[:3])


def patient_folds(
    bags: BagSet, folds: int = FOLDS, valid: float = 0.1, seed: int = 0
) -> list[Split]:
    """Return folds grouped by patient and stratified by class.

    `valid` is a fraction of all bags, so that four folds are divided 65:10:25.

    >>> import torch
    >>> from scmil.bags.bag import Bag
    >>> some = COHORT.listed[:40] + COHORT.listed[-40:]
    >>> x = torch.zeros(1, 2)
    >>> bags = BagSet([Bag(each.slide, x, each.label, each.patient) for each in some])
    >>> [(len(split.train), len(split.valid), len(split.test)) for split in patient_folds(bags)]
    [(52, 8, 20), (52, 8, 20), (52, 8, 20), (52, 8, 20)]
    """
    rest = 1 - 1 / max(folds, 2)
    if not 0 < valid < rest:
        raise SplitError(
            f"valid = {valid}: use a fraction of all bags above 0 and below {rest:g}, which is "
            "left after the test split."
        )
    drawn = stratified_folds(bags.labels, folds, seed, bags.patients)
    return [
        with_validation(split, bags.labels, valid / rest, seed + fold, bags.patients)
        for fold, split in enumerate(drawn)
    ]


def _repeat_folds(bags: BagSet, repeats: int, valid: float, seed: int) -> list[list[Split]]:
    return [
        patient_folds(bags, FOLDS, valid, seed + SEEDS_A_REPEAT * repeat)
        for repeat in range(repeats)
    ]


COHORT = register_cohort(
    Cohort(
        "tcga-nsclc",
        "1 042 slides of lung cancer, which of two kinds?",
        "tcga_nsclc.csv",
        classes=("LUAD", "LUSC"),
        splits=_repeat_folds,
        patient=patient,
        preset="tcga",
    )
)
