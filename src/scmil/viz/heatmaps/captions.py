"""What stands beside a map: what the slide is, what the model says, and what the map does not tell."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scmil.models.tile_scores import Scores

FEW, FEW_SHARE, FLAT_SHARE = 5, 0.1, 0.9  # effective tiles: collapsed below the first two, flat above the third
PARTS = {
    "train": "The model has learned from this slide, so that its map flatters the model.",
    "valid": "The model has not learned from this slide, but it was chosen with its help.",
    "test": "The model has not seen this slide before.",
}
PLAIN = "No slide file was given, so the tiles lie on a plain ground."
PLAIN_END = "No slide file was given, so the tiles lie on a plain ground, which ends where they end."


def heading(scores: Scores, label: str | None) -> str:
    """The slide, what it is, and what the model says."""
    said = scores.classes[scores.predicted]
    verdict = "" if label is None else " (right)" if label == said else " (wrong)"
    return f"{scores.id}  ·  label: {label or 'unknown'}  ·  the model says: {said}{verdict}"


def numbers(scores: Scores, mpp: float | None) -> list[str]:
    """Probabilities, tiles, and how many of them share the attention."""
    likely = np.argsort(-scores.probabilities, kind="stable")[:3]
    chances = ", ".join(f"{scores.classes[k]} {scores.probabilities[k]:.3f}" for k in likely)
    microns = f" ({scores.side * mpp:.4g} microns)" if mpp else ""
    return [
        f"Probability: {chances}" + (f" (threshold {scores.threshold:.3f})." if len(scores.classes) == 2 else "."),
        f"{len(scores):,} tiles of {scores.side:.4g} pixels{microns}. Effective number of tiles that share the attention "
        f"(the exponential of its entropy): {scores.effective_tiles:.1f}.",
    ]


def warning(effective: float, tiles: int) -> str:
    """Say it when the attention tells less than its picture seems to.

    >>> warning(1.2, 500)[:39], warning(480, 500)[:22], warning(90, 500)
    ('The attention has collapsed: 1.2 of 500', 'The attention is flat:', '')
    """
    if effective < min(FEW, FEW_SHARE * tiles):
        return (
            f"The attention has collapsed: {effective:.1f} of {tiles:,} tiles have nearly all of it. "
            "Differences between the other tiles mean little."
        )
    if tiles > 1 and effective > FLAT_SHARE * tiles:
        return (
            f"The attention is flat: {effective:.1f} of {tiles:,} tiles share it, so it is close to a plain mean, and "
            "its ranks mean little."
        )
    return ""


def annotated(file: str, outlines: int) -> str:
    """What the red lines are.

    >>> annotated("a.xml", 1), annotated("a.xml", 0)
    ('Red: 1 outline of a.xml.', 'a.xml marks nothing on this slide.')
    """
    many = "1 outline" if outlines == 1 else f"{outlines} outlines"
    return f"Red: {many} of {file}." if outlines else f"{file} marks nothing on this slide."


def meaning(score: str, classes: Sequence[str]) -> str:
    """What a score is, for somebody who does not know its name.

    >>> meaning("probability", ["normal", "tumour"]), meaning("atom:7", ["normal", "tumour"])
    ('Probability of tumour, of each tile alone', 'Code of atom 7')
    """
    kind, _, detail = score.partition(":")
    return {
        "attention": "Attention",
        "ratio": "Attention times the number of tiles (1 is the average)",
        "probability": f"Probability of {detail or classes[-1]}, of each tile alone",
        "lambda": "Lambda, the sparsity that each tile asks for",
        "sparsity": "Share of atoms that are zero",
        "atom": f"Code of atom {detail}",
    }[kind]
