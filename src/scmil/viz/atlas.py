"""What each atom has learned: the tiles that use it, its use by class, the attention it gets, the atoms it goes with.

A code is positive or negative: an atom that is added to a tile and one that is taken away from it are two patterns. So each
atom has two signs, both are tested, and the atlas shows the sign that tells the classes apart better; `opposite` says how
often the other one is met.

Slides are read one at a time. What is kept of all of them are sums of (2 atoms)², the best tiles of each sign, and one row
of shares a slide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scmil.errors import DataError, OptionError
from scmil.core.extras import need
from scmil.report.html.markup import MINUS, p_value
from scmil.models.tile_scores import Scores
from scmil.stats.significance import holm
from scmil.core.jobs.work import one_of_many

ROWS = 4096  # tiles at a time; a block of dense codes has that many rows
DRAWS = 2000  # of the bootstrap
ALIKE = 0.95  # cosine or correlation from which two atoms are one
PARTNERS = 3
SIGNS = ("+", MINUS)
Array = NDArray[np.float64]


class Tile(NamedTuple):
    """A tile that uses an atom: its corner and edge in level-0 pixels, and its code."""

    slide: str
    x: int
    y: int
    side: float
    code: float


class Partner(NamedTuple):
    """An atom that is used by the same tiles, and with which sign."""

    atom: int
    sign: str

    def __str__(self) -> str:
        return f"{self.atom}{self.sign}"


@dataclass(frozen=True)
class Atom:
    """One row of the atlas; numbers of classes and of the comparison are missing where labels are."""

    atom: int
    sign: str = SIGNS[0]
    used: float = 0.0  # share of all tiles that use it with this sign
    opposite: float = 0.0  # share of all tiles that use it with the other sign
    strength: float | None = None  # mean |code| where it is used
    by_class: Mapping[str, float] = field(default_factory=dict)  # mean over patients of the share of their tiles
    use_by_class: Mapping[str, float] = field(default_factory=dict)  # how its uses divide among the classes
    compared: str | None = None  # the class that the difference is about, against all others
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None  # corrected for all atoms and signs
    attention: float | None = None  # mean attention ratio of tiles, weighted by |code|
    together: tuple[Partner, ...] = ()
    duplicate_of: int | None = None
    tiles: tuple[Tile, ...] = ()

    @property
    def dead(self) -> bool:
        """Whether no tile uses it, with neither sign."""
        return self.used + self.opposite == 0

    @property
    def name(self) -> str:
        """The number with the sign.

        >>> Atom(17).name
        '17+'
        """
        return f"{self.atom}{self.sign}"

    @property
    def sentence(self) -> str:
        """The numbers in plain words.

        >>> Atom(3).sentence
        'Atom 3 is dead: no tile uses it.'
        >>> atom = Atom(17, used=0.07, by_class={"normal": 0.03, "tumour": 0.12}, compared="tumour", difference=0.09,
        ...             low=0.04, high=0.14, p=0.003, attention=2.31, together=(Partner(4, "+"), Partner(90, "+")))
        >>> print(atom.sentence)
        Atom 17+ is used by 12 % of the tiles of tumour slides and 3 % of those of normal slides (+9 points, 95 % interval
        4 to 14, p 0.003 after correction); tiles that use it get 2.3 times the average attention; it goes together with
        atoms 4+ and 90+.
        """
        if self.dead:
            return f"Atom {self.atom} is dead: no tile uses it."
        words = [f"Atom {self.name} is used by {self._use()}"]
        if self.attention is not None:
            words.append(f"tiles that use it get {_times(self.attention)} the average attention")
        if self.together:
            words.append(
                f"it goes together with atom{'s'[: len(self.together) - 1]} {_listed(map(str, self.together))}"
            )
        if self.opposite:
            words.append(f"with the opposite sign it is used by {percent(self.opposite)} % of all tiles")
        if self.duplicate_of is not None:
            words.append(f"it says the same as atom {self.duplicate_of}")
        return "; ".join(words) + "."

    def _use(self) -> str:
        if self.compared is None or self.difference is None:
            return f"{percent(self.used)} % of all tiles"
        rest = [name for name in self.by_class if name != self.compared]
        here = self.by_class[self.compared]
        others = f"those of {rest[0]} slides" if len(rest) == 1 else "the others"
        interval = "" if self.low is None or self.high is None else f", 95 % interval {_span(self.low, self.high)}"
        chance = "" if self.p is None else f", p {p_value(self.p)} after correction"
        return (
            f"{percent(here)} % of the tiles of {self.compared} slides and {percent(here - self.difference)} % of {others} "
            f"({_points(self.difference)} points{interval}{chance})"
        )


@dataclass(frozen=True)
class Atlas:
    """All atoms by their number, and what they were counted on."""

    atoms: tuple[Atom, ...]
    classes: tuple[str, ...]
    slides: int
    tiles: int
    compared: Mapping[str, int]  # patients of each class that were compared
    failed: Mapping[str, str] = field(default_factory=dict)  # slides whose scores could not be read

    @property
    def ranked(self) -> list[Atom]:
        """Living atoms, duplicates left out: first what tells the classes apart, by p and then by difference."""
        alive = [atom for atom in self.atoms if not atom.dead and atom.duplicate_of is None]
        return sorted(alive, key=lambda atom: (1 if atom.p is None else atom.p, -abs(atom.difference or 0), -atom.used))

    @property
    def dead(self) -> list[Atom]:
        """Atoms that no tile uses."""
        return [atom for atom in self.atoms if atom.dead]

    @property
    def duplicates(self) -> list[Atom]:
        """Atoms that say the same as another one, which is used more."""
        return [atom for atom in self.atoms if atom.duplicate_of is not None]


def build_atlas(
    scores: Mapping[str, Scores],
    dictionary: NDArray[Any] | None = None,
    *,
    labels: Mapping[str, int | None] | None = None,
    patients: Mapping[str, str | None] | None = None,
    tiles: int = 10,
    per_slide: int = 3,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Atlas:
    """Count over all slides what each atom does; the seed is that of the bootstrap.

    `labels` and `patients` are those to compare by, in place of those of the scores; slides without a label are counted,
    and not compared; the slides of one patient are compared as one. Of one slide at most `per_slide` tiles are shown for an
    atom, so that ten pictures are not one place. `dictionary` (p, atoms) lets duplicates be found by their columns, too.

    >>> from scmil.models.tile_scores import _small_bag, _small_model, score_bag
    >>> scores = score_bag(_small_model(), _small_bag(), ("normal", "tumour"))
    >>> atlas = build_atlas({"slide": scores}, tiles=2)
    >>> len(atlas.atoms), atlas.tiles, len(atlas.ranked[0].tiles)
    (8, 9, 2)
    """
    if min(tiles, per_slide) < 1:
        raise OptionError(f"tiles = {tiles}, per_slide = {per_slide}: at least 1 is needed.")
    sums: _Sums | None = None
    failed: dict[str, str] = {}
    for position, id in enumerate(scores, start=1):
        with one_of_many(id, failed):
            slide = scores[id]
            if slide.codes is None:
                raise OptionError("the model has no sparse coding, so there are no atoms. Train one with --sc.")
            sums = sums or _Sums(slide.codes.atoms, slide.classes, tiles, per_slide)
            sums.add(
                slide,
                slide.label if labels is None else labels.get(id),
                slide.patient if patients is None else patients.get(id),
            )
        if progress:
            progress(position)
    if sums is None:
        causes = "; ".join(failed.values())
        raise DataError(f"there are no scores to make an atlas of. {causes or 'Score slides first: scmil heatmap.'}")
    return _atlas(sums, dictionary, seed, failed)


# ------------------------------------------------------------------------------------------------------------ counting


class _Sums:
    """What is kept of the slides: sums over their tiles, for each sign of each atom (first all +, then all -)."""

    def __init__(self, atoms: int, classes: tuple[str, ...], tiles: int, per_slide: int) -> None:
        self.atoms, self.classes, self.keep, self.per_slide = atoms, classes, tiles, per_slide
        self.tiles = 0
        self.uses, self.strength, self.attended = np.zeros((3, 2 * atoms))
        self.gram = np.zeros((2 * atoms, 2 * atoms))
        self.by_class = np.zeros((len(classes), 2 * atoms))
        self.shares: list[NDArray[np.float32]] = []  # of each slide the share of tiles that use it
        self.labels: list[int | None] = []
        self.owners: list[str] = []
        self.best: list[list[Tile]] = [[] for _ in range(2 * atoms)]

    def add(self, scores: Scores, label: int | None, patient: str | None) -> None:
        """Count one slide."""
        if scores.codes is None or scores.codes.atoms != self.atoms:
            met = 0 if scores.codes is None else scores.codes.atoms
            raise DataError(
                f"slide {scores.id!r} has codes of {met} atoms, and others of {self.atoms}. Score them anew."
            )
        ratio, uses = scores.of("ratio"), np.zeros(2 * self.atoms)
        strongest = _Strongest(2 * self.atoms, self.per_slide)
        for start, block in _blocks(scores):
            uses += (block > 0).sum(0)
            self.strength += block.sum(0)
            self.attended += ratio[start : start + len(block)] @ block
            self.gram += block.T @ block
            strongest.add(block, start)
        self.uses += uses
        self.tiles += len(scores)
        if label is not None:
            self.by_class[label] += uses
        self.shares.append((uses / len(scores)).astype(np.float32))
        self.labels.append(label)
        self.owners.append(patient or scores.id)
        for side in np.flatnonzero(uses).tolist():
            sign = 1 if side < self.atoms else -1
            found = [_tile(scores, tile, sign * value) for tile, value in strongest.of(side)]
            self.best[side] = sorted([*self.best[side], *found], key=lambda tile: -abs(tile.code))[: self.keep]


def _blocks(scores: Scores) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Rows of |code| with a column for each sign, a few thousand at a time."""
    assert scores.codes is not None  # the caller has looked
    codes, m = scores.codes, scores.codes.atoms
    for start in range(0, len(codes), ROWS):
        stop = min(start + ROWS, len(codes))
        own = slice(codes.starts[start], codes.starts[stop])
        rows = np.repeat(np.arange(stop - start), np.diff(codes.starts[start : stop + 1]))
        values = codes.values[own].astype(np.float32)
        block = np.zeros((stop - start, 2 * m), np.float32)
        block[rows, codes.columns[own].astype(np.int64) + m * (values < 0)] = np.abs(values)
        yield start, block


