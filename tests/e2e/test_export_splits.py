"""`scmil export --splits`: the splits of a study are written as other tools read them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from scmil import Bag, open_bags, write_bag
from scmil.bags.split_files import read_splits
from scmil.bags.splits import Split, save_splits
from scmil.cli import app

IDS = [f"slide_{number}" for number in range(6)]
PATIENTS = ["p0", "p0", "p1", "p2", "p3", "p3"]
FOLDS = [
    Split(train=(0, 1, 2), test=(4, 5), valid=(3,)),
    Split(train=(3, 4, 5), test=(0, 1), valid=(2,)),
]
PROVENANCE = {"encoder": "resnet18", "size_px": 256, "mpp": 0.5, "slide_mpp": 0.25}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "bags").mkdir()
    for number, slide in enumerate(IDS):
        bag = Bag(slide, torch.eye(3) + number, provenance=PROVENANCE)
        write_bag(bag, tmp_path / "bags" / f"{slide}.h5")
    rows = [
        f"{patient},{slide},{'ab'[i % 2]}" for i, (slide, patient) in enumerate(zip(IDS, PATIENTS))
    ]
    (tmp_path / "labels.csv").write_text("case_id,slide_id,label\n" + "\n".join(rows) + "\n")
    return tmp_path


def export(home: Path, *words: str) -> Result:
    options = ["--labels", str(home / "labels.csv"), "--splits", str(home / "splits.csv")]
    command = ["export", str(home / "bags"), *options, "--out", str(home / "out"), *words]
    return CliRunner().invoke(app, command)


@pytest.mark.parametrize(
    ("words", "format_name", "files"),
    [
        (["--to", "clam"], "clam", ["splits_0.csv", "splits_0_bool.csv", "splits_1.csv"]),
        (["--to", "trident"], "patho_bench", ["k=all.tsv"]),
        (["--to", "clam", "--splits-format", "transmil"], "transmil", ["fold0.csv", "fold1.csv"]),
    ],
)
def test_splits_are_exported_with_the_bags(
    home: Path, words: list[str], format_name: str, files: list[str]
) -> None:
    save_splits(home / "splits.csv", [FOLDS], IDS)
    result = export(home, *words, "--json")
    assert result.exit_code == 0, result.output
    written = json.loads(result.stdout)["splits"]
    assert {Path(path).name for path in written} >= set(files)
    actual = read_splits(home / "out" / "splits", IDS, PATIENTS)
    assert (actual.splits, actual.format, actual.notes) == ([FOLDS], format_name, ())
    assert open_bags(home / "out").ids == tuple(IDS)


def test_torchmil_finds_its_splits_beside_the_features(home: Path) -> None:
    save_splits(home / "splits.csv", [FOLDS[:1]], IDS)
    result = export(home, "--to", "torchmil")
    assert result.exit_code == 0, result.output
    assert read_splits(home / "out" / "splits.csv", IDS).splits == [FOLDS[:1]]
    splits = {bag.id: bag.provenance["split"] for bag in open_bags(home / "out")}
    assert splits == dict(zip(IDS, ["train", "train", "train", "val", "test", "test"]))


def test_each_repeat_has_its_own_folder(home: Path) -> None:
    save_splits(home / "splits.csv", [FOLDS, FOLDS[::-1]], IDS)
    result = export(home, "--to", "clam")
    assert result.exit_code == 0, result.output
    for repeat, expected in enumerate([FOLDS, FOLDS[::-1]]):
        folder = home / "out" / "splits" / f"repeat_{repeat}"
        assert read_splits(folder, IDS, PATIENTS).splits == [expected]


def test_invalid_splits_are_rejected_before_a_bag_is_written(home: Path) -> None:
    leaking = Split(train=(0, 2), test=(1, 3))
    save_splits(home / "splits.csv", [[leaking]], IDS)
    result = export(home, "--to", "clam")
    assert result.exit_code == 1
    assert "patient 'p0' is in both train and test" in str(result.exception or result.output)
    assert not (home / "out").exists()


def test_an_edited_split_file_is_not_replaced(home: Path) -> None:
    save_splits(home / "splits.csv", [FOLDS], IDS)
    assert export(home, "--to", "clam").exit_code == 0
    edited = home / "out" / "splits" / "splits_0.csv"
    edited.write_text("edited\n")
    assert export(home, "--to", "clam").exit_code == 1
    assert edited.read_text() == "edited\n"
    assert export(home, "--to", "clam", "--overwrite").exit_code == 0
    assert edited.read_text().startswith(",train,val,test")
