from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scmil.slides.preview import HOLE, OUTLINE, draw_tiling
from scmil.slides.tiling import tile
from scmil.slides.tissue import Tissue

shapely = pytest.importorskip("shapely")
pytest.importorskip("PIL")


class Grey:
    """A slide of 8000 x 4000 pixels, grey all over."""

    id, size, mpp, known_mpp, digest = "grey", (8000, 4000), 0.25, 0.25, None

    def thumbnail(self, longest_px: int = 1024) -> NDArray[np.uint8]:
        return np.full((longest_px // 2, longest_px, 3), 200, dtype=np.uint8)


RING = Tissue(
    shapely.MultiPolygon([shapely.box(800, 800, 7200, 3200) - shapely.box(3000, 1500, 5000, 2500)]),
    "grey",
    (8000, 4000),
)


def drawn(
    tissue: Tissue = RING, slide: Any = None, longest_px: int = 800, **options: Any
) -> NDArray[np.uint8]:
    slide = slide or Grey()
    tiling = tile(slide, tissue, **options) if options else None
    return np.asarray(draw_tiling(slide, tissue, tiling, longest_px=longest_px))


def test_the_outline_and_its_holes_are_drawn_where_they_are() -> None:
    picture = drawn()
    assert tuple(picture[80, 400]) == OUTLINE[:3]
    assert tuple(picture[150, 400]) == HOLE[:3]
    assert tuple(picture[200, 200]) == (200, 200, 200)


def test_kept_tiles_are_tinted_and_others_are_not() -> None:
    picture = drawn(size_px=256, mpp=0.5)  # 51.2 pixels wide in the picture
    assert tuple(picture[230, 230]) != (200, 200, 200)
    assert tuple(picture[200, 400]) == (200, 200, 200)  # in the hole
    assert tuple(picture[20, 20]) == (200, 200, 200)
    # Lines between tiles.
    assert not np.array_equal(picture[230, 200:260].min(0), picture[230, 200:260].max(0))


def test_tiles_too_small_for_lines_have_none() -> None:
    row = drawn(size_px=32, mpp=0.25)[230, 150:250]  # 3.2 pixels wide
    assert row.min() > 150


@pytest.mark.parametrize("longest_px", [800, 120])
def test_the_legend_stands_below_the_slide(longest_px: int) -> None:
    picture = drawn(longest_px=longest_px, size_px=256, mpp=0.5)
    legend = picture[longest_px // 2 :]
    assert picture.shape[1] == longest_px
    assert legend.shape[0] > 10
    assert legend.min() < 100  # letters
    assert tuple(legend[-1, 0]) == (255, 255, 255)


def test_a_slide_without_tissue_or_resolution_is_drawn_too() -> None:
    slide = Grey()
    slide.known_mpp = None  # type: ignore[assignment]
    picture = drawn(Tissue(shapely.MultiPolygon(), "grey", (8000, 4000)), slide)
    assert (picture[:400] == 200).all()


def test_the_numbers_of_the_legend_are_those_of_the_tiles() -> None:
    from scmil.slides.preview import _legend_entries

    tiling = tile(Grey(), RING, size_px=256, mpp=0.5)  # type: ignore[arg-type]
    entries = _legend_entries(Grey(), RING, tiling)  # type: ignore[arg-type]
    assert entries == [
        "grey",
        f"{len(tiling)} tiles",
        "256 px = 128 microns each",
        "tissue 0.835 mm2",
    ]
