"""Dictionaries from data."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from scmil.sparse_coding.data_dictionaries import DATA_DICTIONARIES, dictionary_from_data
from scmil.sparse_coding.equations import random_dictionary, unrolled_ista
from scmil.sparse_coding.layer import SparseCoding


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def clusters(centres: Tensor, each: int = 40, noise: float = 0.02) -> Tensor:
    """Instances around the columns of `centres`."""
    rows = centres.mT.repeat(each, 1)
    return rows + noise * torch.randn(rows.shape, generator=generator())


@pytest.mark.parametrize("kind", DATA_DICTIONARIES)
def test_atoms_have_unit_norm_and_depend_on_the_seed_alone(kind: str) -> None:
    x = torch.randn(300, 10, generator=generator())
    D = dictionary_from_data(kind, x, 20, generator(1))
    assert D.shape == (10, 20)
    torch.testing.assert_close(D.norm(dim=0), torch.ones(20))
    assert torch.equal(D, dictionary_from_data(kind, x, 20, generator(1)))
    assert not torch.equal(D, dictionary_from_data(kind, x, 20, generator(2)))


def test_kmeans_finds_well_separated_clusters() -> None:
    centres = random_dictionary(30, 6, generator())
    D = dictionary_from_data("kmeans", clusters(centres), 6, generator())
    assert (centres.mT @ D).amax(1).min() > 0.99


def test_instances_are_instances() -> None:
    x = torch.randn(50, 8, generator=generator())
    D = dictionary_from_data("instances", x, 12, generator())
    cosine = torch.nn.functional.normalize(x, dim=1) @ D
    torch.testing.assert_close(cosine.amax(0), torch.ones(12))


def test_online_learning_represents_the_data_better_than_instances() -> None:
    truth = random_dictionary(20, 30, generator())
    active = torch.rand(600, 30, generator=generator(1)) < 0.1
    x = (active * torch.randn(600, 30, generator=generator(2))) @ truth.mT
    errors = []
    for kind in ("instances", "online"):
        D = dictionary_from_data(kind, x, 30, generator())
        lam = 0.1 * (x @ D).abs().amax(1, keepdim=True)
        mu = torch.linalg.matrix_norm(D, 2).square()
        alpha = unrolled_ista(x, D, mu, lam, 200)
        errors.append(float((x - alpha @ D.mT).square().mean()))
    assert errors[1] < 0.7 * errors[0]


@pytest.mark.parametrize("kind", DATA_DICTIONARIES)
def test_equal_instances_and_rows_of_zeros_leave_random_atoms(kind: str) -> None:
    x = torch.eye(4).repeat(9, 1)
    x[::2] = 0
    D = dictionary_from_data(kind, x, 7, generator())
    torch.testing.assert_close(D.norm(dim=0), torch.ones(7))
    assert torch.linalg.matrix_rank(D) == 4


@pytest.mark.parametrize("kind", DATA_DICTIONARIES)
def test_a_layer_started_from_data_has_codes_of_unit_scale(kind: str) -> None:
    x = clusters(random_dictionary(30, 6, generator())) + 3.0
    layer = SparseCoding(30, 12, dictionary=kind)
    assert layer.needs_start
    layer.start_from(x, generator())
    assert not layer.needs_start
    with torch.no_grad():
        torch.testing.assert_close(layer(x).square().mean(), torch.tensor(1.0))
    assert abs(layer.step() - 1) < 1e-4
    assert SparseCoding(30, 12).needs_start is False
