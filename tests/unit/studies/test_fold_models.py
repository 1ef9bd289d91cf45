"""The models that `scmil train --keep-folds` keeps are models of their own for tile scores."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from study_cases import QUICK, open_clam_cohort
from typer.testing import CliRunner

from scmil import studies
from scmil.cli import app
from scmil.errors import ModelFileError
from scmil.models.score_files import open_scores


@pytest.fixture
def model(tmp_path: Path) -> Path:
    data = open_clam_cohort(tmp_path)
    studies.train(data, tmp_path / "model", folds=2, keep_folds=True, **QUICK)
    return tmp_path / "model"


def test_a_fold_has_its_own_weights_threshold_and_split(model: Path) -> None:
    whole, study = studies.load_trained_model(model)
    splits = []
    for number in (1, 2):
        folder = model / "ensemble" / f"fold_{number}"
        fold, own = studies.load_trained_model(folder)
        page = json.loads((folder / "fold.json").read_text())
        assert (own["threshold"], own["split"]) == (page["threshold"], page["split"])
        assert own["classes"] == study["classes"]
        assert "ensemble" not in own
        splits.append(own["split"]["train"])
        assert any(
            (one != other).any()
            for one, other in zip(fold.parameters(), whole.parameters(), strict=True)
        )
    assert splits[0] != splits[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"threshold": "high"}, "threshold = 'high'"),
        ({"split": {"train": 3}}, "split"),
        ({"scaling": 3}, "not a model of the ensemble"),
    ],
)
def test_a_damaged_fold_is_rejected(model: Path, change: dict[str, object], message: str) -> None:
    path = model / "ensemble" / "fold_1" / "fold.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ModelFileError, match=message):
        studies.load_trained_model(path.parent)


def test_a_fold_of_another_ensemble_is_rejected(model: Path) -> None:
    first, second = (model / "ensemble" / f"fold_{number}" for number in (1, 2))
    for name in ("model.json", "model.safetensors"):
        (first / name).write_bytes((second / name).read_bytes())
    with pytest.raises(ModelFileError, match=r"is not the model that study\.json names"):
        studies.load_trained_model(first)


def test_the_spread_over_the_folds_is_drawn_from_their_folder(model: Path, tmp_path: Path) -> None:
    command = ["heatmap", model, tmp_path / "bags", "--also", model / "ensemble", "--out"]
    done = CliRunner().invoke(
        app, [*map(str, [*command, tmp_path / "out"]), "--only", "s00", "--score", "evidence"]
    )
    assert done.exit_code == 0, done.output
    folders = (model, model / "ensemble" / "fold_1", model / "ensemble" / "fold_2")
    every = [open_scores(folder)["s00"].of("evidence") for folder in folders]
    features = json.loads((tmp_path / "out" / "s00.geojson").read_text())["features"]
    spread = [feature["properties"]["measurements"]["spread"] for feature in features]
    assert spread == pytest.approx(np.std(every, axis=0, ddof=1), rel=1e-4)
    assert max(spread) > 0
