"""ABMIL, mean and max: AMLab-Amsterdam/AttentionDeepMIL, and SC-MIL's release."""

from __future__ import annotations

from scmil.models.official_weights.dtfd import gated_attention
from scmil.models.official_weights.layout import (
    Choices,
    Description,
    Layout,
    LayoutEntry,
    Shapes,
    has,
    linear,
    size,
)
from scmil.models.official_weights.sparse_coding import sparse_coding

SCORE = "aggregate.score"
REDUCTION = "dimReduction.fc1.weight"


def _describe_authors(name: str, shapes: Shapes, _: Choices) -> Description:
    """The part of the network behind the convolutions: bags of features, one sigmoid score."""
    table = linear("feature_extractor_part2.0", "embed.0")
    if name == "abmil-gated":
        table |= linear("attention_V.0", f"{SCORE}.V") | linear("attention_U.0", f"{SCORE}.U")
        old = has(shapes, "attention_weights.")  # its name in early versions
        table |= linear("attention_weights" if old else "attention_w", f"{SCORE}.w")
    else:
        table |= linear("attention.0", f"{SCORE}.V") | linear("attention.2", f"{SCORE}.w")
    table |= linear("classifier.0", "aggregate.classifier", "second row")
    first = "attention_V.0.weight" if name == "abmil-gated" else "attention.0.weight"
    settings = {
        "dim": size(shapes, "feature_extractor_part2.0.weight", 1),
        "classes": 2,
        "aggregator": {"name": name, "hidden": size(shapes, first, 0)},
        "embed": {"widths": [size(shapes, "feature_extractor_part2.0.weight", 0)]},
    }
    return Description(settings, table)


def _describe_sc_mil(name: str, shapes: Shapes, choices: Choices) -> Description:
    refine, table = sparse_coding("sc.", shapes, choices)
    aggregator: dict[str, object] = {"name": name}
    if name == "abmil-gated":
        table |= gated_attention("attn", SCORE)
        aggregator["hidden"] = size(shapes, "attn.attention_V.0.weight", 0)
    elif name == "abmil":
        table |= linear("attn.attention.0", f"{SCORE}.V")
        table |= linear("attn.attention.2", f"{SCORE}.w")
        aggregator["hidden"] = size(shapes, "attn.attention.0.weight", 0)
    table |= linear("classifier.fc", "aggregate.classifier")
    dim = size(shapes, "sc.Dict", 0) if refine else size(shapes, "classifier.fc.weight", 1)
    widths: list[int] = []
    if has(shapes, REDUCTION):
        table[REDUCTION] = LayoutEntry("embed.0.weight")
        dim, widths = size(shapes, REDUCTION, 1), [size(shapes, REDUCTION, 0)]
    settings = {
        "dim": dim,
        "classes": size(shapes, "classifier.fc.weight", 0, 2),
        "aggregator": aggregator,
        "embed": {"widths": widths, "bias": False},
        **refine,
    }
    return Description(settings, table)


_RELEASE = "sotiraslab/SC-MIL"
_AUTHORS = Layout(
    "AMLab-Amsterdam/AttentionDeepMIL", "feature_extractor_part2.0.weight", _describe_authors
)
_POOLING = (Layout(_RELEASE, "classifier.fc.weight", _describe_sc_mil),)
LAYOUTS = {
    "abmil": (_AUTHORS, Layout(_RELEASE, "attn.attention.0.weight", _describe_sc_mil)),
    "abmil-gated": (_AUTHORS, Layout(_RELEASE, "attn.attention_V.0.weight", _describe_sc_mil)),
    "mean": _POOLING,
    "max": _POOLING,
}
