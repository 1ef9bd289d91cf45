"""Count over many slides how each atom is used: its tiles, its use by class, its attention, and the
atoms that occur with it.

Codes are positive or negative, which are two different patterns. So each atom has two signs; both
are tested, and the atlas shows the one that separates the classes better. `opposite` is how often
the other one is used.

Slides are read one at a time. Only sums of size (2 atoms)², the strongest tiles of each sign, and
one row of fractions per slide are kept in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scmil.core.jobs.failure_log import record_failure
from scmil.errors import DataError, OptionError
from scmil.models.tile_scores import Scores
from scmil.stats.groups import group_positions
from scmil.stats.significance import holm
from scmil.viz.atlas.atom import SIGNS, Atlas, Atom, Partner, Tile, contribution_of
from scmil.viz.atlas.compare import Array, ClassComparison, compare_use
from scmil.viz.atlas.evidence import CohortEvidence, SlideEvidence, summarise_evidence

ROWS = 4096  # tiles at a time; a block of dense codes has that many rows
ALIKE = 0.95  # cosine or correlation from which two atoms are one
PARTNERS = 3


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
    """Count over all slides how each atom is used; `seed` is that of the bootstrap.

    `labels` and `patients` replace those of the scores. Slides without a label are counted but not
    compared; the slides of a patient are compared as one. At most `per_slide` tiles of a slide are
    shown for an atom, so that the tiles come from several slides. With `dictionary` (p, atoms),
    duplicates are also found by the columns of the dictionary.

    >>> import torch
    >>> from scmil import Bag, build_model
    >>> from scmil.models.tile_scores import score_bag
    >>> model = build_model(16, 2, "abmil", sparse_coding={"atoms": 8}, embed=[16], seed=0)
    >>> bag = Bag("slide", torch.eye(9, 16), xy=torch.tensor([[256 * i, 0] for i in range(9)]))
    >>> scores = score_bag(model, bag, ("normal", "tumour"))
    >>> atlas = build_atlas({"slide": scores}, tiles=2)
    >>> len(atlas.atoms), atlas.tiles, len(atlas.ranked[0].tiles)
    (8, 9, 2)
    """
    if min(tiles, per_slide) < 1:
        raise OptionError(
            f"tiles = {tiles}, per_slide = {per_slide}, expected at least 1. Choose larger numbers."
        )
    sums: _Sums | None = None
    failed: dict[str, str] = {}
    for position, slide_id in enumerate(scores, start=1):
        with record_failure(slide_id, failed):
            slide = scores[slide_id]
            if slide.codes is None:
                raise OptionError(
                    "the model has no sparse coding layer, so there are no atoms. "
                    "Train a model with --sc."
                )
            sums = sums or _Sums(slide.codes.atoms, slide.classes, tiles, per_slide)
            sums.add(
                slide,
                slide.label if labels is None else labels.get(slide_id),
                slide.patient if patients is None else patients.get(slide_id),
            )
        if progress:
            progress(position)
    if sums is None:
        causes = "; ".join(failed.values())
        raise DataError(
            "there are no tile scores for an atlas. "
            f"{causes or 'Score slides first: scmil heatmap.'}"
        )
    return _assemble_atlas(sums, dictionary, seed, failed)


class _Sums:
    """Sums over the tiles of all slides, for each sign of each atom (first all +, then all -)."""

    def __init__(self, atoms: int, classes: tuple[str, ...], tiles: int, per_slide: int) -> None:
        self.atoms, self.classes, self.keep, self.per_slide = atoms, classes, tiles, per_slide
        self.tiles = 0
        self.uses, self.strength, self.attended = np.zeros((3, 2 * atoms))
        self.gram = np.zeros((2 * atoms, 2 * atoms))
        self.by_class = np.zeros((len(classes), 2 * atoms))
        self.shares: list[NDArray[np.float32]] = []  # per slide, the fraction of tiles that use it
        self.labels: list[int | None] = []
        self.owners: list[str] = []
        self.best: list[list[Tile]] = [[] for _ in range(2 * atoms)]
        self.evidence: list[SlideEvidence | None] = []

    def add(self, scores: Scores, label: int | None, patient: str | None) -> None:
        """Count one slide."""
        if scores.codes is None or scores.codes.atoms != self.atoms:
            actual = 0 if scores.codes is None else scores.codes.atoms
            raise DataError(
                f"slide {scores.id!r} has codes of {actual} atoms, expected {self.atoms} as in "
                "other slides. Score the slides again: scmil heatmap."
            )
        ratio, uses = scores.of("ratio"), np.zeros(2 * self.atoms)
        strongest = _Strongest(2 * self.atoms, self.per_slide)
        for start, block in _code_blocks(scores):
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
        self.evidence.append(
            None
            if scores.evidence is None
            else SlideEvidence.of(scores.id, self.owners[-1], scores.evidence)
        )
        for side in np.flatnonzero(uses).tolist():
            sign = 1 if side < self.atoms else -1
            found = [_make_tile(scores, tile, sign * value) for tile, value in strongest.of(side)]
            self.best[side] = sorted([*self.best[side], *found], key=lambda tile: -abs(tile.code))[
                : self.keep
            ]


def _code_blocks(scores: Scores) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Blocks of rows of |code| with a column per sign."""
    assert scores.codes is not None  # checked by the caller
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
    """The strongest tiles of one slide for each sign of each atom; updated block by block."""

    def __init__(self, sides: int, count: int) -> None:
        self.count = count
        self.values: NDArray[np.float32] = np.zeros((0, sides), np.float32)
        self.tiles: NDArray[np.int64] = np.zeros((0, sides), np.int64)

    def add(self, block: NDArray[np.float32], start: int) -> None:
        """Update with the rows of a block, whose first row is tile `start`."""
        best = np.argpartition(-block, min(self.count, len(block)) - 1, axis=0)[: self.count]
        values = np.concatenate([self.values, np.take_along_axis(block, best, 0)])
        tiles = np.concatenate([self.tiles, best + start])
        order = np.lexsort((tiles, -values), axis=0)[: self.count]
        self.values, self.tiles = (
            np.take_along_axis(values, order, 0),
            np.take_along_axis(tiles, order, 0),
        )

    def of(self, side: int) -> Iterator[tuple[int, float]]:
        """The tiles and their |code|, the strongest first."""
        used = self.values[:, side] > 0
        yield from zip(
            self.tiles[used, side].tolist(), self.values[used, side].tolist(), strict=True
        )


