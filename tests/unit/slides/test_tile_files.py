from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tilings import EVERYWHERE, Blank, h5py, tiled, tissue

from scmil.errors import DataError
from scmil.slides.tile_files import read_tiling, write_tiling


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    for options in (dict(), dict(overlap_px=32, mpp=0.1), dict(min_tissue=1, size_px=4096)):
        written = tiled(tissue(EVERYWHERE), Blank(mpp=0.2431), **options)
        write_tiling(written, tissue(EVERYWHERE), tmp_path / "blank.h5")
        read = read_tiling(tmp_path / "blank.h5")
        assert np.array_equal(read.xy, written.xy)
        assert np.array_equal(read.fraction, written.fraction)
        for name in (
            "slide_id",
            "size_px",
            "mpp",
            "slide_mpp",
            "slide_size",
            "stride",
            "overlap_px",
            "warnings",
            "side",
        ):
            assert getattr(read, name) == getattr(written, name)


def test_the_file_has_the_names_that_trident_reads(tmp_path: Path) -> None:
    write_tiling(
        tiled(tissue(EVERYWHERE), Blank(mpp=0.2431)), tissue(EVERYWHERE), tmp_path / "blank.h5"
    )
    with h5py.File(tmp_path / "blank.h5") as file:
        assert file["coords"].dtype == np.int64
        attributes = dict(file["coords"].attrs)
    expected = dict(
        patch_size=256,
        patch_size_level0=527,
        level0_width=4000,
        level0_height=3000,
        overlap=0,
        name="blank",
    )
    assert {name: attributes[name] for name in expected} == expected
    assert (attributes["target_magnification"], attributes["level0_magnification"]) == (20, 41)
    assert attributes["tissue"] == '{"method": "by hand"}'


def test_files_that_are_not_ours_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "tiles.h5"
    with pytest.raises(DataError, match="no such file"):
        read_tiling(path)
    path.write_bytes(b"not HDF5 at all")
    with pytest.raises(DataError, match="is damaged"):
        read_tiling(path)
    with h5py.File(path, "w") as file:
        file["coords"] = np.zeros((3, 2), dtype=np.int64)
    with pytest.raises(DataError, match="its format is None, expected 'scmil-tiles-1'"):
        read_tiling(path)


@pytest.mark.parametrize("damage", ["cut", "fewer fractions", "no attribute", "infinite fraction"])
def test_damaged_files_are_rejected(tmp_path: Path, damage: str) -> None:
    path, tiling = tmp_path / "tiles.h5", tiled(tissue(EVERYWHERE))
    if damage == "fewer fractions":
        tiling = replace(tiling, fraction=tiling.fraction[:3])
    if damage == "infinite fraction":
        tiling = replace(tiling, fraction=tiling.fraction * np.float32("inf"))
    write_tiling(tiling, tissue(EVERYWHERE), path)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:700])
    if damage == "no attribute":
        with h5py.File(path, "a") as file:
            del file["coords"].attrs["slide_mpp"]
    with pytest.raises(DataError, match=r"damaged: .* Tile this slide again"):
        read_tiling(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("slide_mpp", "x"),
        ("slide_mpp", float("nan")),
        ("mpp", 1e-9),
        ("mpp", -0.5),
        ("size_px", 10**9),
        ("size_px", 0),
        ("overlap", 256),
        ("overlap", -1),
        ("stride_level0", -1),
        ("level0_width", -5),
        ("level0_height", 2**40),
        ("warnings", "5"),
        ("warnings", "{"),
    ],
)
def test_numbers_of_a_tiling_have_bounds(tmp_path: Path, name: str, value: Any) -> None:
    write_tiling(tiled(tissue(EVERYWHERE)), tissue(EVERYWHERE), tmp_path / "tiles.h5")
    with h5py.File(tmp_path / "tiles.h5", "a") as file:
        file["coords"].attrs[name] = value
    with pytest.raises(DataError, match=r"tiles\.h5 is damaged: .* Tile this slide again"):
        read_tiling(tmp_path / "tiles.h5")


@pytest.mark.parametrize("value", [-(2**62), 2**62])
def test_tiles_far_away_from_every_slide_are_damage(tmp_path: Path, value: int) -> None:
    write_tiling(tiled(tissue(EVERYWHERE)), tissue(EVERYWHERE), tmp_path / "tiles.h5")
    with h5py.File(tmp_path / "tiles.h5", "a") as file:
        file["coords"][0, 0] = value
    with pytest.raises(
        DataError, match=r"tiles\.h5 is damaged: a coordinate of .* Tile this slide again"
    ):
        read_tiling(tmp_path / "tiles.h5")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tiles.h5")
    with pytest.raises(DataError, match=r"tiles\.h5.*not a regular file, but a pipe"):
        read_tiling(tmp_path / "tiles.h5")