class _Strongest:
    """For each sign of each atom, the tiles of one slide that use it most; told of them block by block."""

    def __init__(self, sides: int, count: int) -> None:
        self.count = count
        self.values: NDArray[np.float32] = np.zeros((0, sides), np.float32)
        self.tiles: NDArray[np.int64] = np.zeros((0, sides), np.int64)

    def add(self, block: NDArray[np.float32], start: int) -> None:
        """Look at the rows of a block, which begins at tile `start`."""
        best = np.argpartition(-block, min(self.count, len(block)) - 1, axis=0)[: self.count]
        values = np.concatenate([self.values, np.take_along_axis(block, best, 0)])
        tiles = np.concatenate([self.tiles, best + start])
        order = np.lexsort((tiles, -values), axis=0)[: self.count]
        self.values, self.tiles = np.take_along_axis(values, order, 0), np.take_along_axis(tiles, order, 0)

    def of(self, side: int) -> Iterator[tuple[int, float]]:
        """The tiles and how strongly they use it, the strongest first."""
        used = self.values[:, side] > 0
        yield from zip(self.tiles[used, side].tolist(), self.values[used, side].tolist(), strict=True)


def _tile(scores: Scores, tile: int, code: float) -> Tile:
    x, y = scores.xy[tile].tolist()
    return Tile(scores.id, x, y, scores.side, round(float(code), 4))


