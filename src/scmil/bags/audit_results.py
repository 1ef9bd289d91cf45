"""An audit of the results of another tool: leaks, selection on the test split, and its metrics
again, with intervals.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from scmil.bags.audit import SEVERITIES
from scmil.bags.audit_checks import Finding
from scmil.bags.audit_selection import find_selection
from scmil.bags.labels import Labels
from scmil.bags.result_folders import TOOLS, ResultFolder, read_result_folder
from scmil.bags.result_metrics import (
    METRIC_TEXT,
    KnownPatients,
    ResultRow,
    describe_row,
    fold_metrics,
    mean_metrics,
    other_metrics,
)
from scmil.bags.result_outcomes import INTERVALS
from scmil.stats.small_samples import METHODS

TOLERANCE = 0.0051  # claims may be rounded to two decimals
PARTS = {"train": "training", "valid": "validation", "test": "test"}


@dataclass(frozen=True)
class ResultsAudit:
    """The findings, errors first, and the metrics of the folds and of all of them."""

    tool: str
    folder: Path
    findings: tuple[Finding, ...]
    metrics: tuple[ResultRow, ...]
    folds: int
    intervals: str = METHODS

    @property
    def ok(self) -> bool:
        """Whether there are no errors; there may be warnings and notes."""
        return all(finding.severity != "error" for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """Return findings and metrics as JSON values, with all names of each finding."""
        return {
            "ok": self.ok,
            "tool": self.tool,
            "folder": str(self.folder),
            "folds": self.folds,
            "findings": [asdict(finding) for finding in self.findings],
            "metrics": [row.as_json() for row in self.metrics],
            "intervals": self.intervals,
        }

    def lines(self) -> list[str]:
        """Return the lines of a text report: metrics, then findings by severity."""
        lines = [f"results of {TOOLS[self.tool]} in {self.folder}, {self.folds} folds"]
        for row in self.metrics:
            if row.metric in METRIC_TEXT:
                lines.append(f"  {describe_row(row)}")
        if self.metrics:
            lines.append(f"  95 % intervals: {self.intervals}")
        for severity in SEVERITIES:
            findings = [finding for finding in self.findings if finding.severity == severity]
            if findings:
                lines.append(f"{len(findings)} {severity}{'s' * (len(findings) > 1)}")
            lines += [f"  {finding}" for finding in findings]
        return lines if self.findings else [*lines, "no problems found"]


def audit_results(folder: str | Path, labels: Labels | None = None) -> ResultsAudit:
    """Audit a result folder of CLAM, STAMP or MIL_BASELINE; nothing in it is unpickled.

    Args:
        folder: The folder, see `read_result_folder`.
        labels: Labels and patients of the slides; without them patients are taken from TCGA
            barcodes. STAMP's files name patients.

    Returns:
        The findings, and the recomputed metrics beside those that the folder claims.

    Raises:
        DataError: The folder has no results, or a file cannot be read.
    """
    found = read_result_folder(folder)
    patients = KnownPatients(found, labels)
    metrics = [
        *fold_metrics(found, patients),
        *mean_metrics(found, patients),
        *other_metrics(found),
    ]
    findings = [
        *_find_unknown_patients(found, patients),
        *_find_leaks(found, patients),
        *find_selection(found),
        *_find_prediction_problems(found, labels),
        *_find_left_out(found),
        *_find_false_claims(metrics),
        *_find_repeated_tests(found),
        *_find_unread(found),
    ]
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    folds = len({*found.folds, *found.predicted_names, *found.claims})
    tasks = [table.task for table in found.outcomes.values()]
    intervals = INTERVALS[tasks[0]] if tasks else METHODS
    return ResultsAudit(found.tool, found.folder, tuple(findings), tuple(metrics), folds, intervals)


def _find_unknown_patients(found: ResultFolder, patients: KnownPatients) -> Iterator[Finding]:
    if unknown := sorted(patients.names - patients.known.keys()):
        yield Finding(
            "warning",
            "no-patient",
            f"the patient of {len(unknown)} of {len(patients.names)} slides is not known, so leaks "
            "by patient cannot be found for them",
            "Give the table of labels with a column case_id or patient.",
            tuple(unknown),
        )


def _find_leaks(found: ResultFolder, patients: KnownPatients) -> Iterator[Finding]:
    """Names and patients on both sides of a split; equal validation and test sets are a finding
    of their own.
    """
    for number, fold in sorted(found.folds.items()):
        for one, other in combinations(PARTS, 2):
            first, second = (set(fold.subsets.get(part, ())) for part in (one, other))
            if {one, other} == {"valid", "test"}:
                continue  # see `find_selection`
            where = f"in the {PARTS[one]} and the {PARTS[other]} split of fold {number}"
            severity = "error" if other == "test" or one == "test" else "warning"
            shared = first & second
            if shared:
                noun = "patients" if found.of_patients else "slides"
                yield Finding(
                    severity,
                    "leak",
                    f"{len(shared)} {noun} {where}",
                    "Make the splits again, by patient, and train again.",
                    tuple(sorted(shared)),
                )
            sides = [
                {patients.known.get(name) for name in side - shared} for side in (first, second)
            ]
            if both := sorted(patient for patient in sides[0] & sides[1] if patient is not None):
                yield Finding(
                    severity,
                    "leak",
                    f"{len(both)} patients with different slides {where}",
                    "Make the splits again, by patient, and train again.",
                    tuple(both),
                )


def _find_prediction_problems(found: ResultFolder, labels: Labels | None) -> Iterator[Finding]:
    """Predictions of other slides than those of the test split, or with other labels."""
    for number, names in found.predicted_names.items():
        if number in found.folds:
            subsets = found.folds[number].subsets
            trained = set(names) & set(subsets.get("train", ()))
            test = set(subsets.get("test", ()))
            if trained - test:
                yield Finding(
                    "error",
                    "trained-on",
                    f"{len(trained)} predictions of fold {number} are of its training split",
                    "Evaluate the test split only.",
                    tuple(sorted(trained)),
                )
            if absent := sorted(test - set(names)):
                yield Finding(
                    "warning",
                    "not-predicted",
                    f"{len(absent)} of {len(test)} names in the test split of fold {number} have "
                    "no prediction",
                    "Evaluate all of them, or say why they are left out.",
                    tuple(absent),
                )
        if len(set(names)) < len(names):
            yield Finding(
                "error",
                "predicted-twice",
                f"fold {number} predicts {len(names) - len(set(names))} names twice",
                "Keep one prediction of each.",
            )
    if labels is not None and not found.of_patients:
        yield from _find_other_labels(found, labels)


def _find_left_out(found: ResultFolder) -> Iterator[Finding]:
    """Patients without an observed time, event or number, which no metric counts."""
    lost = sorted({name for table in found.outcomes.values() for name in table.left_out})
    if lost:
        yield Finding(
            "warning",
            "no-value",
            f"{len(lost)} tested patients have no observed value or no prediction",
            "Add the values, or say why they are left out.",
            tuple(lost),
        )


def _find_other_labels(found: ResultFolder, labels: Labels) -> Iterator[Finding]:
    """Slides whose class in the predictions is not that of the table; classes may be numbered in
    any order, so a class is matched with the one that most of its slides have.
    """
    pairs: dict[str, dict[str, list[str]]] = {}
    for table in found.predictions.values():
        for name, own in zip(table.names, table.labels, strict=True):
            number, _ = labels.of(name)
            if number is not None:
                pairs.setdefault(own, {}).setdefault(labels.classes[number], []).append(name)
    for own, classes in sorted(pairs.items()):
        usual = max(classes, key=lambda name: len(classes[name]))
        other = sorted({slide for name in classes if name != usual for slide in classes[name]})
        if other:
            yield Finding(
                "error",
                "label",
                f"class {own} of the predictions is {usual!r} in the table of labels, but "
                f"{len(other)} of its slides have another class there",
                "Use the labels that the model was tested with.",
                tuple(other),
            )


def _find_false_claims(metrics: Sequence[ResultRow]) -> Iterator[Finding]:
    for row in metrics:
        claimed = row.claimed
        if claimed is None or not math.isfinite(claimed) or not math.isfinite(row.value):
            continue
        if abs(claimed - row.value) > TOLERANCE:
            where = "the mean over folds" if row.fold is None else f"fold {row.fold}"
            yield Finding(
                "error",
                "claim",
                f"{row.metric} of {where}: the folder claims {claimed:.3f}, and its predictions "
                f"give {row.value:.3f}",
                "Find out which predictions the claimed value was computed from.",
            )


def _find_repeated_tests(found: ResultFolder) -> Iterator[Finding]:
    counts: dict[str, int] = {}
    for fold in found.folds.values():
        for name in set(fold.subsets.get("test", ())):
            counts[name] = counts.get(name, 0) + 1
    if repeated := sorted(name for name, times in counts.items() if times > 1):
        yield Finding(
            "note",
            "repeated-tests",
            f"{len(repeated)} of {len(counts)} names are in the test splits of several folds, as "
            "in Monte Carlo cross-validation. This is no leak; intervals count each patient once",
            "Do not take the deviation over folds for a standard error.",
            tuple(repeated),
        )


def _find_unread(found: ResultFolder) -> Iterator[Finding]:
    if found.unread:
        yield Finding(
            "note",
            "pickle",
            f"{len(found.unread)} pickles or checkpoints were not opened, because unpickling can "
            "run code",
            "CLAM: write the predictions as CSV files with its eval.py."
            if found.tool == "clam"
            else "Nothing is needed: predictions are read from CSV files.",
            tuple(found.unread),
        )
