from __future__ import annotations

import math

import pytest
import torch

from scmil.models.aggregators.s4mil import S4D, S4MIL, convolve


@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 100])
def test_the_kernel_in_blocks_is_the_sum_over_the_states(n: int) -> None:
    layer = S4D(3, state=8).double()
    A = torch.complex(-layer.log_real.view(3, 4).exp(), layer.imag.view(3, 4))
    dt = layer.log_dt.exp()[:, None]
    C = torch.view_as_complex(layer.C.detach()) * (torch.exp(dt * A) - 1) / A
    powers = torch.exp((dt * A)[..., None] * torch.arange(n))
    expected = 2 * (C[..., None] * powers).sum(1).real
    torch.testing.assert_close(layer.kernel(n), expected.T)


@pytest.mark.parametrize("n", [1, 2, 7, 40])
def test_the_convolution_is_causal(n: int) -> None:
    u, kernel = torch.randn(2, n, 3, dtype=torch.float64)
    expected = torch.stack([(kernel[: i + 1].flip(0) * u[: i + 1]).sum(0) for i in range(n)])
    torch.testing.assert_close(convolve(u, kernel), expected)


def test_it_starts_as_its_authors_do() -> None:
    layer = S4D(512)
    assert layer.C.shape == (512, 16, 2)
    assert math.log(0.001) <= layer.log_dt.min()
    assert layer.log_dt.max() <= math.log(0.1)
    assert layer.imag.view(512, 16)[7].tolist() == pytest.approx([math.pi * i for i in range(16)])
    # A complex normal number has variance 1/2 in each part.
    assert layer.C.var().item() == pytest.approx(0.5, rel=0.05)


def test_the_step_and_the_states_are_vectors_and_so_without_weight_decay() -> None:
    layer = S4D(8)
    assert {p.ndim for p in (layer.log_dt, layer.log_real, layer.imag)} == {1}


def test_the_state_is_an_even_number() -> None:
    with pytest.raises(ValueError, match="state = 3: an even number of at least 2 is needed"):
        S4MIL(8, 2, state=3)
