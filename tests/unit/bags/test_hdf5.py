"""Bag files: content, digest and memory mapping."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from bag_files import full_bag
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from scmil import Recipe, build_model, fit, predict
from scmil.bags.bag import Bag
from scmil.bags.hdf5 import (
    DTYPES,
    check_dtype,
    map_features,
    mark_bag,
    read_bag,
    read_header,
    stored_digest,
    write_bag,
)
from scmil.errors import DataError, OptionError

FLOAT16 = torch.finfo(torch.float16)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_written_bag_is_read_back_unchanged(tmp_path: Path, dtype: str) -> None:
    bag, path = full_bag(), tmp_path / "new" / "folders" / "slide.h5"
    write_bag(bag, path, dtype)
    back = read_bag(path, label=1, patient="p")
    assert (back.id, back.label, back.patient, back.provenance) == (bag.id, 1, "p", bag.provenance)
    assert back.xy is not None
    assert back.instance_labels is not None
    for actual, expected in (
        (back.features, bag.features),
        (back.xy, bag.xy),
        (back.instance_labels, bag.instance_labels),
    ):
        assert torch.equal(actual, expected)
        assert actual.dtype == expected.dtype
    assert [file.name for file in path.parent.iterdir()] == ["slide.h5"]


def test_labels_and_patients_are_not_in_the_file(tmp_path: Path) -> None:
    write_bag(full_bag(), tmp_path / "a.h5")
    back = read_bag(tmp_path / "a.h5")
    assert (back.label, back.patient) == (None, None)


def test_optional_content_that_a_bag_lacks_stays_absent(tmp_path: Path) -> None:
    write_bag(Bag("a", torch.ones(2, 3)), tmp_path / "a.h5")
    back = read_bag(tmp_path / "a.h5")
    assert (back.xy, back.instance_labels, back.provenance) == (None, None, {})


def test_our_files_have_the_dataset_names_of_clam_and_trident(tmp_path: Path) -> None:
    bag = full_bag()
    write_bag(bag, tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5") as file:
        assert (file["features"].dtype, file["features"].shape, file["features"].chunks) == (
            np.float16,
            (2, 3),
            None,
        )
        assert (file["coords"].dtype, file["coords"][()].tolist()) == (np.int64, bag.xy.tolist())  # type: ignore[union-attr]
        assert json.loads(file.attrs["provenance"]) == bag.provenance


def test_float16_halves_the_file(tmp_path: Path) -> None:
    bag = Bag("a", torch.rand(500, 100))
    for dtype in DTYPES:
        write_bag(bag, tmp_path / f"{dtype}.h5", dtype)
    half, whole = ((tmp_path / f"{dtype}.h5").stat().st_size for dtype in ("float16", "float32"))
    assert whole - half == 500 * 100 * 2


def test_the_header_is_known_without_the_features(tmp_path: Path) -> None:
    write_bag(full_bag(), tmp_path / "a.h5")
    assert read_header(tmp_path / "a.h5") == ("slide 1", 2, 3, full_bag().provenance)


def test_a_bag_without_instances_keeps_its_dimension(tmp_path: Path) -> None:
    write_bag(
        Bag("empty", torch.empty(0, 7), xy=torch.empty(0, 2, dtype=torch.int64)), tmp_path / "a.h5"
    )
    back = read_bag(tmp_path / "a.h5")
    assert back.features.shape == (0, 7)
    assert back.xy is not None
    assert back.xy.shape == (0, 2)
    assert read_header(tmp_path / "a.h5")[:3] == ("empty", 0, 7)


@pytest.mark.parametrize(
    "bag_id", ["ünïcödé 幻灯片", "a/b\\c", "with\nline", "007", "100%", "x" * 3000, "not\udcfftext"]
)
def test_every_id_is_stored_exactly(tmp_path: Path, bag_id: str) -> None:
    write_bag(Bag(bag_id, torch.ones(1, 1)), tmp_path / "a.h5")
    assert read_bag(tmp_path / "a.h5").id == read_header(tmp_path / "a.h5").id == bag_id


def test_features_on_which_a_model_is_trained_are_written_too(tmp_path: Path) -> None:
    features = torch.ones(2, 2, dtype=torch.bfloat16, requires_grad=True).T  # not contiguous
    write_bag(Bag("a", features), tmp_path / "a.h5")
    assert torch.equal(read_bag(tmp_path / "a.h5").features, torch.ones(2, 2))


FINITE = st.floats(-65_000, 65_000, width=32)


@settings(max_examples=25, deadline=None)
@given(
    arrays(
        np.float32, array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=6), elements=FINITE
    )
)
def test_features_come_back_within_the_rounding_of_their_type(
    tmp_path_factory: Any, features: Any
) -> None:
    bag, path = Bag("a", torch.from_numpy(features)), tmp_path_factory.mktemp("bag") / "a.h5"
    write_bag(bag, path, "float32")
    assert torch.equal(read_bag(path).features, bag.features)
    write_bag(bag, path, "float16")
    allowed = (
        bag.features.abs() * FLOAT16.eps / 2 + FLOAT16.smallest_normal * FLOAT16.eps / 2
    )  # half a unit; subnormals
    assert ((read_bag(path).features - bag.features).abs() <= allowed).all()


def test_features_too_large_for_float16_are_rejected_and_written_as_float32(
    tmp_path: Path,
) -> None:
    bag = Bag("large", torch.tensor([[1.0, -70_000.0]]))
    with pytest.raises(
        DataError,
        match=r"bag 'large': features up to 70000 do not fit into float16\. Use float32\.",
    ):
        write_bag(bag, tmp_path / "a.h5")
    assert not list(tmp_path.iterdir())
    write_bag(bag, tmp_path / "a.h5", "float32")
    assert torch.equal(read_bag(tmp_path / "a.h5").features, bag.features)


def test_an_unsupported_dtype_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(
        OptionError,
        match=r"dtype 'float64' is not supported\. Use float16 or float32",
    ):
        write_bag(full_bag(), tmp_path / "a.h5", "float64")
    with pytest.raises(OptionError, match="half"):
        check_dtype("half")
    assert not list(tmp_path.iterdir())


def test_features_that_were_edited_in_place_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "slide.h5"
    write_bag(full_bag(), path)
    read_bag(path)
    with h5py.File(path, "r+") as file:
        file["features"][0, 0] += 1
    with pytest.raises(DataError, match="content is not what scmil wrote"):
        read_bag(path)


@pytest.mark.parametrize("name", ["features", "coords", "instance_labels"])
def test_the_digest_covers_every_array(tmp_path: Path, name: str) -> None:
    path = tmp_path / "slide.h5"
    write_bag(full_bag(), path)
    with h5py.File(path, "r+") as file:
        file[name][...] = file[name][...][::-1]
    with pytest.raises(DataError, match="content is not what scmil wrote"):
        read_bag(path)


def test_the_digest_lies_in_the_first_bytes_also_of_a_bag_with_much_provenance(
    tmp_path: Path,
) -> None:
    path = tmp_path / "slide.h5"
    write_bag(replace(full_bag(), provenance={f"key {i}": "x" * 100 for i in range(300)}), path)
    with h5py.File(path) as file:
        assert file.attrs["digest"].decode() == f"scmil-sha256:{stored_digest(path)}"


def test_a_bag_that_is_written_again_has_the_same_mark_and_an_edited_one_has_not(
    tmp_path: Path,
) -> None:
    path = tmp_path / "slide.h5"
    write_bag(full_bag(), path)
    before = mark_bag(path)
    write_bag(full_bag(), path)
    assert mark_bag(path, before).token == before.token
    assert mark_bag(path, before).stat != before.stat
    with h5py.File(path, "r+") as file:
        file["features"][0, 0] += 1
    assert mark_bag(path, before).token != before.token


def test_a_bag_of_an_earlier_version_is_identified_by_size_and_time(tmp_path: Path) -> None:
    path = tmp_path / "slide.h5"
    write_bag(full_bag(), path)
    with h5py.File(path, "r+") as file:
        del file.attrs["digest"]
    # HDF5 leaves deleted bytes.
    path.write_bytes(path.read_bytes().replace(b"scmil-sha256:", b"scmil-sha0000"))
    assert mark_bag(path).token.startswith("stat:")
    assert read_bag(path).id == full_bag().id


@pytest.mark.parametrize("dtype", DTYPES)
def test_mapped_features_are_those_of_the_file(tmp_path: Path, dtype: str) -> None:
    bag, path = full_bag(), tmp_path / "slide.h5"
    write_bag(bag, path, dtype)
    mapped = map_features(path)
    assert isinstance(mapped, np.memmap)
    assert (mapped.dtype, mapped.shape) == (np.dtype(dtype), (2, 3))
    np.testing.assert_array_equal(np.asarray(mapped, np.float32), read_bag(path).features.numpy())
    mapped[0, 0] = 7  # stays in memory
    assert read_bag(path).features[0, 0] != 7


def test_the_error_for_features_that_cannot_be_mapped_states_the_remedy(tmp_path: Path) -> None:
    write_bag(full_bag(), packed := tmp_path / "packed.h5")
    with h5py.File(packed, "a") as file:
        features = file["features"][()]
        del file["features"]
        file.create_dataset("features", data=features, compression="gzip")
    with pytest.raises(DataError, match=r"packed\.h5: the features are compressed.*Use read_bag"):
        map_features(packed)
    assert read_bag(packed).features.shape == (2, 3)
    write_bag(Bag("none", torch.zeros(0, 3)), empty := tmp_path / "empty.h5")
    with pytest.raises(DataError, match=r"empty\.h5: the bag is empty"):
        map_features(empty)
    with pytest.raises(DataError, match="there is no such file"):
        map_features(tmp_path / "absent.h5")


def test_a_bag_that_would_fill_the_memory_stays_in_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, features = tmp_path / "huge.h5", torch.randn(20, 8)
    write_bag(Bag("huge", features), path)
    monkeypatch.setattr("scmil.bags.hdf5.LARGEST_NUMBERS", 100)
    huge = read_bag(path, label=1).features
    assert huge.dtype == torch.float16
    assert torch.equal(huge, features.half())
    model = build_model(8, 2, "abmil-gated", embed=[4], seed=0)
    fitted = torch.stack(
        [predict(model, [Bag("huge", x)])[0] for x in (huge, features.half().float())]
    )
    assert torch.equal(fitted[0], fitted[1])
    fit(model, [Bag("huge", huge, label=1)], recipe=Recipe(epochs=1))  # trains as it is
    monkeypatch.setattr("scmil.bags.hdf5.LARGEST_NUMBERS", 1000)
    assert read_bag(path).features.dtype == torch.float32


def test_a_digest_that_is_a_number_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "slide.h5"
    write_bag(full_bag(), path)
    with h5py.File(path, "r+") as file:
        del file.attrs["digest"]
        file.attrs["digest"] = 2**40
    with pytest.raises(DataError, match="content is not what scmil wrote"):
        read_bag(path)
