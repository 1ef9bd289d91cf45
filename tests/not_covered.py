"""The tests that do not count for the coverage, which states what the tests of functions and
classes reach. Measuring it makes a test take up to half as long again.
"""

from __future__ import annotations

COMMANDS_AND_NUMBERS = ("e2e/", "browser/", "golden/", "properties/")
# Without these, less than 1 % of the lines and branches is not reached: they take the code that
# others reach through many cases, or train models on the way to something else.
CASES = (
    "contracts/",
    "test_architecture.py",
    "test_mutants.py",
    "unit/bags/datasets/test_classic.py",
    "unit/cli/test_cli_audit_targets.py",
    "unit/cli/test_cli_weights.py",
    "unit/encoding/encoders/test_cards.py",
    "unit/encoding/encoders/test_ctranspath.py",
    "unit/encoding/encoders/test_layouts.py",
    "unit/encoding/encoders/test_torchvision_models.py",
    "unit/encoding/test_devices.py",
    "unit/encoding/test_dispatch.py",
    "unit/models/aggregators/test_convolutions.py",
    "unit/models/test_evidence.py::test_evidence_and_constant_sum_to_the_logit",
    "unit/models/test_objectives.py",
    "unit/models/test_official_weights.py::test_each_tensor_of_a_layout_is_needed",
    "unit/report/test_target_report.py::test_each_task_has_its_sections",
    "unit/slides/synthetic/test_pyramid.py",
    "unit/slides/synthetic/test_synthetic_slide.py",
    "unit/slides/test_slide.py",
    "unit/sparse_coding/test_kernels.py",
    "unit/sparse_coding/test_layer.py",
    "unit/sparse_coding/test_products.py",
    "unit/stats/test_fold_intervals.py",
    "unit/stats/test_small_samples.py",
    "unit/stats/test_target_calibration.py",
    "unit/studies/test_cell.py",
    "unit/studies/test_cell_training.py",
    "unit/studies/test_combined_studies.py::test_all_targets_are_learned_from_one_model",
    "unit/studies/test_compare.py",
    "unit/studies/test_external_parts.py::test_each_target_is_tested_on_the_slides_that_have_it",
    "unit/studies/test_external_targets.py::test_a_model_of_joined_patients",
    "unit/studies/test_external_targets.py::test_an_ensemble_predicts",
    "unit/studies/test_external_targets.py::test_the_page_of_every_task_has_its_plots",
    "unit/studies/test_run_bags.py",
    "unit/studies/test_run_inputs.py",
    "unit/studies/test_runner.py",
    "unit/studies/test_score_tiles.py",
    "unit/studies/test_target_runs.py::test_predictions_of_slides_become_those_of_patients",
    "unit/studies/test_target_temperature.py",
    "unit/studies/test_train.py",
    "unit/studies/test_train_targets.py",
    "unit/training/test_folds.py",
    "unit/training/test_regularisation.py::test_every_aggregator_trains_with_everything_together",
    "unit/training/test_target_fitting.py",
    "unit/training/test_target_folds.py",
    "unit/viz/heatmaps/test_slide_files.py",
    "unit/viz/viewer/test_connections.py",
)
NOT_COVERED = tuple(f"tests/{start}" for start in (*COMMANDS_AND_NUMBERS, *CASES))


def is_covered(nodeid: str) -> bool:
    """Whether a test counts.

    >>> [is_covered(f"tests/{test}") for test in ("unit/core/test_a.py::test_b", "e2e/test_c.py")]
    [True, False]
    """
    return not nodeid.startswith(NOT_COVERED)
