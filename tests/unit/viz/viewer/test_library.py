"""The contents of the viewer: slides, scores, labels and the atlas."""

from __future__ import annotations

import csv
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("starlette", reason="starlette is not installed")
pytest.importorskip("openslide", reason="openslide is not installed")
from PIL import Image
from viewer_case import (
    ask,
    get,
    running,
    scored,
    status,
    write_atlas,
    write_model,
)

from scmil.errors import DataError, OptionError
from scmil.models.score_files import PAGE, write_scores
from scmil.slides import slide_digest
from scmil.viz.model_folders import find_models
from scmil.viz.viewer import Library, Server


def test_the_list_has_the_predictions_of_each_model(server: Server) -> None:
    page = json.loads(get(server, "/api/slides"))
    assert [model["name"] for model in page["models"]] == ["sc", "plain"]
    assert [slide["id"] for slide in page["slides"]] == ["one", "two"]
    prediction = page["slides"][1]["models"][0]
    expected = scored("two", sparse=True)
    assert prediction["predicted"] == ("normal", "tumour")[expected.predicted]
    assert prediction["probability"] == pytest.approx(expected.probabilities[expected.predicted])
    assert prediction["correct"] is (expected.predicted == 1)
    assert prediction["split"] == "test"


def test_slides_without_a_file_and_files_without_scores_are_shown(
    home: Path, tmp_path: Path
) -> None:
    write_model(tmp_path / "model", ["gone"], sparse=False, labels=False)
    with (tmp_path / "model" / "predictions.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("slide_id", "y_true"), ("gone", "normal")])
    with running(Library([tmp_path / "model"], home / "slides")) as server:
        gone, one, _ = json.loads(get(server, "/api/slides"))["slides"]
        assert (gone["id"], gone["picture"], gone["label"]) == ("gone", False, "normal")
        assert (one["id"], one["picture"], one["models"]) == ("one", True, [None])
        assert json.loads(get(server, "/api/slide/0"))["size"] == [1000, 1000]
        assert json.loads(get(server, "/api/slide/1"))["xy"] == []
        assert len(get(server, "/dz/0/10/0_0.jpg")) > 0


def test_scores_and_atlas_that_were_written_again_are_not_mixed_with_the_old_ones(
    home: Path, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(home / "sc", tmp_path / "sc"))
    with running(Library([model], home / "slides")) as server:
        assert status(server, "/api/atlas/5/0") == status(server, "/api/slide/0") == 200
        page = json.loads((model / "maps" / "maps.json").read_text())
        (model / "maps" / "maps.json").write_text(json.dumps({**page, "made": "again"}))
        for path in (
            "/api/slide/1",
            "/api/slide/1/scores?kind=attention",
            "/api/slide/1/tile/8",
            "/api/atlas/5/0",
        ):
            answer, message = ask(server, path)
            assert answer.status == 422
            assert b"has changed since the viewer was started" in message


def test_scores_of_another_slide_are_not_shown(home: Path, tmp_path: Path) -> None:
    slides = Path(shutil.copytree(home / "slides", tmp_path / "slides"))
    Image.new("RGB", (900, 1000)).save(slides / "two.png")
    (slides / "two.svs").unlink()
    model = Path(shutil.copytree(home / "sc", tmp_path / "sc"))
    shutil.copy(model / "maps" / "scores" / "two.npz", model / "maps" / "scores" / "one.npz")
    with running(Library([model], slides)) as server:
        for slide, message in (
            (0, b"has scores of slide 'two'"),
            (1, b"900 x 1000 pixels, but its tiles are from a slide of 1000 x 1000"),
        ):
            for path in (
                f"/api/slide/{slide}",
                f"/api/slide/{slide}/scores?kind=attention",
                f"/api/slide/{slide}/tile/0",
            ):
                answer, content = ask(server, path)
                assert answer.status == 422
                assert message in content


def test_scores_of_deleted_bags_are_not_shown(home: Path) -> None:
    one, two = Library([home / "sc"], home / "slides", scored={"two"}).page()["slides"]
    assert (one["id"], one["picture"], one["models"]) == ("one", True, [None])
    assert two["models"][0]["predicted"]


def test_another_slide_of_the_same_size_and_name_has_no_scores(home: Path, tmp_path: Path) -> None:
    model, page = (
        Path(shutil.copytree(home / "sc", tmp_path / "sc")),
        json.loads((home / "sc/maps/maps.json").read_text()),
    )
    for slide_id in ("one", "two"):
        digest = page["slides"][slide_id]["slide_digest"] = slide_digest(
            home / "slides" / f"{slide_id}.svs"
        )
        write_scores(replace(scored(slide_id, sparse=True), slide_digest=digest), model / "maps")
    (model / "maps" / "maps.json").write_text(json.dumps(page))
    slides = Path(shutil.copytree(home / "slides", tmp_path / "slides"))
    with running(Library([model], slides)) as server:
        assert status(server, "/api/slide/0/scores?kind=attention") == 200
        # Another patient, while the viewer runs.
        shutil.copy(home / "slides" / "two.svs", slides / "one.svs")
        answer, message = ask(server, "/api/slide/0/scores?kind=attention")
        assert answer.status == 422
        assert b"is not the file that the bag of 'one' was encoded from" in message
        one, two = json.loads(get(server, "/api/slides"))["slides"]
        assert one["models"] == [None]
        assert two["models"][0]["predicted"]


def test_links_out_of_the_folder_are_not_followed(home: Path, tmp_path: Path) -> None:
    (tmp_path / "slides").mkdir()
    os.symlink(home / "slides" / "one.svs", tmp_path / "slides" / "one.svs")
    os.symlink(home / "slides" / "two.xml", tmp_path / "slides" / "two.xml")
    shutil.copy(home / "slides" / "two.svs", tmp_path / "slides")
    library = Library([home / "sc"], tmp_path / "slides")
    assert [path.name for path in library.left_out] == ["one.svs"]
    assert library.slides[0].path is None
    assert library.annotation(1) is None


def test_an_atlas_cannot_refer_to_files_outside_of_its_folder(home: Path, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", ["one"], sparse=True)
    (tmp_path / "secret.jpg").write_bytes(b"secret")
    os.makedirs(model / "maps" / "atlas" / "tiles")
    os.symlink(tmp_path / "secret.jpg", model / "maps" / "atlas" / "tiles" / "link.jpg")
    Image.new("RGB", (9, 9)).save(model / "maps" / "atlas" / "tiles" / "own.png")
    outside = [
        str(tmp_path / "secret.jpg"),
        "../../../secret.jpg",
        "tiles/link.jpg",
        "atlas.json",
        "",
    ]
    tiles = [
        {"slide": "another", "x": 0, "y": 0, "side": 9, "file": file}
        for file in [*outside, "tiles/own.png"]
    ]
    write_atlas(model, [{"atom": 0, "tiles": tiles}])
    with running(Library([model], home / "slides")) as server:
        for number in range(len(outside)):
            assert status(server, f"/api/atlas/0/{number}") == 404
        answer, _ = ask(server, f"/api/atlas/0/{len(outside)}")
        assert (answer.status, answer.headers["content-type"]) == (200, "image/png")


def test_damaged_atlases_and_ambiguous_or_missing_slides_are_rejected(
    home: Path, tmp_path: Path
) -> None:
    model = write_model(tmp_path / "model", ["one"], sparse=True)
    with pytest.raises(DataError, match="no such file or folder"):
        Library([model], tmp_path / "nowhere")
    for name in ("a", "b"):
        (tmp_path / "twice" / name).mkdir(parents=True)
        shutil.copy(home / "slides" / "one.svs", tmp_path / "twice" / name)
    with pytest.raises(DataError, match="two slides have the id 'one'"):
        Library([model], tmp_path / "twice")
    write_atlas(model, [])
    (model / "maps" / "atlas" / "atlas.json").write_text("{")
    with pytest.raises(DataError, match="not an atlas"):
        Library([model])


def test_an_image_beside_a_slide_is_not_taken_for_the_slide(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "slides", tmp_path / "slides")
    Image.new("RGB", (30, 30)).save(tmp_path / "slides" / "one.jpg")
    path = Library([home / "sc"], tmp_path / "slides").slides[0].path
    assert path is not None
    assert path.suffix == ".svs"


def test_models_are_found_in_a_folder_of_models(home: Path, tmp_path: Path) -> None:
    assert find_models(home) == [home / "plain", home / "sc"]
    assert find_models(home / "sc") == [home / "sc"]
    with pytest.raises(DataError, match="is not a model folder written by scmil train"):
        find_models(tmp_path)


def test_the_facts_of_a_slide_have_the_sums_of_its_evidence(server: Server) -> None:
    facts = json.loads(get(server, "/api/slide/0?model=0"))
    expected = scored("one", sparse=True).evidence
    assert expected is not None
    assert "evidence:tumour" in facts["kinds"]
    tumour = facts["evidence"]["tumour"]
    assert tumour["logit"] == pytest.approx(expected.logits[1])
    assert tumour["constant"] == pytest.approx(expected.constant[1])
    assert abs(tumour["error"]) < 1e-5
    assert tumour["method"] == "exact"


def test_the_spread_over_models_is_a_layer_of_the_first_model(home: Path, tmp_path: Path) -> None:
    fold = write_model(tmp_path / "fold", ["one", "two"], sparse=False)
    library = Library([home / "sc", home / "plain"], also=[home / "plain", fold])
    kinds = library.tiles(0, 0)["kinds"]
    assert "spread:attention" in kinds
    assert kinds.index("spread:attention") > kinds.index("attention")
    assert "lambda" in kinds
    assert "spread:lambda" not in kinds  # the other models have no sparse coding
    assert not [kind for kind in library.tiles(1, 0)["kinds"] if kind.startswith("spread:")]
    every = [scored("one", sparse).attention for sparse in (True, False, False)]
    expected = np.std(every, axis=0, ddof=1)
    assert expected.max() > 0
    np.testing.assert_allclose(library.values(0, 0, "spread:attention"), expected, rtol=1e-5)
    assert library.code(0, 0, 3)["scores"]["spread:attention"] == pytest.approx(expected[3])


def test_one_model_has_no_spread(home: Path) -> None:
    library = Library([home / "sc"])
    assert not [kind for kind in library.kinds(0, 0) if kind.startswith("spread:")]
    with pytest.raises(OptionError, match="there is one model, so there is no spread"):
        library.values(0, 0, "spread:attention")


def test_a_slide_that_a_further_model_has_not_scored_has_no_spread(
    home: Path, tmp_path: Path
) -> None:
    library = Library([home / "sc"], also=[write_model(tmp_path / "fold", ["one"], sparse=False)])
    assert "spread:attention" in library.kinds(0, 0)
    assert "spread:attention" not in library.kinds(0, 1)
    with pytest.raises(DataError, match="fold/maps has no scores of slide 'two'"):
        library.values(0, 1, "spread:attention")


def test_a_further_model_that_is_scored_again_is_noticed(home: Path, tmp_path: Path) -> None:
    fold = write_model(tmp_path / "fold", ["one"], sparse=False)
    library = Library([home / "sc"], also=[fold])
    with (fold / "maps" / PAGE).open("a") as file:
        file.write(" ")
    with pytest.raises(DataError, match="fold/maps has changed since the viewer was started"):
        library.values(0, 0, "spread:attention")
