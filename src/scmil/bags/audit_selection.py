"""Whether the results of another tool were selected on their own test split."""

from __future__ import annotations

import math
from collections.abc import Iterator

from scmil.bags.audit_checks import Finding
from scmil.bags.result_folders import TOOLS, EpochLog, ResultFolder

REMEDY = "Select epoch and threshold on patients of the training split, and test once."


def find_selection(found: ResultFolder) -> Iterator[Finding]:
    """Find validation sets that are the test set, in splits, in metrics and in logs."""
    same: list[int] = []
    for number, fold in sorted(found.folds.items()):
        valid, test = (set(fold.subsets.get(part, ())) for part in ("valid", "test"))
        shared = valid & test
        if valid and valid == test:
            same.append(number)
        elif shared:
            yield Finding(
                "error",
                "selection",
                f"{len(shared)} of {len(test)} names in the test split of fold {number} are in its "
                "validation split too",
                REMEDY,
                tuple(sorted(shared)),
            )
    if same:
        yield Finding(
            "error",
            "selection",
            f"validation and test split are the same in fold {_list_folds(same)}: what was "
            "selected on the validation split was selected on the test split",
            REMEDY,
        )
    yield from _without_validation(found)
    yield from _equal_metrics(found, same)
    for number, log in sorted(found.logs.items()):
        yield from _selected_epoch(number, log)


def _without_validation(found: ResultFolder) -> Iterator[Finding]:
    absent = [
        number for number, fold in sorted(found.folds.items()) if not fold.subsets.get("valid")
    ]
    if not absent:
        return
    if found.tool == "stamp":
        yield Finding(
            "warning",
            "selection",
            "splits.json has no validation patients. STAMP before March 2026 splits them off the "
            "training patients; later versions (since commit 5b562b8) stop training and keep the "
            "best checkpoint on the test patients, so that the metrics are too good. The files do "
            "not say which version wrote them",
            "Find the version of STAMP. If it is a later one, evaluate the last epoch, or test on "
            "other patients.",
        )
        return
    yield Finding(
        "warning",
        "selection",
        f"fold {_list_folds(absent)} has no validation split. If {TOOLS[found.tool]} kept the best "
        "epoch, it was selected on the training or the test split",
        REMEDY,
    )


def _equal_metrics(found: ResultFolder, known: list[int]) -> Iterator[Finding]:
    """Metrics of validation and test that are equal in every fold."""
    pairs = [
        (
            values.get("val_auc"),
            values.get("test_auc"),
            values.get("val_acc"),
            values.get("test_acc"),
        )
        for claims in found.claims.values()
        for _, values in claims
        if "val_auc" in values
    ]
    if pairs and not known and all(a == b and c == d for a, b, c, d in pairs):
        yield Finding(
            "error",
            "selection",
            "AUC and accuracy of the validation and of the test split are equal in every fold: "
            "they are probably the same slides",
            REMEDY,
        )


def _selected_epoch(number: int, log: EpochLog) -> Iterator[Finding]:
    """Find the epoch that is best on the test split and on no other."""
    columns, epochs = log.columns, log.columns.get("epoch", ())
    pairs = [
        (columns[name], columns[f"test{name.removeprefix('val')}"])
        for name in columns
        if name.startswith("val_") and f"test{name.removeprefix('val')}" in columns
    ]
    filled = [
        pair for pair in pairs if all(math.isfinite(value) for column in pair for value in column)
    ]
    if len(epochs) > 1 and filled and all(valid == test for valid, test in filled):
        yield Finding(
            "error",
            "selection",
            f"validation and test metrics of fold {number} are equal in every epoch: they are the "
            "same slides",
            REMEDY,
        )
        return
    if log.selected is None or log.selected not in epochs or len(epochs) < 2:
        return
    chosen = epochs.index(log.selected)
    on_valid = [
        name for name in columns if name.startswith("val_") and _best(name, columns[name], chosen)
    ]
    on_test = [
        name for name in columns if name.startswith("test_") and _best(name, columns[name], chosen)
    ]
    if on_test and not on_valid:
        yield Finding(
            "error",
            "selection",
            f"the selected epoch {log.selected} of fold {number} is the best of {len(epochs)} for "
            f"{on_test[0]}, and for no metric of the validation split",
            REMEDY,
        )


def _best(name: str, values: tuple[float, ...], chosen: int) -> bool:
    """Whether a metric is best in this epoch."""
    known = [value for value in values if math.isfinite(value)]
    if not known or len(set(known)) == 1:
        return False
    return values[chosen] == (min(known) if name.endswith("loss") else max(known))


def _list_folds(folds: list[int]) -> str:
    return ", ".join(map(str, folds))
