"""Shapes are types: every function of scmil that names shapes is checked against them while the tests run."""

from __future__ import annotations

import os

import pytest
from jaxtyping import install_import_hook

CHECKED = ["scmil.sparse_coding.layer", "scmil.sparse_coding.released", "scmil.models.aggregators", "scmil.bags.bag"]
install_import_hook(CHECKED, "beartype.beartype")

os.environ.setdefault("COLUMNS", "120")

import torch  # noqa: E402  (after the hook)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def pytest_configure() -> None:
    torch.set_num_threads(1)  # two workers share two cores