def _make_tile(scores: Scores, tile: int, code: float) -> Tile:
    x, y = scores.xy[tile].tolist()
    return Tile(scores.id, x, y, scores.side, round(float(code), 4))


def _assemble_atlas(
    sums: _Sums, dictionary: NDArray[Any] | None, seed: int, failed: Mapping[str, str]
) -> Atlas:
    shares, labels = _mean_shares_by_patient(sums)
    present = [int(label) for label in np.unique(labels)]
    compared, corrected = None, None
    if len(present) > 1:
        compared = compare_use(shares, labels, seed)
        corrected = np.ones(2 * sums.atoms)
        used = sums.uses > 0
        corrected[used] = holm(compared.p[used])
    contributed = [slide for slide in sums.evidence if slide is not None]
    evidence = summarise_evidence(contributed, seed) if contributed else None
    rows = _Rows(
        sums,
        shares,
        labels,
        compared,
        corrected,
        _find_duplicates(sums, dictionary),
        _gram_cosines(sums.gram),
        evidence,
    )
    counts = {sums.classes[label]: int((labels == label).sum()) for label in present}
    atoms = tuple(rows.atom(atom) for atom in range(sums.atoms))
    return Atlas(atoms, sums.classes, len(sums.shares), sums.tiles, counts, dict(failed), evidence)