# ----------------------------------------------------------------------------------------------------------- comparing


class Compared(NamedTuple):
    """For each column: the class that differs most from the others, by how much, 95 % interval, and p, not corrected."""

    target: NDArray[np.int64]
    difference: Array
    low: Array
    high: Array
    p: Array


def compare_use(shares: NDArray[Any], labels: NDArray[np.int64], seed: int = 0) -> Compared:
    """Compare the shares (patients, columns) between the classes that are met.

    Two classes: the second less the first, with Mann-Whitney's p. More: the class that differs most from all others
    together, with the p of Kruskal and Wallis for any difference. The interval is that of a bootstrap within the classes;
    there is none (NaN) if a class has only one patient. A column that is the same for all has p = 1.

    >>> shares = np.array([[0.1, 0.5], [0.2, 0.5], [0.15, 0.5], [0.1, 0.5], [0.8, 0.5], [0.9, 0.5], [0.7, 0.5], [0.8, 0.5]])
    >>> found = compare_use(shares, np.array([0, 0, 0, 0, 1, 1, 1, 1]))
    >>> found.target.tolist(), found.difference.round(4).tolist(), found.p.round(2).tolist()
    ([1, 1], [0.6625, 0.0], [0.03, 1.0])
    """
    met = np.unique(labels)
    if len(met) < 2:
        raise DataError(f"{len(met)} class: at least two are needed to compare.")
    groups = [shares[labels == label].astype(np.float64) for label in met]
    sizes = np.array([len(group) for group in groups])
    means = np.stack([group.mean(0) for group in groups])
    differences = _against_rest(means, sizes)
    place = np.full(shares.shape[1], 1) if len(met) == 2 else np.abs(differences).argmax(0)
    low, high = _intervals(groups, sizes, place, seed)
    return Compared(met[place], np.take_along_axis(differences, place[None], 0)[0], low, high, _chances(groups))


