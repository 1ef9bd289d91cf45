"""The files of each slide: sheet, detections and overlay."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("openslide")
pytest.importorskip("PIL")
from heatmap_case import BACK, SHOWN, SIDE, SIZE, chosen, panel

from scmil.errors import DataError
from scmil.models.score_files import open_scores
from scmil.viz.drawing.colour_scale import scale_for
from scmil.viz.heatmaps import draw_heatmaps


def middles(picture: np.ndarray) -> dict[tuple[int, int], list[int]]:
    """The colour in the middle of each place of the grid of tiles."""
    by = picture.shape[1] / SIZE[0]
    grid = [(x, y) for y in range(SIZE[1] // SIDE) for x in range(SIZE[0] // SIDE)]
    return {
        (x, y): picture[int((y + 0.5) * SIDE * by), int((x + 0.5) * SIDE * by)].tolist()
        for x, y in grid
    }


def test_tiles_are_drawn_on_the_slide_in_the_colours_of_their_scores(
    home: Path, model: Path
) -> None:
    drawn = draw_heatmaps(model, chosen(home), slides=home / "slides", score="probability:tumour")
    assert drawn.out == model / "maps" / "probability-tumour"
    assert (drawn.outcome.done, drawn.failed) == (tuple(SHOWN), {})
    scores = open_scores(model)["s00"]
    values = scores.of("probability:tumour")
    scale = scale_for("probability", [values])
    colour = (np.array(BACK) * 105 + scale.colours(scale.shares(values)) * 150) / 255
    colours = middles(panel(drawn.out / "s00.png"))
    for (x, y), expected in zip((scores.xy // SIDE).tolist(), colour):
        np.testing.assert_allclose(colours.pop((x, y)), expected, atol=2)
    assert set(map(tuple, colours.values())) == {BACK}  # where no tile is, the slide is as it was


def test_an_annotation_beside_a_slide_is_drawn_on_that_slide_only(home: Path, model: Path) -> None:
    out = draw_heatmaps(model, chosen(home), slides=home / "slides").out
    red = {
        slide_id: int((panel(out / f"{slide_id}.png") == (230, 20, 20)).all(-1).sum())
        for slide_id in SHOWN
    }
    assert red["s01"] > 100
    assert red["s00"] == red["s02"] == 0
    by = panel(out / "s01.png").shape[1] / SIZE[0]
    assert panel(out / "s01.png")[int(70 * by), int(190 * by)].tolist() == [230, 20, 20]


def test_annotations_may_be_in_a_folder_of_their_own(
    home: Path, model: Path, tmp_path: Path
) -> None:
    shutil.copy(home / "slides" / "s01.geojson", tmp_path / "s02.geojson")
    out = draw_heatmaps(
        model, chosen(home), slides=home / "slides", annotations=tmp_path, score="ratio"
    ).out
    red = [
        bool((panel(out / f"{slide_id}.png") == (230, 20, 20)).all(-1).any()) for slide_id in SHOWN
    ]
    assert red == [False, False, True]
    with pytest.raises(DataError, match="nowhere is not a folder"):
        draw_heatmaps(model, chosen(home), annotations=tmp_path / "nowhere")


def test_without_slides_the_background_is_plain_and_has_the_shape_of_the_slide(
    home: Path, model: Path
) -> None:
    out = draw_heatmaps(model, chosen(home), score="lambda").out
    picture = panel(out / "s00.png")
    assert picture.shape[:2] == (600, 800)
    colours = middles(picture)
    scores = open_scores(model)["s00"]
    values = scores.of("lambda")
    scale = scale_for("lambda", [values])
    for (x, y), expected in zip((scores.xy // SIDE).tolist(), scale.colours(scale.shares(values))):
        np.testing.assert_allclose(colours.pop((x, y)), expected, atol=2)
    assert set(map(tuple, colours.values())) == {(238, 238, 238)}


def test_a_sheet_is_kept_until_one_of_its_inputs_changes(
    home: Path, model: Path, tmp_path: Path
) -> None:
    slides = Path(shutil.copytree(home / "slides", tmp_path / "slides"))
    options: dict[str, Any] = {"slides": slides, "out": tmp_path / "maps"}
    draw_heatmaps(model, chosen(home), **options)
    again = draw_heatmaps(model, chosen(home), **options)
    assert (again.outcome.done, again.outcome.kept) == ((), tuple(SHOWN))
    (slides / "s02.geojson").write_text((slides / "s01.geojson").read_text())
    assert draw_heatmaps(model, chosen(home), **options).outcome.done == ("s02",)
    assert draw_heatmaps(model, chosen(home), **options, labels={"s00": "odd"}).outcome.done == (
        "s00",
    )
    for change in ({"score": "ratio"}, {"tiff": True}, {"same_scale": True}, {"geojson": False}):
        changed = draw_heatmaps(model, chosen(home), **options, **change)  # type: ignore[arg-type]
        assert changed.outcome.done == tuple(SHOWN), change


def test_an_overlay_of_another_score_is_not_kept(home: Path, model: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"slides": home / "slides", "out": tmp_path / "maps"}
    bags = chosen(home, ["s00"])
    draw_heatmaps(model, bags, **options, score="ratio", tiff=True)
    first = (tmp_path / "maps" / "s00.tiff").read_bytes()
    draw_heatmaps(model, bags, **options, score="lambda")
    draw_heatmaps(model, bags, **options, score="lambda", tiff=True)
    assert (tmp_path / "maps" / "s00.tiff").read_bytes() != first


def test_detections_have_every_score_of_every_tile(home: Path, model: Path) -> None:
    out = draw_heatmaps(model, chosen(home), score="atom:3").out
    features = json.loads((out / "s01.geojson").read_text())["features"]
    scores = open_scores(model)["s01"]
    assert len(features) == len(scores)
    names = {
        "attention",
        "percentile",
        "ratio",
        "prob_normal",
        "prob_tumour",
        "evidence_normal",
        "evidence_tumour",
        "lambda",
        "sparsity",
        "top_atom",
        "atom_3",
    }
    assert set(features[0]["properties"]["measurements"]) == names
    assert scores.codes is not None
    codes = scores.codes.dense()
    for tile, feature in enumerate(features):
        measured = feature["properties"]["measurements"]
        assert measured["attention"] == pytest.approx(scores.attention[tile], rel=1e-5)
        assert measured["prob_tumour"] == pytest.approx(scores.instance[tile, 1], rel=1e-5)
        assert measured["atom_3"] == pytest.approx(codes[tile, 3], rel=1e-5)
        assert abs(codes[tile, int(measured["top_atom"])]) == np.abs(codes[tile]).max()
        # QuPath would take it for a class of a class.
        assert ":" not in feature["properties"]["classification"]["name"]


def test_the_overlay_has_the_geometry_of_the_slide(home: Path, model: Path) -> None:
    import openslide

    out = draw_heatmaps(
        model, chosen(home), slides=home / "slides", score="probability", tiff=True
    ).out
    scores = open_scores(model)["s00"]
    scale = scale_for("probability", [scores.of("probability")])
    with openslide.OpenSlide(out / "s00.tiff") as overlay:
        mpp = float(overlay.properties["openslide.mpp-x"])
        assert (overlay.dimensions[0] * mpp, overlay.dimensions[1] * mpp) == pytest.approx(
            (SIZE[0] * 2.0, SIZE[1] * 2.0)
        )
        middle = (scores.xy[5] + SIDE / 2) * 2.0 / mpp
        pixel = overlay.read_region((int(middle[0]), int(middle[1])), 0, (1, 1)).getpixel((0, 0))
    np.testing.assert_allclose(
        pixel[:3], scale.colours(scale.shares(scores.of("probability")))[5], atol=1
    )
