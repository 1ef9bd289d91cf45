"""The sparse coding layer of SC-MIL's release."""

from __future__ import annotations

from typing import Any

from scmil.models.official_weights.layout import (
    Choices,
    LayoutEntry,
    Shapes,
    Table,
    has,
    linear,
    size,
)


def layer_table(prefix: str = "", ours: str = "") -> Table:
    """The place of every tensor of a released layer."""
    table = {
        f"{prefix}Dict": LayoutEntry(f"{ours}dictionary"),
        f"{prefix}c": LayoutEntry(f"{ours}mu"),
        f"{prefix}soft_comp": LayoutEntry(f"{ours}zeros"),
        f"{prefix}Identity": LayoutEntry(f"{ours}identity"),
    }
    for number in (0, 1, 3, 4, 6):  # linear layers and layer norms; Softplus has no weights
        table |= linear(f"{prefix}lam_layer.mlp.{number}", f"{ours}network.{number}")
    return table


def sparse_coding(prefix: str, shapes: Shapes, choices: Choices) -> tuple[dict[str, Any], Table]:
    """The settings and the table of the released layer, both empty if a checkpoint has none."""
    if not has(shapes, prefix):
        return {}, {}
    options = {"atoms": size(shapes, f"{prefix}Dict", 1), "layers": choices.sc_layers}
    return {"refine": "released", "sparse_coding": options}, layer_table(prefix, "refine.")
