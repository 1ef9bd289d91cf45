"""The paper: Eqs. (1)-(4), the layer, and its kernels."""

from __future__ import annotations

from scmil.sparse_coding.equations import (
    dct_dictionary,
    objective,
    random_dictionary,
    soft_threshold,
    unrolled_ista,
)
from scmil.sparse_coding.layer import CodeStatistics, SparseCoding, SparsityNetwork, StepWarning

__all__ = [
    "CodeStatistics",
    "SparseCoding",
    "SparsityNetwork",
    "StepWarning",
    "dct_dictionary",
    "objective",
    "random_dictionary",
    "soft_threshold",
    "unrolled_ista",
]
