from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from foreign import DIM, IDS, coords, features, trident, trident_attributes

from scmil.bags.formats import detect_format, open_bags
from scmil.bags.formats.trident import magnification
from scmil.errors import DataError


@pytest.mark.parametrize("up", [0, 1, 2], ids=["features", "tiling", "job"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_the_folder_is_opened_from_any_of_its_levels(tmp_path: Path, up: int, dtype: type) -> None:
    place = trident(tmp_path / "job", dtype=dtype)
    bags = open_bags([place, *place.parents][up])
    assert bags.ids == IDS
    for bag in bags:
        assert bag.features.dtype == torch.float32
        assert np.array_equal(bag.features, features(bag.id, dtype))
        assert np.array_equal(bag.xy, coords(bag.id))  # type: ignore[arg-type]


def test_the_attributes_become_provenance(tmp_path: Path) -> None:
    assert open_bags(trident(tmp_path))[0].provenance == {
        "format": "trident",
        "file": "007.h5",
        "encoder": "uni_v1",
        "size_px": 256,
        "side_level0": 512,
        "slide_size": [40000, 30000],
        "overlap_px": 0,
        "magnification": 20,  # and no mpp: that of the slide is not in the file
    }


def test_one_of_several_encoders_is_asked_for(tmp_path: Path) -> None:
    for encoder, tiling in [
        ("uni_v1", "20x_256px_0px_overlap"),
        ("uni_v1", "10x_256px_0px_overlap"),
        ("phikon", "20x_256px_0px_overlap"),
    ]:
        trident(tmp_path, encoder, tiling)
    with pytest.raises(
        DataError, match=r"several sets .*: 10x_256px_0px_overlap/uni_v1, 20x.*/phikon, .*key='10x_"
    ):
        open_bags(tmp_path)
    with pytest.raises(DataError, match="several"):
        open_bags(tmp_path, key="uni_v1")
    assert open_bags(tmp_path, key="phikon")[0].provenance["encoder"] == "phikon"
    assert open_bags(tmp_path, key="10x_256px_0px_overlap/uni_v1").ids == IDS
    with pytest.raises(DataError, match=r"has no features 'resnet'\. It has: 10x"):
        open_bags(tmp_path, key="resnet")
    with pytest.raises(DataError, match=r"has no features 'phikon'\. It has: uni_v1"):
        open_bags(tmp_path / "20x_256px_0px_overlap" / "features_uni_v1", key="phikon")


def test_a_magnification_is_not_used_as_a_resolution(tmp_path: Path) -> None:
    place = trident(tmp_path)
    near, far = (open_bags(place, slide_mpp={"007": mpp})[0].provenance for mpp in (0.2501, 0.2738))
    assert "warnings" not in near
    assert near["mpp"] == pytest.approx(0.5002)
    assert far["mpp"] == pytest.approx(0.5476)
    assert far["warnings"] == [
        "the tiles are called 20x, which is 0.5 microns per pixel, but on this slide of 0.2738 "
        "microns per pixel they have 0.5476"
    ]
    assert "mpp" not in open_bags(place, slide_mpp={"007": 0.25})[1].provenance


@pytest.mark.parametrize("array", [False, True], ids=["tensor", "array"])
def test_pt_files_take_their_coordinates_from_the_patches(tmp_path: Path, array: bool) -> None:
    place = trident(tmp_path)
    for bag_id in IDS:
        (place / f"{bag_id}.h5").unlink()
        torch.save(
            features(bag_id) if array else torch.from_numpy(features(bag_id)),
            place / f"{bag_id}.pt",
        )
    for up in (place, tmp_path):
        bag = open_bags(up)[1]
        assert np.array_equal(bag.features, features(bag.id))
        assert np.array_equal(bag.xy, coords(bag.id))  # type: ignore[arg-type]
        assert (bag.provenance["encoder"], bag.provenance["side_level0"]) == ("uni_v1", 512)


def test_an_unknown_encoder_is_named_after_the_folder(tmp_path: Path) -> None:
    place = trident(tmp_path)
    with h5py.File(place / "007.h5", "r+") as file:
        file["features"].attrs["encoder"] = "None"
    assert open_bags(place)[0].provenance["encoder"] == "uni_v1"


def test_the_error_for_attributes_that_are_not_numbers_names_the_file(tmp_path: Path) -> None:
    place = trident(tmp_path)
    with h5py.File(place / "007.h5", "r+") as file:
        file["coords"].attrs["patch_size"] = "large"
    with pytest.raises(DataError, match=r"007\.h5 cannot be read as a bag of TRIDENT"):
        open_bags(place, slide_mpp=0.25)[0]


def test_features_without_coordinates_are_a_bag(tmp_path: Path) -> None:
    place = trident(tmp_path)
    with h5py.File(place / "007.h5", "r+") as file:
        del file["coords"]
    bag = open_bags(place)[0]
    assert bag.xy is None
    assert bag.provenance == {"format": "trident", "file": "007.h5", "encoder": "uni_v1"}


def test_features_of_slides_are_rejected(tmp_path: Path) -> None:
    tiling = tmp_path / "20x_512px_0px_overlap"
    place = tiling / "slide_features_titan"
    place.mkdir(parents=True)
    with h5py.File(place / "007.h5", "w") as file:
        file["features"], file["coords"] = features("007")[0], coords("007")
    for folder in (place, tiling, tmp_path):
        with pytest.raises(DataError, match="one vector per slide, without instances"):
            open_bags(folder)
    place.rename(tiling / "features_titan")
    with pytest.raises(DataError, match=r"007\.h5: one vector per slide, without instances"):
        open_bags(tiling)[0]


def test_a_slide_without_tissue_is_a_bag_without_instances(tmp_path: Path) -> None:
    place = trident(tmp_path)
    with h5py.File(place / "007.h5", "w") as file:
        file["features"] = np.zeros((0, DIM), np.float32)
        file.create_dataset("coords", data=np.zeros((0, 2), np.int64)).attrs.update(
            trident_attributes("007")
        )
    bag = open_bags(place)[0]
    assert tuple(bag.features.shape) == (0, DIM)
    assert tuple(bag.xy.shape) == (0, 2)  # type: ignore[union-attr]


def test_files_with_the_attributes_are_recognised_under_any_name(tmp_path: Path) -> None:
    trident(tmp_path).rename(tmp_path / "mine")
    assert detect_format(tmp_path / "mine") == "trident"


def test_resolutions_have_magnifications_up_to_a_bound() -> None:
    assert [magnification(mpp) for mpp in (0.1, 0.16, 0.2, 0.5, 1.0, 2.0)] == [
        80,
        60,
        40,
        20,
        10,
        5,
    ]
    with pytest.raises(DataError, match=r"below 2\.4 microns"):
        magnification(2.4)
