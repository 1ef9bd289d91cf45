"""Panels, scale bar and colour bar of a heatmap sheet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL")
pytest.importorskip("shapely")

from PIL import Image
from shapely import MultiPolygon, box

from scmil.slides.annotations.asap import write_asap
from scmil.slides.annotations.geojson import Region, write_geojson
from scmil.slides.annotations.lookup import find_annotation, read_outlines
from scmil.viz.drawing.colour_scale import Scale
from scmil.viz.drawing.sheet import INK, ColourBar, draw_scale_bar, draw_sheet

RED, BLUE = (200, 0, 0), (0, 0, 200)


def sheet(
    size: tuple[int, int], title: str = "slide", warning: str = ""
) -> tuple[Image.Image, tuple[int, ...]]:
    panels = [Image.new("RGB", size, colour) for colour in (RED, BLUE)]
    bar = ColourBar("probability", Scale(0, 1), np.array([0.5]))
    return draw_sheet(panels, title, ["words"], warning, [bar])


@pytest.mark.parametrize("size", [(600, 400), (800, 200), (100, 800)])
def test_both_panels_are_complete_and_the_position_of_the_heatmap_is_recorded(
    size: tuple[int, int],
) -> None:
    picture, place = sheet(size)
    pixels = np.asarray(picture)
    for colour in (RED, BLUE):
        assert (pixels == colour).all(-1).sum() == size[0] * size[1]
    assert (np.asarray(picture.crop(place)) == BLUE).all()
    rows = [int(np.nonzero((pixels == colour).all(-1))[0].min()) for colour in (RED, BLUE)]
    assert (rows[0] != rows[1]) == (size[0] > 2 * size[1])  # wide ones are below each other


def test_long_names_do_not_leave_the_sheet() -> None:
    short, _ = sheet((400, 300))
    long, _ = sheet((400, 300), "a long name of a slide " * 20)
    endless, _ = sheet((400, 300), "x" * 500)
    assert long.width == endless.width == short.width
    assert long.height > short.height
    for picture in (long, endless):
        assert (np.asarray(picture)[:, -10:] == 255).all()


def test_the_colour_bar_runs_from_the_first_to_the_last_colour() -> None:
    picture, place = sheet((600, 400))
    below = np.asarray(picture)[place[3] + 2 :]
    first, last = Scale(0, 1).colours(np.array([0.0, 1.0]))
    left, right = (int(np.nonzero((below == colour).all(-1))[1].mean()) for colour in (first, last))
    assert left < 30
    assert right > 600


@pytest.mark.parametrize(("microns_per_px", "length"), [(2.0, 100), (0.5, 100), (30.0, 2000 / 30)])
def test_the_scale_bar_has_the_length_of_its_label(microns_per_px: float, length: float) -> None:
    picture = Image.new("RGB", (500, 400), (255, 255, 255))
    draw_scale_bar(picture, microns_per_px)
    dark = (np.asarray(picture) == INK).all(-1).sum(1)
    assert dark.max() == pytest.approx(length, abs=1)


def test_outlines_have_their_holes_and_exclude_tissue(tmp_path: Path) -> None:
    ring = MultiPolygon([box(0, 0, 90, 90) - box(30, 30, 60, 60)])
    write_asap([Region("lesion", ring, "_0")], tmp_path / "a.xml")
    write_geojson(
        [Region("lesion", ring, "Tumor"), Region("all", ring, "Tissue")], tmp_path / "a.geojson"
    )
    for name in ("a.xml", "a.geojson"):
        bounds = sorted(
            (*outline.min(0), *outline.max(0)) for outline in read_outlines(tmp_path / name)
        )
        assert bounds == [(0, 0, 90, 90), (30, 30, 60, 60)]
    found = find_annotation("a", tmp_path / "nowhere", tmp_path)
    assert found == tmp_path / "a.xml"
