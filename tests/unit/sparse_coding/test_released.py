from __future__ import annotations

import math

import pytest
import torch

from scmil import ReleasedSparseCoding, soft_threshold


def test_it_is_the_described_iteration() -> None:
    layer, x = ReleasedSparseCoding(6, atoms=9, layers=2).double(), torch.randn(4, 6).double()
    D, c = layer.dictionary, layer.mu
    threshold = layer.network(x) / c
    z = soft_threshold(x @ D, threshold)  # not divided by mu
    for _ in range(2):
        z = soft_threshold(z - z @ D.T @ D / c + x @ D / c, threshold)
    torch.testing.assert_close(layer(x), z)


def test_a_negative_lambda_pushes_away_from_zero() -> None:
    layer = ReleasedSparseCoding(64, atoms=32)
    layer.network[-1].weight.data.zero_()
    layer.network[-1].bias.data.fill_(-3.0)
    assert (layer(torch.randn(50, 64)) != 0).all()


def test_frozen_tensors_are_in_the_state_and_not_trained() -> None:
    layer = ReleasedSparseCoding(6, atoms=9)
    assert {"zeros", "identity"} <= set(layer.state_dict())
    assert not layer.zeros.requires_grad
    assert not layer.identity.requires_grad


def test_the_dictionary_starts_kaiming_uniform_with_unit_columns() -> None:
    D = ReleasedSparseCoding(400, atoms=300).dictionary.detach()
    torch.testing.assert_close(D.norm(dim=0), torch.ones(300))
    # Entries of a uniform distribution are bounded by sqrt(3 / p) after scaling, and their kurtosis
    # is 1.8; those of a normal one reach further, with 3.
    assert D.abs().max() < 1.15 * math.sqrt(3 / 400)
    kurtosis = (D**4).mean() / (D**2).mean() ** 2
    assert float(kurtosis) == pytest.approx(1.8, abs=0.1)
