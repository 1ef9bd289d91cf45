"""ACMIL: dazhangyu123/ACMIL, its version with gated attention."""

from __future__ import annotations

from scmil.models.official_weights.layout import (
    UNUSED,
    Choices,
    Description,
    Entry,
    Layout,
    Shapes,
    Table,
    linear,
    size,
)

REDUCTION = "dimreduction.fc1.weight"


def _describe(name: str, shapes: Shapes, _: Choices) -> Description:
    table: Table = {REDUCTION: Entry("embed.0.weight")}
    for theirs, ours in (("V.0", "V"), ("U.0", "U"), ("weights", "w")):
        table |= linear(f"attention.attention_{theirs}", f"aggregate.score.{ours}")
    branches = size(shapes, "attention.attention_weights.weight", 0)
    for number in range(branches):
        branch = linear(f"classifier.{number}.fc", f"aggregate.branch_classifiers.{number}")
        # With one branch, its classifier is not trained.
        table |= branch if branches > 1 else dict.fromkeys(branch, UNUSED)
    table |= linear("Slide_classifier.fc", "aggregate.classifier")
    settings = {
        "dim": size(shapes, REDUCTION, 1),
        "classes": size(shapes, "Slide_classifier.fc.weight", 0, 2),
        "aggregator": {
            "name": name,
            "branches": branches,
            "hidden": size(shapes, "attention.attention_V.0.weight", 0),
        },
        "embed": {"widths": [size(shapes, REDUCTION, 0)], "bias": False},
    }
    return Description(settings, table)


LAYOUTS = {"acmil": (Layout("dazhangyu123/ACMIL", "Slide_classifier.fc.weight", _describe),)}
