"""Names that a run directory is written with by `scmil.studies` and read with by `scmil.report`."""

from __future__ import annotations

FORMAT = "scmil-run-1"  # of experiment.json and result.json
# Selection protocols, in the order of reports. The last one selects on the test folds.
TEST_TUNED = "test-tuned"
PROTOCOLS = ("last", "nested", TEST_TUNED)
EXPERIMENT, RESULT, FAILED = "experiment.json", "result.json", "failed.json"
# The metric that decides about each task other than classes, by its column, and its name in text.
MAIN_METRICS = {
    "survival": ("c_index", "concordance"),
    "regression": ("r2", "R²"),
    "ordinal": ("kappa", "quadratic kappa"),
    "multilabel": ("macro: auc", "macro AUC"),
}
