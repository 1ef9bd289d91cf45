"""How numbers become colours, and what the colours mean in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[np.float64]

# Dark blue over green to yellow: lightness grows with the score, so that it is read without colour, too.
COLOURS = np.array([(45, 20, 80), (50, 75, 140), (35, 130, 140), (70, 180, 105), (200, 215, 60), (255, 230, 50)])
# Blue over white to orange, for scores with a sign: no kind of colour blindness takes the one for the other.
SIGNED = np.array([(20, 70, 140), (110, 160, 205), (245, 245, 245), (235, 165, 90), (165, 75, 0)])
FIFTHS = 5
THINNED = 1001  # values of a slide that are kept to find percentiles over many slides


@dataclass(frozen=True)
class Scale:
    """How numbers become colours: by their rank within the slide, or by their value from `low` to `high`.

    >>> Scale().shares(np.array([0.1, 8.0, 0.2])), Scale(low=0, high=4).shares(np.array([0.1, 8.0, 0.2]))
    (array([0. , 1. , 0.5]), array([0.025, 1.   , 0.05 ]))
    """

    low: float | None = None  # both None: by rank
    high: float | None = None
    signed: bool = False  # zero in the middle has a colour of its own
    note: str = ""  # where the range comes from

    @property
    def by_rank(self) -> bool:
        """Whether ranks are shown, and not values."""
        return self.low is None or self.high is None

    @property
    def words(self) -> str:
        """The scale in words.

        >>> Scale().words, Scale(0, 4.5, note="the same for all slides").words
        ('by rank within the slide', 'by value from 0 to 4.5, the same for all slides')
        """
        said = "by rank within the slide" if self.by_rank else f"by value from {self.low:.3g} to {self.high:.3g}"
        return f"{said}, {self.note}" if self.note else said

    def shares(self, values: NDArray[Any]) -> Numbers:
        """Where on the scale each value is, from 0 to 1; what lies beyond an end has the colour of that end."""
        if self.low is None or self.high is None:
            return ranks(values)
        span = self.high - self.low
        return np.clip((values - self.low) / span, 0, 1) if span > 0 else np.zeros(len(values))

    def colours(self, shares: Numbers) -> NDArray[np.int64]:
        """The colours of shares."""
        return colours(shares, SIGNED if self.signed else COLOURS)

    def ticks(self, values: NDArray[Any]) -> list[tuple[float, str, str]]:
        """Places on the colour bar from 0 to 1, each with what stands there in two lines; values beyond an end are said.

        >>> Scale(0, 4).ticks(np.array([1, 9.0]))
        [(0.0, '0', ''), (0.5, '2', ''), (1.0, '4', 'and more')]
        """
        if self.low is None or self.high is None:
            places = np.linspace(0, 1, FIFTHS)
            names = ["lowest", "25 %", "median", "75 %", "highest"]
            known = np.quantile(values, places) if len(values) else np.zeros(len(places))
            return [(float(at), name, f"{value:.3g}") for at, name, value in zip(places, names, known)]
        less = "and less" if (values < self.low).any() else ""
        more = "and more" if (values > self.high).any() else ""
        middle = (self.low + self.high) / 2
        return [(0.0, f"{self.low:.3g}", less), (0.5, f"{middle:.3g}", ""), (1.0, f"{self.high:.3g}", more)]

    def fifths(self) -> list[tuple[str, tuple[int, int, int]]]:
        """Five steps of the scale from low to high, each with a name and its colour.

        >>> [name for name, _ in Scale(0, 1).fifths()], Scale().fifths()[4][0]
        (['0 to 0.2', '0.2 to 0.4', '0.4 to 0.6', '0.6 to 0.8', '0.8 to 1'], 'rank 80 to 100 %')
        """
        low, high = (0, 100) if self.low is None or self.high is None else (self.low, self.high)
        names = [f"{start:.3g} to {end:.3g}" for start, end in pairwise(np.linspace(low, high, FIFTHS + 1))]
        middle = self.colours((np.arange(FIFTHS) + 0.5) / FIFTHS).tolist()
        return [
            (f"rank {name} %" if self.by_rank else name, (red, green, blue))
            for name, (red, green, blue) in zip(names, middle)
        ]


def scale_for(score: str, parts: Iterable[Numbers], same: bool = False) -> Scale:
    """How a score is coloured, from its values on one slide, or on each of many that are to have the `same` scale.

    Attention is shown by rank, because it is heavy-tailed: its largest value would leave everything else one colour. (To
    see how much larger it is, there is the ratio: the attention again, by value.) A probability goes from 0 to 1, the code
    of an atom has zero in the middle; everything else, and whatever is to be the same for all slides, lies between the
    percentiles 1 and 99.

    >>> scale_for("attention", [np.arange(5.0)]).words, scale_for("probability:tumour", [np.arange(5.0)]).words
    ('by rank within the slide', 'by value from 0 to 1')
    >>> scale_for("attention", [np.arange(101.0)], same=True).words
    'by value from 1 to 99, percentiles 1 to 99 of all slides, the same for all'
    """
    kind = score.partition(":")[0]
    if not same and kind == "attention":
        return Scale()
    if not same and kind == "probability":
        return Scale(0, 1)
    whose = "of all slides, the same for all" if same else "of this slide"
    if kind == "atom":
        [bound] = percentiles((np.abs(values[values != 0]) for values in parts), [99]) or [1.0]
        return Scale(-bound, bound, signed=True, note=f"percentile 99 of the tiles that use it {whose}")
    lowest, low, high, highest = percentiles(parts, [0, 1, 99, 100])
    low, high = (low, high) if low < high else (lowest, highest)
    return Scale(low, high, note=f"percentiles 1 to 99 {whose}")


def percentiles(parts: Iterable[Numbers], at: Sequence[float]) -> list[float]:
    """Percentiles over many slides, of which each keeps at most 1001 values: exact for small ones, close for huge ones.

    >>> percentiles([np.arange(51.0), np.arange(51.0, 101.0)], [1, 50]), percentiles([np.zeros(0)], [50])
    ([1.0, 50.0], [])
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
    """Each score's rank from 0 to 1; equal scores share one.

    >>> ranks(np.array([0.1, 0.9, 0.1, 0.5]))
    array([0.16666667, 1.        , 0.16666667, 0.66666667])
    """
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts + 1) / 2
    return middle[place] / max(len(scores) - 1, 1)


def colours(shares: Numbers, palette: NDArray[Any] = COLOURS) -> NDArray[np.int64]:
    """The colour of each share from 0 to 1.

    >>> colours(np.array([0.0, 1.0])).tolist()
    [[45, 20, 80], [255, 230, 50]]
    """
    stops = np.linspace(0, 1, len(palette))
    return np.stack([np.interp(shares, stops, channel) for channel in palette.T], axis=-1).round().astype(np.int64)
