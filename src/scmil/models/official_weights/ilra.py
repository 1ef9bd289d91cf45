"""ILRA-MIL: jinxixiang/low_rank_wsi."""

from __future__ import annotations

import re

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

LATENT = re.compile(r"gab_blocks\.(\d{1,3})\.latent")
HEADS = 8  # in all configurations of the authors; no tensor tells it


def _block(theirs: str, ours: str, gated: bool) -> Table:
    """The place of the tensors of one attention block."""
    table = {
        f"{theirs}.multihead_attn.{name}": LayoutEntry(f"{ours}.attention.{name}")
        for name in ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")
    }
    names = {"fc_q": "q", "fc_k": "k", "fc_v": "v", "fc_o": "o", "ln0": "norm1", "ln1": "norm2"}
    if gated:
        names["gate.0"] = "gate"
    for name, own in names.items():
        table |= linear(f"{theirs}.{name}", f"{ours}.{own}")
    return table


def _describe(_: str, shapes: Shapes, __: Choices) -> Description:
    layers = len([name for name in shapes if LATENT.fullmatch(name)])
    table: Table = {"pooling.S": LayoutEntry("aggregate.query", "flatten")}
    table |= linear("classifier", "aggregate.classifier")
    table |= _block("pooling.mha", "aggregate.pool", gated=False)
    for number in range(layers):
        theirs, ours = f"gab_blocks.{number}", f"aggregate.layers.{number}"
        table[f"{theirs}.latent"] = LayoutEntry(f"{ours}.latent", "flatten")
        table |= _block(f"{theirs}.project_forward", f"{ours}.gather", gated=True)
        table |= _block(f"{theirs}.project_backward", f"{ours}.scatter", gated=True)
    settings = {
        "dim": size(shapes, "gab_blocks.0.project_forward.fc_k.weight", 1),
        "classes": size(shapes, "classifier.weight", 0, 2),
        "aggregator": {
            "name": "ilra",
            "rank": size(shapes, "gab_blocks.0.latent", 1),
            "width": size(shapes, "gab_blocks.0.latent", 2, HEADS),
            "heads": HEADS,
            "layers": layers,
        },
    }
    return Description(settings, table)


LAYOUTS = {"ilra": (Layout("jinxixiang/low_rank_wsi", "gab_blocks.0.latent", _describe),)}
