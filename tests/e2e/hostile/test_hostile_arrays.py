"""Array files, archives and pickles cannot fill the memory or run code."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scmil.bags.bag import Bag, BagSet
from scmil.bags.formats import open_bags
from scmil.bags.labels import read_labels
from scmil.errors import DataError, ModelFileError
from scmil.models.files import load_model, save_model
from scmil.models.model import build_model
from scmil.models.score_files import read_scores


def npy_header(shape: str, dtype: str = "<f4") -> bytes:
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def test_an_npy_that_states_more_than_it_has_is_rejected_before_memory_is_allocated(
    tmp_path: Path,
) -> None:
    (tmp_path / "bomb.npy").write_bytes(npy_header("(1000000000, 1000)") + bytes(100))
    with pytest.raises(
        DataError, match=r"bomb\.npy.*has 4000000000000 bytes, but the file has only 100"
    ):
        open_bags(tmp_path)[0]


def test_a_negative_shape_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "bomb.npy").write_bytes(npy_header("(-1, 4)") + bytes(100))
    with pytest.raises(DataError, match=r"bomb\.npy"):
        open_bags(tmp_path)[0]


def zip_bomb(path: Path, names: list[str]) -> None:
    """An archive of some kilobytes with hundreds of megabytes of zeros."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            with archive.open(name, "w", force_zip64=True) as file:
                file.write(npy_header(f"({160 * 2**20},)", "|u1"))
                for _ in range(160):
                    file.write(bytes(2**20))


def test_a_bomb_in_an_npz_is_not_unpacked(tmp_path: Path) -> None:
    zip_bomb(tmp_path / "slide.npz", ["page.npy", "xy.npy"])
    with pytest.raises(DataError, match=r"slide\.npz.*a decompression bomb"):
        read_scores(tmp_path / "slide.npz")


def test_a_bomb_in_a_pt_is_not_unpacked(tmp_path: Path) -> None:
    zip_bomb(tmp_path / "slide.pt", ["archive/data.pkl", "archive/data/0"])
    with pytest.raises(DataError, match=r"slide\.pt.*a decompression bomb"):
        open_bags(tmp_path)[0]


