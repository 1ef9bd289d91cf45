"""A bad bag does not stop a command: it is listed in the failure log and sets the exit code."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from scmil import studies as study
from scmil.bags.bag import Bag
from scmil.bags.hdf5 import write_bag
from scmil.cli import main
from scmil.core.jobs.failure_log import FailureLog

pytest.importorskip("shapely")
pytest.importorskip("PIL")

GOOD = [f"s{i}" for i in range(8)]
NOT_UTF8 = os.fsdecode(b"caf\xe9")
UNREADABLE = {"a_loop", "a_pipe", "b_far", "b_nan", "c_mpp"}
MADE: dict[str, Any] = {
    "encoder": "uni_v1",
    "size_px": 256,
    "mpp": 0.5,
    "side_level0": 256.0,
    "slide_mpp": 0.5,
}


def a_bag(bag_id: str, **changes: Any) -> Bag:
    number = sum(map(ord, bag_id))
    features = torch.randn(9, 8, generator=torch.Generator().manual_seed(number)) + number % 2
    places = torch.tensor([(256 * (i % 3), 256 * (i // 3)) for i in range(9)])
    return Bag(
        bag_id, features, xy=places, provenance={**MADE, "slide_size": [768, 768], **changes}
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`model`, trained on `good` bags; `bags`, the same with bad ones among them; `labels.csv`,
    `annotations`.
    """
    home = tmp_path_factory.mktemp("home")
    for folder in ("good", "bags"):
        for bag_id in GOOD:
            write_bag(a_bag(bag_id), home / folder / f"{bag_id}.h5")
    bags = home / "bags"
    write_bag(a_bag(NOT_UTF8), bags / f"{NOT_UTF8}.h5")
    write_bag(a_bag("c_mpp", slide_mpp="x"), bags / "c_mpp.h5")
    for bag_id, coords in (
        ("b_nan", np.full((9, 2), np.nan)),
        ("b_far", np.full((9, 2), -(2**62), np.int64)),
    ):
        write_bag(a_bag(bag_id), bags / f"{bag_id}.h5")
        with h5py.File(bags / f"{bag_id}.h5", "a") as file:
            del file["coords"]
            file["coords"] = coords
    os.mkfifo(bags / "a_pipe.h5")
    (bags / "a_loop.h5").symlink_to("a_loop.h5")
    every = [*GOOD, *sorted(UNREADABLE)]
    lines = "".join(f"{bag_id},{'ab'[i % 2]}\n" for i, bag_id in enumerate(every))
    (home / "labels.csv").write_text(f"slide_id,label\n{lines}")
    (home / "annotations").mkdir()
    opened = study.open_data(home / "good", home / "labels.csv")
    study.train(
        opened,
        home / "model",
        sparse_coding={"atoms": 9},
        aggregator="mean",
        epochs=1,
        valid=0.25,
        test=0.25,
    )
    return home


Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The exit code of a command, and all that it prints; whatever is no SystemExit would be a
    traceback, and is raised.
    """

    def call(*words: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["scmil", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        (out + err).encode("utf-8")  # it can be printed
        return int(ended.value.code or 0), out + err

    return call


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def failed(folder: Path) -> set[str]:
    return {failure.slide for failure in FailureLog(folder).read()}


def test_predict_continues_after_every_bad_bag(home: Path, run: Run, tmp_path: Path) -> None:
    code, output = run("predict", home / "model", home / "bags", "--out", tmp_path / "p.csv")
    assert code == 1
    assert {row["slide_id"] for row in rows(tmp_path / "p.csv")} == {*GOOD, "caf\\udce9"}
    assert failed(tmp_path) == UNREADABLE
    assert "caf\\udce9: " in output
    assert "bug" not in output


def test_predict_prints_json_for_undecodable_names(home: Path, run: Run, tmp_path: Path) -> None:
    code, output = run(
        "predict", home / "model", home / "bags", "--out", tmp_path / "p.csv", "--json"
    )
    page = json.loads(output)
    assert (code, set(page["failed"])) == (1, UNREADABLE)
    assert NOT_UTF8 in {row["slide_id"] for row in page["predictions"]}


def test_heatmap_continues_after_every_bad_bag(home: Path, run: Run, tmp_path: Path) -> None:
    code, output = run("heatmap", home / "model", home / "bags", "--out", tmp_path / "maps")
    assert code == 1, output
    assert failed(tmp_path / "maps") == UNREADABLE
    assert len(list((tmp_path / "maps").glob("*.png"))) == len(GOOD) + 1
    assert "caf\\udce9" in (tmp_path / "maps" / "index.html").read_text(encoding="utf-8")


def test_locate_continues_after_every_bad_bag(home: Path, run: Run, tmp_path: Path) -> None:
    square = [[0, 0], [300, 0], [300, 300], [0, 300], [0, 0]]
    area = {"type": "Polygon", "coordinates": [square]}
    tumour = {
        "type": "Feature",
        "geometry": area,
        "properties": {"classification": {"name": "Tumor"}},
    }
    for bag_id in (*GOOD[:4], NOT_UTF8):
        (home / "annotations" / f"{bag_id}.geojson").write_text(json.dumps(tumour))
    words = [
        "--annotations",
        home / "annotations",
        "--labels",
        home / "labels.csv",
        "--split",
        "all",
        "--draws",
        5,
    ]
    code, output = run("locate", home / "model", home / "bags", *words, "--out", tmp_path / "out")
    assert code == 1, output
    page = json.loads((tmp_path / "out" / "result.json").read_text(encoding="utf-8"))
    assert set(page["failed"]) == UNREADABLE
    assert NOT_UTF8 in page["each"]


def test_atlas_continues_after_every_bad_bag(home: Path, run: Run, tmp_path: Path) -> None:
    code, output = run(
        "atlas",
        home / "model",
        home / "bags",
        "--out",
        tmp_path / "atlas",
        "--labels",
        home / "labels.csv",
    )
    assert code == 1, output
    assert failed(tmp_path / "atlas") == UNREADABLE
    page = json.loads((tmp_path / "atlas" / "atlas.json").read_text(encoding="utf-8"))
    assert page["slides"] == len(GOOD) + 1
    assert len(list((tmp_path / "atlas" / "qupath").glob("*.geojson"))) == len(GOOD) + 1


def test_pca_continues_after_every_bad_bag(home: Path, run: Run, tmp_path: Path) -> None:
    words = ["--labels", home / "labels.csv", "--out", tmp_path / "pca.png"]
    code, output = run("pca", home / "model", home / "bags", *words)
    assert code == 1, output
    assert failed(tmp_path) == UNREADABLE
    assert {row["slide"] for row in rows(tmp_path / "pca.csv")} == {*GOOD}


def test_audit_names_every_bad_bag_and_checks_the_others(home: Path, run: Run) -> None:
    code, output = run("audit", home / "bags", home / "labels.csv", "--json")
    assert code == 1
    findings = json.loads(output)["findings"]
    assert {
        bag_id for found in findings if found["code"] == "unreadable" for bag_id in found["slides"]
    } == UNREADABLE
    code, output = run("audit", home / "bags", home / "labels.csv")
    assert "caf\\udce9" in output


@pytest.mark.parametrize("command", ["train", "compare"])
def test_commands_that_need_every_bag_name_all_bad_ones_at_once(
    home: Path, run: Run, tmp_path: Path, command: str
) -> None:
    words = [home / "bags", home / "labels.csv", "--drop-unlabelled", "--out", tmp_path / "out"]
    code, output = run(command, *words)
    assert code == 1
    assert (
        "BagError: 5 of 13 bags cannot be trained on; nothing was trained. Encode them again, or "
        "move their " in output
    )
    assert all(repr(bag_id) in output for bag_id in UNREADABLE)


def test_bags_of_empty_tensors_fail(home: Path, run: Run, tmp_path: Path) -> None:
    """A meta tensor has a shape and no numbers."""
    folder = tmp_path / "bags"
    folder.mkdir()
    torch.save(torch.ones(4, 8), folder / "good.pt")
    torch.save(torch.ones(4, 8, device="meta"), folder / "meta.pt")
    code, output = run("predict", home / "model", folder, "--out", tmp_path / "p.csv")
    assert code == 1, output
    assert [row["slide_id"] for row in rows(tmp_path / "p.csv")] == ["good"]
    assert failed(tmp_path) == {"meta"}


def test_a_bag_of_another_encoder_fails_and_a_folder_of_them_is_an_error(
    home: Path, run: Run, tmp_path: Path
) -> None:
    write_bag(a_bag("own"), tmp_path / "bags" / "own.h5")
    write_bag(a_bag("other", encoder="resnet18"), tmp_path / "bags" / "other.h5")
    code, _ = run("predict", home / "model", tmp_path / "bags", "--out", tmp_path / "p.csv")
    assert (code, failed(tmp_path)) == (1, {"other"})
    assert [row["slide_id"] for row in rows(tmp_path / "p.csv")] == ["own"]
    (tmp_path / "bags" / "own.h5").unlink()
    code, output = run("predict", home / "model", tmp_path / "bags", "--out", tmp_path / "q.csv")
    assert code == 1
    assert "ShapeError: bag 'other' has encoder 'resnet18' instead of 'uni_v1'" in output
