"""Scores of slides with given or random codes, for the tests of the atlas."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scmil.models.tile_scores import Codes, Scores

CLASSES = ("normal", "tumour")


def slide(
    slide_id: str, codes: list[list[float]], label: int | None = None, **facts: object
) -> Scores:
    """A slide with these codes, one row per tile."""
    n = len(codes)
    scores = Scores(
        id=slide_id,
        xy=np.array([(100 * i, 7) for i in range(n)]),
        side=100.0,
        slide_size=None,
        slide_mpp=0.5,
        label=label,
        patient=None,
        classes=CLASSES,
        probabilities=np.array([0.5, 0.5]),
        threshold=0.5,
        attention=np.full(n, 1 / n, np.float32),
        instance=np.full((n, 2), 0.5, np.float32),
        lam=np.ones(n, np.float32),
        codes=Codes.of(np.array(codes)),
    )
    return replace(scores, **facts)  # type: ignore[arg-type]


def cohort(*slides: Scores) -> dict[str, Scores]:
    """Slides by their ids."""
    return {scores.id: scores for scores in slides}


def random_slides(
    count: int = 20, tiles: int = 30, atoms: int = 6, shift: float = 0.6
) -> dict[str, Scores]:
    """Random slides; tumour slides use atom 2 with a positive sign more often."""
    generator = np.random.default_rng(0)
    slides = []
    for i in range(count):
        codes = generator.normal(size=(tiles, atoms)) * (generator.random((tiles, atoms)) < 0.4)
        if i % 2:
            more = generator.random(tiles) < shift
            codes[more, 2] = generator.uniform(0.5, 2, more.sum())
        slides.append(slide(f"s{i:02}", codes.tolist(), i % 2))
    return cohort(*slides)
