from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from scmil import Recipe, build_model, fit, predict
from scmil.bags.hdf5 import (DTYPES, FORMAT, check_dtype, map_features, mark_bag, read_bag, read_header, stored_digest, write_bag)
from scmil.bags.bag import Bag
from scmil.errors import DataError, OptionError

FLOAT16 = torch.finfo(torch.float16)


@pytest.fixture(autouse=True, scope="module")
def no_waiting_for_the_disk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda file: None)
        yield


def full() -> Bag:
    """A bag with everything that a bag can have."""
    return Bag(
        "slide 1",
        torch.tensor([[0.5, -2.0, 0.0], [1024.0, 3.25, -0.125]]),
        label=1,
        patient="p",
        instance_labels=torch.tensor([0, 1]),
        xy=torch.tensor([[0, 512], [2**40, 3]]),
        provenance={
            "encoder": "resnet18",
            "mpp": 0.5,
            "slide_size": [10, 20],
            "stain": "H&E, µ",
            "nested": {"a": None},
        },
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_written_is_read_back(tmp_path: Path, dtype: str) -> None:
    bag, path = full(), tmp_path / "new" / "folders" / "slide.h5"
    write_bag(bag, path, dtype)
    back = read_bag(path, label=1, patient="p")
    assert (back.id, back.label, back.patient, back.provenance) == (bag.id, 1, "p", bag.provenance)
    assert back.xy is not None
    assert back.instance_labels is not None
    for met, expected in (
        (back.features, bag.features),
        (back.xy, bag.xy),
        (back.instance_labels, bag.instance_labels),
    ):
        assert torch.equal(met, expected)
        assert met.dtype == expected.dtype
    assert [file.name for file in path.parent.iterdir()] == ["slide.h5"]


def test_labels_and_patients_are_not_in_the_file(tmp_path: Path) -> None:
    write_bag(full(), tmp_path / "a.h5")
    back = read_bag(tmp_path / "a.h5")
    assert (back.label, back.patient) == (None, None)


def test_what_a_bag_does_not_have_is_not_made_up(tmp_path: Path) -> None:
    write_bag(Bag("a", torch.ones(2, 3)), tmp_path / "a.h5")
    back = read_bag(tmp_path / "a.h5")
    assert (back.xy, back.instance_labels, back.provenance) == (None, None, {})


def test_others_read_our_files_by_the_names_they_know(tmp_path: Path) -> None:
    bag = full()
    write_bag(bag, tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5") as file:
        assert (file["features"].dtype, file["features"].shape, file["features"].chunks) == (np.float16, (2, 3), None)
        assert (file["coords"].dtype, file["coords"][()].tolist()) == (np.int64, bag.xy.tolist())  # type: ignore[union-attr]
        assert json.loads(file.attrs["provenance"]) == bag.provenance


def test_float16_halves_the_file(tmp_path: Path) -> None:
    bag = Bag("a", torch.rand(500, 100))
    for dtype in DTYPES:
        write_bag(bag, tmp_path / f"{dtype}.h5", dtype)
    half, whole = ((tmp_path / f"{dtype}.h5").stat().st_size for dtype in ("float16", "float32"))
    assert whole - half == 500 * 100 * 2


def test_the_header_is_known_without_the_features(tmp_path: Path) -> None:
    write_bag(full(), tmp_path / "a.h5")
    assert read_header(tmp_path / "a.h5") == ("slide 1", 2, 3, full().provenance)


def test_a_bag_without_instances_keeps_its_dimension(tmp_path: Path) -> None:
    write_bag(Bag("empty", torch.empty(0, 7), xy=torch.empty(0, 2, dtype=torch.int64)), tmp_path / "a.h5")
    back = read_bag(tmp_path / "a.h5")
    assert back.features.shape == (0, 7)
    assert back.xy is not None
    assert back.xy.shape == (0, 2)
    assert read_header(tmp_path / "a.h5")[:3] == ("empty", 0, 7)


@pytest.mark.parametrize("id", ["ünïcödé 幻灯片", "a/b\\c", "with\nline", "007", "100%", "x" * 3000, "not\udcfftext"])
def test_any_id_is_kept_to_the_letter(tmp_path: Path, id: str) -> None:
    write_bag(Bag(id, torch.ones(1, 1)), tmp_path / "a.h5")
    assert read_bag(tmp_path / "a.h5").id == read_header(tmp_path / "a.h5").id == id


def test_features_on_which_a_model_is_trained_are_written_too(tmp_path: Path) -> None:
    features = torch.ones(2, 2, dtype=torch.bfloat16, requires_grad=True).T  # not contiguous
    write_bag(Bag("a", features), tmp_path / "a.h5")
    assert torch.equal(read_bag(tmp_path / "a.h5").features, torch.ones(2, 2))


FINITE = st.floats(-65_000, 65_000, width=32)


@settings(max_examples=25, deadline=None)
@given(arrays(np.float32, array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=6), elements=FINITE))
def test_features_come_back_within_the_rounding_of_their_type(tmp_path_factory: Any, features: Any) -> None:
    bag, path = Bag("a", torch.from_numpy(features)), tmp_path_factory.mktemp("bag") / "a.h5"
    write_bag(bag, path, "float32")
    assert torch.equal(read_bag(path).features, bag.features)
    write_bag(bag, path, "float16")
    allowed = (
        bag.features.abs() * FLOAT16.eps / 2 + FLOAT16.smallest_normal * FLOAT16.eps / 2
    )  # half a unit; subnormals
    assert ((read_bag(path).features - bag.features).abs() <= allowed).all()


# ----------------------------------------------------------------------------------------------------------- refusals


def test_features_that_float16_cannot_hold_are_refused_and_float32_takes_them(tmp_path: Path) -> None:
    bag = Bag("large", torch.tensor([[1.0, -70_000.0]]))
    with pytest.raises(DataError, match=r"bag 'large': features up to 70000 do not fit into float16\. Write float32\."):
        write_bag(bag, tmp_path / "a.h5")
    assert not list(tmp_path.iterdir())
    write_bag(bag, tmp_path / "a.h5", "float32")
    assert torch.equal(read_bag(tmp_path / "a.h5").features, bag.features)


def test_a_type_that_features_are_not_written_in_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="dtype 'float64' is not known: features are written in float16 or float32"):
        write_bag(full(), tmp_path / "a.h5", "float64")
    with pytest.raises(OptionError, match="half"):
        check_dtype("half")
    assert not list(tmp_path.iterdir())


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    for read in (read_bag, read_header):
        with pytest.raises(DataError, match=r"nowhere\.h5: there is no such file"):
            read(tmp_path / "nowhere.h5")


