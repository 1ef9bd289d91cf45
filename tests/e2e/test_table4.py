"""Table IV runs as it stands on a stand-in cohort with the official names: FROC of every run,
and the published values.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from stand_in import some_slides, write_stand_in

pytest.importorskip("shapely")

from shapely import MultiPolygon, box

from scmil.bags.datasets import camelyon16
from scmil.errors import ConfigError
from scmil.report import read_run, write_report
from scmil.report.paper_tables import froc_scores
from scmil.slides.annotations.asap import write_asap
from scmil.slides.annotations.geojson import Region
from scmil.studies.localise import located_summary
from scmil.studies.plan import Plan, make_plan, read_plan
from scmil.studies.runner import run

FILE = Path(__file__).parents[2] / "experiments" / "table4_froc.toml"
PUBLISHED = Path(__file__).parents[1] / "data" / "published" / "table4_froc.csv"
INSTANCES, STEP = 9, 512  # tiles in a row; the first four of a positive slide show the signal
pytestmark = pytest.mark.filterwarnings(
    "ignore::scmil.bags.datasets.cohorts.CohortWarning"
)  # a stand-in is never complete


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bags of ResNet-18 and the outlines of the positive test slides, in the folder of the data."""
    folder = tmp_path_factory.mktemp("data")
    slides = some_slides(camelyon16.COHORT, 4)
    write_stand_in(folder / "camelyon16", slides, ["resnet18"], INSTANCES)
    outline(folder / "annotations", 0)
    outline(folder / "beside", 5)
    return folder


