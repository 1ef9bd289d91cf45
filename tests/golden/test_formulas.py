"""Aggregators without public code of their authors, compared with the formulas of the papers.

Each formula is written out here instance by instance in double precision, without functions of the
library. Logits, attention, loss and gradients of the network agree to 1e-10 in double precision,
and to 1e-5 in single precision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
from golden_cases import WITHOUT_CODE
from golden_numbers import Differences, uniform, weight
from torch import Tensor

from scmil import build_model
from scmil.models.model import MILModel

CLOSE = {torch.float64: 1e-10, torch.float32: 1e-5}
DIM, WIDTH = 24, 12
SIZES = (1, 2, 7, 16)
Weights = Mapping[str, Tensor]
Formula = Callable[[Weights, Tensor, int], tuple[Tensor, Tensor]]


def linear(w: Weights, name: str, row: Tensor) -> Tensor:
    """W row + b, or W row."""
    product = w[f"{name}.weight"] @ row
    return product + w[f"{name}.bias"] if f"{name}.bias" in w else product


def softmax(scores: list[Tensor]) -> list[Tensor]:
    """The softmax of a list of numbers."""
    exponentials = [torch.exp(score - torch.stack(scores).max().detach()) for score in scores]
    return [each / torch.stack(exponentials).sum() for each in exponentials]


def mean_of(rows: Sequence[Tensor]) -> Tensor:
    """The mean of rows."""
    return torch.stack(list(rows)).sum(0) / len(rows)


def weighted(weights: list[Tensor], rows: list[Tensor]) -> Tensor:
    """The weighted sum of rows."""
    return torch.stack([a * row for a, row in zip(weights, rows, strict=True)]).sum(0)


def mean_pooling(w: Weights, h: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    return linear(w, "classifier", mean_of(list(h))), h.new_full((len(h),), 1 / len(h))


def max_pooling(w: Weights, h: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """The attention is the share of the dimensions that an instance has the maximum of."""
    largest = torch.stack([h[:, j].max() for j in range(h.shape[1])])
    wins = [[float(h[i, j] == largest[j]) for j in range(h.shape[1])] for i in range(len(h))]
    ties = [sum(column) for column in zip(*wins, strict=True)]
    shares = [sum(win / tie for win, tie in zip(row, ties, strict=True)) for row in wins]
    # With ties, torch's maximum of the embeddings divides the gradient, and so does amax here.
    return linear(w, "classifier", h.amax(0)), h.new_tensor(shares) / h.shape[1]


def additive(w: Weights, h: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Javed et al. (2022): the sum over the instances of psi(a_k h_k) - psi(0), and a bias."""

    def score(row: Tensor) -> Tensor:
        gate = torch.sigmoid(linear(w, "score.U", row))
        return linear(w, "score.w", torch.tanh(linear(w, "score.V", row)) * gate)[0]

    def psi(row: Tensor) -> Tensor:
        return linear(w, "second", torch.relu(linear(w, "first", row)))

    a = softmax([score(row) for row in h])
    terms = [psi(ak * row) - psi(0 * row) for ak, row in zip(a, h, strict=True)]
    return torch.stack(terms).sum(0) + w["bias"], torch.stack(a)


