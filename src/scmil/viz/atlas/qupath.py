"""The tiles of a slide as detections for QuPath, classified by their strongest atom."""

from __future__ import annotations

import colorsys
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scmil.core.text import encode_utf8, printable
from scmil.errors import OptionError
from scmil.viz.atlas.atom import SIGNS
from scmil.viz.drawing.qupath import detection, feature_collection

if TYPE_CHECKING:
    from scmil.models.tile_scores import Scores

IDS = uuid.UUID("b0a1c1f4-64e4-5b8e-9d51-2f8f0a3e6d17")


def atoms_geojson(scores: Scores) -> bytes:
    """The tiles of a slide as QuPath detections: the class is the strongest atom, the measurements
    are the scores.

    >>> import json
    >>> import torch
    >>> from scmil import Bag, build_model
    >>> from scmil.models.tile_scores import score_bag
    >>> model = build_model(16, 2, "abmil", sparse_coding={"atoms": 8}, embed=[16], seed=0)
    >>> bag = Bag("slide", torch.eye(9, 16), xy=torch.tensor([[256 * i, 0] for i in range(9)]))
    >>> scores = score_bag(model, bag, ("normal", "tumour"))
    >>> page = json.loads(atoms_geojson(scores))
    >>> feature = page["features"][0]
    >>> feature["properties"]["objectType"], sorted(feature["properties"]["measurements"])
    ('detection', ['attention ratio', 'code', 'lambda', 'probability tumour', 'sparsity'])
    """
    if scores.codes is None:
        raise OptionError(
            f"slide {scores.id!r} has no codes: the model has no sparse coding layer. "
            "Train a model with --sc."
        )
    named = {
        "attention ratio": "ratio",
        f"probability {scores.classes[-1]}": "probability",
        "sparsity": "sparsity",
    }
    named |= {"lambda": "lambda"} if scores.lam is not None else {}
    measured = {name: scores.of(kind) for name, kind in named.items()}
    text = "".join(feature_collection(_classified_tiles(scores, measured), line_breaks=False))
    return encode_utf8(text)


def _classified_tiles(
    scores: Scores, measured: Mapping[str, NDArray[np.float64]]
) -> Iterator[dict[str, Any]]:
    """Every tile as a detection; tiles without any atom have no class."""
    assert scores.codes is not None  # checked by the caller
    for tile, (x, y) in enumerate(scores.xy.tolist()):
        atoms, values = scores.codes.row(tile)
        numbers = {name: float(f"{column[tile]:.6g}") for name, column in measured.items()}
        kind = None
        if len(atoms):
            strongest = int(np.abs(values).argmax())
            atom, code = int(atoms[strongest]), float(values[strongest])
            colour = list(_atom_colour(atom, code < 0))
            kind = {"name": f"Atom {atom}{SIGNS[code < 0]}", "color": colour}
            numbers = {"code": round(code, 4), **numbers}
        object_id = str(uuid.uuid5(IDS, printable(f"{scores.id} {x} {y} {tile}")))
        yield detection(object_id, (x, y, x + scores.side, y + scores.side), numbers, kind)


def _atom_colour(atom: int, negative: bool) -> tuple[int, ...]:
    """A colour per atom, in hue steps of the golden ratio; the two signs differ in lightness."""
    shade = colorsys.hls_to_rgb(atom * 0.6180339887 % 1, 0.35 if negative else 0.6, 0.75)
    return tuple(round(255 * channel) for channel in shade)
