"""A model on another cohort: labels, ensembles and fingerprints that do not fit are rejected."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from study_cases import QUICK, cohort, edit_study, open_clam_cohort

from scmil import studies
from scmil.bags.bag import Bag, BagSet
from scmil.bags.formats import export_bags
from scmil.errors import DataError, ModelFileError, OptionError, OutputError, ShapeError
from scmil.studies.external_scores import ClassPredictions, change_of, score_classes
from scmil.studies.training_fingerprint import FINGERPRINT, read_fingerprint

pytestmark = pytest.mark.slow  # models are trained

CLASSES = ["normal", "benign", "tumor"]


def strangers(count: int = 12) -> list[Bag]:
    """Slides of other patients."""
    generator = torch.Generator().manual_seed(7)
    return [
        replace(
            bag,
            id=f"x{bag.id}",
            patient=f"x{bag.patient}",
            features=bag.features + torch.randn(bag.features.shape, generator=generator),
        )
        for bag in list(cohort())[:count]
    ]


def write(folder: Path, bags: list[Bag], labels: dict[str, str] | None = None) -> tuple[Path, Path]:
    """Write bags and a table of their labels, some of them changed; "" removes one."""
    export_bags(BagSet(bags, CLASSES), folder / "other", "trident")
    rows = [
        f"{bag.patient},{bag.id},{(labels or {}).get(bag.id, CLASSES[bag.label or 0])}"
        for bag in bags
    ]
    (folder / "other.csv").write_text("\n".join(["case_id,slide_id,label", *rows]))
    return folder / "other", folder / "other.csv"


@pytest.mark.slow
def test_three_classes_have_a_calibration_each(trained_once: Path, tmp_path: Path) -> None:
    bags, labels = write(tmp_path, strangers())
    tested = studies.evaluate_cohort(trained_once / "model", bags, labels, tmp_path / "out")
    found = tested.metrics["metrics"]
    assert set(found["calibration"]) == set(CLASSES)
    assert np.sum(found["confusion"]) == found["slide"]["n"] == 12
    assert found["patient"]["n"] == 6
    assert "Reliability of tumor" in (tmp_path / "out" / "report.html").read_text()


def test_a_cohort_of_one_class_has_recall_but_no_auc(trained_once: Path, tmp_path: Path) -> None:
    bags, labels = write(tmp_path, [bag for bag in strangers() if bag.label == 2])
    tested = studies.evaluate_cohort(trained_once / "model", bags, labels, tmp_path / "out")
    own = tested.metrics["metrics"]["slide"]
    assert own["auc"]["value"] is None
    assert own["recall of tumor"]["value"] is not None
    assert "recall of normal" not in own


def test_a_label_that_is_no_class_of_the_model_is_rejected(
    trained_once: Path, tmp_path: Path
) -> None:
    bags, labels = write(tmp_path, strangers(), {"xs00": "sarcoma"})
    with pytest.raises(DataError, match="'sarcoma' is not among the classes"):
        studies.evaluate_cohort(trained_once / "model", bags, labels, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_classes_of_a_table_are_matched_by_name(tmp_path: Path) -> None:
    from scmil.studies.cohort import _with_classes

    bags = BagSet([Bag("a", torch.zeros(1, 2), 0), Bag("b", torch.zeros(1, 2), 1)], ["B", "a"])
    matched = _with_classes(bags, ["A", "b"])
    assert (matched.labels, matched[0].label, matched.classes) == ((1, 0), 1, ("A", "b"))
    with pytest.raises(DataError, match="has the classes a, but the model predicts b, c"):
        _with_classes(bags, ["b", "c"])


def test_bags_without_a_label_are_an_error_or_left_out(trained_once: Path, tmp_path: Path) -> None:
    bags, labels = write(tmp_path, strangers(), {"xs00": ""})
    model = trained_once / "model"
    with pytest.raises(DataError, match=r"without a label \(1 of 12\): xs00"):
        studies.evaluate_cohort(model, bags, labels, tmp_path / "out")
    options = studies.CohortOptions(drop_unlabelled=True)
    tested = studies.evaluate_cohort(model, bags, labels, tmp_path / "out", options=options)
    assert tested.metrics["metrics"]["slide"]["n"] == 11
    assert "1 of 12 bags have no label and are left out." in tested.notes
    (tmp_path / "empty.csv").write_text("case_id,slide_id,label\np,none,tumor\n")
    with pytest.raises(DataError, match="none of the 12 bags has a label"):
        studies.evaluate_cohort(model, bags, tmp_path / "empty.csv", tmp_path / "o")


@pytest.mark.slow
def test_a_bag_that_fails_is_stated_and_the_others_are_scored(
    trained_once: Path, tmp_path: Path
) -> None:
    own = strangers()
    own[3] = replace(own[3], features=torch.full((5, 8), float("nan")))
    bags, labels = write(tmp_path, own)
    tested = studies.evaluate_cohort(trained_once / "model", bags, labels, tmp_path / "out")
    assert list(tested.failed) == ["xs03"]
    assert tested.metrics["metrics"]["slide"]["n"] == 11
    assert "1 slides could not be read" in (tmp_path / "out" / "report.html").read_text()


def test_features_of_another_dimension_are_rejected(trained_once: Path, tmp_path: Path) -> None:
    bags, labels = write(tmp_path, [replace(bag, features=torch.ones(5, 9)) for bag in strangers()])
    with pytest.raises(ShapeError, match="9-dimensional features instead of 8"):
        studies.evaluate_cohort(trained_once / "model", bags, labels, tmp_path / "out")


def test_files_of_others_are_not_replaced(trained_once: Path, tmp_path: Path) -> None:
    bags, labels = write(tmp_path, strangers())
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "report.html").write_text("mine")
    with pytest.raises(OutputError, match=r"report\.html exists, and was not written by scmil te"):
        studies.evaluate_cohort(trained_once / "model", bags, labels, tmp_path / "out")
    assert (tmp_path / "out" / "report.html").read_text() == "mine"


def test_an_unknown_rule_for_the_overlap_is_rejected(trained_once: Path) -> None:
    with pytest.raises(OptionError, match="overlap = 'keep': one of reject, exclude, allow"):
        studies.evaluate_cohort(trained_once / "model", "bags", overlap="keep")


def drop_slide(page: dict[str, Any]) -> None:
    del page["slides"][0]


def spoil(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda page: page.update({key: value})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (drop_slide, "its slides are not those of study.json"),
        (spoil("format", "x"), "format 'x'"),
        (spoil("deviation", [1.0]), "not of one dimension"),
        (spoil("deviation", [None] * 8), "not a finite number"),
        (spoil("typical", 0.5), "not whole"),
        (spoil("slides", [{}]), "KeyError"),
        (spoil("means", 3), "AttributeError"),
    ],
)
def test_a_damaged_fingerprint_is_rejected(
    model_copy: Path, damage: Callable[[dict[str, Any]], None], message: str
) -> None:
    page = json.loads((model_copy / FINGERPRINT).read_text())
    damage(page)
    (model_copy / FINGERPRINT).write_text(json.dumps(page))
    study = json.loads((model_copy / "study.json").read_text())
    with pytest.raises(ModelFileError, match=message):
        read_fingerprint(model_copy, study)


def test_the_change_has_the_interval_of_both_estimates() -> None:
    own = {"slide": {"auc": {"value": 0.8, "low": 0.7, "high": 0.9}, "n": 3}}
    other = {"slide": {"auc": {"value": 0.9, "low": 0.8, "high": 0.95}, "n": 3}}
    change = change_of(own, other)["slide"]["auc"]
    assert change["value"] == pytest.approx(-0.1)
    assert change["low"] == pytest.approx(-0.1 - np.hypot(0.1, 0.05), abs=1e-6)
    assert change["high"] == pytest.approx(-0.1 + np.hypot(0.1, 0.1), abs=1e-6)
    assert change_of(own, None) == {}


def test_each_fold_is_decided_by_its_own_threshold() -> None:
    p = np.array([[0.7, 0.3], [0.3, 0.7], [0.7, 0.3], [0.3, 0.7]])
    labels, thresholds = np.array([1, 1, 0, 0]), np.array([0.2, 0.2, 0.8, 0.8])
    scored = score_classes(ClassPredictions(("a", "b"), labels, p, thresholds, (None,) * 4))
    assert scored["slide"]["accuracy"]["value"] == 1
    assert scored["slide"]["auc"]["value"] == 0.5


# ---------------------------------------------------------------------------------- ensembles


@pytest.fixture
def ensemble(tmp_path: Path) -> Path:
    data = open_clam_cohort(tmp_path)
    studies.train(data, tmp_path / "model", folds=2, keep_folds=True, **QUICK)
    return tmp_path / "model"


def test_folds_are_kept_only_of_a_cross_validation(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="--keep-folds keeps the models of a cross-validation"):
        studies.train(open_clam_cohort(tmp_path), tmp_path / "model", keep_folds=True, **QUICK)


def test_a_damaged_ensemble_is_rejected(ensemble: Path) -> None:
    bags = cohort(2, 2)
    study = json.loads((ensemble / "study.json").read_text())
    assert len(study["ensemble"]["sha256"]) == 2
    for change, message in (
        ({"ensemble": 3}, "the ensemble is incomplete or wrong"),
        ({"ensemble__sha256": ["0" * 64] * 2}, "is not the model that study.json names"),
        ({"ensemble__threshold": "high"}, "threshold = 'high'"),
    ):
        edit_study(ensemble, **{"ensemble": study["ensemble"]})
        edit_study(ensemble, **change)
        with pytest.raises(ModelFileError, match=message):
            studies.predict_folder(ensemble, bags)


@pytest.mark.slow
def test_an_ensemble_continues_where_it_was_interrupted(ensemble: Path) -> None:
    before = {path: path.read_bytes() for path in ensemble.glob("ensemble/*/model.safetensors")}
    study = json.loads((ensemble / "study.json").read_text())
    (ensemble / "study.json").unlink()
    (ensemble / "begun.json").write_text(json.dumps(study["settings"]))
    data = studies.open_data(ensemble.parent / "bags", ensemble.parent / "bags/labels.csv")
    again = studies.train(data, ensemble, folds=2, keep_folds=True, **QUICK)
    assert again.study["ensemble"] == study["ensemble"]
    assert {path: path.read_bytes() for path in before} == before
