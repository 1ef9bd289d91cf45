"""A study from bags and labels to an answer: train a model, compare it with and without sparse coding, apply it.

A model folder has `model.safetensors` and `model.json`, and beside them all that its user has to know: `study.json` (recipe,
classes, how its bags were made, split, versions), `history.csv`, `predictions.csv`, `metrics.json`, `MODEL_CARD.md`.
`study.json` is written last: a folder that has it is finished.
"""

from __future__ import annotations

from scmil.studies.compare import Comparison, compare, comparison, comparison_plan
from scmil.studies.data import Data, open_data
from scmil.studies.predict import (Predicted, are_slides, check_contract, encode_for, load_study, open_bags_to_predict, outputs_of, predict_folder)
from scmil.studies.score_tiles import Scored, score_folder
from scmil.studies.train import Trained, train

__all__ = [
    "Comparison",
    "Data",
    "Predicted",
    "Scored",
    "Trained",
    "are_slides",
    "check_contract",
    "compare",
    "comparison",
    "comparison_plan",
    "encode_for",
    "load_study",
    "open_bags_to_predict",
    "open_data",
    "outputs_of",
    "predict_folder",
    "score_folder",
    "train",
]
