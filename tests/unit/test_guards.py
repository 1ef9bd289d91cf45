"""What a file may claim, and what is compared before a library believes it."""

from __future__ import annotations

import os
import socket
import struct
import tracemalloc
import zipfile
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from scmil.errors import DataError
from scmil.core.safe_io import (DAMAGE, FARTHEST_PX, check_provenance, check_xy, h5_array, inflated, npz_arrays, open_regular, opened_h5, read_regular)

HOSTILE = Path(__file__).parents[1] / "data" / "hostile"
VALUES = np.random.default_rng(0).integers(-9, 9, (70, 11)).astype(np.float32)


def stored(path: Path, values: Any = VALUES, **how: Any) -> Path:
    with h5py.File(path, "w") as file:
        file.create_dataset("features", data=values, **how)
    return path


def read(path: Path) -> Any:
    with opened_h5(path) as file:
        return h5_array(file, "features")


# ----------------------------------------------------------------------------------------------------------- HDF5 in chunks


@pytest.mark.parametrize("compression", [None, "gzip", "lzf"])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("fletcher32", [False, True])
@pytest.mark.parametrize("dtype", ["<f2", "<f4", ">f8", "<i8", "u1", "?"])
def test_arrays_of_all_filters_come_back(
    tmp_path: Path, compression: str | None, shuffle: bool, fletcher32: bool, dtype: str
) -> None:
    values = VALUES.astype(dtype)
    path = stored(
        tmp_path / "a.h5", values, chunks=(16, 4), compression=compression, shuffle=shuffle, fletcher32=fletcher32
    )
    met = read(path)
    assert met.dtype == values.dtype
    assert np.array_equal(met, values)


