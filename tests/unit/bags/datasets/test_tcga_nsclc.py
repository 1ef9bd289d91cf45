"""TCGA-NSCLC: 1 042 slides by name, patients from barcodes, and folds in which no patient is on two
sides.
"""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest
import torch
from stand_in import some_slides, write_stand_in

from scmil.bags import datasets
from scmil.bags.bag import Bag, BagSet
from scmil.bags.datasets.cohorts import load_cohort, official_splits
from scmil.bags.datasets.tcga_nsclc import COHORT, patient_folds
from scmil.bags.splits import check_split
from scmil.errors import SplitError

DATA = Path(__file__).parents[3] / "data" / "tcga_nsclc"
EVERYONE = BagSet(
    [Bag(each.slide, torch.zeros(1, 2), each.label, each.patient) for each in COHORT.listed]
)


def test_the_list_has_the_known_counts() -> None:
    assert Counter(COHORT.classes[listed.label] for listed in COHORT.listed) == {
        "LUAD": 530,
        "LUSC": 512,
    }
    assert len({listed.patient for listed in COHORT.listed}) == 945


def test_the_names_are_those_of_the_manifests() -> None:
    for label, kind in enumerate(COHORT.classes):
        [manifest] = DATA.glob(f"*{kind}.txt")
        names = {
            row["filename"]
            for row in csv.DictReader(manifest.read_text().splitlines(), delimiter="\t")
        }
        assert names == {f"{listed.slide}.svs" for listed in COHORT.listed if listed.label == label}


def test_a_name_is_known_with_and_without_its_uuid() -> None:
    whole = COHORT.listed[0].slide
    assert (
        COHORT.find(whole)
        == COHORT.find(f"{whole}.svs")
        == COHORT.find(whole.partition(".")[0])
        == COHORT.listed[0]
    )
    assert COHORT.find(whole[:-1] + "x") is None
    assert COHORT.of("TCGA-05-4244-01Z-00-DX1") == (0, "TCGA-05-4244")


@pytest.mark.filterwarnings("ignore::scmil.bags.datasets.cohorts.CohortWarning")
def test_a_stand_in_loads_by_name_with_labels_and_patients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCMIL_ALLOW_MISSING", "1")
    few = some_slides(COHORT, 3)
    write_stand_in(tmp_path / "TCGA_NSCLC", few, ["swin"], instances=2)
    bags = datasets.load_dataset("tcga-nsclc", data=tmp_path)
    assert (bags.ids, bags.labels) == (
        tuple(each.slide for each in few),
        tuple(each.label for each in few),
    )
    assert bags.patients == tuple(each.patient for each in few)
    assert (bags.classes, bags[0].features.shape) == (("LUAD", "LUSC"), (2, 768))
    assert load_cohort(COHORT, tmp_path, "swin").ids == bags.ids


def test_four_folds_are_65_10_25_and_split_no_patient() -> None:
    folds = patient_folds(EVERYONE, folds=4, valid=0.1, seed=0)
    assert sorted(i for split in folds for i in split.test) == list(range(1042))
    for split in folds:
        check_split(split, EVERYONE.ids, EVERYONE.patients)
        shares = [len(part) / 1042 for part in (split.train, split.valid, split.test)]
        assert shares == pytest.approx([0.65, 0.10, 0.25], abs=0.005)
        tested = [EVERYONE.labels[i] for i in split.test]
        assert tested.count(1) / len(tested) == pytest.approx(512 / 1042, abs=0.01)


def test_every_repeat_has_new_folds() -> None:
    first, second = official_splits("tcga-nsclc", EVERYONE, repeats=2, valid=0.1, seed=3)
    assert first == patient_folds(EVERYONE, seed=3)
    assert second == patient_folds(EVERYONE, seed=1003) != first


@pytest.mark.parametrize("valid", [0.0, 0.75])
def test_a_validation_share_that_leaves_nothing_is_rejected(valid: float) -> None:
    with pytest.raises(SplitError, match=r"below 0\.75, which is left"):
        patient_folds(EVERYONE, folds=4, valid=valid)
