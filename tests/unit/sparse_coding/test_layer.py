from __future__ import annotations

import math
import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.linear_model import Lasso
from torch import Tensor

from scmil.sparse_coding.equations import (
    dct_dictionary,
    objective,
    random_dictionary,
    soft_threshold,
    unrolled_ista,
)
from scmil.sparse_coding.layer import SparseCoding, SparsityNetwork, StepWarning


def squared_norm(D: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(D, 2) ** 2


def coherence(D: Tensor) -> float:
    return float((D.T @ D - torch.eye(D.shape[1])).abs().max())


def test_unrolled_layers_take_the_same_path_as_ista() -> None:
    D, x = random_dictionary(12, 30).double(), torch.randn(7, 12).double()
    mu, lam = squared_norm(D), torch.rand(7, 1).double()
    alpha = torch.zeros(7, 30).double()
    for layers in range(1, 6):
        # Eq. (2), row by row.
        gradient = torch.stack([D.T @ (D @ a - row) for a, row in zip(alpha, x, strict=True)])
        alpha = soft_threshold(alpha - gradient / mu, lam / mu)
        torch.testing.assert_close(unrolled_ista(x, D, mu, lam, layers), alpha)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("n", [3, 3000])  # both kernels
def test_the_printed_form_is_that_of_the_paper(fused: bool, n: int) -> None:
    """Eqs. (2), (3) and (4) as they are printed, vector by vector: the threshold is lambda."""
    layer = SparseCoding(
        25, 36, 4, dictionary="random", sparsity="printed", normalise=False, fused=fused
    ).double()
    x = 4 * torch.randn(n, 25).double()
    D, mu = layer.dictionary.detach(), layer.mu.detach()
    W_t, W_e = torch.eye(36).double() - D.T @ D / mu, D.T / mu

    def S(v: Tensor, lam: Tensor) -> Tensor:
        return torch.sign(v) * torch.maximum(v.abs() - lam, torch.zeros_like(v))

    codes = layer(x)
    for x_i, lam, code in zip(x[:5], layer.network(x)[:5, 0], codes[:5], strict=True):
        ista = lista = torch.zeros(36).double()
        for _ in range(4):
            ista = S(ista - D.T @ (D @ ista - x_i) / mu, lam)
            lista = S(W_t @ lista + W_e @ x_i, lam)
        torch.testing.assert_close(code, ista)
        torch.testing.assert_close(code, lista)
    assert 0.01 < (codes != 0).double().mean() < 0.9
    layer.printed = False
    assert not torch.allclose(layer(x), codes)


def test_the_printed_form_converges_to_the_lasso_at_lambda_times_mu() -> None:
    D, x = random_dictionary(12, 30).double(), torch.randn(7, 12).double()
    mu, lam = squared_norm(D), torch.full((7, 1), 0.02).double()
    torch.testing.assert_close(
        unrolled_ista(x, D, mu, lam, 40, printed=True), unrolled_ista(x, D, mu, lam * mu, 40)
    )


@pytest.mark.slow
def test_many_layers_converge_to_the_lasso_at_the_documented_lambda() -> None:
    D, x = random_dictionary(20, 40).double(), torch.randn(3, 20).double()
    lam = torch.tensor([[0.1], [0.3], [0.5]]).double()
    alpha = unrolled_ista(x, D, squared_norm(D), lam, 8_000)
    for row in range(3):  # scikit-learn divides the squared error by the number of rows, here p
        model = Lasso(alpha=lam[row].item() / 20, fit_intercept=False, tol=1e-12, max_iter=100_000)
        expected = model.fit(D.numpy(), x[row].numpy()).coef_
        np.testing.assert_allclose(alpha[row].numpy(), expected, atol=1e-6)


def test_a_deep_layer_solves_the_lasso_of_the_normalised_instance() -> None:
    layer = SparseCoding(16, atoms=32, layers=5000, dictionary="random", fused=False).double()
    x = torch.randn(1, 16).double()
    with torch.no_grad():
        alpha, lam = layer(x)[0], layer.sparsity(x).item()
    centred = (x - x.mean()) / x.std(correction=0)
    model = Lasso(alpha=lam / 16, fit_intercept=False, tol=1e-12, max_iter=100_000)
    expected = model.fit(layer.dictionary.detach().numpy(), centred[0].numpy()).coef_
    np.testing.assert_allclose(alpha.numpy(), expected, atol=1e-5)


def test_every_layer_lowers_equation_one() -> None:
    D, x, lam = dct_dictionary(16, 64), torch.randn(5, 16), torch.full((5, 1), 0.1)
    costs = [
        objective(x, D, unrolled_ista(x, D, squared_norm(D), lam, layers), lam)
        for layers in range(1, 8)
    ]
    assert all((later <= earlier + 1e-6).all() for earlier, later in pairwise(costs))


@pytest.mark.parametrize(
    ("p", "m", "norm", "mutual"),
    [  # reference values of the construction
        (484, 256, 2.066, 0.186),
        (484, 1024, 7.922, 0.861),
        (484, 64, 1.868, 0.160),
        (484, 16, 1.093, 0.046),
        (64, 256, 14.007, 0.985),
        (121, 256, 7.517, 0.887),
        (256, 256, 3.655, 0.126),
        (512, 256, 1.000, 0.000),
        (230, 256, 2.220, 0.272),
        (166, 256, 3.072, 0.887),
        (128, 256, 3.984, 0.976),
    ],
)
def test_the_cosine_dictionary_has_the_tabulated_norms(
    p: int, m: int, norm: float, mutual: float
) -> None:
    D = dct_dictionary(p, m)
    assert float(squared_norm(D)) == pytest.approx(norm, abs=6e-4)
    assert coherence(D) == pytest.approx(mutual, abs=6e-4)
    torch.testing.assert_close(D.norm(dim=0), torch.ones(m))


def test_the_random_dictionary_has_the_norm_of_theory() -> None:
    D = random_dictionary(484, 256, torch.Generator().manual_seed(1))
    assert float(squared_norm(D)) == pytest.approx((1 + math.sqrt(256 / 484)) ** 2, rel=0.03)
    again = random_dictionary(484, 256, torch.Generator().manual_seed(1))
    assert torch.equal(D, again)


def test_mu_starts_at_the_squared_norm_and_cannot_cross_zero() -> None:
    layer = SparseCoding(64)
    torch.testing.assert_close(layer.mu, squared_norm(layer.dictionary))
    for step in (-5.0, -1.0, 2.0):
        before = layer.mu.detach().clone()
        layer.log_mu.data += step
        torch.testing.assert_close(layer.mu.detach(), before * math.exp(step))
        assert layer.mu > 0


def test_a_given_dictionary_is_taken_and_copied() -> None:
    D = torch.eye(4)
    layer = SparseCoding(4, atoms=4, dictionary=D)
    layer.dictionary.data += 1
    assert torch.equal(D, torch.eye(4))


def test_each_instance_has_its_own_sparsity() -> None:
    lam = SparseCoding(64).sparsity(torch.randn(50, 64))
    assert lam.shape == (50, 1)
    assert lam.unique().numel() == 50
    assert (lam > 0).all()


def test_instances_do_not_interact() -> None:
    layer, x = SparseCoding(32, atoms=64).double(), torch.randn(9, 32).double()
    torch.testing.assert_close(layer(x), torch.cat([layer(row[None]) for row in x]))


def test_leading_axes_are_kept() -> None:
    layer, x = SparseCoding(32, atoms=64).double(), torch.randn(2, 3, 32).double()
    torch.testing.assert_close(layer(x)[1, 2], layer(x[1, 2:3])[0])
    assert layer(torch.zeros(0, 32).double()).shape == (0, 64)


@pytest.mark.parametrize("scale", [1e-3, 0.044, 1.0, 50.0, 1e4])
@pytest.mark.parametrize(
    "make", [torch.randn, lambda n, p: torch.randn(n, p).relu(), lambda n, p: 3 + torch.rand(n, p)]
)
def test_it_starts_alive_at_every_scale(scale: float, make) -> None:  # type: ignore[no-untyped-def]
    layer, x = SparseCoding(64), scale * make(200, 64)
    statistics = layer.statistics(x)
    assert statistics.dead == 0
    assert 0.005 < statistics.density < 0.6
    layer(x).square().sum().backward()
    assert all(p.grad is not None and (p.grad != 0).any() for p in layer.parameters())


@pytest.mark.parametrize("sparsity", ["printed", "absolute"])
def test_the_form_of_the_paper_starts_dead_on_small_embeddings(sparsity: str) -> None:
    layer = SparseCoding(64, sparsity=sparsity, normalise=False)
    assert layer.statistics(0.05 * torch.randn(200, 64).relu()).dead > 0.9


def test_codes_do_not_depend_on_the_scale_of_the_features() -> None:
    layer, x = SparseCoding(64).double(), torch.randn(20, 64).double()
    torch.testing.assert_close(layer(x), layer(1000 * x))


def test_a_constant_instance_is_coded_as_zero_and_has_finite_gradients() -> None:
    layer, x = SparseCoding(64), torch.full((3, 64), 2.0, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert (layer(x) == 0).all()
    assert layer.statistics(x).dead == 1


def test_statistics_read_density_lambda_and_step() -> None:
    layer, x = SparseCoding(64), torch.randn(100, 64)
    statistics = layer.statistics(x)
    assert statistics.density == pytest.approx((layer(x) != 0).float().mean().item())
    assert statistics.lam == pytest.approx(layer.sparsity(x).median().item())
    assert statistics.step == pytest.approx(1, abs=1e-5)


def test_a_step_that_is_too_long_is_reported_once() -> None:
    layer = SparseCoding(64)
    layer.dictionary.data *= 1.2
    with pytest.warns(StepWarning, match=r"\|D\|\^2 / mu = 1\.44"):
        layer.train()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer.eval()


def test_the_network_has_three_layers_each_with_softplus() -> None:
    network, x = SparsityNetwork(484), torch.randn(5, 484)
    expected, widths = x, []
    for linear in (part for part in network if isinstance(part, torch.nn.Linear)):
        expected = (expected @ linear.weight.mT + linear.bias).exp().log1p()
        widths.append(linear.out_features)
    assert widths == [121, 60, 1]
    torch.testing.assert_close(network(x), expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dictionary": "cosine"}, "Known: dct, random, instances, kmeans, online"),
        ({"output": "both"}, "Known: codes, denoised, joined"),
        ({"learning": {"rat": 0.1}}, "learning: unknown 'rat'. Known: unit_norm, scale, rate"),
        ({"learning": 3}, "learning = 3: a mapping with options is needed"),
        ({"learning": {"unit_norm": "yes"}}, "unit_norm = 'yes': True or False is needed"),
        ({"learning": {"scale": "big"}}, "scale = 'big'. Known: auto, none, gain, unit"),
        ({"learning": {"rate": 0}}, "rate = 0: a number from 1e-06 to 1e.06 is needed"),
        ({"learning": {"reconstruction": -1.0}}, "reconstruction = -1.0: a number from 0"),
        ({"learning": {"warmup": 1.5}}, "warmup = 1.5: a whole number from 0"),
        ({"learning": {"warmup": 2}}, "warmup = 2 is for a dictionary from data"),
        ({"output": "denoised", "learning": {"scale": "gain"}}, "is for codes, and output"),
        (
            {"dictionary": torch.eye(3)},
            r"the dictionary is \(3, 3\), and \(dim, atoms\) is \(64, 256\)",
        ),
        ({"sparsity": "none"}, "Known: relative, absolute, printed"),
        ({"bounds": (0.5, 0.2)}, "0 <= low < high <= 1"),
        ({"layers": 0}, "at least 1"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_wrong_options_raise(options: dict, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ValueError, match=message):
        SparseCoding(64, **options)


def test_one_dimension_has_no_cosines() -> None:
    with pytest.raises(ValueError, match="at least 2 dimensions"):
        dct_dictionary(1, 4)


def test_nonnegative_codes_converge_to_the_nonnegative_lasso() -> None:
    from sklearn.linear_model import Lasso

    layer = SparseCoding(
        12, 30, 3000, dictionary="random", nonnegative=True, fused=False
    ).double()  # fmt: skip
    x = torch.randn(4, 12).double()
    with torch.no_grad():
        codes, lam = layer(x), layer.sparsity(x)[:, 0]
        rows = torch.nn.functional.layer_norm(x, (12,), eps=1e-12)
    assert (codes >= 0).all()
    assert (codes > 0).any()
    for row, one, code in zip(rows, lam, codes, strict=True):
        lasso = Lasso(
            alpha=float(one) / 12, fit_intercept=False, positive=True, tol=1e-12, max_iter=100_000
        )
        lasso.fit(layer.dictionary.detach().numpy(), row.numpy())
        torch.testing.assert_close(code, torch.from_numpy(lasso.coef_), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("n", [3, 2000])
def test_an_instance_without_a_positive_correlation_has_no_nonnegative_code(n: int) -> None:
    D = torch.rand(6, 5).double() + 0.1
    layer = SparseCoding(6, 5, dictionary=D, nonnegative=True, normalise=False).double()
    x = (-torch.rand(n, 6).double()).requires_grad_()
    codes = layer(x)
    assert not codes.any()
    assert not any(g.any() for g in torch.autograd.grad(codes.sum(), [x, *layer.parameters()]))


def test_the_outputs_are_codes_features_or_both() -> None:
    D, x = random_dictionary(16, 25), torch.randn(7, 16)
    torch.manual_seed(0)
    layer = SparseCoding(16, 25, dictionary=D)
    codes = layer(x)
    for output, expected in (
        ("codes", codes),
        ("denoised", codes @ D.T),
        ("joined", torch.cat([x, codes], 1)),
    ):
        layer.output = output
        torch.testing.assert_close(layer(x), expected)
        assert layer(x).shape[-1] == layer.width
        assert layer(x[None]).shape == (1, 7, layer.width)
        torch.testing.assert_close(layer.codes(x), codes)


def test_unit_codes_have_a_root_mean_square_of_one_and_zero_stays_zero() -> None:
    layer = SparseCoding(16, 25, learning={"scale": "unit"})
    x = torch.randn(9, 16)
    x[4] = 1.0  # constant: its code is zero
    square = layer(x).square().mean(1)
    torch.testing.assert_close(square[:4], torch.ones(4))
    assert square[4] == 0


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("bag", [None, 500])
def test_the_reconstruction_term_acts_as_if_it_were_added_to_the_loss(
    fused: bool, bag: int | None
) -> None:
    layer = SparseCoding(9, 12, dictionary="random", learning={"reconstruction": 0.3}, fused=fused)
    layer.double()
    x = torch.randn(50, 9).double().requires_grad_()
    inputs = [x, *layer.parameters()]
    implicit = torch.autograd.grad(layer(x, bag).square().sum(), inputs)
    layer.eval()  # the term is for training
    codes = layer(x)
    rows = torch.nn.functional.layer_norm(x, (9,), eps=1e-12)
    residual = codes @ layer.dictionary.T - rows
    term = 0.3 * residual.square().sum() / (2 * 9 * (bag or 50))
    explicit = torch.autograd.grad(codes.square().sum() + term, inputs)
    plain = torch.autograd.grad(layer(x).square().sum(), inputs)
    for one, other, without in zip(implicit, explicit, plain, strict=True):
        torch.testing.assert_close(one, other)
        assert not torch.allclose(one, without)


def test_unit_norm_scales_a_given_dictionary() -> None:
    layer = SparseCoding(
        4, 6, dictionary=3 * random_dictionary(4, 6), learning={"unit_norm": True}
    )  # fmt: skip
    torch.testing.assert_close(layer.dictionary.detach().norm(dim=0), torch.ones(6))
    torch.testing.assert_close(layer.mu.detach(), squared_norm(layer.dictionary.detach()))