def _against_rest(means: Array, sizes: NDArray[np.int64]) -> Array:
    """Each class's mean less that of all others together; classes are the first axis."""
    shape = (-1,) + (1,) * (means.ndim - 1)
    weighted = means * sizes.reshape(shape)
    return np.asarray(means - (weighted.sum(0) - weighted) / (sizes.sum() - sizes).reshape(shape))


def _intervals(
    groups: list[Array], sizes: NDArray[np.int64], place: NDArray[np.int64], seed: int
) -> tuple[Array, Array]:
    columns = len(place)
    if sizes.min() < 2:
        return np.full(columns, np.nan), np.full(columns, np.nan)
    generator = np.random.default_rng(seed)
    draws = np.stack(
        [generator.multinomial(n, np.full(n, 1 / n), DRAWS) @ group / n for n, group in zip(sizes, groups)]
    )
    drawn = np.take_along_axis(_against_rest(draws, sizes), place[None, None], 0)[0]
    low, high = np.quantile(drawn, (0.025, 0.975), axis=0)
    return low, high


def _chances(groups: list[Array]) -> Array:
    stats = need("scipy.stats", "statistics")
    everything = np.concatenate(groups)
    varies = everything.max(0) > everything.min(0)
    p = np.ones(everything.shape[1])
    if varies.any():
        test = stats.mannwhitneyu if len(groups) == 2 else stats.kruskal
        p[varies] = test(*(group[:, varies] for group in groups), axis=0).pvalue
    return p


# ----------------------------------------------------------------------------------------------------------- the rows


def _atlas(sums: _Sums, dictionary: NDArray[Any] | None, seed: int, failed: Mapping[str, str]) -> Atlas:
    shares, labels = _by_patient(sums)
    met = [int(label) for label in np.unique(labels)]
    compared, corrected = None, None
    if len(met) > 1:
        compared = compare_use(shares, labels, seed)
        corrected = np.ones(2 * sums.atoms)
        used = sums.uses > 0
        corrected[used] = holm(compared.p[used])
    rows = _Rows(sums, shares, labels, compared, corrected, _duplicates(sums, dictionary), _cosines(sums.gram))
    counts = {sums.classes[label]: int((labels == label).sum()) for label in met}
    atoms = tuple(rows.atom(atom) for atom in range(sums.atoms))
    return Atlas(atoms, sums.classes, len(sums.shares), sums.tiles, counts, dict(failed))


