"""Splits, predictions and claimed metrics in the result folders of CLAM, STAMP and MIL_BASELINE.

- CLAM: `splits_0.csv` (or `splits_0_bool.csv`) of each fold, `fold_0.csv` of `eval.py` with
  slide_id, Y, Y_hat and p_0, p_1, ..., and `summary.csv` with the metrics of each fold;
- STAMP: `splits.json` with the patients of each fold, and `split-0/patient-preds.csv` with
  probabilities of classes, with risks, or with numbers (`result_outcomes`);
- MIL_BASELINE: `Total_5-fold_NAME_1fold.csv` of each fold, `Log_*.csv` with the metrics of every
  epoch, and `Best_Log_*.csv` with those of the selected one. It writes no predictions.

Pickles and checkpoints are counted and never opened: unpickling a file can run any code.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np

from scmil.bags.result_outcomes import OutcomeTable, read_outcomes
from scmil.bags.slide_ids import slide_id
from scmil.bags.split_files import NamedFold, read_named_folds
from scmil.bags.table_rows import TextTable, read_rows
from scmil.core.shapes import Numbers
from scmil.core.tables import column_names
from scmil.core.text import first_names
from scmil.errors import DataError

DEEPEST = 5  # folders below the given one
MOST_FILES = 200_000
PICKLES = (".pkl", ".pickle", ".pt", ".pth", ".ckpt")
CLAM_SPLIT = re.compile(r"splits_(\d+)(_bool)?\.csv")
CLAM_FOLD = re.compile(r"fold_(\d+)\.csv")
STAMP_SPLIT = re.compile(r"split-(\d+)")
MIL_BASELINE_SPLIT = re.compile(r"Total_.*_(\d+)fold\.csv")
MIL_BASELINE_LOG = re.compile(r"(Best_)?Log_.*\.csv")
NUMBER = re.compile(r"(\d+)")
TOOLS = {"clam": "CLAM", "stamp": "STAMP", "mil_baseline": "MIL_BASELINE"}


@dataclass(frozen=True)
class PredictionTable:
    """The predictions of one fold: names of slides or patients, classes, probabilities (b, c)."""

    path: Path
    names: tuple[str, ...]
    labels: tuple[str, ...]
    classes: tuple[str, ...]
    probabilities: Numbers


OfFold = TypeVar("OfFold", NamedFold, PredictionTable)


@dataclass(frozen=True)
class EpochLog:
    """The metrics of every epoch of a fold, by column, and the epoch that was selected."""

    path: Path
    columns: Mapping[str, tuple[float, ...]]
    selected: int | None = None


@dataclass
class ResultFolder:
    """What a result folder has for each fold, by the number of the fold."""

    folder: Path
    tool: str = ""
    folds: dict[int, NamedFold] = field(default_factory=dict)
    predictions: dict[int, PredictionTable] = field(default_factory=dict)
    outcomes: dict[int, OutcomeTable] = field(default_factory=dict)  # survival and numbers
    # By fold: a file and the metrics that it claims, such as test_auc.
    claims: dict[int, list[tuple[Path, Mapping[str, float]]]] = field(default_factory=dict)
    logs: dict[int, EpochLog] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)  # pickles and checkpoints

    @property
    def of_patients(self) -> bool:
        """Whether the names are those of patients."""
        return self.tool == "stamp"

    @property
    def predicted_names(self) -> dict[int, tuple[str, ...]]:
        """The names that have a prediction, by fold, in the order of the folds."""
        classes = {number: table.names for number, table in self.predictions.items()}
        others = {
            number: (*table.names, *table.left_out) for number, table in self.outcomes.items()
        }
        return dict(sorted((classes | others).items()))


def read_result_folder(folder: str | Path) -> ResultFolder:
    """Read splits, predictions and claimed metrics of another tool.

    Args:
        folder: The folder of one experiment; its files may be in folders below it.

    Returns:
        What was found. The names of slides are without folders and suffixes.

    Raises:
        DataError: There are no results, results of several tools or experiments, or a file cannot
            be read.

    >>> import tempfile
    >>> home = Path(tempfile.mkdtemp())
    >>> _ = (home / "splits_0.csv").write_text(",train,val,test\\n0,a,b,c\\n")
    >>> found = read_result_folder(home)
    >>> found.tool, found.folds[0].subsets
    ('clam', {'train': ['a'], 'valid': ['b'], 'test': ['c']})
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder. Give the folder of the results.")
    found = ResultFolder(folder)
    for path in _walk(folder):
        if path.suffix.lower() in PICKLES:
            found.unread.append(str(path.relative_to(folder)))
        else:
            _read_result_file(path, found)
    if not found.tool:
        raise DataError(
            f"{folder}: no results of CLAM (splits_0.csv, fold_0.csv), STAMP (splits.json, "
            "split-0/patient-preds.csv) or MIL_BASELINE (Total_5-fold_NAME_1fold.csv). Give the "
            "folder that contains them."
        )
    tasks = {table.task for table in found.outcomes.values()}
    if len(tasks) + bool(found.predictions) > 1:
        raise DataError(f"{folder}: predictions of several tasks. Give the folder of one.")
    _number_logs(found)
    return found


