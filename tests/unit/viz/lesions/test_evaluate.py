"""`scmil locate`: FROC from bags and annotations, excluded slides, and slides that fail."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("shapely")

from lesion_cohort import PROVENANCE, SIDE, SLIDES, bag, lesion, outline, write_lesion_cohort
from shapely import MultiPolygon, box

from scmil import studies as study
from scmil.bags.bag import BagSet
from scmil.bags.hdf5 import write_bag
from scmil.cli import app
from scmil.errors import DataError, OptionError, OutputError
from scmil.slides.annotations.asap import write_asap
from scmil.slides.annotations.geojson import Region
from scmil.stats.localisation import Rule
from scmil.studies import open_bags_to_predict
from scmil.viz.lesions import locate

pytestmark = pytest.mark.slow  # trains a model


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bags, outlines in both formats, and a model that has learned from most of them."""
    home = tmp_path_factory.mktemp("locate")
    write_lesion_cohort(home)
    data = study.open_data(home / "bags", home / "labels.csv")
    study.train(
        data,
        home / "model",
        aggregator="abmil-gated",
        recipe="paper",
        epochs=10,
        test=0.4,
        patience=None,
    )
    return home


@pytest.fixture
def home(once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(once, tmp_path / "home"))


def located(home: Path, part: str = "all", **options: Any) -> dict[str, Any]:
    bags = open_bags_to_predict([home / "bags"])
    return locate(home / "model", bags, home / "outlines", part=part, draws=50, **options).page


def scmil(*words: object) -> Any:
    return CliRunner().invoke(app, [*map(str, words)])


def test_the_command_finds_lesions_on_unseen_slides(home: Path) -> None:
    done = scmil(
        "locate", home / "model", home / "bags", "--annotations", home / "outlines", "--draws", 50
    )
    assert done.exit_code == 0, done.output
    assert "mean (FROC score)" in done.output
    assert "score: probability; detections: peaks above 0, radius 192 µm" in done.output
    out = home / "model" / "maps" / "locate"
    page = json.loads((out / "result.json").read_text())
    test = json.loads((home / "model" / "study.json").read_text())["split"]["test"]
    assert sorted(page["each"]) == sorted(test)
    assert page["froc"]["score"] > 0.9
    assert page["tiles"]["auc"] > 0.95
    assert page["tiles"]["tumour_tiles"] == 9 * page["froc"]["lesions"] > 0
    assert (page["rule"]["score"], page["rule"]["kind"], page["rule"]["radius_um"]) == (
        "probability",
        "peaks",
        192,
    )
    assert {one["truth"].rpartition(".")[2] for one in page["each"].values()} <= {
        "xml",
        "geojson",
        "its label",
    }
    assert "</svg>" in (out / "froc.svg").read_text()


def test_detections_and_curve_have_the_format_of_the_official_evaluation(home: Path) -> None:
    page = located(home)
    out = home / "model" / "maps" / "locate"
    with (out / "detections" / "slide_01.csv").open(newline="") as file:
        rows = [(float(p), int(x), int(y)) for p, x, y in csv.reader(file)]
    left, top = (SIDE * tile for tile in lesion(1))
    best = max(rows)
    assert left < best[1] < left + 3 * SIDE
    assert top < best[2] < top + 3 * SIDE
    with (out / "froc.csv").open(newline="") as file:
        curve = list(csv.DictReader(file))
    rates, shares = (
        [float(row[name]) for row in curve] for name in ("false_positives_per_slide", "sensitivity")
    )
    assert np.interp([0.25, 0.5, 1, 2, 4, 8], rates, shares).mean() == pytest.approx(
        page["froc"]["score"], abs=1e-6
    )
    assert len(list((out / "detections").glob("*.csv"))) == SLIDES
    located(home, "test")
    assert len(list((out / "detections").glob("*.csv"))) < SLIDES  # of this call alone


def test_a_warning_lists_slides_that_were_used_for_training(home: Path) -> None:
    assert any(
        "were used to train or to select the model, so the results are biased upwards" in w
        for w in located(home)["warnings"]
    )
    assert not located(home, "unseen")["warnings"]


@pytest.mark.parametrize(
    ("score", "kind"),
    [("ratio", "components"), ("weighted", "peaks"), ("probability:tumour", "components")],
)
def test_every_score_and_rule_is_part_of_the_result(home: Path, score: str, kind: str) -> None:
    page = located(home, rule=Rule(score, kind))
    assert (page["rule"]["score"], page["rule"]["kind"]) == (score, kind)
    assert page["froc"]["score"] > 0.8


