"""Model folders with missing or invalid files are rejected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from study_cases import edit_study

from scmil import studies
from scmil.errors import ModelFileError


def test_a_folder_without_a_model_is_rejected(trained_once: Path, model_copy: Path) -> None:
    with pytest.raises(
        ModelFileError,
        match=r"study.json does not exist: .* is not a model folder of `scmil train`",
    ):
        studies.load_trained_model(trained_once / "bags")
    page = json.loads((model_copy / "study.json").read_text())
    (model_copy / "study.json").write_text(json.dumps({**page, "format": "scmil-study-9"}))
    with pytest.raises(
        ModelFileError, match="format 'scmil-study-9', but this version reads 'scmil-study-1'"
    ):
        studies.load_trained_model(model_copy)
    (model_copy / "study.json").write_text("{")
    with pytest.raises(ModelFileError, match="not readable as JSON"):
        studies.load_trained_model(model_copy)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"contract__mpp": 1e-6}, r"mpp = 1e-06: a number from 0\.01 to 1000 is needed"),
        (
            {"contract__overlap_px": 255},
            "overlap_px = 255 of tiles of 256 px: expected at most 192",
        ),
        ({"contract__size_px": 10**9}, "size_px = 1000000000: a whole number from 1 to 8192"),
        ({"contract__size_px": "256"}, "size_px = '256'"),
        ({"contract__encoder": ["a"]}, "encoder is not a string"),
        ({"contract": None}, "incomplete or wrong"),
        ({"classes": ["normal"]}, "classes are not the names of 3 classes"),
        ({"classes": [1, 2, 3]}, "classes are not the names of 3 classes"),
        ({"threshold": float("nan")}, "threshold = nan"),
        (
            {"scaling": {"mean": [0.0] * 8, "deviation": [float("nan")] * 8}},
            "deviation is not 8 finite numbers",
        ),
        ({"scaling": {"mean": [0.0] * 7, "deviation": [1.0] * 8}}, "mean is not 8 finite numbers"),
        ({"scaling": {"mean": [0.0] * 8, "deviation": [0.0] * 8}}, "a deviation is 0"),
        ({"split": {"train": "all"}}, "split does not consist of lists"),
        ({"settings": []}, "incomplete or wrong"),
    ],
)
def test_a_study_with_invalid_values_is_rejected(
    model_copy: Path, change: dict[str, Any], cause: str
) -> None:
    with pytest.raises(ModelFileError, match=rf"study\.json.*{cause}"):
        studies.load_trained_model(edit_study(model_copy, **change))
