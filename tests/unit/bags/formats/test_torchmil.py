from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from foreign import IDS, coords, features, torchmil, torchmil_published

from scmil import Bag
from scmil.bags.formats import export_bags, open_bags
from scmil.encoding.encoders.torchvision_models import torchvision
from scmil.errors import DataError, MissingExtraError


@pytest.mark.parametrize("suffix", [".npy", ".h5"])
def test_the_four_folders_are_one_set_of_bags(tmp_path: Path, suffix: str) -> None:
    bags = open_bags(torchmil(tmp_path, suffix), step=1)
    assert (bags.ids, bags.labels) == (IDS, (0, 1))
    for bag in bags:
        assert np.array_equal(bag.features, features(bag.id))
        assert np.array_equal(bag.xy, coords(bag.id))  # type: ignore[arg-type]
    assert bags[1].instance_labels is not None
    assert bags[1].instance_labels.tolist() == [1, 0, 0, 0, 0]


def test_coordinates_of_an_unknown_unit_are_left_out(tmp_path: Path) -> None:
    bag = open_bags(torchmil(tmp_path))[0]
    assert bag.xy is None
    assert "their unit is not known" in bag.provenance["warnings"][0]
    assert np.array_equal(open_bags(tmp_path, step=0.5)[0].xy, coords("007") // 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("inside", ["", "patches_512"])
def test_the_published_data_sets_are_read_with_pixels_and_splits(
    tmp_path: Path, inside: str
) -> None:
    bag = open_bags(torchmil_published(tmp_path) / inside, key="UNI")[1]
    assert np.array_equal(bag.xy, coords(bag.id))  # type: ignore[arg-type]
    assert bag.label == 1
    assert bag.provenance == {
        "format": "torchmil",
        "file": f"{bag.id}.npy",
        "split": "test",
        "encoder": "UNI",
    }


def test_one_of_several_published_encoders_is_asked_for(tmp_path: Path) -> None:
    torchmil(torchmil_published(tmp_path) / "patches_512", encoder="resnet50_bt")
    with pytest.raises(DataError, match="patches_512/UNI, patches_512/resnet50_bt"):
        open_bags(tmp_path)


def test_a_label_that_cannot_be_read_spares_the_other_bags(tmp_path: Path) -> None:
    (torchmil(tmp_path) / "labels" / "007.npy").write_text("no array")
    bags = open_bags(tmp_path)
    assert bags.labels == (None, 1)
    assert bags[1].label == 1
    with pytest.raises(DataError, match=r"labels/007\.npy cannot be read"):
        bags[0]
    np.save(tmp_path / "labels" / "007.npy", np.array([0.5]))
    with pytest.raises(DataError, match=r"the label is \[0\.5\], but one integer"):
        open_bags(tmp_path)[0]


@pytest.mark.parametrize("content", ["[1]", "{", '{"step": "wide"}'])
def test_the_error_for_damaged_provenance_names_the_bag(tmp_path: Path, content: str) -> None:
    (torchmil(tmp_path) / "provenance").mkdir()
    (tmp_path / "provenance" / "007.json").write_text(content)
    bags = open_bags(tmp_path)
    with pytest.raises(DataError, match="007"):
        bags[0]
    assert bags[1].id == IDS[1]


def written(folder: Path, **provenance: object) -> Bag:
    xy = torch.tensor([[0, 0], [530, 0], [0, 530], [5300, 5300]])
    known = {"side_level0": 530.0, "encoder": "resnet18", **provenance}
    bag = Bag("a", torch.rand(4, 6), 1, None, torch.tensor([0, 1, 0, 0]), xy, known)
    export_bags([bag], folder, "torchmil")
    return bag


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torchmil's own line causes it
def test_torchmil_reads_what_we_write_and_finds_the_neighbours(tmp_path: Path) -> None:
    with suppress(MissingExtraError):
        torchvision()  # where its compiled part does not load, nothing that imports it would
    datasets = pytest.importorskip("torchmil.datasets", reason="torchmil is not installed")
    bag = written(tmp_path)
    places = {f"{name}_path": str(tmp_path / folder) for name, folder in FOLDERS.items()}
    [theirs] = datasets.ProcessedMILDataset(**places, norm_adj=False, verbose=False)
    assert torch.equal(theirs["X"], bag.features)
    assert theirs["Y"].tolist() == [1]
    assert theirs["y_inst"].tolist() == [0, 1, 0, 0]
    # The diagonal is near, the far corner is not.
    expected = [[0, 1, 1, 0], [1, 0, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]]
    assert theirs["adj"].to_dense().bool().int().tolist() == expected


FOLDERS = {
    "features": "features",
    "labels": "labels",
    "inst_labels": "patch_labels",
    "coords": "coords",
}


def test_pixels_come_back_exactly(tmp_path: Path) -> None:
    bag = written(tmp_path)
    again = open_bags(tmp_path)[0]
    assert torch.equal(again.xy, bag.xy)  # type: ignore[arg-type]
    assert again.provenance == {"format": "torchmil", "file": "a.npy", **bag.provenance}


def test_overlapping_tiles_are_one_stride_apart(tmp_path: Path) -> None:
    written(tmp_path, side_level0=1060.0, overlap_px=128, size_px=256)
    assert np.load(tmp_path / "coords" / "a.npy")[1].tolist() == [1.0, 0.0]


def test_a_step_that_is_not_known_is_asked_for(tmp_path: Path) -> None:
    bag = Bag("a", torch.zeros(1, 6), xy=torch.zeros(1, 2, dtype=torch.int64))
    with pytest.raises(
        DataError, match=r"bag 'a' lacks side_level0, .*known=\{'side_level0': \.\.\.\}"
    ):
        export_bags([bag], tmp_path, "torchmil")
    assert export_bags([bag], tmp_path, "torchmil", known={"side_level0": 512}).written == ("a",)
