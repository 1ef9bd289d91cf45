"""Map numbers to colours, and describe the mapping."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[np.float64]

# Dark blue over green to yellow; lightness increases, so that it can be read without colours.
COLOURS = np.array(
    [(45, 20, 80), (50, 75, 140), (35, 130, 140), (70, 180, 105), (200, 215, 60), (255, 230, 50)]
)
# Blue over white to orange for signed scores; distinguishable with all kinds of colour blindness.
SIGNED = np.array([(20, 70, 140), (110, 160, 205), (245, 245, 245), (235, 165, 90), (165, 75, 0)])
FIFTHS = 5
THINNED = 1001  # number of values per slide that are kept for percentiles over many slides


@dataclass(frozen=True)
class Scale:
    """Maps numbers to colours: by rank within the slide, or by value from `low` to `high`.

    >>> values = np.array([0.1, 8.0, 0.2])
    >>> Scale().shares(values), Scale(low=0, high=4).shares(values)
    (array([0. , 1. , 0.5]), array([0.025, 1.   , 0.05 ]))
    """

    low: float | None = None  # both None: by rank
    high: float | None = None
    signed: bool = False  # zero is in the middle
    note: str = ""  # origin of the range

    @property
    def by_rank(self) -> bool:
        """Whether ranks are shown instead of values."""
        return self.low is None or self.high is None

    @property
    def description(self) -> str:
        """A description of the scale.

        >>> Scale().description, Scale(0, 4.5, note="the same for all slides").description
        ('by rank within the slide', 'by value from 0 to 4.5, the same for all slides')
        """
        mapping = (
            "by rank within the slide"
            if self.by_rank
            else f"by value from {self.low:.3g} to {self.high:.3g}"
        )
        return f"{mapping}, {self.note}" if self.note else mapping

    def shares(self, values: NDArray[Any]) -> Numbers:
        """The position of each value on the scale from 0 to 1, clipped to the ends."""
        if self.low is None or self.high is None:
            return ranks(values)
        span = self.high - self.low
        return np.clip((values - self.low) / span, 0, 1) if span > 0 else np.zeros(len(values))

    def colours(self, shares: Numbers) -> NDArray[np.int64]:
        """The colours of positions on the scale."""
        return colours(shares, SIGNED if self.signed else COLOURS)

    def ticks(self, values: NDArray[Any]) -> list[tuple[float, str, str]]:
        """Positions on the colour bar from 0 to 1, each with two lines of text.

        >>> Scale(0, 4).ticks(np.array([1, 9.0]))
        [(0.0, '0', ''), (0.5, '2', ''), (1.0, '4', 'and more')]
        """
        if self.low is None or self.high is None:
            places = np.linspace(0, 1, FIFTHS)
            names = ["lowest", "25 %", "median", "75 %", "highest"]
            known = np.quantile(values, places) if len(values) else np.zeros(len(places))
            return [
                (float(at), name, f"{value:.3g}") for at, name, value in zip(places, names, known)
            ]
        less = "and less" if (values < self.low).any() else ""
        more = "and more" if (values > self.high).any() else ""
        middle = (self.low + self.high) / 2
        return [
            (0.0, f"{self.low:.3g}", less),
            (0.5, f"{middle:.3g}", ""),
            (1.0, f"{self.high:.3g}", more),
        ]

    def fifths(self) -> list[tuple[str, tuple[int, int, int]]]:
        """Five intervals of the scale from low to high, each with a name and a colour.

        >>> [name for name, _ in Scale(0, 1).fifths()], Scale().fifths()[4][0]
        (['0 to 0.2', '0.2 to 0.4', '0.4 to 0.6', '0.6 to 0.8', '0.8 to 1'], 'rank 80 to 100 %')
        """
        low, high = (0, 100) if self.low is None or self.high is None else (self.low, self.high)
        names = [
            f"{start:.3g} to {end:.3g}"
            for start, end in pairwise(np.linspace(low, high, FIFTHS + 1))
        ]
        middle = self.colours((np.arange(FIFTHS) + 0.5) / FIFTHS).tolist()
        return [
            (f"rank {name} %" if self.by_rank else name, (red, green, blue))
            for name, (red, green, blue) in zip(names, middle)
        ]


def scale_for(score: str, parts: Iterable[Numbers], same: bool = False) -> Scale:
    """The scale of a score, from its values on one slide, or on many slides with the `same` scale.

    Attention is shown by rank because it is heavy-tailed: by value, its maximum would leave all
    other tiles in one colour. (The ratio shows attention by value.) A probability ranges from 0 to
    1, the code of an atom and evidence have zero in the middle, and a spread starts
    at zero. All other scores, and scales that are the same for all slides, range from percentile 1
    to percentile 99.

    >>> values = [np.arange(5.0)]
    >>> scale_for("attention", values).description
    'by rank within the slide'
    >>> scale_for("probability:tumour", values).description
    'by value from 0 to 1'
    >>> scale_for("attention", [np.arange(101.0)], same=True).description
    'by value from 1 to 99, percentiles 1 to 99 of all slides, the same for all'
    """
    kind = score.partition(":")[0]
    if not same and kind == "attention":
        return Scale()
    if not same and kind == "probability":
        return Scale(0, 1)
    whose = "of all slides, the same for all" if same else "of this slide"
    if kind in ("atom", "evidence"):
        [bound] = percentiles((np.abs(values[values != 0]) for values in parts), [99]) or [1.0]
        tiles = "tiles that use it" if kind == "atom" else "absolute values"
        return Scale(-bound, bound, signed=True, note=f"percentile 99 of the {tiles} {whose}")
    if kind == "spread":
        return Scale(0, percentiles(parts, [99])[0], note=f"percentile 99 {whose}")
    lowest, low, high, highest = percentiles(parts, [0, 1, 99, 100])
    low, high = (low, high) if low < high else (lowest, highest)
    return Scale(low, high, note=f"percentiles 1 to 99 {whose}")


def percentiles(parts: Iterable[Numbers], at: Sequence[float]) -> list[float]:
    """Percentiles over many slides, of which at most 1001 values each are kept: exact for small
    slides, approximate for large ones.

    >>> percentiles([np.arange(51.0), np.arange(51.0, 101.0)], [1, 50])
    [1.0, 50.0]
    >>> percentiles([np.zeros(0)], [50])
    []
    """
    kept, weights = [np.zeros(0)], [np.zeros(0)]
    for values in parts:
        few = values if len(values) <= THINNED else np.quantile(values, np.linspace(0, 1, THINNED))
        kept.append(few)
        weights.append(np.full(len(few), len(values) / max(len(few), 1)))
    values, weight = np.concatenate(kept), np.concatenate(weights)
    if not len(values):
        return []
    order = np.argsort(values, kind="stable")
    place = np.cumsum(weight[order]) - weight[order] / 2
    shares = (place - place[0]) / max(place[-1] - place[0], 1e-300)
    return [float(value) for value in np.interp(np.asarray(at) / 100, shares, values[order])]


def ranks(scores: NDArray[Any]) -> Numbers:
    """The rank of each score from 0 to 1; equal scores have the same rank.

    >>> ranks(np.array([0.1, 0.9, 0.1, 0.5]))
    array([0.16666667, 1.        , 0.16666667, 0.66666667])
    """
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts + 1) / 2
    return middle[place] / max(len(scores) - 1, 1)


def colours(shares: Numbers, palette: NDArray[Any] = COLOURS) -> NDArray[np.int64]:
    """The colour of each position from 0 to 1.

    >>> colours(np.array([0.0, 1.0])).tolist()
    [[45, 20, 80], [255, 230, 50]]
    """
    stops = np.linspace(0, 1, len(palette))
    return (
        np.stack([np.interp(shares, stops, channel) for channel in palette.T], axis=-1)
        .round()
        .astype(np.int64)
    )