def dynamic_pooling(w: Weights, h: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Yan et al. (2018): three rounds of routing; |v| is the probability of two classes."""
    capsules = 1 if classes == 2 else classes
    lengths, shares = [], []
    for k in range(capsules):
        own = slice(k * h.shape[1], (k + 1) * h.shape[1])
        u = [row if classes == 2 else w["transform.weight"][own] @ row for row in h]
        b = [torch.zeros((), dtype=h.dtype) for _ in u]
        for _ in range(3):
            c = softmax(b)
            s = weighted(c, u)
            squared = (s**2).sum()
            v = squared / (1 + squared) * s / squared.sqrt()
            b = [bk + row @ v for bk, row in zip(b, u, strict=True)]
        lengths.append((v**2).sum().sqrt())
        shares.append(torch.stack(c))
    # The logit of the probability p = |v| is log(p / (1 - p)).
    logits = torch.stack([torch.log(p / (1 - p)) for p in lengths])
    logits = torch.cat([torch.zeros(1, dtype=h.dtype), logits]) if capsules == 1 else logits
    return logits, torch.stack(shares).mean(0)


def neighbours(h: Tensor) -> list[list[int]]:
    """The instances within the root mean squared distance of two different instances."""
    n = len(h)
    distances = [[float((h[i] - h[j]).detach().norm()) for j in range(n)] for i in range(n)]
    others = [distances[i][j] ** 2 for i in range(n) for j in range(n) if i != j]
    eta = (sum(others) / len(others)) ** 0.5 if others else 0.0
    return [
        [j for j in range(n) if j != i and distances[i][j] <= eta * (1 + 1e-5)] for i in range(n)
    ]


def graph(w: Weights, h: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Tu et al. (2019): GraphSAGE over similar instances, pooled into four soft clusters."""
    z, S = [], []
    for i, near in enumerate(neighbours(h)):
        mean = mean_of([h[j] for j in near]) if near else torch.zeros_like(h[0])
        both = torch.cat([h[i], mean])
        z.append(torch.relu(linear(w, "embed", both)))
        S.append(torch.stack(softmax(list(linear(w, "assign", both)))))
    nodes = []
    for k in range(4):
        share = mean_of([row[k] for row in S]).clamp(min=0.01)
        nodes.append(weighted([row[k] for row in S], z) / (len(h) * share))
    hidden = torch.relu(linear(w, "classifier.0", torch.cat(nodes)))
    norms = torch.stack([row.norm() * each.norm() for row, each in zip(S, z, strict=True)])
    return linear(w, "classifier.2", hidden), norms / norms.sum()


def non_local(w: Weights, h: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Wang et al. (2018): h + W sum_j softmax_j(theta(h) . phi(h_j)) g(h_j), then the mean."""
    keys, values = ([linear(w, name, row) for row in h] for name in ("phi", "g"))
    return _non_local(w, h, keys, values, torch.eye(len(h), dtype=h.dtype))


def asymmetric_non_local(w: Weights, h: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Keys and values are averages of 1, 9, 36 and 64 parts of the sequence sorted by the key."""
    keys, values = ([linear(w, name, row) for row in h] for name in ("phi", "g"))
    order = sorted(range(len(h)), key=lambda i: float(keys[i].detach().norm()))
    parts = []  # the instances of each part
    for count in (1, 9, 36, 64):
        for number in range(count):
            first, last = number * len(h) // count, -(-(number + 1) * len(h) // count)
            parts.append([order[i] for i in range(first, last)])
    pooled = [[mean_of([rows[i] for i in part]) for part in parts] for rows in (keys, values)]
    shares = [[(i in part) / len(part) for i in range(len(h))] for part in parts]
    return _non_local(w, h, pooled[0], pooled[1], torch.tensor(shares, dtype=h.dtype))


def _non_local(
    w: Weights, h: Tensor, keys: list[Tensor], values: list[Tensor], shares: Tensor
) -> tuple[Tensor, Tensor]:
    """`shares` (keys, instances): how the weight of a key is divided between the instances."""
    rows, attention = [], []
    for row in h:
        query = linear(w, "theta", row)
        a = softmax([query @ key for key in keys])
        rows.append(row + linear(w, "W", weighted(a, values)))
        attention.append(torch.stack(a) @ shares)
    return linear(w, "classifier", mean_of(rows)), mean_of(attention)


FORMULAS: dict[str, Formula] = {
    "mean": mean_pooling,
    "max": max_pooling,
    "additive": additive,
    "gnn-mil": graph,
    "dp-minn": dynamic_pooling,
    "nlmil": non_local,
    "anlmil": asymmetric_non_local,
}


def test_every_aggregator_without_code_has_a_formula() -> None:
    assert set(FORMULAS) == set(WITHOUT_CODE)


def network(name: str, classes: int) -> MILModel:
    """A network with the weights of the rule of the golden numbers."""
    model = build_model(DIM, classes, name, embed={"widths": [WIDTH], "bias": False}, seed=0)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.copy_(weight(f"{name}/{key}", tuple(parameter.shape)))
    return model.eval()


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("name", WITHOUT_CODE)
@pytest.mark.parametrize("dtype", CLOSE, ids=str)
def test_the_network_gives_the_numbers_of_the_formula(
    name: str, classes: int, dtype: torch.dtype
) -> None:
    model, differences = network(name, classes).to(dtype), Differences()
    for n in SIZES:
        x = torch.tensor(3**0.5 * uniform(f"{name}/x_{n}", (n, DIM)), dtype=dtype)
        x.requires_grad_()
        model.zero_grad()
        prediction = model(x)
        loss = model.loss(prediction, 1)
        loss.backward()
        exact = {key: p.detach().double().requires_grad_() for key, p in model.named_parameters()}
        x_exact = x.detach().double().requires_grad_()
        w = {key.removeprefix("aggregate."): p for key, p in exact.items()}
        h = torch.stack([torch.relu(exact["embed.0.weight"] @ row) for row in x_exact])
        logits, attention = FORMULAS[name](w, h, classes)
        expected = -torch.log_softmax(logits, 0)[1]
        expected.backward()
        differences.add_output(prediction.logits.detach().double(), logits.detach())
        differences.add_output(prediction.attention.detach().double(), attention.detach().double())
        differences.add_output(loss.detach().double(), expected.detach())
        gradients = [(x.grad, x_exact.grad)]
        gradients += [(p.grad, exact[key].grad) for key, p in model.named_parameters()]
        norms = [0.0 if theirs is None else theirs.norm().item() for _, theirs in gradients]
        for (ours, theirs), own in zip(gradients, norms, strict=True):
            assert ours is not None
            assert theirs is not None
            # A single instance of ANLMIL has 110 equal keys: the rounding errors of gradients that
            # are zero in theory are relative to the others.
            differences.add_gradient(ours, theirs, own if own > 1e-9 else max(norms), max(norms))
    assert differences.outputs < CLOSE[dtype]
    assert differences.gradients < CLOSE[dtype]
