"""Detections: positions of possible lesions, derived from the scores of tiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from scmil.core.extras import import_extra
from scmil.core.limits import problem
from scmil.core.shapes import Numbers
from scmil.errors import DataError, OptionError

RADIUS_UM, RADIUS_TILES = 75.0, 1.5  # the eight neighbours are at most 1.41 tiles away
DETECTION_KINDS = ("peaks", "components")


class TileScores(Protocol):
    """The interface of the scores of a slide; `scmil.models.tile_scores.Scores` has it."""

    @property
    def probabilities(self) -> Numbers:
        """The class probabilities of the slide."""

    def of(self, kind: str) -> Numbers:
        """One number per tile."""


@dataclass(frozen=True)
class Rule:
    """How detections are derived from scores.

    Args:
        score: A name of `Scores.of`, or `"weighted"`: attention times the number of tiles times the
            probability of the slide.
        kind: `"peaks"`: the tile with the highest score is a detection and suppresses the others
            within `radius_um`, repeatedly. `"components"`: tiles above `least` that touch are one
            detection, at the highest of them.
        radius_um: The radius of suppression; by default 75 microns, or more if that is needed to
            suppress the eight neighbours of a tile.
        smooth_um: The standard deviation of a Gaussian mean over neighbours that is applied first.
        least: The score that a detection must exceed.

    Raises:
        OptionError: If the kind is unknown or a number is out of range.
    """

    score: str = "probability"
    kind: str = "peaks"
    radius_um: float | None = None
    smooth_um: float = 0.0
    least: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in DETECTION_KINDS:
            raise OptionError(
                f"unknown rule {self.kind!r} for detections. "
                f"Use one of {', '.join(DETECTION_KINDS)}."
            )
        for name, value in (
            ("radius_um", self.radius_um),
            ("smooth_um", self.smooth_um),
            ("least", self.least),
        ):
            if value is not None and (message := problem(name, value)):
                raise OptionError(f"{message}.")

    @property
    def floor(self) -> float:
        """The score that a detection must exceed: 0 for peaks and for evidence; for components
        0.5, or the average of attention.
        """
        if self.least is not None:
            return self.least
        if self.kind == "peaks" or is_evidence(self.score):
            return 0.0
        return 1.0 if self.score == "ratio" else 0.5

    def radius_of(self, tile_um: float) -> float:
        """The radius of suppression for tiles of this size, in microns."""
        return max(RADIUS_UM, RADIUS_TILES * tile_um) if self.radius_um is None else self.radius_um


class Detections(NamedTuple):
    """Positions (k, 2) in level-0 pixels and their scores, the highest first."""

    probability: Numbers
    xy: NDArray[np.int64]


def is_evidence(score: str) -> bool:
    """Whether a score is the evidence for a class.

    >>> is_evidence("evidence:tumour"), is_evidence("evidence"), is_evidence("ratio")
    (True, True, False)
    """
    return score.partition(":")[0] == "evidence"


def tile_values(scores: TileScores, name: str) -> Numbers:
    """The score of that name of each tile; see `Rule`."""
    if name != "weighted":
        return scores.of(name)
    return scores.of("ratio") * float(scores.probabilities[-1])


def detect_lesions(
    xy: NDArray[Any], side: float, values: NDArray[Any], mpp: float, rule: Rule | None = None
) -> Detections:
    """Detections at the centres of tiles, given the corners of all tiles and their scores.

    >>> row = np.array([[0, 0], [100, 0], [200, 0], [300, 0], [400, 0]])
    >>> values = np.array([0.1, 0.9, 0.8, 0.2, 0.7])
    >>> detections = detect_lesions(row, 100, values, mpp=1.0)
    >>> detections.probability, detections.xy[:, 0]
    (array([0.9, 0.7]), array([150, 450]))
    >>> rule = Rule(kind="components", least=0.15)
    >>> detect_lesions(row, 100, values, 1.0, rule).probability
    array([0.9])
    """
    cKDTree = import_extra("scipy.spatial", "slides").cKDTree
    rule, xy, values = rule or Rule(), np.asarray(xy), np.asarray(values, float)
    if len(xy) != len(values) or not np.isfinite(values).all():
        raise DataError(
            f"{len(values)} scores for {len(xy)} tiles: one finite number per tile is expected. "
            "Score the slide again."
        )
    if rule.smooth_um and len(xy):
        values = _smooth_values(cKDTree(xy), values, rule.smooth_um / mpp)
    above = np.flatnonzero(values > max(rule.floor, 0.0))
    order = above[np.argsort(-values[above], kind="stable")]
    if not len(order):
        return Detections(np.zeros(0), np.zeros((0, 2), np.int64))
    tree = cKDTree(xy[order])
    kept = order[
        _find_peaks(tree, rule.radius_of(side * mpp) / mpp)
        if rule.kind == "peaks"
        else _find_component_tops(tree, side)
    ]
    return Detections(values[kept], np.floor(xy[kept] + side / 2).astype(np.int64))


def _smooth_values(tree: Any, values: Numbers, sigma: float) -> Numbers:
    """Gaussian means over the tiles; positions without tissue do not count."""
    pairs = tree.sparse_distance_matrix(tree, 3 * sigma, output_type="ndarray")
    weights = np.exp(-(pairs["v"] ** 2) / (2 * sigma**2))
    total = np.bincount(pairs["i"], weights, len(values))
    return np.asarray(np.bincount(pairs["i"], weights * values[pairs["j"]], len(values)) / total)


def _find_peaks(tree: Any, radius: float) -> list[int]:
    """Positions of the points, given in falling order of score, that no earlier one suppresses."""
    suppressed = np.zeros(tree.n, bool)
    kept = []
    for position in range(tree.n):
        if not suppressed[position]:
            kept.append(position)
            suppressed[tree.query_ball_point(tree.data[position], radius)] = True
    return kept


def _find_component_tops(tree: Any, side: float) -> NDArray[np.int64]:
    """The first, which is the highest, of each group of tiles that touch, also at a corner."""
    sparse, csgraph = (
        import_extra("scipy.sparse", "slides"),
        import_extra("scipy.sparse.csgraph", "slides"),
    )
    one, other = tree.query_pairs(1.01 * side, p=np.inf, output_type="ndarray").T
    graph = sparse.coo_array((np.ones(len(one)), (one, other)), shape=(tree.n, tree.n))
    return np.sort(
        np.unique(csgraph.connected_components(graph, directed=False)[1], return_index=True)[1]
    )
