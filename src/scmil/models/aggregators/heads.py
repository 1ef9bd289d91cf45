"""The classifier of MI-Net and DSMIL: one sigmoid score for two classes, otherwise one per class.

One score `s` and the logits `(0, s)` are the same model: softmax of the pair is `sigmoid(s)`, and
its cross-entropy is the binary cross-entropy of `s`. So each aggregator keeps its true number of
outputs, and all return `classes` logits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scmil.models.aggregators import Evidence


def outputs(classes: int) -> int:
    """The number of learned scores for a number of classes.

    >>> outputs(2), outputs(3)
    (1, 3)
    """
    return 1 if classes == 2 else classes


def as_logits(scores: Tensor) -> Tensor:
    """Turn learned scores into one logit per class.

    >>> as_logits(torch.tensor([1.5]))
    tensor([0.0000, 1.5000])
    >>> as_logits(torch.tensor([[1.5], [-2.0]])).tolist()
    [[0.0, 1.5], [0.0, -2.0]]
    """
    if scores.shape[-1] != 1:
        return scores
    return torch.cat([torch.zeros_like(scores), scores], dim=-1)


def as_evidence(scores: Evidence) -> Evidence:
    """Turn the evidence of learned scores into that of one logit per class: the first of two
    classes has the logit 0, to which no instance contributes.
    """
    return scores._replace(terms=as_logits(scores.terms), constant=as_logits(scores.constant))
