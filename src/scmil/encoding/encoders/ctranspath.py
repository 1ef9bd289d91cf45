"""CTransPath (Wang et al., 2022): Swin-T with a convolutional stem, self-supervised.

It was trained on TCGA and PAIP. The authors' file was written by a modified timm 0.5.4. If it is
loaded into an ordinary Swin with `strict=False`, the stem stays random; here the stem is built, and
every weight of the file must be used.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from scmil.encoding.encoders.timm_any import timm
from scmil.encoding.encoders.weights import State

# The classification head, and buffers that are computed when the network is built.
IGNORES = r"head\.|.*\.(attn_mask|relative_position_index)$"


class ConvStem(nn.Module):
    """Tiles (b, 3, h, w) to tokens (b, h / 4, w / 4, dim): two 3 x 3 convolutions, one 1 x 1.

    >>> import torch
    >>> ConvStem(img_size=224, embed_dim=96)(torch.zeros(1, 3, 224, 224)).shape
    torch.Size([1, 56, 56, 96])
    """

    def __init__(
        self, img_size: int, embed_dim: int, norm_layer: Any = nn.LayerNorm, **unused: Any
    ) -> None:
        super().__init__()
        self.grid_size = (img_size // 4, img_size // 4)
        widths = (3, embed_dim // 8, embed_dim // 4)
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [
                nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(),
            ]
        self.proj = nn.Sequential(*layers, nn.Conv2d(widths[-1], embed_dim, 1))
        self.norm = norm_layer(embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens with channels last."""
        return self.norm(self.proj(x).permute(0, 2, 3, 1))


def to_current_timm(state: State) -> State:
    """Rename patch merging layers: in timm 0.5.4 they belong to the stage before, now to the next.

    >>> list(to_current_timm({"layers.0.downsample.norm.bias": Tensor(), "norm.bias": Tensor()}))
    ['layers.1.downsample.norm.bias', 'norm.bias']
    """
    if not any(name.startswith("layers.0.downsample.") for name in state):
        return state  # these are current names, in which the first stage has no such layer
    shift = re.compile(r"layers\.(\d)\.downsample\.")
    return {
        shift.sub(lambda hit: f"layers.{int(hit[1]) + 1}.downsample.", name): state[name]
        for name in state
    }


def ctranspath() -> nn.Module:
    """Build Swin-T of timm with windows of seven tokens and the convolutional stem."""
    swin = timm().models.swin_transformer.SwinTransformer
    network: nn.Module = swin(
        img_size=224, window_size=7, embed_dim=96, num_classes=0, embed_layer=ConvStem
    )
    return network
