"""EfficientNet-Lite0; its ImageNet weights are part of a Python package, without a download."""

from __future__ import annotations

import re

from scmil.encoding.encoders.weights import State

STAGES = (1, 2, 2, 3, 3, 4, 1)  # blocks per stage; the file numbers all blocks consecutively
FIRST = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
OTHERS = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}
OUTSIDE = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2"}


def to_timm(state: State) -> State:
    """Rename weights as in timm; unknown names are kept, and rejected later.

    >>> from torch import Tensor
    >>> state = {name: Tensor() for name in ("_blocks.2._bn0.bias", "_bn0.bias", "_fc.bias")}
    >>> list(to_timm(state))
    ['blocks.1.1.bn1.bias', 'bn1.bias', '_fc.bias']
    """
    return {_rename(name): value for name, value in state.items()}


def _rename(name: str) -> str:
    places = [
        f"blocks.{stage}.{block}" for stage, blocks in enumerate(STAGES) for block in range(blocks)
    ]
    if hit := re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", name):
        position, layer, tensor = int(hit[1]), hit[2], hit[3]
        layers = OTHERS if position else FIRST
        return (
            f"{places[position]}.{layers[layer]}.{tensor}"
            if layer in layers and position < len(places)
            else name
        )
    layer, _, tensor = name.partition(".")
    return f"{OUTSIDE[layer]}.{tensor}" if layer in OUTSIDE else name
