"""Detection, options, labels and damaged files: what holds for every format."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import foreign
import h5py
import numpy as np
import pytest
import torch
from foreign import IDS, clam, features

from scmil import Bag, BagSet
from scmil.bags import formats
from scmil.bags.formats import detect_format, export_bags, open_bags
from scmil.bags.formats.folder import Folder
from scmil.bags.formats.reading import load_npz
from scmil.bags.labels import Labels
from scmil.errors import DataError, OptionError, UnknownNameError


class Table:
    classes = ("benign", "malignant")

    def of(self, bag_id: str) -> tuple[int | None, str | None]:
        return {"007": (1, "bond")}.get(bag_id, (None, None))


MAKERS: dict[str, list[Callable[[Path], object]]] = {
    "clam": [clam],
    "trident": [foreign.trident],
    "stamp": [foreign.stamp],
    "torchmil": [foreign.torchmil, foreign.torchmil_published],
    "dsmil": [foreign.dsmil],
    "slideflow": [foreign.slideflow],
    "histossl": [foreign.histossl],
    "dtfd": [foreign.dtfd],
    "arrays": [foreign.arrays],
}
every_folder = pytest.mark.parametrize(
    ("name", "make"), [(name, make) for name in MAKERS for make in MAKERS[name]]
)


@every_folder
def test_every_folder_is_recognised(
    tmp_path: Path, name: str, make: Callable[[Path], object]
) -> None:
    make(tmp_path / "x")
    assert detect_format(tmp_path / "x") == name


@every_folder
def test_a_table_of_labels_comes_first(
    tmp_path: Path, name: str, make: Callable[[Path], object]
) -> None:
    make(tmp_path / "x")
    bags = open_bags(tmp_path / "x", labels=Table(), trust_pickle=name == "dtfd")
    assert (bags.labels, bags.patients, bags.classes) == ((1, None), ("bond", None), Table.classes)
    assert (bags[0].label, bags[0].patient, bags[1].label) == (1, "bond", None)
    assert bags[0].provenance["format"] == name


def test_every_format_but_our_own_has_a_folder_here() -> None:
    assert {"scmil", *MAKERS} == set(formats.names())


def test_nothing_is_opened_before_a_bag_is_asked_for(tmp_path: Path) -> None:
    for path in [*(clam(tmp_path) / "h5_files").iterdir(), *(tmp_path / "pt_files").iterdir()]:
        path.write_bytes(b"")
    assert open_bags(tmp_path, labels=Table()).labels == (1, None)


def test_two_thousand_bags_open_in_a_moment(tmp_path: Path) -> None:
    for i in range(2000):
        (tmp_path / f"{i:05}.pt").touch()
    start = time.process_time()
    assert len(open_bags(tmp_path)) == 2000
    assert time.process_time() - start < 2  # alone 0.05 s; opening each file takes far longer


def test_the_error_for_an_empty_folder_lists_the_supported_formats(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error_info:
        detect_format(tmp_path)
    assert "Found: nothing." in str(error_info.value)
    for name in formats.names():
        assert f"\n  {name}: {formats.registry.build(name).layout}" in str(error_info.value)


def test_a_folder_of_two_formats_asks_for_the_name(tmp_path: Path) -> None:
    foreign.trident(clam(tmp_path))
    with pytest.raises(
        DataError,
        match=r"fits several formats: clam, trident\. Choose one: format='clam' or format=",
    ):
        open_bags(tmp_path)
    assert open_bags(tmp_path, "clam")[0].provenance["format"] == "clam"
    assert open_bags(tmp_path, "trident")[0].provenance["format"] == "trident"


def test_a_path_that_is_not_a_folder_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="file: this is a file, but a folder is needed"):
        open_bags(tmp_path / "file")
    with pytest.raises(DataError, match="there is no such folder"):
        open_bags(tmp_path / "nowhere")
    with pytest.raises(
        DataError, match=r"contains no bag in the format 'arrays'\. Expected layout: <bag>\.npy"
    ):
        open_bags(tmp_path, "arrays")
    with pytest.raises(DataError, match="has no folder of features"):
        open_bags(tmp_path, "torchmil")
    with pytest.raises(UnknownNameError, match=r"unknown format 'clamm'\. Did you mean 'clam'"):
        open_bags(tmp_path, "clamm")


def test_an_option_that_a_format_does_not_support_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(
        OptionError, match=r"format 'arrays' does not support the option key\. It supports: none\."
    ):
        open_bags(foreign.arrays(tmp_path), key="uni")
    with pytest.raises(
        OptionError,
        match=r"format 'clam' does not support the option step\. It supports: slide_mpp\.",
    ):
        open_bags(clam(tmp_path / "clam"), step=2)


def test_half_written_and_hidden_files_are_no_bags(tmp_path: Path) -> None:
    (foreign.arrays(tmp_path) / ".007.pt.0f3a").touch()
    (tmp_path / "._007.pt").touch()
    assert open_bags(tmp_path).ids == IDS


def test_one_file_and_one_decorator_are_enough(tmp_path: Path) -> None:
    @formats.register("text", "one number a line")
    class Text:
        """One number a line."""

        layout = "<bag>.txt"

        def looks_like(self, folder: Folder) -> bool:
            return bool(folder.stems(".txt"))

        def read(self, folder: Folder, labels: Labels | None = None) -> BagSet:
            return BagSet([Bag(stem, torch.ones(1, 1)) for stem in folder.stems(".txt")])

    try:
        (tmp_path / "a.txt").touch()
        assert open_bags(tmp_path).ids == ("a",)
        with pytest.raises(
            DataError,
            match=r"'text' can be read, but not written\. Formats that can be written: clam",
        ):
            export_bags(open_bags(tmp_path), tmp_path, "text")
    finally:
        del formats.registry._entries["text"]


# --------------------------------------------------------------------------------- hostile, damaged


def spoil_text(path: Path) -> None:
    path.write_text("this is a letter, and no HDF5")


def spoil_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:700])


def spoil_integers(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["features"] = np.ones((3, 6), np.int64)


def spoil_words(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["features"] = np.array([[b"a", b"b"]])


def spoil_cube(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["features"] = np.ones((1, 3, 6), np.float32)


def spoil_fractions(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["coords"]
        file["coords"] = np.full((3, 2), 0.5)


def spoil_columns(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["coords"]
        file["coords"] = np.zeros((3, 3), np.int64)


def spoil_missing(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["features"]


def spoil_link(path: Path) -> None:
    with h5py.File(path.with_name("elsewhere.bin"), "w") as file:
        file["features"] = np.ones((3, 6), np.float32)
    with h5py.File(path, "w") as file:
        file["features"] = h5py.ExternalLink("elsewhere.bin", "features")


def spoil_outside_bytes(path: Path) -> None:
    path.with_name("bytes.bin").write_bytes(b"\0" * 72)
    with h5py.File(path, "w") as file:
        file.create_dataset(
            "features", (3, 6), np.float32, external=[(str(path.with_name("bytes.bin")), 0, 72)]
        )


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_text, "cannot be read as HDF5"),
        (spoil_half, "cannot be read as HDF5"),
        (
            spoil_integers,
            "the features are torch.int64, but 16, 32 or 64-bit floating-point numbers are needed",
        ),
        (spoil_words, "expected numbers"),
        (spoil_cube, r"features of shape \(1, 3, 6\), but a matrix"),
        (spoil_fractions, "coordinates with fractions or NaN"),
        (spoil_columns, r"coordinates of shape \(3, 3\)"),
        (spoil_missing, "there is no 'features'. The file has: coords"),
        (spoil_link, "not an array, but a group or a link to another file"),
        (spoil_outside_bytes, "not an array, but a group or a link to another file"),
    ],
)
def test_a_damaged_h5_file_is_named_and_the_others_are_read(
    tmp_path: Path, spoil: Callable[[Path], None], message: str
) -> None:
    spoil(clam(tmp_path) / "h5_files" / "007.h5")
    bags = open_bags(tmp_path / "h5_files", "clam")
    with pytest.raises(DataError, match=rf"007\.h5.*{message}"):
        bags[0]
    assert np.array_equal(bags[1].features, features(IDS[1]))


def test_detection_looks_past_a_damaged_file(tmp_path: Path) -> None:
    spoil_text(clam(tmp_path) / "h5_files" / "007.h5")
    (tmp_path / "h5_files").rename(tmp_path / "mine")
    assert detect_format(tmp_path / "mine") == "clam"


class Bomb:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch exploded",)


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_pt_file_is_never_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zipped: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(Bomb(), foreign.arrays(tmp_path) / "007.pt", _use_new_zipfile_serialization=zipped)
    with pytest.raises(DataError, match=r"007\.pt: .*Save the features as one tensor"):
        open_bags(tmp_path)[0]
    (tmp_path / "007.pt").rename(tmp_path / "007.pkl")
    with pytest.raises(DataError):
        open_bags(tmp_path, "dtfd", trust_pickle=True)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("content", [b"", b"a letter", b"PK\x03\x04 half a zip"])
@pytest.mark.parametrize("file", ["007.pt", "tumor_042.npy"])
def test_the_error_for_a_damaged_array_names_the_file(
    tmp_path: Path, content: bytes, file: str
) -> None:
    (foreign.arrays(tmp_path) / file).write_bytes(content)
    with pytest.raises(DataError, match=file):
        list(open_bags(tmp_path))


def test_pickled_objects_in_arrays_are_rejected(tmp_path: Path) -> None:
    np.save(foreign.arrays(tmp_path) / "tumor_042.npy", np.array([{"a": 1}], dtype=object))
    with pytest.raises(
        DataError,
        match=r"tumor_042\.npy: it contains Python objects; only arrays of numbers are read",
    ):
        open_bags(tmp_path)[1]
    np.savez(tmp_path / "x.npz", np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match=r"x\.npz: it contains Python objects"):
        load_npz(tmp_path / "x.npz", "arr_0")


def test_a_file_deleted_after_opening_raises(tmp_path: Path) -> None:
    bags = open_bags(foreign.arrays(tmp_path))
    (tmp_path / "007.pt").unlink()
    with pytest.raises(DataError, match=r"007\.pt: there is no such file"):
        bags[0]


def test_arrays_of_another_byte_order_and_read_only_ones_are_read(tmp_path: Path) -> None:
    np.save(foreign.arrays(tmp_path) / "tumor_042.npy", features("tumor_042").astype(">f4"))
    assert np.array_equal(open_bags(tmp_path)[1].features, features("tumor_042"))


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights on Windows")
def test_links_that_lead_nowhere_are_not_passed_over(tmp_path: Path) -> None:
    torch.save(torch.zeros(3, 8), tmp_path / "a.pt")
    (tmp_path / "b.pt").symlink_to(tmp_path / "unmounted" / "b.pt")
    bags = open_bags(tmp_path)
    assert bags.ids == ("a", "b")
    with pytest.raises(DataError, match=r"b\.pt"):
        bags[1]
    (tmp_path / "batch2").symlink_to(tmp_path / "unmounted" / "batch2")
    with pytest.raises(
        DataError, match=r"batch2 is a link to .*, which does not exist: its bags would be missing"
    ):
        open_bags(tmp_path)


def test_a_folder_of_bags_that_cannot_be_listed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(path: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("scmil.bags.formats.folder.os.scandir", denied)
    with pytest.raises(DataError, match="the folder cannot be listed: Permission denied"):
        open_bags(tmp_path)
