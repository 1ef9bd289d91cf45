"""Names that a run directory is written with by `scmil.studies` and read with by `scmil.report`."""

from __future__ import annotations

from typing import NamedTuple

FORMAT = "scmil-run-1"  # of experiment.json and result.json
# Selection protocols, in the order of reports. The last one selects on the test folds.
TEST_TUNED = "test-tuned"
PROTOCOLS = ("last", "nested", TEST_TUNED)
EXPERIMENT, RESULT, FAILED = "experiment.json", "result.json", "failed.json"


class MainMetric(NamedTuple):
    """The metric that methods of a task are compared by: its column, its value by chance, and its
    name in text.
    """

    column: str
    chance: float
    name: str


# Of each task other than classes, and of classes among several targets.
MAIN_METRICS = {
    "survival": MainMetric("c_index", 0.5, "concordance"),
    "regression": MainMetric("r2", 0.0, "R²"),
    "ordinal": MainMetric("kappa", 0.0, "quadratic kappa"),
    "multilabel": MainMetric("macro: auc", 0.5, "macro AUC"),
    "class": MainMetric("auc", 0.5, "AUC"),
}
COMBINED = "combined"  # the task of several targets; its metrics are those of the parts, by prefix
MAIN_METRICS[COMBINED] = MainMetric("skill", 0.0, "mean skill of the targets")  # selects epochs

# After the name of a grade: the probability of this grade or a higher one.
OR_HIGHER = " or higher"

# How the slides of a patient are used, by `patient` of `[data]`; None is the default.
PATIENT_MEANING = {
    None: "Each slide is a bag; where patients are counted, predictions of their slides are "
    "averaged.",
    "max": "Each slide is a bag; where patients are counted, the largest prediction of their "
    "slides counts.",
    "joined": "All slides of a patient are one bag.",
}
PATIENT_MEANING["mean"] = PATIENT_MEANING[None]
