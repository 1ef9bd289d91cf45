"""The spread of a tile score over several models, such as those of a cross-validation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scmil.errors import DataError
from scmil.models.score_files import ScoreSet
from scmil.models.tile_scores import Scores
from scmil.viz.drawing.colour_scale import Numbers

PREFIX = "spread:"  # of the name of a layer: spread:attention


def scores_of_others(scores: Scores, others: Sequence[ScoreSet]) -> list[Scores]:
    """The scores that further models have for the tiles of a slide.

    Args:
        scores: The scores of the first model for the slide.
        others: The scores of further models.

    Returns:
        The scores of each further model.

    Raises:
        DataError: A model has not scored the slide, or has scored other tiles of it.
    """
    found = []
    for other in others:
        if scores.id not in other:
            raise DataError(
                f"{other.folder} has no scores of slide {scores.id!r}. Score the same bags with "
                "every model."
            )
        found.append(other[scores.id])
        if not np.array_equal(found[-1].xy, scores.xy):
            raise DataError(
                f"{other.folder} has other tiles of slide {scores.id!r}. Give models that "
                "score the same bags."
            )
    return found


def spread_of(every: Sequence[Scores], score: str) -> Numbers:
    """The standard deviation of the score of each tile over at least two models; the divisor is
    the number of models less one.
    """
    return np.asarray(np.std([scores.of(score) for scores in every], axis=0, ddof=1))
