from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scmil.sparse_coding.equations import (
    objective,
    random_dictionary,
    soft_threshold,
    unrolled_ista,
)
from scmil.sparse_coding.layer import SparseCoding

sizes = st.integers(2, 12)
seeds = st.integers(0, 10_000)


@given(st.floats(-10, 10), st.floats(0, 5))
def test_soft_threshold_is_the_proximal_map_of_the_absolute_value(v: float, lam: float) -> None:
    u = soft_threshold(torch.tensor(v, dtype=torch.float64), lam)
    candidates = torch.cat(
        [
            torch.linspace(-12, 12, 4801, dtype=torch.float64),
            torch.tensor([0.0, v], dtype=torch.float64),
        ]
    )

    def cost(u: torch.Tensor) -> torch.Tensor:
        return (u - v) ** 2 / 2 + lam * u.abs()

    assert cost(u) <= cost(candidates).min() + 1e-12


@settings(deadline=None, max_examples=40)
@given(seeds, sizes, sizes, st.integers(1, 6))
def test_more_layers_never_cost_more(seed: int, p: int, m: int, layers: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    D = random_dictionary(p, m, generator).double()
    x = torch.randn(3, p, generator=generator, dtype=torch.float64)
    lam = torch.rand(3, 1, generator=generator, dtype=torch.float64)
    mu = torch.linalg.matrix_norm(D, 2) ** 2
    fewer, more = (
        objective(x, D, unrolled_ista(x, D, mu, lam, n), lam) for n in (layers, layers + 1)
    )
    assert (more <= fewer + 1e-12).all()


@settings(deadline=None, max_examples=40)
@given(seeds, st.integers(3, 20), st.integers(1, 30), st.integers(1, 7), st.floats(-3, 3))
def test_no_instance_is_ever_dead(seed: int, p: int, m: int, layers: int, log_scale: float) -> None:
    torch.manual_seed(seed)
    layer = SparseCoding(p, m, layers, dictionary="random").double()
    for weight in layer.network.parameters():  # whatever the network has learned
        weight.data *= 10
    x = 10**log_scale * torch.randn(20, p, dtype=torch.float64)
    assert layer.statistics(x).dead == 0


@settings(deadline=None, max_examples=30)
@given(seeds, st.integers(1, 40))
def test_the_order_of_instances_is_the_order_of_codes(seed: int, n: int) -> None:
    torch.manual_seed(seed)
    layer, x = SparseCoding(16, atoms=25).double(), torch.randn(n, 16, dtype=torch.float64)
    order = torch.randperm(n)
    torch.testing.assert_close(layer(x)[order], layer(x[order]))
