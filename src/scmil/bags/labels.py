"""Which class and which patient a slide belongs to: tables in the column names that people use.

CLAM, TRIDENT, STAMP, slideflow, DSMIL, ILRA and MIL_BASELINE name the same three columns in their own ways; all of them
are read, whatever the case of the letters. Ids are text, always: the zeros of "007" stay.
"""

from __future__ import annotations

import csv
import difflib
import io
import re
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from scmil.errors import DataError
from scmil.core.extras import need
from scmil.core.files import check_regular, column_names, unquoted
from scmil.core.safe_io import CELLS, check_archive

SLIDE = ("slide_id", "slide", "filename", "wsi", "image_id", "bag", "bag_name", "slide_path", "0")  # "0": DSMIL's index
PATIENT = ("case_id", "patient", "patient_id", "case")
LABEL = ("label", "target", "class", "category", "y")
OTHER = ("", "unnamed: 0", "fold", "split", "mpp", "source", "dataset")  # never a label unless it is named
BLANK = ("", "nan", "na", "n/a", "#n/a", "<na>", "null")
# What may be a class, as "None" is a stage in CAMELYON17, or say that nothing is known: asked about.
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
SUFFIXES = re.compile(
    r"\.(svs|tiff?|ome|ndpi|mrxs|scn|bif|vsi|vms|vmu|svslide|czi|qptiff|dcm|zarr|h5|hdf5|pt|pth|npy|npz|csv|safetensors"
    r"|jpe?g|png)$",
    re.IGNORECASE,
)
BARCODE = re.compile(r"(TCGA-\w{2}-\w{4})(-.*)?")
SEPARATORS = ",\t;"


class Rows(NamedTuple):
    """A table as it stands in its file: the names of the columns, and the cells of each line with its number."""

    path: Path
    header: tuple[str, ...]
    lines: tuple[tuple[int, tuple[str, ...]], ...]

    def find(self, names: Iterable[str]) -> int | None:
        """The position of the first of these names that is a column, whatever the case of its letters."""
        lower = [name.lower() for name in self.header]
        for name in names:
            if lower.count(name.lower()) > 1:
                raise DataError(f"{self.path}: {lower.count(name.lower())} columns are called {name!r}. Rename one.")
            if name.lower() in lower:
                return lower.index(name.lower())
        return None

    def need(self, names: Sequence[str], what: str, option: str) -> int:
        """The same, or say which columns there are, and which was probably meant."""
        if (column := self.find(names)) is not None:
            return column
        met = {name.lower(): name for name in self.header if name}
        near = [word for name in names for word in difflib.get_close_matches(name.lower(), met, n=1)]
        listed = column_names(met.values())
        hint = f" The nearest is {met[near[0]]!r}." if near and met[near[0]] in listed else ""
        if not met.keys() & {*SLIDE, *PATIENT, *LABEL, *OTHER}:
            hint += " Does the file begin with a line that names its columns?"
        expected = " or ".join(map(repr, names[:3]))
        raise DataError(
            f"{self.path}: no column {expected} for the {what}; met {listed}.{hint} Name the column: {option}."
        )


