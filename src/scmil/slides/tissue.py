"""Where tissue is: the saturated parts of a slide, without pen marks, as polygons in level-0 pixels."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scmil.errors import OptionError, UnknownNameError
from scmil.core.extras import need

if TYPE_CHECKING:
    from shapely import MultiPolygon

    from scmil.slides.slide import Slide

Mask = NDArray[np.bool_]

# Thresholds of CLAM's presets. Saturations are out of 255 and kernels in pixels of the segmented image, which is about
# 64 times smaller than the slide; areas are in squares of 512 level-0 pixels.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "default": dict(sthresh=8, mthresh=7, close=4, otsu=False, a_t=100, a_h=16, max_holes=8),
    "biopsy": dict(sthresh=15, mthresh=11, close=2, otsu=False, a_t=1, a_h=1, max_holes=2),
    "resection": dict(sthresh=15, mthresh=11, close=4, otsu=False, a_t=100, a_h=16, max_holes=8),
    "tcga": dict(sthresh=8, mthresh=7, close=4, otsu=False, a_t=16, a_h=4, max_holes=8),
    "otsu": dict(sthresh=8, mthresh=7, close=4, otsu=True, a_t=25, a_h=4, max_holes=8),
}
DOWNSAMPLE = 64
INK_UM = 8.0  # microns a pixel where ink is looked for; finer, and dark nuclei look like black ink
FEWEST_PX, MOST_PX = 1024, 4096  # the longest side of the segmented image, where no level of the file is used
SMALL_SLIDE = 20  # tissue that covers this part of a slide is never too small: on a core or a region a_t would take all


@dataclass(frozen=True, eq=False)
class Tissue:
    """The tissue of one slide: polygons with holes in level-0 pixels, and what made them.

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
        """The part of the slide that is tissue."""
        return float(self.area.area) / (self.slide_size[0] * self.slide_size[1])

    def area_mm2(self, mpp: float) -> float:
        """The area in square millimetres, for a slide of that many microns per level-0 pixel."""
        return float(self.area.area) * mpp**2 / 1e6

    def __repr__(self) -> str:
        pieces = len(self.area.geoms)
        noun = "piece" if pieces == 1 else "pieces"
        return f"Tissue({self.slide_id!r}, {pieces} {noun}, {100 * self.fraction:.1f} % of the slide)"


def find_tissue(
    slide: Slide, preset: str = "default", *, otsu: bool | None = None, pen: bool = True, **overrides: float
) -> Tissue:
    """Find tissue by its saturation, as CLAM does: blur, threshold, closing, then pieces and holes that are large enough.

    `preset` is a row of `PRESETS`, and `overrides` change numbers of it. With `otsu` the threshold is chosen by the slide and
    `sthresh` is not used. With `pen`, marker ink is taken out; ink is known by colours that haematoxylin and eosin do not
    have, so for other stains `pen=False` may be right. A slide without tissue has an empty area, and that is no error.
    """
    recipe = _recipe(preset, otsu, overrides)
    rgb = _overview(slide)
    height, width = rgb.shape[:2]
    per_px = slide.size[0] / width, slide.size[1] / height
    unit = 512**2 / (per_px[0] * per_px[1])  # the squares that areas are counted in, in pixels of the overview
    smallest = min(recipe["a_t"] * unit, width * height / SMALL_SLIDE)
    downsample = math.sqrt(per_px[0] * per_px[1])
    ink = _ink(rgb, _microns(slide, downsample)) if pen else np.zeros((height, width), dtype=bool)
    mask = _closed(_saturated(rgb, recipe), int(recipe["close"]))
    # Ink joins what it was drawn on, so that tissue inside a drawn circle stays; what strokes cut off must exceed a hole.
    mask &= ~ink & _without_small_pieces(mask | ink, smallest, counted=mask & ~ink)
    mask = _without_small_pieces(mask, min(recipe["a_h"] * unit, smallest))
    mask = _without_small_holes(mask, ink, recipe["a_h"] * unit, int(recipe["max_holes"])) & ~ink
    made_by = {"method": "saturation", "preset": preset, "pen": pen, "downsample": downsample, **recipe}
    return Tissue(_smooth(outline(mask), per_px), slide.id, slide.size, made_by)


