"""CTransPath (Wang et al., 2022): Swin-T on a stem of convolutions, trained without labels on TCGA and PAIP.

The authors' file was written by a changed timm 0.5.4. Loaded leniently into an ordinary Swin it leaves a random stem;
here the stem is built, and every weight of the file must have its place.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from scmil.encoding.encoders import Card, register
from scmil.encoding.encoders.timm_any import timm
from scmil.encoding.encoders.weights import Checkpoint, State

# The head for a task, and buffers that are computed when the network is built.
IGNORES = r"head\.|.*\.(attn_mask|relative_position_index)$"


class ConvStem(nn.Module):
    """Tiles (b, 3, h, w) to tokens (b, h / 4, w / 4, dim): two convolutions of stride 2, then one of a single pixel.

    >>> import torch
    >>> ConvStem(img_size=224, embed_dim=96)(torch.zeros(1, 3, 224, 224)).shape
    torch.Size([1, 56, 56, 96])
    """

    def __init__(self, img_size: int, embed_dim: int, norm_layer: Any = nn.LayerNorm, **unused: Any) -> None:
        super().__init__()
        self.grid_size = (img_size // 4, img_size // 4)
        widths = (3, embed_dim // 8, embed_dim // 4)
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        self.proj = nn.Sequential(*layers, nn.Conv2d(widths[-1], embed_dim, 1))
        self.norm = norm_layer(embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens with their channels last."""
        return self.norm(self.proj(x).permute(0, 2, 3, 1))


def to_current_timm(state: State) -> State:
    """timm 0.5.4 counted the merging of patches to the stage before it, the current one to the stage behind it.

    >>> list(to_current_timm({"layers.0.downsample.norm.bias": Tensor(), "norm.bias": Tensor()}))
    ['layers.1.downsample.norm.bias', 'norm.bias']
    """
    if not any(name.startswith("layers.0.downsample.") for name in state):
        return state  # the first stage has none in the current one: these names are current
    shift = re.compile(r"layers\.(\d)\.downsample\.")
    return {shift.sub(lambda hit: f"layers.{int(hit[1]) + 1}.downsample.", name): state[name] for name in state}


@register(
    "ctranspath",
    "CTransPath: Swin-T on a convolutional stem, TCGA and PAIP",
    Card(
        dim=768,
        checkpoint=Checkpoint(
            "ctranspath.pth",
            "7c998680060c8743551a412583fac689db43cec07053b72dfec6dcd810113539",
            hint="Get it from the authors' Google Drive, which github.com/Xiyue-Wang/TransPath links to",
        ),
        needs="timm",
        mpp=1.0,  # as the authors recommend
        input_px=224,
        ignores=IGNORES,
        rename=to_current_timm,
    ),
)
def ctranspath() -> nn.Module:
    """timm's Swin-T with windows of seven tokens, on the stem."""
    swin = timm().models.swin_transformer.SwinTransformer
    network: nn.Module = swin(img_size=224, window_size=7, embed_dim=96, num_classes=0, embed_layer=ConvStem)
    return network