@pytest.mark.parametrize("content", [b"", b"this is no HDF5", "half of a bag"])
def test_a_damaged_file_is_told_with_what_to_do(tmp_path: Path, content: bytes | str) -> None:
    path = tmp_path / "a.h5"
    write_bag(Bag("a", torch.rand(100, 9)), path)
    whole = path.read_bytes()
    path.write_bytes(content if isinstance(content, bytes) else whole[: len(whole) // 2])
    for read in (read_bag, read_header):
        with pytest.raises(DataError, match=r"a\.h5 cannot be read as HDF5: .* Encode this slide again\."):
            read(path)


def test_a_folder_is_no_bag(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_bag(tmp_path)


def changed(path: Path, change: Callable[[h5py.File], object]) -> Path:
    write_bag(full(), path)
    with h5py.File(path, "a") as file:
        change(file)
    return path


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


@pytest.mark.parametrize("change", [without_features, with_a_group, with_one_row, of_a_later_version, unmarked])
def test_a_file_of_something_else_is_refused(tmp_path: Path, change: Callable[[h5py.File], object]) -> None:
    path = changed(tmp_path / "a.h5", change)
    for read in (read_bag, read_header):
        with pytest.raises(DataError, match=f"is no bag of scmil: its format is .*{FORMAT}' with features is needed"):
            read(path)


def without_id(file: h5py.File) -> None:
    del file.attrs["id"]


def without_provenance(file: h5py.File) -> None:
    del file.attrs["provenance"]


def with_broken_json(file: h5py.File) -> None:
    file.attrs["provenance"] = '{"encoder": '


@pytest.mark.parametrize("change", [without_id, without_provenance, with_broken_json])
def test_a_bag_that_lost_a_part_is_refused(tmp_path: Path, change: Callable[[h5py.File], object]) -> None:
    path = changed(tmp_path / "a.h5", change)
    for read in (read_bag, read_header):
        with pytest.raises(DataError, match=r"a\.h5 is damaged: .* Encode this slide again\."):
            read(path)


def test_coordinates_of_other_tiles_are_refused(tmp_path: Path) -> None:
    def one_tile_less(file: h5py.File) -> None:
        del file["coords"]
        file["coords"] = np.zeros((1, 2), np.int64)

    with pytest.raises(DataError, match=r"a\.h5: bag 'slide 1': coordinates of shape \(1, 2\)"):
        read_bag(changed(tmp_path / "a.h5", one_tile_less))


def test_what_others_add_to_a_file_is_passed_over(tmp_path: Path) -> None:
    def add(file: h5py.File) -> None:
        file["notes"] = "seen by a pathologist"
        file.create_group("more")["of"] = [1, 2]

    assert torch.equal(read_bag(changed(tmp_path / "a.h5", add)).features, full().features)


def test_a_bag_that_is_open_is_let_go_after_a_refusal(tmp_path: Path) -> None:
    path = changed(tmp_path / "a.h5", without_id)
    with pytest.raises(DataError):
        read_bag(path)
    with h5py.File(path, "a") as file:  # HDF5 locks files that are open
        del file.attrs["digest"]
        file.attrs["id"] = "mended"
    assert read_bag(path).id == "mended"


# ------------------------------------------------------------------------------------------------------------- digests


def test_features_that_were_edited_in_place_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "slide.h5"
    write_bag(full(), path)
    read_bag(path)
    with h5py.File(path, "r+") as file:
        file["features"][0, 0] += 1
    with pytest.raises(DataError, match="content is not what scmil wrote"):
        read_bag(path)


@pytest.mark.parametrize("name", ["features", "coords", "instance_labels"])
def test_the_digest_covers_every_array(tmp_path: Path, name: str) -> None:
    path = tmp_path / "slide.h5"
    write_bag(full(), path)
    with h5py.File(path, "r+") as file:
        file[name][...] = file[name][...][::-1]
    with pytest.raises(DataError, match="content is not what scmil wrote"):
        read_bag(path)


def test_the_digest_lies_in_the_first_bytes_also_of_a_bag_with_much_provenance(tmp_path: Path) -> None:
    path = tmp_path / "slide.h5"
    write_bag(replace(full(), provenance={f"key {i}": "x" * 100 for i in range(300)}), path)
    with h5py.File(path) as file:
        assert file.attrs["digest"].decode() == f"scmil-sha256:{stored_digest(path)}"


def test_a_bag_that_is_written_again_has_the_same_mark_and_an_edited_one_has_not(tmp_path: Path) -> None:
    path = tmp_path / "slide.h5"
    write_bag(full(), path)
    before = mark_bag(path)
    write_bag(full(), path)
    assert mark_bag(path, before).token == before.token
    assert mark_bag(path, before).stat != before.stat
    with h5py.File(path, "r+") as file:
        file["features"][0, 0] += 1
    assert mark_bag(path, before).token != before.token


def test_a_bag_of_an_earlier_version_is_identified_by_size_and_time(tmp_path: Path) -> None:
    path = tmp_path / "slide.h5"
    write_bag(full(), path)
    with h5py.File(path, "r+") as file:
        del file.attrs["digest"]
    path.write_bytes(path.read_bytes().replace(b"scmil-sha256:", b"scmil-sha0000"))  # HDF5 leaves deleted bytes
    assert mark_bag(path).token.startswith("stat:")
    assert read_bag(path).id == full().id


# ------------------------------------------------------------------------------------------------------------ mapping


@pytest.mark.parametrize("dtype", DTYPES)
def test_mapped_features_are_those_of_the_file(tmp_path: Path, dtype: str) -> None:
    bag, path = full(), tmp_path / "slide.h5"
    write_bag(bag, path, dtype)
    mapped = map_features(path)
    assert isinstance(mapped, np.memmap)
    assert (mapped.dtype, mapped.shape) == (np.dtype(dtype), (2, 3))
    np.testing.assert_array_equal(np.asarray(mapped, np.float32), read_bag(path).features.numpy())
    mapped[0, 0] = 7  # stays in memory
    assert read_bag(path).features[0, 0] != 7


def test_what_cannot_be_mapped_is_refused_with_the_way_out(tmp_path: Path) -> None:
    write_bag(full(), packed := tmp_path / "packed.h5")
    with h5py.File(packed, "a") as file:
        features = file["features"][()]
        del file["features"]
        file.create_dataset("features", data=features, compression="gzip")
    with pytest.raises(DataError, match=r"packed\.h5: the features are compressed.*Read it with read_bag"):
        map_features(packed)
    assert read_bag(packed).features.shape == (2, 3)
    write_bag(Bag("none", torch.zeros(0, 3)), empty := tmp_path / "empty.h5")
    with pytest.raises(DataError, match=r"empty\.h5: the bag is empty"):
        map_features(empty)
    with pytest.raises(DataError, match="there is no such file"):
        map_features(tmp_path / "absent.h5")


def test_a_bag_that_would_fill_the_memory_stays_in_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, features = tmp_path / "huge.h5", torch.randn(20, 8)
    write_bag(Bag("huge", features), path)
    monkeypatch.setattr("scmil.bags.hdf5.LARGEST_NUMBERS", 100)
    huge = read_bag(path, label=1).features
    assert huge.dtype == torch.float16
    assert torch.equal(huge, features.half())
    model = build_model(8, 2, "abmil-gated", embed=[4], seed=0)
    fitted = torch.stack([predict(model, [Bag("huge", x)])[0] for x in (huge, features.half().float())])
    assert torch.equal(fitted[0], fitted[1])
    fit(model, [Bag("huge", huge, label=1)], recipe=Recipe(epochs=1))  # trains as it is
    monkeypatch.setattr("scmil.bags.hdf5.LARGEST_NUMBERS", 1000)
    assert read_bag(path).features.dtype == torch.float32


# ---------------------------------------------------------------------------------------------- what a file can say of itself


def saying(**known: object) -> Callable[[h5py.File], object]:
    return lambda file: file.attrs.update(provenance=json.dumps({**full().provenance, **known}))


@pytest.mark.parametrize(
    "known", [{"slide_mpp": "x"}, {"slide_mpp": float("nan")}, {"slide_size": [1]}, {"side_level0": -1}, {"mpp": [0.5]}]
)
def test_a_text_where_a_number_is_needed_is_named(tmp_path: Path, known: dict[str, object]) -> None:
    path = changed(tmp_path / "a.h5", saying(**known))
    for read in (read_bag, read_header):
        with pytest.raises(DataError, match=rf"a\.h5: {next(iter(known))} is "):
            read(path)


@pytest.mark.parametrize("text", ["[]", "5", '{"a":' * 100_000, "{", "null"])
def test_a_provenance_that_is_not_an_object_is_damage(tmp_path: Path, text: str) -> None:
    write_bag(full(), tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file.attrs.create("provenance", text, dtype=h5py.string_dtype())
    with pytest.raises(DataError, match=r"a\.h5"):
        read_bag(tmp_path / "a.h5")


@pytest.mark.parametrize("xy", [[[-(2**62), 0], [0, 0]], [[float("nan"), 0.0], [0.0, 0.0]], [[0.5, 0.0], [0.0, 0.0]]])
def test_coordinates_that_are_not_pixels_are_named(tmp_path: Path, xy: list[list[float]]) -> None:
    def change(file: h5py.File) -> None:
        del file["coords"]
        file["coords"] = np.array(xy)

    with pytest.raises(DataError, match=r"a\.h5: .*coordinate"):
        read_bag(changed(tmp_path / "a.h5", change))


def test_instances_without_a_feature_are_not_billions(tmp_path: Path) -> None:
    def change(file: h5py.File) -> None:
        del file["features"], file["coords"]
        file.create_dataset("features", (10**12, 0), "f2")

    path = changed(tmp_path / "a.h5", change)
    for read in (read_bag, read_header):
        with pytest.raises(DataError, match=r"a\.h5: .*1000000000000 instances without a feature"):
            read(path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.h5")
    for read in (read_bag, read_header, map_features):
        with pytest.raises(DataError, match=r"a\.h5.*this is not a file, but a pipe"):
            read(tmp_path / "a.h5")


def test_a_digest_that_is_a_number_is_not_taken_for_a_size(tmp_path: Path) -> None:
    path = tmp_path / "slide.h5"
    write_bag(full(), path)
    with h5py.File(path, "r+") as file:
        del file.attrs["digest"]
        file.attrs["digest"] = 2**40
    with pytest.raises(DataError, match="content is not what scmil wrote"):
        read_bag(path)
