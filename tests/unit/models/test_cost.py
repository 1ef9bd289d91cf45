"""Multiply-adds are those of the products that the layer computes, whatever computes them."""

from __future__ import annotations

import pytest

from scmil import SparseCoding, count_multiply_adds
from scmil.sparse_coding import kernel_products


@pytest.mark.parametrize("n", [5, 12, 121, 2100], ids=["NumPy", "direct", "padded", "blocks"])
def test_products_by_numpy_and_onednn_are_counted(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_products, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(kernel_products, "LEAST_WORK", 1)
    p, m, later = 166, 64, 4
    network = n * (166 * 41 + 41 * 20 + 20)
    layers = min(later * 2 * n * p * m, p * m * m + later * n * m * m)
    counted = count_multiply_adds(SparseCoding(p, atoms=m), n, p)
    assert counted == network + n * p * m + layers
