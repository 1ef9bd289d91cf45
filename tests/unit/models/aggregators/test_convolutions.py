"""Float32 gradients of convolutions against float64.

torch 2.13 on CPUs with AVX-512 returns a wrong weight gradient for a depthwise (33, 1) convolution
with implicit padding if the length is 1 more than a multiple of 15, from 46 on.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from scmil.models import aggregators
from scmil.models.aggregators.transmil import PositionEncoding, ResidualConvolution

SHIPPED = [name for name in aggregators.names() if ":" not in name]
WITH_CONVOLUTION = [
    name
    for name in SHIPPED
    if any(isinstance(m, nn.modules.conv._ConvNd) for m in aggregators.build(name, 64, 2).modules())
]


def gradients(module: nn.Module, x: Tensor) -> list[Tensor]:
    """The gradients of the input and of all parameters, for an output weighted by noise."""
    x = x.clone().requires_grad_()
    out = module(x)
    outputs = [out.logits, *out.auxiliary] if isinstance(out, aggregators.Prediction) else [out]
    generator = torch.Generator().manual_seed(1)
    total = sum((o * torch.randn(o.shape, generator=generator).to(o)).sum() for o in outputs)
    used = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return [
        gradient
        for gradient in torch.autograd.grad(total, [x, *used], allow_unused=True)  # type: ignore[arg-type]
        if gradient is not None
    ]


def largest_error(module: nn.Module, exact: nn.Module, x: Tensor) -> float:
    """The largest relative error of a float32 gradient, tensor by tensor.

    The bias of the keys of an attention has the gradient zero, where only rounding is left.
    """
    expected = gradients(exact, x.double())
    zero = 1e-6 + 1e-4 * max(float(gradient.norm()) for gradient in expected)
    pairs = zip(gradients(module, x), expected, strict=True)
    return max(float((one - other).norm() / (other.norm() + zero)) for one, other in pairs)


def test_the_sequence_convolution_has_the_right_gradient_at_every_length() -> None:
    module = ResidualConvolution(heads=2, kernel=33)
    exact = copy.deepcopy(module).double()
    errors = {t: largest_error(module, exact, torch.randn(2, t, 2)) for t in range(1, 601)}
    assert {t: error for t, error in errors.items() if error > 1e-5} == {}


def test_the_position_encoding_has_the_right_gradient_at_every_side() -> None:
    module = PositionEncoding(16)
    exact = copy.deepcopy(module).double()
    errors = {side: largest_error(module, exact, torch.randn(side**2, 16)) for side in range(1, 25)}
    assert {side: error for side, error in errors.items() if error > 1e-5} == {}


def test_the_aggregators_with_a_convolution_are_known() -> None:
    assert WITH_CONVOLUTION == ["transmil", "dgr-mil", "rrt"]


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 200])  # padded to 256 positions
@pytest.mark.parametrize("name", WITH_CONVOLUTION)
def test_an_aggregator_with_a_convolution_has_the_right_gradient(name: str, n: int) -> None:
    torch.manual_seed(0)
    net = aggregators.build(name, 64, 2).eval()
    assert largest_error(net, copy.deepcopy(net).double(), torch.randn(n, 64)) < 1e-4
