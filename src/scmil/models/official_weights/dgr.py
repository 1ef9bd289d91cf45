"""DGR-MIL: ChongQingNoSubway/DGR-MIL."""

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

CROSS = "crossattention.attn"


def _describe(name: str, shapes: Shapes, _: Choices) -> Description:
    table: Table = {
        "lesionRrepresentation": Entry("aggregate.vectors", "flatten"),
        "token": Entry("aggregate.token", "flatten"),
        "normalcenter": Entry("aggregate.centres", "row 0"),
        "postivecenter": Entry("aggregate.centres", "row 1"),
        f"{CROSS}.compress_k.weight": UNUSED,
        f"{CROSS}.compress_v.weight": UNUSED,
    }
    for number, layer in enumerate(("fc1", "fc2")):
        table |= linear(f"triple_optimizer.{layer}", f"aggregate.network.{number}")
    for theirs, kind in (("encoder_instances", "instances"), ("encoder_globalLesion", "vectors")):
        ours = f"aggregate.encoders.{kind}"
        table |= linear(f"{theirs}.0.norm", f"{ours}.0") | linear(f"{theirs}.1", f"{ours}.2")
        table |= linear(f"{theirs}.0.attn.to_out.0", f"{ours}.1.to_out.0")
        for old, new in (("to_qkv", "to_qkv"), ("res_conv", "residual")):
            table[f"{theirs}.0.attn.{old}.weight"] = Entry(f"{ours}.1.{new}.weight")
    for old, new in (
        ("q_proj", "query"),
        ("k_proj", "key"),
        ("v_proj", "value"),
        ("out_proj", "out"),
    ):
        table |= linear(f"{CROSS}.{old}", f"aggregate.{new}")
    table |= linear("crossffn.0", "aggregate.ending.0") | linear("crossffn.1", "aggregate.ending.1")
    table |= linear("classifier.0", "aggregate.classifier")
    settings = {
        "dim": size(shapes, "triple_optimizer.fc1.weight", 1),
        "classes": size(shapes, "classifier.0.weight", 0, 2),
        "aggregator": {
            "name": name,
            "vectors": size(shapes, "lesionRrepresentation", 1),
            "width": size(shapes, "triple_optimizer.fc1.weight", 0),
            "heads": size(shapes, "encoder_instances.0.attn.res_conv.weight", 0, 8),
        },
        "output": "sigmoid",
    }
    return Description(settings, table)


LAYOUTS = {"dgr-mil": (Layout("ChongQingNoSubway/DGR-MIL", "lesionRrepresentation", _describe),)}
