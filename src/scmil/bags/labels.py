"""Labels and patients of slides, from tables with the column names of common tools.

CLAM, TRIDENT, STAMP, slideflow, DSMIL, ILRA and MIL_BASELINE use different names for the same three
columns. All of them are supported, in upper or lower case. Ids are always text, so "007" keeps its
zeros.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from scmil.bags.class_names import order_classes, spellings_of
from scmil.bags.label_records import (
    Column,
    Record,
    RecordReader,
    check_doubtful,
    describe_inferred,
    merge_records,
)
from scmil.bags.slide_ids import patient_of_barcode, slide_id
from scmil.bags.table_rows import read_rows
from scmil.core.text import first_names
from scmil.errors import DataError

BLANK = ("", "nan", "na", "n/a", "#n/a", "<na>", "null")


@dataclass(frozen=True)
class Labels:
    """The class and the patient of each slide.

    >>> names, patients = ("tumor", None, "normal"), ("ann", "ann", None)
    >>> labels = Labels(("s1", "s2", "s3"), names, ("normal", "tumor"), patients)
    >>> labels.of("s1"), labels.of("s2"), labels.of("unknown")
    ((1, 'ann'), (None, 'ann'), (None, None))
    >>> len(labels), labels.counts(), "s3" in labels
    (3, {'normal': 1, 'tumor': 1}, True)
    """

    ids: tuple[str, ...]
    names: tuple[str | None, ...]  # the class of each slide, None if it is not known
    classes: tuple[str, ...]
    patients: tuple[str | None, ...]
    notes: tuple[str, ...] = ()  # what was merged, left out or inferred while reading
    # Of classes that were spelled in several ways.
    spellings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    columns: Mapping[str, Column] = field(default_factory=dict)  # used, by role

    @cached_property
    def _position(self) -> dict[str, int]:
        return {bag_id: position for position, bag_id in enumerate(self.ids)}

    def of(self, bag_id: str) -> tuple[int | None, str | None]:
        """Return class number and patient of a slide, by id or file name; None if unknown."""
        if bag_id not in self:
            return None, None
        position = self._position[slide_id(bag_id)]
        name = self.names[position]
        return None if name is None else self.classes.index(name), self.patients[position]

    def __contains__(self, bag_id: str) -> bool:
        return slide_id(bag_id) in self._position

    def __len__(self) -> int:
        return len(self.ids)

    def counts(self) -> dict[str, int]:
        """Return the number of slides of each class."""
        return {name: self.names.count(name) for name in self.classes}


def read_labels(
    path: str | Path,
    *,
    slides: str | Path | None = None,
    slide: str | None = None,
    label: str | None = None,
    patient: str | None = None,
    classes: Sequence[str] | None = None,
    missing: Sequence[str] | None = None,
) -> Labels:
    """Read the labels and patients of slides from a .csv, .tsv or .xlsx table.

    Classes that differ only in case, spaces or Unicode normalisation are one class, which is noted.
    Empty cells, NaN and n/a are missing labels. Words such as None, unknown, - and ? can be a class
    or a missing label: they raise until `missing` lists those that mean a missing label.

    Args:
        path: The table of slides, or with `slides` a table of patients.
        slides: A second table that lists the slides of each patient, as STAMP uses it.
        slide: Name of the slide column; detected if None.
        label: Name of the label column; detected if None.
        patient: Name of the patient column; detected if None. Without such a column, patients are
            taken from TCGA barcodes.
        classes: Names of the classes in their order; sorted if None.
        missing: Words that mean a missing label; [] if all words are classes.

    Returns:
        The labels.

    Raises:
        DataError: The table cannot be read, lacks a column, or contradicts itself.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "labels.csv"
    >>> rows = ["case_id,slide_id,label", "007,007_a.svs,tumor", "007,007_b.svs,tumor"]
    >>> _ = path.write_text("\\n".join([*rows, "008,008_a.svs,normal"]))
    >>> labels = read_labels(path)
    >>> labels.ids, labels.classes, labels.of("007_b")
    (('007_a', '007_b', '008_a'), ('normal', 'tumor'), (1, '007'))
    """
    table = read_rows(path)
    words = {*BLANK, *(word.strip().lower() for word in missing or ())}
    reader = RecordReader(slide, label, patient, words)
    records = reader.read(table) if slides is None else reader.join(table, read_rows(slides))
    if missing is None:
        check_doubtful(path, records, classes or ())
    notes = [f"{line}." for line in describe_inferred(reader.columns)] + reader.notes
    merged = merge_records(records, notes)
    if not merged:
        raise DataError(f"{path}: the table has a header but no rows. Add a row for each slide.")
    names = [record.label for record in merged.values()]
    if unlabelled := [bag_id for bag_id, record in merged.items() if record.label is None]:
        notes.append(
            f"slides without a label ({len(unlabelled)} of {len(names)}): "
            f"{first_names(unlabelled)}."
        )
    ordered, spelled = order_classes(path, names, classes)
    spellings = {
        name: variants
        for name in ordered
        if len(variants := spellings_of(names, spelled, name)) > 1
    }
    for name, variants in spellings.items():
        counts = ", ".join(f"{word!r} ({names.count(word)})" for word in variants)
        notes.append(
            f"{counts} are one class, {name!r}: they differ only in case, spaces or Unicode "
            "normalisation."
        )
    patients = [record.patient for record in merged.values()]
    if "patient" not in reader.columns:
        patients = _patients_by_barcode(merged, notes)
    final = tuple(None if name is None else spelled[name] for name in names)
    return Labels(
        tuple(merged), final, ordered, tuple(patients), tuple(notes), spellings, reader.columns
    )


def _patients_by_barcode(merged: Mapping[str, Record], notes: list[str]) -> list[str | None]:
    """Return the patients in TCGA barcodes; None for other ids."""
    patients = [patient_of_barcode(bag_id) for bag_id in merged]
    if known := len(patients) - patients.count(None):
        notes.append(
            "there is no patient column: patients are the first three parts of TCGA barcodes "
            f"({known} of {len(merged)} slides)."
        )
    return patients
