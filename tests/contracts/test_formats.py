"""What every format promises, and what comes back from those that are written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from independent_readers import read_clam, read_clam_labels, read_trident

from scmil import Bag
from scmil.bags import formats
from scmil.bags.bag import BagSet
from scmil.bags.formats import Exported, export_bags, open_bags, writable
from scmil.bags.formats.folder import Folder
from scmil.bags.labels import read_labels
from scmil.core.atomic import write_atomically
from scmil.errors import DataError, OutputError

every_format = pytest.mark.parametrize("name", formats.names())
every_writer = pytest.mark.parametrize("name", writable())
KNOWN = {
    "encoder": "uni_v1",
    "size_px": 256,
    "mpp": 0.5,
    "slide_mpp": 0.2431,
    "side_level0": 256 * 0.5 / 0.2431,
    "slide_size": [40000, 30000],
    "overlap_px": 0,
}


def some_bags() -> BagSet:
    generator = torch.Generator().manual_seed(0)
    bags = []
    for position, (bag_id, rows) in enumerate({"007": 5, "a b.c": 70, "empty": 0}.items()):
        xy = torch.randint(0, 40_000, (rows, 2), generator=generator)
        label, patient = (None, None) if bag_id == "empty" else (position, f"p{position}")
        bags.append(
            Bag(
                bag_id,
                torch.randn(rows, 9, generator=generator),
                label,
                patient,
                xy=xy,
                provenance=KNOWN,
            )
        )
    return BagSet(bags, classes=("normal", "tumour"))


@every_format
def test_it_declares_itself(name: str) -> None:
    entry = formats.registry.entry(name)
    assert 0 < len(entry.summary) < 60
    assert entry.factory.__doc__
    assert entry.factory.layout  # type: ignore[attr-defined]


@every_format
def test_it_sees_nothing_in_a_folder_of_something_else(name: str, tmp_path: Path) -> None:
    (tmp_path / "letters" / "old").mkdir(parents=True)
    for number in range(20):
        (tmp_path / f"{number}.txt").write_text("0,1\n")
        (tmp_path / "letters" / f"{number}.svs").touch()
    assert not formats.registry.build(name).looks_like(Folder(tmp_path))


@every_writer
def test_what_is_written_comes_back(name: str, tmp_path: Path) -> None:
    bags = some_bags()
    assert export_bags(bags, tmp_path, name) == Exported(bags.ids, ())
    again = open_bags(tmp_path, labels=read_labels(tmp_path / "labels.csv"))
    assert (again.ids, again.labels, again.patients) == (bags.ids, bags.labels, bags.patients)
    assert again.classes == bags.classes
    for one, other in zip(bags, again, strict=True):
        assert torch.equal(one.features, other.features)
        assert torch.equal(one.xy, other.xy)  # type: ignore[arg-type]
        assert other.provenance["format"] == name


@every_writer
def test_half_precision_and_double_are_written_as_32_bit(name: str, tmp_path: Path) -> None:
    for bag_id, dtype in (("half", torch.float16), ("double", torch.float64)):
        export_bags(
            [Bag(bag_id, torch.ones(3, 4, dtype=dtype) / 3, provenance=KNOWN)], tmp_path, name
        )
    bags = open_bags(tmp_path)
    assert bags[0].features[0, 0] == torch.tensor(1 / 3)
    assert bags[1].features[0, 0] == torch.tensor(1 / 3, dtype=torch.float16).float()
    assert bags[0].xy is None


@every_writer
def test_a_stopped_export_goes_on_where_it_was(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Path] = []

    def stop_at_the_sixth(path: Path, content: bytes) -> None:
        written.append(path)
        if len(written) == 6:
            raise KeyboardInterrupt
        write_atomically(path, content)

    monkeypatch.setattr("scmil.core.outputs.write_atomically", stop_at_the_sixth)
    with pytest.raises(KeyboardInterrupt):
        export_bags(some_bags(), tmp_path, name)
    monkeypatch.undo()
    there = {path: path.stat().st_mtime_ns for path in open_files(tmp_path)}
    result = export_bags(some_bags(), tmp_path, name)
    assert set(result.written) | set(result.kept) == set(some_bags().ids)
    assert "empty" in result.written
    assert [
        torch.equal(a.features, b.features) for a, b in zip(some_bags(), open_bags(tmp_path))
    ] == [True] * 3
    assert export_bags(some_bags(), tmp_path, name) == Exported((), some_bags().ids)
    kept = [path for path in there if path.stem.removesuffix("_patches") in result.kept]
    assert all(path.stat().st_mtime_ns == there[path] for path in kept)


def open_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@every_writer
@pytest.mark.parametrize("bag_id", ["../evil", "a/b", "a\\b", "..", ".hidden", ""])
def test_an_id_that_is_a_path_is_not_written(name: str, bag_id: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the id is used as a file name, but is not a valid one"):
        export_bags([Bag(bag_id, torch.ones(1, 2), provenance=KNOWN)], tmp_path / "x", name)
    assert not open_files(tmp_path)


def test_other_labels_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("case_id,slide_id,label\nmine,mine,mine\n")
    with pytest.raises(DataError, match=r"labels\.csv exists with other labels"):
        export_bags(some_bags(), tmp_path, "clam")
    assert "mine" in (tmp_path / "labels.csv").read_text()
    export_bags(some_bags(), tmp_path, "clam", overwrite=True)
    assert "mine" not in (tmp_path / "labels.csv").read_text()


def test_features_that_others_wrote_are_not_overwritten(tmp_path: Path) -> None:
    bags = some_bags()
    theirs = tmp_path / "h5_files" / f"{bags.ids[1]}.h5"  # a folder of CLAM without pt_files
    theirs.parent.mkdir()
    theirs.write_bytes(b"theirs")
    with pytest.raises(OutputError, match=r"\.h5 exists, and was not written by scmil export"):
        export_bags(bags, tmp_path, "clam")
    assert theirs.read_bytes() == b"theirs"
    assert export_bags(bags, tmp_path, "clam", overwrite=True).written == bags.ids
    assert theirs.read_bytes() != b"theirs"


def test_clam_finds_what_it_expects(tmp_path: Path) -> None:
    bags = some_bags()
    export_bags(bags, tmp_path, "clam")
    for bag in bags:
        features, coords = read_clam(tmp_path, bag.id)
        assert np.array_equal(features, bag.features)
        assert np.array_equal(coords, bag.xy)  # type: ignore[arg-type]
    assert read_clam_labels(tmp_path) == {"007": ("p0", "normal"), "a b.c": ("p1", "tumour")}
    export_bags([Bag("no coordinates", torch.ones(2, 9))], tmp_path / "bare", "clam")
    assert read_clam(tmp_path / "bare", "no coordinates")[1] is None


def test_trident_finds_what_it_expects(tmp_path: Path) -> None:
    bags = some_bags()
    export_bags(bags, tmp_path, "trident")
    for bag in bags:
        features, coords, attributes = read_trident(tmp_path, bag.id, "uni_v1")
        assert np.array_equal(features, bag.features)
        assert np.array_equal(coords, bag.xy)  # type: ignore[arg-type]
        assert (
            attributes["patch_size"],
            attributes["level0_magnification"],
            attributes["target_magnification"],
        ) == (
            256,
            40,
            20,
        )
        # The true side; 512 would be that of a slide of 0.25 microns a pixel.
        assert attributes["patch_size_level0"] == 527
    known = open_bags(tmp_path)[0].provenance
    assert "warnings" not in known
    assert {key: known[key] for key in KNOWN} == {**KNOWN, "mpp": pytest.approx(0.5)}


def test_trident_needs_to_know_the_tiling(tmp_path: Path) -> None:
    bag = Bag("a", torch.ones(1, 2), xy=torch.zeros(1, 2, dtype=torch.int64))
    with pytest.raises(
        DataError,
        match="bag 'a' lacks encoder, size_px, mpp, which TRIDENT's files contain",
    ):
        export_bags([bag], tmp_path, "trident")
    known = {"encoder": "hf-hub:lab/uni", "size_px": 256, "mpp": 0.5}
    with pytest.raises(DataError, match="lacks slide_mpp"):
        export_bags([bag], tmp_path, "trident", known)
    export_bags([bag], tmp_path, "trident", {**known, "slide_mpp": 0.25})
    assert (tmp_path / "20x_256px_0px_overlap" / "features_hf-hub_lab_uni" / "a.h5").is_file()
    assert open_bags(tmp_path)[0].provenance["side_level0"] == 512


def test_bags_of_two_encoders_are_not_mixed(tmp_path: Path) -> None:
    bags = [
        Bag(bag_id, torch.ones(1, 2), provenance={**KNOWN, "encoder": bag_id})
        for bag_id in ("uni", "phikon")
    ]
    with pytest.raises(
        DataError,
        match=r"bag 'phikon' belongs in .*features_phikon, the bags before it in .*features_uni",
    ):
        export_bags(bags, tmp_path, "trident")
