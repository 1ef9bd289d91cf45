"""Records of a label table: slide, label and patient of each row, and the columns they are from."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from scmil.bags.class_names import comparable_label
from scmil.bags.slide_ids import slide_id
from scmil.bags.table_rows import LABEL, OTHER, PATIENT, SLIDE, TextTable
from scmil.core.tables import column_names
from scmil.core.text import first_names
from scmil.errors import DataError

# These words can be a class, as None is a stage in CAMELYON17, or mean a missing value.
DOUBTFUL = (
    "none",
    "-",
    "--",
    "–",
    "—",
    ".",
    "?",
    "??",
    "unknown",
    "unk",
    "missing",
    "undefined",
    "tbd",
    "n.a.",
    "n.d.",
)
# A column with one of these names is used as documented; any other choice is an inference.
DOCUMENTED = {
    "slide": ("slide_id", "slide"),
    "patient": ("case_id", "patient", "patient_id"),
    "label": ("label",),
}


class Record(NamedTuple):
    """One row of a table; `where` is its file and line."""

    where: str
    slide: str
    label: str | None
    patient: str | None


class Column(NamedTuple):
    """A column that was used, and whether scmil inferred it from its name or its position."""

    name: str
    inferred: bool


def describe_inferred(columns: Mapping[str, Column]) -> tuple[str, ...]:
    """Return a line for each column that was inferred.

    >>> describe_inferred({"slide": Column("slide_id", False), "label": Column("lable", True)})
    ("label column: 'lable' (inferred)",)
    """
    return tuple(
        f"{role} column: {column.name!r} (inferred)"
        for role, column in columns.items()
        if column.inferred
    )


def columns_json(columns: Mapping[str, Column]) -> dict[str, dict[str, Any]]:
    """Return name and origin of columns as JSON values.

    >>> columns_json({"label": Column("lable", True)})
    {'label': {'name': 'lable', 'inferred': True}}
    """
    return {role: column._asdict() for role, column in columns.items()}


@dataclass
class RecordReader:
    """Reads records from tables, with the columns that the user requested or scmil chooses."""

    slide: str | None
    label: str | None
    patient: str | None
    missing: Collection[str]  # words for a missing value, in lower case
    columns: dict[str, Column] = field(default_factory=dict)  # used, by role
    notes: list[str] = field(default_factory=list)

    def read(self, table: TextTable) -> list[Record]:
        """Return the records of a table of slides."""
        if self.slide is None and table.find(SLIDE) is None and table.find(PATIENT) is not None:
            raise DataError(
                f"{table.path} is a table of patients, with the columns "
                f"{column_names(table.header)}. Give the table of their slides as well: slides=, "
                f"with the columns {PATIENT[1]} and {SLIDE[2]}."
            )
        slides, labels = self._slide_column(table), self._label_column(table)
        patients = None
        if self.patient is not None or table.find(PATIENT) is not None:
            patients = self._patient_column(table)
        return [
            Record(
                f"{table.path}, line {number}",
                _read_slide_id(table, number, cells[slides]),
                self._value(cells[labels]),
                None if patients is None else self._value(cells[patients]),
            )
            for number, cells in table.lines
        ]

    def join(self, clinical: TextTable, slide_table: TextTable) -> list[Record]:
        """Return the records of STAMP's two tables: a slide has the label of its patient."""
        of_patient, labels = self._patient_column(clinical), self._label_column(clinical)
        by_patient = merge_records(
            [
                Record(
                    f"{clinical.path}, line {number}",
                    cells[of_patient],
                    self._value(cells[labels]),
                    None,
                )
                for number, cells in clinical.lines
            ],
            self.notes,
            "patient",
        )
        owners, slides = self._patient_column(slide_table), self._slide_column(slide_table)
        records = []
        for number, cells in slide_table.lines:
            owner = by_patient.get(cells[owners])
            records.append(
                Record(
                    f"{slide_table.path}, line {number}",
                    _read_slide_id(slide_table, number, cells[slides]),
                    None if owner is None else owner.label,
                    self._value(cells[owners]),
                )
            )
        with_slides = {cells[owners] for _, cells in slide_table.lines}
        for noun, ids in (
            ("patients without slides", by_patient.keys() - with_slides),
            ("patients without a row", with_slides - by_patient.keys()),
        ):
            if ids:
                names = first_names(sorted(ids))
                self.notes.append(f"{noun} in {clinical.path.name} ({len(ids)}): {names}.")
        return records

    def _slide_column(self, table: TextTable) -> int:
        return self._choose(table, "slide", self.slide, SLIDE)

    def _patient_column(self, table: TextTable) -> int:
        return self._choose(table, "patient", self.patient, PATIENT)

    def _label_column(self, table: TextTable) -> int:
        """Return the column of the labels: as requested, by its name, or the only one left."""
        names: Sequence[str] = LABEL
        if self.label is None and table.find(LABEL) is None:
            others = {*SLIDE, *PATIENT, *OTHER}
            left = [name for name in table.header if name.lower() not in others]
            names = tuple(left) if len(left) == 1 else LABEL
        return self._choose(table, "label", self.label, names)

    def _choose(
        self, table: TextTable, role: str, requested: str | None, names: Sequence[str]
    ) -> int:
        """Return the position of a column, and record its name."""
        position = table.need([requested] if requested else names, role, f"{role}=")
        name = table.header[position]
        inferred = requested is None and name.lower() not in DOCUMENTED[role]
        self.columns[role] = Column(name, inferred)
        return position

    def _value(self, cell: str) -> str | None:
        return None if cell.lower() in self.missing else cell


