"""Bags of any size: a model processes blocks of rows, with the same result as for the whole bag.

Embedding and sparse coding act on each row independently, so they are applied block by block. Each
aggregator has a kernel that combines the blocks with running sums and maxima, and with a running
softmax whose sums are rescaled when a larger score occurs. Models without a kernel process the
whole bag at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from scmil.errors import BagError
from scmil.models.aggregators import Prediction, aggregate_bag, check_xy, uses_positions
from scmil.models.aggregators.abmil import ABMIL
from scmil.models.aggregators.acmil import ACMIL
from scmil.models.aggregators.attrimil import AttriMIL
from scmil.models.aggregators.clam import CLAM
from scmil.models.aggregators.dsmil import DSMIL
from scmil.models.aggregators.dtfd import DTFD
from scmil.models.aggregators.pooling import Pooling
from scmil.models.model import check_bag
from scmil.sparse_coding.layer import SparseCoding
from scmil.sparse_coding.released import ReleasedSparseCoding

# Rows per block in prediction: 16 MiB for 512 dimensions; larger blocks are not faster.
BLOCK_ROWS = 8192
# Kernels with two passes cache up to 128 MiB of refined rows, and recompute them in larger bags.
CACHED_NUMBERS = 2**25
# Larger bags are trained with recomputation (docs/decisions/0009-bags-of-any-size.md).
RECOMPUTED_ROWS = 65_536

# Modules that act on each row independently, with all their children.
ROW_WISE = (
    nn.Linear,
    nn.LayerNorm,
    nn.Identity,
    nn.Dropout,
    nn.ReLU,
    nn.LeakyReLU,
    nn.GELU,
    nn.SiLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.Softplus,
    SparseCoding,
    ReleasedSparseCoding,
)

# Receives the embedded (k, d) and refined rows (k, m) of a block.
BlockCallback = Callable[[Tensor, Tensor], None]


class FeatureRows(Protocol):
    """Features of one bag that can be sliced by rows: a tensor, an array, a memory map or an h5py
    data set.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...  # noqa: D102
    def __getitem__(self, rows: slice, /) -> Any: ...


class StreamedModel(Protocol):
    """The parts of a `MILModel`."""

    embed: nn.Module
    refine: nn.Module
    aggregate: nn.Module
    dim: int | None
    training: bool

    def __call__(self, x: Tensor, xy: Tensor | None = None, /) -> Prediction: ...  # noqa: D102
    def train(self, mode: bool = True) -> Any: ...  # noqa: D102
    def parameters(self) -> Iterator[nn.Parameter]: ...  # noqa: D102


def call_model(model: StreamedModel, x: Tensor, xy: Tensor | None = None) -> Prediction:
    """Call a model with the features of a bag, and with `xy` only if its aggregator uses positions,
    so that subclasses may define `forward(x)`.

    >>> from scmil.models.model import build_model
    >>> call_model(build_model(8, 3, "mean"), torch.ones(2, 8), torch.zeros(2, 2)).logits.shape
    torch.Size([3])
    """
    return model(x, xy) if uses_positions(model.aggregate) else model(x)


@torch.no_grad()
def predict_bag(
    model: StreamedModel,
    features: FeatureRows,
    on_block: BlockCallback | None = None,
    xy: Tensor | None = None,
) -> Prediction:
    """Predict a bag of any size, block by block if the modules of the model allow it.

    `on_block` receives the embedded and the refined rows of each block, once, in the order of the
    bag, so that a caller can use them without a second pass through the model. `xy` are the
    positions of the tiles, for aggregators that use them.

    >>> from scmil.models.model import build_model
    >>> model = build_model(16, 2, "abmil-gated", embed=[8], seed=0)
    >>> features = torch.randn(20_000, 16)
    >>> torch.allclose(predict_bag(model, features).logits, model(features).logits, atol=1e-6)
    True
    """
    if model.training:
        model.train(False)
        try:
            return predict_bag(model, features, on_block, xy)
        finally:
            model.train(True)
    kernel = _find_kernel(model.aggregate)
    if kernel is None or not _is_longer(features, BLOCK_ROWS) or not _rows_are_independent(model):
        return _predict_whole(model, _as_input(features, model), on_block, xy)
    _check_dim(model, features)
    check_xy(model.aggregate, xy, features.shape[0])
    return kernel(model.aggregate, _RefinedBlocks(model, features, on_block))


def _predict_whole(
    model: StreamedModel, x: Tensor, on_block: BlockCallback | None, xy: Tensor | None
) -> Prediction:
    """Predict from all rows at once."""
    if on_block is None:
        return call_model(model, x, xy)
    check_bag(x, model.dim)
    check_xy(model.aggregate, xy, len(x))
    embedded = model.embed(x)
    h = model.refine(embedded)
    for rows in _slice_rows(len(x)):
        on_block(embedded[rows], h[rows])
    del embedded
    return aggregate_bag(model.aggregate, h, xy)


