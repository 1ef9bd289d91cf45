"""The layer that is on the screen, as a file for QuPath: one detection a tile, with its scores as measurements."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scmil.models.tile_scores import Scores
from scmil.viz.drawing.qupath import write_detections


def layer_geojson(scores: Scores, kind: str, least: float | None = None) -> bytes:
    """The tiles whose score is `least` or more, in level-0 pixels; of an atom those that use it, by the size of their code.

    >>> import json
    >>> from scmil.models.tile_scores import _small_bag, _small_model, score_bag
    >>> page = json.loads(layer_geojson(score_bag(_small_model(), _small_bag()), "attention"))
    >>> tile = page["features"][0]
    >>> len(page["features"]), tile["geometry"]["coordinates"][0][:3], tile["properties"]["objectType"]
    (9, [[0, 0], [256, 0], [256, 256]], 'detection')
    """
    shown = shown_tiles(scores.of(kind), kind, least)
    plain = [name for name in scores.kinds() if not name.startswith("atom:")]
    measurements = {name: scores.of(name)[shown] for name in dict.fromkeys((*plain, kind))}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "layer.geojson"
        write_detections(path, scores.id, scores.xy[shown], scores.side, measurements)
        return path.read_bytes()


def shown_tiles(values: NDArray[np.float64], kind: str, least: float | None) -> NDArray[np.bool_]:
    """Which tiles the layer shows. In single precision, as the page has them, so that the limit itself is shown.

    >>> shown_tiles(np.array([0.0, -0.5, 0.25]), "atom:3", None), shown_tiles(np.array([0.1, 0.2]), "attention", 0.2)
    (array([False,  True,  True]), array([False,  True]))
    """
    strength = np.abs(values) if kind.startswith("atom:") else values
    used = values != 0 if kind.startswith("atom:") else np.ones(len(values), bool)
    return used if least is None else used & (strength.astype(np.float32) >= np.float32(least))
