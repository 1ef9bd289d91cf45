"""Geometry and colours of the overlay for slide viewers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("openslide")
pytest.importorskip("tifffile")

import openslide
import tifffile

from scmil.slides import open_slide
from scmil.viz.drawing.colour_scale import Scale
from scmil.viz.drawing.overlay import TILE_PX, write_overlay


@pytest.mark.parametrize(
    ("size", "mpp", "side"),
    [((40_000, 30_000), 0.25, 512.0), ((5_001, 7_003), 0.2427, 527.36), ((300, 200), 0.5, 256.0)],
)
def test_the_overlay_has_the_size_of_the_slide_to_a_pixel(
    tmp_path: Path, size: tuple[int, int], mpp: float, side: float
) -> None:
    path = tmp_path / "overlay.tiff"
    write_overlay(path, size, mpp, np.array([[0, 0]]), side, np.array([1.0]), Scale(0, 1))
    with openslide.OpenSlide(path) as overlay:
        actual = [float(overlay.properties[f"openslide.mpp-{axis}"]) for axis in "xy"]
        assert actual == pytest.approx([mpp * side / TILE_PX] * 2, rel=1e-6)
        for pixels, wanted in zip(overlay.dimensions, size):
            assert abs(pixels * actual[0] - wanted * mpp) < actual[0]
        assert overlay.properties["openslide.vendor"] == "generic-tiff"
        assert max(overlay.level_dimensions[-1]) <= 512
    with open_slide(path) as ours:
        assert ours.mpp == pytest.approx(mpp * side / TILE_PX, rel=1e-6)


def test_every_tile_has_its_colour_at_every_level_and_nothing_else_has_any(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    grid = np.stack(np.meshgrid(np.arange(40), np.arange(30)), -1).reshape(-1, 2)
    tiles = grid[generator.permutation(len(grid))[:500]]
    scores, scale, side = generator.uniform(size=500), Scale(0, 1), 256
    path = tmp_path / "overlay.tiff"
    write_overlay(path, (40 * side, 30 * side), 0.5, tiles * side, side, scores, scale)
    expected = np.zeros((30, 40, 4), int)
    expected[tiles[:, 1], tiles[:, 0], :3] = scale.colours(scores)
    expected[tiles[:, 1], tiles[:, 0], 3] = 255
    with openslide.OpenSlide(path) as overlay:
        assert overlay.level_count == 3
        for level, by in enumerate((1, 2, 4)):
            pixels = np.asarray(
                overlay.read_region((0, 0), level, overlay.level_dimensions[level])
            ).astype(int)
            step = TILE_PX // by
            for corner in (0, step - 1):  # the first and the last pixel of each tile
                np.testing.assert_allclose(pixels[corner::step, corner::step], expected, atol=1)


def test_the_description_has_the_scale(tmp_path: Path) -> None:
    path = tmp_path / "overlay.tiff"
    write_overlay(path, (3000, 3000), 0.25, np.array([[0, 0]]), 256, np.array([1.0]), Scale())
    with tifffile.TiffFile(path) as file:
        assert file.pages[0].description == "scmil heatmap, by rank within the slide; mpp = 2"
        assert [page.subfiletype for page in file.pages] == [0] * 1
        assert tifffile.COMPRESSION(file.pages[0].compression).name == "ADOBE_DEFLATE"