def forward_bag(model: StreamedModel, features: Tensor, xy: Tensor | None = None) -> Prediction:
    """Predict a bag for training; for a large bag, embedding and sparse coding are recomputed in
    the backward pass.

    Then only the features and codes of each row are stored, and none of the tensors in between.
    """
    from torch.utils.checkpoint import checkpoint

    if not _is_longer(features, RECOMPUTED_ROWS) or not _rows_are_independent(model):
        return call_model(model, _as_input(features, model), xy)
    _check_dim(model, features)
    check_xy(model.aggregate, xy, len(features))
    aggregate, blocks = model.aggregate, _slice_rows(len(features))
    score = aggregate.score if type(aggregate) is ABMIL else None

    refine, n = model.refine, len(features)
    # Losses of sparse coding are means over the whole bag.
    whole = {"bag": n} if isinstance(refine, SparseCoding) else {}

    def refine_rows(block: Tensor) -> tuple[Tensor, ...]:
        h = refine(model.embed(_as_input(block, model)), **whole)
        return (h,) if score is None else (h, score(h))

    for rows in blocks:
        _check_finite(features[rows], features)
    parts = [checkpoint(refine_rows, features[rows], use_reentrant=False) for rows in blocks]
    h, *scores = (torch.cat(column) for column in zip(*parts, strict=True))
    if not scores:
        return aggregate_bag(aggregate, h, xy)
    attention = torch.softmax(scores[0], dim=0)
    return Prediction(aggregate.classifier(attention @ h), attention)  # type: ignore[operator]


def _rows_are_independent(model: StreamedModel) -> bool:
    return _is_row_wise(model.embed) and _is_row_wise(model.refine)


def _is_row_wise(module: nn.Module) -> bool:
    if isinstance(module, nn.Sequential):
        return all(map(_is_row_wise, module))
    return isinstance(module, ROW_WISE)


# ------------------------------------------------------------------------------------------- blocks


class _RefinedBlocks:
    """The refined rows of a bag, block by block, as often as a kernel needs them."""

    def __init__(
        self, model: StreamedModel, features: FeatureRows, on_block: BlockCallback | None = None
    ) -> None:
        self.model, self.features, self.n = model, features, features.shape[0]
        self._on_block, self._reported_rows = on_block, 0
        self._cache: dict[int, Tensor] = {}

    def read(self) -> Iterator[tuple[slice, Tensor]]:
        """Each slice of rows with their refined embeddings."""
        for rows in _slice_rows(self.n):
            cached = self._cache.get(rows.start)
            yield rows, self._refine(rows) if cached is None else cached

    def read_and_cache(self) -> Iterator[tuple[slice, Tensor]]:
        """As `read`; the rows are cached for the next pass if they are small enough."""
        for rows, h in self.read():
            if self.n * h.shape[1] <= CACHED_NUMBERS:
                self._cache[rows.start] = h
            yield rows, h

    def rows_at(self, positions: Tensor) -> Tensor:
        """The refined embeddings of a few rows."""
        return torch.cat([self._refine(slice(at, at + 1)) for at in positions.tolist()])

    def _refine(self, rows: slice) -> Tensor:
        x = _as_input(self.features[rows], self.model)
        _check_finite(x, self.features)
        embedded = self.model.embed(x)
        h: Tensor = self.model.refine(embedded)
        if self._on_block is not None and rows.start == self._reported_rows:
            self._on_block(embedded, h)
            self._reported_rows = rows.stop
        return h


