"""Every experiment on slides runs as it stands, on a stand-in cohort with the official names."""

from __future__ import annotations

import csv
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
from stand_in import some_slides, write_stand_in
from typer.testing import CliRunner

from scmil.bags.datasets import camelyon16, dataset_status, load_dataset, tcga_nsclc
from scmil.cli import app
from scmil.errors import ConfigError
from scmil.report import read_run, write_report
from scmil.report.paper_tables import average_changes, layer_costs, published_areas
from scmil.studies.plan import Plan, make_plan, read_plan
from scmil.studies.runner import run

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
QUICK = ["training.epochs=1", "data.allow_missing=true"]
pytestmark = [
    # The stand-in cohort is incomplete.
    pytest.mark.filterwarnings("ignore::scmil.bags.datasets.cohorts.CohortWarning"),
    pytest.mark.filterwarnings(
        "ignore:There is a performance drop"
    ),  # torch, of ILRA's attention in several folds at once
]


def quick_plan(name: str, data: Path) -> Plan:
    """The plan of a file with one epoch, one repeat, and narrow models for Table I."""
    document = tomllib.loads((EXPERIMENTS / f"{name}.toml").read_text(encoding="utf-8"))
    document["training"]["epochs"] = document["protocol"]["repeats"] = 1
    document["data"]["allow_missing"] = True
    for arm in document["arms"] if name.startswith("table1") else ():
        model = arm["model"]
        model |= {
            "embed": [16],
            "sparse_coding": {"atoms": 16} if "sparse_coding" in model else False,
        }
    return make_plan(document, name, folder=EXPERIMENTS, data=data)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both cohorts in one folder, with every encoder and scale."""
    folder = tmp_path_factory.mktemp("data")
    write_stand_in(folder / "camelyon16", some_slides(camelyon16.COHORT, 2), instances=3)
    write_stand_in(folder / "tcga-nsclc", some_slides(tcga_nsclc.COHORT, 4), instances=3)
    return folder


@pytest.mark.parametrize(
    ("name", "cells", "published", "areas"),
    [
        ("table1_camelyon16", 30, 30, 30),
        ("table1_tcga_nsclc", 30, 30, 30),
        ("table3_atoms", 4, 0, 4),
        ("table3_layers", 5, 0, 5),
        ("fig_ilra", 6, 4, 5),
    ],
)
def test_an_experiment_runs_to_its_report(
    name: str, cells: int, published: int, areas: int, data: Path, tmp_path: Path
) -> None:
    plan = quick_plan(name, data)
    outcome = run(plan, tmp_path, jobs=1, data=data)
    assert (outcome.failed, outcome.finished) == ({}, cells)
    report = write_report(tmp_path)
    assert all(path.stat().st_size for path in report)
    done = read_run(tmp_path)
    [dataset] = done.datasets
    assert sum((method.name, dataset) in done.published for method in done.methods) == published
    averages, costs = average_changes(done), layer_costs(done)
    assert [row.pairs for row in averages] == ([15, 15] if name.startswith("table1") else [])
    assert len(published_areas(done)) == areas
    assert len(costs) == (cells if name.startswith("table3") else 0)


def test_camelyon16_is_tested_on_its_official_test_slides_only(data: Path, tmp_path: Path) -> None:
    pattern = "camelyon16--resnet-18-abmil-gated"
    plan = read_plan(EXPERIMENTS / "table1_camelyon16.toml", QUICK, data, only=pattern)
    outcome = run(plan, tmp_path, jobs=1, data=data, only=pattern)
    assert outcome.failed == {}
    with (tmp_path / "cells" / pattern / "predictions.csv").open(newline="") as file:
        tested = [row["bag"] for row in csv.DictReader(file)]
    assert len(tested) == 5 * 4  # five runs
    assert {name.partition("_")[0] for name in tested} == {"test"}


def test_the_signal_of_the_stand_in_is_found(data: Path, tmp_path: Path) -> None:
    pattern = "tcga-nsclc--resnet-18-abmil-gated*"
    changes = ["training.epochs=4", "data.allow_missing=true"]
    plan = read_plan(EXPERIMENTS / "table1_tcga_nsclc.toml", changes, data, only=pattern)
    run(plan, tmp_path, jobs=1, data=data, only=pattern)
    with (tmp_path / "results.csv").open(newline="") as file:
        areas = [
            float(row["auc"]) for row in csv.DictReader(file) if row.get("level") in (None, "slide")
        ]
    assert len(areas) == 2
    assert min(areas) > 0.9


def test_the_command_makes_one_run_and_reports_it(data: Path, tmp_path: Path) -> None:
    words = [
        "run",
        EXPERIMENTS / "table3_layers.toml",
        "--out",
        tmp_path,
        "--data",
        data,
        "--only",
        "*--1-layer-*",
    ]
    changes = [word for change in QUICK for word in ("--set", change)]
    done = CliRunner().invoke(app, [*map(str, words), *changes, "--jobs", "1"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "cells" / "camelyon16--1-layer-sc" / "result.json").is_file()


def test_missing_features_are_reported_with_the_command_that_makes_them(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"camelyon16' is not available\. .* scmil encode SLIDES --out WORK"
    ):
        read_plan(EXPERIMENTS / "table3_layers.toml", data=tmp_path)
    waiting = {entry.name: entry for entry in dataset_status(tmp_path) if not entry.ready}
    assert "--preset biopsy" in waiting["camelyon16"].remedy
    assert "--preset tcga" in waiting["tcga-nsclc"].remedy


def test_synthetic_slides_with_official_names_become_bags_of_the_cohort(tmp_path: Path) -> None:
    if not (find_spec("openslide") and find_spec("tifffile")):
        pytest.skip("openslide and tifffile are not installed")
    from torch import nn

    from scmil.encoding.cohort import TileSettings, encode_slides, find_cohort, tile_slides
    from scmil.encoding.encoders import Encoder
    from scmil.slides.synthetic import paint

    for name, tumour in (("normal_001", False), ("tumor_001", True)):
        paint(tmp_path / "slides" / f"{name}.tif", size=(1000, 1000), seed=3, tumour=tumour)
    tile_slides(
        find_cohort(tmp_path / "slides"),
        tmp_path / "work",
        TileSettings(size_px=64, preset="biopsy"),
    )
    colours = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())
    encode_slides(
        tmp_path / "work",
        Encoder("colours", 12, colours, "none", "none", mean=(0, 0, 0), std=(1, 1, 1)),
    )
    bags = load_dataset("camelyon16", tmp_path / "work", key="colours", allow_missing=True)
    assert (bags.ids, bags.labels, bags.dim) == (("normal_001", "tumor_001"), (0, 1), 12)
