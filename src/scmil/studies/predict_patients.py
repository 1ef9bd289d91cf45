"""The patients of slides to predict, and one bag of all their slides for a model of patients."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from scmil.bags.patient_bags import join_slides, with_patients
from scmil.bags.slide_columns import read_patients
from scmil.bags.slide_ids import patient_of_barcode, slide_id
from scmil.core.text import first_names
from scmil.errors import DataError
from scmil.studies.model_folder import Page, joins_patients

if TYPE_CHECKING:
    from scmil.bags.bag import BagSet

TRAINED = "The model was trained with all slides of a patient as one bag (--patient joined)"


def patients_from_table(bags: BagSet, table: str | Path) -> BagSet:
    """The same bags, with the patients of a table.

    Args:
        bags: Slides.
        table: A table of slides with a column of patients, such as a table of labels.

    Raises:
        DataError: The table has no column of patients, or none of the slides.
    """
    patients = read_patients(table)
    if not any(slide_id(bag_id) in patients for bag_id in bags.ids):
        raise DataError(
            f"{table}: none of the {len(bags)} slides is in the table; they are such as "
            f"{first_names(bags.ids)}. Give the table of these slides."
        )
    return with_patients(bags, patients)


def join_to_predict(study: Page, bags: BagSet) -> tuple[BagSet, tuple[str, ...]]:
    """The bags that a model predicts: those of patients, if it was trained with such bags.

    Patients are those of the bags, or else those of TCGA barcodes, as in a table of labels. If none
    is known, each slide stays a bag.

    Args:
        study: `study.json` of the model.
        bags: Slides, or patients that are joined already.

    Returns:
        The bags, and notes on what was joined.
    """
    if not joins_patients(study):
        return bags, ()
    patients = {
        slide_id(bag_id): patient or patient_of_barcode(slide_id(bag_id))
        for bag_id, patient in zip(bags.ids, bags.patients, strict=True)
    }
    if not any(patients.values()):
        return bags, (
            f"{TRAINED}, but the patients of these slides are not known: each slide is predicted "
            "by itself, and several slides of a patient have different predictions. Give a table "
            "with the columns slide_id and case_id: --patients TABLE.",
        )
    joined = join_slides(with_patients(bags, patients))
    notes = [
        f"{TRAINED}, and so are these {len(bags)} slides: {len(joined)} bags, a row for each, "
        "whose slide_id is the patient."
    ]
    if alone := [bag_id for bag_id in bags.ids if patients[slide_id(bag_id)] is None]:
        notes.append(
            f"slides without a patient, each predicted by itself ({len(alone)} of {len(bags)}): "
            f"{first_names(alone)}."
        )
    return joined, tuple(notes)