def _slice_rows(n: int) -> list[slice]:
    """Slices of nearly equal length; a short last block would use other matrix kernels than the
    rest.
    """
    count = -(-n // BLOCK_ROWS)
    edges = [n * i // count for i in range(count + 1)]
    return [slice(start, end) for start, end in pairwise(edges)]


def _as_input(features: Any, model: StreamedModel) -> Tensor:
    """Convert rows to a tensor with the precision and device of the model; features on disk are
    copied into memory.
    """
    like, rows = next(iter(model.parameters()), None), _to_tensor(features)
    return rows if like is None else rows.to(like.device, like.dtype)


def _to_tensor(features: Any) -> Tensor:
    return features if isinstance(features, Tensor) else torch.from_numpy(np.array(features))


def _is_longer(features: FeatureRows, rows: int) -> bool:
    # The model itself raises an error for other shapes.
    return len(features.shape) == 2 and features.shape[0] > rows


def _check_dim(model: StreamedModel, features: FeatureRows) -> None:
    if model.dim not in (None, features.shape[1]):
        model(_as_input(features[:1], model))  # raises its own error


def _check_finite(x: Tensor, features: FeatureRows) -> None:
    # A single sum is enough if all values are finite.
    if torch.isfinite(x.sum(dtype=torch.float32)) or torch.isfinite(x).all():
        return
    bad = torch.cat(
        [
            ~torch.isfinite(_to_tensor(features[rows])).all(1)
            for rows in _slice_rows(features.shape[0])
        ]
    )
    first = int(bad.int().argmax())
    raise BagError(
        f"{int(bad.sum())} of the bag's {len(bad)} instances have NaN or infinite features; "
        f"the first is number {first}."
    )


# ------------------------------------------------------------------------------------------ kernels


class _RunningSoftmax:
    """`softmax(scores)^T h` over all added rows: (columns, d). Rows with a score of -inf are
    ignored.
    """

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


def _stream_mean(aggregate: Any, blocks: _RefinedBlocks) -> Prediction:
    total: Any = 0
    for _, h in blocks.read():
        total = total + h.sum(0)
    logits = aggregate.classifier(total / blocks.n)
    return Prediction(logits, logits.new_full((blocks.n,), 1 / blocks.n))


def _stream_max(aggregate: Any, blocks: _RefinedBlocks) -> Prediction:
    best, winners = torch.tensor(-math.inf), torch.tensor(0)
    for _, h in blocks.read_and_cache():
        best, before = torch.maximum(best.to(h), h.amax(0)), best.to(h)
        winners = winners.to(h.device) * (before == best) + (h == best).sum(0)
    attention = torch.cat(
        [((h == best) / winners).mean(1, dtype=h.dtype) for _, h in blocks.read()]
    )
    return Prediction(aggregate.classifier(best), attention)


def _stream_abmil(aggregate: Any, blocks: _RefinedBlocks) -> Prediction:
    pooled, scores = _RunningSoftmax(), []
    for _, h in blocks.read():
        scores.append(aggregate.score(h))
        pooled.add(scores[-1][:, None], h)
    return Prediction(aggregate.classifier(pooled.mean[0]), torch.softmax(torch.cat(scores), dim=0))


def _stream_attention(aggregate: Any, blocks: _RefinedBlocks) -> Prediction:
    """For aggregators with `stream` and `conclude`: several attentions, and a head."""
    pooled, scores = _RunningSoftmax(), []
    for _, h in blocks.read():
        columns, values = aggregate.stream(h)
        scores.append(columns)
        pooled.add(columns, values)
    prediction: Prediction = aggregate.conclude(pooled.mean, torch.cat(scores))
    return prediction


def _stream_dsmil(aggregate: Any, blocks: _RefinedBlocks) -> Prediction:
    best = critical = torch.zeros(0)
    for _, h in blocks.read_and_cache():
        top, at = aggregate.instance_classifier(h).max(0)
        better = top > best if best.numel() else torch.ones_like(top, dtype=torch.bool)
        best = torch.where(better, top, best) if best.numel() else top
        critical = torch.where(better[:, None], h[at], critical) if critical.numel() else h[at]
    critical_query = aggregate.query(critical)  # (streams, hidden)
    pooled, scores = _RunningSoftmax(), []
    for _, h in blocks.read():
        scores.append(aggregate.query(h) @ critical_query.T / math.sqrt(critical_query.shape[1]))
        pooled.add(scores[-1], aggregate.values(h))
    attention = torch.softmax(torch.cat(scores), dim=0).mean(1)
    return aggregate.conclude(pooled.mean, attention, best)


def _stream_dtfd(aggregate: Any, blocks: _RefinedBlocks) -> Prediction:
    members = aggregate.split(blocks.n)
    group_of = torch.empty(blocks.n, dtype=torch.long, device=members[0].device)
    for number, group in enumerate(members):
        group_of[group] = number
    every = torch.arange(len(members), device=group_of.device)
    pooled, columns, projections = _RunningSoftmax(), [], []
    for rows, h in blocks.read_and_cache():
        columns.append(aggregate.tier1.score(h))
        projections.append(aggregate.project(h))
        pooled.add(columns[-1][:, None].masked_fill(group_of[rows, None] != every, -math.inf), h)
    scores, projected = torch.cat(columns), torch.cat(projections)
    logits = aggregate.tier1.classifier(pooled.mean)
    tier1 = [
        Prediction(logits[i], torch.softmax(scores[group], 0)) for i, group in enumerate(members)
    ]
    if aggregate.distill == "afs":
        return aggregate.conclude(members, tier1, pooled.mean)
    chosen = [
        group[aggregate.extremes(projected[group], prediction)]
        for group, prediction in zip(members, tier1, strict=True)
    ]
    return aggregate.conclude(members, tier1, blocks.rows_at(torch.cat(chosen)))


Kernel = Callable[[Any, _RefinedBlocks], Prediction]
_KERNELS: dict[type[nn.Module], Kernel] = {
    ABMIL: _stream_abmil,
    ACMIL: _stream_attention,
    AttriMIL: _stream_attention,
    CLAM: _stream_attention,
    DSMIL: _stream_dsmil,
    DTFD: _stream_dtfd,
}


def _find_kernel(aggregate: nn.Module) -> Kernel | None:
    """The kernel of an aggregator; None for others and for subclasses, which may differ."""
    if type(aggregate) is Pooling:
        return {"mean": _stream_mean, "max": _stream_max}.get(aggregate.pool)
    return _KERNELS.get(type(aggregate))
