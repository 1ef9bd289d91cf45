"""Names that a run directory is written with by `scmil.studies` and read with by `scmil.report`."""

from __future__ import annotations

FORMAT = "scmil-run-1"  # of experiment.json and result.json
# Selection protocols, in the order of reports. The last one selects on the test folds.
TEST_TUNED = "test-tuned"
PROTOCOLS = ("last", "nested", TEST_TUNED)
EXPERIMENT, RESULT, FAILED = "experiment.json", "result.json", "failed.json"
# Of each task other than classes: the metric that methods are compared by, and its value by chance.
MAIN_METRICS = {
    "survival": ("c_index", 0.5),
    "regression": ("r2", 0.0),
    "ordinal": ("kappa", 0.0),
    "multilabel": ("macro: auc", 0.5),
}
