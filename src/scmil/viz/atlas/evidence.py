"""The contribution of each atom to each class logit, per slide and over a cohort.

Behind sparse coding, the evidence of a tile is a sum over atoms (`scmil.models.evidence`). Summed
over the tiles of a slide, it is the contribution of each atom, and of each sign of its codes, to
the logit of the slide: `logit_c = constant_c + sum_k contribution_kc`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scmil.core.tables import csv_bytes
from scmil.models.evidence import TileEvidence
from scmil.stats.bootstrap import LIMITS, draw_counts
from scmil.stats.groups import group_positions
from scmil.viz.atlas.compare import DRAWS, Array


class SlideEvidence(NamedTuple):
    """The contributions (2 m, c) of the atoms in one slide: first of all positive codes, then of
    the negative ones; with constant, logits and errors (c,), and the number of steps (0: exact).
    """

    slide: str
    patient: str
    atoms: Array
    constant: Array
    logits: Array
    errors: Array
    steps: int

    @classmethod
    def of(cls, slide: str, patient: str, evidence: TileEvidence) -> SlideEvidence | None:
        """Take the contributions of the atoms; None if the evidence has none."""
        if evidence.atoms is None:
            return None
        found = evidence.atoms, evidence.constant, evidence.logits, evidence.errors
        return cls(slide, patient, *found, evidence.steps)


class CohortEvidence(NamedTuple):
    """Means over patients (2 m, c) with 95 % intervals, which are NaN for a single patient."""

    slides: tuple[SlideEvidence, ...]
    patients: int
    mean: Array
    low: Array
    high: Array

    @property
    def exact(self) -> bool:
        """Whether the contributions are exact in all slides."""
        return not any(slide.steps for slide in self.slides)

    @property
    def largest_error(self) -> float:
        """The largest completeness error of all slides and classes."""
        return max(float(np.abs(slide.errors).max()) for slide in self.slides)


def summarise_evidence(slides: Sequence[SlideEvidence], seed: int = 0) -> CohortEvidence:
    """Average the slides of each patient, then the patients, with a bootstrap over patients.

    >>> atoms, zero = np.array([[1.0, 0.0], [0.0, -2.0]]), np.zeros(2)
    >>> one = SlideEvidence("a", "p", atoms, zero, zero, zero, 0)
    >>> two = SlideEvidence("b", "q", 3 * atoms, zero, zero, zero, 0)
    >>> found = summarise_evidence([one, two])
    >>> found.mean.tolist(), found.low[0].tolist(), found.high[0].tolist()
    ([[2.0, 0.0], [0.0, -4.0]], [1.0, 0.0], [3.0, 0.0])
    """
    groups = group_positions(slide.patient for slide in slides)
    rows = np.stack(
        [np.mean([slides[i].atoms for i in own], axis=0).ravel() for own in groups.values()]
    )
    shape, n = slides[0].atoms.shape, len(rows)
    low = high = np.full(shape, np.nan)
    if n > 1:
        blocks = draw_counts(n, DRAWS, np.random.default_rng(seed))
        drawn = np.concatenate([counts @ rows / n for counts in blocks])
        low, high = (limit.reshape(shape) for limit in np.quantile(drawn, LIMITS, axis=0))
    return CohortEvidence(tuple(slides), n, rows.mean(0).reshape(shape), low, high)


def evidence_table(cohort: CohortEvidence, classes: Sequence[str], signs: Sequence[str]) -> bytes:
    """One row per slide and class: logit, constant, completeness error, and the contribution of
    each atom and sign.
    """
    m = len(cohort.mean) // 2
    names = [f"atom_{atom}{sign}" for sign in signs for atom in range(m)]
    table: list[list[Any]] = [["slide", "class", "logit", "constant", "error", *names]]
    for slide in cohort.slides:
        for place, name in enumerate(classes):
            facts = slide.logits[place], slide.constant[place], slide.errors[place]
            numbers: NDArray[np.float64] = np.concatenate([facts, slide.atoms[:, place]])
            table.append([slide.slide, name, *(f"{number:.9g}" for number in numbers.tolist())])
    return csv_bytes(table)
