"""Evidence: the contributions of tiles and atoms to the logits of a bag."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from scmil import Bag, build_model
from scmil.errors import DataError, OptionError
from scmil.models import aggregators
from scmil.models.aggregators import Evidence, Prediction, aggregate_bag
from scmil.models.evidence import (
    STEPS,
    TileEvidence,
    find_evidence,
    has_exact_evidence,
    integrate_gradients,
)
from scmil.models.score_files import read_scores, write_scores
from scmil.models.tile_scores import Scores, score_bag

DIM = 16
EXACT = [
    "mean", "max", "mi-net-instance", "mi-net", "mi-net-rc", "abmil", "abmil-gated", "dsmil",
    "dtfd-maxmin", "dtfd-afs", "clam-sb", "clam-mb", "acmil", "attrimil", "additive",
]  # fmt: skip


def embeddings(n: int = 9, seed: int = 0) -> Tensor:
    return 2 * torch.randn(n, DIM, generator=torch.Generator().manual_seed(seed)).double()


def aggregator(name: str, classes: int = 3, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    if name == "dgr-mil":  # its own width takes seconds
        options = {"width": 32} | options
    return aggregators.build(name, DIM, classes, **options).double().eval()


def positions(n: int) -> Tensor:
    return torch.tensor([(100 * (i % 3), 100 * (i // 3)) for i in range(n)])


@torch.no_grad()
def predict(aggregate: nn.Module, h: Tensor) -> Prediction:
    return aggregate_bag(aggregate, h, positions(len(h)))


@torch.no_grad()
def evidence_of(aggregate: nn.Module, h: Tensor, atoms: bool = False) -> TileEvidence:
    return find_evidence(aggregate, [h], predict(aggregate, h), positions(len(h)), atoms=atoms)


def bag(n: int = 9) -> Bag:
    provenance = {"side_level0": 100.0}
    return Bag("slide", embeddings(n).float(), 1, xy=positions(n), provenance=provenance)


def scored(name: str, n: int = 9, *, evidence: bool = False, **options: Any) -> Scores:
    model = build_model(DIM, 2, name, embed=[DIM], seed=0, **options)
    return score_bag(model, bag(n), ("normal", "tumour"), evidence=evidence)


# ---------------------------------------------------------------------------------- closed forms


def test_evidence_of_abmil_is_attention_times_the_projection() -> None:
    aggregate, h = aggregator("abmil-gated"), embeddings()
    found = evidence_of(aggregate, h)
    with torch.no_grad():
        a = torch.softmax(aggregate.score(h), 0)  # type: ignore[operator]
        W, b = aggregate.classifier.weight, aggregate.classifier.bias  # type: ignore[union-attr]
        for i in range(9):
            for c in range(3):
                expected = float(a[i] * (W[c] @ h[i]))  # type: ignore[index]
                assert found.tiles[i, c] == pytest.approx(expected, abs=1e-6)
    assert found.constant == pytest.approx(b.detach().numpy())  # type: ignore[union-attr]
    assert found.method == "exact"


def test_a_tile_that_alone_speaks_for_a_class_has_all_evidence_for_it() -> None:
    aggregate = aggregators.build("mean", 2, 2).eval()
    with torch.no_grad():
        aggregate.classifier.weight.copy_(torch.tensor([[-1.0, 0], [2, 0]]))  # type: ignore[union-attr]
        aggregate.classifier.bias.copy_(torch.tensor([5.0, 7]))  # type: ignore[union-attr]
    found = evidence_of(aggregate, torch.tensor([[0.0, 4], [8, 0], [0, 0], [0, 1]]))
    assert found.tiles.tolist() == [[0, 0], [-2, 4], [0, 0], [0, 0]]
    assert found.constant.tolist() == [5, 7]
    assert found.logits.tolist() == [3, 11]


def test_the_maximum_is_evidence_of_the_tile_that_has_it() -> None:
    aggregate = aggregators.build("max", 2, 2).eval()
    with torch.no_grad():
        aggregate.classifier.weight.copy_(torch.tensor([[1.0, 0], [0, 10]]))  # type: ignore[union-attr]
        aggregate.classifier.bias.zero_()  # type: ignore[union-attr]
    found = evidence_of(aggregate, torch.tensor([[3.0, 1], [5, 2], [4, 2]]))
    assert found.tiles.tolist() == [[0, 0], [5, 10], [0, 10]]


def test_tiles_that_are_not_distilled_have_no_evidence() -> None:
    found = evidence_of(aggregator("dtfd-maxmin", groups=2), embeddings(30))
    assert (np.abs(found.tiles).sum(1) > 0).sum() == 4


# ------------------------------------------------------------------------------------ all of them


@pytest.mark.parametrize("name", EXACT)
def test_these_have_exact_evidence(name: str) -> None:
    assert has_exact_evidence(aggregator(name))


@pytest.mark.parametrize("name", aggregators.names())
@pytest.mark.parametrize("classes", [2, 3])
def test_evidence_and_constant_sum_to_the_logit(
    name: str, classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scmil.models.evidence.STEPS", (2,))  # the error need not be small here
    aggregate, h = aggregator(name, classes), embeddings()
    found = evidence_of(aggregate, h, atoms=True)
    logits = predict(aggregate, h).logits.numpy()
    residual = found.constant + found.tiles.sum(0, dtype=np.float64) - logits
    assert found.errors == pytest.approx(residual, abs=1e-12)  # the printed error is the true one
    assert found.tiles.shape == (9, classes)
    if has_exact_evidence(aggregate):
        assert found.steps == 0
        assert residual == pytest.approx(0, abs=1e-5)
    else:
        assert found.steps == 2
    if found.atoms is not None:
        by_tile = found.tiles.sum(0, dtype=np.float64)
        assert found.atoms.sum(0) == pytest.approx(by_tile, abs=1e-5)


@pytest.mark.parametrize(
    "name", [name for name in aggregators.names() if has_exact_evidence(aggregator(name))]
)
def test_an_exact_term_depends_on_its_own_tile_and_its_weight_only(name: str) -> None:
    aggregate, h = aggregator(name), embeddings(6).requires_grad_()
    attention = aggregate_bag(aggregate, h, positions(6)).attention
    terms = aggregate.evidence(h, attention).terms  # type: ignore[operator]
    for i in range(6):
        [gradient] = torch.autograd.grad(terms[i].sum(), h, retain_graph=True)
        others = gradient[[k for k in range(6) if k != i]]
        assert not others.any(), i


@pytest.mark.parametrize("name", ["mi-net-instance", "mi-net", "mi-net-rc"])
def test_poolings_that_are_not_linear_get_integrated_gradients(name: str) -> None:
    found = evidence_of(aggregator(name, pooling="lse"), embeddings())
    assert found.steps > 0
    assert found.errors == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("name", ["abmil", "mean", "dtfd-afs", "clam-sb", "acmil", "additive"])
def test_evidence_does_not_depend_on_blocks_of_rows(name: str) -> None:
    aggregate, h = aggregator(name), embeddings(20)
    assert aggregate.evidence_by_rows
    with torch.no_grad():
        parts = find_evidence(aggregate, list(h.split(7)), aggregate(h), atoms=True)
    whole = evidence_of(aggregate, h, atoms=True)
    assert parts.tiles == pytest.approx(whole.tiles, abs=1e-7)
    assert (parts.atoms is None) == (whole.atoms is None) == (name == "additive")
    if parts.atoms is not None:
        assert parts.atoms == pytest.approx(whole.atoms, abs=1e-9)


# ----------------------------------------------------------------------------- integrated gradients


class Bilinear(nn.Module):
    """`logit_c = b_c + (sum_i u_c . h_i) (sum_i v_c . h_i)`: its evidence has a closed form."""

    def __init__(self) -> None:
        super().__init__()
        self.u, self.v, self.b = torch.randn(3, DIM), torch.randn(3, DIM), torch.randn(3)
        self.u, self.v, self.b = self.u.double(), self.v.double(), self.b.double()

    def forward(self, h: Tensor) -> Prediction:
        logits = self.b + (h @ self.u.T).sum(0) * (h @ self.v.T).sum(0)
        return Prediction(logits, h.new_full((len(h),), 1 / len(h)))


def test_integrated_gradients_of_a_product_divide_it_by_shapley() -> None:
    torch.manual_seed(0)
    aggregate, h = Bilinear(), embeddings()
    found = evidence_of(aggregate, h, atoms=True)
    left, right = h @ aggregate.u.T, h @ aggregate.v.T
    expected = (left * right.sum(0) + right * left.sum(0)) / 2
    assert found.tiles == pytest.approx(expected.numpy(), abs=1e-4)
    assert found.constant == pytest.approx(aggregate.b.numpy())
    assert found.errors == pytest.approx(0, abs=1e-4)


def test_integrated_gradients_of_an_exact_head_with_constant_weights_are_its_evidence() -> None:
    aggregate, h = aggregator("mean"), embeddings()
    with torch.no_grad():
        logits = aggregate(h).logits.numpy()
    found = integrate_gradients(aggregate, h, logits, atoms=True)
    exact = evidence_of(aggregate, h, atoms=True)
    assert found.tiles == pytest.approx(exact.tiles, abs=1e-6)
    assert found.constant == pytest.approx(exact.constant)
    assert found.atoms == pytest.approx(exact.atoms, abs=1e-6)


def test_an_error_that_is_not_small_is_reported_and_not_hidden() -> None:
    def jump(h: Tensor) -> Prediction:  # no gradient shows the step of the logit
        logits = torch.stack([h.sum() * 0, h.sum() * 0 + (h.detach().sum() > 0.5)])
        return Prediction(logits, h[:, 0])

    found = integrate_gradients(jump, torch.ones(2, 1), np.array([0.0, 1.0]))
    assert found.errors.tolist() == [0, -1]
    assert found.steps == max(STEPS)
    assert [found.is_complete(0), found.is_complete(1)] == [True, False]


def test_large_bags_get_fewer_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scmil.models.evidence.STEP_ROWS", 150)
    found = evidence_of(aggregator("dp-minn"), embeddings())
    assert found.steps == 16


# -------------------------------------------------------------------------------- scores of a slide


@pytest.mark.parametrize("options", [{}, {"sparse_coding": {"atoms": 16}}], ids=["plain", "sc"])
@pytest.mark.parametrize("name", ["abmil", "dsmil", "dtfd-afs"])
def test_scores_have_exact_evidence_unasked(name: str, options: dict[str, Any]) -> None:
    scores = scored(name, **options)
    assert scores.evidence is not None
    logit = scores.evidence.logits[1]
    total = scores.evidence.constant[1] + scores.of("evidence:tumour").sum()
    assert total == pytest.approx(logit, abs=1e-5)
    assert np.array_equal(scores.of("evidence"), scores.of("evidence:tumour"))
    assert "evidence:normal" in scores.kinds()
    odds = np.log(scores.probabilities[1] / scores.probabilities[0])
    assert odds == pytest.approx(logit - scores.evidence.logits[0], abs=1e-5)


def test_integrated_gradients_are_computed_only_if_asked_for() -> None:
    scores = scored("nlmil")
    assert scores.evidence is None
    assert "evidence:tumour" not in scores.kinds()
    with pytest.raises(OptionError, match="the evidence of slide 'slide' was not computed"):
        scores.of("evidence:tumour")
    asked = scored("nlmil", evidence=True)
    assert asked.evidence is not None
    assert asked.evidence.method == f"integrated gradients, {asked.evidence.steps} steps"


def test_evidence_of_large_bags_is_computed_only_if_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("scmil.models.tile_scores.CACHED_NUMBERS", 8 * DIM)
    assert scored("abmil").evidence is None
    assert scored("abmil", evidence=True).evidence is not None
    assert scored("abmil", n=8).evidence is not None


def test_contributions_of_atoms_are_those_of_their_codes() -> None:
    scores = scored("abmil", sparse_coding={"atoms": 16})
    found = scores.evidence
    assert found is not None
    assert found.atoms is not None
    assert scores.codes is not None
    model = build_model(DIM, 2, "abmil", embed=[DIM], sparse_coding={"atoms": 16}, seed=0)
    weight = model.aggregate.classifier.weight.detach().double().numpy()  # type: ignore[union-attr]
    codes = scores.codes.dense().astype(np.float64)
    for sign, part in ((1, found.atoms[:16]), (-1, found.atoms[16:])):
        used = np.where(sign * codes > 0, codes, 0)
        expected = (scores.attention @ used)[:, None] * weight.T
        assert part == pytest.approx(expected, abs=2e-4)  # codes are kept in half precision
    assert found.constant + found.atoms.sum(0) == pytest.approx(found.logits, abs=1e-5)


def test_evidence_is_written_and_read_again(tmp_path: Path) -> None:
    scores = scored("abmil", sparse_coding={"atoms": 16})
    again = read_scores(write_scores(scores, tmp_path))
    assert scores.evidence is not None
    assert again.evidence is not None
    for name in ("tiles", "constant", "logits", "atoms"):
        assert np.array_equal(getattr(again.evidence, name), getattr(scores.evidence, name))
    assert again.evidence.steps == 0
    assert read_scores(write_scores(scored("nlmil"), tmp_path)).evidence is None


@pytest.mark.parametrize(
    "fault",
    [
        {"tiles": np.zeros((9, 3), np.float32)},
        {"constant": np.zeros(1)},
        {"logits": np.zeros(2, int)},
        {"atoms": np.zeros((4, 2))},
        {"steps": 1000},
    ],
    ids=lambda fault: next(iter(fault)),
)
def test_files_with_damaged_evidence_are_rejected(fault: dict[str, Any], tmp_path: Path) -> None:
    from dataclasses import replace

    scores = scored("abmil")
    assert scores.evidence is not None
    path = write_scores(replace(scores, evidence=replace(scores.evidence, **fault)), tmp_path)
    with pytest.raises(DataError, match="damaged or not a file of scores"):
        read_scores(path)


def test_an_aggregator_of_another_package_can_declare_exact_evidence() -> None:
    class Sum(nn.Module):
        def forward(self, h: Tensor) -> Prediction:
            return Prediction(h.sum(0)[:2] + 1, h.new_full((len(h),), 1 / len(h)))

        def evidence(self, h: Tensor, attention: Tensor) -> Evidence:
            return Evidence(h[:, :2], torch.ones(2))

    found = evidence_of(Sum(), embeddings().float())
    assert found.errors == pytest.approx(0, abs=1e-5)
    assert found.steps == 0
