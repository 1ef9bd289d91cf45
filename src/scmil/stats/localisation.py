"""How well the scores of tiles find lesions: detections, the FROC curve as CAMELYON16 counts it, tiles against the outlines.

The curve is that of the official evaluation, to the digit. Two of its habits are worth knowing: it cannot tell a probability
of 0 from no detection, so a detection needs more than 0; and it counts the slides that have a file of detections, whereas
here every slide counts, with detections or without. Only the order of the scores matters, over all slides together: a score
must mean the same on every slide, and need not be a probability.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from scmil.errors import DataError, OptionError
from scmil.core.extras import need
from scmil.limits import problem
from scmil.stats.significance import Interval

if TYPE_CHECKING:
    from shapely import MultiPolygon

FALSE_POSITIVES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # a slide: where the sensitivity is read
CELL_UM = 32 * 0.243  # the official grid: level 5 of CAMELYON16's slides
RIM_UM = 37.5  # a detection so near is a hit: half of 75 microns, the width of five tumour cells
ISOLATED_UM = 275.0  # 200 microns, below which a metastasis is called isolated tumour cells, and the rim on both sides
RADIUS_UM, RADIUS_TILES = 75.0, 1.5  # a tile's eight neighbours are 1.41 tiles away at most
KINDS = ("peaks", "components")
BINS = 4096  # of scores, in the intervals
Numbers = NDArray[np.float64]


class TileScores(Protocol):
    """What is needed of a slide's scores; `scmil.scores.Scores` has it."""

    @property
    def probabilities(self) -> Numbers:
        """Of the slide's classes."""

    def of(self, kind: str) -> Numbers:
        """One number a tile."""


# ------------------------------------------------------------------------------------------------------------ lesions


@dataclass(frozen=True, eq=False)
class Lesions:
    """The lesions of a slide, numbered from 1 on a coarse grid of cells; `lengths_um` are their longest axes."""

    grid: NDArray[np.int32]
    corner: tuple[int, int]  # of the grid, in cells
    cell: int  # the edge of a cell, in level-0 pixels
    lengths_um: Numbers

    @property
    def counted(self) -> NDArray[np.bool_]:
        """Which lesions count; the others are isolated tumour cells, where a detection is neither right nor wrong."""
        return self.lengths_um >= ISOLATED_UM

    def at(self, xy: NDArray[Any]) -> NDArray[np.int64]:
        """The number of the lesion at each level-0 pixel, 0 where there is none."""
        column, row = (np.floor(np.asarray(xy) / self.cell).astype(np.int64) - self.corner).T
        inside = (row >= 0) & (column >= 0) & (row < self.grid.shape[0]) & (column < self.grid.shape[1])
        found = np.zeros(len(row), np.int64)
        found[inside] = self.grid[row[inside], column[inside]]
        return found


