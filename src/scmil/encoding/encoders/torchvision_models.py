"""ResNet-18, Swin-T and the truncated ResNet-50, with torchvision's ImageNet weights (IMAGENET1K_V1)."""

from __future__ import annotations

from functools import cache
from types import ModuleType

import torch
from torch import nn

from scmil.encoding.encoders import Card, register
from scmil.encoding.encoders.weights import Checkpoint
from scmil.core.extras import need

_SERVER = "https://download.pytorch.org/models"
CHECKPOINTS = {
    name: Checkpoint(file, sha256, url=f"{_SERVER}/{file}")
    for name, file, sha256 in (
        ("resnet18", "resnet18-f37072fd.pth", "f37072fd47e89c5e827621c5baffa7500819f7896bbacec160b1a16c560e07ec"),
        ("swin", "swin_t-704ceda3.pth", "704ceda373461b0a224fcdddd75cd2a5e9f8064512ed47adbddef7f343fd147b"),
        ("resnet50-trunc", "resnet50-0676ba61.pth", "0676ba61b6795bbe1773cffd859882e5e297624d384b6993f7c9e683e722fb8a"),
    )
}
_alive: list[torch.library.Library] = []  # a library takes its schemas along when it dies


@cache
def torchvision() -> ModuleType:
    """Import torchvision, also where its compiled part was linked for another torch and cannot be loaded.

    Only the operators nms and qnms are missed then, which no encoder calls: they are declared, and the rest works.
    """
    try:
        return need("torchvision", "encoders")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
    library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _alive.append(library)
    return need("torchvision", "encoders")


@register(
    "resnet18",
    "ResNet-18, ImageNet: the paper's first encoder",
    Card(
        dim=512,
        checkpoint=CHECKPOINTS["resnet18"],
        needs="torchvision",
        foldable=True,
        ignores=r"fc\.",
    ),
)
def resnet18() -> nn.Module:
    """All of ResNet-18 up to the average pool."""
    network: nn.Module = torchvision().models.resnet18()
    network.fc = nn.Identity()
    return network


@register(
    "swin",
    "Swin-T, ImageNet: norm and average pool",
    Card(
        dim=768,
        checkpoint=CHECKPOINTS["swin"],
        needs="torchvision",
        input_px=224,  # seven windows of seven tokens of four pixels a side, as it was trained
        ignores=r"head\.",
    ),
)
def swin() -> nn.Module:
    """All of Swin-T up to the average pool."""
    network: nn.Module = torchvision().models.swin_t()
    network.head = nn.Identity()
    return network


@register(
    "resnet50-trunc",
    "ResNet-50 up to its third stage, ImageNet: CLAM's encoder",
    Card(
        dim=1024,
        checkpoint=CHECKPOINTS["resnet50-trunc"],
        needs="torchvision",
        input_px=224,
        foldable=True,
        ignores=r"layer4\.|fc\.",
    ),
)
def resnet50_trunc() -> nn.Module:
    """ResNet-50 without its fourth stage, average-pooled."""
    network: nn.Module = torchvision().models.resnet50()
    network.layer4 = network.fc = nn.Identity()
    return network
