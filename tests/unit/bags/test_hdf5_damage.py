"""Bag files that are damaged, of another kind, or state impossible values."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from bag_files import full_bag, write_changed_bag

from scmil.bags.bag import Bag
from scmil.bags.hdf5 import (
    FORMAT,
    map_features,
    read_bag,
    read_header,
    write_bag,
)
from scmil.errors import DataError


def test_a_missing_file_raises(tmp_path: Path) -> None:
    for read in (read_bag, read_header):
        with pytest.raises(DataError, match=r"nowhere\.h5: there is no such file"):
            read(tmp_path / "nowhere.h5")


@pytest.mark.parametrize("content", [b"", b"this is no HDF5", "half of a bag"])
def test_the_error_for_a_damaged_file_states_the_remedy(
    tmp_path: Path, content: bytes | str
) -> None:
    path = tmp_path / "a.h5"
    write_bag(Bag("a", torch.rand(100, 9)), path)
    whole = path.read_bytes()
    path.write_bytes(content if isinstance(content, bytes) else whole[: len(whole) // 2])
    for read in (read_bag, read_header):
        with pytest.raises(
            DataError, match=r"a\.h5 cannot be read as a bag of scmil: .* Encode this slide again\."
        ):
            read(path)


def test_a_folder_is_rejected_as_a_bag(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_bag(tmp_path)


def without_features(file: h5py.File) -> None:
    del file["features"]


def with_a_group(file: h5py.File) -> None:
    del file["features"]
    file.create_group("features")


def with_one_row(file: h5py.File) -> None:
    del file["features"]
    file["features"] = np.zeros(3)


def of_a_later_version(file: h5py.File) -> None:
    file.attrs["scmil_format"] = "scmil-bag-2"


def unmarked(file: h5py.File) -> None:
    del file.attrs["scmil_format"]


@pytest.mark.parametrize(
    "change", [without_features, with_a_group, with_one_row, of_a_later_version, unmarked]
)
def test_a_file_of_another_format_is_rejected(
    tmp_path: Path, change: Callable[[h5py.File], object]
) -> None:
    path = write_changed_bag(tmp_path / "a.h5", change)
    for read in (read_bag, read_header):
        with pytest.raises(
            DataError,
            match=f"is not a bag of scmil: its format is .*{FORMAT}' with features is needed",
        ):
            read(path)


def without_id(file: h5py.File) -> None:
    del file.attrs["id"]


def without_provenance(file: h5py.File) -> None:
    del file.attrs["provenance"]


def with_broken_json(file: h5py.File) -> None:
    file.attrs["provenance"] = '{"encoder": '


@pytest.mark.parametrize("change", [without_id, without_provenance, with_broken_json])
def test_a_bag_without_id_or_provenance_is_rejected(
    tmp_path: Path, change: Callable[[h5py.File], object]
) -> None:
    path = write_changed_bag(tmp_path / "a.h5", change)
    for read in (read_bag, read_header):
        with pytest.raises(
            DataError, match=r"a\.h5 cannot be read as a bag of scmil: .*Encode this slide"
        ):
            read(path)


def test_coordinates_of_other_tiles_are_rejected(tmp_path: Path) -> None:
    def one_tile_less(file: h5py.File) -> None:
        del file["coords"]
        file["coords"] = np.zeros((1, 2), np.int64)

    with pytest.raises(DataError, match=r"a\.h5: bag 'slide 1': coordinates of shape \(1, 2\)"):
        read_bag(write_changed_bag(tmp_path / "a.h5", one_tile_less))


def test_datasets_added_by_other_programs_are_ignored(tmp_path: Path) -> None:
    def add(file: h5py.File) -> None:
        file["notes"] = "seen by a pathologist"
        file.create_group("more")["of"] = [1, 2]

    assert torch.equal(
        read_bag(write_changed_bag(tmp_path / "a.h5", add)).features, full_bag().features
    )


def test_a_rejected_file_is_closed(tmp_path: Path) -> None:
    path = write_changed_bag(tmp_path / "a.h5", without_id)
    with pytest.raises(DataError):
        read_bag(path)
    with h5py.File(path, "a") as file:  # HDF5 locks files that are open
        del file.attrs["digest"]
        file.attrs["id"] = "restored"
    assert read_bag(path).id == "restored"


def saying(**known: object) -> Callable[[h5py.File], object]:
    return lambda file: file.attrs.update(provenance=json.dumps({**full_bag().provenance, **known}))


@pytest.mark.parametrize(
    "known",
    [
        {"slide_mpp": "x"},
        {"slide_mpp": float("nan")},
        {"slide_size": [1]},
        {"side_level0": -1},
        {"mpp": [0.5]},
    ],
)
def test_a_text_where_a_number_is_needed_is_named(tmp_path: Path, known: dict[str, object]) -> None:
    path = write_changed_bag(tmp_path / "a.h5", saying(**known))
    for read in (read_bag, read_header):
        with pytest.raises(DataError, match=rf"a\.h5: {next(iter(known))} is "):
            read(path)


@pytest.mark.parametrize("text", ["[]", "5", '{"a":' * 100_000, "{", "null"])
def test_a_provenance_that_is_not_an_object_is_damage(tmp_path: Path, text: str) -> None:
    write_bag(full_bag(), tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file.attrs.create("provenance", text, dtype=h5py.string_dtype())
    with pytest.raises(DataError, match=r"a\.h5"):
        read_bag(tmp_path / "a.h5")


@pytest.mark.parametrize(
    "xy", [[[-(2**62), 0], [0, 0]], [[float("nan"), 0.0], [0.0, 0.0]], [[0.5, 0.0], [0.0, 0.0]]]
)
def test_coordinates_that_are_not_pixels_are_named(tmp_path: Path, xy: list[list[float]]) -> None:
    def change(file: h5py.File) -> None:
        del file["coords"]
        file["coords"] = np.array(xy)

    with pytest.raises(DataError, match=r"a\.h5: .*coordinate"):
        read_bag(write_changed_bag(tmp_path / "a.h5", change))


def test_instances_without_a_feature_are_not_billions(tmp_path: Path) -> None:
    def change(file: h5py.File) -> None:
        del file["features"], file["coords"]
        file.create_dataset("features", (10**12, 0), "f2")

    path = write_changed_bag(tmp_path / "a.h5", change)
    for read in (read_bag, read_header):
        with pytest.raises(DataError, match=r"a\.h5: .*1000000000000 instances without a feature"):
            read(path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.h5")
    for read in (read_bag, read_header, map_features):
        with pytest.raises(DataError, match=r"a\.h5.*not a regular file, but a pipe"):
            read(tmp_path / "a.h5")