def find_lesions(area: MultiPolygon, mpp: float, slide_size: tuple[int, int] | None = None) -> Lesions:
    """Make lesions of outlines in level-0 pixels: what lies within 37.5 microns grows together, holes are filled.

    Cells are 32 pixels at CAMELYON16's 0.243 microns, and elsewhere the power of two that is nearest to the same 7.8 microns.
    A lesion's length is the longest axis of the ellipse with the same second moments; pixels are points, without the 1/12
    that some add for their extent.

    >>> from shapely import MultiPolygon, box
    >>> found = find_lesions(MultiPolygon([box(0, 0, 3200, 3200), box(3300, 0, 3400, 100), box(9600, 0, 9700, 100)]), 0.243)
    >>> found.cell, len(found.lengths_um), found.counted, found.at(np.array([[3250, 50], [9650, 50], [6400, 50]]))
    (32, 2, array([ True, False]), array([1, 2, 0]))
    """
    cell = 2 ** max(round(math.log2(CELL_UM / mpp)), 0)
    if area.is_empty:
        return Lesions(np.zeros((0, 0), np.int32), (0, 0), cell, np.zeros(0))
    ndimage = need("scipy.ndimage", "slides")
    reach = RIM_UM / (mpp * cell)
    bounds = np.reshape(area.bounds, (2, 2)) / cell
    first, last = np.floor(bounds[0] - reach - 1).astype(int), np.ceil(bounds[1] + reach + 1).astype(int)
    if slide_size is not None:  # as the official grid ends there, a hole at the edge of the slide stays open
        first, last = np.maximum(first, 0), np.minimum(last, -(-np.array(slide_size) // cell))
    columns, rows = np.maximum(last - first, 0)
    drawn = _rasterised(area, first, (rows, columns), cell)
    if not drawn.any():
        return Lesions(np.zeros((0, 0), np.int32), (0, 0), cell, np.zeros(0))
    near = ndimage.distance_transform_edt(~drawn) < reach
    grid, _ = ndimage.label(ndimage.binary_fill_holes(near), np.ones((3, 3)))
    return Lesions(grid, (int(first[0]), int(first[1])), cell, _longest_axes(grid) * cell * mpp)


def _rasterised(area: MultiPolygon, first: NDArray[Any], shape: tuple[int, int], cell: float) -> NDArray[np.bool_]:
    """Which cells have their centre inside: an edge flips all cells to the right of where it crosses the middle of a row."""
    shapely = need("shapely", "slides")
    points, ring = shapely.get_coordinates(shapely.get_rings(shapely.get_parts(area)), return_index=True)
    points = points / cell - first
    edges = np.flatnonzero(ring[:-1] == ring[1:])
    (x, y), (x_end, y_end) = points[edges].T, points[edges + 1].T
    top = np.clip(np.ceil(np.minimum(y, y_end) - 0.5), 0, shape[0]).astype(np.int64)
    crossed = np.clip(np.ceil(np.maximum(y, y_end) - 0.5), 0, shape[0]).astype(np.int64) - top
    edge = np.repeat(np.arange(len(edges)), crossed)
    row = np.arange(len(edge)) - np.repeat(np.cumsum(crossed) - crossed, crossed) + top[edge]
    at = x[edge] + (row + 0.5 - y[edge]) * (x_end - x)[edge] / (y_end - y)[edge]
    flips = np.zeros((shape[0], shape[1] + 1), np.uint8)
    np.bitwise_xor.at(flips, (row, np.clip(np.ceil(at - 0.5), 0, shape[1]).astype(np.int64)), 1)
    return np.bitwise_xor.accumulate(flips[:, :-1], axis=1).astype(bool)


def _longest_axes(grid: NDArray[np.int32]) -> Numbers:
    """In cells, of each number of the grid.

    >>> _longest_axes(np.array([[1, 1, 1, 1, 0, 2]], np.int32)).round(3)
    array([4.472, 0.   ])
    """
    row, column = grid.nonzero()
    number = grid[row, column] - 1
    count = np.bincount(number)
    y, x = (part - (np.bincount(number, part) / count)[number] for part in (row, column))
    a, b, c = (np.bincount(number, part) / count for part in (x * x, x * y, y * y))
    return np.asarray(4 * np.sqrt((a + c + np.sqrt(4 * b**2 + (a - c) ** 2)) / 2))


# --------------------------------------------------------------------------------------------------------- detections


@dataclass(frozen=True)
class Rule:
    """How detections are made of scores: which score, "peaks" or "components", and their measures.

    `score` is any name of `Scores.of`, or "weighted": attention times the number of tiles times the slide's probability.
    Peaks: the highest tile is a detection and silences the others within `radius_um`, again and again. Components: tiles
    above `least` that touch are one detection, at their highest. `smooth_um` first takes means by a Gaussian over
    neighbours. Left to itself, the radius is 75 microns, or as much more as silences a tile's eight neighbours.
    """

    score: str = "probability"
    kind: str = "peaks"
    radius_um: float | None = None
    smooth_um: float = 0.0
    least: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise OptionError(f"unknown rule {self.kind!r} for detections. Known: {', '.join(KINDS)}.")
        for name, value in (("radius_um", self.radius_um), ("smooth_um", self.smooth_um), ("least", self.least)):
            if value is not None and (said := problem(name, value)):
                raise OptionError(f"{said}.")

    @property
    def floor(self) -> float:
        """What a detection has to exceed: 0 for peaks; for components 0.5, or, of attention, the average."""
        if self.least is not None:
            return self.least
        return 0.0 if self.kind == "peaks" else 1.0 if self.score == "ratio" else 0.5

    def radius_of(self, tile_um: float) -> float:
        """The radius of peaks for tiles of that size, in microns."""
        return max(RADIUS_UM, RADIUS_TILES * tile_um) if self.radius_um is None else self.radius_um


class Detections(NamedTuple):
    """Places (k, 2) in level-0 pixels and how sure each is, the surest first."""

    probability: Numbers
    xy: NDArray[np.int64]


def tile_values(scores: TileScores, name: str) -> Numbers:
    """The score of that name of every tile; see `Rule`."""
    if name != "weighted":
        return scores.of(name)
    return scores.of("ratio") * float(scores.probabilities[-1])


def detect(xy: NDArray[Any], side: float, values: NDArray[Any], mpp: float, rule: Rule | None = None) -> Detections:
    """Detections of the tiles with these corners, in the middle of tiles.

    >>> row = np.array([[0, 0], [100, 0], [200, 0], [300, 0], [400, 0]])
    >>> found = detect(row, 100, np.array([0.1, 0.9, 0.8, 0.2, 0.7]), mpp=1.0)
    >>> found.probability, found.xy[:, 0]
    (array([0.9, 0.7]), array([150, 450]))
    >>> detect(row, 100, np.array([0.1, 0.9, 0.8, 0.2, 0.7]), 1.0, Rule(kind="components", least=0.15)).probability
    array([0.9])
    """
    cKDTree = need("scipy.spatial", "slides").cKDTree
    rule, xy, values = rule or Rule(), np.asarray(xy), np.asarray(values, float)
    if len(xy) != len(values) or not np.isfinite(values).all():
        raise DataError(f"{len(values)} scores for {len(xy)} tiles: one finite number each is needed.")
    if rule.smooth_um and len(xy):
        values = _smoothed(cKDTree(xy), values, rule.smooth_um / mpp)
    above = np.flatnonzero(values > max(rule.floor, 0.0))
    order = above[np.argsort(-values[above], kind="stable")]
    if not len(order):
        return Detections(np.zeros(0), np.zeros((0, 2), np.int64))
    tree = cKDTree(xy[order])
    kept = order[_peaks(tree, rule.radius_of(side * mpp) / mpp) if rule.kind == "peaks" else _tops(tree, side)]
    return Detections(values[kept], np.floor(xy[kept] + side / 2).astype(np.int64))


def _smoothed(tree: Any, values: Numbers, sigma: float) -> Numbers:
    """Means over tiles alone: where there is no tissue, nothing is diluted."""
    pairs = tree.sparse_distance_matrix(tree, 3 * sigma, output_type="ndarray")
    weights = np.exp(-(pairs["v"] ** 2) / (2 * sigma**2))
    total = np.bincount(pairs["i"], weights, len(values))
    return np.asarray(np.bincount(pairs["i"], weights * values[pairs["j"]], len(values)) / total)


def _peaks(tree: Any, radius: float) -> list[int]:
    """Positions, of points in falling order of score, that none before has silenced."""
    silent = np.zeros(tree.n, bool)
    kept = []
    for place in range(tree.n):
        if not silent[place]:
            kept.append(place)
            silent[tree.query_ball_point(tree.data[place], radius)] = True
    return kept


def _tops(tree: Any, side: float) -> NDArray[np.int64]:
    """The first, and so the highest, of each group of tiles that touch, also at a corner."""
    sparse, csgraph = need("scipy.sparse", "slides"), need("scipy.sparse.csgraph", "slides")
    one, other = tree.query_pairs(1.01 * side, p=np.inf, output_type="ndarray").T
    graph = sparse.coo_array((np.ones(len(one)), (one, other)), shape=(tree.n, tree.n))
    return np.sort(np.unique(csgraph.connected_components(graph, directed=False)[1], return_index=True)[1])


# --------------------------------------------------------------------------------------------------------------- FROC


@dataclass(frozen=True, eq=False)
class Hits:
    """What the detections of a slide hit: for each lesion that counts the surest (0: missed), and all that hit nothing."""

    lesions: Numbers
    false_positives: Numbers
    isolated: int = 0  # lesions that do not count
    unit: str | None = None  # the patient: whole patients are drawn for the intervals


def count_hits(detections: Detections, lesions: Lesions, unit: str | None = None) -> Hits:
    """Say what detections hit; several in one lesion count once, those in isolated tumour cells not at all."""
    if (detections.probability <= 0).any():
        raise DataError("a detection has a probability of 0 or less, which the FROC curve cannot tell from none.")
    number = lesions.at(detections.xy)
    best = np.zeros(len(lesions.lengths_um) + 1)
    np.maximum.at(best, number, detections.probability)
    isolated = int((~lesions.counted).sum())
    return Hits(best[1:][lesions.counted], detections.probability[number == 0], isolated, unit)


@dataclass(frozen=True, eq=False)
class Froc:
    """The curve, from no false positive on, and the sensitivities at 1/4, 1/2, 1, 2, 4 and 8 false positives a slide."""

    thresholds: Numbers
    false_positives: Numbers  # a slide
    sensitivity: Numbers
    sensitivities: Numbers  # at FALSE_POSITIVES
    slides: int
    lesions: int
    isolated: int

    @property
    def score(self) -> float:
        """The mean of the six sensitivities: what CAMELYON16 ranks by."""
        return float(self.sensitivities.mean())


def froc(slides: Sequence[Hits]) -> Froc:
    """The FROC curve over slides, as the official evaluation of CAMELYON16 draws it.

    >>> normal, tumour = Hits(np.zeros(0), np.array([0.6])), Hits(np.array([0.9, 0.0]), np.array([0.3]))
    >>> curve = froc([normal, tumour])
    >>> curve.false_positives, curve.sensitivity, curve.score
    (array([0. , 0. , 0.5, 1. ]), array([0. , 0.5, 0.5, 0.5]), 0.5)
    """
    events = _events(slides)
    lesions = sum(len(hits.lesions) for hits in slides)
    if not lesions:
        raise DataError(
            f"no lesion counts in {len(slides)} slides: FROC needs some of {ISOLATED_UM:.0f} microns or more, rim included."
        )
    false, found = events.curve(np.ones(len(slides)))
    thresholds = np.concatenate([[np.inf], events.probability[events.ends]])
    isolated = sum(hits.isolated for hits in slides)
    return Froc(thresholds, false, found, np.interp(FALSE_POSITIVES, false, found), len(slides), lesions, isolated)


def froc_intervals(slides: Sequence[Hits], draws: int = 1000, seed: int = 0) -> tuple[Interval, list[Interval]]:
    """95 % intervals of the score and of the six sensitivities, had other slides (patients, where known) been looked at."""
    events, weights = _events(slides), _draws([hits.unit for hits in slides], draws, seed)
    weights = weights[weights @ events.lesions > 0]  # without any lesion there is no curve
    false, found = (weights @ counts for counts in events.corners())
    rates, shares = false / weights.sum(1)[:, None], found / (weights @ events.lesions)[:, None]
    each = np.array([np.interp(FALSE_POSITIVES, *curve) for curve in zip(rates, shares)]).reshape(
        -1, len(FALSE_POSITIVES)
    )
    return _interval(each.mean(1)), [_interval(column) for column in each.T]


class _Events(NamedTuple):
    """All detections that count and all lesions missed, in falling order of probability."""

    probability: Numbers
    slide: NDArray[np.int64]
    is_lesion: NDArray[np.bool_]
    ends: NDArray[np.int64]  # the last of each probability, but for the lowest
    lesions: NDArray[np.int64]  # of each slide

    def curve(self, weights: Numbers) -> tuple[Numbers, Numbers]:
        """False positives a slide and sensitivity at every threshold, if slides count so many times."""
        own = weights[self.slide]
        false, found = (np.cumsum(own * of)[self.ends] for of in (~self.is_lesion, self.is_lesion))
        start = np.zeros(1)
        return (
            np.concatenate([start, false / weights.sum()]),
            np.concatenate([start, found / (weights * self.lesions).sum()]),
        )

    def corners(self) -> tuple[Numbers, Numbers]:
        """False positives and lesions found of each slide where the curve bends; between, it runs level."""
        rises = np.diff(np.cumsum(self.is_lesion)[self.ends], prepend=0) > 0
        bends = self.ends[rises | np.append(rises[1:], True)[: len(rises)]]
        shape = len(self.lesions), len(bends) + 2  # with the beginning, and what lies below the lowest
        point = np.searchsorted(bends, np.arange(len(self.slide))) + 1
        counts = [np.zeros(shape), np.zeros(shape)]
        for of, into in zip((~self.is_lesion, self.is_lesion), counts, strict=True):
            np.add.at(into, (self.slide[of], point[of]), 1)
        return counts[0].cumsum(1)[:, :-1], counts[1].cumsum(1)[:, :-1]


def _events(slides: Sequence[Hits]) -> _Events:
    parts = [
        (
            np.concatenate([hits.lesions, np.zeros(hits.isolated), hits.false_positives]),
            len(hits.lesions) + hits.isolated,
        )
        for hits in slides
    ]
    probability = np.concatenate([part for part, _ in parts] or [np.zeros(0)])
    slide = np.repeat(np.arange(len(parts)), [len(part) for part, _ in parts])
    is_lesion = np.concatenate([np.arange(len(part)) < count for part, count in parts] or [np.zeros(0, bool)])
    order = np.argsort(-probability, kind="stable")
    probability = probability[order]
    # The official curve leaves the lowest value out: it is the 0 of missed lesions and of isolated tumour cells, where there
    # are some, and else the lowest detection.
    ends = np.flatnonzero(probability[:-1] > probability[1:])
    lesions = np.array([len(hits.lesions) for hits in slides], np.int64)
    return _Events(probability, slide[order], is_lesion[order], ends, lesions)


def _draws(units: Sequence[str | None], draws: int, seed: int) -> Numbers:
    """How often each slide counts in each draw of whole units; a slide without one is its own."""
    names = [f"slide {place}" if unit is None else f"unit {unit}" for place, unit in enumerate(units)]
    number = np.unique(names, return_inverse=True)[1]
    count = int(number.max()) + 1
    drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=draws)
    return drawn[:, number].astype(float)


def _interval(values: Numbers) -> Interval:
    known = values[np.isfinite(values)]
    low, high = np.quantile(known, [0.025, 0.975]) if len(known) else (math.nan, math.nan)
    return Interval(float(low), float(high))


# -------------------------------------------------------------------------------------------------------------- tiles


def tumour_shares(area: MultiPolygon, xy: NDArray[Any], side: float) -> Numbers:
    """Which part of each tile is tumour, exactly.

    >>> from shapely import MultiPolygon, box
    >>> tumour_shares(MultiPolygon([box(0, 0, 150, 100)]), np.array([[0, 0], [100, 0], [100, 50], [200, 0]]), 100)
    array([1.  , 0.5 , 0.25, 0.  ])
    """
    shapely = need("shapely", "slides")
    corners = np.asarray(xy, float)
    tiles = shapely.box(corners[:, 0], corners[:, 1], corners[:, 0] + side, corners[:, 1] + side)
    parts = shapely.get_parts(area)
    shares = np.zeros(len(tiles))
    if not len(parts):
        return shares
    tree = shapely.STRtree(parts)
    inside = tree.query(tiles, predicate="within")[0]
    tile, part = tree.query(tiles, predicate="intersects")
    cut = ~np.isin(tile, inside)  # to cut is slow where outlines have many points
    np.add.at(shares, tile[cut], shapely.area(shapely.intersection(tiles[tile[cut]], parts[part[cut]])) / side**2)
    shares[inside] = 1
    return shares


@dataclass(frozen=True)
class TileResult:
    """How well scores tell tumour tiles from others, over all slides together; NaN where one kind of tile is missing.

    `dice` is the best of all thresholds on these very slides, so it flatters. The means over slides are over those that
    have both kinds of tiles.
    """

    tiles: int
    tumour_tiles: int
    auc: float
    ap: float
    dice: float
    dice_threshold: float
    auc_interval: Interval
    ap_interval: Interval
    dice_interval: Interval
    slides_with_both: int
    slide_auc: float
    slide_ap: float


def score_tiles(
    tumour: Sequence[NDArray[np.bool_]],
    values: Sequence[Numbers],
    units: Sequence[str | None] | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> TileResult:
    """Compare scores with the truth tile by tile, `tumour` and `values` slide by slide; 95 % intervals over slides.

    >>> result = score_tiles([np.array([True, False]), np.array([False, True])], [np.array([0.9, 0.2]), np.array([0.4, 0.3])])
    >>> result.auc, round(result.ap, 4), result.dice, result.dice_threshold, result.slide_auc
    (0.75, 0.8333, 0.8, 0.3, 0.5)
    """
    truth, every = np.concatenate(tumour), np.concatenate(values)
    levels = np.unique(every)[::-1]
    auc, ap, dice, best = _areas(*_counts(truth, every, levels))
    both = [(t, v) for t, v in zip(tumour, values, strict=True) if 0 < t.sum() < len(t)]
    alone = np.array([[float(a) for a in _areas(*_counts(t, v, np.unique(v)[::-1]))[:2]] for t, v in both])
    # For the draws alone scores are put into bins, so that a draw is a product of matrices.
    bins = levels if len(levels) <= BINS else np.unique(np.quantile(every, np.linspace(0, 1, BINS)))[::-1]
    binned = [_counts(t, v, bins) for t, v in zip(tumour, values, strict=True)]
    weights = _draws(units or [None] * len(tumour), draws, seed)
    drawn = _areas(*(weights @ np.array([counts[kind] for counts in binned]) for kind in (0, 1)))
    of_slides = alone.mean(0) if both else (math.nan, math.nan)
    return TileResult(
        tiles=len(truth),
        tumour_tiles=int(truth.sum()),
        auc=float(auc),
        ap=float(ap),
        dice=float(dice),
        dice_threshold=float(levels[best]),
        auc_interval=_interval(drawn[0]),
        ap_interval=_interval(drawn[1]),
        dice_interval=_interval(drawn[2]),
        slides_with_both=len(both),
        slide_auc=float(of_slides[0]),
        slide_ap=float(of_slides[1]),
    )


def _counts(truth: NDArray[np.bool_], values: Numbers, levels: Numbers) -> tuple[Numbers, Numbers]:
    """How many tumour tiles and how many others there are at each level, levels falling."""
    place = np.searchsorted(-levels, -values).clip(max=len(levels) - 1)
    tumour, other = (np.bincount(place[kind], minlength=len(levels)).astype(float) for kind in (truth, ~truth))
    return tumour, other


def _areas(tumour: Numbers, other: Numbers) -> tuple[Any, Any, Any, Any]:
    """AUC, average precision, the best Dice and its place, from counts at falling levels along the last axis."""
    true, false = tumour.cumsum(-1), other.cumsum(-1)
    positive, negative = true[..., -1:], false[..., -1:]
    with np.errstate(divide="ignore", invalid="ignore"):
        auc = (other * (true - tumour / 2)).sum(-1) / (positive * negative)[..., 0]
        ap = np.nan_to_num(tumour * true / (true + false)).sum(-1) / positive[..., 0]
        dice = 2 * true / (true + false + positive)
    best = dice.argmax(-1)
    known = (positive[..., 0] > 0) & (negative[..., 0] > 0)
    return (*(np.where(known, area, np.nan) for area in (auc, ap, dice.max(-1))), best)
