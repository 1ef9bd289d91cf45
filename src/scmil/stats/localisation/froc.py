"""The FROC curve as the official evaluation of CAMELYON16 computes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scmil.core.shapes import Numbers
from scmil.errors import DataError
from scmil.stats.bootstrap import Interval, draw_slide_weights, percentile_interval
from scmil.stats.localisation.detections import Detections
from scmil.stats.localisation.lesions import ISOLATED_UM, Lesions

FALSE_POSITIVES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # per slide, at which the sensitivity is read


@dataclass(frozen=True, eq=False)
class Hits:
    """The detections of a slide by what they hit: for each lesion that counts the highest score (0:
    missed), and all false positives.
    """

    lesions: Numbers
    false_positives: Numbers
    isolated: int = 0  # lesions that do not count
    unit: str | None = None  # the patient; whole patients are resampled for intervals


def count_hits(detections: Detections, lesions: Lesions, unit: str | None = None) -> Hits:
    """Say what detections hit; several in one lesion count once, those in isolated tumour cells not
    at all.
    """
    if (detections.probability <= 0).any():
        raise DataError(
            "a detection has a score of 0 or less, which the FROC curve cannot distinguish from "
            "none. Leave such detections out."
        )
    number = lesions.at(detections.xy)
    best = np.zeros(len(lesions.lengths_um) + 1)
    np.maximum.at(best, number, detections.probability)
    isolated = int((~lesions.counted).sum())
    return Hits(best[1:][lesions.counted], detections.probability[number == 0], isolated, unit)


@dataclass(frozen=True, eq=False)
class Froc:
    """The curve, from no false positive on, and the sensitivities at 1/4, 1/2, 1, 2, 4 and 8 false
    positives per slide.
    """

    thresholds: Numbers
    false_positives: Numbers  # per slide
    sensitivity: Numbers
    sensitivities: Numbers  # at FALSE_POSITIVES
    slides: int
    lesions: int
    isolated: int

    @property
    def score(self) -> float:
        """The mean of the six sensitivities, by which CAMELYON16 ranks."""
        return float(self.sensitivities.mean())


def froc(slides: Sequence[Hits]) -> Froc:
    """The FROC curve over slides, as the official evaluation of CAMELYON16 computes it.

    >>> normal = Hits(np.zeros(0), np.array([0.6]))
    >>> curve = froc([normal, Hits(np.array([0.9, 0.0]), np.array([0.3]))])
    >>> curve.false_positives, curve.sensitivity, curve.score
    (array([0. , 0. , 0.5, 1. ]), array([0. , 0.5, 0.5, 0.5]), 0.5)
    """
    events = _events(slides)
    lesions = sum(len(hits.lesions) for hits in slides)
    if not lesions:
        raise DataError(
            f"no lesion counts in {len(slides)} slides: FROC needs some of {ISOLATED_UM:.0f} "
            "microns or more, rim included. Add slides with such lesions."
        )
    false, hit = events.curve(np.ones(len(slides)))
    thresholds = np.concatenate([[np.inf], events.probability[events.ends]])
    isolated = sum(hits.isolated for hits in slides)
    return Froc(
        thresholds,
        false,
        hit,
        np.interp(FALSE_POSITIVES, false, hit),
        len(slides),
        lesions,
        isolated,
    )


def froc_intervals(
    slides: Sequence[Hits], draws: int = 1000, seed: int = 0
) -> tuple[Interval, list[Interval]]:
    """95 % bootstrap intervals of the score and of the six sensitivities, over slides, or patients
    where they are known.
    """
    each = froc_draws(slides, draws, seed)
    return percentile_interval(each.mean(1)), [percentile_interval(column) for column in each.T]


def froc_draws(slides: Sequence[Hits], draws: int = 1000, seed: int = 0) -> Numbers:
    """The six sensitivities (draws, 6) of bootstrap resamples of slides, or patients.

    The resamples depend on the slides and on the seed only, so that the rows of two scores of the
    same slides are pairs. Resamples without a lesion are left out.
    """
    events = _events(slides)
    corners = events.corners()
    drawn: list[Numbers] = []
    for weights in draw_slide_weights([hits.unit for hits in slides], draws, seed):
        weights = weights[weights @ events.lesions > 0]  # without any lesion there is no curve
        false, hit = (weights @ counts for counts in corners)
        rates, shares = false / weights.sum(1)[:, None], hit / (weights @ events.lesions)[:, None]
        drawn += [np.interp(FALSE_POSITIVES, *curve) for curve in zip(rates, shares)]
    return np.array(drawn).reshape(-1, len(FALSE_POSITIVES))


class _Events(NamedTuple):
    """All detections that count and all lesions missed, in falling order of probability."""

    probability: Numbers
    slide: NDArray[np.int64]
    is_lesion: NDArray[np.bool_]
    ends: NDArray[np.int64]  # the last position of each probability except the lowest
    lesions: NDArray[np.int64]  # of each slide

    def curve(self, weights: Numbers) -> tuple[Numbers, Numbers]:
        """False positives per slide and sensitivity at each threshold, with a weight per slide."""
        own = weights[self.slide]
        false, hit = (np.cumsum(own * of)[self.ends] for of in (~self.is_lesion, self.is_lesion))
        start = np.zeros(1)
        return (
            np.concatenate([start, false / weights.sum()]),
            np.concatenate([start, hit / (weights * self.lesions).sum()]),
        )

    def corners(self) -> tuple[Numbers, Numbers]:
        """False positives and hit lesions of each slide at the corners of the curve, which is
        horizontal in between.
        """
        rises = np.diff(np.cumsum(self.is_lesion)[self.ends], prepend=0) > 0
        bends = self.ends[rises | np.append(rises[1:], True)[: len(rises)]]
        # With the start, and what lies below the lowest threshold.
        shape = len(self.lesions), len(bends) + 2
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
    is_lesion = np.concatenate(
        [np.arange(len(part)) < count for part, count in parts] or [np.zeros(0, bool)]
    )
    order = np.argsort(-probability, kind="stable")
    probability = probability[order]
    # The official curve leaves the lowest value out: the 0 of missed lesions and of isolated tumour
    # cells if there are any, otherwise the lowest detection.
    ends = np.flatnonzero(probability[:-1] > probability[1:])
    lesions = np.array([len(hits.lesions) for hits in slides], np.int64)
    return _Events(probability, slide[order], is_lesion[order], ends, lesions)
