"""Scores of tiles: computed once for each model and bag, and logged if they fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from study_cases import QUICK, open_clam_cohort, read_rows, with_coordinates

from scmil import studies
from scmil.bags.bag import Bag, BagSet
from scmil.bags.formats import export_bags
from scmil.errors import ScmilError

pytestmark = pytest.mark.slow  # models are trained


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bags` and two models, trained on them with different seeds."""
    home = tmp_path_factory.mktemp("two-models")
    generator = torch.Generator().manual_seed(0)
    bags = [
        Bag(
            f"s{i:02}",
            torch.randn(3, 4, generator=generator) + i % 2,
            label=i % 2,
            xy=10 * torch.arange(6).reshape(3, 2),
        )
        for i in range(16)
    ]
    export_bags(BagSet(bags, ["normal", "tumor"]), home / "bags", "clam")
    data = studies.open_data(home / "bags", home / "bags" / "labels.csv")
    for name, seed in (("first", 0), ("second", 1)):
        studies.train(data, home / name, aggregator="abmil", epochs=1, seed=seed)
    return home


def score(folder: Path, model: str, out: Path) -> dict[str, float]:
    """Probability of a tumour in each slide, as the score files state it."""
    data = studies.open_data(folder / "bags", folder / "bags" / "labels.csv")
    scored = studies.score_folder(folder / model, data.bags, out)
    return {slide_id: float(each.probabilities[1]) for slide_id, each in scored.scores.items()}


def test_scores_of_another_model_are_not_reused(folder: Path, tmp_path: Path) -> None:
    expected = {name: score(folder, name, tmp_path / name) for name in ("first", "second")}
    assert expected["first"] != pytest.approx(expected["second"], abs=1e-3)
    assert score(folder, "first", tmp_path / "shared") == expected["first"]
    assert score(folder, "second", tmp_path / "shared") == expected["second"]


def test_scores_of_the_same_model_are_reused(folder: Path, tmp_path: Path) -> None:
    score(folder, "first", tmp_path)
    files = sorted((tmp_path / "scores").iterdir())
    before = [file.stat().st_mtime_ns for file in files]
    score(folder, "first", tmp_path)
    assert len(files) == 16
    assert [file.stat().st_mtime_ns for file in files] == before


def test_earlier_scores_of_a_deleted_bag_do_not_hide_that_all_others_failed(
    folder: Path, tmp_path: Path
) -> None:
    score(folder, "first", tmp_path)
    bags = studies.open_data(folder / "bags", folder / "bags" / "labels.csv").bags
    damaged = BagSet([replace(bag, xy=None) for bag in bags][1:], bags.classes)
    with pytest.raises(ScmilError, match="none of the 15 slides could be scored"):
        studies.score_folder(folder / "first", damaged, tmp_path)


def test_scores_are_computed_once_and_agree_with_the_predictions(tmp_path: Path) -> None:
    data = open_clam_cohort(tmp_path)
    studies.train(data, tmp_path / "model", **QUICK)
    bags = with_coordinates(data.bags)
    first = studies.score_folder(tmp_path / "model", bags)
    assert len(first.scores) == 24
    assert not first.failed
    files = sorted((tmp_path / "model/maps/scores").iterdir())
    stamps = [file.stat().st_mtime_ns for file in files]
    counted: list[int] = []
    again = studies.score_folder(tmp_path / "model", bags, progress=counted.append)
    assert [file.stat().st_mtime_ns for file in files] == stamps
    assert counted == list(range(1, 25))
    predictions = {row["slide_id"]: row for row in read_rows(tmp_path / "model/predictions.csv")}
    for slide_id, scores in again.scores.items():
        assert scores.classes[scores.label] == predictions[slide_id]["y_true"]
        assert scores.probabilities[-1] == pytest.approx(
            float(predictions[slide_id][f"p_{scores.classes[-1]}"]), abs=1e-5
        )


def test_labels_refer_to_the_classes_of_the_model(tmp_path: Path) -> None:
    data = open_clam_cohort(tmp_path)
    studies.train(data, tmp_path / "model", **QUICK)
    last = data.bags.classes[-1]
    only = BagSet(
        [replace(bag, label=0) for bag in with_coordinates(data.bags) if bag.label == 1], [last]
    )
    scored = studies.score_folder(tmp_path / "model", only, tmp_path / "maps").scores
    assert {scores.classes[scores.label] for scores in scored.values()} == {last}


def test_a_bag_without_coordinates_is_logged_and_the_others_continue(tmp_path: Path) -> None:
    data = open_clam_cohort(tmp_path)
    studies.train(data, tmp_path / "model", **QUICK)
    good = with_coordinates(data.bags)
    bags = BagSet([replace(good[0], xy=None), *good[1:]], good.classes)
    scored = studies.score_folder(tmp_path / "model", bags)
    assert list(scored.failed) == [bags.ids[0]]
    assert "has no coordinates" in (tmp_path / "model/maps/failures.csv").read_text()
    assert len(scored.scores) == 23
    assert not studies.score_folder(tmp_path / "model", good).failed
    assert bags.ids[0] not in (tmp_path / "model/maps/failures.csv").read_text()


def test_evidence_is_added_to_scores_that_have_none(folder: Path, tmp_path: Path) -> None:
    data = studies.open_data(folder / "bags", folder / "bags" / "labels.csv")
    model = tmp_path / "non-local"
    studies.train(data, model, aggregator="nlmil", epochs=1)
    before = studies.score_folder(model, data.bags).scores
    assert before["s00"].evidence is None
    after = studies.score_folder(model, data.bags, evidence=True).scores
    found = after["s00"].evidence
    assert found is not None
    assert after.page["slides"]["s00"]["evidence_error"] == abs(found.errors).max()
    assert (after["s00"].attention == before["s00"].attention).all()
    again = studies.score_folder(model, data.bags).scores  # evidence is kept when it is not needed
    assert again["s00"].evidence is not None


def test_exact_evidence_is_part_of_the_scores(folder: Path, tmp_path: Path) -> None:
    data = studies.open_data(folder / "bags", folder / "bags" / "labels.csv")
    scores = studies.score_folder(folder / "first", data.bags, tmp_path).scores
    assert scores.page["slides"]["s00"]["evidence_error"] < 1e-5
