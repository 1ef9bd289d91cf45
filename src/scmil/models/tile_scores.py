"""Scores of every tile of a slide: attention, class probabilities, evidence, lambda and sparse
codes.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scmil.bags.bag import Bag
from scmil.core.limits import bounded
from scmil.errors import DataError, OptionError
from scmil.models.aggregators import aggregate_bag, uses_positions
from scmil.models.aggregators.abmil import ABMIL
from scmil.models.aggregators.pooling import Pooling
from scmil.models.answers import evidence_for_answers, slide_answers
from scmil.models.evidence import TileEvidence, find_evidence, has_exact_evidence
from scmil.models.model import MILModel
from scmil.models.streaming import CACHED_NUMBERS, predict_bag
from scmil.sparse_coding.layer import SparseCoding
from scmil.sparse_coding.released import ReleasedSparseCoding

VMAP_CHUNK = 512  # bags of one instance that are evaluated together
Float32Array = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Codes:
    """The sparse codes of n tiles over `atoms` atoms, as compressed rows: row i has
    `values[starts[i]:starts[i + 1]]` in the columns at the same positions of `columns`.

    >>> codes = Codes.of(np.array([[0, 2.0, 0], [0, 0, 0], [1.0, 0, -3.0]]))
    >>> codes.column(2), codes.row(2), codes.density()
    (array([ 0.,  0., -3.], dtype=float32), (array([0, 2]), array([ 1., -3.], dtype=float32)),
     array([0.33333333, 0.        , 0.66666667]))
    """

    values: NDArray[np.float16]
    columns: NDArray[np.uint16]
    starts: NDArray[np.int64]
    atoms: int

    @classmethod
    def of(cls, dense: NDArray[Any]) -> Codes:
        """Compress codes (n, atoms), in half precision."""
        half = dense.astype(np.float16)
        rows, columns = half.nonzero()
        ends = np.cumsum(np.bincount(rows, minlength=len(half)))
        starts = np.concatenate([[0], ends]).astype(np.int64)
        return cls(half[rows, columns], columns.astype(np.uint16), starts, dense.shape[1])

    @classmethod
    def stack(cls, parts: list[Codes]) -> Codes:
        """Concatenate the rows of several codes."""
        offsets = np.cumsum([0, *(len(part.values) for part in parts)])
        starts = [part.starts[:-1] + offset for part, offset in zip(parts, offsets)]
        values, columns = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("values", "columns")
        )
        return cls(values, columns, np.concatenate([*starts, offsets[-1:]]), parts[0].atoms)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def row(self, tile: int) -> tuple[NDArray[np.int64], Float32Array]:
        """The atoms with a non-zero coefficient for a tile, and the coefficients."""
        entries = slice(self.starts[tile], self.starts[tile + 1])
        return self.columns[entries].astype(np.int64), self.values[entries].astype(np.float32)

    def column(self, atom: int) -> Float32Array:
        """The coefficient of an atom for each tile (n,)."""
        coefficients = np.zeros(len(self), np.float32)
        is_atom = self.columns == atom
        coefficients[self._rows()[is_atom]] = self.values[is_atom]
        return coefficients

    def dense(self) -> Float32Array:
        """All codes (n, atoms)."""
        dense = np.zeros((len(self), self.atoms), np.float32)
        dense[self._rows(), self.columns] = self.values
        return dense

    def density(self) -> NDArray[np.float64]:
        """The fraction of non-zero coefficients of each tile (n,)."""
        return np.diff(self.starts) / self.atoms

    def _rows(self) -> NDArray[np.int64]:
        return np.repeat(np.arange(len(self)), np.diff(self.starts))


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores of the tiles of one slide; `of` returns one kind of score by name, see `kinds`."""

    id: str
    xy: NDArray[np.int64]  # (n, 2) top-left corners, level-0 pixels
    side: float  # edge length of a tile, in level-0 pixels
    slide_size: tuple[int, int] | None
    slide_mpp: float | None
    label: int | None
    patient: str | None
    classes: tuple[str, ...]
    # Of the slide (c,): class probabilities, or the answers of another task.
    probabilities: NDArray[np.float64]
    threshold: float | None  # of the second of two classes; None: the likeliest class
    attention: Float32Array  # (n,), sums to one
    instance: Float32Array  # (n, c), class probabilities of a bag with this tile only
    lam: Float32Array | None = None
    codes: Codes | None = None
    # Digest of the slide that the bag was encoded from, see `scmil.slides.slide_digest`.
    slide_digest: str | None = None
    # Digest of the model, the bag and its label; None in files of earlier versions.
    made_from: str | None = None
    # None if it was not computed, see `score_bag`.
    evidence: TileEvidence | None = None

    def __len__(self) -> int:
        return len(self.xy)

    def kinds(self) -> list[str]:
        """The names of all scores that `of` returns."""
        sparse = ["lambda"] * (self.lam is not None)
        if self.codes is not None:
            sparse += ["sparsity", *(f"atom:{atom}" for atom in range(self.codes.atoms))]
        of_class = ["probability"] + ["evidence"] * (self.evidence is not None)
        named = [f"{kind}:{name}" for kind in of_class for name in self.classes]
        return ["attention", "ratio", *named, *sparse]

    def of(self, kind: str) -> NDArray[np.float64]:
        """One number per tile.

        `attention` sums to one. `ratio` is attention times the number of tiles: its mean is 1, so
        slides can be compared. `probability:CLASS` is the probability of a class for a bag with
        this tile only, `probability` that of the last class. `evidence:CLASS` is the contribution
        of the tile to the logit of a class (see `scmil.models.evidence`), `evidence` that to the
        last class. `lambda`, `sparsity` (the fraction of coefficients that are zero) and `atom:K`
        belong to sparse coding.
        """
        name, _, detail = kind.partition(":")
        if name in ("attention", "ratio") and not detail:
            return self.attention.astype(np.float64) * (len(self) if name == "ratio" else 1)
        if name in ("probability", "evidence") and (not detail or detail in self.classes):
            column = self.classes.index(detail) if detail else -1
            if name == "probability":
                return self.instance[:, column].astype(np.float64)
            if self.evidence is not None:
                return self.evidence.tiles[:, column].astype(np.float64)
        if kind == "lambda" and self.lam is not None:
            return self.lam.astype(np.float64)
        if kind == "sparsity" and self.codes is not None:
            return 1 - self.codes.density()
        if name == "atom" and self._has_atom(detail):
            return self.codes.column(int(detail)).astype(np.float64)  # type: ignore[union-attr]
        raise OptionError(self._describe_unknown(kind))

    def _has_atom(self, number: str) -> bool:
        """Whether the codes have an atom of this number."""
        return self.codes is not None and number.isdecimal() and int(number) < self.codes.atoms

    def _describe_unknown(self, kind: str) -> str:
        """The error message for a score that does not exist."""
        if kind.partition(":")[0] in ("lambda", "sparsity", "atom") and self.codes is None:
            return (
                f"score {kind!r} is not available: the model has no sparse coding. "
                "Train a model with --sc."
            )
        if kind.partition(":")[0] == "evidence" and self.evidence is None:
            return (
                f"score {kind!r} is not available: the evidence of slide {self.id!r} was not "
                "computed. Compute it: scmil heatmap MODEL BAGS --score evidence"
            )
        atoms = (
            ""
            if self.codes is None
            else f", lambda, sparsity, atom:0 to atom:{self.codes.atoms - 1}"
        )
        names = [
            ", ".join([each, *(f"{each}:{name}" for name in self.classes)])
            for each in ("probability", "evidence")
        ]
        return f"unknown score {kind!r}. Known: attention, ratio, {', '.join(names)}{atoms}."

    @property
    def predicted(self) -> int:
        """The predicted class of the slide; of other tasks the largest answer."""
        from scmil.stats.metrics import decide

        if self.threshold is None:
            return int(self.probabilities.argmax())
        return int(decide(self.probabilities[None], self.threshold)[0])

    @property
    def effective_tiles(self) -> float:
        """The exponential of the entropy of attention: 1 if one tile has all attention, n if all
        tiles have the same.
        """
        attention = self.attention.astype(np.float64)
        shares = attention[attention > 0]
        return float(np.exp(-(shares * np.log(shares)).sum()))


