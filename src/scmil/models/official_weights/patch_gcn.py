"""Patch-GCN: mahmoodlab/Patch-GCN, with torch_geometric 1.6.3 or later."""

from __future__ import annotations

import re

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

FIRST = "fc.0.weight"
LAYER = re.compile(r"layers\.(\d{1,3})\.norm\.weight")


def _layer(shapes: Shapes, number: int) -> Table:
    theirs, ours = f"layers.{number}", f"aggregate.convolutions.{number}"
    old = f"{theirs}.conv.t"  # its name in torch_geometric 1.6.3
    name = old if old in shapes else f"{theirs}.conv.aggr_module.t"
    table = {name: Entry(f"{ours}.t")} | linear(f"{theirs}.conv.mlp.1", f"{ours}.norm")
    for part, own in (("0", "widen"), ("4", "narrow")):
        entries = linear(f"{theirs}.conv.mlp.{part}", f"{ours}.{own}")
        if not _has_biases(shapes):
            del entries[f"{theirs}.conv.mlp.{part}.bias"]
        table |= entries
    norm = linear(f"{theirs}.norm", f"aggregate.norms.{number - 1}")
    return table | (norm if number else dict.fromkeys(norm, UNUSED))  # the first is not applied


def _has_biases(shapes: Shapes) -> bool:
    return "layers.0.conv.mlp.0.bias" in shapes


def _describe(_: str, shapes: Shapes, __: Choices) -> Description:
    layers = len([name for name in shapes if LAYER.fullmatch(name)])
    names = {"fc.0": "embed.0", "classifier": "aggregate.classifier"}
    names |= {"path_phi.0": "aggregate.join.0", "path_rho.0": "aggregate.last.0"}
    head = "path_attention_head.attention_"
    names |= {f"{head}a.0": "aggregate.score.V", f"{head}b.0": "aggregate.score.U"}
    names[f"{head}c"] = "aggregate.score.w"
    table: Table = {}
    for theirs, ours in names.items():
        table |= linear(theirs, ours)
    for number in range(layers):
        table |= _layer(shapes, number)
    settings = {
        "dim": size(shapes, FIRST, 1),
        "classes": size(shapes, "classifier.weight", 0, 2),
        "aggregator": {"name": "patch-gcn", "layers": layers, "bias": _has_biases(shapes)},
        "embed": {"widths": [size(shapes, FIRST, 0)], "dropout": 0.25},
    }
    return Description(settings, table)


LAYOUTS = {"patch-gcn": (Layout("mahmoodlab/Patch-GCN", "path_phi.0.weight", _describe),)}
