"""The classifier of MI-Net and DSMIL: one sigmoid score for two classes, otherwise one per class.

One score `s` and the logits `(0, s)` are the same model: softmax of the pair is `sigmoid(s)`, and
its cross-entropy is the binary cross-entropy of `s`. So each aggregator keeps its true number of
outputs, and all return `classes` logits.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
    """
    return torch.cat([torch.zeros_like(scores), scores]) if scores.shape[0] == 1 else scores
