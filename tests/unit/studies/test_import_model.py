"""An imported checkpoint is a model folder: predictions are the numbers of its authors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from golden_cases import CASES, Case, onednn
from golden_comparisons import place
from golden_numbers import Golden

from scmil import Bag, write_bag
from scmil.bags.formats import open_bags
from scmil.errors import ModelFileError, OptionError, OutputError, ShapeError
from scmil.models.score_files import open_scores
from scmil.studies import load_trained_model, predict_folder, score_folder
from scmil.studies.import_model import ImportSettings, import_model

SETTINGS = ImportSettings("simclr", ["normal", "tumor"])
BY_FILE = {case.file: case for case in CASES}


@pytest.fixture(autouse=True)
def without_onednn() -> Iterator[None]:
    with onednn(False):
        yield


def checkpoint(case: Case, folder: Path) -> Path:
    path = folder / f"{case.file}.pth"
    torch.save({"state_dict": case.checkpoint(Golden(case.file))}, path)
    return path


def write_bags(case: Case, folder: Path, model: torch.nn.Module, encoder: str = "simclr") -> Path:
    golden = Golden(case.file)
    for bag in golden.bags:
        x = place(golden.x(bag), model)
        xy = torch.stack([torch.arange(len(x)) * 256, torch.zeros(len(x), dtype=torch.long)], 1)
        if (given := golden.get("xy", bag)) is not None:
            xy = (1000 * given).long()
        origin = {"encoder": encoder, "side_level0": 256.0}
        written = Bag(f"slide_{bag}", x, xy=xy, provenance=origin)
        write_bag(written, folder / f"{written.id}.h5", dtype="float32")
    return folder


def expected_probabilities(golden: Golden, bag: int, several: bool) -> list[float]:
    """Both probabilities, as the authors compute them."""
    p = golden.get("probability", bag)
    logits = golden.get("logits", bag)
    if p is None and logits is not None:
        if several:
            return logits[0].sigmoid().tolist()
        if logits.numel() > 1:
            return logits[0].softmax(-1).tolist()
        p = logits.sigmoid()
    assert p is not None
    return [1 - p.item(), p.item()]


# The numbers of acmil_ga_mask_all are those of training, with masked tiles.
PREDICTED = [case for case in CASES if case.file != "acmil_ga_mask_all"]


@pytest.mark.parametrize("case", PREDICTED, ids=lambda case: case.file)
def test_predictions_are_the_probabilities_of_the_authors(case: Case, tmp_path: Path) -> None:
    out = tmp_path / "model"
    logits = Golden(case.file).get("logits", 0)
    count = 2 if logits is None else max(2, logits.numel())
    classes = ["normal", "tumor", "third", "fourth"][:count]
    settings = ImportSettings("simclr", classes)
    import_model(checkpoint(case, tmp_path), case.aggregator, out, settings, choices=case.choices)
    model, _ = load_trained_model(out)
    predicted = predict_folder(out, open_bags(write_bags(case, tmp_path / "bags", model)))
    golden = Golden(case.file)
    assert not predicted.failed
    for bag, row in enumerate(predicted.rows):
        actual = [float(row[f"p_{name}"]) for name in classes]
        expected = expected_probabilities(golden, bag, model.output == "sigmoid")
        assert actual == pytest.approx(expected, abs=1e-5)


def test_tile_scores_and_decisions_follow_the_sigmoids(tmp_path: Path) -> None:
    case, out = BY_FILE["dsmil_2class"], tmp_path / "model"
    imported = import_model(checkpoint(case, tmp_path), "dsmil", out, SETTINGS)
    assert (imported.output, imported.study["threshold"]) == ("sigmoid", None)
    model, study = load_trained_model(out)
    bags = open_bags(write_bags(case, tmp_path / "bags", model))
    scored = score_folder(out, bags)
    golden = Golden(case.file)
    for bag in golden.bags:
        scores = open_scores(out)[f"slide_{bag}"]
        expected = expected_probabilities(golden, bag, several=True)
        assert scores.probabilities.tolist() == pytest.approx(expected, abs=1e-5)
        assert scores.predicted == expected.index(max(expected))
        with torch.no_grad():  # a bag of one tile has its own sigmoids
            alone = model(golden.x(bag)[:1]).logits.sigmoid()
        assert scores.instance[0].tolist() == pytest.approx(alone.tolist(), abs=1e-5)
    rows = predict_folder(out, bags).rows
    names = [study["classes"][scored.scores[row["slide_id"]].predicted] for row in rows]
    assert [row["y_pred"] for row in rows] == names
    assert any(float(row["p_normal"]) + float(row["p_tumor"]) > 1.01 for row in rows)


def test_scores_are_computed_again_if_the_settings_of_the_import_change(tmp_path: Path) -> None:
    case, out = BY_FILE["dsmil_1class"], tmp_path / "model"
    file = checkpoint(case, tmp_path)
    import_model(file, "dsmil", out, SETTINGS)
    bags = open_bags(write_bags(case, tmp_path / "bags", load_trained_model(out)[0]))
    before = {slide: scores.predicted for slide, scores in score_folder(out, bags).scores.items()}
    import_model(file, "dsmil", out, ImportSettings("simclr", ["normal", "tumor"], threshold=1.0))
    after = {slide: scores.predicted for slide, scores in score_folder(out, bags).scores.items()}
    assert 1 in before.values()
    assert set(after.values()) == {0}


def test_bags_of_another_encoder_are_rejected(tmp_path: Path) -> None:
    case, out = BY_FILE["dsmil_1class"], tmp_path / "model"
    import_model(checkpoint(case, tmp_path), "dsmil", out, SETTINGS)
    model, _ = load_trained_model(out)
    bags = open_bags(write_bags(case, tmp_path / "bags", model, encoder="uni"))
    with pytest.raises(ShapeError, match="encoder 'uni' instead of 'simclr'"):
        predict_folder(out, bags)


def test_what_the_checkpoint_does_not_contain_is_recorded(tmp_path: Path) -> None:
    scaling = tmp_path / "scaling.json"
    scaling.write_text(json.dumps({"mean": [0.5] * 24, "deviation": [2] * 24}))
    settings = ImportSettings("simclr", ["a", "b"], 224, 0.5, 0.1964, scaling)
    file = checkpoint(BY_FILE["dsmil_1class"], tmp_path)
    study = import_model(file, "dsmil", tmp_path / "model", settings).study
    assert study["contract"] == {"dim": 24, "encoder": "simclr", "size_px": 224, "mpp": 0.5}
    assert (study["classes"], study["threshold"]) == (["a", "b"], 0.1964)
    assert study["scaling"]["deviation"] == [2.0] * 24
    assert study["imported"]["layout"].startswith("binli123/dsmil-wsi")
    assert load_trained_model(tmp_path / "model")[1] == study
    card = (tmp_path / "model" / "MODEL_CARD.md").read_text()
    assert "all 8 tensors were used" in card
    assert "scmil did not train this model" in card


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "names": ({"classes": ["a"]}, "has 2 classes, so 2 different names"),
    "equal names": ({"classes": ["a", "a"]}, "different names"),
    "size": ({"size_px": 10**6}, "size_px = 1000000"),
    "mpp": ({"mpp": 1e-9}, "mpp = 1e-09"),
    "threshold": ({"threshold": 7.0}, "probability from 0 to 1"),
    "no scaling": ({"scaling": "none.json"}, "mean and deviation"),
    "scaling": ({"scaling": "short.json"}, "mean is not 24 finite numbers"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_settings_that_do_not_fit_write_nothing(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("short.json").write_text('{"mean": [0], "deviation": [1]}')
    changes, message = WRONG[kind]
    file = checkpoint(BY_FILE["dsmil_1class"], tmp_path)
    with pytest.raises(OptionError, match=message):
        import_model(file, "dsmil", "model", ImportSettings(**{"encoder": "simclr", **changes}))
    assert not Path("model").exists()


def test_a_threshold_for_one_sigmoid_per_class_is_rejected(tmp_path: Path) -> None:
    file = checkpoint(BY_FILE["dsmil_2class"], tmp_path)
    settings = ImportSettings("simclr", threshold=0.5)
    with pytest.raises(OptionError, match="one sigmoid per class"):
        import_model(file, "dsmil", tmp_path / "model", settings)


def test_errors_name_the_file(tmp_path: Path) -> None:
    file = checkpoint(BY_FILE["ilra_rank1"], tmp_path)
    with pytest.raises(ModelFileError, match=r"ilra_rank1\.pth: not a known layout of dsmil"):
        import_model(file, "dsmil", tmp_path / "model", SETTINGS)


def test_a_model_of_another_command_is_kept(tmp_path: Path) -> None:
    out, file = tmp_path / "model", checkpoint(BY_FILE["dsmil_1class"], tmp_path)
    out.mkdir()
    (out / "study.json").write_text("mine")
    with pytest.raises(OutputError, match="was not written by scmil import-model"):
        import_model(file, "dsmil", out, SETTINGS)
    assert (out / "study.json").read_text() == "mine"
    import_model(file, "dsmil", out, SETTINGS, overwrite=True)
    import_model(file, "dsmil", out, SETTINGS)  # its own files are replaced
    load_trained_model(out)
