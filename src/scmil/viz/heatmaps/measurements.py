"""The measurements of each tile in QuPath."""

from __future__ import annotations

import numpy as np

from scmil.models.tile_scores import Codes, Scores
from scmil.viz.drawing.colour_scale import Numbers, ranks


def measurements(scores: Scores, score: str = "attention") -> dict[str, Numbers]:
    """All tile scores by their short names; `percentile` is that of the given score.

    >>> import torch
    >>> from scmil import Bag, build_model
    >>> from scmil.models.tile_scores import score_bag
    >>> model = build_model(16, 2, "abmil", sparse_coding={"atoms": 8}, embed=[16], seed=0)
    >>> bag = Bag("slide", torch.eye(9, 16), xy=torch.tensor([[256 * i, 0] for i in range(9)]))
    >>> scores = score_bag(model, bag, ("normal", "tumour"))
    >>> list(measurements(scores, "atom:3"))
    ['attention', 'ratio', 'percentile', 'prob_normal', 'prob_tumour', 'evidence_normal',
     'evidence_tumour', 'lambda', 'sparsity', 'top_atom', 'atom_3']
    """
    found = {"attention": scores.of("attention"), "ratio": scores.of("ratio")}
    found["percentile"] = 100 * ranks(scores.of(score))
    found |= {f"prob_{name}": scores.of(f"probability:{name}") for name in scores.classes}
    if scores.evidence is not None:
        found |= {f"evidence_{name}": scores.of(f"evidence:{name}") for name in scores.classes}
    if scores.lam is not None:
        found["lambda"] = scores.of("lambda")
    if scores.codes is not None:
        found["sparsity"], found["top_atom"] = scores.of("sparsity"), top_atoms(scores.codes)
    if score.startswith("atom:"):
        found[score.replace(":", "_")] = scores.of(score)
    return found


def top_atoms(codes: Codes) -> Numbers:
    """The atom with the largest |code| of each tile; NaN for a tile that uses none.

    >>> top_atoms(Codes.of(np.array([[0, 2.0, -3.0], [0, 0, 0], [1.0, 0, 0.5]])))
    array([ 2., nan,  0.])
    """
    tiles = np.repeat(np.arange(len(codes)), np.diff(codes.starts))
    order = np.lexsort((np.abs(codes.values), tiles))
    uses = np.diff(codes.starts) > 0
    found = np.full(len(codes), np.nan)
    found[uses] = codes.columns[order][codes.starts[1:][uses] - 1]
    return found
