"""The page of a trained model."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scmil.errors import DataError
from scmil.report import write_model_page
from scmil.report.model_page import roc
from scmil.stats.metrics import METRICS, auc


def write_folder(
    folder: Path, classes: list[str], parts: list[str], names: str = "slide {}"
) -> Path:
    """A model folder as `scmil train` leaves it, without the model."""
    folder.mkdir()
    found = {metric: {"value": 0.75, "low": 0.5, "high": 0.9} for metric in METRICS}
    page = {part: {"slide": {"n": 40, "patients": 40, **found}} for part in parts}
    folds = [{"repeats": 2, "folds": 5, "auc": 0.812, "accuracy": 0.7}]
    (folder / "metrics.json").write_text(
        json.dumps({"threshold": 0.5, **page, "cross_validation": folds})
    )
    model = {"aggregator": "abmil", "sparse_coding": True}
    study: dict[str, Any] = {
        "classes": classes,
        "threshold": 0.5,
        "contract": {"dim": 8, "encoder": "uni"},
        "best_epoch": 2,
        "epochs": 3,
        "settings": {"model": model},
        "recipe": {"epochs": 3},
        "versions": {"scmil": "1"},
        "split": {part: ["a"] for part in parts},
    }
    (folder / "study.json").write_text(json.dumps(study))
    columns = ["epoch", "train_loss", "valid_loss", "valid_auc", "valid_accuracy"]
    _write(
        folder / "history.csv",
        columns,
        [[1, 0.7, 0.7, "", 0.5], [2, 0.5, 0.6, 0.8, 0.5], [3, 0.4, 0.7, 0.7, 0.5]],
    )
    rows = [
        [
            names.format(i),
            "",
            parts[i % len(parts)],
            classes[i % 2],
            classes[0],
            *([1 / len(classes)] * len(classes)),
        ]
        for i in range(12)
    ]
    _write(
        folder / "predictions.csv",
        ["slide_id", "case_id", "part", "y_true", "y_pred", *(f"p_{c}" for c in classes)],
        rows,
    )
    return folder


def _write(path: Path, header: list[str], rows: list[list[Any]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def test_the_page_has_the_metrics_and_every_slide(tmp_path: Path) -> None:
    text = write_model_page(
        write_folder(tmp_path / "m", ["normal", "tumour"], ["train", "valid", "test"])
    ).read_text()
    assert "On 40 slides of the test split: AUC 0.750 (0.500 to 0.900)" in text
    assert "Over 2 x 5 folds: AUC 0.812" in text
    assert all(f"slide {i}<" in text for i in range(12))
    assert text.index("slide 2<") < text.index("slide 0<")  # tested ones first
    assert "6 of 12 predictions differ from the label" in text
    assert "ROC curve" in text
    assert "default-src &#x27;none&#x27;" in text


def test_without_a_test_split_the_page_warns_that_metrics_are_biased(tmp_path: Path) -> None:
    text = write_model_page(
        write_folder(tmp_path / "m", ["a", "b"], ["train", "valid"])
    ).read_text()
    assert "its metrics are biased upwards; those of the cross-validation are not" in text


def test_three_classes_have_no_roc_curve(tmp_path: Path) -> None:
    text = write_model_page(
        write_folder(tmp_path / "m", ["a", "b", "c"], ["train", "test"])
    ).read_text()
    assert "ROC" not in text
    assert "p(c)" in text


def test_names_cannot_become_markup(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path / "m", ["<b>x", "y"], ["train", "test"], names="<script>alert({})</script>"
    )
    text = write_model_page(folder).read_text()
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(3)" in text
    assert "<b>x" not in text


def test_an_unfinished_folder_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"study\.json: not readable as JSON"):
        write_model_page(tmp_path)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), min_size=2, max_size=30))
def test_the_area_under_the_curve_is_the_auc(rows: list[tuple[bool, int]]) -> None:
    positive, scores = np.array([row[0] for row in rows]), np.array([row[1] for row in rows], float)
    if positive.all() or not positive.any():
        return
    x, y = roc(positive, scores)
    area = float(((y[1:] + y[:-1]) / 2 * np.diff(x)).sum())
    p = np.stack([1 - scores / 10, scores / 10], 1)
    assert area == pytest.approx(auc(positive.astype(int), p))
