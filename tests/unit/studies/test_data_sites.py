"""`--site`: train, compare and run test on sites that they were not trained on, and say so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import scmil
from study_cases import cohort
from target_cases import target_cohort

from scmil import studies
from scmil.bags.formats import export_bags
from scmil.errors import ConfigError, OptionError
from scmil.studies.cell_splits import splits_of
from scmil.studies.plan import make_plan
from scmil.studies.settings import TaskOptions

pytestmark = pytest.mark.slow  # models are trained

SITES = 4


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """48 slides of 24 patients of 4 sites."""
    export_bags(cohort(48, 2), tmp_path / "bags", "clam")
    rows = (tmp_path / "bags" / "labels.csv").read_text().splitlines()
    lines = [f"{row},site{i // 4 % SITES}" for i, row in enumerate(rows[1:])]
    (tmp_path / "labels.csv").write_text("\n".join([f"{rows[0]},site", *lines]))
    return tmp_path


def site_of(home: Path) -> dict[str, str]:
    lines = [line.split(",") for line in (home / "labels.csv").read_text().splitlines()[1:]]
    return {line[1]: line[-1] for line in lines}


def test_the_test_split_of_a_model_has_sites_of_its_own(home: Path) -> None:
    options = ["--site", "site", "--aggregator", "mean", "--epochs", "2", "--test", "0.25"]
    out = home / "model"
    result = scmil("train", home / "bags", home / "labels.csv", *options, "--out", out)
    assert "Splits preserve sites (column 'site')" in result.stderr
    study = json.loads((out / "study.json").read_text())
    sites = {
        part: {site_of(home)[slide] for slide in names} for part, names in study["split"].items()
    }
    assert len(sites["test"]) == 1
    assert not sites["test"] & (sites["train"] | sites["valid"])
    assert study["settings"]["data"]["site"] == "site"
    for name in ("report.html", "MODEL_CARD.md"):
        assert "Splits preserve sites" in (out / name).read_text()


def test_a_change_of_the_sites_is_a_change_of_the_data(home: Path) -> None:
    def train() -> None:
        data = studies.open_data(home / "bags", home / "labels.csv", site="site")
        studies.train(data, home / "model", aggregator="mean", epochs=1)

    train()
    table = home / "labels.csv"
    table.write_text(table.read_text().replace("site3", "site2"))
    with pytest.raises(ConfigError):
        train()


@pytest.mark.parametrize("kind", ["kfold", "holdout"])
def test_the_folds_of_a_run_preserve_sites(home: Path, kind: str) -> None:
    document = {
        "data": {
            "dataset": str(home / "bags"),
            "labels": str(home / "labels.csv"),
            "site": "site",
        },
        "protocol": {"kind": kind, "folds": 2, "test": 0.5, "selection": ["nested"]},
        "model": {"aggregator": "mean"},
        "training": {"epochs": 1},
    }
    plan = make_plan(document, "sites")
    bags = studies.open_data(home / "bags", home / "labels.csv").bags
    of = site_of(home)
    for split in (split for folds in splits_of(plan.cells[0], bags, inner=True) for split in folds):
        test = {of[bags.ids[i]] for i in split.test}
        assert not test & {of[bags.ids[i]] for i in (*split.train, *split.valid)}
        assert split.valid


def test_the_report_of_a_comparison_says_it(home: Path) -> None:
    options = ["--aggregator", "mean", "--refine", "", "--folds", "2", "--repeats", "1"]
    further = ["--epochs", "1", "--jobs", "1", "--site", "site", "--out", home / "run"]
    scmil("compare", home / "bags", home / "labels.csv", *options, *further)
    assert (
        "All slides of a site (column site) are in one fold."
        in (home / "run" / "report.html").read_text()
    )


def test_site_needs_a_table_and_no_other_splits(home: Path) -> None:
    with pytest.raises(OptionError, match="names a column of the label table, but there is none"):
        studies.open_data("musk1", site="site")
    (home / "splits.csv").write_text("repeat,fold,part,bag\n")
    document = {
        "data": {"dataset": str(home / "bags"), "labels": str(home / "labels.csv"), "site": "site"},
        "protocol": {"splits": str(home / "splits.csv")},
        "model": {"aggregator": "mean"},
    }
    plan = make_plan(document, "sites")
    bags = studies.open_data(home / "bags", home / "labels.csv").bags
    with pytest.raises(OptionError, match="exclude each other"):
        splits_of(plan.cells[0], bags, inner=False)


@pytest.mark.parametrize("task", ["survival", "regression", "ordinal", "multilabel"])
def test_every_task_is_tested_on_sites_of_its_own(tmp_path: Path, task: str) -> None:
    folder = target_cohort(tmp_path / "cohort", count=32)
    head, *rows = (folder / "labels.csv").read_text().splitlines()
    lines = [f"{row},site{i % SITES}" for i, row in enumerate(rows)]
    (folder / "labels.csv").write_text("\n".join([f"{head},site", *lines]))
    label = {"survival": None, "regression": "age", "ordinal": "grade", "multilabel": "tp53,msi"}
    data = studies.open_data(
        folder / "bags",
        folder / "labels.csv",
        label=label[task],
        task=TaskOptions(task),
        drop_unlabelled=True,
        site="site",
    )
    trained = studies.train(data, tmp_path / "model", aggregator="mean", epochs=1, test=0.25)
    sites = {
        part: {int(slide.removeprefix("s")) % SITES for slide in names}
        for part, names in trained.study["split"].items()
    }
    assert len(sites["test"]) == 1
    assert not sites["test"] & (sites["train"] | sites["valid"])