def _recipe(preset: str, otsu: bool | None, overrides: Mapping[str, float]) -> dict[str, Any]:
    if preset not in PRESETS:
        near = difflib.get_close_matches(preset, PRESETS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UnknownNameError(f"unknown preset for tissue {preset!r}.{hint} Known: {', '.join(PRESETS)}.")
    recipe = {**PRESETS[preset], **overrides}
    if unknown := [name for name in overrides if name not in PRESETS[preset]]:
        raise OptionError(f"tissue has no option {unknown[0]!r}. It takes: pen, {', '.join(PRESETS[preset])}.")
    if negative := [name for name, value in overrides.items() if not 0 <= value < math.inf]:
        raise OptionError(f"{negative[0]} = {overrides[negative[0]]}: a number from 0 is needed.")
    if recipe["mthresh"] % 2 != 1:
        raise OptionError(f"mthresh = {recipe['mthresh']}: the median needs a window of an odd number of pixels.")
    return {**recipe, "otsu": recipe["otsu"] if otsu is None else otsu}


# ----------------------------------------------------------------------------------------------------------- the mask


def _overview(slide: Slide) -> NDArray[np.uint8]:
    """The level that is nearest to 64 times smaller, or a thumbnail of bounded size if the file has none near that."""
    distances = [abs(downsample - DOWNSAMPLE) for downsample in slide.level_downsamples]
    level = int(np.argmin(distances))
    near = DOWNSAMPLE / 2 <= slide.level_downsamples[level] <= DOWNSAMPLE * 2
    if near and max(slide.level_sizes[level]) <= MOST_PX:
        return slide.region(level, (0, 0), slide.level_sizes[level])
    longest = min(max(max(slide.size) // DOWNSAMPLE, FEWEST_PX), MOST_PX, max(slide.size))
    return slide.thumbnail(longest)


def _saturated(rgb: NDArray[np.uint8], recipe: Mapping[str, Any]) -> Mask:
    from PIL import Image, ImageFilter

    highest, lowest = rgb.max(axis=-1).astype(np.float32), rgb.min(axis=-1)
    saturation = np.rint(255 * (highest - lowest) / np.maximum(highest, 1)).astype(np.uint8)
    blurred = np.asarray(Image.fromarray(saturation).filter(ImageFilter.MedianFilter(int(recipe["mthresh"]))))
    return blurred > (otsu_threshold(blurred) if recipe["otsu"] else recipe["sthresh"])


def otsu_threshold(values: NDArray[np.uint8]) -> int:
    """The threshold whose two sides differ most: the variance between them is largest.

    >>> otsu_threshold(np.array([10, 11, 12, 200, 201], dtype=np.uint8))
    12
    """
    counts = np.bincount(values.ravel(), minlength=256)
    below, total = np.cumsum(counts), counts.sum()
    sums = np.cumsum(counts * np.arange(256))
    distance = sums[-1] * below - total * sums  # of the two means, times both numbers of pixels and the total
    between = distance.astype(float) ** 2 / np.maximum(below * (total - below), 1)
    return int(np.argmax(between))


def _closed(mask: Mask, size: int) -> Mask:
    ndimage = need("scipy.ndimage", "slides")
    if size < 2:
        return mask
    square = np.ones((size, size), dtype=bool)
    padded = np.pad(mask, size)  # outside the image there is no tissue, and the border does not eat any
    return ndimage.binary_closing(padded, square)[size:-size, size:-size]


def _without_small_pieces(mask: Mask, smallest: float, counted: Mask | None = None) -> Mask:
    ndimage = need("scipy.ndimage", "slides")
    labels, _ = ndimage.label(mask, np.ones((3, 3)))
    counts = np.bincount(labels.ravel(), weights=None if counted is None else counted.ravel())
    keep = counts > smallest
    keep[0] = False
    return keep[labels]


def _without_small_holes(mask: Mask, ink: Mask, smallest: float, most: int) -> Mask:
    """Fill the holes of each piece but its largest ones, at most `most`; holes that ink made do not count."""
    ndimage = need("scipy.ndimage", "slides")
    pieces, _ = ndimage.label(np.pad(mask, 1), np.ones((3, 3)))
    gaps, _ = ndimage.label(np.pad(~mask, 1, constant_values=True))  # 4-connected, since pieces are 8-connected
    areas = np.bincount(gaps.ravel())
    _, first = np.unique(gaps.ravel(), return_index=True)
    owner = pieces.ravel()[
        np.maximum(first - gaps.shape[1], 0)
    ]  # what lies above the topmost pixel of a hole encloses it
    fill = np.bincount(gaps.ravel(), weights=np.pad(ink, 1).ravel()) < areas / 2
    fill[[0, gaps[0, 0]]] = False  # pieces, and what is outside
    kept_of: dict[int, int] = {}
    for hole in sorted(np.flatnonzero(fill), key=lambda hole: -areas[hole]):
        kept = kept_of.get(owner[hole], 0)
        if areas[hole] > smallest and kept < most:
            fill[hole] = False
            kept_of[owner[hole]] = kept + 1
    return mask | fill[gaps][1:-1, 1:-1]


# --------------------------------------------------------------------------------------------------------------- ink


def _microns(slide: Slide, downsample: float) -> float:
    """Microns a pixel of the overview, as of a slide at x20 if it does not say its own."""
    return downsample * (slide.known_mpp or 0.5)


def _ink(rgb: NDArray[np.uint8], microns: float) -> Mask:
    """Pen marks, looked for at a scale where strokes are strokes and cells are not seen."""
    from PIL import Image

    factor = max(int(INK_UM / microns), 1)
    ink = pen_marks(np.asarray(Image.fromarray(rgb).reduce(factor)))
    return ink.repeat(factor, axis=0).repeat(factor, axis=1)[: rgb.shape[0], : rgb.shape[1]]


def pen_marks(rgb: NDArray[np.uint8]) -> Mask:
    """Marker ink in an overview of a slide: green, blue, red and black strokes, with their soft borders.

    In optical density haematoxylin and eosin absorb green most. Green and blue ink absorb red most; red ink absorbs blue
    nearly as much as green, and red hardly; black ink absorbs everything strongly. Strokes start where that is plain and go
    on as long as it is likely. Specks are no ink: they are nuclei and blood.

    >>> slide = np.full((40, 40, 3), 240, dtype=np.uint8)
    >>> slide[5:15], slide[25:35] = (200, 150, 190), (30, 90, 95)  # tissue, and a green stroke
    >>> pen_marks(slide)[[10, 20, 30], 20]
    array([False, False,  True])
    """
    ndimage = need("scipy.ndimage", "slides")
    white = np.percentile(rgb.reshape(-1, 3), 95, axis=0).clip(200, 255)
    density = -np.log((rgb + np.float32(1)) / (white + 1).astype(np.float32)).clip(None, 0)
    red, green, blue = np.moveaxis(density, -1, 0)
    least, most = density.min(axis=-1), density.max(axis=-1)
    grey = (least > 0.75 * most) | ((least > 0.58 * most) & (blue > 1.03 * red))  # haematoxylin lets blue through
    colours = (  # where it is plain, where it is likely, pixels of the smallest stroke
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
    for plain, likely, smallest in colours:
        start = ndimage.binary_opening(plain, square)
        stroke = ndimage.binary_propagation(start, square, mask=ndimage.binary_opening(start | likely, square))
        ink |= _without_small_pieces(stroke, smallest)
    return ndimage.binary_dilation(ink, square, iterations=3)


# ----------------------------------------------------------------------------------------------------------- outlines


def outline(mask: Mask) -> MultiPolygon:
    """The polygons of a mask, with holes, exactly along the borders of its pixels.

    >>> outline(np.array([[1, 1, 1], [1, 0, 1], [1, 1, 1]], dtype=bool)).wkt
    'MULTIPOLYGON (((0 0, 0 3, 3 3, 3 0, 0 0), (1 2, 1 1, 2 1, 2 2, 1 2)))'
    """
    shapely = need("shapely", "slides")
    padded = np.pad(mask, 1)
    upright = padded[1:-1, 1:] != padded[1:-1, :-1]  # [y, x]: the edge from (x, y) to (x, y + 1)
    level = padded[1:, 1:-1] != padded[:-1, 1:-1]  # [y, x]: the edge from (x, y) to (x + 1, y)
    runs = np.concatenate([_runs(upright.T, level.T), _runs(level, upright)[:, :, ::-1]])
    faces = shapely.get_parts(shapely.polygonize(shapely.linestrings(runs.astype(float))))
    x, y = np.floor(shapely.get_coordinates(shapely.point_on_surface(faces))).astype(np.int64).T
    return polygons(shapely.multipolygons(faces[mask[y, x]]))


def _runs(edges: Mask, across: Mask) -> NDArray[np.int64]:
    """Straight runs of edges along the rows, as (row, from) to (row, to).

    A run begins and ends where edges across meet it: an even number of edges meets in every point, so it ends nowhere else.
    """
    padded = np.pad(across, ((1, 1), (0, 0)))
    met = padded[:-1] | padded[1:]
    row, start = np.nonzero(edges & met[:, :-1])
    stop = np.nonzero(edges & met[:, 1:])[1] + 1
    return np.stack([np.stack([row, start], axis=1), np.stack([row, stop], axis=1)], axis=1)


def polygons(geometry: Any) -> MultiPolygon:
    """What of a geometry is area, valid and as one MultiPolygon.

    >>> from shapely import from_wkt
    >>> polygons(from_wkt("GEOMETRYCOLLECTION (POINT (9 9), POLYGON ((0 0, 0 1, 1 1, 0 0)))")).wkt
    'MULTIPOLYGON (((0 0, 0 1, 1 1, 0 0)))'
    """
    shapely = need("shapely", "slides")
    if not shapely.is_valid(geometry):
        # The default method builds every crossing of every two lines: 45 s for 1 000 overlapping holes, this one 0.03 s.
        geometry = shapely.make_valid(geometry, method="structure", keep_collapsed=False)
    parts = [part for part in shapely.get_parts(shapely.get_parts(geometry)) if part.geom_type == "Polygon"]
    area = shapely.MultiPolygon([part for part in parts if not part.is_empty])
    return area if area.is_valid else polygons(shapely.union_all(parts))


def _smooth(area: MultiPolygon, per_px: tuple[float, float]) -> MultiPolygon:
    """In level-0 pixels, with diagonal stairs as straight lines: a corner of a stair lies 0.71 pixels off the line."""
    shapely = need("shapely", "slides")
    return polygons(shapely.transform(shapely.simplify(area, 0.75), lambda xy: xy * per_px))
