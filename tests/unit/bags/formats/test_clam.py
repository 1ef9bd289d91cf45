from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from foreign import IDS, clam, clam_old_patches, clam_patches, coords, features

from scmil.bags.formats import detect_format, open_bags
from scmil.errors import DataError


@pytest.mark.parametrize("inside", ["", "h5_files"])
def test_features_and_coordinates_are_those_of_the_h5_files(tmp_path: Path, inside: str) -> None:
    bags = open_bags(clam(tmp_path) / inside)
    assert bags.ids == IDS
    for bag in bags:
        assert bag.features.dtype == torch.float32
        assert np.array_equal(bag.features, features(bag.id))
        assert bag.xy is not None
        assert bag.xy.dtype == torch.int64
        assert np.array_equal(bag.xy, coords(bag.id))
        assert bag.provenance == {"format": "clam", "file": f"{bag.id}.h5"}


def test_h5_files_under_any_name_are_recognised_by_what_they_hold(tmp_path: Path) -> None:
    (clam(tmp_path) / "h5_files").rename(tmp_path / "mine")
    assert detect_format(tmp_path / "mine") == "clam"
    assert np.array_equal(open_bags(tmp_path / "mine")[1].xy, coords(IDS[1]))  # type: ignore[arg-type]


@pytest.mark.parametrize("inside", ["", "pt_files"])
def test_tensors_alone_have_no_coordinates(tmp_path: Path, inside: str) -> None:
    bag = open_bags(clam(tmp_path, h5=False) / inside)[0]
    assert np.array_equal(bag.features, features("007"))
    assert bag.xy is None
    assert bag.provenance["file"] == "007.pt"


def test_tensors_take_the_coordinates_of_the_h5_files_beside(tmp_path: Path) -> None:
    assert np.array_equal(open_bags(clam(tmp_path) / "pt_files")[0].xy, coords("007"))  # type: ignore[arg-type]


def test_a_slide_that_is_only_a_tensor_is_not_lost_among_h5_files(tmp_path: Path) -> None:
    (clam(tmp_path) / "h5_files" / "007.h5").unlink()
    bags = open_bags(tmp_path)
    assert bags.ids == IDS
    assert (bags[0].xy, bags[1].xy is None) == (None, False)


@pytest.mark.parametrize("above", [".", "features_dir"])
def test_coordinates_and_tile_size_are_read_from_patches(tmp_path: Path, above: str) -> None:
    clam_patches(tmp_path)
    bag = open_bags(clam(tmp_path / above, h5=False), slide_mpp=0.25)[1]
    assert np.array_equal(bag.xy, coords(bag.id))  # type: ignore[arg-type]
    known = {"size_px": 256, "side_level0": 512.0, "slide_mpp": 0.25, "mpp": 0.5}
    assert bag.provenance == {"format": "clam", "file": f"{bag.id}.pt", **known}


def test_the_size_of_the_slide_is_known_from_patches_of_level_0(tmp_path: Path) -> None:
    clam_patches(tmp_path, level=0, downsample=1.0, custom_downsample=2)
    provenance = open_bags(clam(tmp_path))[0].provenance
    assert (provenance["slide_size"], provenance["side_level0"]) == ([4000, 3000], 512.0)
    assert "mpp" not in provenance  # it needs the resolution of the slide


def test_patches_of_another_run_are_not_believed(tmp_path: Path) -> None:
    clam_patches(tmp_path)
    with h5py.File(tmp_path / "patches" / "007.h5", "r+") as file:
        file["coords"].resize(2, axis=0)
    bag = open_bags(clam(tmp_path, h5=False))[0]
    assert bag.xy is None
    assert bag.provenance["warnings"] == [
        "patches/007.h5 has other tiles than the features: not used"
    ]
    assert "size_px" not in bag.provenance


@pytest.mark.parametrize(("level", "known"), [(0, True), (1, False)])
def test_the_old_pipeline_counts_in_pixels_of_the_patch_level(
    tmp_path: Path, level: int, known: bool
) -> None:
    clam_old_patches(tmp_path, level)
    bag = open_bags(clam(tmp_path))[0]
    assert (bag.xy is not None) == known
    assert ("old pipeline" in "".join(bag.provenance.get("warnings", []))) == (not known)


def test_the_error_for_attributes_that_are_not_numbers_names_the_file(tmp_path: Path) -> None:
    clam_patches(tmp_path)
    with h5py.File(tmp_path / "patches" / "007.h5", "r+") as file:
        file["coords"].attrs["patch_size"] = "large"
    with pytest.raises(DataError, match=r"patches/007\.h5 cannot be read"):
        open_bags(clam(tmp_path))[0]
    with h5py.File(tmp_path / "patches" / "007.h5", "r+") as file:
        del file["coords"].attrs["patch_size"]
    bag = open_bags(tmp_path)[0]
    assert bag.xy is not None
    assert "size_px" not in bag.provenance


def test_a_single_number_is_no_bag(tmp_path: Path) -> None:
    clam_patches(tmp_path)
    torch.save(torch.tensor(1.0), clam(tmp_path, h5=False) / "pt_files" / "007.pt")
    with pytest.raises(
        DataError, match=r"007\.pt: features of shape \(\), but a matrix \(n, p\) is needed"
    ):
        open_bags(tmp_path)[0]


def test_tiles_with_equal_coordinates_are_reported(tmp_path: Path) -> None:
    with h5py.File(clam(tmp_path) / "h5_files" / "007.h5", "r+") as file:
        file["coords"][2] = file["coords"][0]
    assert open_bags(tmp_path)[0].provenance["warnings"] == [
        "1 of 3 tiles have the coordinates of another one"
    ]


def test_more_coordinates_than_features_are_rejected(tmp_path: Path) -> None:
    with h5py.File(clam(tmp_path) / "h5_files" / "007.h5", "r+") as file:
        file["coords"].resize(4, axis=0)
    with pytest.raises(
        DataError,
        match=r"007\.h5: bag '007': coordinates of shape \(4, 2\), but \(3, 2\) is needed",
    ):
        open_bags(tmp_path)[0]