def outline(folder: Path, first: int) -> None:
    """Outline the four tiles from `first` on in the positive test slides."""
    folder.mkdir()
    area = MultiPolygon([box(STEP * first, 0, STEP * (first + INSTANCES // 3 + 1), STEP)])
    for listed in some_slides(camelyon16.COHORT, 4):
        if listed.part == "test" and listed.label:
            write_asap([Region("metastasis", area, "_0")], folder / f"{listed.slide}.xml")


def plan_for(data: Path, *changes: str) -> Plan:
    narrow = [
        "model.embed=[16]",
        "training.epochs=8",
        "protocol.repeats=2",
        "data.allow_missing=true",
    ]
    return read_plan(FILE, [*narrow, *changes], data)


@pytest.fixture(scope="module")
def done(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    outcome = run(plan_for(data), out, jobs=1, data=data)
    assert (outcome.failed, outcome.finished) == ({}, 2)
    return out


def test_every_run_has_a_froc_score_and_the_summary_their_mean(done: Path) -> None:
    page = json.loads((done / "cells" / "camelyon16--abmil-gated-sc" / "result.json").read_text())
    scores = [fold["froc"] for fold in page["folds"]]
    assert len(scores) == 2
    [row] = page["rows"]
    assert row["froc"] == pytest.approx(sum(scores) / 2)
    assert row["froc_sd_repeats"] is not None
    with (done / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["froc"]) for row in rows] == [
        score.ours for score in froc_scores(read_run(done))
    ]
    assert page["trained"] == "fold by fold"  # so that the model is that of the chosen epoch
    with (done / "folds.csv").open(newline="") as file:
        assert [row["froc"] for row in csv.DictReader(file)][-2:] == [
            str(score) for score in scores
        ]


def test_a_model_that_learned_the_signal_finds_the_lesions_where_they_are(
    data: Path, tmp_path: Path
) -> None:
    # A score that is comparable between slides; attention ranks tiles of normal slides as well.
    changes = ["localisation.score=probability", "protocol.repeats=1"]
    scores = {}
    for name, further in (
        ("right", []),
        ("wrong", [f"localisation.annotations={data / 'beside'}"]),
    ):
        out = tmp_path / name
        plan = plan_for(data, *changes, *further)
        assert run(plan, out, jobs=1, data=data, only="*gated").failed == {}
        [score] = froc_scores(read_run(out))
        scores[name] = score.ours
    assert scores["right"] > 0.9
    assert scores["wrong"] < 0.7


def test_the_summary_is_the_mean_over_repeats_of_the_mean_over_folds() -> None:
    found = {
        ("last", 0, 0): {"froc": 0.2},
        ("last", 0, 1): {"froc": 0.4},
        ("last", 1, 0): {"froc": 0.5},
        ("last", 1, 1): {"froc": 0.9},
        ("nested", 0, 0): {"froc": 1.0},
    }
    row = located_summary({"protocol": "last"}, found)
    assert row["froc"] == pytest.approx(0.5)
    assert row["froc_sd_repeats"] == pytest.approx(0.4 / 2**0.5)
    assert row["froc_sd_folds"] == pytest.approx(0.294392, abs=1e-6)
    assert located_summary({"protocol": "last", "level": "patient"}, found) == {}


def test_the_report_shows_our_and_published_numbers(done: Path) -> None:
    plain, coded = froc_scores(read_run(done))
    assert [plain.published, plain.published_sd, coded.published, coded.published_sd] == [
        0.246,
        0.022,
        0.378,
        0.025,
    ]
    write_report(done)
    for name in ("report.md", "report.html"):
        text = (done / name).read_text()
        assert "0.246 ± 0.022" in text
        assert "0.378 ± 0.025" in text
        assert "Score of a tile: attention; detections: peaks" in text


def test_the_published_numbers_are_those_of_the_paper() -> None:
    with (
        PUBLISHED.open(newline="") as theirs,
        (FILE.parent / "published" / "table4_froc.csv").open(newline="") as ours,
    ):
        printed = [
            (row["sparse_coding"], row["froc"], row["froc_sd"]) for row in csv.DictReader(theirs)
        ]
        copied = csv.DictReader(ours)
        kept = [
            (row["sparse_coding"], row["camelyon16_froc"], row["camelyon16_froc_sd"])
            for row in copied
        ]
    assert kept == printed


def test_test_114_is_excluded_and_the_annotations_folder_can_be_set(
    data: Path, tmp_path: Path
) -> None:
    own = plan_for(data, f"localisation.annotations={tmp_path}").cells[0].settings.localisation
    assert own is not None
    assert own.annotations == str(tmp_path)
    assert "test_114" in own.exclude
    default = plan_for(data).cells[0].settings.localisation
    assert default is not None
    assert default.annotations == str(data / "annotations")


def test_a_positive_slide_without_an_annotation_fails_its_run(data: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    plan = plan_for(data, f"localisation.annotations={tmp_path / 'empty'}", "training.epochs=1")
    outcome = run(plan, tmp_path / "run", jobs=1, data=data, only="*gated")
    [cause] = outcome.failed.values()
    assert "is positive by its label, and without an annotation" in cause
    assert "or list it in [localisation] exclude" in cause


SMALL: dict[str, Any] = {"data": {"dataset": "musk1"}}


def test_mistakes_in_the_table_are_all_listed(tmp_path: Path) -> None:
    own = {"anotations": "x", "rule": "maxima", "mpp": 0, "exclude": "test_114"}
    document = {**SMALL, "protocol": {"selection": ["last", "test-tuned"]}, "localisation": own}
    with pytest.raises(ConfigError) as raised:
        make_plan(document, "mine", folder=tmp_path)
    for words in (
        "anotations: unknown key. Did you mean 'annotations'?",
        "no folder of annotations was found (searched: nowhere, none is named). Name the folder",
        "unknown rule 'maxima' for detections",
        "mpp = 0: a number from 0.001 to 10000 is needed",
        "exclude = 'test_114': expected a list of slides",
        "'test-tuned' keeps no model that could score tiles",
    ):
        assert words in str(raised.value)
    with pytest.raises(ConfigError, match="cannot score tiles"):
        make_plan(
            {
                **SMALL,
                "model": {"aggregator": "logistic-mean-max"},
                "localisation": {"annotations": "."},
            },
            "mine",
        )


def test_settings_without_the_table_do_not_contain_it() -> None:
    assert all(cell.settings.localisation is None for cell in make_plan(SMALL, "mine").cells)
