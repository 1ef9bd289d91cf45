"""From bags and labels to results: train a model, compare models with and without sparse coding,
apply a model, run experiments.

A model folder has `model.safetensors` and `model.json`, and beside them what its users need:
`study.json` (recipe, classes, how its bags were made, split, versions), `history.csv`,
`predictions.csv`, `metrics.json`, `MODEL_CARD.md`. `study.json` is written last: a folder that has
it is finished.
"""

from __future__ import annotations

from scmil.studies.cohort import CohortOptions
from scmil.studies.compare import (
    ComparisonResult,
    compare_aggregators,
    comparison,
    comparison_plan,
    run_comparison,
)
from scmil.studies.data import Data, open_data
from scmil.studies.external import Evaluated, evaluate_cohort
from scmil.studies.predict import (
    Predicted,
    are_slides,
    encode_for,
    load_trained_model,
    open_bags_to_predict,
    outputs_of,
    predict_folder,
)
from scmil.studies.predict_patients import patients_from_table
from scmil.studies.score_tiles import ScoredSlides, score_folder
from scmil.studies.settings import TaskOptions, TrainSettings
from scmil.studies.train import Trained, train

__all__ = [
    "CohortOptions",
    "ComparisonResult",
    "Data",
    "Evaluated",
    "Predicted",
    "ScoredSlides",
    "TaskOptions",
    "TrainSettings",
    "Trained",
    "are_slides",
    "compare_aggregators",
    "comparison",
    "comparison_plan",
    "encode_for",
    "evaluate_cohort",
    "load_trained_model",
    "open_bags_to_predict",
    "open_data",
    "outputs_of",
    "patients_from_table",
    "predict_folder",
    "run_comparison",
    "score_folder",
    "train",
]
