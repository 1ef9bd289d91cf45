"""TCGA-NSCLC: 1 042 diagnostic slides of lung cancer, 530 adenocarcinomas (LUAD) and 512 of squamous cells (LUSC).

The list of slides is DSMIL's, of 945 patients; the paper has 1 037 of them and does not say which five it lost. A patient is
the first three parts of a barcode.
"""

from __future__ import annotations

from scmil.bags.bag import BagSet
from scmil.bags.datasets.cohorts import Cohort, enrol
from scmil.errors import SplitError
from scmil.bags.splits import SEEDS_A_REPEAT, Split, stratified_folds, with_validation

FOLDS = 4


def patient(slide: str) -> str:
    """The patient of a slide.

    >>> patient("TCGA-05-4244-01Z-00-DX1.d4ff32cd-38cf-40ea-8213-45c2b100ac01")
    'TCGA-05-4244'
    """
    return "-".join(slide.split("-")[:3])


def patient_folds(bags: BagSet, folds: int = FOLDS, valid: float = 0.1, seed: int = 0) -> list[Split]:
    """Folds of whole patients, stratified by class; `valid` is a share of all bags, so that four folds are 65:10:25.

    >>> import torch
    >>> from scmil.bags.bag import Bag
    >>> some = COHORT.listed[:40] + COHORT.listed[-40:]
    >>> bags = BagSet([Bag(each.slide, torch.zeros(1, 2), each.label, each.patient) for each in some])
    >>> [(len(split.train), len(split.valid), len(split.test)) for split in patient_folds(bags)]
    [(52, 8, 20), (52, 8, 20), (52, 8, 20), (52, 8, 20)]
    """
    rest = 1 - 1 / max(folds, 2)
    if not 0 < valid < rest:
        raise SplitError(f"valid = {valid}: a share of all bags is needed, above 0 and below the {rest:g} to train on.")
    drawn = stratified_folds(bags.labels, folds, seed, bags.patients)
    return [
        with_validation(split, bags.labels, valid / rest, seed + fold, bags.patients)
        for fold, split in enumerate(drawn)
    ]


def _repeated(bags: BagSet, repeats: int, valid: float, seed: int) -> list[list[Split]]:
    return [patient_folds(bags, FOLDS, valid, seed + SEEDS_A_REPEAT * repeat) for repeat in range(repeats)]


COHORT = enrol(
    Cohort(
        "tcga-nsclc",
        "1 042 slides of lung cancer, which of two kinds?",
        "tcga_nsclc.csv",
        classes=("LUAD", "LUSC"),
        splits=_repeated,
        patient=patient,
        preset="tcga",
    )
)
