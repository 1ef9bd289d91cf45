"""Split files of other tools, so that methods are compared on the same slides.

- clam: `splits_0.csv`, ... with the columns train, val and test of slide ids, or
  `splits_0_bool.csv`, ... with True and False;
- transmil: `fold0.csv`, ... as clam, with a column of labels beside each;
- mil_baseline: `Total_5-fold_*_1fold.csv` with train_slide_path, train_label, val_slide_path, ...;
- patho_bench: `k=all.tsv` with case_id, slide_id, a label, and fold_0, fold_1, ... of train, val
  or test;
- torchmil: `splits.csv` with bag_name and split, as in the official list of CAMELYON16;
- stamp: `splits.json` with train_patients and test_patients of each fold;
- scmil: `splits.csv` with repeat, fold, part and bag, see `scmil.splits`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from scmil.bags.slide_ids import slide_id
from scmil.bags.splits import COLUMNS, Groups, Split, check_split, load_splits
from scmil.bags.table_rows import SLIDE, TextTable, read_rows
from scmil.core.tables import column_names
from scmil.core.text import first_names
from scmil.errors import DataError, SplitError

SUBSETS = {
    "train": "train",
    "training": "train",
    "test": "test",
    "testing": "test",
} | dict.fromkeys(("val", "valid", "validation"), "valid")
# One file per fold, with its number in the name. CLAM's plain files come before its _bool files,
# which contain the same splits.
FILES = (
    r"splits_(\d+)\.csv",
    r"splits_(\d+)_bool\.csv",
    r"fold_?(\d+)\.csv",
    r"Total_.*_(\d+)fold\.csv",
)
FOLD = re.compile(r"fold_(\d+)", re.IGNORECASE)
Named = dict[str, list[str]]  # slides or patients by subset: train, valid or test


class NamedFold(NamedTuple):
    """The names in the subsets of one split as a file has them: of slides or of patients."""

    path: Path
    subsets: Named
    of_patients: bool = False


class SplitFile(NamedTuple):
    """Splits as repeats of folds, the name of their format, and notes on what was left out."""

    splits: list[list[Split]]
    format: str
    notes: tuple[str, ...] = ()


def read_splits(
    path: str | Path, ids: Sequence[str], patients: Groups | None = None, *, missing: str = "error"
) -> SplitFile:
    """Read a split file of any tool, or a folder with one file per fold.

    The format is detected by the columns. Slides without a bag raise; with `missing="drop"` they
    are left out and noted. A patient in two subsets of a split raises if the patients are known.
    Files of scmil must fit the bags, see `scmil.splits.load_splits`.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "splits_0.csv"
    >>> _ = path.write_text(",train,val,test\\n0,a,c,d\\n1,b,,\\n")
    >>> read_splits(path, ids=["a", "b", "c", "d"])
    SplitFile(splits=[[Split(train=(0, 1), test=(3,), valid=(2,))]], format='clam', notes=())
    """
    if missing not in ("error", "drop"):
        raise SplitError(f"missing = {missing!r}: use 'error' or 'drop'.")
    path, finder = Path(path), _Finder(ids, patients, missing)
    try:
        format_name, splits = _read_path(path, finder)
    except DataError as error:  # of the table that contains the splits
        raise SplitError(str(error)) from None
    for split, where in (
        (split, f"fold {fold}") for folds in splits for fold, split in enumerate(folds)
    ):
        try:
            check_split(split, ids, patients)
        except SplitError as error:
            raise SplitError(f"{path}, {where}: {error}") from None
    return SplitFile(splits, format_name, finder.all_notes(splits))


@dataclass
class _Finder:
    """Finds the bags that a file names, and collects the names without a bag."""

    ids: Sequence[str]
    patients: Groups | None
    missing: str
    without_bag: dict[str, None] = field(default_factory=dict)  # names, in the order of the file
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.position = {slide_id(bag_id): i for i, bag_id in enumerate(self.ids)} | {
            bag_id: i for i, bag_id in enumerate(self.ids)
        }
        self.slides: dict[str | None, list[int]] = {}
        for i, patient in enumerate(self.patients or ()):
            self.slides.setdefault(patient, []).append(i)

    def split(self, fold: NamedFold) -> Split:
        """Return the split of these slides or patients."""
        path, subsets, of_patients = fold
        if of_patients and self.patients is None:
            raise SplitError(
                f"{path} contains splits of patients, but the patients of the bags are unknown. "
                "Give a table of labels with the patient of each bag."
            )
        found = {
            subset: [i for name in names for i in self._find(path, name, of_patients)]
            for subset, names in subsets.items()
        }
        if found.get("valid") and set(found["valid"]) == set(found.get("test", ())):
            self.notes.append(
                f"{path.name}: val and test are the same slides. They are the test split, and "
                "there is no validation split."
            )
            found["valid"] = []
        return Split(**{subset: tuple(found.get(subset, ())) for subset in Split._fields})

    def _find(self, path: Path, name: str, of_patients: bool) -> list[int]:
        if of_patients:
            found = self.slides.get(name, [])
        else:
            at = self.position.get(name, self.position.get(slide_id(name)))
            found = [] if at is None else [at]
        if not found and self.missing == "error":
            noun, known = (
                ("patient", list(map(str, self.slides)))
                if of_patients
                else ("slide", list(self.ids))
            )
            raise SplitError(
                f"{path}: {noun} {name!r} has no bag. The {noun}s of the bags are such as "
                f'{", ".join(known[:3])}. To leave out {noun}s without a bag: missing="drop".'
            )
        if not found:
            self.without_bag[name] = None
        return found

    def all_notes(self, splits: list[list[Split]]) -> tuple[str, ...]:
        """Return all notes, also on names without a bag and bags that no split contains."""
        used = {i for folds in splits for split in folds for subset in split for i in subset}
        unused = [bag_id for i, bag_id in enumerate(self.ids) if i not in used]
        for names, reason in (
            (list(self.without_bag), "left out, because they have no bag"),
            (unused, "bags that no split contains"),
        ):
            if names:
                self.notes.append(f"{reason} ({len(names)}): {first_names(names)}.")
        return tuple(self.notes)


def read_named_folds(path: str | Path) -> tuple[str, list[NamedFold]]:
    """Read the names in a split file of another tool, or in a folder of them, without bags.

    Nothing is checked: a name may be in several subsets.

    Args:
        path: The file, or the folder with one file per fold.

    Returns:
        The name of the format, and the folds.

    Raises:
        DataError: There is no split file, or it cannot be read.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "splits_0.csv"
    >>> _ = path.write_text(",train,val,test\\n0,a,c,c\\n1,b,,\\n")
    >>> read_named_folds(path)[1][0].subsets
    {'train': ['a', 'b'], 'valid': ['c'], 'test': ['c']}
    """
    path = Path(path)
    if not path.is_dir():
        return _read_named_file(path)
    files = [_read_named_file(file) for file in _find_split_files(path)]
    if len(formats := sorted({format_name for format_name, _ in files})) > 1:
        raise SplitError(
            f"{path}: split files of several tools, {', '.join(formats)}. Put the files of each "
            "tool into its own folder."
        )
    return formats[0], [fold for _, folds in files for fold in folds]


def _read_path(path: Path, finder: _Finder) -> tuple[str, list[list[Split]]]:
    """Return the format and the splits of a file or folder."""
    file = path
    if path.is_dir() and len(files := _find_split_files(path)) == 1:
        [file] = files
    if file.is_file() and _is_own(file):
        return "scmil", load_splits(file, finder.ids)
    format_name, folds = read_named_folds(file)
    return format_name, [[finder.split(fold) for fold in folds]]


def _is_own(path: Path) -> bool:
    """Whether a file has the columns of `save_splits`."""
    if path.suffix.lower() == ".json":
        return False
    return set(COLUMNS) <= {name.lower() for name in read_rows(path, ragged=True).header}


def _find_split_files(folder: Path) -> list[Path]:
    """Return the files with one fold each, by their number, or the one file with all folds."""
    names = sorted(file.name for file in folder.iterdir())
    for pattern in FILES:
        if found := {
            int(match[1]): folder / match[0]
            for match in (re.fullmatch(pattern, name) for name in names)
            if match
        }:
            return [file for _, file in sorted(found.items())]
    if whole := [
        folder / name for name in ("splits.json", "k=all.tsv", "splits.csv") if name in names
    ]:
        return whole[:1]
    raise SplitError(
        f"{folder}: no split file. Found {first_names(names, 5) or 'nothing'}; expected "
        "splits_0.csv, fold0.csv, splits.json or similar."
    )


def _read_named_file(path: Path) -> tuple[str, list[NamedFold]]:
    """Return the format and the folds of a file."""
    if path.suffix.lower() == ".json":
        return "stamp", _read_stamp(path)
    table = read_rows(path, ragged=True)
    lower = [name.lower() for name in table.header]
    if folds := {
        int(match[1]): at for at, name in enumerate(lower) if (match := FOLD.fullmatch(name))
    }:
        return "patho_bench", [_read_rows(table, column) for _, column in sorted(folds.items())]
    if "split" in lower:
        return "torchmil", [_read_rows(table, lower.index("split"))]
    columns = {
        SUBSETS[name.removesuffix("_slide_path")]: at
        for at, name in enumerate(lower)
        if _is_subset(name)
    }
    if "train" not in columns:
        raise SplitError(
            f"{path}: not a split file of a supported tool. Found the columns "
            f"{column_names(table.header)}; expected train, val and test, or a slide with split "
            "or fold_0, or repeat, fold, part and bag."
        )
    format_name = (
        "mil_baseline"
        if "train_slide_path" in lower
        else "transmil"
        if "train_label" in lower
        else "clam"
    )
    named = {
        subset: [row[at] for _, row in table.lines if row[at]] for subset, at in columns.items()
    }
    if {cell.lower() for cells in named.values() for cell in cells} <= {"true", "false"}:
        named = {
            subset: [row[0] for _, row in table.lines if row[at].lower() == "true"]
            for subset, at in columns.items()
        }
    return format_name, [NamedFold(path, named)]


def _is_subset(column: str) -> bool:
    return column.removesuffix("_slide_path") in SUBSETS


def _read_rows(table: TextTable, column: int) -> NamedFold:
    """Read a table with one row per slide and the name of its subset, which may be empty."""
    slides = table.need(SLIDE, "slide", "slide_id")
    subsets: Named = {}
    for number, row in table.lines:
        if not row[column]:
            continue
        if row[column].lower() not in SUBSETS:
            raise SplitError(
                f"{table.path}, line {number}: the split is {row[column]!r}, but must be train, "
                "val or test."
            )
        subsets.setdefault(SUBSETS[row[column].lower()], []).append(row[slides])
    return NamedFold(table.path, subsets)


def _read_stamp(path: Path) -> list[NamedFold]:
    """Return the folds of STAMP's splits of patients."""
    try:
        folds = [
            {
                SUBSETS[name.removesuffix("_patients")]: list(map(str, patients))
                for name, patients in fold.items()
                if name.removesuffix("_patients") in SUBSETS
            }
            for fold in json.loads(path.read_bytes())["splits"]
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        expected = '{"splits": [{"train_patients": [...], "test_patients": [...]}, ...]}'
        raise SplitError(
            f"{path} cannot be read as splits of patients ({error!r}). Expected {expected}."
        ) from None
    return [NamedFold(path, fold, of_patients=True) for fold in folds]
