"""Slides of a patient in `predict`: joined, if the model was trained so and patients are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from command import scmil
from target_cases import read_table, rename_cohort, target_cohort, write_table

from scmil import Bag, studies
from scmil.bags.bag import BagSet
from scmil.errors import DataError
from scmil.studies.predict_patients import join_to_predict, patients_from_table

JOINED: dict[str, Any] = {"settings": {"data": {"patient": "joined"}}}
QUICK: dict[str, Any] = {"aggregator": "mean", "recipe": "paper", "epochs": 2}


def slides(*names: str, patients: dict[str, str] | None = None) -> BagSet:
    known = patients or {}
    return BagSet([Bag(name, torch.ones(2, 3), patient=known.get(name)) for name in names])


def test_slides_of_one_patient_are_one_bag() -> None:
    bags = slides("a", "b", "c", patients={"a": "p", "b": "p"})
    joined, notes = join_to_predict(JOINED, bags)
    assert joined.ids == ("p", "c")
    assert len(joined[0].features) == 4
    assert "3 slides: 2 bags, a row for each, whose slide_id is the patient" in notes[0]
    assert notes[1] == "slides without a patient, each predicted by itself (1 of 3): c."


def test_slides_of_a_model_of_slides_stay_as_they_are() -> None:
    bags = slides("a", "b", patients={"a": "p", "b": "p"})
    assert join_to_predict({"settings": {"data": {}}}, bags) == (bags, ())


def test_slides_without_patients_are_predicted_by_themselves_and_a_note_says_so() -> None:
    bags = slides("a", "b")
    found, (note,) = join_to_predict(JOINED, bags)
    assert found is bags
    assert "the patients of these slides are not known" in note
    assert "--patients TABLE" in note


def test_patients_of_barcodes_are_known() -> None:
    joined, _ = join_to_predict(JOINED, slides("TCGA-05-4244-01Z", "TCGA-05-4244-02Z", "x"))
    assert joined.ids == ("TCGA-05-4244", "x")


def test_labels_of_slides_do_not_prevent_that_they_are_joined() -> None:
    bags = BagSet([Bag(name, torch.ones(1, 3), i, patient="p") for i, name in enumerate("ab")])
    joined, _ = join_to_predict(JOINED, bags)
    assert joined[0].label is None


def test_a_table_of_other_slides_is_rejected(tmp_path: Path) -> None:
    table = tmp_path / "patients.csv"
    table.write_text("slide_id,case_id\nz,p\n")
    with pytest.raises(DataError, match="none of the 2 slides is in the table; they are such as a"):
        patients_from_table(slides("a", "b"), table)
    table.write_text("slide_id,age\na,3\n")
    with pytest.raises(DataError, match="case_id"):
        patients_from_table(slides("a", "b"), table)


@pytest.mark.slow
def test_predict_and_test_give_a_patient_the_same_prediction(tmp_path: Path) -> None:
    for name, prefix, seed in (("ours", "", 0), ("theirs", "t", 1)):
        cohort = rename_cohort(target_cohort(tmp_path / name, count=24, seed=seed), prefix)
        rows = read_table(cohort / "labels.csv")
        for first, second in zip(rows[::2], rows[1::2], strict=True):
            second |= {**first, "slide_id": second["slide_id"]}
        write_table(cohort / "labels.csv", rows)
    ours, theirs = (
        (tmp_path / n / "bags", tmp_path / n / "labels.csv") for n in ("ours", "theirs")
    )
    data = studies.open_data(*ours, label="label", patient="joined")
    studies.train(data, tmp_path / "model", **QUICK)
    options = studies.CohortOptions(label="label")
    studies.evaluate_cohort(tmp_path / "model", *theirs, tmp_path / "test", options=options)
    tested = read_table(tmp_path / "test" / "predictions.csv")
    out = tmp_path / "p.csv"
    words = ("predict", tmp_path / "model", theirs[0], "--patients", theirs[1], "--out", out)
    answer = scmil(*words)
    assert "24 slides: 12 bags" in " ".join(answer.stderr.split())
    rows = read_table(out)
    assert [row["slide_id"] for row in rows] == [row["slide_id"] for row in tested]
    assert rows[0]["slide_id"] == rows[0]["case_id"] == "tp0"
    assert [row["p_tumour"] for row in rows] == [row["p_tumour"] for row in tested]
    alone = json.loads(scmil(*words[:3], "--out", tmp_path / "alone.csv", "--json").stdout)
    assert len(alone["predictions"]) == 24
    assert "are not known" in alone["notes"][0]
    # Maps stay those of slides.
    bags = studies.open_bags_to_predict([theirs[0]])[:2]
    maps = studies.score_folder(tmp_path / "model", bags, tmp_path / "maps")
    assert set(maps.scores) == {"ts00", "ts01"}
