"""TransMIL: szc19990412/TransMIL, and the copy in SC-MIL's release."""

from __future__ import annotations

from scmil.models.official_weights.layout import (
    Choices,
    Description,
    Layout,
    LayoutEntry,
    Shapes,
    linear,
    size,
)
from scmil.models.official_weights.sparse_coding import sparse_coding


def _describe(_: str, shapes: Shapes, choices: Choices) -> Description:
    refine, table = sparse_coding("sc.", shapes, choices)
    table |= linear("_fc1.0", "embed.0") | linear("_fc2", "aggregate.classifier")
    table |= {"cls_token": LayoutEntry("aggregate.token", "flatten")}
    norms = ("layer1.norm", "layer2.norm", "norm")
    for number, name in enumerate(norms):
        table |= linear(name, f"aggregate.norms.{number}")
    for number, name in enumerate(("proj", "proj1", "proj2")):
        table |= linear(f"pos_layer.{name}", f"aggregate.position.convolutions.{number}")
    for theirs, ours in (("layer1", "first"), ("layer2", "second")):
        table |= linear(f"{theirs}.attn.to_out.0", f"aggregate.{ours}.to_out.0")
        for name, own in (("to_qkv", "to_qkv"), ("res_conv", "residual")):
            table[f"{theirs}.attn.{name}.weight"] = LayoutEntry(f"aggregate.{ours}.{own}.weight")
    settings = {
        "dim": size(shapes, "_fc1.0.weight", 1),
        "classes": size(shapes, "_fc2.weight", 0, 2),
        "aggregator": {
            "name": "transmil",
            "heads": size(shapes, "layer1.attn.res_conv.weight", 0, 8),
        },
        "embed": {"widths": [size(shapes, "_fc1.0.weight", 0)]},
        **refine,
    }
    return Description(settings, table)


LAYOUTS = {
    "transmil": (Layout("szc19990412/TransMIL, or sotiraslab/SC-MIL", "_fc1.0.weight", _describe),)
}
