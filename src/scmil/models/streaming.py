"""Bags of any size: rows go through a model block by block, and the answer is that of the bag in one piece.

Embedding and sparse coding act on each row alone, so blocks of rows go through them. What comes after has a rule for each
aggregator: sums and maxima are kept running, and so is the softmax of attention, whose sums are scaled down whenever a
larger score comes. What has no rule here runs in one piece.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from scmil.models.aggregators import Prediction
from scmil.models.aggregators.abmil import ABMIL
from scmil.models.aggregators.dsmil import DSMIL
from scmil.models.aggregators.dtfd import DTFD
from scmil.models.aggregators.pooling import Pooling
from scmil.errors import BagError
from scmil.sparse_coding.released import ReleasedSparseCoding
from scmil.sparse_coding.layer import SparseCoding

BLOCK_ROWS = 8192  # of a prediction: 16 MiB of 512 dimensions, and the products are as fast as with more
KEPT_NUMBERS = 2**25  # rules that pass twice keep up to 128 MiB of refined rows, and compute larger ones again
RECOMPUTED_ROWS = 65_536  # larger bags train with recomputation (docs/decisions/0009-bags-of-any-size.md)

# What acts on each row alone, with all that is inside it.
ROW_WISE = (
    nn.Linear, nn.LayerNorm, nn.Identity, nn.Dropout, nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus,
    SparseCoding, ReleasedSparseCoding,
)  # fmt: skip


class Rows(Protocol):
    """Features of one bag that can be read by rows: a tensor, an array, a memory map, a data set of h5py."""

    @property
    def shape(self) -> tuple[int, ...]: ...  # noqa: D102
    def __getitem__(self, rows: slice, /) -> Any: ...


class Model(Protocol):
    """The parts of a `MILModel`."""

    embed: nn.Module
    refine: nn.Module
    aggregate: nn.Module
    dim: int | None
    training: bool

    def __call__(self, x: Tensor, /) -> Prediction: ...  # noqa: D102
    def train(self, mode: bool = True) -> Any: ...  # noqa: D102
    def parameters(self) -> Iterator[nn.Parameter]: ...  # noqa: D102


@torch.no_grad()
def predict_bag(model: Model, features: Rows) -> Prediction:
    """What the model says about a bag of any size, which is read by blocks if the model's parts allow it.

    >>> from scmil.models.model import build_model
    >>> model, features = build_model(16, 2, "abmil-gated", embed=[8], seed=0), torch.randn(20_000, 16)
    >>> torch.allclose(predict_bag(model, features).logits, model(features).logits, atol=1e-6)
    True
    """
    if model.training:
        model.train(False)
        try:
            return predict_bag(model, features)
        finally:
            model.train(True)
    rule = _rule(model.aggregate)
    if rule is None or not _is_longer(features, BLOCK_ROWS) or not _rows_are_apart(model):
        return model(_as_input(features, model))
    _check_dim(model, features)
    return rule(model.aggregate, _Blocks(model, features))


def forward(model: Model, features: Tensor) -> Prediction:
    """What the model says, to learn from it: of a large bag, embedding and sparse coding are computed again in backward.

    Then a row keeps its features and its codes, and none of the tensors in between.
    """
    from torch.utils.checkpoint import checkpoint

    if not _is_longer(features, RECOMPUTED_ROWS) or not _rows_are_apart(model):
        return model(_as_input(features, model))
    _check_dim(model, features)
    aggregate, blocks = model.aggregate, _blocks(len(features))
    score = aggregate.score if type(aggregate) is ABMIL else None

    def refined(block: Tensor) -> tuple[Tensor, ...]:
        h = model.refine(model.embed(_as_input(block, model)))
        return (h,) if score is None else (h, score(h))

    for rows in blocks:
        _check_finite(features[rows], features)
    parts = [checkpoint(refined, features[rows], use_reentrant=False) for rows in blocks]
    h, *scores = (torch.cat(column) for column in zip(*parts, strict=True))
    if not scores:
        prediction: Prediction = aggregate(h)
        return prediction
    attention = torch.softmax(scores[0], dim=0)
    return Prediction(aggregate.classifier(attention @ h), attention)  # type: ignore[operator]


def _rows_are_apart(model: Model) -> bool:
    return _is_row_wise(model.embed) and _is_row_wise(model.refine)


def _is_row_wise(module: nn.Module) -> bool:
    if isinstance(module, nn.Sequential):
        return all(map(_is_row_wise, module))
    return isinstance(module, ROW_WISE)


# ------------------------------------------------------------------------------------------------------------- blocks


class _Blocks:
    """The refined rows of a bag, block by block, as often as they are asked for."""

    def __init__(self, model: Model, features: Rows) -> None:
        self.model, self.features, self.n = model, features, features.shape[0]
        self._kept: dict[int, Tensor] = {}

    def once(self) -> Iterator[tuple[slice, Tensor]]:
        """Each slice of rows with their embeddings."""
        for rows in _blocks(self.n):
            yield rows, self._kept[rows.start] if rows.start in self._kept else self._refined(rows)

    def with_more_to_come(self) -> Iterator[tuple[slice, Tensor]]:
        """As `once`, and what has room is kept for the next time."""
        for rows, h in self.once():
            if self.n * h.shape[1] <= KEPT_NUMBERS:
                self._kept[rows.start] = h
            yield rows, h

    def rows_at(self, positions: Tensor) -> Tensor:
        """The embeddings of a few rows."""
        return torch.cat([self._refined(slice(at, at + 1)) for at in positions.tolist()])

    def _refined(self, rows: slice) -> Tensor:
        x = _as_input(self.features[rows], self.model)
        _check_finite(x, self.features)
        h: Tensor = self.model.refine(self.model.embed(x))
        return h


def _blocks(n: int) -> list[slice]:
    """Slices of nearly equal length: a short last one would be computed in another way than the others."""
    count = -(-n // BLOCK_ROWS)
    edges = [n * i // count for i in range(count + 1)]
    return [slice(start, end) for start, end in pairwise(edges)]


def _as_input(features: Any, model: Model) -> Tensor:
    """Rows as a tensor of the model's precision, where the model is; features on disk are copied into memory."""
    like = next(iter(model.parameters()), None)
    return _tensor(features) if like is None else _tensor(features).to(like.device, like.dtype)


