"""Where tissue is: the saturated parts of a slide, without pen marks, as polygons in level-0
pixels.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scmil.core.extras import import_extra
from scmil.errors import OptionError, UnknownNameError

if TYPE_CHECKING:
    from shapely import MultiPolygon

    from scmil.slides.slide import Slide

Mask = NDArray[np.bool_]

# Thresholds of the presets of CLAM. Saturations are out of 255, kernels in pixels of the segmented
# image, which is about 64 times smaller than the slide, areas in squares of 512 level-0 pixels.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "default": dict(sthresh=8, mthresh=7, close=4, otsu=False, a_t=100, a_h=16, max_holes=8),
    "biopsy": dict(sthresh=15, mthresh=11, close=2, otsu=False, a_t=1, a_h=1, max_holes=2),
    "resection": dict(sthresh=15, mthresh=11, close=4, otsu=False, a_t=100, a_h=16, max_holes=8),
    "tcga": dict(sthresh=8, mthresh=7, close=4, otsu=False, a_t=16, a_h=4, max_holes=8),
    "otsu": dict(sthresh=8, mthresh=7, close=4, otsu=True, a_t=25, a_h=4, max_holes=8),
}
DOWNSAMPLE = 64
INK_UM = 8.0  # microns per pixel for ink detection; at finer scales nuclei look like black ink
# Limits of the longer side of the segmented image, if no level of the file is used.
FEWEST_PX, MOST_PX = 1024, 4096
# Tissue that covers 1 / SMALL_SLIDE of a slide is never too small: on a core or a region, a_t would
# remove all tissue.
SMALL_SLIDE = 20


@dataclass(frozen=True, eq=False)
class Tissue:
    """The tissue of one slide: polygons with holes in level-0 pixels, and how they were found.

    >>> from shapely import MultiPolygon, box
    >>> tissue = Tissue(MultiPolygon([box(0, 0, 2000, 1000)]), "slide", (4000, 2000))
    >>> tissue.fraction, tissue.area_mm2(mpp=0.5), tissue
    (0.25, 0.5, Tissue('slide', 1 piece, 25.0 % of the slide))
    """

    area: MultiPolygon
    slide_id: str
    slide_size: tuple[int, int]
    recipe: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def fraction(self) -> float:
        """The fraction of the slide that is tissue."""
        return float(self.area.area) / (self.slide_size[0] * self.slide_size[1])

    def area_mm2(self, mpp: float) -> float:
        """The area in square millimetres, for a slide with `mpp` microns per level-0 pixel."""
        return float(self.area.area) * mpp**2 / 1e6

    def __repr__(self) -> str:
        pieces = len(self.area.geoms)
        noun = "piece" if pieces == 1 else "pieces"
        return (
            f"Tissue({self.slide_id!r}, {pieces} {noun}, {100 * self.fraction:.1f} % of the slide)"
        )


def find_tissue(
    slide: Slide,
    preset: str = "default",
    *,
    otsu: bool | None = None,
    pen: bool = True,
    **overrides: float,
) -> Tissue:
    """Segment tissue by its saturation, as CLAM does.

    The overview of the slide is blurred, thresholded and closed; small pieces are removed and small
    holes are filled. A slide without tissue has an empty area, which is not an error.

    Args:
        slide: The slide.
        preset: "default", "biopsy", "resection", "tcga" or "otsu", see `PRESETS`.
        otsu: Whether the threshold is chosen for each slide by the method of Otsu; None takes the
            value of the preset.
        pen: Whether marker ink is excluded. It is detected by colours that haematoxylin and eosin
            do not have, so use False for other stains.
        **overrides: Values that replace those of the preset.

    Returns:
        The tissue, as polygons in level-0 pixels.

    Raises:
        UnknownNameError: If there is no such preset.
        OptionError: If a value is invalid.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> from scmil.slides import open_slide
    >>> path = Path(tempfile.mkdtemp()) / "pink.png"
    >>> Image.new("RGB", (600, 600), (200, 80, 160)).save(path)
    >>> find_tissue(open_slide(path, mpp=0.5), "biopsy")
    Tissue('pink', 1 piece, 100.0 % of the slide)
    """
    recipe = _tissue_options(preset, otsu, overrides)
    rgb = _overview(slide)
    height, width = rgb.shape[:2]
    per_px = slide.size[0] / width, slide.size[1] / height
    # The unit of areas, in pixels of the overview.
    unit = 512**2 / (per_px[0] * per_px[1])
    smallest = min(recipe["a_t"] * unit, width * height / SMALL_SLIDE)
    downsample = math.sqrt(per_px[0] * per_px[1])
    ink = (
        _ink(rgb, _overview_mpp(slide, downsample))
        if pen
        else np.zeros((height, width), dtype=bool)
    )
    mask = _closed(_saturated(rgb, recipe), int(recipe["close"]))
    # Ink connects the pieces that it was drawn on, so that tissue inside a drawn circle is kept;
    # pieces that strokes cut off must be larger than a hole.
    mask &= ~ink & _without_small_pieces(mask | ink, smallest, counted=mask & ~ink)
    mask = _without_small_pieces(mask, min(recipe["a_h"] * unit, smallest))
    mask = _without_small_holes(mask, ink, recipe["a_h"] * unit, int(recipe["max_holes"])) & ~ink
    made_by = {
        "method": "saturation",
        "preset": preset,
        "pen": pen,
        "downsample": downsample,
        **recipe,
    }
    return Tissue(_smooth(outline(mask), per_px), slide.id, slide.size, made_by)


def _tissue_options(
    preset: str, otsu: bool | None, overrides: Mapping[str, float]
) -> dict[str, Any]:
    if preset not in PRESETS:
        near = difflib.get_close_matches(preset, PRESETS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UnknownNameError(
            f"unknown tissue preset {preset!r}.{hint} Available: {', '.join(PRESETS)}."
        )
    recipe = {**PRESETS[preset], **overrides}
    if unknown := [name for name in overrides if name not in PRESETS[preset]]:
        raise OptionError(
            f"find_tissue has no option {unknown[0]!r}. Options: pen, {', '.join(PRESETS[preset])}."
        )
    if negative := [name for name, value in overrides.items() if not 0 <= value < math.inf]:
        raise OptionError(
            f"{negative[0]} = {overrides[negative[0]]}; expected a number of at least 0."
        )
    if recipe["mthresh"] % 2 != 1:
        raise OptionError(
            f"mthresh = {recipe['mthresh']}; expected an odd number, the window of the median."
        )
    return {**recipe, "otsu": recipe["otsu"] if otsu is None else otsu}


# ----------------------------------------------------------------------------------------- the mask


def _overview(slide: Slide) -> NDArray[np.uint8]:
    """The level with a downsample factor near 64, or a thumbnail of bounded size."""
    distances = [abs(downsample - DOWNSAMPLE) for downsample in slide.level_downsamples]
    level = int(np.argmin(distances))
    near = DOWNSAMPLE / 2 <= slide.level_downsamples[level] <= DOWNSAMPLE * 2
    if near and max(slide.level_sizes[level]) <= MOST_PX:
        return slide.region(level, (0, 0), slide.level_sizes[level])
    longest = min(max(max(slide.size) // DOWNSAMPLE, FEWEST_PX), MOST_PX, max(slide.size))
    return slide.thumbnail(longest)


def _saturated(rgb: NDArray[np.uint8], recipe: Mapping[str, Any]) -> Mask:
    from PIL import Image, ImageFilter

    red, green, blue = np.moveaxis(rgb, -1, 0)
    highest = np.maximum(np.maximum(red, green), blue).astype(np.float32)
    lowest = np.minimum(np.minimum(red, green), blue)
    saturation = np.rint(255 * (highest - lowest) / np.maximum(highest, 1)).astype(np.uint8)
    window = int(recipe["mthresh"])
    if not recipe["otsu"]:
        return _majority(saturation > recipe["sthresh"], window)
    blurred = np.asarray(Image.fromarray(saturation).filter(ImageFilter.MedianFilter(window)))
    return blurred > otsu_threshold(blurred)


def _majority(mask: Mask, window: int) -> Mask:
    """Whether most pixels of the window around each pixel are set; the border is repeated.

    A median is above a threshold where most values are: this is the median filter of the values
    before the threshold, ten times as fast.
    """
    # One more row and column in front, where the cumulative sums are 0.
    counts = np.pad(mask, window // 2, mode="edge").astype(np.int32)
    counts = np.pad(counts, ((1, 0), (1, 0)))
    for axis in (0, 1):
        sums = np.moveaxis(counts.cumsum(axis, dtype=np.int32), axis, 0)
        counts = np.moveaxis(sums[window:] - sums[:-window], 0, axis)
    return counts > window * window // 2


def otsu_threshold(values: NDArray[np.uint8]) -> int:
    """The threshold of Otsu, which maximises the variance between the two classes.

    >>> otsu_threshold(np.array([10, 11, 12, 200, 201], dtype=np.uint8))
    12
    """
    counts = np.bincount(values.ravel(), minlength=256)
    below, total = np.cumsum(counts), counts.sum()
    sums = np.cumsum(counts * np.arange(256))
    # The difference of the means, times both numbers of pixels and the total.
    distance = sums[-1] * below - total * sums
    between = distance.astype(float) ** 2 / np.maximum(below * (total - below), 1)
    return int(np.argmax(between))


def _closed(mask: Mask, size: int) -> Mask:
    ndimage = import_extra("scipy.ndimage", "slides")
    if size < 2:
        return mask
    square = np.ones((size, size), dtype=bool)
    # Padding, so that closing does not erode tissue at the border.
    padded = np.pad(mask, size)
    return ndimage.binary_closing(padded, square)[size:-size, size:-size]


def _without_small_pieces(mask: Mask, smallest: float, counted: Mask | None = None) -> Mask:
    ndimage = import_extra("scipy.ndimage", "slides")
    labels, _ = ndimage.label(mask, np.ones((3, 3)))
    counts = np.bincount(labels.ravel(), weights=None if counted is None else counted.ravel())
    keep = counts > smallest
    keep[0] = False
    return keep[labels]


def _without_small_holes(mask: Mask, ink: Mask, smallest: float, most: int) -> Mask:
    """Fill the holes of each piece except its `most` largest; holes made by ink are ignored."""
    ndimage = import_extra("scipy.ndimage", "slides")
    pieces, _ = ndimage.label(np.pad(mask, 1), np.ones((3, 3)))
    # 4-connected, since pieces are 8-connected.
    gaps, _ = ndimage.label(np.pad(~mask, 1, constant_values=True))
    areas = np.bincount(gaps.ravel())
    _, first = np.unique(gaps.ravel(), return_index=True)
    # The pixel above the topmost pixel of a hole belongs to the piece around it.
    owner = pieces.ravel()[np.maximum(first - gaps.shape[1], 0)]
    fill = np.bincount(gaps.ravel(), weights=np.pad(ink, 1).ravel()) < areas / 2
    fill[[0, gaps[0, 0]]] = False  # the pieces and the background
    kept_of: dict[int, int] = {}
    for hole in sorted(np.flatnonzero(fill), key=lambda hole: -areas[hole]):
        kept = kept_of.get(owner[hole], 0)
        if areas[hole] > smallest and kept < most:
            fill[hole] = False
            kept_of[owner[hole]] = kept + 1
    return mask | fill[gaps][1:-1, 1:-1]


# ---------------------------------------------------------------------------------------------- ink


def _overview_mpp(slide: Slide, downsample: float) -> float:
    """Microns per pixel of the overview; a slide without a resolution is taken as x20."""
    return downsample * (slide.known_mpp or 0.5)


def _ink(rgb: NDArray[np.uint8], microns: float) -> Mask:
    """Detect pen marks at a scale at which strokes are visible and cells are not."""
    from PIL import Image

    factor = max(int(INK_UM / microns), 1)
    ink = pen_marks(np.asarray(Image.fromarray(rgb).reduce(factor)))
    return ink.repeat(factor, axis=0).repeat(factor, axis=1)[: rgb.shape[0], : rgb.shape[1]]


def pen_marks(rgb: NDArray[np.uint8]) -> Mask:
    """Detect marker ink in an overview: green, blue, red and black strokes with their soft borders.

    Haematoxylin and eosin absorb green most. Green and blue ink absorb red most; red ink absorbs
    blue nearly as much as green, and little red; black ink absorbs all colours strongly. Strokes
    start at pixels that are certainly ink and extend over pixels that are probably ink. Small
    specks are ignored, since they are nuclei or blood.

    >>> slide = np.full((40, 40, 3), 240, dtype=np.uint8)
    >>> slide[5:15], slide[25:35] = (200, 150, 190), (30, 90, 95)  # tissue, and a green stroke
    >>> pen_marks(slide)[[10, 20, 30], 20]
    array([False, False,  True])
    """
    ndimage = import_extra("scipy.ndimage", "slides")
    white = np.percentile(rgb.reshape(-1, 3), 95, axis=0).clip(200, 255)
    density = -np.log((rgb + np.float32(1)) / (white + 1).astype(np.float32)).clip(None, 0)
    red, green, blue = np.moveaxis(density, -1, 0)
    least, most = density.min(axis=-1), density.max(axis=-1)
    # Haematoxylin transmits blue.
    grey = (least > 0.75 * most) | ((least > 0.58 * most) & (blue > 1.03 * red))
    colours = (  # certain pixels, probable pixels, size of the smallest stroke
        ((red - green > 0.15) & (red > 0.3), (red - green > 0.03) & (red > 0.15), 30),
        (
            (blue > 0.68 * green) & (green > 0.9) & (red < 0.3 * green),
            (blue > 0.66 * green) & (green > 0.15) & (red < 0.4 * green),
            600,
        ),
        ((least > 1.1) & grey, (least > 0.6) & (least > 0.55 * most) & (blue > red), 600),
    )
    square = np.ones((3, 3), dtype=bool)
    ink = np.zeros(rgb.shape[:2], dtype=bool)
    for certain, probable, smallest in colours:
        start = ndimage.binary_opening(certain, square)
        stroke = ndimage.binary_propagation(
            start, square, mask=ndimage.binary_opening(start | probable, square)
        )
        ink |= _without_small_pieces(stroke, smallest)
    return ndimage.binary_dilation(ink, square, iterations=3)


# ----------------------------------------------------------------------------------------- outlines


def outline(mask: Mask) -> MultiPolygon:
    """The polygons of a mask, with holes, along the borders of its pixels.

    >>> outline(np.array([[1, 1, 1], [1, 0, 1], [1, 1, 1]], dtype=bool)).wkt
    'MULTIPOLYGON (((0 0, 0 3, 3 3, 3 0, 0 0), (1 2, 1 1, 2 1, 2 2, 1 2)))'
    """
    shapely = import_extra("shapely", "slides")
    padded = np.pad(mask, 1)
    upright = padded[1:-1, 1:] != padded[1:-1, :-1]  # [y, x]: the edge from (x, y) to (x, y + 1)
    level = padded[1:, 1:-1] != padded[:-1, 1:-1]  # [y, x]: the edge from (x, y) to (x + 1, y)
    runs = np.concatenate([_runs(upright.T, level.T), _runs(level, upright)[:, :, ::-1]])
    faces = shapely.get_parts(shapely.polygonize(shapely.linestrings(runs.astype(float))))
    x, y = np.floor(shapely.get_coordinates(shapely.point_on_surface(faces))).astype(np.int64).T
    return polygons(shapely.multipolygons(faces[mask[y, x]]))


def _runs(edges: Mask, across: Mask) -> NDArray[np.int64]:
    """Straight runs of edges along the rows, as (row, start) to (row, stop).

    A run starts and stops where perpendicular edges touch it; since an even number of edges meets
    in every point, it cannot end anywhere else.
    """
    padded = np.pad(across, ((1, 1), (0, 0)))
    touched = padded[:-1] | padded[1:]
    row, start = np.nonzero(edges & touched[:, :-1])
    stop = np.nonzero(edges & touched[:, 1:])[1] + 1
    return np.stack([np.stack([row, start], axis=1), np.stack([row, stop], axis=1)], axis=1)


def polygons(geometry: Any) -> MultiPolygon:
    """The areas of a geometry as one valid MultiPolygon.

    >>> from shapely import from_wkt
    >>> polygons(from_wkt("GEOMETRYCOLLECTION (POINT (9 9), POLYGON ((0 0, 0 1, 1 1, 0 0)))")).wkt
    'MULTIPOLYGON (((0 0, 0 1, 1 1, 0 0)))'
    """
    shapely = import_extra("shapely", "slides")
    if not shapely.is_valid(geometry):
        # The default method computes all crossings of all lines: 45 s for 1 000 overlapping holes;
        # this one takes 0.03 s.
        geometry = shapely.make_valid(geometry, method="structure", keep_collapsed=False)
    parts = [
        part
        for part in shapely.get_parts(shapely.get_parts(geometry))
        if part.geom_type == "Polygon"
    ]
    area = shapely.MultiPolygon([part for part in parts if not part.is_empty])
    return area if area.is_valid else polygons(shapely.union_all(parts))


def _smooth(area: MultiPolygon, per_px: tuple[float, float]) -> MultiPolygon:
    """Scale to level-0 pixels and simplify diagonal stairs, whose corners are 0.71 pixels off the
    line.
    """
    shapely = import_extra("shapely", "slides")
    return polygons(shapely.transform(shapely.simplify(area, 0.75), lambda xy: xy * per_px))