# ------------------------------------------------------------------------------------------ scoring


@torch.no_grad()
def score_bag(
    model: MILModel,
    bag: Bag,
    classes: tuple[str, ...] | None = None,
    threshold: float | None = 0.5,
    slide_mpp: float | None = None,
    evidence: bool = False,
) -> Scores:
    """Score every tile of a bag with coordinates, in one pass through the model.

    Each tile is embedded and refined once, block by block; the slide's prediction, the tile
    probabilities, lambda and the codes are all computed from the same rows. (Aggregators that read
    the rows twice recompute them in bags whose refined rows exceed `streaming.CACHED_NUMBERS`.)
    Features must be scaled already, if the model expects that.

    Exact evidence is always computed for bags whose refined rows are at most
    `streaming.CACHED_NUMBERS`. With `evidence` it is computed for every bag and every aggregator,
    if need be with integrated gradients, which take 16 to 240 times as long as a prediction.

    >>> from scmil import build_model
    >>> model = build_model(16, 2, "abmil", sparse_coding={"atoms": 8}, embed=[16], seed=0)
    >>> bag = Bag("slide", torch.ones(2, 16), xy=torch.tensor([[0, 0], [256, 0]]))
    >>> scores = score_bag(model, bag, ("normal", "tumour"))
    >>> len(scores), scores.side, scores.of("attention").round(3).tolist(), len(scores.kinds())
    (2, 256.0, [0.5, 0.5], 16)
    """
    if bag.xy is None:
        raise DataError(
            f"bag {bag.id!r} has no coordinates, so its tiles cannot be placed on the slide. "
            "Encode it with scmil encode, or import features together with their coordinates."
        )
    model.eval()
    unasked = CACHED_NUMBERS if has_exact_evidence(model.aggregate) else 0
    tiles = _TileScores(model, bag.xy, math.inf if evidence else unasked)
    prediction = predict_bag(model, bag.features, tiles.add_block, bag.xy)
    origin = _provenance_of_tiles(bag)
    size, mpp = origin.get("slide_size"), origin.get("slide_mpp")
    xy = bag.xy.numpy().astype(np.int64)
    return Scores(
        id=bag.id,
        xy=xy,
        side=float(origin.get("side_level0") or tile_spacing(bag.id, xy)),
        slide_size=None if size is None else (int(size[0]), int(size[1])),
        slide_mpp=slide_mpp if mpp is None else float(mpp),
        label=bag.label,
        patient=bag.patient,
        classes=classes or tuple(map(str, range(len(prediction.logits)))),
        probabilities=slide_answers(model, prediction.logits).double().cpu().numpy(),
        threshold=threshold,
        attention=prediction.attention.float().cpu().numpy(),
        instance=torch.cat(tiles.instance).float().numpy(),
        lam=torch.cat(tiles.lam).float().numpy() if tiles.lam else None,
        codes=Codes.stack(tiles.codes) if tiles.codes else None,
        slide_digest=bag.provenance.get("slide_digest"),
        evidence=evidence_for_answers(
            model.objective,
            find_evidence(model.aggregate, tiles.rows, prediction, bag.xy, atoms=bool(tiles.codes)),
        )
        if tiles.rows
        else None,
    )


