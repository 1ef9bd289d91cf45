"""The results of an atlas: one atom, and all atoms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from scmil.report.html.markup import MINUS, p_equals
from scmil.viz.atlas.evidence import CohortEvidence

SIGNS = ("+", MINUS)
SMALLEST = 0.0005  # smaller fractions are not written as numbers


class Tile(NamedTuple):
    """A tile that uses an atom: position and side length in level-0 pixels, and its code."""

    slide: str
    x: int
    y: int
    side: float
    code: float


class Partner(NamedTuple):
    """An atom that is used by the same tiles, with its sign."""

    atom: int
    sign: str

    def __str__(self) -> str:
        return f"{self.atom}{self.sign}"


class Contribution(NamedTuple):
    """The contribution of an atom to a logit: mean over patients, with its 95 % interval."""

    mean: float
    low: float | None = None  # None for a single patient
    high: float | None = None

    def __str__(self) -> str:
        ends = (
            ""
            if self.low is None or self.high is None
            else f" (95 % interval {signed(self.low)} to {signed(self.high)})"
        )
        return signed(self.mean) + ends


@dataclass(frozen=True)
class Atom:
    """One row of the atlas; without labels there are no numbers by class and no comparison."""

    atom: int
    sign: str = SIGNS[0]
    used: float = 0.0  # fraction of all tiles that use it with this sign
    opposite: float = 0.0  # fraction of all tiles that use it with the other sign
    strength: float | None = None  # mean |code| where it is used
    # Mean over patients of the fraction of their tiles that use it.
    by_class: Mapping[str, float] = field(default_factory=dict)
    # Fractions of its uses by class.
    use_by_class: Mapping[str, float] = field(default_factory=dict)
    compared: str | None = None  # the class that is compared with all others
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None  # corrected for all atoms and signs
    attention: float | None = None  # mean attention ratio of tiles, weighted by |code|
    together: tuple[Partner, ...] = ()
    duplicate_of: int | None = None
    tiles: tuple[Tile, ...] = ()
    # Contribution of its codes of this sign to each logit; empty without evidence.
    evidence: Mapping[str, Contribution] = field(default_factory=dict)
    # Mean contribution of its codes of the other sign.
    evidence_opposite: Mapping[str, float] = field(default_factory=dict)

    @property
    def dead(self) -> bool:
        """Whether no tile uses it, with either sign."""
        return self.used + self.opposite == 0

    @property
    def name(self) -> str:
        """The number of the atom with its sign.

        >>> Atom(17).name
        '17+'
        """
        return f"{self.atom}{self.sign}"

    @property
    def sentence(self) -> str:
        """The row as a sentence.

        >>> Atom(3).sentence
        'Atom 3 is dead: no tile uses it.'
        >>> atom = Atom(
        ...     17, by_class={"normal": 0.03, "tumour": 0.12}, used=0.07, compared="tumour",
        ...     difference=0.09, low=0.04, high=0.14, p=0.003, attention=2.31,
        ...     together=(Partner(4, "+"), Partner(90, "+")),
        ... )
        >>> print(atom.sentence)
        Atom 17+ is used by 12 % of the tiles of tumour slides and 3 % of those of normal slides (+9
        points, 95 % interval 4 to 14, p = 0.003 after correction); tiles that use it get 2.3 times
        the average attention; it goes together with atoms 4+ and 90+.
        """
        if self.dead:
            return f"Atom {self.atom} is dead: no tile uses it."
        parts = [f"Atom {self.name} is used by {self._describe_use()}"]
        if self.attention is not None:
            parts.append(
                f"tiles that use it get {_ratio_text(self.attention)} the average attention"
            )
        if self.evidence:
            name = max(self.evidence, key=lambda each: abs(self.evidence[each].mean))
            parts.append(f"it contributes {self.evidence[name]} to the logit of {name}")
        if self.together:
            parts.append(
                f"it goes together with atom{'s'[: len(self.together) - 1]} "
                f"{_listed(map(str, self.together))}"
            )
        if self.opposite:
            parts.append(
                f"with the opposite sign it is used by {percent(self.opposite)} % of all tiles"
            )
        if self.duplicate_of is not None:
            parts.append(f"it duplicates atom {self.duplicate_of}")
        return "; ".join(parts) + "."

    def _describe_use(self) -> str:
        if self.compared is None or self.difference is None:
            return f"{percent(self.used)} % of all tiles"
        rest = [name for name in self.by_class if name != self.compared]
        here = self.by_class[self.compared]
        others = f"those of {rest[0]} slides" if len(rest) == 1 else "the others"
        interval = (
            ""
            if self.low is None or self.high is None
            else f", 95 % interval {_span(self.low, self.high)}"
        )
        chance = "" if self.p is None else f", {p_equals(self.p)} after correction"
        return (
            f"{percent(here)} % of the tiles of {self.compared} slides and "
            f"{percent(here - self.difference)} % of {others} "
            f"({_points(self.difference)} points{interval}{chance})"
        )


@dataclass(frozen=True)
class Atlas:
    """All atoms by number, and the data on which they were counted."""

    atoms: tuple[Atom, ...]
    classes: tuple[str, ...]
    slides: int
    tiles: int
    compared: Mapping[str, int]  # patients of each class that were compared
    failed: Mapping[str, str] = field(default_factory=dict)  # slides whose scores could not be read
    # Contributions of the atoms to the logits; None if the scores have no evidence.
    evidence: CohortEvidence | None = None

    @property
    def ranked(self) -> list[Atom]:
        """Atoms that are used, without duplicates, sorted by p-value and then by difference."""
        alive = [atom for atom in self.atoms if not atom.dead and atom.duplicate_of is None]
        return sorted(
            alive,
            key=lambda atom: (
                1 if atom.p is None else atom.p,
                -abs(atom.difference or 0),
                -atom.used,
            ),
        )

    def decisive(self, name: str, count: int) -> list[tuple[str, Contribution]]:
        """The atoms, by name with sign, that contribute most to the logit of a class."""
        if self.evidence is None:
            return []
        place, m = self.classes.index(name), len(self.atoms)
        order = np.argsort(-np.abs(self.evidence.mean[:, place]), kind="stable")[:count]
        return [
            (f"{side % m}{SIGNS[side // m]}", contribution_of(self.evidence, side, place))
            for side in order.tolist()
            if self.evidence.mean[side, place]
        ]

    @property
    def dead(self) -> list[Atom]:
        """Atoms that no tile uses."""
        return [atom for atom in self.atoms if atom.dead]

    @property
    def duplicates(self) -> list[Atom]:
        """Atoms that duplicate another atom, which is used more often."""
        return [atom for atom in self.atoms if atom.duplicate_of is not None]


def contribution_of(evidence: CohortEvidence, side: int, place: int) -> Contribution:
    """The contribution of one sign of an atom to the logit of one class."""
    mean, *ends = (float(getattr(evidence, name)[side, place]) for name in ("mean", "low", "high"))
    low, high = (round(end, 6) if np.isfinite(end) else None for end in ends)
    return Contribution(round(mean, 6), low, high)


def signed(number: float) -> str:
    """A number with its sign and two significant digits.

    >>> signed(0.3141), signed(-12.0), signed(0.0)
    ('+0.31', '−12', '0')
    """
    return f"{number:+.2g}".replace("-", MINUS) if number else "0"


def percent(share: float) -> str:
    """A fraction as a rounded percentage.

    >>> percent(0.1234), percent(0.0042), percent(0.0), percent(1e-5)
    ('12', '0.4', '0', '< 0.1')
    """
    if 0 < share < SMALLEST:
        return "< 0.1"
    return f"{100 * share:.0f}" if share >= 0.00995 or share <= 0 else f"{100 * share:.1f}"


def _points(difference: float) -> str:
    """A difference in percentage points, with its sign unless it is smaller than 0.05.

    >>> _points(0.09), _points(-0.004), _points(-1e-5)
    ('+9', '−0.4', '< 0.1')
    """
    sign = "+" if difference > 0 else MINUS
    return (
        percent(abs(difference)) if abs(difference) < SMALLEST else sign + percent(abs(difference))
    )


def _span(low: float, high: float) -> str:
    """An interval in percentage points.

    >>> _span(-0.28, -0.009), _span(-1e-5, 0.04)
    ('−28 to −0.9', '0 to 4')
    """
    ends = [0.0 if abs(end) < SMALLEST else end for end in (low, high)]
    return " to ".join((MINUS if end < 0 else "") + percent(abs(end)) for end in ends)


def _ratio_text(ratio: float) -> str:
    return f"{ratio:.1f} times" if ratio < 10 else f"{ratio:.0f} times"


def _listed(words: Iterable[str]) -> str:
    listed: Sequence[str] = list(words)
    return listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} and {listed[-1]}"
