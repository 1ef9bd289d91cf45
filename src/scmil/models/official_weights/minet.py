"""The four MI-Nets of yanyongluan/MINNs, exported from Keras.

Keras names its layers by a running number, so the export has to name them: `fc.0` to `fc.2` are the
dense layers (weight: outputs x inputs), `head.N` the output layers, with `kernel` as Keras stores
it (inputs x outputs) or `weight` as torch does.
"""

from __future__ import annotations

from typing import Any

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


def _head(number: int, ours: str, shapes: Shapes) -> Table:
    if f"head.{number}.weight" in shapes:
        return linear(f"head.{number}", ours)
    return {
        f"head.{number}.kernel": LayoutEntry(f"{ours}.weight", "transpose"),
        f"head.{number}.bias": LayoutEntry(f"{ours}.bias"),
    }


def _describe(name: str, shapes: Shapes, choices: Choices) -> Description:
    settings: dict[str, Any] = {
        "dim": size(shapes, "fc.0.weight", 1),
        "classes": 2,
        "aggregator": {"name": name, "pooling": choices.pooling},
    }
    inside = name in ("mi-net-ds", "mi-net-rc")  # their layers belong to the aggregator
    if not inside:
        settings["embed"] = {"widths": [size(shapes, f"fc.{n}.weight", 0) for n in range(3)]}
    table: Table = {}
    for number in range(3):
        ours = f"aggregate.tapped.layers.{number}" if inside else f"embed.{2 * number}"
        table |= linear(f"fc.{number}", ours)
    if name == "mi-net-ds":
        for number in range(3):
            table |= _head(number, f"aggregate.classifiers.{number}", shapes)
    else:
        table |= _head(0, "aggregate.classifier", shapes)
    return Description(settings, table)


_KERAS = (Layout("yanyongluan/MINNs", "fc.0.weight", _describe),)
LAYOUTS = dict.fromkeys(("mi-net-instance", "mi-net", "mi-net-ds", "mi-net-rc"), _KERAS)
