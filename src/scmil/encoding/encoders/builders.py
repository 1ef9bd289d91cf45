"""Networks from cards: one builder per family."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import nn

from scmil.encoding.encoders.card import Card
from scmil.encoding.encoders.pooling import (
    AttentionPool,
    AttentionPooled,
    LinearAttentionPool,
    PooledTokens,
    ProjectedToken,
)
from scmil.encoding.encoders.timm_any import timm
from scmil.errors import ConfigError

# The only classes that a card may name in its arguments.
CLASSES = {
    "SwiGLUPacked": ("timm.layers", "SwiGLUPacked"),
    "SiLU": ("torch.nn", "SiLU"),
    "GELU": ("torch.nn", "GELU"),
}


def build_network(card: Card) -> nn.Module:
    """Build the network of a card, with random weights."""
    return BUILDERS[card.builder](card)


def build_timm(card: Card) -> nn.Module:
    """A network of timm: a transformer with pooled tokens, or any other up to its pool."""
    if card.output.pool == "network":
        return _create(card.architecture, _arguments_of(card))
    return PooledTokens(_transformer(card), card.output.pool, card.output.prefix_tokens)


def build_clip(card: Card) -> nn.Module:
    """The image tower of CLIP with its projection."""
    trunk = _transformer(card)
    projection = nn.Linear(_width_of(trunk), card.output.width, bias=False)
    return ProjectedToken(trunk, projection, unit_length=False)


def build_keep(card: Card) -> nn.Module:
    """KEEP: a projection of two layers, and features of length one."""
    trunk, width = _transformer(card), card.output.width
    layers = nn.Linear(_width_of(trunk), width), nn.GELU(), nn.Linear(width, width)
    return ProjectedToken(trunk, nn.Sequential(*layers), unit_length=True)


def build_conch(card: Card) -> nn.Module:
    """CONCH: a transformer and an attentional pooler of one query."""
    return _attention_pooled(card, AttentionPool)


def build_conch15(card: Card) -> nn.Module:
    """CONCHv1.5: the same with linear maps without biases."""
    return _attention_pooled(card, LinearAttentionPool)


def build_ctranspath(card: Card) -> nn.Module:
    """CTransPath: Swin-T with a convolutional stem."""
    from scmil.encoding.encoders.ctranspath import ctranspath

    return ctranspath()


def build_torchvision(card: Card) -> nn.Module:
    """Networks of torchvision, up to their pool."""
    from scmil.encoding.encoders import torchvision_models

    return torchvision_models.NETWORKS[card.architecture]()


BUILDERS: dict[str, Callable[[Card], nn.Module]] = {
    "timm": build_timm,
    "clip": build_clip,
    "keep": build_keep,
    "conch": build_conch,
    "conch-v1.5": build_conch15,
    "ctranspath": build_ctranspath,
    "torchvision": build_torchvision,
}


def count_parameters(network: nn.Module) -> int:
    """The number of parameters of a network."""
    return sum(parameter.numel() for parameter in network.parameters())


def _attention_pooled(card: Card, pooler: Callable[..., nn.Module]) -> nn.Module:
    trunk, width = _transformer(card), card.output.width
    pool = pooler(width, _width_of(trunk))
    return AttentionPooled(trunk, pool, width, project=card.output.pool == "projection")


def _width_of(trunk: nn.Module) -> int:
    """The width of a token."""
    return int(trunk.num_features)  # type: ignore[arg-type]


def _transformer(card: Card) -> nn.Module:
    """A transformer of timm that returns all tokens, after its last norm."""
    arguments = _arguments_of(card)
    epsilon = arguments.pop("norm_eps", None)
    trunk = _create(card.architecture, {**arguments, "global_pool": ""})
    if epsilon is not None:
        for module in trunk.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = float(epsilon)
    return trunk


def _create(architecture: str, arguments: dict[str, Any]) -> nn.Module:
    network: nn.Module = timm().create_model(architecture, **{"num_classes": 0, **arguments})
    return network


def _arguments_of(card: Card) -> dict[str, Any]:
    arguments = {}
    for key, value in card.arguments.items():
        if isinstance(value, str) and key.endswith("_layer"):
            if value not in CLASSES:
                raise ConfigError(
                    f"card {card.name!r}: {key} = {value!r} is not one of {', '.join(CLASSES)}."
                )
            timm()  # before timm.layers is imported
            module, name = CLASSES[value]
            value = getattr(import_module(module), name)
        arguments[key] = value
    return arguments