def _walk(folder: Path) -> Iterator[Path]:
    """The files below a folder, sorted, without following links."""
    number = 0
    for place, folders, files in os.walk(folder):
        depth = len(Path(place).relative_to(folder).parts)
        folders[:] = sorted(folders) if depth < DEEPEST else []
        for name in sorted(files):
            number += 1
            if number > MOST_FILES:
                raise DataError(
                    f"{folder} has more than {MOST_FILES} files. Give the folder of one experiment."
                )
            yield Path(place, name)


def _read_result_file(path: Path, found: ResultFolder) -> None:
    """Add what a file has, if its name is that of a result."""
    name = path.name
    if match := CLAM_SPLIT.fullmatch(name):
        _add_fold(found, "clam", int(match[1]), path)
    elif match := MIL_BASELINE_SPLIT.fullmatch(name):
        _add_fold(found, "mil_baseline", int(match[1]), path)
    elif name == "splits.json":
        _name_tool(found, "stamp", path)
        for number, fold in enumerate(read_named_folds(path)[1]):
            _keep_one(found, found.folds, number, fold)
    elif match := CLAM_FOLD.fullmatch(name):
        table = read_rows(path)
        if table.find(["Y"]) is not None and table.find(["p_0"]) is not None:
            _name_tool(found, "clam", path)
            _keep_one(found, found.predictions, int(match[1]), _read_eval_table(table))
    elif name == "patient-preds.csv" and (match := STAMP_SPLIT.fullmatch(path.parent.name)):
        _name_tool(found, "stamp", path)
        _add_patient_preds(found, int(match[1]), read_rows(path))
    elif name == "summary.csv":
        _read_summary(path, found)
    elif MIL_BASELINE_LOG.fullmatch(name):
        _read_log(path, found)


def _name_tool(found: ResultFolder, tool: str, path: Path) -> None:
    if found.tool not in ("", tool):
        raise DataError(
            f"{found.folder}: results of {TOOLS[found.tool]} and {TOOLS[tool]} ({path}). Give the "
            "folder of one of them."
        )
    found.tool = tool


def _add_fold(found: ResultFolder, tool: str, number: int, path: Path) -> None:
    _name_tool(found, tool, path)
    [fold] = read_named_folds(path)[1]
    subsets = {subset: [slide_id(name) for name in names] for subset, names in fold.subsets.items()}
    _keep_one(found, found.folds, number, NamedFold(path, subsets))


def _add_patient_preds(found: ResultFolder, number: int, table: TextTable) -> None:
    outcomes = read_outcomes(table)
    if outcomes is None:
        _keep_one(found, found.predictions, number, _read_patient_preds(table))
    else:
        found.outcomes[number] = outcomes


def _keep_one(found: ResultFolder, kept: dict[int, OfFold], number: int, new: OfFold) -> None:
    """Keep the file of a fold; a second one must have the same content."""
    old = kept.setdefault(number, new)
    if _file_content(old) != _file_content(new):
        raise DataError(
            f"{found.folder}: fold {number} has two different files, {old.path} and {new.path}. "
            "Give the folder of one experiment."
        )


def _file_content(item: NamedFold | PredictionTable) -> object:
    if isinstance(item, NamedFold):
        return {subset: sorted(names) for subset, names in item.subsets.items() if names}
    return (item.names, item.labels, item.probabilities.tolist())


def _read_eval_table(table: TextTable) -> PredictionTable:
    """Read `fold_0.csv` of CLAM's eval.py."""
    names, labels = (table.need([name], name, "the column") for name in ("slide_id", "Y"))
    columns = {
        int(match[1]): at
        for at, name in enumerate(table.header)
        if (match := re.fullmatch(r"p_(\d+)", name))
    }
    positions = [columns[c] for c in sorted(columns)]
    classes = tuple(map(str, sorted(columns)))
    rows = [row for _, row in table.lines]
    written = tuple(_class_number(row[labels]) for row in rows)
    return _parse_predictions(
        table, tuple(slide_id(row[names]) for row in rows), written, classes, positions
    )


