"""DTFD-MIL: the four state dicts of hrzhang1123/DTFD-MIL, and the module of SC-MIL's release."""

from __future__ import annotations

from scmil.errors import ModelFileError
from scmil.models.official_weights.layout import (
    Choices,
    Description,
    Layout,
    LayoutEntry,
    Shapes,
    Table,
    linear,
    size,
)
from scmil.models.official_weights.sparse_coding import sparse_coding

# A tensor of each of the four state dicts, for files that hold them as a list without names.
PARTS = {
    "fc1.weight": "dim_reduction",
    "fc.weight": "classifier",
    "attention_V.0.weight": "attention",
    "attention.attention_V.0.weight": "att_classifier",
}


def gated_attention(theirs: str, ours: str) -> Table:
    """The place of the tensors of a gated attention."""
    return {
        **linear(f"{theirs}.attention_V.0", f"{ours}.V"),
        **linear(f"{theirs}.attention_U.0", f"{ours}.U"),
        **linear(f"{theirs}.attention_weights", f"{ours}.w"),
    }


def _tiers(embed: str, tier1: str, tier2: str) -> Table:
    return {
        f"{embed}.fc1.weight": LayoutEntry("embed.0.weight"),
        **gated_attention(f"{tier1}attention", "aggregate.tier1.score"),
        **linear(f"{tier1}classifier.fc", "aggregate.tier1.classifier"),
        **gated_attention(f"{tier2}attention", "aggregate.tier2.score"),
        **linear(f"{tier2}classifier.fc", "aggregate.tier2.classifier"),
    }


def _describe_authors(name: str, shapes: Shapes, choices: Choices) -> Description:
    settings = {
        "dim": size(shapes, "dim_reduction.fc1.weight", 1),
        "classes": size(shapes, "classifier.fc.weight", 0, 2),
        "aggregator": {
            "name": name,
            "groups": choices.groups,
            "hidden": size(shapes, "attention.attention_V.0.weight", 0, 128),
        },
        "embed": {"widths": [size(shapes, "dim_reduction.fc1.weight", 0)], "bias": False},
    }
    return Description(settings, _tiers("dim_reduction", "", "att_classifier."))


def _describe_sc_mil(name: str, shapes: Shapes, choices: Choices) -> Description:
    """SC-MIL's own form, whose probabilities are one sigmoid per class."""
    if name == "dtfd-maxmin":
        raise ModelFileError(
            "SC-MIL's DTFD sorts the instances by the score of the last class alone, and scmil by "
            "its softmax, so that MaxMinS would hand on other instances. Only --as dtfd-afs gives "
            "the numbers of the authors for this checkpoint."
        )
    refine, table = sparse_coding("tier1.sc.", shapes, choices)
    embed = "tier1.dimRedunction"  # the authors' spelling
    settings = {
        "dim": size(shapes, f"{embed}.fc1.weight", 1),
        "classes": size(shapes, "tier2.classifier.fc.weight", 0, 2),
        "aggregator": {
            "name": name,
            "groups": choices.groups,
            "hidden": size(shapes, "tier1.attention.attention_V.0.weight", 0, 128),
        },
        "embed": {"widths": [size(shapes, f"{embed}.fc1.weight", 0)], "bias": False},
        "output": "sigmoid",
        **refine,
    }
    return Description(settings, table | _tiers(embed, "tier1.", "tier2."))


_BOTH = (
    Layout("hrzhang1123/DTFD-MIL", "dim_reduction.fc1.weight", _describe_authors),
    Layout("sotiraslab/SC-MIL", "tier1.dimRedunction.fc1.weight", _describe_sc_mil),
)
LAYOUTS = {"dtfd-afs": _BOTH, "dtfd-maxmin": _BOTH}
