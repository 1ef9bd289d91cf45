"""A run directory as one object: its methods, data sets, results and failures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scmil.core.run_format import PROTOCOLS, TEST_TUNED

Numbers = NDArray[np.float64]
METRIC_NAMES = {
    "accuracy": "accuracy",
    "auc": "AUC",
    "balanced_accuracy": "balanced accuracy",
    "f1": "F1",
    "brier": "Brier score",
    "calibration_error": "calibration error",
}
# Metrics that some runs have.
FURTHER = ("froc", "attention_auc", "attention_ap", "instance_auc", "instance_ap")
TUNED = TEST_TUNED
UNRECORDED = "not recorded: results of an earlier version"


class Key(NamedTuple):
    """Identifies a result: method, data set and selection protocol."""

    method: str
    dataset: str
    protocol: str


class Method(NamedTuple):
    """A method (a row of the tables), and the method that it is compared with."""

    name: str
    against: str | None


class PlannedRun(NamedTuple):
    """The unit of work: one method on one data set."""

    name: str
    dataset: str
    method: str
    protocols: tuple[str, ...]
    settings: Mapping[str, Any]


class Published(NamedTuple):
    """The published accuracy of one method on one data set."""

    accuracy: float
    sd: float


class Estimate(NamedTuple):
    """A metric: mean, standard deviation over repeats, 95 % confidence interval."""

    mean: float
    sd: float
    low: float
    high: float


class Result(NamedTuple):
    """The metrics of one run under one selection protocol, and its cost."""

    metrics: Mapping[str, Estimate]
    repeats: int
    folds: int
    bags: int
    parameters: float
    density: float
    seconds: float
    # The first digits of the digest of its data; results of earlier versions have none.
    data: str = ""


class Cost(NamedTuple):
    """Further costs of a run; NaN where they were not measured."""

    multiply_adds: float = math.nan  # of one bag of median size
    memory_mib: float = math.nan  # peak above the memory in use before the run


class Predictions(NamedTuple):
    """Test predictions: one row per bag and repeat."""

    bags: NDArray[np.str_]
    labels: NDArray[np.int64]
    thresholds: Numbers
    probabilities: Numbers  # (rows, classes)


@dataclass(frozen=True, eq=False)
class Run:
    """The contents of a run directory; the experiment may be unfinished."""

    folder: Path
    title: str
    about: str
    methods: tuple[Method, ...]
    datasets: tuple[str, ...]
    protocol: Mapping[str, Any]
    training: Mapping[str, Any]
    planned: tuple[PlannedRun, ...]
    published: Mapping[tuple[str, str], Published]
    published_note: str
    versions: Mapping[str, str]
    results: Mapping[Key, Result]
    folds: Mapping[Key, Mapping[tuple[int, int], float]]  # accuracy by repeat and fold
    predictions: Mapping[Key, Predictions]
    # By method and data set: the columns epoch, train_loss, test_accuracy.
    history: Mapping[tuple[str, str], Mapping[str, Numbers]]
    failed: Mapping[str, str]
    # Only if a patient has several slides.
    by_patient: Mapping[Key, Result] = field(default_factory=dict)
    costs: Mapping[str, Cost] = field(default_factory=dict)  # by the name of the run

    @property
    def protocols(self) -> list[str]:
        """The selection protocols that have results, leakage-free ones first."""
        present = {key.protocol for key in self.results}
        known = [name for name in PROTOCOLS if name in present]
        return known + sorted(present - set(PROTOCOLS))

    @property
    def headline(self) -> tuple[str, ...]:
        """The metrics that are printed."""
        return ("accuracy", "auc")

    @property
    def leakage_free(self) -> list[str]:
        """The selection protocols that use no test data."""
        return [name for name in self.protocols if name != TUNED]

    @property
    def has_folds(self) -> bool:
        """Whether this is a cross-validation; otherwise training was repeated with one test set."""
        return all(result.folds > 1 for result in self.results.values())

    @property
    def finished(self) -> list[PlannedRun]:
        """The runs that have a result for each of their protocols."""
        return [
            run
            for run in self.planned
            if all(Key(run.method, run.dataset, p) in self.results for p in run.protocols)
        ]

    @property
    def data(self) -> dict[str, str]:
        """The first digits of the SHA-256 of each data set, or that it was not recorded."""
        digests: dict[str, set[str]] = {}
        for key, result in self.results.items():
            digests.setdefault(key.dataset, set()).add(result.data or UNRECORDED)
        return {dataset: ", ".join(sorted(known)) for dataset, known in digests.items()}

    @property
    def missing(self) -> list[PlannedRun]:
        """The runs that have neither finished nor failed."""
        finished = {run.name for run in self.finished}
        return [
            run for run in self.planned if run.name not in finished and run.name not in self.failed
        ]
