"""Further columns of a label table, such as sex, site or scanner, by slide."""

from __future__ import annotations

from pathlib import Path

from scmil.bags.label_records import Record, RecordReader, merge_records
from scmil.bags.labels import BLANK
from scmil.bags.slide_ids import patient_of_barcode
from scmil.bags.table_rows import PATIENT, read_rows


def read_slide_column(path: str | Path, name: str) -> dict[str, Record]:
    """Read one column of a table of slides.

    Args:
        path: The table.
        name: Name of the column.

    Returns:
        The record of each slide; its label is the cell, None if it is empty, and its patient is
        that of the table or of a TCGA barcode.

    Raises:
        DataError: The table cannot be read, has no such column, or contradicts itself.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "labels.csv"
    >>> _ = path.write_text("case_id,slide_id,label,sex\\np1,a.svs,x,f\\np2,b.svs,y,\\n")
    >>> {slide: (record.label, record.patient) for slide, record in
    ...  read_slide_column(path, "sex").items()}
    {'a': ('f', 'p1'), 'b': (None, 'p2')}
    """
    table = read_rows(path)
    column = table.header[table.need([name], "groups", "its name in the table")]
    reader = RecordReader(None, column, None, set(BLANK))
    return {
        slide: record._replace(patient=record.patient or patient_of_barcode(slide))
        for slide, record in merge_records(reader.read(table), reader.notes).items()
    }


def read_patients(path: str | Path) -> dict[str, str | None]:
    """Read the patient of each slide from a table of slides; other columns are not read.

    Args:
        path: The table.

    Returns:
        The patient of each slide; None if the cell is empty and the slide has no TCGA barcode.

    Raises:
        DataError: The table cannot be read, has no column of patients, or contradicts itself.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "patients.csv"
    >>> _ = path.write_text("case_id,slide_id\\np1,a.svs\\np1,b.svs\\n,c.svs\\n")
    >>> read_patients(path)
    {'a': 'p1', 'b': 'p1', 'c': None}
    """
    table = read_rows(path)
    column = table.header[table.need(PATIENT, "patient", "case_id")]
    return {slide: record.patient for slide, record in read_slide_column(path, column).items()}
