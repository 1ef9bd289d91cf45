"""Readers of the folders of CLAM and TRIDENT, written from the description of the formats alone,
for the tests of export.

They insist on names, types, chunks and attributes, as the tools' own code relies on them.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from numpy.typing import NDArray


def require(condition: Any, what: str) -> None:
    if not condition:
        raise ValueError(what)


def read_clam(folder: Path, slide: str) -> tuple[NDArray[np.float32], NDArray[np.int32] | None]:
    """Features and coordinates of one slide; the tensor has the same rows as the HDF5 file."""
    tensor = torch.load(folder / "pt_files" / f"{slide}.pt", weights_only=True)
    require(
        isinstance(tensor, torch.Tensor) and tensor.dtype == torch.float32, "a bare float32 tensor"
    )
    with h5py.File(folder / "h5_files" / f"{slide}.h5") as file:
        require(
            set(file) <= {"features", "coords"} and not file.attrs,
            "features, coords, no attributes",
        )
        data = file["features"]
        require(
            data.dtype == np.float32 and data.chunks == (32, data.shape[1]) and not data.attrs,
            "32 rows a chunk",
        )
        features = data[:]
        coords = None
        if "coords" in file:
            require(
                file["coords"].dtype == np.int32 and not file["coords"].attrs, "int32 coordinates"
            )
            coords = file["coords"][:]
            require(coords.shape == (len(features), 2), "x and y of each")
    require(np.array_equal(tensor.numpy(), features), "the same rows in both files")
    return features, coords


def read_clam_labels(folder: Path) -> dict[str, tuple[str, str]]:
    """Case and label of each slide."""
    with (folder / "labels.csv").open(newline="") as file:
        table = csv.DictReader(file)
        require(table.fieldnames == ["case_id", "slide_id", "label"], "CLAM's three columns")
        return {row["slide_id"]: (row["case_id"], row["label"]) for row in table}


def read_trident(
    job: Path, slide: str, encoder: str
) -> tuple[NDArray[np.float32], NDArray[np.int64], dict[str, Any]]:
    """Features, coordinates and the attributes of the tiling, which both files of a slide state."""
    [tiling] = [
        path for path in job.iterdir() if re.fullmatch(r"\d+x_\d+px_\d+px_overlap", path.name)
    ]
    with h5py.File(tiling / f"features_{encoder}" / f"{slide}.h5") as file:
        data = file["features"]
        require(
            data.dtype == np.float32 and data.chunks == (1, data.shape[1]),
            "float32, one row a chunk",
        )
        require(
            {"name", "savetodir", "encoder"} <= set(data.attrs)
            and data.attrs["encoder"] == encoder,
            "its encoder",
        )
        features, coords, attributes = data[:], file["coords"][:], dict(file["coords"].attrs)
    with h5py.File(tiling / "patches" / f"{slide}_patches.h5") as file:
        require(
            file["coords"].chunks == (1, 2) and file["coords"].dtype == np.int64,
            "int64, one row a chunk",
        )
        require(np.array_equal(file["coords"][:], coords), "the same coordinates in both files")
        require(set(file["coords"].attrs) == set(attributes), "the same attributes in both files")
    size, overlap = attributes["patch_size"], attributes["overlap"]
    require(
        tiling.name == f"{attributes['target_magnification']}x_{size}px_{overlap}px_overlap",
        "the folder says the tiling",
    )
    needed = {
        "patch_size_level0",
        "level0_magnification",
        "name",
        "savetodir",
        "level0_width",
        "level0_height",
    }
    require(needed <= set(attributes), f"the attributes {needed - set(attributes)}")
    require(
        attributes["name"] == slide and isinstance(attributes["patch_size_level0"].item(), int),
        "a whole number of pixels",
    )
    return features, coords, attributes
