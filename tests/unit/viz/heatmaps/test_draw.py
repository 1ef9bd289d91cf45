"""Slides that fail, and files that are not replaced."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("openslide")
pytest.importorskip("PIL")
from heatmap_case import BACK, SIZE, chosen, slide_bag
from PIL import Image

from scmil.bags.bag import BagSet
from scmil.core.jobs.failure_log import FailureLog
from scmil.errors import OptionError, OutputError
from scmil.models.score_files import scores_path
from scmil.viz.heatmaps import draw_heatmaps


def test_a_bad_slide_is_logged_and_the_others_are_drawn(
    home: Path, model: Path, tmp_path: Path
) -> None:
    slides = Path(shutil.copytree(home / "slides", tmp_path / "slides"))
    Image.new("RGB", (640, 384), BACK).save(slides / "s00.png")
    without_xy = replace(slide_bag(30), xy=None)
    damaged = slide_bag(5)
    bags = BagSet([slide_bag(i) for i in (0, 1, 2, 3, 4)] + [damaged, without_xy])
    (slides / "s04.png").write_bytes(b"no picture")
    Image.new("RGB", SIZE, BACK).save(slides / "s05.png")
    draw_heatmaps(model, BagSet([damaged]), tmp_path / "other")
    scores_path(model / "maps", "s05").write_bytes(b"no scores")
    drawn = draw_heatmaps(model, bags, tmp_path / "maps", slides=slides)
    assert drawn.outcome.done == ("s01", "s02")
    assert (
        "has 640 x 384 pixels, but its tiles are from a slide of 512 x 384" in drawn.failed["s00"]
    )
    assert "has no slide 's03'. Add its file, or omit --slides" in drawn.failed["s03"]
    assert "s04.png" in drawn.failed["s04"]
    assert "is damaged or not a file of scores" in drawn.failed["s05"]
    assert "has no coordinates" in drawn.failed["s30"]
    assert {failure.slide for failure in FailureLog(tmp_path / "maps").read()} == set(drawn.failed)
    assert "Failed (5)" in (tmp_path / "maps" / "index.html").read_text()


def test_a_fixed_slide_is_removed_from_the_failure_log(
    home: Path, model: Path, tmp_path: Path
) -> None:
    slides = Path(shutil.copytree(home / "slides", tmp_path / "slides"))
    (slides / "s00.png").rename(tmp_path / "s00.png")
    assert list(draw_heatmaps(model, chosen(home), tmp_path / "maps", slides=slides).failed) == [
        "s00"
    ]
    (tmp_path / "s00.png").rename(slides / "s00.png")
    assert draw_heatmaps(model, chosen(home), tmp_path / "maps", slides=slides).failed == {}
    assert FailureLog(tmp_path / "maps").read() == []


def test_tiles_outside_of_the_slide_are_an_error(home: Path, model: Path, tmp_path: Path) -> None:
    bag = slide_bag(0)
    unsized = replace(
        bag, provenance={key: value for key, value in bag.provenance.items() if key != "slide_size"}
    )
    Image.new("RGB", (200, 200), BACK).save(tmp_path / "s00.png")
    drawn = draw_heatmaps(model, BagSet([unsized]), tmp_path / "maps", slides=tmp_path)
    assert "s00.png has 200 x 200 pixels, but its tiles extend to 384, 256" in drawn.failed["s00"]
    plain = draw_heatmaps(model, BagSet([unsized]), tmp_path / "plain", tiff=True)
    assert "an overlay needs the size and the microns per pixel of the slide" in plain.failed["s00"]


def test_two_files_for_one_slide_are_an_error(home: Path, model: Path, tmp_path: Path) -> None:
    slides = Path(shutil.copytree(home / "slides", tmp_path / "slides"))
    Image.new("RGB", SIZE, BACK).save(slides / "s00.tif")
    drawn = draw_heatmaps(model, chosen(home), tmp_path / "maps", slides=slides)
    assert "has 2 files for slide 's00': s00.png, s00.tif. Keep only one." in drawn.failed["s00"]


def test_sheets_in_the_folder_of_slides_are_not_slides(
    home: Path, model: Path, tmp_path: Path
) -> None:
    slides = Path(shutil.copytree(home / "slides", tmp_path / "slides"))
    for _ in range(2):
        assert not draw_heatmaps(model, chosen(home), slides / "maps", slides=slides).failed


def test_an_unknown_score_is_rejected_before_any_file_is_written(
    home: Path, model: Path, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=r"unknown score 'entropy'. Known: attention"):
        draw_heatmaps(model, chosen(home), tmp_path / "maps", score="entropy")
    assert not (tmp_path / "maps").exists()


QUPATH_DETECTIONS = """{
  "type": "FeatureCollection",
  "features": [{"type": "Feature", "id": "2b6f0cc9-04d1-4b8b-a1c1-0f1b7a1d2c3e",
    "geometry": {"type": "Point", "coordinates": [1, 2]},
    "properties": {"objectType": "detection"}}]
}"""


def test_files_of_others_are_not_replaced(home: Path, model: Path, tmp_path: Path) -> None:
    slides = Path(shutil.copytree(home / "slides", tmp_path / "slides"))
    before = {path.name: path.read_bytes() for path in slides.iterdir()}
    with pytest.raises(
        OptionError, match=r"contains slides or annotations. Choose another folder with --out"
    ):
        draw_heatmaps(model, chosen(home), slides, slides=slides)
    with pytest.raises(OutputError, match=r"s00.png exists, and was not written by scmil heatmap"):
        draw_heatmaps(model, chosen(home), slides)
    for name in ("s00.geojson", "s00.tiff"):
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out" / name).write_text(QUPATH_DETECTIONS)
        with pytest.raises(OutputError, match=f"{name} exists, and was not"):
            draw_heatmaps(model, chosen(home), tmp_path / "out", tiff=True)
        (tmp_path / "out" / name).unlink()
    (tmp_path / "out" / "index.html").write_text("mine")
    with pytest.raises(
        OutputError, match=r"index\.html exists, and was not written by scmil heatmap"
    ):
        draw_heatmaps(model, chosen(home), tmp_path / "out")
    assert (tmp_path / "out" / "index.html").read_text() == "mine"
    draw_heatmaps(model, chosen(home), tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "index.html").read_text() != "mine"
    assert {path.name: path.read_bytes() for path in slides.iterdir()} == before