def _read_patient_preds(table: TextTable) -> PredictionTable:
    """Read `patient-preds.csv`: PATIENT, the target, pred, and a column TARGET_CATEGORY each."""
    patients = table.need(["PATIENT"], "patient", "the column")
    prefixes = [
        (at, name)
        for at, name in enumerate(table.header)
        if at != patients and any(other.startswith(f"{name}_") for other in table.header)
    ]
    if not prefixes:
        raise DataError(
            f"{table.path}: no probabilities. Found {column_names(table.header)}; expected a "
            "target such as KRAS and a column such as KRAS_mutated for each category; pred_score, "
            "time and event of survival; or a number and pred."
        )
    at, target = max(prefixes, key=lambda one: len(one[1]))
    positions = [i for i, name in enumerate(table.header) if name.startswith(f"{target}_")]
    classes = tuple(table.header[i].removeprefix(f"{target}_") for i in positions)
    rows = [row for _, row in table.lines]
    names, labels = (tuple(row[column] for row in rows) for column in (patients, at))
    return _parse_predictions(table, names, labels, classes, positions)


def _parse_predictions(
    table: TextTable,
    names: tuple[str, ...],
    labels: tuple[str, ...],
    classes: tuple[str, ...],
    positions: list[int],
) -> PredictionTable:
    if not names or len(classes) < 2:
        raise DataError(
            f"{table.path}: {len(names)} rows with probabilities of {len(classes)} classes. At "
            "least one row and two classes are expected."
        )
    if unknown := sorted(set(labels) - set(classes)):
        raise DataError(
            f"{table.path}: the labels {first_names(unknown)} have no column of probabilities. "
            f"Found columns for {first_names(classes)}."
        )
    probabilities = np.array(
        [[_to_number(table, line, row[i]) for i in positions] for line, row in table.lines]
    )
    return PredictionTable(table.path, names, labels, classes, probabilities)


def _to_number(table: TextTable, line: int, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1 + 1e-6:
        raise DataError(
            f"{table.path}, line {line}: {text!r} is not a probability from 0 to 1. Write the "
            "predictions again."
        )
    return value


def _class_number(text: str) -> str:
    """A class number as CLAM writes it: 1.0 is 1."""
    return text.removesuffix(".0")


def _read_summary(path: Path, found: ResultFolder) -> None:
    """Read the metrics that CLAM's summary.csv claims for each fold."""
    table = read_rows(path)
    columns = [name for name in table.header if re.fullmatch(r"(test|val)_(auc|acc)", name)]
    at = table.find(["folds"])
    if at is None or not columns:
        return
    _name_tool(found, "clam", path)
    for _, row in table.lines:
        values = {name: _maybe_number(row[table.header.index(name)]) for name in columns}
        if row[at].isdigit():
            found.claims.setdefault(int(row[at]), []).append((path, values))


def _maybe_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _read_log(path: Path, found: ResultFolder) -> None:
    """Read MIL_BASELINE's metrics of every epoch; the fold is numbered later."""
    table = read_rows(path)
    if table.find(["epoch"]) is None:
        return
    _name_tool(found, "mil_baseline", path)
    columns = {
        name: tuple(_maybe_number(row[at]) for _, row in table.lines)
        for at, name in enumerate(table.header)
    }
    own = [number for number, log in found.logs.items() if log.path.parent == path.parent]
    number = own[0] if own else -1 - len(found.logs)
    if path.name.startswith("Best_"):
        epochs = columns["epoch"]
        selected = int(epochs[0]) if epochs and math.isfinite(epochs[0]) else None
        every = found.logs[number].columns if own else {}
        found.logs[number] = EpochLog(path, every, selected)
        claims = {name: values[0] for name, values in columns.items() if values}
        found.claims.setdefault(number, []).append((path, claims))
    else:
        if own and found.logs[number].columns:
            raise DataError(
                f"{path.parent} has the logs of several trainings. Give the folder of one."
            )
        selected = found.logs[number].selected if own else None
        found.logs[number] = EpochLog(path, columns, selected)


def _number_logs(found: ResultFolder) -> None:
    """Give each log the number of its fold: of the split file beside it, or of its folder."""
    by_folder = {fold.path.parent: number for number, fold in found.folds.items()}
    alone = len(found.folds) == 1
    for before, log in list(found.logs.items()):
        folder = log.path.parent
        digits = NUMBER.findall(folder.name)
        if len(by_folder) == len(found.folds) and folder in by_folder:
            number = by_folder[folder]
        elif alone:
            number = next(iter(found.folds))
        elif digits and int(digits[-1]) in found.folds:
            number = int(digits[-1])
        else:
            continue
        found.logs[number] = found.logs.pop(before)
        if before in found.claims:
            found.claims[number] = found.claims.pop(before)