@dataclass(frozen=True)
class Labels:
    """The class and the patient of each slide.

    >>> labels = Labels(("s1", "s2", "s3"), ("tumor", None, "normal"), ("normal", "tumor"), ("ann", "ann", None))
    >>> labels.of("s1"), labels.of("s2"), labels.of("unknown")
    ((1, 'ann'), (None, 'ann'), (None, None))
    >>> len(labels), labels.counts(), "s3" in labels
    (3, {'normal': 1, 'tumor': 1}, True)
    """

    ids: tuple[str, ...]
    names: tuple[str | None, ...]  # the class of each slide, None if it is not known
    classes: tuple[str, ...]
    patients: tuple[str | None, ...]
    notes: tuple[str, ...] = ()  # what was merged, left out or concluded while reading
    spellings: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # of classes that were spelled in several ways

    @cached_property
    def _position(self) -> dict[str, int]:
        return {id: position for position, id in enumerate(self.ids)}

    def of(self, id: str) -> tuple[int | None, str | None]:
        """The number of a slide's class, and its patient; None for what is not known. A file name will do for an id."""
        if id not in self:
            return None, None
        position = self._position[slide_id(id)]
        name = self.names[position]
        return None if name is None else self.classes.index(name), self.patients[position]

    def __contains__(self, id: str) -> bool:
        return slide_id(id) in self._position

    def __len__(self) -> int:
        return len(self.ids)

    def counts(self) -> dict[str, int]:
        """How many slides each class has."""
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
    """Read the labels of slides from a .csv, .tsv or .xlsx table; columns are found by their usual names, or named.

    With `slides`, `path` is a table of patients and `slides` says which slides are whose, as STAMP has it. Classes are
    sorted, numbers as numbers, or in the order of `classes`. Without a column of patients, TCGA barcodes name them.

    Classes that differ only in case, spaces or Unicode normalisation are one class, which is noted. Blank cells, NaN and
    n/a are missing labels. Words such as None, unknown, - and ? may be a class or a missing label: they are rejected until
    `missing` lists those that mean a missing label, which may be none of them; the others are then classes.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "labels.csv"
    >>> _ = path.write_text("case_id,slide_id,label\\n007,007_a.svs,tumor\\n007,007_b.svs,tumor\\n008,008_a.svs,normal\\n")
    >>> labels = read_labels(path)
    >>> labels.ids, labels.classes, labels.of("007_b")
    (('007_a', '007_b', '008_a'), ('normal', 'tumor'), (1, '007'))
    """
    table = read_rows(path)
    notes: list[str] = []
    unknown = {*BLANK, *(word.strip().lower() for word in missing or ())}
    if slides is not None:
        records = _joined(table, read_rows(slides), slide, label, patient, unknown, notes)
    else:
        records = _records(table, slide, label, patient, unknown)
    if missing is None:
        _ask_about(path, records, classes or ())
    merged = _merged(records, notes)
    if not merged:
        raise DataError(f"{path}: there is no slide below the names of the columns.")
    names = [record.label for record in merged.values()]
    if blank := names.count(None):
        notes.append(f"slides without a label ({blank} of {len(names)}): {_some(_unlabelled(merged))}.")
    ordered, spelled = _classes(path, names, classes)
    spellings = {name: those for name in ordered if len(those := _spellings(names, spelled, name)) > 1}
    for name, those in spellings.items():
        words = ", ".join(f"{word!r} ({names.count(word)})" for word in those)
        notes.append(f"{words} are one class, {name!r}: they differ only in case, spaces or Unicode normalisation.")
    patients = [record.patient for record in merged.values()]
    if slides is None and table.find([patient] if patient else PATIENT) is None:
        patients = _patients_by_barcode(merged, notes)
    final = tuple(None if name is None else spelled[name] for name in names)
    return Labels(tuple(merged), final, ordered, tuple(patients), tuple(notes), spellings)


def slide_id(text: str) -> str:
    """The id of a slide, from its id, its file name or its path: the name without folders and known suffixes.

    >>> slide_id("data/CAMELYON16/tumor_001.tif"), slide_id(r"C:\\scans\\007.ndpi"), slide_id("TCGA-05.1b2c-3d.svs.h5")
    ('tumor_001', '007', 'TCGA-05.1b2c-3d')
    """
    name = text.strip().replace("\\", "/").rstrip("/").rpartition("/")[2]
    while (shorter := SUFFIXES.sub("", name)) and shorter != name:
        name = shorter
    return name


