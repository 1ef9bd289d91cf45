"""What a file may claim, and what is compared before a library believes it."""

from __future__ import annotations

import struct
import tracemalloc
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scmil.core.safe_io import DAMAGE, FARTHEST_PX, check_provenance, check_xy, inflated, npz_arrays
from scmil.errors import DataError


def test_a_stream_is_expanded_up_to_its_bound() -> None:
    for size in (0, 1, 2**20, 2**20 + 1, 3 * 2**20):
        assert inflated(zlib.compress(bytes(size)), size) == bytes(size)
        with pytest.raises(DataError, match="expand to more than"):
            inflated(zlib.compress(bytes(size + 1)), size)
    with pytest.raises(DataError, match=r"are damaged \(.*incorrect header check"):
        inflated(b"abc", 100)
    with pytest.raises(DataError, match="end too early"):
        inflated(zlib.compress(bytes(100))[:-6], 100)


# ------------------------------------------------------------------------------------------ numbers


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
    check_provenance(
        {
            "mpp": 0.5,
            "slide_mpp": np.float32(0.25),
            "side_level0": 512,
            "slide_size": (30_000, 20_000),
        }
    )
    check_provenance({"scales_mpp": [0.5, 2.0], "encoder": "uni"})


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        0.5,
        -(2**62),
        np.uint64(2**64 - 1),
        2.0**70,
        FARTHEST_PX + 1,
        True,
    ],
)
def test_coordinates_are_whole_and_on_a_slide(value: Any) -> None:
    with pytest.raises(DataError, match="coordinate"):
        check_xy(np.array([[value, value]]))


def test_a_member_that_unpacks_to_more_than_it_says_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "lies.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", bytes(300 * 2**20))
    content = bytearray(path.read_bytes())
    # The size in the local header and in the directory.
    for place in (22, content.rindex(b"PK\x01\x02") + 24):
        content[place : place + 4] = struct.pack("<I", 100)
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(DAMAGE):
        npz_arrays(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50 * 2**20
