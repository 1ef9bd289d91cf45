"""Maps of a folder of slides: over the slides, with the truth, with everything said that a map does not show."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("openslide")
pytest.importorskip("PIL")

from PIL import Image

from scmil import studies as study
from scmil.bags.hdf5 import write_bag
from scmil.bags.bag import Bag, BagSet
from scmil.errors import DataError, OptionError, OutputError
from scmil.bags.formats import open_bags
from scmil.viz.heatmaps import draw_heatmaps
from scmil.viz.heatmaps.slide_files import made_of
from scmil.viz.heatmaps.captions import annotated, heading, meaning, numbers, warning
from scmil.report.html.contact_sheet import Card, contact_sheet
from scmil.models.tile_scores import open_scores, score_bag, scores_path
from scmil.viz.drawing.colour_scale import scale_for
from scmil.core.jobs.work import Ledger

SIDE, SIZE, DIM, BACK = 64, (512, 384), 8, (250, 240, 245)
MADE = {"encoder": "uni_v1", "size_px": 256, "mpp": 0.5, "side_level0": float(SIDE), "slide_mpp": 2.0, "overlap_px": 0}
SHOWN = ["s00", "s01", "s02"]


def slide_bag(i: int) -> Bag:
    generator = torch.Generator().manual_seed(i)
    places = torch.tensor([(SIDE * x, SIDE * y) for y in range(1, 4) for x in range(2, 6)])
    features = torch.randn(len(places), DIM, generator=generator) + 3 * (i % 2) * torch.eye(DIM)[0]
    return Bag(f"s{i:02}", features, xy=places, provenance={**MADE, "slide_size": list(SIZE)})


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bags, slides with annotations of three of them, and a model that has learned from the bags."""
    home = tmp_path_factory.mktemp("home")
    (home / "slides").mkdir()
    rows = ["case_id,slide_id,label"]
    for i in range(24):
        write_bag(slide_bag(i), home / "bags" / f"s{i:02}.h5")
        rows.append(f"p{i},s{i:02},{['normal', 'tumour'][i % 2]}")
    (home / "labels.csv").write_text("\n".join(rows))
    for id in SHOWN:
        Image.new("RGB", SIZE, BACK).save(home / "slides" / f"{id}.png")
    ring = [[130, 70], [250, 70], [250, 190], [130, 190], [130, 70]]
    lesion = {"type": "Feature", "properties": {"objectType": "annotation"}}
    lesion["geometry"] = {"type": "Polygon", "coordinates": [ring]}
    (home / "slides" / "s01.geojson").write_text(json.dumps([lesion]))
    data = study.open_data(home / "bags", home / "labels.csv")
    options: dict[str, Any] = {"aggregator": "abmil-gated", "sparse_coding": {"atoms": 8}, "epochs": 2}
    study.train(data, home / "trained", **options)
    return home


@pytest.fixture
def model(home: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(home / "trained", tmp_path / "model"))


def chosen(home: Path, ids: list[str] = SHOWN) -> BagSet:
    return open_bags(home / "bags").subset(ids)


