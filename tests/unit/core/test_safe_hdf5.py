"""What a file may claim, and what is compared before a library believes it."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from scmil.core.safe_hdf5 import h5_array, opened_h5
from scmil.errors import DataError

HOSTILE = Path(__file__).parents[2] / "data" / "hostile"
VALUES = np.random.default_rng(0).integers(-9, 9, (70, 11)).astype(np.float32)


def stored(path: Path, values: Any = VALUES, **how: Any) -> Path:
    with h5py.File(path, "w") as file:
        file.create_dataset("features", data=values, **how)
    return path


def read(path: Path) -> Any:
    with opened_h5(path) as file:
        return h5_array(file, "features")


@pytest.mark.parametrize("compression", [None, "gzip", "lzf"])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("fletcher32", [False, True])
@pytest.mark.parametrize("dtype", ["<f2", "<f4", ">f8", "<i8", "u1", "?"])
def test_arrays_of_all_filters_come_back(
    tmp_path: Path, compression: str | None, shuffle: bool, fletcher32: bool, dtype: str
) -> None:
    values = VALUES.astype(dtype)
    path = stored(
        tmp_path / "a.h5",
        values,
        chunks=(16, 4),
        compression=compression,
        shuffle=shuffle,
        fletcher32=fletcher32,
    )
    met = read(path)
    assert met.dtype == values.dtype
    assert np.array_equal(met, values)


def test_chunks_that_were_never_written_have_the_fill_value(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        part = file.create_dataset(
            "features", (70, 11), "f4", chunks=(16, 4), compression="gzip", fillvalue=7
        )
        part[:16, :4] = VALUES[:16, :4]
        expected = part[()]
    assert np.array_equal(read(tmp_path / "a.h5"), expected)


def test_a_chunk_without_its_filter_is_read_as_it_is(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        part = file.create_dataset("features", (16, 4), "f4", chunks=(16, 4), compression="gzip")
        part.id.write_direct_chunk((0, 0), VALUES[:16, :4].tobytes(), filter_mask=1)
    assert np.array_equal(read(tmp_path / "a.h5"), VALUES[:16, :4])


def test_data_that_are_compressed_twice_are_not_read() -> None:
    with pytest.raises(
        DataError,
        match="'features' is stored with the filters gzip, gzip; data that are compressed twice",
    ):
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
    path = with_chunk(
        tmp_path / "a.h5", zlib.compress(bytes(size)), compression="gzip", shuffle=shuffle
    )
    with pytest.raises(DataError, match=r"262144 (are declared|bytes)"):
        read(path)


def test_a_chunk_that_is_not_compressed_is_as_large_as_declared(tmp_path: Path) -> None:
    path = with_chunk(tmp_path / "a.h5", bytes(16))
    with pytest.raises(DataError, match="a chunk of 16 bytes, but 262144 are declared"):
        read(path)


def test_a_chunk_far_larger_than_the_array_is_not_expanded(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        part = file.create_dataset(
            "features", (4, 4), "f4", chunks=(2**20, 500), maxshape=(None, None), compression=9
        )
        part.id.write_direct_chunk((0, 0), zlib.compress(bytes(2**20)))
    with pytest.raises(DataError, match=r"a chunk of 'features': .* a decompression bomb"):
        read(tmp_path / "a.h5")


def test_filters_that_are_not_known_are_named(tmp_path: Path) -> None:
    path = stored(tmp_path / "a.h5", VALUES.astype(np.int32), chunks=(16, 4), scaleoffset=0)
    with pytest.raises(
        DataError,
        match="'features' is stored with filter 6; supported are gzip, shuffle, fletcher32, lzf",
    ):
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
    with pytest.raises(DataError, match="has an unusual type"):
        read(tmp_path / "a.h5")


@pytest.mark.parametrize(
    "value", [np.array([(1, 2.0)], "i4,f8"), h5py.Reference], ids=["compound", "reference"]
)
def test_attributes_are_numbers_or_texts(tmp_path: Path, value: Any) -> None:
    path = stored(tmp_path / "a.h5")
    with h5py.File(path, "r+") as file:
        file.attrs["remark"] = file["features"].ref if value is h5py.Reference else value
    with pytest.raises(DataError, match="'remark' has an unusual type"), opened_h5(path):
        pass