class _TileScores:
    """Collects the scores of the tiles while a prediction reads the rows."""

    def __init__(self, model: MILModel, xy: Tensor, kept_numbers: float) -> None:
        self._model, self._xy, self._tiles = model, xy, 0
        self._left = kept_numbers
        self.rows: list[Tensor] = []  # refined rows, or none if they are more numbers than wanted
        self.instance: list[Tensor] = []
        self.lam: list[Tensor] = []
        self.codes: list[Codes] = []

    def add_block(self, embedded: Tensor, h: Tensor) -> None:
        """Add the tiles of a block, given their embedded and refined rows."""
        refine = self._model.refine
        self._left -= h.numel()
        self.rows = [*self.rows, h] if self._left >= 0 else []
        xy = self._xy[self._tiles : self._tiles + len(h)]
        self._tiles += len(h)
        logits = instance_logits(self._model.aggregate, h, xy)
        self.instance.append(slide_answers(self._model, logits).cpu())
        codes = h
        if isinstance(refine, SparseCoding):
            self.lam.append(refine.sparsity(embedded)[:, 0].cpu())
            # The aggregator may get another output than the codes.
            codes = h if refine.output == "codes" else refine.codes(embedded)
        elif isinstance(refine, ReleasedSparseCoding):
            self.lam.append(refine.network(embedded)[:, 0].cpu())
        if self.lam:
            self.codes.append(Codes.of(codes.float().cpu().numpy()))


def _provenance_of_tiles(bag: Bag) -> dict[str, Any]:
    """The known values of a bag's provenance that scores record."""
    values = {key: bag.provenance.get(key) for key in ("side_level0", "slide_mpp", "slide_size")}
    for key, value in values.items():
        for one in value if isinstance(value, (list, tuple)) else [] if value is None else [value]:
            bounded(key, one, f"bag {bag.id!r}")
    size = values["slide_size"]
    if isinstance(size, (list, tuple)) and len(size) != 2:
        raise DataError(
            f"bag {bag.id!r}: slide_size = {size}, but width and height are expected. "
            "Encode the slide again with scmil encode."
        )
    return {key: value for key, value in values.items() if value is not None}


def instance_logits(aggregate: torch.nn.Module, h: Tensor, xy: Tensor | None = None) -> Tensor:
    """The logits (n, c) that an aggregator gives to n bags of one instance each, at the positions
    `xy` if it uses them.

    >>> from scmil.models import aggregators
    >>> instance_logits(aggregators.build("dsmil", 8, classes=3), torch.randn(5, 8)).shape
    torch.Size([5, 3])
    """
    # The weighted mean, or the maximum, of one instance is the instance itself.
    if type(aggregate) in (ABMIL, Pooling):
        return aggregate.classifier(h)  # type: ignore[operator]
    columns = (h,) if xy is None or not uses_positions(aggregate) else (h, xy.to(h.device))

    def logits_of(*instance: Tensor) -> Tensor:
        return aggregate_bag(aggregate, *(column[None] for column in instance)).logits

    with warnings.catch_warnings():
        # torch warns about its own attention under vmap.
        warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
        try:
            mapped = torch.vmap(logits_of, randomness="different", chunk_size=VMAP_CHUNK)
            logits: Tensor = mapped(*columns)
            return logits
        except RuntimeError:  # external modules that torch cannot map: one by one, the same numbers
            return torch.stack([logits_of(*instance) for instance in zip(*columns, strict=True)])


def tile_spacing(bag_id: str, xy: NDArray[np.int64]) -> float:
    """The edge length of tiles if the bag does not record it: the smallest step between tiles."""
    steps = [np.diff(np.unique(column)) for column in xy.T]
    steps = [step for step in steps if len(step)]
    if not steps:
        raise DataError(
            f"bag {bag_id!r} does not record the size of its tiles. Encode it with scmil encode."
        )
    return float(min(step.min() for step in steps))
