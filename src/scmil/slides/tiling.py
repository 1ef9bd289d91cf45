"""Tilings: one grid for the whole slide, from which the windows with enough tissue are kept."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from scmil.core.limits import MOST_TILES
from scmil.errors import DataError, OptionError
from scmil.slides.coverage import covered, four_points_inside

if TYPE_CHECKING:
    from scmil.slides.slide import Slide
    from scmil.slides.tissue import Tissue


RULES = ("fraction", "four_pt")
SLACK_PX = 1e-6  # tolerance for rounding errors of window sizes
SLACK_FRACTION = 1e-9  # tolerance for rounding errors of sums of areas


@dataclass(frozen=True, eq=False)
class Tiling:
    """The tiles of one slide, row by row: top-left corners in level-0 pixels, size and resolution.

    >>> xy, slide = np.array([[0, 0], [512, 0], [2048, 512]]), dict(slide_size=(4000, 3000))
    >>> tiling = Tiling("slide", xy, 256, 0.5, 0.25, **slide, overlap_px=0, fraction=np.ones(3))
    >>> tiling, tiling.side, tiling.stride
    (Tiling('slide', 3 tiles of 256 px at 0.5 µm), 512.0, 512)
    """

    slide_id: str
    xy: NDArray[np.int64]  # (n, 2)
    size_px: int
    mpp: float
    slide_mpp: float
    slide_size: tuple[int, int]
    overlap_px: int  # in pixels of a tile
    fraction: NDArray[np.float32]  # (n,) the fraction of each tile that is tissue
    # Level-0 pixels from one tile to the next; 0 chooses the smallest integer without overlap.
    stride: int = 0
    warnings: tuple[str, ...] = ()
    slide_digest: str | None = None  # of the tiled file; None in files of earlier versions

    def __post_init__(self) -> None:
        step = (self.size_px - self.overlap_px) * self.mpp / self.slide_mpp
        object.__setattr__(self, "stride", self.stride or max(math.ceil(step - SLACK_PX), 1))

    @property
    def side(self) -> float:
        """The width of a tile in level-0 pixels, not necessarily an integer."""
        return self.size_px * self.mpp / self.slide_mpp

    def __len__(self) -> int:
        return len(self.xy)

    def __repr__(self) -> str:
        return (
            f"Tiling({self.slide_id!r}, {len(self)} tiles of {self.size_px} px at {self.mpp:g} µm)"
        )

    def parents(self, factor: int = 4) -> tuple[Tiling, NDArray[np.int64]]:
        """The tiles of a coarser scale that contain these, and the index of each tile's parent.

        A parent covers `factor` by `factor` tiles. Every tile has a parent, as the two scales of
        DSMIL require. A parent at the right or lower border may extend beyond the slide, where
        pixels are white. The tissue fraction of a parent counts only the tiles that were kept.

        >>> xy = np.array([[0, 0], [512, 0], [2048, 512]])
        >>> tiling = Tiling("slide", xy, 256, 0.5, 0.25, (4000, 3000), 0, np.ones(3))
        >>> coarse, parent = tiling.parents(factor=4)
        >>> coarse.xy.tolist(), parent.tolist(), coarse.side
        ([[0, 0], [2048, 0]], [0, 0, 1], 2048.0)
        """
        if factor < 1:
            raise OptionError(f"factor = {factor}; expected an integer of at least 1.")
        stride = factor * self.stride
        # Sorted by (y, x): row by row.
        cells, parent = np.unique(self.xy[:, ::-1] // stride, axis=0, return_inverse=True)
        parent = parent.reshape(-1)
        inside = np.bincount(parent, weights=self.fraction, minlength=len(cells)) / factor**2
        coarse = replace(
            self,
            xy=cells[:, ::-1] * stride,
            mpp=self.mpp * factor,
            fraction=inside.astype(np.float32),
            stride=stride,
            warnings=(),
        )
        return coarse, parent


def tile(
    slide: Slide,
    tissue: Tissue,
    *,
    size_px: int = 256,
    mpp: float = 0.5,
    overlap_px: int = 0,
    min_tissue: float = 0.1,
    rule: str = "fraction",
) -> Tiling:
    """Cover a slide with a grid of windows and keep those with enough tissue, row by row.

    A window is `size_px` pixels of `mpp` microns wide, whatever the resolution of the slide, lies
    inside the slide, and overlaps its neighbours by at most `overlap_px`: the step is rounded up to
    whole level-0 pixels.

    Args:
        slide: The slide.
        tissue: Its tissue, see `find_tissue`.
        size_px: Width and height of a tile in pixels.
        mpp: Microns per pixel of the tiles.
        overlap_px: Overlap of neighbouring tiles in pixels of a tile.
        min_tissue: With the rule "fraction", the minimum fraction of tissue in a tile; 0 keeps all
            tiles that touch tissue.
        rule: "fraction", or the rule "four_pt" of CLAM: a tile is kept if one of four points, a
            quarter of its width from its centre, is inside an outline, and its centre is not in a
            hole.

    Returns:
        The tiles that were kept.

    Raises:
        OptionError: If an option is invalid, or the slide would have too many tiles.
        DataError: If the tissue belongs to a slide of another size.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> from scmil.slides import find_tissue, open_slide
    >>> path = Path(tempfile.mkdtemp()) / "pink.png"
    >>> Image.new("RGB", (600, 600), (200, 80, 160)).save(path)
    >>> slide = open_slide(path, mpp=0.5)
    >>> tile(slide, find_tissue(slide, "biopsy"), size_px=256, mpp=0.5)
    Tiling('pink', 4 tiles of 256 px at 0.5 µm)
    """
    _check_tile_options(size_px, mpp, overlap_px, min_tissue, rule)
    if tissue.slide_size != slide.size:
        actual, expected = (" x ".join(map(str, size)) for size in (tissue.slide_size, slide.size))
        raise DataError(
            f"the tissue belongs to a slide of {actual} pixels, but slide {slide.id!r} has "
            f"{expected}. Use the tissue of this slide: find_tissue(slide)."
        )
    none, nothing = np.zeros((0, 2), dtype=np.int64), np.zeros(0, dtype=np.float32)
    warnings = _upsampling_warnings(mpp, slide.mpp)
    grid = Tiling(
        slide.id,
        none,
        size_px,
        mpp,
        slide.mpp,
        slide.size,
        overlap_px,
        nothing,
        0,
        warnings,
        slide.digest,
    )
    side = grid.side
    if (places := math.prod(max(length // grid.stride, 1) for length in slide.size)) > MOST_TILES:
        raise OptionError(
            f"slide {slide.id!r} would have about {places} tiles of {size_px} px at {mpp:g} "
            f"microns per pixel with an overlap of {overlap_px} px; at most {MOST_TILES} are "
            "supported. Use larger tiles, or less overlap."
        )
    x, y = (
        np.arange(0, length - side + SLACK_PX, grid.stride, dtype=np.int64) for length in slide.size
    )
    fraction = covered(tissue.area, x, y, side)
    if rule == "four_pt":
        keep = four_points_inside(tissue.area, x + side / 2, y + side / 2, side / 4)
    else:
        keep = (fraction > SLACK_FRACTION) & (fraction >= min_tissue - SLACK_FRACTION)
    rows, columns = np.nonzero(keep)
    return replace(
        grid, xy=np.stack([x[columns], y[rows]], axis=1), fraction=fraction[keep].astype(np.float32)
    )


def _check_tile_options(
    size_px: int, mpp: float, overlap_px: int, min_tissue: float, rule: str
) -> None:
    if size_px < 1:
        raise OptionError(f"size_px = {size_px}; expected at least 1.")
    if not 0 < mpp < math.inf:
        raise OptionError(f"mpp = {mpp}; expected microns per pixel above 0, such as 0.5 for x20.")
    if not 0 <= overlap_px < size_px:
        raise OptionError(
            f"overlap_px = {overlap_px}; expected 0 to {size_px - 1}, less than the {size_px} "
            "pixels of a tile."
        )
    if not 0 <= min_tissue <= 1:
        raise OptionError(f"min_tissue = {min_tissue}; expected a fraction between 0 and 1.")
    if rule not in RULES:
        raise OptionError(f"rule = {rule!r}; expected one of {', '.join(RULES)}.")


def _upsampling_warnings(mpp: float, slide_mpp: float) -> tuple[str, ...]:
    if mpp >= 0.9 * slide_mpp:  # scanners that claim x20 differ by that much
        return ()
    return (
        f"tiles of {mpp:g} µm per pixel were requested, but the slide has {slide_mpp:g}: tiles are "
        "enlarged and contain no finer detail.",
    )
