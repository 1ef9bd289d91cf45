"""The formats of one page each: our own, DSMIL, slideflow, HistoSSL, DTFD-MIL and bare arrays."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from foreign import DIM, IDS, arrays, coords, dsmil, dtfd, features, histossl, slideflow
from safetensors.torch import save_file

from scmil import Bag
from scmil.bags.formats import detect_format, open_bags
from scmil.bags.hdf5 import write_bag
from scmil.core.jobs.locks import safe_name
from scmil.errors import DataError


def same_features(folder: Path, **options: object) -> bool:
    bags = open_bags(folder, **options)  # type: ignore[arg-type]
    return bags.ids == IDS and all(np.array_equal(bag.features, features(bag.id)) for bag in bags)


# ------------------------------------------------------------------------------------------ our own


def ours(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for bag_id in IDS:
        xy, known = (
            torch.from_numpy(coords(bag_id)),
            {"encoder": folder.name, "mpp": 0.5, "warnings": ["pale"]},
        )
        write_bag(
            Bag(bag_id, torch.from_numpy(features(bag_id)), xy=xy, provenance=known),
            folder / f"{bag_id}.h5",
        )
    return folder


@pytest.mark.parametrize("up", [0, 1, 2], ids=["encoder", "bags", "work"])
def test_our_bags_are_opened_from_the_working_folder_down(tmp_path: Path, up: int) -> None:
    place = ours(tmp_path / "work" / "bags" / "resnet18")
    folder = [place, *place.parents][up]
    assert detect_format(folder) == "scmil"
    assert same_features(folder)
    bag = open_bags(folder)[0]
    assert np.array_equal(bag.xy, coords("007"))  # type: ignore[arg-type]
    known = {"encoder": "resnet18", "mpp": 0.5, "warnings": ["pale"]}
    assert bag.provenance == {**known, "format": "scmil", "file": "007.h5"}


def test_one_of_several_encoders_is_asked_for(tmp_path: Path) -> None:
    for encoder in ("resnet18", "uni"):
        ours(tmp_path / "bags" / encoder)
    with pytest.raises(DataError, match="several sets of features: resnet18, uni"):
        open_bags(tmp_path)
    assert open_bags(tmp_path, key="uni")[0].provenance["encoder"] == "uni"


def test_a_bag_in_a_file_of_another_name_is_rejected(tmp_path: Path) -> None:
    (ours(tmp_path / "uni") / "007.h5").rename(tmp_path / "uni" / "008.h5")
    with pytest.raises(DataError, match=r"008\.h5: the file contains the bag '007'"):
        open_bags(tmp_path / "uni")[0]


def test_ids_that_no_file_can_have_come_back(tmp_path: Path) -> None:
    for bag_id in ("site/007", "100%"):
        write_bag(Bag(bag_id, torch.ones(1, 2)), tmp_path / f"{safe_name(bag_id)}.h5")
    (tmp_path / "x%.h5").write_text("damaged")
    bags = open_bags(tmp_path)
    assert bags.ids == ("100%", "site/007", "x%")
    assert [bag.id for bag in bags[:2]] == ["100%", "site/007"]
    with pytest.raises(DataError, match=r"x%\.h5 cannot be read"):
        bags[2]


# -------------------------------------------------------------------------------------------- DSMIL


@pytest.mark.parametrize("index", [True, False], ids=["index", "folders"])
def test_dsmil_has_the_labels_of_its_index_or_of_its_folders(tmp_path: Path, index: bool) -> None:
    folder = dsmil(tmp_path / "Camelyon16", index)
    assert detect_format(folder) == "dsmil"
    assert same_features(folder)
    bags = open_bags(folder)
    assert (bags.labels, bags.classes) == ((0, 1), ("0-normal", "1-tumor"))
    assert bags[0].xy is None


def test_an_index_chooses_the_slides_and_their_order(tmp_path: Path) -> None:
    folder = dsmil(tmp_path / "C16")
    (folder / "C16.csv").write_text("0,label\n/data/of/somebody/C16/1-tumor/tumor_042.csv,2\n")
    bags = open_bags(folder)
    assert (bags.ids, bags.labels, bags.classes) == (("tumor_042",), (2,), ("0", "1", "2"))
    assert np.array_equal(bags[0].features, features("tumor_042"))


@pytest.mark.parametrize("path", ["../../secret.csv", "C16/../../secret.csv", "..\\..\\secret.csv"])
def test_an_index_leads_nowhere_else(tmp_path: Path, path: str) -> None:
    folder = dsmil(tmp_path / "below" / "C16")
    (tmp_path / "secret.csv").write_text("0,1\n1,2\n")
    (folder / "C16.csv").write_text(f"0,label\n{path},1\n")
    with pytest.raises(DataError, match=r"C16\.csv: line 2: the path .* leaves the folder"):
        open_bags(folder)
    (folder / "C16.csv").write_text(f"0,label\n{tmp_path / 'secret.csv'},1\n")
    with pytest.raises(DataError, match=r"C16/secret\.csv: there is no such file"):
        open_bags(folder)[0]


@pytest.mark.parametrize(
    "line", ["0-normal/007.csv", "0-normal/007.csv,normal", "0-normal/007.csv,-1", "a,b,1"]
)
def test_a_line_of_the_index_without_a_class_is_rejected(tmp_path: Path, line: str) -> None:
    folder = dsmil(tmp_path / "C16")
    (folder / "C16.csv").write_text(f"0,label\n{line}\n")
    with pytest.raises(DataError, match=r"line 2 is .* but a path and a class number are needed"):
        open_bags(folder)


def test_a_slide_listed_twice_is_rejected(tmp_path: Path) -> None:
    folder = dsmil(tmp_path / "C16")
    (folder / "C16.csv").write_text("0,label\n0-normal/007.csv,0\n1-tumor/007.csv,1\n")
    with pytest.raises(DataError, match="line 3: slide '007' is listed twice"):
        open_bags(folder)
    (folder / "C16.csv").unlink()
    (folder / "1-tumor" / "007.csv").write_text("0,1\n1,2\n")
    with pytest.raises(
        DataError, match=r"0-normal/007\.csv and .*1-tumor/007\.csv have the same name"
    ):
        open_bags(folder)
    for name in ("a", "b"):
        (folder / f"{name}.csv").write_text("0,label\n")
    with pytest.raises(DataError, match=r"a\.csv and .*b\.csv both have the columns"):
        detect_format(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("0,1,2\n1,2,3\n1,2\n", "cannot be read as a table of numbers"),
        ("0,1,2\n1,2\n", "rows of 2 numbers, but the header has 3"),
        ("0,1,2\n1,2,x\n", "cannot be read as a table of numbers"),
        ("0.5,0.25\n1,2\n", "the first line is '0.5,0.25', but column names 0,1,2"),
        ("", "the first line is ''"),
    ],
)
def test_a_damaged_table_spares_the_others(tmp_path: Path, content: str, message: str) -> None:
    folder = dsmil(tmp_path / "C16")
    (folder / "0-normal" / "007.csv").write_text(content)
    bags = open_bags(folder)
    with pytest.raises(DataError, match=rf"007\.csv.*{message}"):
        bags[0]
    assert len(bags[1].features) == 5


def test_a_table_without_rows_is_a_bag_without_instances(tmp_path: Path) -> None:
    folder = dsmil(tmp_path / "C16")
    (folder / "0-normal" / "007.csv").write_text("0,1,2\n")
    assert tuple(open_bags(folder)[0].features.shape) == (0, 3)


# ---------------------------------------------------------------------------------------- slideflow


def test_slideflow_states_its_encoder_but_no_corners(tmp_path: Path) -> None:
    assert detect_format(slideflow(tmp_path)) == "slideflow"
    assert same_features(tmp_path)
    bag = open_bags(tmp_path)[0]
    assert bag.xy is None
    assert bag.provenance == {
        "format": "slideflow",
        "file": "007.pt",
        "encoder": "ResNetFeatures",
        "size_px": 256,
        "mpp": 0.5,
        "warnings": [
            "coordinates left out: slideflow does not state whether they are corners or centres"
        ],
    }


def test_slideflow_may_state_a_magnification_or_nothing(tmp_path: Path) -> None:
    assert "mpp" not in open_bags(slideflow(tmp_path, "20x"))[0].provenance
    (tmp_path / "bags_config.json").unlink()
    assert "encoder" not in open_bags(tmp_path)[0].provenance
    (tmp_path / "bags_config.json").write_text(json.dumps([1]))
    with pytest.raises(
        DataError, match=r"bags_config\.json: a JSON list, but a JSON object is needed"
    ):
        open_bags(tmp_path)


def test_locations_of_other_tiles_are_rejected(tmp_path: Path) -> None:
    np.savez(slideflow(tmp_path) / "007.index.npz", np.zeros((2, 2)))
    with pytest.raises(
        DataError,
        match=r"007\.index\.npz: locations of shape \(2, 2\), but features of shape \(3, 6\)",
    ):
        open_bags(tmp_path)[0]


# ----------------------------------------------------------------------------------------- HistoSSL


@pytest.mark.parametrize(("beside", "bare"), [(False, False), (True, False), (True, True)])
def test_addresses_are_taken_off_where_they_are(tmp_path: Path, beside: bool, bare: bool) -> None:
    assert detect_format(histossl(tmp_path, beside, bare)) == "histossl"
    assert same_features(tmp_path)
    assert open_bags(tmp_path)[0].xy is None


def test_arrays_with_addresses_may_lie_in_one_folder(tmp_path: Path) -> None:
    for bag_id in IDS:
        (histossl(tmp_path / "a") / bag_id / "features.npy").rename(tmp_path / f"{bag_id}.npy")
    (tmp_path / "flat").mkdir()
    for bag_id in IDS:
        (tmp_path / f"{bag_id}.npy").rename(tmp_path / "flat" / f"{bag_id}.npy")
    assert same_features(tmp_path / "flat", format="histossl")


def test_features_are_not_removed_as_addresses(tmp_path: Path) -> None:
    histossl(tmp_path, bare=True)
    with pytest.raises(DataError, match="the first three columns are not tile addresses"):
        open_bags(tmp_path)[0]
    np.save(tmp_path / "007" / "coords.npy", np.zeros((2, 3)))
    with pytest.raises(
        DataError, match=r"coords\.npy: addresses of shape \(2, 3\), but \(3, 3\) is needed"
    ):
        open_bags(tmp_path)[0]
    np.save(tmp_path / "007" / "features.npy", np.zeros(3))
    with pytest.raises(DataError, match=r"float64 of shape \(3,\)"):
        open_bags(tmp_path)[0]


# ----------------------------------------------------------------------------------------- DTFD-MIL


def test_a_pickle_is_not_opened_unasked(tmp_path: Path) -> None:
    assert detect_format(dtfd(tmp_path)) == "dtfd"
    with pytest.raises(
        DataError, match=r"mDATA_train\.pkl\), and a pickle can run any code.* trust_pickle=True"
    ):
        open_bags(tmp_path)


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_trusted_pickle_gives_its_arrays(tmp_path: Path, protocol: int) -> None:
    assert same_features(dtfd(tmp_path, protocol), trust_pickle=True)
    bags = open_bags(tmp_path, trust_pickle=True)
    assert (bags.labels, bags.classes) == ((None, 1), ("normal", "tumor"))


def test_arrays_that_numpy_1_pickled_are_read(tmp_path: Path) -> None:
    content = (dtfd(tmp_path, protocol=2) / "mDATA_train.pkl").read_bytes()
    (tmp_path / "mDATA_train.pkl").write_bytes(content.replace(b"numpy._core.", b"numpy.core."))
    assert same_features(tmp_path, trust_pickle=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps([1]), "a list, but a dictionary of slides"),
        (b"\x80\x04nonsense", "not a pickle of arrays"),
        (pickle.dumps({"a": Path("x")}), "requests pathlib"),
    ],
)
def test_another_pickle_is_rejected_even_if_it_is_trusted(
    tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "x.pkl").write_bytes(content)
    with pytest.raises(DataError, match=rf"x\.pkl: .*{message}"):
        open_bags(tmp_path, trust_pickle=True)


def test_the_error_for_tiles_without_features_names_the_slide(tmp_path: Path) -> None:
    (tmp_path / "x.pkl").write_bytes(
        pickle.dumps({"a": [{"other": 1}], "b": [{"feature": np.ones(DIM)}]})
    )
    bags = open_bags(tmp_path, trust_pickle=True)
    with pytest.raises(
        DataError, match=r"x\.pkl, slide 'a': a list of tiles is needed, each with a 'feature'"
    ):
        bags[0]
    assert tuple(bags[1].features.shape) == (1, DIM)
    (tmp_path / "y.pkl").write_bytes(pickle.dumps({"b": []}))
    with pytest.raises(DataError, match=r"slide 'b' is in both .*x\.pkl and .*y\.pkl"):
        open_bags(tmp_path, trust_pickle=True)


# -------------------------------------------------------------------------------------- bare arrays


def test_bare_arrays_become_32_bit(tmp_path: Path) -> None:
    assert detect_format(arrays(tmp_path)) == "arrays"
    assert same_features(tmp_path)
    assert {bag.features.dtype for bag in open_bags(tmp_path)} == {torch.float32}


def test_safetensors_have_one_tensor_or_one_called_features(tmp_path: Path) -> None:
    one = {"x": torch.ones(2, 3)}
    save_file(one, tmp_path / "a.safetensors")
    save_file(
        {"a": torch.zeros(1), "features": torch.ones(4, 3, dtype=torch.bfloat16)},
        tmp_path / "b.safetensors",
    )
    save_file({"y": torch.zeros(1), **one}, tmp_path / "c.safetensors")
    (tmp_path / "d.safetensors").write_text("no tensors")
    bags = open_bags(tmp_path)
    assert [len(bag.features) for bag in bags[:2]] == [2, 4]
    with pytest.raises(DataError, match=r"c\.safetensors: tensors .* but one tensor is needed"):
        bags[2]
    with pytest.raises(DataError, match=r"d\.safetensors"):
        bags[3]


def test_two_files_of_one_bag_are_rejected(tmp_path: Path) -> None:
    torch.save(torch.ones(1, 2), arrays(tmp_path) / "tumor_042.pt")
    with pytest.raises(DataError, match="are files of the same bag"):
        open_bags(tmp_path)


def test_a_dictionary_in_a_pt_file_has_features(tmp_path: Path) -> None:
    torch.save({"features": torch.ones(2, 3), "epoch": 1}, tmp_path / "a.pt")
    torch.save({"weights": torch.ones(2, 3)}, tmp_path / "b.pt")
    bags = open_bags(tmp_path)
    assert len(bags[0].features) == 2
    with pytest.raises(
        DataError, match=r"b\.pt: a dict with weights, but one tensor \(n, p\) is needed"
    ):
        bags[1]


def test_h5_of_an_unknown_kind_is_of_no_format(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["embedding"] = features("007")
    with pytest.raises(DataError, match=r"has no format that scmil supports\. Found: 1 file \.h5"):
        detect_format(tmp_path)