def _mean_shares_by_patient(sums: _Sums) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Average the slides of a patient with the same label, because they are not independent."""
    pairs = group_positions(zip(sums.owners, sums.labels, strict=True))
    units = {pair: positions for pair, positions in pairs.items() if pair[1] is not None}
    rows = [np.mean([sums.shares[i] for i in positions], axis=0) for positions in units.values()]
    empty = np.zeros((0, 2 * sums.atoms))
    return np.asarray(rows, np.float64) if rows else empty, np.array(
        [label for _, label in units], np.int64
    )


def _gram_cosines(gram: Array) -> Array:
    length = np.sqrt(np.diag(gram))
    cosines: Array = gram / np.maximum(np.outer(length, length), np.finfo(float).tiny)
    return cosines


def _find_duplicates(sums: _Sums, dictionary: NDArray[Any] | None) -> dict[int, int]:
    """Map atoms to the more frequently used atom that they duplicate: parallel columns of the
    dictionary, or correlated codes.
    """
    m, n = sums.atoms, sums.tiles
    signs = np.concatenate([np.ones(m), -np.ones(m)])
    signed = (sums.gram * np.outer(signs, signs)).reshape(2, m, 2, m).sum((0, 2))
    mean = (sums.strength * signs).reshape(2, m).sum(0) / n
    alike = np.abs(_gram_cosines(signed - n * np.outer(mean, mean)))
    if dictionary is not None:
        if dictionary.shape[1] != m:
            raise DataError(
                f"the dictionary has {dictionary.shape[1]} atoms, but the codes have {m}. "
                "Score the slides again: scmil heatmap."
            )
        columns = dictionary.astype(np.float64)
        alike = np.maximum(alike, np.abs(_gram_cosines(columns.T @ columns)))
    uses = sums.uses.reshape(2, m).sum(0)
    kept: list[int] = []
    duplicates: dict[int, int] = {}
    for atom in np.lexsort((np.arange(m), -uses)).tolist():
        original = next((other for other in kept if alike[atom, other] > ALIKE), None)
        if uses[atom] and original is not None:
            duplicates[atom] = original
        else:
            kept.append(atom)
    return duplicates


class _Rows(NamedTuple):
    """Everything from which the rows of the atlas are computed."""

    sums: _Sums
    shares: Array
    labels: NDArray[np.int64]
    compared: ClassComparison | None
    corrected: Array | None
    duplicates: Mapping[int, int]
    cosines: Array
    evidence: CohortEvidence | None

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
            by_class={
                name: _round(self.shares[self.labels == label, side].mean())
                for label, name in names.items()
            },
            use_by_class={
                name: _round(sums.by_class[label, side] / max(used, 1))
                for label, name in names.items()
            },
            attention=_round(sums.attended[side] / sums.strength[side]),
            together=self._together(side),
            duplicate_of=self.duplicates.get(atom),
            tiles=tuple(sums.best[side]),
            **self._contributions(side, other),
        )
        return row if self.compared is None else _with_comparison(row, self, side)

    def _contributions(self, side: int, other: int) -> dict[str, Any]:
        """The contributions of both signs of an atom to the logits."""
        if self.evidence is None:
            return {}
        named = list(enumerate(self.sums.classes))
        return {
            "evidence": {name: contribution_of(self.evidence, side, at) for at, name in named},
            "evidence_opposite": {
                name: _round(self.evidence.mean[other, at]) for at, name in named
            },
        }

    def _sides(self, atom: int) -> tuple[int, int]:
        """The columns of both signs: first the one that separates the classes better, or without
        labels the stronger one.
        """
        plus, minus = atom, atom + self.sums.atoms
        if self.compared is None:
            ahead = self.sums.strength[plus] >= self.sums.strength[minus]
        else:
            ranks = {
                side: (
                    not self.sums.uses[side],
                    self.compared.p[side],
                    -abs(self.compared.difference[side]),
                )
                for side in (plus, minus)
            }
            ahead = ranks[plus] <= ranks[minus]
        return (plus, minus) if ahead else (minus, plus)

    def _together(self, side: int) -> tuple[Partner, ...]:
        m = self.sums.atoms
        close = self.cosines[side].copy()
        close[[side % m, side % m + m]] = 0
        order = np.lexsort((np.arange(2 * m), -close))[:PARTNERS]
        return tuple(
            Partner(int(other) % m, SIGNS[int(other) // m]) for other in order if close[other] > 0
        )


def _with_comparison(row: Atom, rows: _Rows, side: int) -> Atom:
    assert rows.compared is not None  # checked by the caller
    assert rows.corrected is not None  # computed together
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
