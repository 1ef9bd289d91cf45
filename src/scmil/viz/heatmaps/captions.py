"""The texts on a heatmap sheet: slide, prediction, numbers and warnings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scmil.core.shapes import Numbers
from scmil.models.tile_scores import Scores
from scmil.stats.localisation import is_evidence

# Thresholds on the effective number of tiles: collapsed below the first two, flat above the third.
FEW, FEW_SHARE, FLAT_SHARE = 5, 0.1, 0.9
PARTS = {
    "train": "Training split: the model was trained on this slide.",
    "valid": "Validation split: the model was not trained on this slide, but selected with it.",
    "test": "Test split: the model was neither trained nor selected with this slide.",
}
PLAIN = "No slide file was given: the tiles are drawn on a plain background."
PLAIN_END = (
    "No slide file was given: the tiles are drawn on a plain background that ends with them."
)


def heading(scores: Scores, label: str | None, task: str | None = None) -> str:
    """The title: slide, label and prediction; of models with one answer, its value."""
    if len(scores.classes) == 1:
        return f"{scores.id}  ·  predicted {scores.classes[0]}: {scores.probabilities[0]:.4g}"
    predicted = predicted_words(scores.classes, scores.probabilities, scores.predicted, task)
    if not has_one_class(task):
        return f"{scores.id}  ·  predicted: {predicted}"
    verdict = "" if label is None else " (right)" if label == predicted else " (wrong)"
    return f"{scores.id}  ·  label: {label or 'unknown'}  ·  predicted: {predicted}{verdict}"


def has_one_class(task: str | None) -> bool:
    """Whether the answers are probabilities of classes or grades, one of which is predicted."""
    return task in (None, "class", "ordinal")


def predicted_words(
    classes: Sequence[str], answers: Sequence[float] | Numbers, largest: int, task: str | None
) -> str:
    """What is predicted: the class or grade, all labels that are present, or all answers.

    >>> predicted_words(["msi", "tp53"], [0.4, 0.3], 0, "multilabel")
    'none'
    >>> predicted_words(["msi", "tp53"], [0.6, 0.7], 1, "multilabel")
    'msi+tp53'
    """
    if has_one_class(task):
        return classes[largest]
    if task == "multilabel":
        present = [name for name, p in zip(classes, answers, strict=True) if p >= 0.5]
        return "+".join(present) or "none"
    return ", ".join(f"{name} {value:.4g}" for name, value in zip(classes, answers, strict=True))


def numbers(scores: Scores, mpp: float | None) -> list[str]:
    """Probabilities, number of tiles, and the effective number of tiles."""
    likely = np.argsort(-scores.probabilities, kind="stable")[:3]
    chances = ", ".join(f"{scores.classes[k]} {scores.probabilities[k]:.3f}" for k in likely)
    microns = f" ({scores.side * mpp:.4g} microns)" if mpp else ""
    return [
        f"{'Predicted' if len(scores.classes) == 1 else 'Probability'}: {chances}"
        + (
            f" (threshold {scores.threshold:.3f})."
            if len(scores.classes) == 2 and scores.threshold is not None
            else "."
        ),
        f"{len(scores):,} tiles of {scores.side:.4g} pixels{microns}. Effective number of tiles "
        f"with attention (exponential of its entropy): {scores.effective_tiles:.1f}.",
    ]


def attention_warning(effective: float, tiles: int) -> str:
    """A warning if the attention is concentrated on few tiles, or nearly uniform.

    >>> attention_warning(1.2, 500)[:39], attention_warning(480, 500)[:22]
    ('The attention has collapsed: 1.2 of 500', 'The attention is flat:')
    """
    if effective < min(FEW, FEW_SHARE * tiles):
        return (
            f"The attention has collapsed: {effective:.1f} of {tiles:,} tiles have nearly all of "
            "it. Differences between the other tiles are not informative."
        )
    if tiles > 1 and effective > FLAT_SHARE * tiles:
        return (
            f"The attention is flat: {effective:.1f} of {tiles:,} tiles share it, so pooling is "
            "close to a mean, and ranks are not informative."
        )
    return ""


def evidence_lines(scores: Scores, score: str, task: str | None = None) -> list[str]:
    """How to read the evidence for a class: the signs, the sum, and the completeness error."""
    found = scores.evidence
    if found is None or not is_evidence(score):
        return []
    name, place = evidence_class(score, scores.classes, task)
    total = found.tiles[:, place].sum(dtype=np.float64)
    if not found.tiles[:, place].any():
        return [
            f"No tile contributes to the logit of {name}, which is always "
            f"{found.constant[place]:.4g}: the model has one score for two classes. Draw the "
            "evidence for the other class."
        ]
    return [
        f"Orange tiles raise the logit of {name}, blue tiles lower it, white tiles do not change "
        "it.",
        f"Logit {found.logits[place]:.4g} = constant {found.constant[place]:.4g} + sum of the "
        f"evidence {total:.4g}; completeness error {abs(found.errors[place]):.1e} "
        f"({found.method}).",
    ]


def evidence_warning(scores: Scores, score: str, task: str | None = None) -> str:
    """A warning if the evidence does not sum to the logit."""
    found = scores.evidence
    if found is None or not is_evidence(score):
        return ""
    name, place = evidence_class(score, scores.classes, task)
    if found.is_complete(place):
        return ""
    return (
        f"The evidence does not sum to the logit of {name}: the error is "
        f"{found.errors[place]:.3g}, and the logit differs from the constant by "
        f"{found.logits[place] - found.constant[place]:.3g}. Read the map with caution."
    )


def evidence_class(score: str, classes: Sequence[str], task: str | None = None) -> tuple[str, int]:
    """The class of a score `evidence:CLASS`, the last one for `evidence`, and its position.

    Every grade has the evidence for the lowest threshold, see `models.answers`.

    >>> evidence_class("evidence", ["normal", "tumour"])
    ('tumour', 1)
    >>> evidence_class("evidence:3", ["0", "1", "2", "3"], "ordinal")
    ('1 or higher', 3)
    """
    name = score.partition(":")[2] or classes[-1]
    place = list(classes).index(name)
    return f"{classes[1]} or higher" if task == "ordinal" else name, place


def annotated(file: str, outlines: int) -> str:
    """The caption of the red outlines.

    >>> annotated("a.xml", 1), annotated("a.xml", 0)
    ('Red: 1 outline of a.xml.', 'a.xml has no regions on this slide.')
    """
    many = "1 outline" if outlines == 1 else f"{outlines} outlines"
    return f"Red: {many} of {file}." if outlines else f"{file} has no regions on this slide."


def meaning(score: str, classes: Sequence[str], task: str | None = None) -> str:
    """The definition of a score.

    >>> meaning("probability", ["normal", "tumour"]), meaning("atom:7", ["normal", "tumour"])
    ('Probability of tumour for each tile on its own', 'Code of atom 7')
    """
    kind, _, detail = score.partition(":")
    first = "Predicted" if len(classes) == 1 else "Probability of"
    if kind == "evidence":
        name, _ = evidence_class(score, classes, task)
        return f"Evidence for {name}: contribution of each tile to its logit"
    return {
        "attention": "Attention",
        "ratio": "Attention times the number of tiles (1 is average)",
        "probability": f"{first} {detail or classes[-1]} for each tile on its own",
        "lambda": "Lambda, the sparsity weight of each tile",
        "sparsity": "Fraction of atoms with code zero",
        "atom": f"Code of atom {detail}",
    }[kind]