def test_chunks_that_were_never_written_have_the_fill_value(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        part = file.create_dataset("features", (70, 11), "f4", chunks=(16, 4), compression="gzip", fillvalue=7)
        part[:16, :4] = VALUES[:16, :4]
        expected = part[()]
    assert np.array_equal(read(tmp_path / "a.h5"), expected)


def test_a_chunk_without_its_filter_is_read_as_it_is(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        part = file.create_dataset("features", (16, 4), "f4", chunks=(16, 4), compression="gzip")
        part.id.write_direct_chunk((0, 0), VALUES[:16, :4].tobytes(), filter_mask=1)
    assert np.array_equal(read(tmp_path / "a.h5"), VALUES[:16, :4])


def test_data_that_are_compressed_twice_are_not_read() -> None:
    with pytest.raises(DataError, match="'features' is stored with the filters gzip, gzip: compressed twice"):
        read(HOSTILE / "deflate_twice.h5")


def with_chunk(path: Path, content: bytes, **how: Any) -> Path:
    with h5py.File(path, "w") as file:
        part = file.create_dataset("features", (256, 256), "f4", chunks=(256, 256), **how)
        part.id.write_direct_chunk((0, 0), content)
    return path


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("size", [0, 16, 4 * 256 * 256 - 1, 4 * 256 * 256 + 1, 2**26])
def test_a_chunk_that_expands_to_another_size_than_declared_is_rejected(
    tmp_path: Path, size: int, shuffle: bool
) -> None:
    """The HDF5 library reads beyond the end of a short one, and expands a long one whole."""
    path = with_chunk(tmp_path / "a.h5", zlib.compress(bytes(size)), compression="gzip", shuffle=shuffle)
    with pytest.raises(DataError, match=r"262144 (are declared|bytes)"):
        read(path)


def test_a_chunk_that_is_not_compressed_is_as_large_as_declared(tmp_path: Path) -> None:
    path = with_chunk(tmp_path / "a.h5", bytes(16))
    with pytest.raises(DataError, match="a chunk of 16 bytes, but 262144 are declared"):
        read(path)


def test_a_chunk_far_larger_than_the_array_is_not_expanded(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        part = file.create_dataset("features", (4, 4), "f4", chunks=(2**20, 500), maxshape=(None, None), compression=9)
        part.id.write_direct_chunk((0, 0), zlib.compress(bytes(2**20)))
    with pytest.raises(DataError, match=r"a chunk of 'features': .* no data, but a bomb"):
        read(tmp_path / "a.h5")


def test_filters_that_are_not_known_are_named(tmp_path: Path) -> None:
    path = stored(tmp_path / "a.h5", VALUES.astype(np.int32), chunks=(16, 4), scaleoffset=0)
    with pytest.raises(DataError, match="'features' is stored with filter 6, and gzip, shuffle, fletcher32, lzf are"):
        read(path)


def test_a_checksum_that_differs_is_damage(tmp_path: Path) -> None:
    path = stored(tmp_path / "a.h5", chunks=VALUES.shape, fletcher32=True)
    content = bytearray(path.read_bytes())
    content[content.index(VALUES.tobytes()) + 100] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="checksum differs"):
        read(path)


def test_compressed_numbers_of_unusual_types_are_not_taken_for_others(tmp_path: Path) -> None:
    kind = h5py.h5t.STD_I16LE.copy()
    kind.set_precision(12)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((4, 4))
        properties.set_deflate(4)
        h5py.h5d.create(file.id, b"features", kind, h5py.h5s.create_simple((4, 4)), properties)
    with pytest.raises(DataError, match="of an unusual type"):
        read(tmp_path / "a.h5")


@pytest.mark.parametrize("value", [np.array([(1, 2.0)], "i4,f8"), h5py.Reference], ids=["compound", "reference"])
def test_attributes_are_numbers_or_texts(tmp_path: Path, value: Any) -> None:
    path = stored(tmp_path / "a.h5")
    with h5py.File(path, "r+") as file:
        file.attrs["remark"] = file["features"].ref if value is h5py.Reference else value
    with pytest.raises(DataError, match="'remark' has an unusual type"), opened_h5(path):
        pass


# ------------------------------------------------------------------------------------------------------------------ files


@pytest.mark.parametrize("kind", ["a named pipe", "a socket", "a device", "a folder"])
def test_only_regular_files_are_opened(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the name of a socket is short
    path = Path("it")
    if kind == "a named pipe":
        os.mkfifo(path)
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as opened:
            opened.bind(str(path))
    elif kind == "a device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    for function in (open_regular, read_regular, npz_arrays, lambda path: opened_h5(path).__enter__()):
        with pytest.raises(OSError, match="this is not a file, but a pipe, a device or a folder"):
            function(path)


def test_a_link_to_a_regular_file_is_opened(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "b").symlink_to("a")
    assert read_regular(tmp_path / "b") == b"abc"


def test_a_stream_is_expanded_up_to_its_bound() -> None:
    for size in (0, 1, 2**20, 2**20 + 1, 3 * 2**20):
        assert inflated(zlib.compress(bytes(size)), size) == bytes(size)
        with pytest.raises(DataError, match="expands to more than"):
            inflated(zlib.compress(bytes(size + 1)), size)
    with pytest.raises(DataError, match=r"is damaged \(.*incorrect header check"):
        inflated(b"abc", 100)
    with pytest.raises(DataError, match="ends too early"):
        inflated(zlib.compress(bytes(100))[:-6], 100)


# ---------------------------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("slide_mpp", "x"),
        ("slide_mpp", float("nan")),
        ("slide_mpp", 0),
        ("slide_mpp", -0.5),
        ("slide_mpp", True),
        ("mpp", [0.5]),
        ("mpp", 1e-6),
        ("mpp", float("inf")),
        ("side_level0", {}),
        ("side_level0", 1e300),
        ("size_px", 10**30),
        ("size_px", 0),
        ("overlap_px", -1),
        ("slide_size", 5),
        ("slide_size", "30000x20000"),
        ("slide_size", [1, 2, 3]),
        ("slide_size", [10**12, 5]),
        ("slide_size", ["a", "b"]),
        ("encoder", 7),
        ("scales_mpp", "x"),
        ("scales_mpp", ["x"]),
    ],
)
def test_what_a_file_says_of_its_tiles_has_bounds(name: str, value: Any) -> None:
    with pytest.raises(DataError, match=f"^{name} is "):
        check_provenance({name: value})


def test_what_a_file_does_not_say_is_not_asked_for() -> None:
    check_provenance({"slide_mpp": None, "more": object()})
    check_provenance({"mpp": 0.5, "slide_mpp": np.float32(0.25), "side_level0": 512, "slide_size": (30_000, 20_000)})
    check_provenance({"scales_mpp": [0.5, 2.0], "encoder": "uni"})


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), 0.5, -(2**62), np.uint64(2**64 - 1), 2.0**70, FARTHEST_PX + 1, True]
)
def test_coordinates_are_whole_and_on_a_slide(value: Any) -> None:
    with pytest.raises(DataError, match="coordinate"):
        check_xy(np.array([[value, value]]))


def test_a_member_that_unpacks_to_more_than_it_says_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "lies.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", bytes(300 * 2**20))
    content = bytearray(path.read_bytes())
    for place in (22, content.rindex(b"PK\x01\x02") + 24):  # the size in the local header and in the directory
        content[place : place + 4] = struct.pack("<I", 100)
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(DAMAGE):
        npz_arrays(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50 * 2**20