def _tensor(features: Any) -> Tensor:
    return features if isinstance(features, Tensor) else torch.from_numpy(np.array(features))


def _is_longer(features: Rows, rows: int) -> bool:
    return len(features.shape) == 2 and features.shape[0] > rows  # what is no matrix, the model refuses


def _check_dim(model: Model, features: Rows) -> None:
    if model.dim not in (None, features.shape[1]):
        model(_as_input(features[:1], model))  # refuses it in its own words


def _check_finite(x: Tensor, features: Rows) -> None:
    if torch.isfinite(x.sum(dtype=torch.float32)) or torch.isfinite(x).all():  # one sum in the ordinary case
        return
    bad = torch.cat([~torch.isfinite(_tensor(features[rows])).all(1) for rows in _blocks(features.shape[0])])
    first = int(bad.int().argmax())
    raise BagError(
        f"{int(bad.sum())} of the bag's {len(bad)} instances have NaN or infinite features; the first is number {first}."
    )


# -------------------------------------------------------------------------------------------------------------- rules


class _RunningSoftmax:
    """`softmax(scores)^T h` over all rows that were added: (columns, d). A score of -inf leaves its row out."""

    def __init__(self) -> None:
        self._peak = self._total = self._sum = torch.zeros(0)

    def add(self, scores: Tensor, h: Tensor) -> None:
        """Add rows h (k, d) with scores (k, columns)."""
        peak = scores.amax(0).clamp(min=torch.finfo(scores.dtype).min)
        if first := not self._peak.numel():
            self._peak = peak
        peak = torch.maximum(peak, self._peak)
        weights, shrink = torch.exp(scores - peak), torch.exp(self._peak - peak)
        total, pooled = weights.sum(0), weights.T @ h
        self._total = total if first else self._total * shrink + total
        self._sum = pooled if first else self._sum * shrink[:, None] + pooled
        self._peak = peak

    @property
    def mean(self) -> Tensor:
        return self._sum / self._total[:, None]


