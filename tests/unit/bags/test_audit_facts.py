"""Fingerprints of the content of bags."""

from __future__ import annotations

import pytest
import torch
from audit_cases import content

from scmil.bags.audit_facts import fingerprint


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_different_content_has_different_fingerprints_at_any_scale(scale: float) -> None:
    one = content(0) * scale
    other = one.clone()
    other[0, 0] *= 1.01
    assert fingerprint(one)[1] != fingerprint(other)[1]
    assert fingerprint(one) == fingerprint(one.clone())


def test_repeated_rows_change_the_fingerprint() -> None:
    a, b = content(0, n=1), content(1, n=1)
    assert fingerprint(torch.cat([a, a, b]))[1] != fingerprint(torch.cat([a, b, b]))[1]
