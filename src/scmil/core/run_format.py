"""Names that a run directory is written with by `scmil.studies` and read with by `scmil.report`."""

from __future__ import annotations

FORMAT = "scmil-run-1"  # of experiment.json and result.json
# Selection protocols, in the order of reports. The last one selects on the test folds.
TEST_TUNED = "test-tuned"
PROTOCOLS = ("last", "nested", TEST_TUNED)
EXPERIMENT, RESULT, FAILED = "experiment.json", "result.json", "failed.json"
