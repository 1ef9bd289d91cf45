"""The fast layers give the numbers of the plain one: forward, gradients, under torch.func, compile
and autocast.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, stack_module_state, vmap

from scmil.sparse_coding import kernel_direct as direct
from scmil.sparse_coding import kernel_numpy as fused_small
from scmil.sparse_coding import kernel_torch as fused
from scmil.sparse_coding.kernel_blocks import Form, row_blocks
from scmil.sparse_coding.layer import SparseCoding

CASES = [  # n, p, m, layers: small and factored, Gram, several blocks, one layer, one instance
    (7, 5, 9, 4),
    (40, 12, 6, 5),
    (9000, 9, 100, 3),
    (3, 4, 5, 1),
    (5000, 40, 30, 4),
    (1, 16, 64, 5),
]
MODES: list[dict[str, Any]] = [
    {},
    {"normalise": False},
    {"sparsity": "absolute"},
    {"sparsity": "absolute", "normalise": False},
    {"sparsity": "printed"},
    {"sparsity": "printed", "normalise": False},
    {"bounds": (0.0, 1.0)},
    {"nonnegative": True},
    {"nonnegative": True, "sparsity": "absolute"},
    {"output": "denoised"},
    {"output": "joined", "learning": {"scale": "gain"}},
    {"nonnegative": True, "learning": {"scale": "unit"}},
]


def layer_for(p: int, m: int, layers: int, mode: dict[str, Any]) -> SparseCoding:
    return SparseCoding(p, m, layers, dictionary="random", **mode).double()


def codes_and_gradients(layer: SparseCoding, x: Tensor, g: Tensor) -> list[Tensor]:
    alpha = layer(x)
    return [
        alpha,
        *torch.autograd.grad((alpha * g).sum(), (x, *layer.parameters()), materialize_grads=True),
    ]


def set_small(monkeypatch: pytest.MonkeyPatch, small: bool) -> None:
    """Let the NumPy kernel take all bags, or none."""
    for name in ("LARGEST", "LARGEST_FORWARD", "LARGEST_STEP"):
        monkeypatch.setattr(fused_small, name, 10**9 if small else -1)


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize(
    ("case", "small"),
    [(case, False) for case in CASES] + [(case, True) for case in CASES if case[0] < 100],
    ids=str,
)
def test_the_fast_layer_equals_the_equations(case, mode, small, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    n, p, m, layers = case
    set_small(monkeypatch, small)
    layer = layer_for(p, m, layers, mode)
    x, g = (
        torch.randn(n, p, dtype=torch.float64, requires_grad=True),
        torch.randn(n, layer.width, dtype=torch.float64),
    )
    fast = codes_and_gradients(layer, x, g)
    layer.fused = False
    for ours, plain in zip(fast, codes_and_gradients(layer, x, g), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-8, atol=1e-9)
    layer.fused = True
    with torch.no_grad():
        torch.testing.assert_close(layer(x), fast[0])


KERNELS = ("small_codes", "direct_codes", "_forward")


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_kernel_gives_the_codes_without_gradients(  # type: ignore[no-untyped-def]
    case, mode, kernel, monkeypatch
) -> None:
    n, p, m, layers = case
    set_small(monkeypatch, kernel == "small_codes")
    monkeypatch.setattr(direct, "LARGEST_DIRECT", 0 if kernel == "_forward" else 10**9)
    others = [name for name in KERNELS if name != kernel]
    for name in others:
        monkeypatch.setattr(fused, name, None)  # calling it is an error
    layer = layer_for(p, m, layers, mode).requires_grad_(False)
    x = torch.randn(n, p, dtype=torch.float64)
    given = x.clone()
    fast = layer(x)
    assert torch.equal(x, given)
    layer.fused = False
    torch.testing.assert_close(fast, layer(x), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(
    ("shape", "m", "kernel"),
    [
        ((5, 64), 256, "small_codes"),
        ((5, 512), 256, "direct_codes"),
        ((100, 166), 64, "direct_codes"),
        ((1000, 512), 256, "direct_codes"),
        ((12_000, 166), 64, "_forward"),
    ],
    ids=str,
)
def test_a_bag_without_gradients_gets_the_fastest_kernel(
    shape: tuple[int, int], m: int, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    for name in KERNELS:
        monkeypatch.setattr(
            fused, name, lambda *_, name=name: called.append(name) or [torch.zeros(0)]
        )
    fused.fused_sparse_coding(
        torch.zeros(shape), torch.zeros(shape[1], m), torch.zeros(()), (), Form(5, None, False)
    )
    assert called == [kernel]


def test_a_constant_instance_has_codes_of_zero_in_every_kernel() -> None:
    for n in (1, 40, 9000):
        layer = SparseCoding(600, 60, dictionary="random")
        with torch.no_grad():
            assert not layer(torch.full((n, 600), 0.5)).any()


@pytest.mark.parametrize("small", [True, False], ids=["small", "blocks"])
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_gradcheck(mode: dict[str, Any], small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    set_small(monkeypatch, small)
    layer = layer_for(6, 8, 3, mode)
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    names, values = zip(*layer.named_parameters(), strict=True)

    def code(x: Tensor, *parameters: Tensor) -> Tensor:
        return functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))

    assert torch.autograd.gradcheck(code, (x, *values))


def test_the_gram_form_and_blocks_are_both_reached() -> None:
    assert fused.gram_is_cheaper(40, 12, 6, 5, backward=True)
    assert not fused.gram_is_cheaper(7, 5, 9, 4, backward=True)
    assert len(row_blocks(torch.empty(9000, 100, dtype=torch.float64))) > 3


@pytest.mark.parametrize("n", [6, 700])
def test_many_models_are_stacked_over_one_bag(n: int) -> None:
    models = [layer_for(8, 12, 4, {}) for _ in range(3)]
    parameters, buffers = stack_module_state(models)  # type: ignore[arg-type]
    x = torch.randn(n, 8, dtype=torch.float64)
    g = torch.randn(n, 12, dtype=torch.float64)

    def loss(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
        return (functional_call(models[0], (parameters, buffers), (x,)) * g).sum()

    stacked = vmap(grad(loss))(parameters, buffers)
    for index, model in enumerate(models):
        gradients = torch.autograd.grad((model(x) * g).sum(), list(model.parameters()))
        for (name, _), expected in zip(model.named_parameters(), gradients, strict=True):
            torch.testing.assert_close(stacked[name][index], expected)


def test_vmap_over_bags_of_one_size() -> None:
    layer = layer_for(8, 12, 4, {})
    bags = torch.randn(5, 9, 8, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(vmap(layer)(bags), torch.stack([layer(bag) for bag in bags]))


@pytest.mark.parametrize("n", [6, 3000])
def test_stored_features_get_no_gradient_and_the_others_stay_the_same(n: int) -> None:
    layer, x = layer_for(8, 12, 4, {}), torch.randn(n, 8, dtype=torch.float64)
    without = torch.autograd.grad(layer(x).square().sum(), list(layer.parameters()))
    x.requires_grad_()
    _, *with_x = torch.autograd.grad(layer(x).square().sum(), [x, *layer.parameters()])
    for one, other in zip(without, with_x, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.usefixtures("without_shape_checks")
def test_torch_compile_gives_the_same() -> None:
    layer, x = SparseCoding(16, atoms=25).double(), torch.randn(30, 16, dtype=torch.float64)
    compiled = torch.compile(layer, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x))


@pytest.mark.parametrize("options", [{}, {"sparsity": "absolute"}, {"normalise": False}], ids=str)
@pytest.mark.parametrize(("n", "atoms", "form"), [(3000, 40, "gram"), (300, 200, "factored")])
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16])
def test_autocast_rounds_products_and_codes_and_little_else(
    n: int, atoms: int, form: str, given: torch.dtype, options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    layer, x = SparseCoding(64, atoms=atoms, **options), torch.randn(n, 64)
    assert fused.gram_is_cheaper(n, 64, atoms, 5, backward=True) is (form == "gram")
    wanted = [x.to(given).requires_grad_(), *layer.parameters()]
    exact = layer(wanted[0].float())
    expected = torch.autograd.grad(exact.square().sum(), wanted)
    with torch.autocast("cpu", torch.bfloat16):
        codes = layer(wanted[0])
    actual = torch.autograd.grad(codes.float().square().sum(), wanted)
    assert codes.dtype == torch.bfloat16
    assert (codes - exact).norm() / exact.norm() < 0.02
    assert [grad.dtype for grad in actual] == [given] + [torch.float32] * (len(wanted) - 1)
    for one, other in zip(actual, expected, strict=True):
        along = torch.cosine_similarity(one.flatten().float(), other.flatten().float(), 0)
        assert along > 0.95  # codes near their threshold fall on either side of it
        assert float(one.float().norm()) == pytest.approx(float(other.float().norm()), rel=0.1)


def test_small_bags_under_autocast_stay_as_they_are() -> None:
    layer, x = SparseCoding(16), torch.randn(5, 16)
    with torch.autocast("cpu", torch.bfloat16):
        codes = layer(x)
    assert torch.equal(codes, layer(x))


def test_backward_under_autocast_is_the_same() -> None:
    layer, x = SparseCoding(64), torch.randn(500, 64)
    grads = []
    for inside in (False, True):
        with torch.autocast("cpu", torch.bfloat16):
            loss = layer(x).square().sum()
            if inside:
                grads.append(torch.autograd.grad(loss, list(layer.parameters())))
        if not inside:
            grads.append(torch.autograd.grad(loss, list(layer.parameters())))
    for one, other in zip(*grads, strict=True):
        assert torch.equal(one, other)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("n", [5, 3000])
def test_cuda_gives_the_same(n: int) -> None:
    layer, x = SparseCoding(16, atoms=25).double(), torch.randn(n, 16, dtype=torch.float64)
    expected = torch.autograd.grad(layer(x).square().sum(), list(layer.parameters()))
    layer.cuda()
    actual = torch.autograd.grad(layer(x.cuda()).square().sum(), list(layer.parameters()))
    for one, other in zip(expected, actual, strict=True):
        torch.testing.assert_close(one, other.cpu())


def test_float32_agrees_with_float64() -> None:
    layer, x = SparseCoding(64), torch.randn(3000, 64)
    exact = SparseCoding(64).double()
    exact.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer(x), exact(x.double()).float(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("n", [4, 3000])
def test_a_second_derivative_is_refused_and_the_plain_layer_has_it(n: int) -> None:
    layer, x = SparseCoding(8, atoms=12), torch.randn(n, 8, requires_grad=True)
    with pytest.raises(NotImplementedError, match="fused=False"):
        torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    layer.fused = False
    (first,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    first.sum().backward()
    assert x.grad is not None


def test_a_second_derivative_is_refused_under_torch_func_too() -> None:
    layer = SparseCoding(8, atoms=12)
    with pytest.raises(NotImplementedError, match="fused=False"):
        grad(lambda x: grad(lambda y: layer(y).square().sum())(x).sum())(torch.randn(4, 8))


def test_a_parameter_changed_before_backward_is_noticed() -> None:
    layer, x = SparseCoding(8, atoms=12), torch.randn(4, 8)
    loss = layer(x).sum()
    with torch.no_grad():
        layer.dictionary.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_codes_may_be_changed_in_place_or_it_is_noticed() -> None:
    layer = SparseCoding(8, atoms=12)
    small, large = torch.randn(4, 8), torch.randn(3000, 8)
    (expected,) = torch.autograd.grad((2 * layer(small)).sum(), layer.dictionary)
    (actual,) = torch.autograd.grad(layer(small).mul_(2).sum(), layer.dictionary)
    torch.testing.assert_close(actual, expected)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        layer(large).mul_(2).sum().backward()


def test_backward_keeps_far_less_than_autograd() -> None:
    layer, x = SparseCoding(64, atoms=64), torch.randn(4000, 64)
    sizes: dict[bool, int] = {}
    for fast in (True, False):
        layer.fused = fast
        kept: dict[int, int] = {}

        def pack(tensor: Tensor, kept: dict[int, int] = kept) -> Tensor:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            layer(x)
        sizes[fast] = sum(kept.values())
    assert sizes[True] < 0.45 * sizes[False]


@pytest.mark.parametrize("mode", [{}, {"bounds": (0.0, 0.9)}], ids=["scaled", "not scaled"])
def test_equal_atoms_share_the_gradient_of_the_peak(
    mode: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_small(monkeypatch, False)
    D = torch.randn(12, 3, dtype=torch.float64).repeat(1, 2)
    layer = SparseCoding(12, 6, 3, dictionary=D, **mode).double()
    x = torch.randn(40, 12, dtype=torch.float64, requires_grad=True)
    g = torch.randn(40, 6, dtype=torch.float64)
    assert fused.gram_is_cheaper(40, 12, 6, 3, backward=True)
    fast = codes_and_gradients(layer, x, g)
    layer.fused = False
    for ours, plain in zip(fast, codes_and_gradients(layer, x, g), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("n", [40, 9000])
def test_instances_without_features_have_finite_gradients(
    n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_small(monkeypatch, False)
    layer = SparseCoding(12, 6, dictionary="random")
    x = torch.randn(n, 12)
    x[::3] = 0.0
    x.requires_grad_()
    layer(x).square().sum().backward()
    for parameter in (x, *layer.parameters()):
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()


def test_the_gradient_of_a_small_threshold_keeps_its_digits() -> None:
    layer, x = SparseCoding(64, 32, bounds=(0.01, 0.02)), torch.randn(3000, 64)
    exact = SparseCoding(64, 32, bounds=(0.01, 0.02)).double()
    exact.load_state_dict(layer.state_dict())
    single = torch.autograd.grad(layer(x).sum(), list(layer.network.parameters()))
    double = torch.autograd.grad(exact(x.double()).sum(), list(exact.network.parameters()))
    for one, other in zip(single, double, strict=True):
        assert (one - other).norm() < 1e-3 * other.norm()