def _read_slide_id(table: TextTable, number: int, cell: str) -> str:
    if not (bag_id := slide_id(cell)):
        raise DataError(
            f"{table.path}, line {number}: the slide is empty. Fill the cell, or delete the line."
        )
    return bag_id


def check_doubtful(path: str | Path, records: Sequence[Record], classes: Sequence[str]) -> None:
    """Raise if a word can be a class or patient, or mean a missing one.

    Words that are listed in `classes` are classes.
    """
    for column in ("label", "patient"):
        lines: dict[str, list[str]] = {}
        for record in records:
            word = getattr(record, column)
            listed = column == "label" and word in classes
            if word is not None and word.lower() in DOUBTFUL and not listed:
                lines.setdefault(word, []).append(record.where.rpartition(" ")[2])
        if lines:
            words = "; ".join(
                f"{word!r} in line {first_names(numbers)}" for word, numbers in lines.items()
            )
            raise DataError(
                f"{path}: these words can be a {column} or mean a missing one: {words}. List the "
                f"words that mean a missing {column}: --missing '{','.join(lines)}'; or, if none "
                "does: --missing ''. (In an experiment: missing under [data].)"
            )


def merge_records(
    records: Iterable[Record], notes: list[str], noun: str = "slide"
) -> dict[str, Record]:
    """Return one record per id; repeated rows fill empty values and must not contradict."""
    merged: dict[str, Record] = {}
    repeated: list[str] = []
    for record in records:
        first = merged.get(record.slide)
        if first is None:
            merged[record.slide] = record
            continue
        _check_agreement(first, record, noun)
        repeated.append(record.slide)
        merged[record.slide] = first._replace(
            label=first.label if first.label is not None else record.label,
            patient=first.patient if first.patient is not None else record.patient,
        )
    if repeated:
        notes.append(
            f"lines that repeat a {noun} and agree are merged ({len(repeated)}): "
            f"{first_names(repeated)}."
        )
    return merged


def _check_agreement(first: Record, record: Record, noun: str) -> None:
    """Raise if two rows of one slide or patient have different labels or patients."""
    for column in ("label", "patient"):
        one, other = getattr(first, column), getattr(record, column)
        if one is None or other is None or one == other:
            continue
        if column == "label" and comparable_label(one) == comparable_label(other):
            continue
        raise DataError(
            f"{record.where}: {noun} {record.slide!r} has the {column} {other!r}, but {one!r} in "
            f"line {first.where.rpartition(' ')[2]}. One {noun} has one {column}: correct the "
            "table."
        )