def other_normalisation(ids: Iterable[str], rows: Iterable[str]) -> dict[str, str]:
    """The ids that are not among the rows of a table but for their Unicode normalisation, each with its row.

    Letters with accents are one character (NFC) or two (NFD, as macOS writes them into file names): they look the same.

    >>> other_normalisation(["Mu\u0308ller", "Schmidt"], ["M\u00fcller", "Schmidt"]) == {"Mu\u0308ller": "M\u00fcller"}
    True
    """
    exact = set(rows)
    normal = {unicodedata.normalize("NFC", row): row for row in exact}
    lost = [id for id in ids if slide_id(id) not in exact]
    found = {id: normal.get(unicodedata.normalize("NFC", slide_id(id))) for id in lost}
    return {id: row for id, row in found.items() if row is not None}


def read_rows(path: str | Path, *, ragged: bool = False) -> Rows:
    """Read a table of text cells; commas, tabs and semicolons separate columns. `ragged` lines may end early.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "table.csv"
    >>> _ = path.write_text("slide;label\\n007;1\\n")
    >>> read_rows(path)[1:]
    (('slide', 'label'), ((2, ('007', '1')),))
    """
    path = Path(path)
    try:
        check_regular(path)
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    lines = _sheet(path, content) if path.suffix.lower() == ".xlsx" else _text_lines(path, content)
    stripped = ((number, [cell.strip() for cell in cells]) for number, cells in lines)
    kept = ((number, cells) for number, cells in stripped if any(cells))
    header = next((cells for _, cells in kept), None)
    if header is None:
        raise DataError(f"{path} is empty. A line that names the columns is needed, and a line for every slide.")
    rows = ((number, tuple(_fitted(path, number, cells, len(header), ragged))) for number, cells in kept)
    return Rows(path, tuple(header), tuple(rows))


def _text_lines(path: Path, content: bytes) -> Iterator[tuple[int, list[str]]]:
    encoding = "utf-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise DataError(f"{path}, line {line}: the bytes are not UTF-8. Save the table as CSV in UTF-8.") from None
    header = next((line for line in text.splitlines() if line.strip()), "")
    separator = max(SEPARATORS, key=header.count)
    if separator not in header and re.search(r"\w[|: ]+\w", header):
        raise DataError(f"{path}: one column. Separate columns by commas, tabs or semicolons, and name them in line 1.")
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    try:
        for cells in lines:
            yield lines.line_num, [unquoted(cell) for cell in cells]
    except csv.Error as error:
        raise DataError(f"{path}, line {lines.line_num}: {error}.") from None


def _sheet(path: Path, content: bytes) -> Iterator[tuple[int, list[str]]]:
    """The first sheet of a workbook."""
    openpyxl: Any = need("openpyxl", "tables")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            check_archive(archive)
        book = openpyxl.load_workbook(io.BytesIO(content), read_only=True, data_only=True)
        rows = list(_few_cells(book.worksheets[0].iter_rows(values_only=True)))
        book.close()
    except Exception as error:  # a damaged workbook fails in zip, XML or styles, each in its own way
        raise DataError(f"{path} cannot be read as a workbook: {error}. Save the table as CSV.") from None
    for number, cells in enumerate(rows, start=1):
        yield number, [_cell(cell) for cell in cells]


def _few_cells(rows: Iterable[Sequence[object]]) -> Iterator[Sequence[object]]:
    """The rows of a sheet; a cell far away from the others would put billions of empty ones between."""
    cells = 0
    for number, row in enumerate(rows, start=1):
        cells += max(len(row), 1)
        if cells > CELLS:
            raise DataError(f"more than {CELLS} cells up to row {number}, with the empty ones")
        yield () if row.count(None) == len(row) else row


