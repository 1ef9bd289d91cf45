"""The transformer of STAMP: KatherLab/STAMP."""

from __future__ import annotations

import re

from scmil.models.official_weights.layout import (
    Choices,
    Description,
    Entry,
    Layout,
    Shapes,
    Table,
    linear,
    size,
)

FIRST = "project_features.0.weight"
LAYER = re.compile(r"transformer\.layers\.(\d{1,3})\.0\.mhsa\.in_proj_weight")


def _layer(theirs: str, ours: str) -> Table:
    table = {
        f"{theirs}.0.mhsa.in_proj_{part}": Entry(f"{ours}.to_qkv.{part}")
        for part in ("weight", "bias")
    }
    names = {"0.norm": "norms.0", "0.mhsa.out_proj": "to_out"}
    names |= {"1.0": "norms.1", "1.1": "widen", "1.4": "narrow"}
    for name, own in names.items():
        table |= linear(f"{theirs}.{name}", f"{ours}.{own}")
    return table


def _describe(_: str, shapes: Shapes, __: Choices) -> Description:
    layers = len([name for name in shapes if LAYER.fullmatch(name)])
    table: Table = {"class_token": Entry("aggregate.token", "flatten")}
    table |= linear("project_features.0", "embed.0")
    table |= linear("transformer.norm", "aggregate.norm")
    table |= linear("mlp_head.0", "aggregate.classifier")
    for number in range(layers):
        table |= _layer(f"transformer.layers.{number}", f"aggregate.layers.{number}")
    settings = {
        "dim": size(shapes, FIRST, 1),
        "classes": size(shapes, "mlp_head.0.weight", 0, 2),
        "aggregator": {
            "name": "transformer",
            "layers": layers,
            "feedforward": size(shapes, "transformer.layers.0.1.1.weight", 0),
        },
        "embed": {"widths": [size(shapes, FIRST, 0)], "activation": "gelu"},
    }
    return Description(settings, table)


LAYOUTS = {"transformer": (Layout("KatherLab/STAMP", FIRST, _describe),)}
