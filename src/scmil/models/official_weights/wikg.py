"""WiKG: WonderLandxD/WiKG, with its default aggregation and readout."""

from __future__ import annotations

from scmil.models.official_weights.layout import (
    UNUSED,
    Choices,
    Description,
    Layout,
    Shapes,
    linear,
    size,
)

FIRST = "_fc1.0.weight"


def _describe(_: str, shapes: Shapes, __: Choices) -> Description:
    names = {"W_head": "to_head", "W_tail": "to_tail", "linear1": "of_sum", "linear2": "of_product"}
    names |= {"norm": "norm", "fc": "classifier"}
    names |= {"readout.gate_nn.0": "score.0", "readout.gate_nn.2": "score.2"}
    table = linear("_fc1.0", "embed.0")
    for theirs, ours in names.items():
        table |= linear(theirs, f"aggregate.{ours}")
    for gate in ("gate_U", "gate_V", "gate_W"):  # nothing uses them
        table |= {f"{gate}.{part}": UNUSED for part in ("weight", "bias")}
    settings = {
        "dim": size(shapes, FIRST, 1),
        "classes": size(shapes, "fc.weight", 0, 2),
        "aggregator": {"name": "wikg"},
        "embed": {"widths": [size(shapes, FIRST, 0)], "activation": "leaky-relu"},
    }
    return Description(settings, table)


LAYOUTS = {"wikg": (Layout("WonderLandxD/WiKG", "W_head.weight", _describe),)}