def _cell(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "" if value is None else str(value)


def _fitted(path: Path, number: int, cells: list[str], width: int, ragged: bool) -> list[str]:
    missing = width - len(cells)
    if any(cells[width:]) or (missing > 0 and not ragged):
        raise DataError(
            f"{path}, line {number}: {len(cells)} values, but {width} columns are named. Quote commas in text."
        )
    return cells[:width] + [""] * missing


class _Record(NamedTuple):
    where: str
    slide: str
    label: str | None
    patient: str | None


def _ask_about(path: str | Path, records: Sequence[_Record], classes: Sequence[str]) -> None:
    """Reject words that may be a class, or a patient, or say that nothing is known; those among the classes are classes."""
    for column in ("label", "patient"):
        lines: dict[str, list[str]] = {}
        for record in records:
            word = getattr(record, column)
            if word is not None and word.lower() in DOUBTFUL and not (column == "label" and word in classes):
                lines.setdefault(word, []).append(record.where.rpartition(" ")[2])
        if lines:
            said = "; ".join(f"{word!r} in line {_some(where)}" for word, where in lines.items())
            raise DataError(
                f"{path}: a {column}, or a word for a missing one? {said}. Say which words mean a missing {column}: "
                f"--missing '{','.join(lines)}'; or, if none does: --missing ''. (In an experiment: missing under [data].)"
            )


def _records(
    table: Rows, slide: str | None, label: str | None, patient: str | None, unknown: Collection[str]
) -> list[_Record]:
    if slide is None and table.find(SLIDE) is None and table.find(PATIENT) is not None:
        raise DataError(
            f"{table.path} is a table of patients: {column_names(table.header)}. Give the table that says which slides are "
            f"whose as well: slides=, with the columns {PATIENT[1]} and {SLIDE[2]}."
        )
    slides, labels = _slide_column(table, slide), _label_column(table, label)
    patients = table.need([patient], "patient", "patient=") if patient else table.find(PATIENT)
    return [
        _Record(
            f"{table.path}, line {number}",
            _id_of(table, number, cells[slides]),
            _known(cells[labels], unknown),
            None if patients is None else _known(cells[patients], unknown),
        )
        for number, cells in table.lines
    ]


def _joined(
    clini: Rows,
    slide_table: Rows,
    slide: str | None,
    label: str | None,
    patient: str | None,
    unknown: Collection[str],
    notes: list[str],
) -> list[_Record]:
    """STAMP's two tables: the label of a slide is its patient's."""
    names = [patient] if patient else PATIENT
    of_patient, labels = clini.need(names, "patient", "patient="), _label_column(clini, label)
    known = _merged(
        [
            _Record(f"{clini.path}, line {at}", cells[of_patient], _known(cells[labels], unknown), None)
            for at, cells in clini.lines
        ],
        notes,
        "patient",
    )
    owner, slides = slide_table.need(names, "patient", "patient="), _slide_column(slide_table, slide)
    records = []
    for number, cells in slide_table.lines:
        label_of = known[cells[owner]].label if cells[owner] in known else None
        id = _id_of(slide_table, number, cells[slides])
        records.append(_Record(f"{slide_table.path}, line {number}", id, label_of, _known(cells[owner], unknown)))
    met = {cells[owner] for _, cells in slide_table.lines}
    for what, ids in (("patients without slides", known.keys() - met), ("patients without a line", met - known.keys())):
        if ids:
            notes.append(f"{what} in {clini.path.name} ({len(ids)}): {_some(sorted(ids))}.")
    return records


def _slide_column(table: Rows, slide: str | None) -> int:
    return table.need([slide] if slide else SLIDE, "slide", "slide=")


def _label_column(table: Rows, label: str | None) -> int:
    """The column of the labels: as named, by its usual name, or the only one that is left."""
    if label is None and table.find(LABEL) is None:
        taken = {*SLIDE, *PATIENT, *OTHER}
        left = [position for position, name in enumerate(table.header) if name.lower() not in taken]
        if len(left) == 1:
            return left[0]
    return table.need([label] if label else LABEL, "label", "label=")


def _id_of(table: Rows, number: int, cell: str) -> str:
    if not (id := slide_id(cell)):
        raise DataError(f"{table.path}, line {number}: no slide is named. Fill the cell, or delete the line.")
    return id


def _known(cell: str, unknown: Collection[str]) -> str | None:
    return None if cell.lower() in unknown else cell


def _merged(records: Iterable[_Record], notes: list[str], what: str = "slide") -> dict[str, _Record]:
    """One record an id; lines that repeat it fill what is blank, and must not contradict."""
    merged: dict[str, _Record] = {}
    repeated: list[str] = []
    for record in records:
        first = merged.get(record.slide)
        if first is None:
            merged[record.slide] = record
            continue
        for column in ("label", "patient"):
            one, other = getattr(first, column), getattr(record, column)
            same = one == other or (column == "label" and _compared(one or "") == _compared(other or ""))
            if None not in (one, other) and not same:
                raise DataError(
                    f"{record.where}: {what} {record.slide!r} has the {column} {other!r}, but {one!r} in "
                    f"line {first.where.rpartition(' ')[2]}. One {what} has one {column}: correct the table."
                )
        repeated.append(record.slide)
        merged[record.slide] = first._replace(
            label=first.label if first.label is not None else record.label,
            patient=first.patient if first.patient is not None else record.patient,
        )
    if repeated:
        notes.append(f"lines that repeat a {what} and agree are merged ({len(repeated)}): {_some(repeated)}.")
    return merged


def _compared(word: str) -> float | str:
    """A label for comparison: 1 and 1.0 are one class, and so are Tumour and TUMOUR.

    >>> _compared("1.0"), _compared("Invasive  CARCINOMA"), _compared("Tumo\u0308r") == _compared("TUM\u00d6R")
    (1.0, 'invasive carcinoma', True)
    """
    text = unicodedata.normalize("NFC", " ".join(word.split()).casefold())
    try:
        value = float(word)
    except ValueError:
        return text
    return value if value == value else text


def _spellings(names: Sequence[str | None], spelled: Mapping[str, str], name: str) -> tuple[str, ...]:
    """The spellings of a class that were met; numbers are written in several ways, and that is no matter."""
    return tuple(
        sorted({word for word in names if word and spelled[word] == name and isinstance(_compared(word), str)})
    )


def _classes(
    path: str | Path, names: Sequence[str | None], given: Sequence[str] | None
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The classes in their order, and how each name that was met is spelled."""
    counts = Counter(name for name in names if name is not None)
    met = {name: _compared(name) for name in counts}
    values: set[Any] = set(met.values())
    if given is not None:
        order: dict[Any, str] = {_compared(name): name for name in given}
        for name, value in met.items():
            if name not in given and value not in order:
                near = difflib.get_close_matches(name, given, n=1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                raise DataError(f"{path}: label {name!r} is not among the classes {', '.join(given)}.{hint}")
        return tuple(given), {name: name if name in given else order[value] for name, value in met.items()}
    if len(values) < 2:
        only = f"every label is {next(iter(met))!r}" if met else "no slide has a label"
        raise DataError(f"{path}: {only}; two classes are needed. If this is a part of a cohort, name all: classes=.")
    if all(isinstance(value, float) for value in values):
        return tuple(f"{value:.15g}" for value in sorted(values)), {
            name: f"{value:.15g}" for name, value in met.items()
        }
    usual: dict[Any, str] = {}
    for name in sorted(met, key=lambda name: (-counts[name], name)):
        usual.setdefault(met[name], name)  # a class is called what it is called most often
    return tuple(sorted(usual.values())), {name: usual[value] for name, value in met.items()}


def _patients_by_barcode(merged: dict[str, _Record], notes: list[str]) -> list[str | None]:
    barcodes = [BARCODE.fullmatch(id) for id in merged]
    if found := sum(match is not None for match in barcodes):
        notes.append(
            f"no column of patients: taken from the first three parts of TCGA barcodes ({found} of {len(merged)} slides)."
        )
    return [match and match[1] for match in barcodes]


def _unlabelled(merged: dict[str, _Record]) -> list[str]:
    return [id for id, record in merged.items() if record.label is None]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