def test_scores_are_compared_side_by_side_in_one_report(home: Path) -> None:
    command = ("locate", home / "model", home / "bags", "--annotations", home / "outlines")
    scores = ("--score", "evidence", "--score", "attention", "--draws", 50, "--split", "all")
    done = scmil(*command, *scores)
    assert done.exit_code == 0, done.output
    assert "minus evidence" in done.output
    out = home / "model" / "maps" / "locate"
    page = json.loads((out / "result.json").read_text())
    report = (out / "report.html").read_text()
    [other] = page["compared"]
    # The numbers are those of each score alone.
    for score, found in (("evidence", page), ("attention", other)):
        alone = located(home, out=home / score, rule=Rule(score))
        for part in ("froc", "tiles", "rule"):
            assert found[part] == alone[part]
        for number in (found["froc"]["score"], found["tiles"]["auc"]):
            assert f"{number:.3f}" in report
        folder = out if score == "evidence" else out / "attention"
        files = [path.relative_to(folder) for path in folder.rglob("detections/*.csv")]
        assert {"slide_00.csv", "slide_15.csv"} <= {path.name for path in files}
        for path in (home / score).rglob("*.csv"):
            assert (folder / path.relative_to(home / score)).read_bytes() == path.read_bytes()
    for name, first, second in (
        ("froc", page["froc"]["score"], other["froc"]["score"]),
        ("auc", page["tiles"]["auc"], other["tiles"]["auc"]),
    ):
        difference = other["difference"][name]
        assert difference["value"] == pytest.approx(second - first, abs=1e-6)
        low, high = difference["interval"]
        assert low <= difference["value"] + 1e-6
        assert high >= difference["value"] - 1e-6
    assert "FROC of 2 scores" in (out / "froc.svg").read_text()
    # Only the files of the scores that were asked for remain.
    located(home, rule=Rule("evidence"))
    assert not (out / "attention" / "froc.csv").exists()


def test_equal_scores_have_no_difference_in_any_resample(home: Path) -> None:
    page = located(home, rule=[Rule("probability"), Rule("probability:tumour")])
    for difference in page["compared"][0]["difference"].values():
        assert difference == {"value": 0.0, "interval": [0.0, 0.0]}


def test_the_same_seed_gives_the_same_file(home: Path) -> None:
    out = home / "model" / "maps" / "locate" / "result.json"
    pages = []
    for seed in (1, 1, 2):
        located(home, seed=seed, rule=Rule("ratio"))
        pages.append(out.read_bytes())
    assert pages[0] == pages[1] != pages[2]


def test_a_positive_slide_without_an_annotation_is_excluded_with_a_warning(home: Path) -> None:
    (home / "outlines" / "slide_03.geojson").unlink()
    page = located(home)
    assert page["left_out"] == {"slide_03": "positive by its label, and without an annotation"}
    assert page["slides"] == SLIDES - 1
    assert any(
        w.startswith("1 of 16 slides are excluded, because they have neither an annotation")
        and "slide_03" in w
        for w in page["warnings"]
    )


def test_without_labels_only_annotated_slides_are_known(home: Path) -> None:
    (home / "model" / "predictions.csv").unlink()
    assert len(located(home)["left_out"]) == SLIDES // 2
    assert located(home, labels=home / "labels.csv")["left_out"] == {}


def test_a_damaged_annotation_is_logged_and_the_others_are_evaluated(home: Path) -> None:
    path = home / "outlines" / "slide_05.xml"
    good = path.read_text()
    path.write_text("<ASAP_Annotations>")
    command = (
        "locate",
        home / "model",
        home / "bags",
        "--annotations",
        home / "outlines",
        "--split",
        "all",
    )
    done = scmil(*command, "--json", "--draws", 20)
    assert done.exit_code == 1
    page = json.loads(done.stdout)
    assert list(page["failed"]) == ["slide_05"]
    assert page["slides"] == SLIDES - 1
    failure_log = home / "model" / "maps" / "locate" / "failures.csv"
    assert "slide_05,locate" in failure_log.read_text()
    path.write_text(good)
    assert scmil(*command, "--draws", 20).exit_code == 0
    assert "slide_05" not in failure_log.read_text()


def test_annotations_outside_of_the_slide_are_an_error(home: Path) -> None:
    far = Region("far", MultiPolygon([box(90_000, 0, 91_000, 1000)]), "Tumor")
    write_asap([far], home / "outlines" / "slide_05.xml")
    assert (
        "no annotated region is inside of the slide of (2560, 2560) pixels"
        in located(home)["failed"]["slide_05"]
    )


def test_slides_are_excluded_and_those_of_camelyon16_flagged(home: Path) -> None:
    (home / "bags" / "slide_07.h5").unlink()
    (home / "outlines" / "slide_07.geojson").rename(home / "outlines" / "test_114.geojson")
    write_bag(replace(bag(7), id="test_114"), home / "bags" / "test_114.h5")
    page = located(home, exclude=["slide_00"])
    assert page["left_out"] == {"slide_00": "--exclude"}
    assert any(
        "whose tumours are not exhaustively annotated" in w and "test_114" in w
        for w in page["warnings"]
    )
    page = located(home, exclude=["camelyon16"])
    assert page["left_out"] == {"test_114": "--exclude"}
    assert not any("test_114" in w for w in page["warnings"])


