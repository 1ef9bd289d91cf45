"""Table I of the paper runs on features that `scmil get` downloaded, in two layouts."""

from __future__ import annotations

import csv
from pathlib import Path

import feature_server as served
import pytest
from feature_server import feature_server
from pages import DOCS, blocks, lines
from stand_in import some_slides
from typer.testing import CliRunner

from scmil.bags.datasets.camelyon16 import COHORT
from scmil.cli import app

TABLE = Path(__file__).parents[2] / "experiments" / "table1_camelyon16.toml"
SLIDES = {listed.slide: listed.label for listed in some_slides(COHORT, 3)}
PATTERN = "camelyon16--resnet-18-abmil-gated"
pytestmark = pytest.mark.filterwarnings("ignore::scmil.bags.datasets.cohorts.CohortWarning")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # digests of first downloads


def call(*words: object) -> None:
    done = CliRunner().invoke(app, list(map(str, words)))
    assert done.exit_code == 0, f"{done.output}\n{done.exception!r}"


@pytest.mark.parametrize("source", ["torchmil", "dsmil"])
def test_table1_runs_on_the_archives_of(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "features"
    with feature_server() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        if source == "torchmil":
            server.sets["torchmil/Camelyon16_MIL"] = served.torchmil_files(SLIDES, "resnet18")
            call("get", "camelyon16-torchmil", "--out", out)
            data = out / "dataset"
        else:  # a folder for each encoder, as the comment of the experiment says
            archive = served.zipped(served.dsmil_files(SLIDES, "resnet18/"))
            server.files["/c16.zip"] = archive
            call("get", "camelyon16-dsmil", "--out", out, "--url", f"{server.address}/c16.zip")
            data = out
    words = ["--only", PATTERN, "--jobs", 1, "--out", tmp_path / "run", "--data", data]
    settings = ("training.epochs=1", "data.allow_missing=true", "protocol.valid=0.3")
    changes = [word for text in settings for word in ("--set", text)]
    call("run", TABLE, *words, *changes)
    with (tmp_path / "run" / "cells" / PATTERN / "predictions.csv").open(newline="") as file:
        tested = {row["bag"] for row in csv.DictReader(file)}
    assert tested == {slide for slide in SLIDES if slide.startswith("test")}


def test_the_commands_of_the_page_run_on_a_local_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = DOCS / "how-to" / "features_of_other_tools.md"
    [block] = [each for each in blocks(page) if "scmil get" in each.text]
    commands = [line.words[1:] for line in lines(block)]
    assert [words[0] for words in commands] == ["ls", "get", "get", "audit"]
    monkeypatch.chdir(tmp_path)
    with feature_server() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        server.sets["torchmil/Camelyon16_MIL"] = served.torchmil_files(SLIDES, "UNI")
        for words in commands:
            call(*words)
    assert (tmp_path / "features" / "feature_set.json").is_file()