def test_a_bomb_in_a_workbook_is_not_unpacked(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    zip_bomb(tmp_path / "labels.xlsx", ["xl/workbook.xml", "xl/worksheets/sheet1.xml"])
    with pytest.raises(DataError, match=r"labels\.xlsx.*a decompression bomb"):
        read_labels(tmp_path / "labels.xlsx")


def test_a_safetensors_header_of_gigabytes_is_rejected(tmp_path: Path) -> None:
    model = save_model(build_model(8, 2, "abmil", embed=[8], seed=0), tmp_path / "model")
    # A sparse file: 8 GiB that take no space.
    with (model / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", 8 * 2**30))
        file.truncate(8 * 2**30 + 8)
    with pytest.raises(ModelFileError, match=r"model\.safetensors.*It was not read"):
        load_model(model)
    (tmp_path / "bags").mkdir()
    (tmp_path / "bags" / "slide.safetensors").write_bytes(struct.pack("<Q", 8 * 2**30) + b"{}")
    with pytest.raises(DataError, match=r"slide\.safetensors"):
        open_bags(tmp_path / "bags")[0]


def test_a_model_description_that_requests_terabytes_is_rejected(tmp_path: Path) -> None:
    folder = save_model(build_model(8, 2, "abmil", embed=[8], seed=0), tmp_path)
    page = json.loads((folder / "model.json").read_text())
    page["model"]["embed"] = [10**6, 10**6]
    (folder / "model.json").write_text(json.dumps(page))
    with pytest.raises(ModelFileError):
        load_model(folder)


def test_a_pickle_that_announces_gigabytes_is_rejected_before_memory_is_allocated(
    tmp_path: Path,
) -> None:
    for number, opcode in enumerate(
        (b"\x8e" + struct.pack("<Q", 2**40), b"\x96" + struct.pack("<Q", 2**40))
    ):
        (tmp_path / "mDATA.pkl").write_bytes(b"\x80\x05" + opcode + b"x" * 100 + b".")
        with pytest.raises(DataError, match=r"mDATA\.pkl.*announced"):
            open_bags(tmp_path, "dtfd", trust_pickle=True)
        assert number < 2
    # A note with number 2^32.
    (tmp_path / "mDATA.pkl").write_bytes(b"\x80\x04}r" + struct.pack("<I", 2**32 - 1) + b".")
    with pytest.raises(DataError, match="contains no bag"):
        open_bags(tmp_path, "dtfd", trust_pickle=True)


def test_a_gzip_bomb_named_as_a_table_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_bytes(gzip.compress(bytes(10**7)))
    with pytest.raises(DataError, match=r"labels\.csv"):
        read_labels(tmp_path / "labels.csv")


@pytest.mark.parametrize("dtype", ["<f16", "|V0", "<c8", "<M8[s]"])
def test_numbers_that_torch_does_not_have_are_rejected_by_name(tmp_path: Path, dtype: str) -> None:
    (tmp_path / "a.npy").write_bytes(npy_header("(2, 3)", dtype) + bytes(96))
    with pytest.raises(DataError, match=r"a\.npy"):
        open_bags(tmp_path)[0]


def test_instances_without_a_feature_are_not_a_bag(tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(npy_header("(1000000000000, 0)"))
    with pytest.raises(DataError, match=r"a\.npy.*1000000000000 instances without a feature"):
        open_bags(tmp_path)[0]


def test_the_error_for_a_truncated_pickle_names_the_file(tmp_path: Path) -> None:
    """Found by the fuzz campaign: torch's reader raises `struct.error`."""
    from scmil.bags.formats.reading import load_pt

    torch.save(torch.zeros(2, 3), tmp_path / "whole.pt")
    with (
        zipfile.ZipFile(tmp_path / "whole.pt") as whole,
        zipfile.ZipFile(tmp_path / "cut.pt", "w") as cut,
    ):
        for name in whole.namelist():
            content = whole.read(name)
            at = content.find(b"X") + 3  # a text's length has four bytes
            cut.writestr(name, content[:at] if name.endswith("data.pkl") else content)
    with pytest.raises(DataError, match=r"cut\.pt: not a pickle of arrays"):
        load_pt(tmp_path / "cut.pt")


def test_a_label_of_billions_is_rejected(tmp_path: Path) -> None:
    """Found by the fuzz campaign, in labels of torchmil; one bag is rejected, and the others can be
    used.
    """
    for folder in ("features", "labels"):
        (tmp_path / folder).mkdir()
    for name, label in (("good", 1), ("bad", 2**40)):
        np.save(tmp_path / "features" / f"{name}.npy", np.zeros((2, 3), np.float32))
        np.save(tmp_path / "labels" / f"{name}.npy", np.array([label]))
    bags = open_bags(tmp_path, "torchmil")
    assert bags.labels == (None, 1)
    with pytest.raises(DataError, match=r"labels/bad: the label is \[1099511627776\]"):
        bags[0]
    with pytest.raises(DataError, match="bag 'a' has label 1099511627776"):
        BagSet([Bag("a", torch.zeros(1, 2), 2**40)])


class Evil:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


def test_no_pickle_is_run_in_any_file(tmp_path: Path) -> None:
    mark, bags = tmp_path / "it ran", tmp_path / "bags"
    bags.mkdir()
    evil = pickle.dumps({"slide": [Evil(mark)]}, protocol=2)
    torch.save(Evil(mark), bags / "a.pt")
    np.save(bags / "b.npy", np.array([Evil(mark)], object), allow_pickle=True)
    (bags / "c.pt").write_bytes(evil)
    opened = open_bags(bags, "arrays")
    for position in range(3):
        with pytest.raises(DataError, match=r"[abc]\.(pt|npy)"):
            opened[position]
    (tmp_path / "dtfd").mkdir()
    (tmp_path / "dtfd" / "mDATA.pkl").write_bytes(evil)
    with pytest.raises(DataError, match="can run any code"):
        open_bags(tmp_path / "dtfd")
    with pytest.raises(DataError, match="It was not run"):
        open_bags(tmp_path / "dtfd", trust_pickle=True)
    np.savez(tmp_path / "scores.npz", page=np.array([Evil(mark)], object))
    with pytest.raises(DataError, match=r"scores\.npz"):
        read_scores(tmp_path / "scores.npz")
    assert not mark.exists()
