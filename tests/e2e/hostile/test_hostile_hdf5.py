"""HDF5 files cannot fill the memory, show another file, or crash the library."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from scmil.bags.bag import Bag
from scmil.bags.formats import open_bags
from scmil.bags.hdf5 import map_features, read_bag, read_header, write_bag
from scmil.errors import DataError


def a_bag(bag_id: str = "slide", rows: int = 4) -> Bag:
    features = torch.arange(rows * 3.0).reshape(rows, 3)
    return Bag(
        bag_id,
        features,
        xy=torch.zeros(rows, 2, dtype=torch.int64),
        provenance={"side_level0": 256.0},
    )


@pytest.mark.parametrize("compression", ["gzip", None])
def test_an_hdf5_array_that_expands_is_not_read(tmp_path: Path, compression: str | None) -> None:
    """Chunks that were never written are zeros, and cost nothing in the file."""
    write_bag(a_bag(), tmp_path / "slide.h5")
    with h5py.File(tmp_path / "slide.h5", "r+") as file:
        del file["features"]
        file.create_dataset(
            "features", (10**7, 1000), np.float32, chunks=(1024, 1000), compression=compression
        )
    with pytest.raises(DataError, match=r"slide\.h5.*a decompression bomb"):
        read_bag(tmp_path / "slide.h5")
    with pytest.raises(DataError, match=r"slide\.h5.*a decompression bomb"):
        open_bags(tmp_path)[0]


def link(kind: str, file: Any, name: str, secret: Path) -> None:
    """Make `name` lead to the features of another file."""
    if name in file:
        del file[name]
    if kind == "external link":
        file[name] = h5py.ExternalLink(str(secret), "features")
    elif kind == "soft link through an external one":
        file["door"] = h5py.ExternalLink(str(secret), "/")
        file[name] = h5py.SoftLink("/door/features")
    elif kind == "virtual":
        layout = h5py.VirtualLayout((4, 3), np.float16)
        layout[:] = h5py.VirtualSource(str(secret), "features", (4, 3), np.float16)
        file.create_virtual_dataset(name, layout)
    else:
        file.create_dataset(name, (4, 3), np.float16, external=[(str(secret), 0, 24)])


KINDS = ["external link", "soft link through an external one", "virtual", "bytes of another file"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["features", "coords"])
def test_an_hdf5_bag_cannot_show_another_file(tmp_path: Path, kind: str, name: str) -> None:
    write_bag(a_bag("secret"), tmp_path / "secret.bin")
    write_bag(a_bag(), tmp_path / "bags" / "slide.h5")
    with h5py.File(tmp_path / "bags" / "slide.h5", "r+") as file:
        link(kind, file, name, tmp_path / "secret.bin")
    readers = (read_bag, read_header, map_features, lambda path: open_bags(path.parent, "scmil")[0])
    for read in readers:
        with pytest.raises(DataError, match=r"slide\.h5.*link to another file"):
            read(tmp_path / "bags" / "slide.h5")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("format_name", ["clam", "trident", "stamp", "torchmil"])
def test_hdf5_features_of_other_tools_cannot_show_another_file(
    tmp_path: Path, kind: str, format_name: str
) -> None:
    names = {"clam": "h5_files", "trident": "features_uni", "stamp": ".", "torchmil": "features"}
    write_bag(a_bag("secret"), tmp_path / "secret.bin")
    place = tmp_path / "job" / names[format_name]
    place.mkdir(parents=True)
    with h5py.File(place / "slide.h5", "w") as file:
        link(kind, file, "feats" if format_name == "stamp" else "features", tmp_path / "secret.bin")
    with pytest.raises(DataError, match=r"slide\.h5.*link to another file"):
        open_bags(tmp_path / "job", format_name)[0]


def test_tiles_cannot_be_those_of_another_file(tmp_path: Path) -> None:
    pytest.importorskip("shapely")
    from scmil.slides.tile_files import read_tiling

    write_bag(a_bag("secret"), tmp_path / "secret.bin")
    with h5py.File(tmp_path / "slide.h5", "w") as file:
        file["coords"] = h5py.ExternalLink(str(tmp_path / "secret.bin"), "coords")
    with pytest.raises(DataError, match=r"slide\.h5.*link to another file"):
        read_tiling(tmp_path / "slide.h5")


def test_a_heap_of_texts_that_never_ends_is_rejected(tmp_path: Path) -> None:
    """On this damage the HDF5 library does not return: found by the fuzz campaign."""
    write_bag(a_bag(), tmp_path / "slide.h5")
    content = bytearray((tmp_path / "slide.h5").read_bytes())
    at = content.index(b"GCOL") + 16
    while struct.unpack_from("<H", content, at)[0]:  # the free space at the end has the number 0
        at += 16 + -(-struct.unpack_from("<Q", content, at + 8)[0] // 8) * 8
    content[at + 8 : at + 16] = bytes(8)
    (tmp_path / "slide.h5").write_bytes(content)
    for read in (read_bag, read_header, lambda path: open_bags(path.parent, "scmil")[0]):
        with pytest.raises(DataError, match=r"slide\.h5.*heap of texts is damaged"):
            read(tmp_path / "slide.h5")


def test_an_attribute_on_which_the_hdf5_library_crashes_is_not_read(tmp_path: Path) -> None:
    """Found by the fuzz campaign: one bit makes a list of variable length of a text, and the
    library dies of it.
    """
    write_bag(Bag("slide", torch.zeros(2, 3)), tmp_path / "slide.h5")
    with h5py.File(tmp_path / "slide.h5", "r+") as file:
        lists = np.empty(1, object)
        lists[0] = np.arange(3)
        file.attrs.create("remarks", lists, dtype=h5py.vlen_dtype(np.int64))
    with pytest.raises(DataError, match=r"slide\.h5.*'remarks' is a list of variable length"):
        read_header(tmp_path / "slide.h5")
