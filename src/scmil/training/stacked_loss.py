"""Many models over one bag without `torch.func`: each part that has a rule here is a few products for the whole stack.

`vmap` maps any model, and asks some microseconds for each operation; a small bag has many operations and little
arithmetic. The parts of the paper's own model have rules: linear layers, ReLU, sparse coding, ABMIL. A model with any other
part has none, and is mapped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scmil.models.aggregators.abmil import ABMIL, AttentionScore
from scmil.sparse_coding.kernel_torch import Form, fused_sparse_coding
from scmil.models.model import LinearRefine, MILModel, Normalise
from scmil.sparse_coding.layer import SparseCoding

Parameters = Mapping[str, Tensor]  # by name, each with the models as its first axis
Rule = Callable[[Parameters, Tensor], Tensor]  # of parameters and (models, n, width)


def stacked_losses(model: MILModel) -> Callable[[Parameters, Tensor, Tensor], Tensor] | None:
    """The loss of each of a stack of such models on one bag, or None if a part of the model has no rule.

    >>> from scmil.models.model import build_model
    >>> losses = stacked_losses(build_model(8, 2, "abmil", embed=[4], sparse_coding={"atoms": 6}))
    >>> models = [build_model(8, 2, "abmil", embed=[4], sparse_coding={"atoms": 6}, seed=seed) for seed in range(3)]
    >>> parameters, _ = torch.func.stack_module_state(models)
    >>> losses(parameters, torch.ones(3, 5, 8), torch.tensor(1)).shape
    torch.Size([3])
    >>> stacked_losses(build_model(8, 2, "transmil")) is None
    True
    """
    parts = [_rule(part, f"{name}.") for name, part in model.named_children()]
    logits_of = _chain(parts)
    if logits_of is None or type(model) is not MILModel or type(model.aggregate) is not ABMIL:
        return None

    def losses(parameters: Parameters, x: Tensor, label: Tensor) -> Tensor:
        logits = logits_of(parameters, x).squeeze(-2)
        return F.cross_entropy(logits, label.expand(len(logits)), reduction="none")

    return losses


def _rule(module: nn.Module, name: str) -> Rule | None:
    """How a stack of this module is computed; `name` is the beginning of its parameters' names."""
    kind = type(module)
    if kind in (nn.Sequential, LinearRefine):
        return _chain([_rule(part, f"{name}{key}.") for key, part in module.named_children()])
    if kind is nn.Identity:
        return lambda parameters, x: x
    if kind is nn.ReLU:
        return lambda parameters, x: torch.relu(x)
    if isinstance(module, Normalise):
        return lambda parameters, x: F.layer_norm(x, x.shape[-1:], eps=module.eps)
    if kind is nn.Linear:
        return lambda parameters, x: _linear(parameters, name, x)
    if isinstance(module, SparseCoding) and module.fused:
        return lambda parameters, x: _sparse_coding(module, parameters, name, x)
    if isinstance(module, ABMIL):
        return lambda parameters, x: _abmil(module, parameters, name, x)
    return None


def _chain(rules: list[Rule | None]) -> Rule | None:
    if any(rule is None for rule in rules):
        return None

    def chained(parameters: Parameters, x: Tensor) -> Tensor:
        for rule in rules:
            x = rule(parameters, x)  # type: ignore[misc]  # none of them is None
        return x

    return chained


def _linear(parameters: Parameters, name: str, x: Tensor) -> Tensor:
    weight, bias = parameters[f"{name}weight"].mT, parameters.get(f"{name}bias")
    return torch.bmm(x, weight) if bias is None else torch.baddbmm(bias.unsqueeze(-2), x, weight)


def _sparse_coding(layer: SparseCoding, parameters: Parameters, name: str, x: Tensor) -> Tensor:
    form = Form(layer.layers, layer.relative, layer.normalise)
    network = [parameters[f"{name}network.{key}"] for key, _ in layer.network.named_parameters()]
    return fused_sparse_coding(x, parameters[f"{name}dictionary"], parameters[f"{name}log_mu"], network, form)


def _abmil(aggregator: ABMIL, parameters: Parameters, name: str, h: Tensor) -> Tensor:
    """(models, 1, classes)"""
    score: AttentionScore = aggregator.score
    a = torch.tanh(_linear(parameters, f"{name}score.V.", h))
    if score.U is not None:
        a = a * torch.sigmoid(_linear(parameters, f"{name}score.U.", h))
    attention = torch.softmax(_linear(parameters, f"{name}score.w.", a), dim=-2)
    return _linear(parameters, f"{name}classifier.", torch.bmm(attention.mT, h))
