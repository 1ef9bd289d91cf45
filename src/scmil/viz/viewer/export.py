"""Export the displayed layer for QuPath: one detection per tile, its scores as measurements."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scmil.models.tile_scores import Scores
from scmil.viz.drawing.qupath import write_detections


def layer_geojson(
    scores: Scores,
    kind: str,
    least: float | None = None,
    further: Mapping[str, NDArray[np.float64]] | None = None,
) -> bytes:
    """The tiles with a score of at least `least`, in level-0 pixels; for an atom, the tiles that
    use it, compared by |code|. `further` are layers that are not scores of the model, by name.

    >>> import json
    >>> import torch
    >>> from scmil import Bag, build_model
    >>> from scmil.models.tile_scores import score_bag
    >>> model = build_model(16, 2, "abmil", sparse_coding={"atoms": 8}, embed=[16], seed=0)
    >>> bag = Bag("slide", torch.eye(9, 16), xy=torch.tensor([[256 * i, 0] for i in range(9)]))
    >>> scores = score_bag(model, bag, ("normal", "tumour"))
    >>> features = json.loads(layer_geojson(scores, "attention"))["features"]
    >>> len(features), features[0]["properties"]["objectType"]
    (9, 'detection')
    >>> features[0]["geometry"]["coordinates"][0][:3]
    [[0, 0], [256, 0], [256, 256]]
    """
    plain = [name for name in scores.kinds() if not name.startswith("atom:")]
    layers = {name: scores.of(name) for name in plain} | dict(further or {})
    if kind not in layers:
        layers[kind] = scores.of(kind)
    shown = shown_tiles(layers[kind], kind, least)
    measurements = {name: values[shown] for name, values in layers.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "layer.geojson"
        write_detections(path, scores.id, scores.xy[shown], scores.side, measurements)
        return path.read_bytes()


def shown_tiles(values: NDArray[np.float64], kind: str, least: float | None) -> NDArray[np.bool_]:
    """Which tiles the layer shows. Compared in single precision, as on the page, so that a tile at
    the limit is shown.

    >>> shown_tiles(np.array([0.0, -0.5, 0.25]), "atom:3", None)
    array([False,  True,  True])
    >>> shown_tiles(np.array([0.1, 0.2]), "attention", 0.2)
    array([False,  True])
    """
    strength = np.abs(values) if kind.startswith("atom:") else values
    used = values != 0 if kind.startswith("atom:") else np.ones(len(values), bool)
    return used if least is None else used & (strength.astype(np.float32) >= np.float32(least))
