"""Tables of bags as .csv, .npz and .mat files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from scmil.bags.bag import BagSet


def write(folder: Path, content: str | bytes, name: str = "bags.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def mat(**variables: Any) -> bytes:
    file = io.BytesIO()
    savemat(file, variables)
    return file.getvalue()


PLAIN = dict(X=np.arange(6.0).reshape(3, 2), bag=np.array([0, 1, 1]), y=np.array([1, 0]))


PRTOOLS = dict(
    data=np.arange(6.0).reshape(3, 2),
    nlab=np.array([[1], [2], [2]]),
    ident=dict(milbag=np.array([[7], [3], [3]])),
)


def lists(bags: BagSet) -> list[list[list[float]]]:
    return [bag.features.tolist() for bag in bags]


def lower_size_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the size limits, so that a test needs no file of gigabytes."""
    monkeypatch.setattr("scmil.core.safe_io.LARGE_BYTES", 2**20)
    monkeypatch.setattr("scmil.bags.datasets.matlab.LARGE_BYTES", 2**20)