def _mean(aggregate: Any, blocks: _Blocks) -> Prediction:
    total: Any = 0
    for _, h in blocks.once():
        total = total + h.sum(0)
    logits = aggregate.classifier(total / blocks.n)
    return Prediction(logits, logits.new_full((blocks.n,), 1 / blocks.n))


def _max(aggregate: Any, blocks: _Blocks) -> Prediction:
    best, winners = torch.tensor(-math.inf), torch.tensor(0)
    for _, h in blocks.with_more_to_come():
        best, before = torch.maximum(best.to(h), h.amax(0)), best.to(h)
        winners = winners.to(h.device) * (before == best) + (h == best).sum(0)
    attention = torch.cat([((h == best) / winners).mean(1, dtype=h.dtype) for _, h in blocks.once()])
    return Prediction(aggregate.classifier(best), attention)


def _abmil(aggregate: Any, blocks: _Blocks) -> Prediction:
    pooled, scores = _RunningSoftmax(), []
    for _, h in blocks.once():
        scores.append(aggregate.score(h))
        pooled.add(scores[-1][:, None], h)
    return Prediction(aggregate.classifier(pooled.mean[0]), torch.softmax(torch.cat(scores), dim=0))


def _dsmil(aggregate: Any, blocks: _Blocks) -> Prediction:
    best = critical = torch.zeros(0)
    for _, h in blocks.with_more_to_come():
        top, at = aggregate.instance_classifier(h).max(0)
        better = top > best if best.numel() else torch.ones_like(top, dtype=torch.bool)
        best = torch.where(better, top, best) if best.numel() else top
        critical = torch.where(better[:, None], h[at], critical) if critical.numel() else h[at]
    wanted = aggregate.query(critical)  # (streams, hidden)
    pooled, scores = _RunningSoftmax(), []
    for _, h in blocks.once():
        scores.append(aggregate.query(h) @ wanted.T / math.sqrt(wanted.shape[1]))
        pooled.add(scores[-1], h)
    attention = torch.softmax(torch.cat(scores), dim=0).mean(1)
    return aggregate.conclude(pooled.mean, attention, best)


def _dtfd(aggregate: Any, blocks: _Blocks) -> Prediction:
    members = aggregate.split(blocks.n)
    group_of = torch.empty(blocks.n, dtype=torch.long, device=members[0].device)
    for number, group in enumerate(members):
        group_of[group] = number
    every = torch.arange(len(members), device=group_of.device)
    pooled, columns, projections = _RunningSoftmax(), [], []
    for rows, h in blocks.with_more_to_come():
        columns.append(aggregate.tier1.score(h))
        projections.append(aggregate.project(h))
        pooled.add(columns[-1][:, None].masked_fill(group_of[rows, None] != every, -math.inf), h)
    scores, projected = torch.cat(columns), torch.cat(projections)
    logits = aggregate.tier1.classifier(pooled.mean)
    tier1 = [Prediction(logits[i], torch.softmax(scores[group], 0)) for i, group in enumerate(members)]
    if aggregate.distill == "afs":
        return aggregate.conclude(members, tier1, pooled.mean)
    chosen = [group[aggregate.extremes(projected[group], said)] for group, said in zip(members, tier1, strict=True)]
    return aggregate.conclude(members, tier1, blocks.rows_at(torch.cat(chosen)))


Rule = Callable[[Any, _Blocks], Prediction]
_RULES: dict[type[nn.Module], Rule] = {ABMIL: _abmil, DSMIL: _dsmil, DTFD: _dtfd}


def _rule(aggregate: nn.Module) -> Rule | None:
    if type(aggregate) is Pooling:
        return {"mean": _mean, "max": _max}.get(aggregate.pool)
    return _RULES.get(type(aggregate))  # not of a subclass, which may aggregate otherwise
