"""The losses of many models on one bag, without `torch.func`.

`vmap` maps any model, with an overhead of some microseconds per operation, which dominates for
small bags. The modules of the paper's model have kernels that compute the whole stack with a few
matrix products: linear layers, ReLU, sparse coding and ABMIL. Models with other modules use `vmap`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scmil.models.aggregators.abmil import ABMIL, AttentionScore
from scmil.models.model import LinearRefine, MILModel, Normalise, RandomRefine
from scmil.sparse_coding.kernel_torch import fused_sparse_coding
from scmil.sparse_coding.layer import SparseCoding

Parameters = Mapping[str, Tensor]  # by name; the first axis is the model
StackedModule = Callable[[Parameters, Tensor], Tensor]  # takes parameters and (models, n, width)


def stacked_losses(model: MILModel) -> Callable[[Parameters, Tensor, Tensor], Tensor] | None:
    """A function for the losses of a stack of such models on one bag; None if a module of the model
    has no kernel.

    >>> from scmil.models.model import build_model
    >>> models = [build_model(8, 2, "abmil", embed=[4], seed=seed) for seed in range(3)]
    >>> losses = stacked_losses(models[0])
    >>> parameters, _ = torch.func.stack_module_state(models)
    >>> losses(parameters, torch.ones(3, 5, 8), torch.tensor(1)).shape
    torch.Size([3])
    >>> stacked_losses(build_model(8, 2, "transmil")) is None
    True
    """
    parts = [_stack_module(part, f"{name}.") for name, part in model.named_children()]
    logits_of = _chain(parts)
    if logits_of is None or type(model) is not MILModel or type(model.aggregate) is not ABMIL:
        return None
    if model.output != "softmax":
        return None

    def losses(parameters: Parameters, x: Tensor, label: Tensor) -> Tensor:
        logits = logits_of(parameters, x).squeeze(-2)
        return F.cross_entropy(logits, label.expand(len(logits)), reduction="none")

    return losses


def _stack_module(module: nn.Module, name: str) -> StackedModule | None:
    """The kernel for a stack of this module; `name` is the prefix of its parameters' names."""
    kind = type(module)
    if kind in (nn.Sequential, LinearRefine, RandomRefine):
        return _chain(
            [_stack_module(part, f"{name}{key}.") for key, part in module.named_children()]
        )
    if kind is nn.Identity:
        return lambda parameters, x: x
    if kind is nn.ReLU:
        return lambda parameters, x: torch.relu(x)
    if isinstance(module, Normalise):
        return lambda parameters, x: F.layer_norm(x, x.shape[-1:], eps=module.eps)
    if kind is nn.Linear:
        return lambda parameters, x: _stack_linear(parameters, name, x)
    if isinstance(module, SparseCoding) and module.fused:
        return lambda parameters, x: _stack_sparse_coding(module, parameters, name, x)
    if isinstance(module, ABMIL):
        return lambda parameters, x: _stack_abmil(module, parameters, name, x)
    return None


def _chain(modules: list[StackedModule | None]) -> StackedModule | None:
    """Apply one module after another; None if one of them has no kernel."""
    if any(module is None for module in modules):
        return None

    def chained(parameters: Parameters, x: Tensor) -> Tensor:
        for module in modules:
            x = module(parameters, x)  # type: ignore[misc]  # none of them is None
        return x

    return chained


def _stack_linear(parameters: Parameters, name: str, x: Tensor) -> Tensor:
    weight, bias = parameters[f"{name}weight"].mT, parameters.get(f"{name}bias")
    return torch.bmm(x, weight) if bias is None else torch.baddbmm(bias.unsqueeze(-2), x, weight)


def _stack_sparse_coding(
    layer: SparseCoding, parameters: Parameters, name: str, x: Tensor
) -> Tensor:
    network = [parameters[f"{name}network.{key}"] for key, _ in layer.network.named_parameters()]
    D = parameters[f"{name}dictionary"]
    alpha = fused_sparse_coding(x, D, parameters[f"{name}log_mu"], network, layer.form())
    return layer.finish(x, alpha, D, parameters.get(f"{name}log_gain"))


def _stack_abmil(aggregator: ABMIL, parameters: Parameters, name: str, h: Tensor) -> Tensor:
    """Logits (models, 1, classes)."""
    score: AttentionScore = aggregator.score
    a = torch.tanh(_stack_linear(parameters, f"{name}score.V.", h))
    if score.U is not None:
        a = a * torch.sigmoid(_stack_linear(parameters, f"{name}score.U.", h))
    attention = torch.softmax(_stack_linear(parameters, f"{name}score.w.", a), dim=-2)
    return _stack_linear(parameters, f"{name}classifier.", torch.bmm(attention.mT, h))
