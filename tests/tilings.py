"""Slides without pixels and their tissue, for the tests of tilings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from scmil.slides.tiling import Tiling, tile
from scmil.slides.tissue import Tissue

shapely = pytest.importorskip("shapely")
h5py = pytest.importorskip("h5py")


@dataclass
class Blank:
    """A slide that nobody reads."""

    size: tuple[int, int] = (4000, 3000)
    mpp: float = 0.25
    id: str = "blank"
    digest: str | None = None


def tissue(*areas: Any, slide: Blank | None = None) -> Tissue:
    return Tissue(
        shapely.MultiPolygon(areas), "blank", (slide or Blank()).size, {"method": "by hand"}
    )


def tiled(area: Tissue, slide: Blank | None = None, **options: Any) -> Tiling:
    return tile(slide or Blank(), area, **options)  # type: ignore[arg-type]


EVERYWHERE = shapely.box(0, 0, 4000, 3000)
