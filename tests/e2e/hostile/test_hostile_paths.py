"""Pipes, devices and links in a folder of bags are named, and no path leads out of a folder."""

from __future__ import annotations

import os
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from scmil.bags.bag import Bag
from scmil.bags.formats import export_bags, open_bags
from scmil.bags.hdf5 import write_bag
from scmil.errors import DataError, ModelFileError
from scmil.models.files import load_model, save_model
from scmil.models.model import build_model


def a_folder(format_name: str, home: Path) -> tuple[Path, str]:
    """A folder with the bag `good`, and the name of a second bag's file in it."""
    good, values = Bag("good", torch.ones(2, 3), xy=torch.zeros(2, 2)), np.ones((2, 3), np.float32)
    known = {"encoder": "uni", "mpp": 0.5, "size_px": 256, "side_level0": 256.0, "slide_mpp": 0.5}
    if format_name == "scmil":
        write_bag(good, home / "good.h5")
        return home, "bad.h5"
    if format_name in ("clam", "trident", "torchmil"):
        export_bags([good], home, format_name, known)
        place = {
            "clam": "pt_files",
            "trident": "20x_256px_0px_overlap/features_uni",
            "torchmil": "features",
        }[format_name]
        return home, f"{place}/bad{next((home / place).iterdir()).suffix}"
    if format_name == "dsmil":
        (home / "a").mkdir()
        (home / "a" / "good.csv").write_text("0,1\n1,2\n")
        return home, "a/bad.csv"
    if format_name == "stamp":
        with h5py.File(home / "good.h5", "w") as file:
            file["feats"] = values
        return home, "bad.h5"
    if format_name == "slideflow":
        (home / "bags_config.json").write_text("{}")
        torch.save(torch.ones(2, 3), home / "good.pt")
        return home, "bad.pt"
    suffix = format_name.partition(" ")[2]
    if suffix == ".safetensors":
        from safetensors.torch import save_file

        save_file({"features": torch.ones(2, 3)}, home / "good.safetensors")
    elif suffix == ".npy":
        np.save(home / "good.npy", values)
    else:
        torch.save(torch.ones(2, 3), home / "good.pt")
    return home, f"bad{suffix}"


FORMATS = [
    "scmil",
    "clam",
    "trident",
    "torchmil",
    "dsmil",
    "stamp",
    "slideflow",
    "arrays .pt",
    "arrays .npy",
]


@pytest.mark.parametrize("kind", ["pipe", "device", "loop"])
@pytest.mark.parametrize("format_name", [*FORMATS, "arrays .safetensors"])
def test_one_bag_that_is_not_a_file_is_named_and_the_others_are_read(
    tmp_path: Path, format_name: str, kind: str
) -> None:
    folder, name = a_folder(format_name, tmp_path)
    if kind == "pipe":
        os.mkfifo(folder / name)
    else:
        (folder / name).symlink_to("/dev/zero" if kind == "device" else Path(name).name)
    bags = open_bags(folder)
    assert bags.ids == ("bad", "good")
    assert bags[1].features.shape[0] > 0
    with pytest.raises(DataError, match=r"bad\.\w+.*cannot be read"):
        bags[0]


def test_a_description_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    torch.save(torch.ones(2, 3), tmp_path / "good.pt")
    os.mkfifo(tmp_path / "bags_config.json")
    with pytest.raises(DataError, match=r"bags_config\.json.*not a regular file, but a pipe"):
        open_bags(tmp_path)


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_a_model_that_is_a_pipe_is_not_waited_for(tmp_path: Path, name: str) -> None:
    folder = save_model(build_model(8, 2, "abmil", embed=[8], seed=0), tmp_path)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(ModelFileError, match="not a regular file, but a pipe"):
        load_model(folder)


def test_an_index_cannot_lead_out_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("0,1\n1,2\n")
    (tmp_path / "job" / "a").mkdir(parents=True)
    for path in ("../secret.csv", str(tmp_path / "secret.csv")):
        (tmp_path / "job" / "job.csv").write_text(f"0,label\n{path},0\n")
        with pytest.raises(DataError):
            open_bags(tmp_path / "job", "dsmil")[0]
