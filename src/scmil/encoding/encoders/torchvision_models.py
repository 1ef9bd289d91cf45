"""Networks of torchvision without their classifiers."""

from __future__ import annotations

from functools import cache
from types import ModuleType

import torch
from torch import nn

from scmil.core.extras import import_extra

_alive: list[torch.library.Library] = []  # the schemas of a library are deleted with it


@cache
def torchvision() -> ModuleType:
    """Import torchvision, even if its compiled extension was built for another torch.

    Then only the operators nms and qnms are missing, which no encoder uses. They are declared here,
    so that the import succeeds.
    """
    try:
        return import_extra("torchvision", "encoders")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
    library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _alive.append(library)
    return import_extra("torchvision", "encoders")


def resnet18() -> nn.Module:
    """Build ResNet-18 up to the average pool."""
    network: nn.Module = torchvision().models.resnet18()
    network.fc = nn.Identity()
    return network


def swin() -> nn.Module:
    """Build Swin-T up to the average pool."""
    network: nn.Module = torchvision().models.swin_t()
    network.head = nn.Identity()
    return network


def resnet50() -> nn.Module:
    """Build ResNet-50 up to the average pool."""
    network: nn.Module = torchvision().models.resnet50()
    network.fc = nn.Identity()
    return network


def resnet50_trunc() -> nn.Module:
    """Build ResNet-50 without its fourth stage, with average pooling."""
    network = resnet50()
    network.layer4 = nn.Identity()
    return network


def densenet121() -> nn.Module:
    """Build DenseNet-121 up to the average pool, without the ReLU that torchvision adds."""
    features = torchvision().models.densenet121().features
    return nn.Sequential(features, nn.AdaptiveAvgPool2d(1), nn.Flatten())


NETWORKS = {
    "resnet18": resnet18,
    "swin_t": swin,
    "resnet50": resnet50,
    "resnet50-trunc": resnet50_trunc,
    "densenet121": densenet121,
}
