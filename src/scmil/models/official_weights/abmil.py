"""ABMIL, mean and max: AMLab-Amsterdam/AttentionDeepMIL, SC-MIL's release, and MIL-Lab."""

from __future__ import annotations

from scmil.models.official_weights.dtfd import gated_attention
from scmil.models.official_weights.layout import (
    Choices,
    Description,
    Entry,
    Layout,
    Shapes,
    Table,
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
        table[REDUCTION] = Entry("embed.0.weight")
        dim, widths = size(shapes, REDUCTION, 1), [size(shapes, REDUCTION, 0)]
    settings = {
        "dim": dim,
        "classes": size(shapes, "classifier.fc.weight", 0, 2),
        "aggregator": aggregator,
        "embed": {"widths": widths, "bias": False},
        **refine,
    }
    return Description(settings, table)


def _describe_mil_lab(name: str, shapes: Shapes, _: Choices) -> Description:
    """MIL-Lab's ABMIL, the layout of FEATHER: one or more embedding layers with biases."""
    gated = name == "abmil-gated"
    attention = f"global_attn.{'attention_a' if gated else 'module'}.0"
    # A linear layer, an activation and dropout for each; the last one is in front of the attention.
    layers = [n for n in range(0, 30, 3) if f"patch_embed.{n}.weight" in shapes] or [0]
    table: Table = {}
    for place, layer in enumerate(layers):
        table |= linear(f"patch_embed.{layer}", f"embed.{2 * place}")
    table |= linear(attention, f"{SCORE}.V")
    if gated:
        table |= linear("global_attn.attention_b.0", f"{SCORE}.U")
    table |= linear(f"global_attn.{'attention_c' if gated else 'module.3'}", f"{SCORE}.w")
    table |= linear("classifier", "aggregate.classifier")
    settings = {
        "dim": size(shapes, "patch_embed.0.weight", 1),
        "classes": size(shapes, "classifier.weight", 0, 2),
        "aggregator": {"name": name, "hidden": size(shapes, f"{attention}.weight", 0)},
        "embed": {"widths": [size(shapes, f"patch_embed.{layer}.weight", 0) for layer in layers]},
    }
    return Description(settings, table)


_RELEASE = "sotiraslab/SC-MIL"
_MIL_LAB = "mahmoodlab/MIL-Lab"
_AUTHORS = Layout(
    "AMLab-Amsterdam/AttentionDeepMIL", "feature_extractor_part2.0.weight", _describe_authors
)
_POOLING = (Layout(_RELEASE, "classifier.fc.weight", _describe_sc_mil),)
LAYOUTS = {
    "abmil": (
        _AUTHORS,
        Layout(_RELEASE, "attn.attention.0.weight", _describe_sc_mil),
        Layout(_MIL_LAB, "global_attn.module.0.weight", _describe_mil_lab),
    ),
    "abmil-gated": (
        _AUTHORS,
        Layout(_RELEASE, "attn.attention_V.0.weight", _describe_sc_mil),
        Layout(_MIL_LAB, "global_attn.attention_a.0.weight", _describe_mil_lab),
    ),
    "mean": _POOLING,
    "max": _POOLING,
}