def _by_patient(sums: _Sums) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Slides of one patient and class are no independent witnesses: their mean counts once."""
    units: dict[tuple[str, int], list[int]] = {}
    for position, (owner, label) in enumerate(zip(sums.owners, sums.labels, strict=True)):
        if label is not None:
            units.setdefault((owner, label), []).append(position)
    rows = [np.mean([sums.shares[i] for i in positions], axis=0) for positions in units.values()]
    empty = np.zeros((0, 2 * sums.atoms))
    return np.asarray(rows, np.float64) if rows else empty, np.array([label for _, label in units], np.int64)


def _cosines(gram: Array) -> Array:
    length = np.sqrt(np.diag(gram))
    cosines: Array = gram / np.maximum(np.outer(length, length), np.finfo(float).tiny)
    return cosines


def _duplicates(sums: _Sums, dictionary: NDArray[Any] | None) -> dict[int, int]:
    """Which atoms say the same as one that is used more: their columns point the same way, or their codes go along."""
    m, n = sums.atoms, sums.tiles
    signs = np.concatenate([np.ones(m), -np.ones(m)])
    signed = (sums.gram * np.outer(signs, signs)).reshape(2, m, 2, m).sum((0, 2))
    mean = (sums.strength * signs).reshape(2, m).sum(0) / n
    alike = np.abs(_cosines(signed - n * np.outer(mean, mean)))
    if dictionary is not None:
        if dictionary.shape[1] != m:
            raise DataError(
                f"the dictionary has {dictionary.shape[1]} atoms, and the codes {m}. Score the slides anew."
            )
        columns = dictionary.astype(np.float64)
        alike = np.maximum(alike, np.abs(_cosines(columns.T @ columns)))
    uses = sums.uses.reshape(2, m).sum(0)
    kept: list[int] = []
    found: dict[int, int] = {}
    for atom in np.lexsort((np.arange(m), -uses)).tolist():
        original = next((other for other in kept if alike[atom, other] > ALIKE), None)
        if uses[atom] and original is not None:
            found[atom] = original
        else:
            kept.append(atom)
    return found


class _Rows(NamedTuple):
    """All that a row of the atlas is made from."""

    sums: _Sums
    shares: Array
    labels: NDArray[np.int64]
    compared: Compared | None
    corrected: Array | None
    duplicates: Mapping[int, int]
    cosines: Array

    def atom(self, atom: int) -> Atom:
        side, other = self._sides(atom)
        sums = self.sums
        if not sums.uses[side]:
            return Atom(atom)
        used = sums.by_class[:, side].sum()
        names = {int(label): sums.classes[label] for label in np.unique(self.labels)}
        row = Atom(
            atom,
            SIGNS[side // sums.atoms],
            used=_round(sums.uses[side] / sums.tiles),
            opposite=_round(sums.uses[other] / sums.tiles),
            strength=_round(sums.strength[side] / sums.uses[side]),
            by_class={name: _round(self.shares[self.labels == label, side].mean()) for label, name in names.items()},
            use_by_class={name: _round(sums.by_class[label, side] / max(used, 1)) for label, name in names.items()},
            attention=_round(sums.attended[side] / sums.strength[side]),
            together=self._together(side),
            duplicate_of=self.duplicates.get(atom),
            tiles=tuple(sums.best[side]),
        )
        return row if self.compared is None else _with_comparison(row, self, side)

    def _sides(self, atom: int) -> tuple[int, int]:
        """The sign that tells more, then the other; without labels, the one with more strength first."""
        plus, minus = atom, atom + self.sums.atoms
        if self.compared is None:
            ahead = self.sums.strength[plus] >= self.sums.strength[minus]
        else:
            told = {
                side: (not self.sums.uses[side], self.compared.p[side], -abs(self.compared.difference[side]))
                for side in (plus, minus)
            }
            ahead = told[plus] <= told[minus]
        return (plus, minus) if ahead else (minus, plus)

    def _together(self, side: int) -> tuple[Partner, ...]:
        m = self.sums.atoms
        close = self.cosines[side].copy()
        close[[side % m, side % m + m]] = 0
        order = np.lexsort((np.arange(2 * m), -close))[:PARTNERS]
        return tuple(Partner(int(other) % m, SIGNS[int(other) // m]) for other in order if close[other] > 0)


def _with_comparison(row: Atom, rows: _Rows, side: int) -> Atom:
    assert rows.compared is not None  # the caller has looked
    assert rows.corrected is not None  # made beside it
    target, difference, low, high, _ = (column[side] for column in rows.compared)
    return replace(
        row,
        compared=rows.sums.classes[int(target)],
        difference=_round(difference),
        low=_round(low) if np.isfinite(low) else None,
        high=_round(high) if np.isfinite(high) else None,
        p=float(f"{rows.corrected[side]:.4g}"),
    )


def _round(value: float) -> float:
    return round(float(value), 6)


# --------------------------------------------------------------------------------------------------------------- words


def percent(share: float) -> str:
    """A share as people say it.

    >>> percent(0.1234), percent(0.0042), percent(0.0), percent(1e-5)
    ('12', '0.4', '0', '< 0.1')
    """
    if 0 < share < 0.0005:
        return "< 0.1"
    return f"{100 * share:.0f}" if share >= 0.00995 or share <= 0 else f"{100 * share:.1f}"


def _points(difference: float) -> str:
    sign = "+" if difference > 0 else MINUS if difference < 0 else ""
    return sign + percent(abs(difference))


def _span(low: float, high: float) -> str:
    ends = [(MINUS if end < 0 else "") + percent(abs(end)) for end in (low, high)]
    return " to ".join(ends)


def _times(ratio: float) -> str:
    return f"{ratio:.1f} times" if ratio < 10 else f"{ratio:.0f} times"


def _listed(words: Iterable[str]) -> str:
    listed: Sequence[str] = list(words)
    return listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} and {listed[-1]}"
