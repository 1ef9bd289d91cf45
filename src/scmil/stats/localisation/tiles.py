"""Metrics of single tiles against the annotation: AUC, average precision, Dice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scmil.core.extras import import_extra
from scmil.core.shapes import Numbers
from scmil.stats.bootstrap import Interval, draw_slide_weights, percentile_interval

if TYPE_CHECKING:
    from shapely import MultiPolygon

SCORE_BINS = 4096  # in the bootstrap


def tumour_shares(area: MultiPolygon, xy: NDArray[Any], side: float) -> Numbers:
    """The exact fraction of each tile that is tumour.

    >>> from shapely import MultiPolygon, box
    >>> corners = np.array([[0, 0], [100, 0], [100, 50], [200, 0]])
    >>> tumour_shares(MultiPolygon([box(0, 0, 150, 100)]), corners, 100)
    array([1.  , 0.5 , 0.25, 0.  ])
    """
    shapely = import_extra("shapely", "slides")
    corners = np.asarray(xy, float)
    tiles = shapely.box(corners[:, 0], corners[:, 1], corners[:, 0] + side, corners[:, 1] + side)
    parts = shapely.get_parts(area)
    shares = np.zeros(len(tiles))
    if not len(parts):
        return shares
    tree = shapely.STRtree(parts)
    inside = tree.query(tiles, predicate="within")[0]
    tile, part = tree.query(tiles, predicate="intersects")
    cut = ~np.isin(tile, inside)  # intersections are slow if outlines have many points
    np.add.at(
        shares,
        tile[cut],
        shapely.area(shapely.intersection(tiles[tile[cut]], parts[part[cut]])) / side**2,
    )
    shares[inside] = 1
    return shares


class Ranking(NamedTuple):
    """Mean AUC and average precision over the bags that have both kinds of instances; NaN if there
    is none.
    """

    auc: float
    ap: float
    bags: int


def rank_instances(positive: Sequence[NDArray[np.bool_]], values: Sequence[Numbers]) -> Ranking:
    """How well scores rank the positive instances of a bag above its others; one array per bag.

    >>> positive = [np.array([True, False, False]), np.array([False, False])]
    >>> rank_instances(positive, [np.array([0.5, 0.9, 0.1]), np.array([0.3, 0.4])])
    Ranking(auc=0.5, ap=0.5, bags=1)
    """
    both = [(t, v) for t, v in zip(positive, values, strict=True) if 0 < t.sum() < len(t)]
    if not both:
        return Ranking(math.nan, math.nan, 0)
    areas = [_areas(*_count_by_level(t, v, np.unique(v)[::-1]))[:2] for t, v in both]
    auc, ap = np.array(areas, dtype=float).mean(0).tolist()
    return Ranking(auc, ap, len(both))


@dataclass(frozen=True)
class TileResult:
    """How well scores separate tumour tiles from others, over all slides together; NaN if one kind
    of tile is missing.

    `dice` is the best of all thresholds on the evaluated slides, so it is optimistic. The means
    over slides are over those that have both kinds of tiles.
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
    """Compare scores with annotations tile by tile, with 95 % intervals over slides; `tumour` and
    `values` have one array per slide.

    >>> tumour = [np.array([True, False]), np.array([False, True])]
    >>> result = score_tiles(tumour, [np.array([0.9, 0.2]), np.array([0.4, 0.3])])
    >>> result.auc, round(result.ap, 4), result.dice, result.dice_threshold, result.slide_auc
    (0.75, 0.8333, 0.8, 0.3, 0.5)
    """
    labels, every = np.concatenate(tumour), np.concatenate(values)
    levels = np.unique(every)[::-1]
    auc, ap, dice, best = _areas(*_count_by_level(labels, every, levels))
    of_slides = rank_instances(tumour, values)
    drawn = tile_draws(tumour, values, units, draws, seed)
    return TileResult(
        tiles=len(labels),
        tumour_tiles=int(labels.sum()),
        auc=float(auc),
        ap=float(ap),
        dice=float(dice),
        dice_threshold=float(levels[best]),
        auc_interval=percentile_interval(drawn[0]),
        ap_interval=percentile_interval(drawn[1]),
        dice_interval=percentile_interval(drawn[2]),
        slides_with_both=of_slides.bags,
        slide_auc=of_slides.auc,
        slide_ap=of_slides.ap,
    )


def tile_draws(
    tumour: Sequence[NDArray[np.bool_]],
    values: Sequence[Numbers],
    units: Sequence[str | None] | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> Numbers:
    """AUC, average precision and best Dice (3, draws) of bootstrap resamples of slides, or
    patients; NaN if one kind of tile is missing.

    The resamples depend on the units and on the seed only, so that the columns of two scores of the
    same slides are pairs.
    """
    every = np.concatenate(values)
    levels = np.unique(every)[::-1]
    # Scores are binned, so that a resample is a product of matrices.
    bins = (
        levels
        if len(levels) <= SCORE_BINS
        else np.unique(np.quantile(every, np.linspace(0, 1, SCORE_BINS)))[::-1]
    )
    binned = [_count_by_level(t, v, bins) for t, v in zip(tumour, values, strict=True)]
    by_slide = [np.array([counts[kind] for counts in binned]) for kind in (0, 1)]
    return np.concatenate(
        [
            np.stack(_areas(*(weights @ counts for counts in by_slide))[:3])
            for weights in draw_slide_weights(units or [None] * len(tumour), draws, seed)
        ],
        axis=1,
    )


def _count_by_level(
    labels: NDArray[np.bool_], values: Numbers, levels: Numbers
) -> tuple[Numbers, Numbers]:
    """The number of tumour tiles and of others at each of the falling levels."""
    position = np.searchsorted(-levels, -values).clip(max=len(levels) - 1)
    tumour, other = (
        np.bincount(position[kind], minlength=len(levels)).astype(float)
        for kind in (labels, ~labels)
    )
    return tumour, other


def _areas(tumour: Numbers, other: Numbers) -> tuple[Any, Any, Any, Any]:
    """AUC, average precision, the best Dice and its position, from counts at falling levels along
    the last axis.
    """
    true, false = tumour.cumsum(-1), other.cumsum(-1)
    positive, negative = true[..., -1:], false[..., -1:]
    with np.errstate(divide="ignore", invalid="ignore"):
        auc = (other * (true - tumour / 2)).sum(-1) / (positive * negative)[..., 0]
        ap = np.nan_to_num(tumour * true / (true + false)).sum(-1) / positive[..., 0]
        dice = 2 * true / (true + false + positive)
    best = dice.argmax(-1)
    known = (positive[..., 0] > 0) & (negative[..., 0] > 0)
    return (*(np.where(known, area, np.nan) for area in (auc, ap, dice.max(-1))), best)
