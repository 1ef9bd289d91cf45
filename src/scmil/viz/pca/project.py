"""Project the features of tiles in each model to two principal components."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scmil.bags.provenance import check_same_provenance
from scmil.bags.scaling import scale_as_recorded
from scmil.core.jobs.failure_log import record_failure
from scmil.errors import BagError, DataError, ShapeError
from scmil.stats.metrics import auc_many
from scmil.studies.predict import raise_if_all, record_mismatch
from scmil.viz.pca.sample import Sample

if TYPE_CHECKING:
    from torch import Tensor

    from scmil.bags.bag import BagSet
    from scmil.models.model import MILModel

FOLDS = 5
Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Panel:
    """One model: projected tiles (n, 2), explained variance of both axes, and separation of
    colours.
    """

    name: str
    about: str
    plane: Array
    explained: tuple[float, float]
    auc: float

    @property
    def separation(self) -> str:
        """The AUC of a linear classifier, as text."""
        return (
            f"linear AUC {self.auc:.3f}" if math.isfinite(self.auc) else "too few slides for an AUC"
        )


def project_tiles(
    models: Sequence[str | Path],
    studies: Sequence[tuple[MILModel, dict[str, Any]]],
    bags: BagSet,
    sample: Sample,
    failed: dict[str, str],
    progress: Callable[[str, int, int], None] | None,
) -> tuple[list[int], list[list[Array]]]:
    """The features of the sampled tiles in each model, and the positions of the tiles whose slides
    could be read.
    """
    places: dict[str, list[int]] = {}
    for i, slide_id in enumerate(sample.slides):
        places.setdefault(slide_id, []).append(i)
    kept: list[int] = []
    points: list[list[Array]] = [[] for _ in studies]
    mismatched: list[ShapeError] = []
    for done, (slide_id, own) in enumerate(places.items(), start=1):
        with record_failure(slide_id, failed):
            bag = bags.subset([slide_id])[0]
            with record_mismatch(mismatched):
                for path, (_, study) in zip(models, studies, strict=True):
                    check_same_provenance(study["contract"], bag, path)
            each = [
                tile_features(
                    model, scale_as_recorded(bag, study["scaling"]).features, sample.rows[own]
                )
                for model, study in studies
            ]
            if not all(np.isfinite(x).all() for x in each):
                raise BagError(
                    f"bag {slide_id!r} has NaN or infinite features, expected finite ones. Encode "
                    "this slide again."
                )
            kept += own
            for here, x in zip(points, each, strict=True):
                here.append(x)
        if progress:
            progress("computing features", done, len(places))
    raise_if_all(mismatched, len(places))
    if not kept:
        raise DataError(f"no slide could be read. {next(iter(failed.values()))}")
    return kept, points


def tile_features(model: MILModel, features: Tensor, rows: NDArray[np.int64]) -> Array:
    """Features of some tiles of a bag: codes, low-rank outputs of ILRA, or embeddings.

    >>> import torch
    >>> from scmil.models.model import build_model
    >>> model = build_model(9, 2, sparse_coding={"atoms": 8}, embed=[9], seed=0)
    >>> tile_features(model, torch.randn(5, 9), np.array([0, 3])).shape
    (2, 8)
    """
    import torch

    from scmil.models.aggregators.ilra import ILRA

    like = next(model.parameters())
    model.eval()
    chosen = torch.as_tensor(rows)
    with torch.no_grad():
        # The layers of ILRA need the whole bag.
        if isinstance(model.aggregate, ILRA) and not _has_codes(model):
            return (
                model.aggregate.layers(model.refine(model.embed(features.to(like.dtype))))[chosen]
                .double()
                .numpy()
            )
        embedded = model.embed(features[chosen].to(like.dtype))
        codes = getattr(model.refine, "codes", model.refine)  # not the refined features
        return codes(embedded).double().numpy()


def _has_codes(model: MILModel) -> bool:
    return hasattr(model.refine, "dictionary")


def make_panel(
    model: MILModel, study: Mapping[str, Any], x: Array, sample: Sample, seed: int
) -> Panel:
    """Project the tiles of one model and measure how well its plane separates the colours."""
    from scmil.models.aggregators.ilra import ILRA

    aggregator = study["settings"]["model"]["aggregator"]
    name = aggregator if isinstance(aggregator, str) else str(aggregator.get("name"))
    codes = _has_codes(model)
    kind = (
        "sparse codes"
        if codes
        else "low-rank outputs"
        if isinstance(model.aggregate, ILRA)
        else "embeddings"
    )
    plane, explained = principal_plane(x)
    separation = line_auc(plane, sample.colour, sample.slides, seed)
    return Panel(
        name + " + SC" * codes, f"{kind}, {x.shape[1]} dimensions", plane, explained, separation
    )


def principal_plane(x: NDArray[Any]) -> tuple[Array, tuple[float, float]]:
    """The first two principal components of the rows, and the fraction of variance of each.

    >>> rows = np.array([[3.0, 0, 0], [-3, 0, 0], [0, 1, 0], [0, -1, 0]])
    >>> plane, explained = principal_plane(rows)
    >>> np.abs(plane).round(6).tolist(), [round(share, 6) for share in explained]
    ([[3.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 1.0]], [0.9, 0.1])
    """
    centred = x - x.mean(0)
    variance, axes = np.linalg.eigh(centred.T @ centred)
    total = float(variance.clip(0).sum())
    first = axes[:, ::-1][:, :2]
    # The sign of an axis is arbitrary: its largest entry is made positive, for reproducible
    # figures.
    first = first * np.where(np.take_along_axis(first, np.abs(first).argmax(0)[None], 0) < 0, -1, 1)
    plane = centred @ first
    if plane.shape[1] < 2:
        plane = np.column_stack([plane, np.zeros(len(plane))])
    shares = [
        float(value) / total if total else 0.0 for value in (*variance[::-1].clip(0), 0.0)[:2]
    ]
    return plane, (shares[0], shares[1])


def line_auc(
    plane: Array, colour: NDArray[np.int64], slides: Sequence[str], seed: int = 0
) -> float:
    """AUC of a linear discriminant in the plane, on slides that it was not fitted to.

    Slides are split into five folds. For more than two colours, the mean over one-against-rest. NaN
    if a colour is missing in the training slides of a fold.

    >>> plane = np.array([[0.0, 0], [0, 1], [5, 0], [5, 1]] * 4)
    >>> line_auc(plane, np.array([0, 0, 1, 1] * 4), [f"s{i // 4}" for i in range(16)])
    1.0
    """
    present = np.unique(colour)
    if len(present) < 2:
        return math.nan
    names, owner = np.unique(np.asarray(slides), return_inverse=True)
    fold = np.random.default_rng(seed).permutation(len(names))[owner] % min(FOLDS, len(names))
    targets = present[1:] if len(present) == 2 else present
    found = [
        _cross_validated(plane, (colour == target).astype(np.int64), fold) for target in targets
    ]
    return float(np.mean(found))


def _cross_validated(plane: Array, y: NDArray[np.int64], fold: NDArray[np.int64]) -> float:
    scores = np.empty(len(y))
    for k in np.unique(fold):
        train = fold != k
        if len(np.unique(y[train])) < 2:
            return math.nan
        one, other = plane[train & (y == 1)], plane[train & (y == 0)]
        within = np.concatenate([one - one.mean(0), other - other.mean(0)])
        spread = within.T @ within / len(within)
        spread += np.eye(2) * (1e-9 * np.trace(spread) + np.finfo(float).tiny)
        direction = np.linalg.solve(spread, one.mean(0) - other.mean(0))
        scores[~train] = (plane[~train] - (one.mean(0) + other.mean(0)) / 2) @ direction
    return float(auc_many(y, scores[None])[0])