def panel(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        return np.asarray(picture.crop(made_of(path)["panel"]).convert("RGB")).astype(int)


def middles(picture: np.ndarray) -> dict[tuple[int, int], list[int]]:
    """The colour in the middle of each place of the grid of tiles."""
    by = picture.shape[1] / SIZE[0]
    grid = [(x, y) for y in range(SIZE[1] // SIDE) for x in range(SIZE[0] // SIDE)]
    return {(x, y): picture[int((y + 0.5) * SIDE * by), int((x + 0.5) * SIDE * by)].tolist() for x, y in grid}


def test_tiles_lie_on_the_slide_in_the_colours_of_their_scores(home: Path, model: Path) -> None:
    drawn = draw_heatmaps(model, chosen(home), slides=home / "slides", score="probability:tumour")
    assert drawn.out == model / "maps" / "probability-tumour"
    assert (drawn.outcome.done, drawn.failed) == (tuple(SHOWN), {})
    scores = open_scores(model)["s00"]
    values = scores.of("probability:tumour")
    scale = scale_for("probability", [values])
    colour = (np.array(BACK) * 105 + scale.colours(scale.shares(values)) * 150) / 255
    met = middles(panel(drawn.out / "s00.png"))
    for (x, y), expected in zip((scores.xy // SIDE).tolist(), colour):
        np.testing.assert_allclose(met.pop((x, y)), expected, atol=2)
    assert set(map(tuple, met.values())) == {BACK}  # where no tile is, the slide is as it was


def test_the_truth_beside_the_slide_is_outlined_on_its_slide_only(home: Path, model: Path) -> None:
    out = draw_heatmaps(model, chosen(home), slides=home / "slides").out
    red = {id: int((panel(out / f"{id}.png") == (230, 20, 20)).all(-1).sum()) for id in SHOWN}
    assert red["s01"] > 100
    assert red["s00"] == red["s02"] == 0
    by = panel(out / "s01.png").shape[1] / SIZE[0]
    assert panel(out / "s01.png")[int(70 * by), int(190 * by)].tolist() == [230, 20, 20]


def test_annotations_may_be_in_a_folder_of_their_own(home: Path, model: Path, tmp_path: Path) -> None:
    shutil.copy(home / "slides" / "s01.geojson", tmp_path / "s02.geojson")
    out = draw_heatmaps(model, chosen(home), slides=home / "slides", annotations=tmp_path, score="ratio").out
    red = [bool((panel(out / f"{id}.png") == (230, 20, 20)).all(-1).any()) for id in SHOWN]
    assert red == [False, False, True]
    with pytest.raises(DataError, match="nowhere is not a folder"):
        draw_heatmaps(model, chosen(home), annotations=tmp_path / "nowhere")


def test_without_slides_the_ground_is_plain_and_has_the_slides_shape(home: Path, model: Path) -> None:
    out = draw_heatmaps(model, chosen(home), score="lambda").out
    picture = panel(out / "s00.png")
    assert picture.shape[:2] == (600, 800)
    met = middles(picture)
    scores = open_scores(model)["s00"]
    values = scores.of("lambda")
    scale = scale_for("lambda", [values])
    for (x, y), expected in zip((scores.xy // SIDE).tolist(), scale.colours(scale.shares(values))):
        np.testing.assert_allclose(met.pop((x, y)), expected, atol=2)
    assert set(map(tuple, met.values())) == {(238, 238, 238)}


def test_what_is_drawn_is_kept_until_something_that_it_shows_changes(home: Path, model: Path, tmp_path: Path) -> None:
    slides = Path(shutil.copytree(home / "slides", tmp_path / "slides"))
    options: dict[str, Any] = {"slides": slides, "out": tmp_path / "maps"}
    draw_heatmaps(model, chosen(home), **options)
    again = draw_heatmaps(model, chosen(home), **options)
    assert (again.outcome.done, again.outcome.kept) == ((), tuple(SHOWN))
    (slides / "s02.geojson").write_text((slides / "s01.geojson").read_text())
    assert draw_heatmaps(model, chosen(home), **options).outcome.done == ("s02",)
    assert draw_heatmaps(model, chosen(home), **options, labels={"s00": "odd"}).outcome.done == ("s00",)
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


def test_the_same_scale_is_stated_and_shared(home: Path, model: Path) -> None:
    drawn = draw_heatmaps(model, chosen(home), score="ratio", same_scale=True)
    known = np.concatenate([open_scores(model)[id].of("ratio") for id in SHOWN])
    low, high = np.percentile(known, [1, 99])
    assert drawn.scale == f"by value from {low:.3g} to {high:.3g}, percentiles 1 to 99 of all slides, the same for all"
    assert drawn.scale in (drawn.out / "index.html").read_text()


def test_qupath_gets_every_score_of_every_tile(home: Path, model: Path) -> None:
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
        assert ":" not in feature["properties"]["classification"]["name"]  # QuPath would take it for a class of a class


def test_the_overlay_lies_on_the_slide(home: Path, model: Path) -> None:
    import openslide

    out = draw_heatmaps(model, chosen(home), slides=home / "slides", score="probability", tiff=True).out
    scores = open_scores(model)["s00"]
    scale = scale_for("probability", [scores.of("probability")])
    with openslide.OpenSlide(out / "s00.tiff") as overlay:
        mpp = float(overlay.properties["openslide.mpp-x"])
        assert (overlay.dimensions[0] * mpp, overlay.dimensions[1] * mpp) == pytest.approx(
            (SIZE[0] * 2.0, SIZE[1] * 2.0)
        )
        middle = (scores.xy[5] + SIDE / 2) * 2.0 / mpp
        pixel = overlay.read_region((int(middle[0]), int(middle[1])), 0, (1, 1)).getpixel((0, 0))
    np.testing.assert_allclose(pixel[:3], scale.colours(scale.shares(scores.of("probability")))[5], atol=1)


# ---------------------------------------------------------------------------------------------------- what goes wrong


def test_one_bad_slide_stops_nothing_and_its_cause_is_written_down(home: Path, model: Path, tmp_path: Path) -> None:
    slides = Path(shutil.copytree(home / "slides", tmp_path / "slides"))
    Image.new("RGB", (640, 384), BACK).save(slides / "s00.png")
    homeless = replace(slide_bag(30), xy=None)
    damaged = slide_bag(5)
    bags = BagSet([slide_bag(i) for i in (0, 1, 2, 3, 4)] + [damaged, homeless])
    (slides / "s04.png").write_bytes(b"no picture")
    Image.new("RGB", SIZE, BACK).save(slides / "s05.png")
    draw_heatmaps(model, BagSet([damaged]), tmp_path / "other")
    scores_path(model / "maps", "s05").write_bytes(b"no scores")
    drawn = draw_heatmaps(model, bags, tmp_path / "maps", slides=slides)
    assert drawn.outcome.done == ("s01", "s02")
    assert "has 640 x 384 pixels, but its tiles are from a slide of 512 x 384" in drawn.failed["s00"]
    assert "has no slide 's03'. Put its file there, or leave --slides out" in drawn.failed["s03"]
    assert "s04.png" in drawn.failed["s04"]
    assert "is damaged, or no file of scores" in drawn.failed["s05"]
    assert "has no coordinates" in drawn.failed["s30"]
    assert {failure.slide for failure in Ledger(tmp_path / "maps").read()} == set(drawn.failed)
    assert "Not drawn (5)" in (tmp_path / "maps" / "index.html").read_text()


def test_a_slide_that_is_mended_leaves_the_ledger(home: Path, model: Path, tmp_path: Path) -> None:
    slides = Path(shutil.copytree(home / "slides", tmp_path / "slides"))
    (slides / "s00.png").rename(tmp_path / "s00.png")
    assert list(draw_heatmaps(model, chosen(home), tmp_path / "maps", slides=slides).failed) == ["s00"]
    (tmp_path / "s00.png").rename(slides / "s00.png")
    assert draw_heatmaps(model, chosen(home), tmp_path / "maps", slides=slides).failed == {}
    assert Ledger(tmp_path / "maps").read() == []


def test_tiles_that_reach_beyond_the_slide_are_refused(home: Path, model: Path, tmp_path: Path) -> None:
    bag = slide_bag(0)
    unsized = replace(bag, provenance={key: value for key, value in bag.provenance.items() if key != "slide_size"})
    Image.new("RGB", (200, 200), BACK).save(tmp_path / "s00.png")
    drawn = draw_heatmaps(model, BagSet([unsized]), tmp_path / "maps", slides=tmp_path)
    assert "s00.png has 200 x 200 pixels, but its tiles reach to 384, 256" in drawn.failed["s00"]
    plain = draw_heatmaps(model, BagSet([unsized]), tmp_path / "plain", tiff=True)
    assert "an overlay needs the slide's size and microns per pixel" in plain.failed["s00"]


def test_two_files_for_one_slide_are_refused(home: Path, model: Path, tmp_path: Path) -> None:
    slides = Path(shutil.copytree(home / "slides", tmp_path / "slides"))
    Image.new("RGB", SIZE, BACK).save(slides / "s00.tif")
    drawn = draw_heatmaps(model, chosen(home), tmp_path / "maps", slides=slides)
    assert "has 2 files for slide 's00': s00.png, s00.tif. Keep one." in drawn.failed["s00"]


def test_maps_below_the_folder_of_slides_are_no_slides(home: Path, model: Path, tmp_path: Path) -> None:
    slides = Path(shutil.copytree(home / "slides", tmp_path / "slides"))
    for _ in range(2):
        assert not draw_heatmaps(model, chosen(home), slides / "maps", slides=slides).failed


def test_an_unknown_score_is_refused_before_anything_is_written(home: Path, model: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"unknown score 'entropy'. Known: attention"):
        draw_heatmaps(model, chosen(home), tmp_path / "maps", score="entropy")
    assert not (tmp_path / "maps").exists()


DETECTIONS_OF_QUPATH = """{
  "type": "FeatureCollection",
  "features": [{"type": "Feature", "id": "2b6f0cc9-04d1-4b8b-a1c1-0f1b7a1d2c3e", "geometry": {"type": "Point",
    "coordinates": [1, 2]}, "properties": {"objectType": "detection"}}]
}"""


def test_nothing_of_somebody_elses_is_written_over(home: Path, model: Path, tmp_path: Path) -> None:
    slides = Path(shutil.copytree(home / "slides", tmp_path / "slides"))
    before = {path.name: path.read_bytes() for path in slides.iterdir()}
    with pytest.raises(OptionError, match=r"holds slides or annotations. Give --out a folder of its own"):
        draw_heatmaps(model, chosen(home), slides, slides=slides)
    with pytest.raises(OutputError, match=r"s00.png is there, and was not written by scmil heatmap"):
        draw_heatmaps(model, chosen(home), slides)
    for name in ("s00.geojson", "s00.tiff"):
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out" / name).write_text(DETECTIONS_OF_QUPATH)
        with pytest.raises(OutputError, match=f"{name} is there, and was not"):
            draw_heatmaps(model, chosen(home), tmp_path / "out", tiff=True)
        (tmp_path / "out" / name).unlink()
    (tmp_path / "out" / "index.html").write_text("mine")
    with pytest.raises(OutputError, match=r"index\.html is there, and was not written by scmil heatmap"):
        draw_heatmaps(model, chosen(home), tmp_path / "out")
    assert (tmp_path / "out" / "index.html").read_text() == "mine"
    draw_heatmaps(model, chosen(home), tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "index.html").read_text() != "mine"
    assert {path.name: path.read_bytes() for path in slides.iterdir()} == before


# -------------------------------------------------------------------------------------------------------------- words


def test_collapsed_and_flat_attention_are_said() -> None:
    assert "has collapsed: 1.0 of 900 tiles" in warning(1.0, 900)
    assert warning(40, 900) == ""
    assert "is flat: 899.0 of 900" in warning(899, 900)
    assert warning(1, 1) == ""  # one tile cannot share
    assert warning(2.5, 8) == ""  # few of few are no collapse


def test_the_warning_is_on_the_picture(
    home: Path, model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Other words, another picture: the frame is drawn if, and only if, there is something to say."""
    from scmil.viz.heatmaps import slide_files as maps

    heights = []
    for words in ("", "The attention has collapsed."):
        monkeypatch.setattr(maps, "warning", lambda *_, words=words: words)
        out = draw_heatmaps(model, chosen(home, ["s00"]), tmp_path / f"maps{len(words)}").out
        with Image.open(out / "s00.png") as picture:
            heights.append(picture.height)
            frame = (np.asarray(picture) == (255, 243, 214)).all(-1).sum()
        assert (frame > 1000) == bool(words)
    assert heights[1] > heights[0]


def test_a_slide_is_introduced_with_label_verdict_and_numbers(home: Path, model: Path) -> None:
    network, _ = study.load_study(model)
    scores = score_bag(network, slide_bag(1), ("normal", "tumour"), 0.25)
    sure = replace(scores, probabilities=np.array([0.1, 0.9]))
    assert heading(sure, "tumour") == "s01  ·  label: tumour  ·  the model says: tumour (right)"
    assert heading(sure, "normal").endswith("(wrong)")
    assert heading(sure, None) == "s01  ·  label: unknown  ·  the model says: tumour"
    chances, tiles = numbers(sure, 2.0)
    assert chances == "Probability: tumour 0.900, normal 0.100 (threshold 0.250)."
    assert tiles.startswith("12 tiles of 64 pixels (128 microns).")
    assert f"{sure.effective_tiles:.1f}" in tiles
    assert annotated("s01.xml", 3) == "Red: 3 outlines of s01.xml."
    assert all(meaning(kind, ["normal", "tumour"]) for kind in sure.kinds())


def test_labels_come_from_the_study_the_bags_or_a_table(home: Path, model: Path) -> None:
    out = draw_heatmaps(model, chosen(home), labels={"s02": "tumour"}).out
    text = (out / "index.html").read_text()
    for id, label in (("s00", "normal"), ("s01", "tumour"), ("s02", "tumour")):
        assert f"label {label}, the model says" in text.split(f">{id}</a>")[1].split("</figure>")[0]
    named = BagSet([replace(slide_bag(0), label=0)], ["from the bag"])
    assert "label from the bag" in (draw_heatmaps(model, named).out / "index.html").read_text()


def test_the_index_is_sorted_by_probability_and_needs_nothing_from_elsewhere(home: Path, model: Path) -> None:
    out = draw_heatmaps(model, chosen(home)).out
    text = (out / "index.html").read_text()
    scores = open_scores(model)
    order = sorted(SHOWN, key=lambda id: -scores[id].probabilities[-1])
    assert [text.index(f">{id}</a>") for id in order] == sorted(text.index(f">{id}</a>") for id in SHOWN)
    assert "http:" not in text
    assert "https:" not in text
    assert "<script" not in text
    assert "default-src &#x27;none&#x27;" in text


def test_names_on_the_index_are_text() -> None:
    bad = "<img src=x onerror=alert(1)>"
    page = contact_sheet(bad, [bad], [Card(bad, f'{bad}".png', b"", [bad], "wrong")], [(bad, bad)])
    assert "<img src=x" not in page
    assert page.count("&lt;img src=x onerror=alert(1)&gt;") == 8  # all places, and nowhere as markup
    assert 'href="%3Cimg%20src%3Dx' in page
