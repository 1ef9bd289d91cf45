"""Matrix products by oneDNN, on every processor that has it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from scmil.sparse_coding import kernel_direct, kernel_numpy, kernel_products, kernel_torch
from scmil.sparse_coding.kernel_blocks import normalise_again, normalise_rows, row_blocks
from scmil.sparse_coding.kernel_products import (
    GRAIN,
    LEAST_PADDED,
    LONG_ROWS,
    SHORT_GRAIN,
    accumulate,
    add_product,
    multiply,
    row_grain,
)
from scmil.sparse_coding.layer import SparseCoding


@pytest.fixture(autouse=True)
def onednn(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Let oneDNN compute what it may, whatever the processor is; the results that it returned."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this build of torch has no oneDNN")
    computed: list[Tensor] = []
    plain = kernel_products.onednn_linear

    def record(*tensors: Tensor, **options: Tensor) -> Tensor:
        computed.append(plain(*tensors, **options))
        return computed[-1]

    for module in (kernel_products, kernel_direct):
        monkeypatch.setattr(module, "onednn_linear", record)
    monkeypatch.setattr(kernel_products, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(kernel_products, "LEAST_WORK", 1)  # matrices of the tests are small
    return computed


def distance(actual: Tensor, expected: Tensor) -> float:
    actual, expected = actual.detach(), expected.detach()
    return float((actual - expected).norm() / expected.norm().clamp(min=1e-12))


@pytest.mark.parametrize("rows", [64, 63])
def test_products_are_those_of_torch(rows: int, onednn: list[Tensor]) -> None:
    a, b, wide = torch.randn(rows, 40), torch.randn(40, 24), torch.randn(rows, 70)
    base, row, total = torch.randn(rows, 24), torch.randn(24), torch.randn(40, 70)
    before = total.clone()
    pairs = [
        (multiply(a, b), a @ b),
        (multiply(wide, torch.randn(24, 70).mT.clone()).shape, (rows, 24)),
        (add_product(base, a, b), base + a @ b),
        (add_product(row, a, b), row + a @ b),
        (add_product(row[None], a, b), row + a @ b),
        (add_product(base, a, b, alpha=-1), base - a @ b),
        (accumulate(None, a, wide, torch.float32), a.mT @ wide),
        (accumulate(None, wide, a, torch.float32), wide.mT @ a),
        (accumulate(total, a, wide, torch.float32), before + a.mT @ wide),
        (accumulate(None, a, wide, torch.float32, alpha=-1), -a.mT @ wide),
    ]
    for actual, expected in pairs:
        if isinstance(actual, Tensor):
            torch.testing.assert_close(actual, expected)
        else:
            assert actual == expected
    torch.testing.assert_close(total, before + a.mT @ wide)  # in place
    assert len(onednn) == (10 if rows == 64 else 0)


def test_onednn_multiplies_no_part_of_a_wider_matrix(onednn: list[Tensor]) -> None:
    a, wide = torch.randn(64, 40), torch.randn(40, 70)
    torch.testing.assert_close(multiply(a, wide[:, :24]), a @ wide[:, :24])
    part = torch.randn(64, 70)[:, :50]
    torch.testing.assert_close(accumulate(None, a, part, torch.float32), a.mT @ part)
    assert not onednn


@pytest.mark.parametrize("rows", [3, 90])
@pytest.mark.parametrize(
    ("p", "m", "in_layers"), [(40, 2, 1 + 4), (16, 200, 2 * 4)], ids=["Gram", "factored"]
)
def test_all_products_of_a_short_bag_are_by_onednn(
    p: int,
    m: int,
    in_layers: int,
    rows: int,
    onednn: list[Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernel_torch, "is_small", lambda *_: False)
    monkeypatch.setattr(kernel_products, "LEAST_ROWS", 1)  # the transition has m rows
    with torch.no_grad():
        SparseCoding(p, m)(torch.randn(rows, p))
    network, drive = 3, 1
    assert len(onednn) == network + drive + in_layers


MODES: list[dict[str, Any]] = [
    {},
    {"normalise": False},
    {"sparsity": "absolute"},
    {"sparsity": "printed", "normalise": False},
    {"bounds": (0.0, 1.0)},
    {"nonnegative": True},
]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("n", "p", "m"),
    [(70, 40, 24), (600, 40, 24), (2100, 70, 40), (9001, 33, 30), (90, 16, 200), (7, 90, 300)],
    ids=["short", "one block", "lanes", "several blocks", "factored", "few rows"],
)
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_the_layer_equals_the_equations(
    mode: dict[str, Any],
    n: int,
    p: int,
    m: int,
    threads: int,
    onednn: list[Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernel_numpy, "LARGEST", -1)
    monkeypatch.setattr(kernel_numpy, "LARGEST_STEP", -1)
    layer = SparseCoding(p, m, dictionary="random", **mode)
    x, g = torch.randn(n, p, requires_grad=True), torch.randn(n, m)
    torch.set_num_threads(threads)
    try:
        alpha = layer(x)
        assert alpha.shape == (n, m)
        actual = [alpha, *torch.autograd.grad((alpha * g).sum(), (x, *layer.parameters()))]
        with torch.no_grad():
            actual.append(layer(x))
    finally:
        torch.set_num_threads(1)
    assert onednn
    layer.double().fused = False
    exact = x.detach().double().requires_grad_()
    alpha = layer(exact)
    expected = torch.autograd.grad((alpha * g).sum(), (exact, *layer.parameters()))
    # A code at the threshold is active in one precision and not in the other.
    for one, other in zip(actual, [alpha, *expected, alpha], strict=True):
        assert distance(one, other) < 1e-3


@pytest.mark.parametrize("n", [64, 90])
def test_long_products_of_the_numpy_kernel_are_those_of_onednn(
    n: int, onednn: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, x = SparseCoding(60, 20, dictionary="random"), torch.randn(n, 60, requires_grad=True)
    assert kernel_numpy.is_small(x, layer.dictionary, backward=True, layers=layer.layers)

    def results() -> list[Tensor]:
        alpha = layer(x)
        return [alpha, *torch.autograd.grad(alpha.square().sum(), (x, *layer.parameters()))]

    expected = results()
    assert not onednn
    monkeypatch.setattr(kernel_numpy, "LEAST_ONEDNN", 1)
    for actual, other in zip(results(), expected, strict=True):
        assert distance(actual, other) < 1e-4
    assert len(onednn) == 9  # three for each layer of the sparsity network


@pytest.mark.parametrize("n", [3000, 12_000, 12_032])
@pytest.mark.parametrize("lanes", [1, 4])
def test_all_blocks_but_the_last_have_a_multiple_of_the_grain(n: int, lanes: int) -> None:
    blocks = row_blocks(torch.empty(n, 64), lanes, p=166)
    assert [block.start for block in blocks[1:]] == [block.stop for block in blocks[:-1]]
    assert (blocks[0].start, blocks[-1].stop) == (0, n)
    assert not any((block.stop - block.start) % GRAIN for block in blocks[:-1])


def test_short_bags_other_types_and_stacks_are_left_to_torch(
    onednn: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert row_grain(torch.empty(LONG_ROWS, 8)) == GRAIN
    assert row_grain(torch.empty(LEAST_PADDED, 8)) == SHORT_GRAIN
    assert row_grain(torch.empty(LEAST_PADDED - 1, 8)) == 1
    assert row_grain(torch.empty(LEAST_PADDED, 8, dtype=torch.float64)) == 1
    assert row_grain(torch.empty(3, LEAST_PADDED, 8)) == 1
    multiply(torch.randn(64, 40).double(), torch.randn(40, 24).double())
    multiply(torch.randn(3, 64, 40), torch.randn(3, 40, 24))
    assert multiply(torch.randn(0, 40), torch.randn(40, 24)).shape == (0, 24)
    multiply(torch.randn(2, 40), torch.randn(40, 24))
    accumulate(None, torch.randn(8, 40), torch.randn(8, 24), torch.float32)
    rows_of_copy = kernel_products.ROWS_OF_COPY
    monkeypatch.setattr(kernel_products, "LEAST_WORK", (64 + rows_of_copy) * 40 * 24 + 1)
    multiply(torch.randn(64, 40), torch.randn(40, 24))
    assert not onednn


@pytest.mark.parametrize(
    ("capability", "processor", "expected"),
    [
        ("AVX512", "vendor_id : AuthenticAMD", True),
        ("AVX2", "vendor_id : AuthenticAMD", False),
        ("AVX512", "vendor_id : GenuineIntel", False),
        ("AVX512", "", False),
    ],
)
def test_onednn_is_chosen_for_amd_with_512_bits(
    capability: str, processor: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # of the fixture
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(kernel_products, "_processor", lambda: processor)
    assert kernel_products.onednn_is_faster.__wrapped__() is expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_rows_are_normalised_again_to_the_last_digit(dtype: torch.dtype) -> None:
    x = (3 + torch.randn(20, 9)).to(dtype)
    rows, mean, scale = normalise_rows(x, torch.empty(20, 9))
    assert torch.equal(normalise_again(x, torch.empty(20, 9), mean, scale), rows)
