"""scmil atlas and scmil pca on a cohort whose pixels a test can predict."""

from __future__ import annotations

import csv
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("openslide")
pytest.importorskip("PIL.Image")

from PIL import Image
from typer.testing import CliRunner

from scmil import studies as study
from scmil.bags.bag import Bag
from scmil.bags.formats import open_bags
from scmil.bags.hdf5 import read_bag, write_bag
from scmil.bags.labels import read_labels
from scmil.cli import app
from scmil.core.jobs.failure_log import FailureLog
from scmil.errors import OptionError, OutputError
from scmil.slides import slide_digest
from scmil.viz.atlas import make_atlas

SIDE, ACROSS, DIM, SLIDES = 40, 4, 16, 10
MADE = {
    "encoder": "colours",
    "size_px": 32,
    "mpp": 0.5,
    "side_level0": float(SIDE),
    "slide_mpp": 0.4,
    "overlap_px": 0,
}


def colour_at(slide: int, tile: int) -> tuple[int, int, int]:
    return 20 * slide + 20, 15 * tile + 10, 120


def make_cohort(home: Path) -> None:
    """Slides of coloured squares, bags of their tiles, a tumour square in every second one, and
    models.
    """
    (home / "slides").mkdir()
    generator = torch.Generator().manual_seed(0)
    places = [(SIDE * (k % ACROSS), SIDE * (k // ACROSS)) for k in range(ACROSS**2)]
    rows = ["slide_id,case_id,label"]
    for i in range(SLIDES):
        pixels = np.zeros((SIDE * ACROSS, SIDE * ACROSS, 3), np.uint8)
        for k, (x, y) in enumerate(places):
            pixels[y : y + SIDE, x : x + SIDE] = colour_at(i, k)
        Image.fromarray(pixels).save(home / "slides" / f"s{i}.png")
        features = torch.randn(len(places), DIM, generator=generator)
        if i % 2:
            features[5] += 6
            ring = [[40, 40], [80, 40], [80, 80], [40, 80], [40, 40]]
            tumour = {"geometry": {"type": "Polygon", "coordinates": [ring]}, "type": "Feature"}
            tumour["properties"] = {"objectType": "annotation", "classification": {"name": "Tumor"}}
            (home / "slides" / f"s{i}.geojson").write_text(
                json.dumps({"type": "FeatureCollection", "features": [tumour]})
            )
        write_bag(
            Bag(f"s{i}", features, xy=torch.tensor(places), provenance=MADE),
            home / "bags" / f"s{i}.h5",
        )
        rows.append(f"s{i},p{i},{'tumour' if i % 2 else 'normal'}")
    (home / "labels.csv").write_text("\n".join(rows) + "\n")
    data = study.open_data(home / "bags", home / "labels.csv")
    study.train(data, home / "sc", sparse_coding={"atoms": 12}, epochs=2)
    study.train(data, home / "plain", epochs=2)
    study.train(data, home / "ilra", aggregator="ilra", epochs=1)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("cohort")
    make_cohort(place)
    return place


def scmil(*words: object, code: int = 0) -> Any:
    done = CliRunner().invoke(app, list(map(str, words)))
    assert done.exit_code == code, (done.output, done.exception)
    return done


def test_the_atlas_is_a_page_a_table_pictures_and_json_that_agree(
    home: Path, tmp_path: Path
) -> None:
    scmil(
        "atlas",
        home / "sc",
        home / "bags",
        "--slides",
        home / "slides",
        "--out",
        tmp_path,
        "--tiles",
        4,
    )
    page = json.loads((tmp_path / "atlas.json").read_text())
    # By the labels that the model was trained with.
    assert page["compared"] == {"normal": 5, "tumour": 5}
    assert (page["slides"], page["tiles"], len(page["atoms"])) == (SLIDES, SLIDES * ACROSS**2, 12)
    shown = [(atom, tile) for atom in page["atoms"] for tile in atom["tiles"]]
    assert shown
    for atom, tile in shown:
        with Image.open(tmp_path / tile["file"]) as picture:
            actual = np.asarray(picture).astype(float)
        expected = colour_at(
            int(tile["slide"][1:]), tile["x"] // SIDE + ACROSS * (tile["y"] // SIDE)
        )
        assert actual.shape == (32, 32, 3)
        assert np.abs(actual.mean((0, 1)) - expected).max() < 3
        assert tile["file"].startswith(f"tiles/{atom['atom']}/")
    html = (tmp_path / "index.html").read_text()
    assert set(re.findall(r'<img src="([^"]+)"', html)) == {
        tile["file"] for atom, tile in shown if atom["duplicate_of"] is None
    }
    with (tmp_path / "atlas.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["sentence"] for row in rows] == [atom["sentence"] for atom in page["atoms"]]
    tiles = json.loads((tmp_path / "qupath" / "s1.geojson").read_text())["features"]
    assert len(tiles) == ACROSS**2
    assert {tile["properties"]["objectType"] for tile in tiles} == {"detection"}


def test_existing_pictures_are_kept_and_one_of_another_position_is_drawn_again(
    home: Path, tmp_path: Path
) -> None:
    command = [
        "atlas",
        home / "sc",
        home / "bags",
        "--slides",
        home / "slides",
        "--out",
        tmp_path,
        "--tiles",
        3,
    ]
    scmil(*command)
    [kept, stale, *_] = sorted(tmp_path.glob("tiles/*/0.jpg"))
    before, place = kept.stat().st_mtime_ns, comment_of(stale)
    Image.new("RGB", (32, 32)).save(stale, comment=b'["another slide", 0, 0, 40.0, 32]')
    scmil(*command)
    assert kept.stat().st_mtime_ns == before
    assert comment_of(stale) == place
    with Image.open(stale) as picture:
        assert np.asarray(picture).max() > 50  # the black one is gone


def comment_of(path: Path) -> bytes:
    with Image.open(path) as picture:
        return bytes(picture.info["comment"])


def test_a_slide_that_cannot_be_read_is_logged_and_the_others_continue(
    home: Path, tmp_path: Path
) -> None:
    some = tmp_path / "slides"
    some.mkdir()
    for path in sorted((home / "slides").glob("*.png"))[2:]:
        (some / path.name).write_bytes(path.read_bytes())
    (some / "s1.png").write_bytes(b"no picture")
    out = tmp_path / "atlas"
    done = scmil("atlas", home / "sc", home / "bags", "--slides", some, "--out", out, code=1)
    assert "2 slides failed" in done.output
    assert {failure.slide: failure.stage for failure in FailureLog(out).read()} == {
        "s0": "atlas",
        "s1": "atlas",
    }
    atoms = json.loads((out / "atlas.json").read_text())["atoms"]
    unread = {tile["slide"] for atom in atoms for tile in atom["tiles"] if tile["file"] is None}
    assert unread == {"s0", "s1"}
    scmil("atlas", home / "sc", home / "bags", "--slides", home / "slides", "--out", out)
    assert not FailureLog(out).read()


def test_held_out_compares_only_unseen_slides(home: Path, tmp_path: Path) -> None:
    split = json.loads((home / "sc" / "study.json").read_text())["split"]
    scmil("atlas", home / "sc", home / "bags", "--held-out", "--out", tmp_path)
    page = json.loads((tmp_path / "atlas.json").read_text())
    assert sum(page["compared"].values()) == len(split["test"])
    assert page["held_out"]
    assert not (tmp_path / "tiles").exists()  # no slides were given
    assert "<img" not in (tmp_path / "index.html").read_text()


def test_a_model_without_sparse_coding_has_no_atlas(home: Path, tmp_path: Path) -> None:
    bags = open_bags(home / "bags", labels=read_labels(home / "labels.csv"))
    with pytest.raises(OptionError, match=r"no sparse coding layer, so there are no atoms.*--sc"):
        make_atlas(home / "plain", bags, tmp_path)
    done = scmil("atlas", home / "plain", home / "bags", "--out", tmp_path, code=1)
    assert isinstance(done.exception, OptionError)


def test_the_atlas_prints_json(home: Path, tmp_path: Path) -> None:
    done = scmil(
        "atlas",
        home / "sc",
        home / "bags",
        "--labels",
        home / "labels.csv",
        "--out",
        tmp_path,
        "--json",
    )
    page = json.loads(done.stdout)
    assert (page["atoms"], page["failed"]) == (12, {})
    assert len(page["ranked"]) + len(page["dead"]) + len(page["duplicates"]) == 12


def test_the_same_tiles_are_drawn_for_every_model(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "figure.png"
    done = scmil(
        "pca",
        home / "plain",
        home / "bags",
        "--with",
        home / "ilra",
        "--with",
        home / "sc",
        "--annotations",
        home / "slides",
        "--out",
        out,
        "--tiles",
        40,
        "--json",
    )
    page = json.loads(done.stdout)
    assert [panel["name"] for panel in page["panels"]] == [
        "abmil-gated",
        "ilra",
        "abmil-gated + SC",
    ]
    assert page["tiles"] == {"other tiles": 20, "tumour tiles": 5}
    assert page["left_out"] == []
    with Image.open(out) as picture:
        assert picture.size[0] > 2 * picture.size[1]
    assert out.with_suffix(".svg").read_text().count("<tspan") > 9
    with out.with_suffix(".csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 * 25
    assert {(row["x"], row["y"]) for row in rows if row["colour"] == "tumour tiles"} == {
        ("40", "40")
    }
    each = [[(row["slide"], row["x"], row["y"]) for row in rows[k : k + 25]] for k in (0, 25, 50)]
    assert each[0] == each[1] == each[2]


def test_an_atlas_does_not_replace_foreign_files(home: Path, tmp_path: Path) -> None:
    for name in ("atlas.csv", "index.html", "qupath/s1.geojson"):
        theirs = tmp_path / name
        theirs.parent.mkdir(exist_ok=True)
        theirs.write_text("theirs")
        words = [
            "atlas",
            home / "sc",
            home / "bags",
            "--labels",
            home / "labels.csv",
            "--out",
            tmp_path,
        ]
        done = CliRunner().invoke(app, list(map(str, words)))
        assert isinstance(done.exception, OutputError)
        assert f"{name} exists, and was not written by scmil atlas" in str(done.exception)
        assert theirs.read_text() == "theirs"
        theirs.unlink()


def test_pictures_of_a_slide_that_was_replaced_are_not_shown(home: Path, tmp_path: Path) -> None:
    slides, bags = Path(shutil.copytree(home / "slides", tmp_path / "slides")), tmp_path / "bags"
    for i in range(SLIDES):
        bag = read_bag(home / "bags" / f"s{i}.h5")
        known = {**bag.provenance, "slide_digest": slide_digest(slides / f"s{i}.png")}
        write_bag(replace(bag, provenance=known), bags / f"s{i}.h5")
    words = ("atlas", home / "sc", bags, "--slides", slides, "--out", tmp_path / "out")
    scmil(*words)
    shutil.copy(slides / "s3.png", slides / "s5.png")
    failed = scmil(*words, "--json", code=1).output
    assert "s5.png is not the file that the bag of 's5' was encoded from" in failed


def test_pictures_that_an_atlas_no_longer_shows_are_deleted(home: Path, tmp_path: Path) -> None:
    command = ["atlas", home / "sc", home / "bags", "--slides", home / "slides", "--out", tmp_path]
    scmil(*command, "--tiles", 3)
    [first, *_] = sorted(tmp_path.glob("tiles/*"))
    notes, own = first / "notes.jpg", tmp_path / "qupath" / "notes.geojson"
    Image.new("RGB", (8, 8)).save(notes)
    own.write_text("{}")
    scmil(*command, "--tiles", 1)
    assert {path.name for path in tmp_path.glob("tiles/*/*.jpg")} == {"0.jpg", notes.name}
    bags = Path(shutil.copytree(home / "bags", tmp_path / "fewer"))
    (bags / "s1.h5").unlink()
    scmil("atlas", home / "sc", bags, "--out", tmp_path)
    assert [path.name for path in tmp_path.glob("tiles/*/*.jpg")] == [notes.name]
    names = {f"s{i}.geojson" for i in range(SLIDES) if i != 1}
    assert {path.name for path in tmp_path.glob("qupath/*")} == names | {own.name}
