"""Other tools' splits as ours, and ours as theirs, so that a comparison is on the same slides.

clam          splits_0.csv ...          columns train, val, test of slide ids; splits_0_bool.csv: True and False
transmil      fold0.csv ...             the same with a column of labels beside each
mil_baseline  Total_5-fold_*_1fold.csv  train_slide_path, train_label, val_slide_path, ...
patho_bench   k=all.tsv                 case_id, slide_id, a label, fold_0, fold_1, ...: train, val or test
torchmil      splits.csv                bag_name, split; so has CAMELYON16's official list
stamp         splits.json               train_patients and test_patients of each fold
scmil         splits.csv                repeat, fold, part, bag: `scmil.splits`
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from scmil.errors import DataError, SplitError
from scmil.core.files import column_names, no_formula, utf8, write_atomically
from scmil.bags.labels import SLIDE, Rows, read_rows, slide_id
from scmil.bags.splits import COLUMNS, Groups, Split, check_split, load_splits

PARTS = {"train": "train", "training": "train", "test": "test", "testing": "test"} | dict.fromkeys(
    ("val", "valid", "validation"), "valid"
)
THEIRS = {"train": "train", "valid": "val", "test": "test"}  # our name of a part, and everyone else's
# A fold a file: the number in the name is the fold. CLAM's plain files come before its _bool files, which say the same.
FILES = (r"splits_(\d+)\.csv", r"splits_(\d+)_bool\.csv", r"fold_?(\d+)\.csv", r"Total_.*_(\d+)fold\.csv")
FOLD = re.compile(r"fold_(\d+)", re.IGNORECASE)
Named = dict[str, list[str]]  # part: the slides or patients in it


class SplitFile(NamedTuple):
    """The splits that were read, in repeats of folds; whose file it was; and what was left out."""

    splits: list[list[Split]]
    format: str
    notes: tuple[str, ...] = ()


def read_splits(
    path: str | Path, ids: Sequence[str], patients: Groups | None = None, *, missing: str = "error"
) -> SplitFile:
    """Read a file of splits, or a folder with a file a fold, over these bags; the tool is known by its columns.

    Slides of the file that have no bag are refused, or with `missing="drop"` left out and noted. A patient in two parts of
    a split is refused if the patients are known. Our own file has to fit the bags: `scmil.splits.load_splits`.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "splits_0.csv"
    >>> _ = path.write_text(",train,val,test\\n0,a,c,d\\n1,b,,\\n")
    >>> read_splits(path, ids=["a", "b", "c", "d"])
    SplitFile(splits=[[Split(train=(0, 1), test=(3,), valid=(2,))]], format='clam', notes=())
    """
    if missing not in ("error", "drop"):
        raise SplitError(f"missing = {missing!r}: 'error' or 'drop' is needed.")
    path, finder = Path(path), _Finder(ids, patients, missing)
    try:
        format, splits = _read(path, finder)
    except DataError as error:  # of the table; for who asks for splits it is a matter of splits
        raise SplitError(str(error)) from None
    for split, where in ((split, f"fold {fold}") for folds in splits for fold, split in enumerate(folds)):
        try:
            check_split(split, ids, patients)
        except SplitError as error:
            raise SplitError(f"{path}, {where}: {error}") from None
    return SplitFile(splits, format, finder.all_notes(splits))


def write_splits(
    path: str | Path,
    splits: Sequence[Split],
    ids: Sequence[str],
    format: str,
    *,
    labels: Sequence[object] | None = None,
    patients: Groups | None = None,
    name: str = "scmil",
) -> list[Path]:
    """Write the folds of one repeat for another tool: into a folder, under the names that the tool expects.

    TransMIL, MIL_BASELINE and Patho-Bench need the labels too, STAMP needs the patients; `name` is in MIL_BASELINE's file
    names. Returns the files.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> [file] = write_splits(folder, [Split(train=(0,), test=(1,))], ["a", "b"], "torchmil")
    >>> file.name, file.read_text().split()
    ('splits.csv', ['bag_name,split', 'a,train', 'b,test'])
    """
    if format not in WRITERS:
        raise SplitError(f"unknown format {format!r} of splits. Known: {', '.join(WRITERS)}.")
    for split in splits:
        check_split(split, ids, patients)
    task = _Task(splits, ids, labels, patients, name)
    files = {Path(path) / file: content for file, content in WRITERS[format](task).items()}
    for file, content in files.items():
        write_atomically(file, utf8(content))
    return list(files)


# ------------------------------------------------------------------------------------------------------------- reading


@dataclass
class _Finder:
    """Finds the bags that a file names, and remembers those that it does not find."""

    ids: Sequence[str]
    patients: Groups | None
    missing: str
    lost: dict[str, None] = field(default_factory=dict)  # in the order in which they were met
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.position = {slide_id(id): i for i, id in enumerate(self.ids)} | {id: i for i, id in enumerate(self.ids)}
        self.slides: dict[str | None, list[int]] = {}
        for i, patient in enumerate(self.patients or ()):
            self.slides.setdefault(patient, []).append(i)

    def split(self, path: Path, parts: Named, of_patients: bool = False) -> Split:
        """A split from the names in its parts."""
        found = {
            part: [i for name in names for i in self._find(path, name, of_patients)] for part, names in parts.items()
        }
        if found.get("valid") and set(found["valid"]) == set(found.get("test", ())):
            self.notes.append(
                f"{path.name}: val and test are the same slides; they are for the test, none for choosing."
            )
            found["valid"] = []
        return Split(**{part: tuple(found.get(part, ())) for part in Split._fields})

    def _find(self, path: Path, name: str, of_patients: bool) -> list[int]:
        if of_patients:
            found = self.slides.get(name, [])
        else:
            at = self.position.get(name, self.position.get(slide_id(name)))
            found = [] if at is None else [at]
        if not found and self.missing == "error":
            what, such = ("patient", list(map(str, self.slides))) if of_patients else ("slide", list(self.ids))
            raise SplitError(
                f"{path}: {what} {name!r} has no bag. Ids here are such as {', '.join(such[:3])}. "
                'Leave out what has no bag: missing="drop".'
            )
        if not found:
            self.lost[name] = None
        return found

    def all_notes(self, splits: list[list[Split]]) -> tuple[str, ...]:
        used = {i for folds in splits for split in folds for part in split for i in part}
        unused = [id for i, id in enumerate(self.ids) if i not in used]
        for names, what in (
            (list(self.lost), "left out, because they have no bag"),
            (unused, "bags in no part of any split"),
        ):
            if names:
                more = f" and {len(names) - 3} more" if len(names) > 3 else ""
                self.notes.append(f"{what} ({len(names)}): {', '.join(names[:3])}{more}.")
        return tuple(self.notes)


def _read(path: Path, finder: _Finder) -> tuple[str, list[list[Split]]]:
    if not path.is_dir():
        return _read_file(path, finder)
    met = [_read_file(file, finder) for file in _folds_in(path)]
    if len(met) == 1:
        return met[0]
    if len(formats := sorted({format for format, _ in met})) > 1:
        raise SplitError(f"{path}: files of several tools, {', '.join(formats)}. Give each a folder of its own.")
    return formats[0], [[split for _, repeats in met for folds in repeats for split in folds]]


def _folds_in(folder: Path) -> list[Path]:
    """The files of a folder that are a fold each, by their number, or the one file that has all folds."""
    names = sorted(file.name for file in folder.iterdir())
    for pattern in FILES:
        if found := {
            int(match[1]): folder / match[0] for match in (re.fullmatch(pattern, name) for name in names) if match
        }:
            return [file for _, file in sorted(found.items())]
    if whole := [folder / name for name in ("splits.json", "k=all.tsv", "splits.csv") if name in names]:
        return whole[:1]
    met = ", ".join(names[:5]) or "nothing"
    raise SplitError(
        f"{folder}: no file of splits; met {met}. Expected splits_0.csv, fold0.csv, splits.json or the like."
    )


def _read_file(path: Path, finder: _Finder) -> tuple[str, list[list[Split]]]:
    if path.suffix.lower() == ".json":
        return "stamp", [_read_stamp(path, finder)]
    table = read_rows(path, ragged=True)
    lower = [name.lower() for name in table.header]
    if set(COLUMNS) <= set(lower):
        return "scmil", load_splits(path, finder.ids)
    if folds := {int(match[1]): at for at, name in enumerate(lower) if (match := FOLD.fullmatch(name))}:
        return "patho_bench", [[_by_rows(table, column, finder) for _, column in sorted(folds.items())]]
    if "split" in lower:
        return "torchmil", [[_by_rows(table, lower.index("split"), finder)]]
    columns = {PARTS[name.removesuffix("_slide_path")]: at for at, name in enumerate(lower) if _is_part(name)}
    if "train" not in columns:
        raise SplitError(
            f"{path}: no splits of a tool that is known; met {column_names(table.header)}. Expected "
            "train, val and test, or a slide with split or fold_0, or repeat, fold, part and bag."
        )
    format = "mil_baseline" if "train_slide_path" in lower else "transmil" if "train_label" in lower else "clam"
    cells = {part: [row[at] for _, row in table.lines if row[at]] for part, at in columns.items()}
    if {cell.lower() for part in cells.values() for cell in part} <= {"true", "false"}:
        cells = {part: [row[0] for _, row in table.lines if row[at].lower() == "true"] for part, at in columns.items()}
    return format, [[finder.split(path, cells)]]


def _is_part(column: str) -> bool:
    return column.removesuffix("_slide_path") in PARTS


def _by_rows(table: Rows, column: int, finder: _Finder) -> Split:
    """One line a slide, with the name of its part; a slide without one is in none."""
    slides = table.need(SLIDE, "slide", "slide_id")
    parts: Named = {}
    for number, row in table.lines:
        if not row[column]:
            continue
        if row[column].lower() not in PARTS:
            raise SplitError(f"{table.path}, line {number}: part {row[column]!r}; train, val or test is needed.")
        parts.setdefault(PARTS[row[column].lower()], []).append(row[slides])
    return finder.split(table.path, parts)


def _read_stamp(path: Path, finder: _Finder) -> list[Split]:
    if finder.patients is None:
        raise SplitError(f"{path} splits patients: the patient of every bag is needed, from a table of labels.")
    try:
        folds = [
            {
                PARTS[name.removesuffix("_patients")]: list(map(str, patients))
                for name, patients in fold.items()
                if name.removesuffix("_patients") in PARTS
            }
            for fold in json.loads(path.read_bytes())["splits"]
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        expected = '{"splits": [{"train_patients": [...], "test_patients": [...]}, ...]}'
        raise SplitError(f"{path} cannot be read as splits of patients ({error!r}). Expected {expected}.") from None
    return [finder.split(path, fold, of_patients=True) for fold in folds]


# ------------------------------------------------------------------------------------------------------------- writing


@dataclass(frozen=True)
class _Task:
    """What is to be written."""

    splits: Sequence[Split]
    ids: Sequence[str]
    given_labels: Sequence[object] | None
    given_patients: Groups | None
    name: str

    @property
    def labels(self) -> Sequence[object]:
        if self.given_labels is None or len(self.given_labels) != len(self.ids):
            raise SplitError(f"this format has labels in it: the label of each of the {len(self.ids)} bags is needed.")
        return self.given_labels

    @property
    def patients(self) -> list[str]:
        patients = [patient for patient in self.given_patients or () if patient is not None]
        if len(patients) != len(self.ids):
            raise SplitError(
                f"this format has patients in it: the patient of each of the {len(self.ids)} bags is needed."
            )
        return patients


def _clam(task: _Task) -> dict[str, str]:
    files = {}
    for fold, split in enumerate(task.splits):
        parts = {theirs: getattr(split, ours) for ours, theirs in THEIRS.items()}
        columns = [[task.ids[i] for i in part] for part in parts.values()]
        files[f"splits_{fold}.csv"] = _side_by_side(parts, columns, numbered=True)
        everyone = [i for part in parts.values() for i in part]
        rows = [[task.ids[i], *(i in part for part in map(set, parts.values()))] for i in everyone]
        files[f"splits_{fold}_bool.csv"] = _csv([["", *parts], *rows])
    return files


def _with_labels(task: _Task, split: Split, column: str, numbered: bool) -> str:
    header, columns = [], []
    for ours, theirs in THEIRS.items():
        header += [column.format(theirs), f"{theirs}_label"]
        columns += [[task.ids[i] for i in getattr(split, ours)], [task.labels[i] for i in getattr(split, ours)]]
    return _side_by_side(header, columns, numbered)


def _transmil(task: _Task) -> dict[str, str]:
    return {f"fold{fold}.csv": _with_labels(task, split, "{}", True) for fold, split in enumerate(task.splits)}


def _mil_baseline(task: _Task) -> dict[str, str]:
    return {
        f"Total_{len(task.splits)}-fold_{task.name}_{fold}fold.csv": _with_labels(task, split, "{}_slide_path", False)
        for fold, split in enumerate(task.splits, start=1)
    }


def _patho_bench(task: _Task) -> dict[str, str]:
    parts = [{i: THEIRS[ours] for ours in THEIRS for i in getattr(split, ours)} for split in task.splits]
    header = ["case_id", "slide_id", "label", *(f"fold_{fold}" for fold in range(len(parts)))]
    rows = [
        [task.patients[i], id, task.labels[i], *(part.get(i, "") for part in parts)] for i, id in enumerate(task.ids)
    ]
    return {"k=all.tsv": _csv([header, *rows], "\t")}


def _torchmil(task: _Task) -> dict[str, str]:
    if len(task.splits) != 1:
        raise SplitError(
            f"torchmil's splits.csv has one split, not {len(task.splits)}. Write each into its own folder."
        )
    rows = [[task.ids[i], THEIRS[ours]] for ours in THEIRS for i in getattr(task.splits[0], ours)]
    return {"splits.csv": _csv([["bag_name", "split"], *rows])}


def _stamp(task: _Task) -> dict[str, str]:
    if any(split.valid for split in task.splits):
        raise SplitError("STAMP draws its validation from the training patients itself: it takes no valid part.")
    folds = [
        {f"{part}_patients": sorted({task.patients[i] for i in getattr(split, part)}) for part in ("train", "test")}
        for split in task.splits
    ]
    return {"splits.json": json.dumps({"splits": folds}, indent=2) + "\n"}


WRITERS: Mapping[str, Callable[[_Task], dict[str, str]]] = {
    "clam": _clam,
    "transmil": _transmil,
    "mil_baseline": _mil_baseline,
    "patho_bench": _patho_bench,
    "torchmil": _torchmil,
    "stamp": _stamp,
}


def _side_by_side(header: Iterable[str], columns: Sequence[Sequence[object]], numbered: bool) -> str:
    """Columns of different lengths, the short ones filled with blanks."""
    longest = max(map(len, columns))
    rows = [[column[at] if at < len(column) else "" for column in columns] for at in range(longest)]
    if numbered:
        return _csv([["", *header], *([at, *row] for at, row in enumerate(rows))])
    return _csv([[*header], *rows])


def _csv(rows: Iterable[Sequence[object]], separator: str = ",") -> str:
    text = io.StringIO()
    csv.writer(text, delimiter=separator, lineterminator="\n").writerows(map(no_formula, row) for row in rows)
    return text.getvalue()
