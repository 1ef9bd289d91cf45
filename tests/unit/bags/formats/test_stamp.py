from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from foreign import IDS, STAMP, coords, features, stamp

from scmil.bags.formats import detect_format, open_bags
from scmil.errors import DataError


@pytest.mark.parametrize("up", [0, 1])
def test_features_become_32_bit_and_microns_become_pixels(tmp_path: Path, up: int) -> None:
    place = stamp(tmp_path / "mahmood-uni2-0a1b2c3d")
    bags = open_bags([place, tmp_path][up], slide_mpp={"007": 0.25, "tumor_042": 0.5})
    assert bags.ids == IDS  # one of them lies in a folder of its own
    for bag, mpp in zip(bags, (0.25, 0.5), strict=True):
        assert bag.features.dtype == torch.float32
        assert np.array_equal(bag.features, features(bag.id, np.float16))
        assert np.array_equal(bag.xy, (coords(bag.id, 1) - 1024) * 256 / mpp)  # type: ignore[arg-type]
    assert bags[0].provenance == {
        "format": "stamp",
        "file": "007.h5",
        "encoder": "mahmood-uni2",
        "size_px": 224,
        "mpp": pytest.approx(256 / 224),
        "side_level0": 1024.0,
        "slide_mpp": 0.25,
    }


def test_microns_are_not_used_as_pixels(tmp_path: Path) -> None:
    bag = open_bags(stamp(tmp_path))[0]
    assert bag.xy is None
    assert "in microns. Give the slide's resolution: slide_mpp=" in bag.provenance["warnings"][0]
    with pytest.raises(
        DataError, match="slide_mpp is -1, but microns per pixel are greater than 0"
    ):
        open_bags(tmp_path, slide_mpp=-1)[0]


@pytest.mark.parametrize(
    ("attributes", "step", "microns"),
    [
        ({"unit": "um", "tile_size": 256.0, "extractor": "ctp"}, 256.0, 256.0),
        ({"extractor": "ctp"}, 224.0, 256.0),  # 224 units are 256 microns
    ],
    ids=["older", "historic"],
)
def test_older_files_are_understood(
    tmp_path: Path, attributes: dict[str, object], step: float, microns: float
) -> None:
    bag = open_bags(stamp(tmp_path, attributes, step), slide_mpp=0.5)[1]
    assert np.array_equal(bag.xy, (coords(bag.id, 1) - 1024) * microns / 0.5)  # type: ignore[arg-type]
    assert bag.provenance["side_level0"] == 512


def test_an_unknown_unit_is_not_guessed(tmp_path: Path) -> None:
    bag = open_bags(stamp(tmp_path, {"extractor": "x"}, step=300.0), slide_mpp=0.5)[0]
    assert bag.xy is None
    assert bag.provenance["warnings"] == [
        "coordinates left out: their unit is not stated, and microns are needed"
    ]


def test_the_error_for_damaged_coordinates_names_the_file(tmp_path: Path) -> None:
    with h5py.File(stamp(tmp_path) / "007.h5", "r+") as file:
        del file["coords"], file.attrs["unit"]
        file["coords"] = [1.0, 2.0, 3.0]
    assert open_bags(tmp_path)[0].xy is None  # and no unit
    with h5py.File(tmp_path / "007.h5", "r+") as file:
        file.attrs.update(unit="um", tile_size_um="wide")
    with pytest.raises(DataError, match=r"007\.h5 cannot be read as a bag of STAMP"):
        open_bags(tmp_path, slide_mpp=0.5)[0]


def test_features_of_slides_are_rejected(tmp_path: Path) -> None:
    stamp(tmp_path, {**STAMP, "feat_type": "slide"})
    with pytest.raises(DataError, match=r"007\.h5: one vector per slide, without instances"):
        open_bags(tmp_path)[0]


def test_multiplex_features_have_another_name_and_no_coordinates(tmp_path: Path) -> None:
    stamp(tmp_path, {}, name="patch_embeddings")
    assert detect_format(tmp_path) == "stamp"
    assert np.array_equal(open_bags(tmp_path)[0].features, features("007", np.float16))


def test_one_of_several_extractors_is_asked_for(tmp_path: Path) -> None:
    stamp(tmp_path / "mahmood-uni2-0a1b2c3d")
    stamp(tmp_path / "ctranspath-0a1b2c3d")
    with pytest.raises(
        DataError, match="several sets of features: ctranspath-0a1b2c3d, mahmood-uni2-0a1b2c3d"
    ):
        open_bags(tmp_path)
    assert open_bags(tmp_path, key="mahmood-uni2-0a1b2c3d").ids == IDS


def test_two_slides_of_one_name_are_rejected(tmp_path: Path) -> None:
    stamp(tmp_path)
    (tmp_path / "site_c").mkdir()
    h5py.File(tmp_path / "site_c" / "007.h5", "w").close()
    with pytest.raises(DataError, match=r"007\.h5 and .*site_c/007\.h5 have the same name"):
        open_bags(tmp_path, "stamp")
