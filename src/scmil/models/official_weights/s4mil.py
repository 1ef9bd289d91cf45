"""S4MIL: the copy in isyangshu/MambaMIL."""

from __future__ import annotations

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

FIRST = "_fc1.0.weight"
BLOCK = "s4_block.1."


def layer_table(theirs: str = BLOCK, ours: str = "aggregate.layer.") -> Table:
    """The place of the tensors of the state space layer."""
    return {
        f"{theirs}D": Entry(f"{ours}D"),
        f"{theirs}kernel.C": Entry(f"{ours}C"),
        f"{theirs}kernel.log_dt": Entry(f"{ours}log_dt"),
        f"{theirs}kernel.log_A_real": Entry(f"{ours}log_real", "flatten"),
        f"{theirs}kernel.A_imag": Entry(f"{ours}imag", "flatten"),
        f"{theirs}output_linear.0.weight": Entry(f"{ours}mix.weight", "flatten"),
        f"{theirs}output_linear.0.bias": Entry(f"{ours}mix.bias"),
    }


def _describe(_: str, shapes: Shapes, __: Choices) -> Description:
    table = layer_table() | linear("_fc1.0", "embed.0") | linear("s4_block.0", "aggregate.norm")
    table |= linear("classifier", "aggregate.classifier")
    settings = {
        "dim": size(shapes, FIRST, 1),
        "classes": size(shapes, "classifier.weight", 0, 2),
        "aggregator": {"name": "s4mil", "state": 2 * size(shapes, f"{BLOCK}kernel.C", 1)},
        "embed": {"widths": [size(shapes, FIRST, 0)]},
    }
    return Description(settings, table)


LAYOUTS = {"s4mil": (Layout("isyangshu/MambaMIL", f"{BLOCK}kernel.C", _describe),)}
