"""Bags without problems, and access to the findings of an audit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from scmil.bags.audit import Audit
from scmil.bags.audit_checks import Finding
from scmil.bags.bag import Bag


def content(seed: int, n: int = 6, dim: int = 4) -> torch.Tensor:
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed))


def clean(n: int = 8, change: Callable[[int], dict[str, Any]] = lambda i: {}) -> list[Bag]:
    """Return bags of two classes without problems; `change` gives other fields of the i-th bag."""
    return [
        Bag(
            **dict[str, Any](id=f"s{i}", features=content(i), label=i % 2, patient=f"p{i}")
            | change(i)
        )
        for i in range(n)
    ]


def codes(found: Audit) -> dict[str, tuple[str, ...]]:
    return {finding.code: finding.slides for finding in found.findings}


def only(found: Audit) -> Finding:
    [finding] = found.findings
    return finding
