"""Split files for other tools, so that methods are compared on the same slides.

`scmil.bags.split_files` lists the files of each tool.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from scmil.bags.splits import Groups, Split, check_split
from scmil.core.outputs import Outputs
from scmil.core.tables import csv_bytes
from scmil.errors import SplitError

T = TypeVar("T")
# The subsets of a split as scmil names them, and as all other tools do.
TOOL_NAMES = {"train": "train", "valid": "val", "test": "test"}
# The split format that is used with each format of bags; Patho-Bench reads TRIDENT's features.
SPLIT_FORMATS = {"clam": "clam", "trident": "patho_bench", "torchmil": "torchmil"}


def write_splits(
    folder: str | Path,
    splits: Sequence[Split],
    ids: Sequence[str],
    format_name: str,
    *,
    labels: Sequence[object] | None = None,
    patients: Groups | None = None,
    name: str = "scmil",
    overwrite: bool = False,
) -> list[Path]:
    """Write the folds of one repeat into a folder, with the file names that another tool expects.

    TransMIL, MIL_BASELINE and Patho-Bench need `labels`, STAMP and Patho-Bench need `patients`.
    `name` becomes part of MIL_BASELINE's file names. Files that scmil did not write are replaced
    only with `overwrite`. Returns the paths of the files.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> [file] = write_splits(folder, [Split(train=(0,), test=(1,))], ["a", "b"], "torchmil")
    >>> file.name, file.read_text().split()
    ('splits.csv', ['bag_name,split', 'a,train', 'b,test'])
    """
    if format_name not in WRITERS:
        raise SplitError(
            f"unknown split format {format_name!r}. Expected one of: {', '.join(WRITERS)}."
        )
    for split in splits:
        check_split(split, ids, patients)
    contents = WRITERS[format_name](_SplitTable(splits, ids, labels, patients, name))
    outputs = Outputs(folder, "export", overwrite)
    paths = {Path(folder) / file: content for file, content in contents.items()}
    outputs.check(*paths)
    for path, content in paths.items():
        outputs.write(path, content)
    return list(paths)


def write_repeats(
    folder: str | Path,
    repeats: Sequence[Sequence[Split]],
    ids: Sequence[str],
    format_name: str,
    *,
    labels: Sequence[object] | None = None,
    patients: Groups | None = None,
    overwrite: bool = False,
) -> list[Path]:
    """Write all repeats: one into the folder itself, several into `repeat_0`, `repeat_1`, ...

    torchmil looks for `splits.csv` beside its features, the others get a folder `splits`.

    >>> import tempfile
    >>> split = Split(train=(0,), test=(1,))
    >>> folder = Path(tempfile.mkdtemp())
    >>> files = write_repeats(folder, [[split], [split]], ["a", "b"], "clam")
    >>> files[0].relative_to(folder).as_posix()
    'splits/repeat_0/splits_0.csv'
    """
    place = Path(folder) if format_name == "torchmil" else Path(folder) / "splits"
    if format_name == "torchmil" and len(repeats) > 1:
        raise SplitError(
            f"torchmil's splits.csv holds one split, but there are {len(repeats)} repeats. "
            "Export one repeat."
        )
    return [
        path
        for number, splits in enumerate(repeats)
        for path in write_splits(
            place if len(repeats) == 1 else place / f"repeat_{number}",
            splits,
            ids,
            format_name,
            labels=labels,
            patients=patients,
            overwrite=overwrite,
        )
    ]


@dataclass(frozen=True)
class _SplitTable:
    """The folds to write, with the labels and patients that some formats include."""

    splits: Sequence[Split]
    ids: Sequence[str]
    given_labels: Sequence[object] | None
    given_patients: Groups | None
    name: str

    @property
    def labels(self) -> Sequence[object]:
        return self._require_all(self.given_labels, "label")

    @property
    def patients(self) -> Sequence[str]:
        return self._require_all(self.given_patients, "patient")

    def _require_all(self, values: Sequence[T | None] | None, noun: str) -> list[T]:
        """Return the label or patient of each bag, or raise if one is unknown."""
        known = [value for value in values or () if value is not None]
        if len(known) != len(self.ids):
            raise SplitError(
                f"this split format contains {noun}s, but only {len(known)} of {len(self.ids)} "
                f"bags have one. Give a table with the {noun} of each bag."
            )
        return known


def _clam_files(table: _SplitTable) -> dict[str, bytes]:
    files = {}
    for fold, split in enumerate(table.splits):
        subsets = {theirs: getattr(split, ours) for ours, theirs in TOOL_NAMES.items()}
        columns = [[table.ids[i] for i in subset] for subset in subsets.values()]
        files[f"splits_{fold}.csv"] = _columns_csv(subsets, columns, numbered=True)
        members = [set(subset) for subset in subsets.values()]
        rows = [
            [table.ids[i], *(i in members_of for members_of in members)]
            for subset in subsets.values()
            for i in subset
        ]
        files[f"splits_{fold}_bool.csv"] = csv_bytes([["", *subsets], *rows])
    return files


def _labelled_columns(table: _SplitTable, split: Split, column: str, numbered: bool) -> bytes:
    """Return a CSV with a column of slides and a column of labels for each subset."""
    header, columns = [], []
    for ours, theirs in TOOL_NAMES.items():
        subset = getattr(split, ours)
        header += [column.format(theirs), f"{theirs}_label"]
        columns += [[table.ids[i] for i in subset], [table.labels[i] for i in subset]]
    return _columns_csv(header, columns, numbered)


def _transmil_files(table: _SplitTable) -> dict[str, bytes]:
    return {
        f"fold{fold}.csv": _labelled_columns(table, split, "{}", True)
        for fold, split in enumerate(table.splits)
    }


def _mil_baseline_files(table: _SplitTable) -> dict[str, bytes]:
    return {
        f"Total_{len(table.splits)}-fold_{table.name}_{fold}fold.csv": _labelled_columns(
            table, split, "{}_slide_path", False
        )
        for fold, split in enumerate(table.splits, start=1)
    }


def _patho_bench_files(table: _SplitTable) -> dict[str, bytes]:
    subsets = [
        {i: theirs for ours, theirs in TOOL_NAMES.items() for i in getattr(split, ours)}
        for split in table.splits
    ]
    header = ["case_id", "slide_id", "label", *(f"fold_{fold}" for fold in range(len(subsets)))]
    rows = [
        [table.patients[i], slide, table.labels[i], *(subset.get(i, "") for subset in subsets)]
        for i, slide in enumerate(table.ids)
    ]
    return {"k=all.tsv": csv_bytes([header, *rows], "\t")}


def _torchmil_files(table: _SplitTable) -> dict[str, bytes]:
    if len(table.splits) != 1:
        raise SplitError(
            f"torchmil's splits.csv holds one split, but there are {len(table.splits)}. "
            "Write each split into its own folder."
        )
    [split] = table.splits
    rows = [
        [table.ids[i], theirs] for ours, theirs in TOOL_NAMES.items() for i in getattr(split, ours)
    ]
    return {"splits.csv": csv_bytes([["bag_name", "split"], *rows])}


def _stamp_files(table: _SplitTable) -> dict[str, bytes]:
    if any(split.valid for split in table.splits):
        raise SplitError(
            "STAMP draws its validation split from the training patients and cannot take one. "
            "Give splits of train and test only."
        )
    folds = [
        {
            f"{subset}_patients": sorted({table.patients[i] for i in getattr(split, subset)})
            for subset in ("train", "test")
        }
        for split in table.splits
    ]
    return {"splits.json": f"{json.dumps({'splits': folds}, indent=2)}\n".encode()}


WRITERS: Mapping[str, Callable[[_SplitTable], dict[str, bytes]]] = {
    "clam": _clam_files,
    "transmil": _transmil_files,
    "mil_baseline": _mil_baseline_files,
    "patho_bench": _patho_bench_files,
    "torchmil": _torchmil_files,
    "stamp": _stamp_files,
}


def _columns_csv(
    header: Iterable[str], columns: Sequence[Sequence[object]], numbered: bool
) -> bytes:
    """Return a CSV of columns of different lengths; short columns end with empty cells."""
    longest = max(map(len, columns))
    rows = [[column[at] if at < len(column) else "" for column in columns] for at in range(longest)]
    if numbered:
        return csv_bytes([["", *header], *([at, *row] for at, row in enumerate(rows))])
    return csv_bytes([[*header], *rows])