def test_warnings_about_limits_of_the_results(home: Path) -> None:
    write_asap([outline(2)], home / "outlines" / "slide_02.xml")
    page = located(home, rule=Rule("attention", radius_um=75))
    warnings = " ".join(page["warnings"])
    assert (
        "Attention sums to one on each slide, so it cannot be compared between slides" in warnings
    )
    assert (
        "have the normal class as label but lesions in their annotation, which are counted: "
        "slide_02" in warnings
    )
    assert "The radius of 75 microns is smaller than a tile of 128" in warnings


def test_without_lesions_there_is_no_froc_but_a_warning(home: Path) -> None:
    page = located(home, exclude=[f"slide_{i:02}" for i in range(1, SLIDES, 2)])
    assert (page["froc"], page["tiles"]["auc"]) == (None, None)
    assert any(
        warning.startswith("No FROC: no lesion counts in 8 slides") for warning in page["warnings"]
    )
    assert not (home / "model" / "maps" / "locate" / "froc.svg").exists()


def test_invalid_options_are_rejected_before_any_work(home: Path) -> None:
    bags = open_bags_to_predict([home / "bags"])
    with pytest.raises(DataError, match="is not a folder"):
        locate(home / "model", bags, home / "nowhere")
    with pytest.raises(OptionError, match=r"unknown split 'tests'\. Choose one of: unseen, all"):
        locate(home / "model", bags, home / "outlines", part="tests")
    with pytest.raises(OptionError, match="tile_share = 0, expected a fraction"):
        locate(home / "model", bags, home / "outlines", tile_share=0)
    with pytest.raises(OptionError, match="mpp = -1, expected microns per pixel above 0"):
        locate(home / "model", bags, home / "outlines", mpp=-1)
    with pytest.raises(
        OptionError, match="score 'atom:3' is not available: the model has no sparse coding"
    ):
        locate(home / "model", bags, home / "outlines", rule=Rule("atom:3"))
    with pytest.raises(OptionError, match="score 'ratio' is given twice"):
        locate(home / "model", bags, home / "outlines", rule=[Rule("ratio"), Rule("ratio")])
    shutil.rmtree(home / "model" / "maps")
    train = json.loads((home / "model" / "study.json").read_text())["split"]["train"]
    with pytest.raises(
        DataError, match=r"none of the 1 slides is in the split 'unseen' .* --split all"
    ):
        locate(home / "model", bags.subset(train[:1]), home / "outlines")
    with pytest.raises(
        DataError,
        match="no slide can be evaluated: 1 excluded and 0 failed, the first: --exclude",
    ):
        locate(
            home / "model",
            bags.subset(["slide_01"]),
            home / "outlines",
            part="all",
            exclude=["slide_01"],
        )


def test_a_slide_without_resolution_needs_the_option_mpp(home: Path) -> None:
    unknown = {key: value for key, value in PROVENANCE.items() if key != "slide_mpp"}
    bags = BagSet([replace(bag(9), provenance=unknown)])
    with pytest.raises(
        DataError, match=r"has no microns per pixel\. Specify them, for example: --mpp"
    ):
        locate(home / "model", bags, home / "outlines", part="all")
    page = locate(home / "model", bags, home / "outlines", part="all", mpp=0.5, draws=20).page
    assert page["froc"]["lesions"] == 1


def test_foreign_files_are_neither_deleted_nor_replaced(home: Path) -> None:
    out = home / "out"
    located(home, out=out)
    ours = sorted(path.name for path in (out / "detections").iterdir())
    (out / "detections" / "mine.csv").write_text("mine")
    (out / "froc.csv").write_text("mine")
    with pytest.raises(
        OutputError,
        match=r"froc\.csv exists, and was not written by scmil locate, or was changed",
    ):
        located(home, out=out, rule=Rule("ratio"))
    (out / "froc.csv").rename(out / "kept.csv")
    # Fewer slides: the files of the others are removed, and only these.
    located(home, part="test", out=out)
    left = sorted(path.name for path in (out / "detections").iterdir())
    assert "mine.csv" in left
    assert 1 < len(left) <= len(ours)
    assert (out / "kept.csv").read_text() == "mine"
    done = scmil(
        "locate",
        home / "model",
        home / "bags",
        "--annotations",
        home / "outlines",
        "--draws",
        50,
        "--out",
        out,
        "--overwrite",
    )
    assert done.exit_code == 0, done.output
    assert (out / "detections" / "mine.csv").read_text() == "mine"
