"""Shards of slides or of runs, on many computers: together they do all the work, each item once."""

from __future__ import annotations

import csv
import json
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from scmil.cli import app
from scmil.core.jobs.failure_log import FailureLog
from scmil.core.jobs.locks import locked
from scmil.core.jobs.shards import Shard, parse_shard
from scmil.encoding import cohort
from scmil.encoding.cohort import (
    Source,
    TileSettings,
    encode_slides,
    find_cohort,
    read_sources,
    tile_slides,
)
from scmil.encoding.encoders import Encoder
from scmil.encoding.identity import record_sources
from scmil.encoding.tile_stage import TileStage
from scmil.encoding.work_folder import delete_if_stale
from scmil.errors import OptionError
from scmil.studies import runner as experiment
from scmil.studies.plan import Cell, Plan, make_plan
from scmil.studies.runner import TAKEN, cell_folder, chosen_cells, gather_again, guarded_cell, run

pytest.importorskip("shapely")
Image = pytest.importorskip("PIL.Image")

SETTINGS = TileSettings(size_px=100, mpp=0.5, min_tissue=0.5, preset="biopsy", pen=False)
SLIDES = 5


class Mean(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3))


ENCODER = Encoder("mean", 3, Mean(), "digest", "none", mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


@pytest.fixture(scope="module")
def slides(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slides")
    for number in range(SLIDES):
        Image.new("RGB", (260, 260), (200 - number, 80, 160)).save(folder / f"s{number}.png")
    return folder


def work_on(slides: Path, work: Path, *shards: str) -> list[tuple[str, str]]:
    """Tile, then encode, shard after shard; what became of each slide."""
    reported: list[tuple[str, str]] = []
    for verb in ("tile", "encode"):
        for shard in map(parse_shard, shards):
            how: dict[str, Any] = {
                "shard": shard,
                "on_slide": lambda name, state: reported.append((name, state)),
            }
            if verb == "tile":
                tile_slides(find_cohort(slides, 0.5), work, SETTINGS, **how)
            else:
                encode_slides(work, ENCODER, **how)
    return reported


def files_of(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file() and ".locks" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(paths)}


# -------------------------------------------------------------------------------------------- words


@pytest.mark.parametrize(
    "text", ["0/4", "5/4", "a/b", "3", "3/", "-1/4", "1/0", "", "1/2/3", "1.5/4", "²/4"]
)
def test_a_wrong_shard_is_rejected_with_the_expected_form(text: str) -> None:
    with pytest.raises(
        OptionError, match=r"--shard .*(such as 3/16|counted from 1|Use 1/1 for the whole list)"
    ):
        parse_shard(text)


def test_commands_reject_a_wrong_shard_before_anything_is_written(
    slides: Path, tmp_path: Path
) -> None:
    for words in (
        ["tile", str(slides), "--out"],
        ["encode", str(slides), "--out"],
        ["run", "x.toml", "--out"],
    ):
        result = CliRunner().invoke(app, [*words, str(tmp_path / "out"), "--shard", "5/4"])
        assert isinstance(result.exception, OptionError)
        assert "the last of 4 is 4/4" in str(result.exception)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("total", [1, 2, 3, 7, 50])
def test_the_shards_of_a_list_are_the_list_and_differ_by_one_at_most(total: int) -> None:
    parts = [Shard(number, total).of(range(20)) for number in range(1, total + 1)]
    assert sorted(item for part in parts for item in part) == list(range(20))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


# ------------------------------------------------------------------------------------------- slides


def test_shards_together_write_what_one_run_writes(slides: Path, tmp_path: Path) -> None:
    work_on(slides, tmp_path / "one", "1/1")
    reported = work_on(slides, tmp_path / "many", "3/3", "1/3", "2/3")
    assert files_of(tmp_path / "many") == files_of(tmp_path / "one")
    assert sorted(reported) == sorted([(f"s{number}", "done") for number in range(SLIDES)] * 2)


def test_a_shard_processes_its_own_slides_and_lists_all_of_them(
    slides: Path, tmp_path: Path
) -> None:
    assert [name for name, _ in work_on(slides, tmp_path, "2/2")] == ["s1", "s3"] * 2
    assert [source.id for source in read_sources(tmp_path)] == [
        f"s{number}" for number in range(SLIDES)
    ]


def test_overlapping_and_repeated_shards_process_no_slide_twice(
    slides: Path, tmp_path: Path
) -> None:
    reported = work_on(slides, tmp_path, "1/2", "1/2", "2/3", "1/1")
    for number in range(SLIDES):
        # Tiled once, encoded once.
        assert [state for name, state in reported if name == f"s{number}"].count("done") == 2


def test_shards_stay_the_same_while_others_are_still_tiling(slides: Path, tmp_path: Path) -> None:
    """By their places among all slides: places among those that have tiles would move."""
    tile_slides(find_cohort(slides, 0.5), tmp_path, SETTINGS, shard=Shard(2, 2))
    assert encode_slides(tmp_path, ENCODER, shard=Shard(1, 2)).done == ()
    assert encode_slides(tmp_path, ENCODER, shard=Shard(2, 2)).done == ("s1", "s3")


def test_two_slides_of_one_name_are_reported_by_one_shard(slides: Path, tmp_path: Path) -> None:
    sources = [*find_cohort(slides, 0.5), Source("s1", slides / "s2.png", 0.5)]
    outcomes = [
        tile_slides(sources, tmp_path, SETTINGS, shard=Shard(number, 2)) for number in (1, 2)
    ]
    assert [outcome.failed for outcome in outcomes] == [(), ("s1",)]
    assert [failure.slide for failure in FailureLog(tmp_path).read()] == ["s1"]


def test_shards_that_start_at_the_same_time_lose_no_slide_of_the_list(tmp_path: Path) -> None:
    def begin(number: int) -> None:
        record_sources(
            tmp_path, [Source(f"{number}-{i}", tmp_path / f"{i}.svs") for i in range(20)]
        )

    threads = [threading.Thread(target=begin, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_sources(tmp_path)) == 6 * 20


def test_tiles_that_another_shard_computes_again_are_not_deleted(
    slides: Path, tmp_path: Path
) -> None:
    work_on(slides, tmp_path, "1/1")
    outline, tiles = cohort.tissue_file(tmp_path, "s0"), cohort.tiles_file(tmp_path, "s0")
    outline.write_text(outline.read_text() + "\n")  # edited
    stage, source = TileStage(tmp_path, SETTINGS), find_cohort(slides, 0.5)[0]
    with locked(tiles, wait=False):  # another process is at it
        delete_if_stale(tiles, partial(stage.is_stale, source))
        assert tiles.is_file()
    delete_if_stale(tiles, partial(stage.is_stale, source))
    assert not tiles.is_file()


# -------------------------------------------------------------------------------------------- cells


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """Three methods on twelve bags of a table."""
    generator, path = np.random.default_rng(0), tmp_path / "bags.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["bag", "label", "f0", "f1"])
        for bag in range(12):
            writer.writerows(
                [[f"b{bag}", bag % 2, *x.round(4)] for x in generator.normal(size=(3, 2)) + bag % 2]
            )
    arms = [{"name": name, "model": {"aggregator": name}} for name in ("mean", "max", "abmil")]
    document = {
        "data": {"dataset": str(path)},
        "protocol": {"folds": 2, "repeats": 1, "selection": ["last"]},
        "model": {"embed": [4]},
        "training": {"epochs": 2},
        "arms": arms,
    }
    return make_plan(document, "mine")


def numbers_of(out: Path) -> list[dict[str, str]]:
    """What a run has found, without what it cost."""
    with (out / "results.csv").open(newline="") as file:
        return [
            {key: value for key, value in row.items() if key != "seconds"}
            for row in csv.DictReader(file)
        ]


def test_shards_of_an_experiment_give_the_results_of_one_process(
    plan: Plan, tmp_path: Path
) -> None:
    run(plan, tmp_path / "one", jobs=1)
    finished = [
        run(plan, tmp_path / "many", jobs=1, shard=Shard(number, 2)).finished for number in (2, 1)
    ]
    assert finished == [1, 2]
    assert numbers_of(tmp_path / "many") == numbers_of(tmp_path / "one")
    for cell in plan.cells:
        there = [cell_folder(tmp_path / name, cell) / "predictions.csv" for name in ("one", "many")]
        assert there[0].read_bytes() == there[1].read_bytes()


def test_with_more_shards_than_runs_some_are_empty(plan: Plan, tmp_path: Path) -> None:
    assert chosen_cells(plan, None, Shard(4, 9)) == []
    outcome = run(plan, tmp_path, jobs=1, shard=Shard(4, 9))
    assert (outcome.before, outcome.finished, outcome.failed) == (0, 0, {})


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def quick(ran: list[str], pause: float = 0.0, fails: str | None = None) -> Any:
    """Replaces the training of a run; the method `fails` does so when another run has started."""

    def run_cell(cell: Cell, folder: Path, *_: Any) -> None:
        ran.append(cell.name)
        time.sleep(pause)
        if cell.arm == fails:
            wait_for(lambda: len(ran) > 1)
            raise OptionError("it cannot be trained")
        folder.mkdir(parents=True, exist_ok=True)
        costs = dict.fromkeys(("parameters", "density", "seconds"))
        page = {"digest": cell.digest, "rows": [{"protocol": "last"}], "folds": [], **costs}
        (folder / "result.json").write_text(json.dumps(page))

    return run_cell


def test_many_processes_make_each_run_once_and_all_wait_for_the_last(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    monkeypatch.setattr(experiment, "run_cell", quick(ran, pause=0.1))
    outcomes: list[Any] = []
    threads = [
        threading.Thread(target=lambda: outcomes.append(run(plan, tmp_path, jobs=1)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ran) == sorted(cell.name for cell in plan.cells)
    assert [(outcome.before + outcome.finished, outcome.failed) for outcome in outcomes] == [
        (3, {})
    ] * 4
    assert len(numbers_of(tmp_path)) == 3


def test_a_locked_run_is_not_started(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    monkeypatch.setattr(experiment, "run_cell", quick(ran))
    with locked(cell_folder(tmp_path, plan.cells[0]), wait=False):
        assert guarded_cell(plan.cells[0], tmp_path, None, None) == TAKEN
    assert guarded_cell(plan.cells[0], tmp_path, None, None) is None
    assert guarded_cell(plan.cells[0], tmp_path, None, None) is None  # done: not again
    assert ran == [plan.cells[0].name]


def test_a_run_that_fails_elsewhere_is_reported_and_not_repeated(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    monkeypatch.setattr(experiment, "run_cell", quick(ran, fails="mean"))
    outcomes: list[Any] = []
    threads = [
        threading.Thread(target=lambda: outcomes.append(run(plan, tmp_path, jobs=1)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ran.count(plan.cells[0].name) == 1
    assert [outcome.failed for outcome in outcomes] == [
        {plan.cells[0].name: "OptionError: it cannot be trained"}
    ] * 2


def test_a_run_whose_process_was_killed_is_made_by_the_one_that_waited(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    monkeypatch.setattr(experiment, "run_cell", quick(ran))
    (tmp_path / experiment.EXPERIMENT).write_text(json.dumps(experiment.describe_plan(plan)))
    held = threading.Event()

    def hold() -> None:
        with locked(cell_folder(tmp_path, plan.cells[0]), wait=False):
            held.set()
            # Until the other runs are made, and no result is left, as by a process that is killed.
            wait_for(lambda: len(ran) == 2)

    other = threading.Thread(target=hold)
    other.start()
    held.wait()
    assert run(plan, tmp_path, jobs=1).finished == 3
    assert ran == [plan.cells[1].name, plan.cells[2].name, plan.cells[0].name]
    other.join()


def test_the_report_gathers_finished_runs_of_a_killed_shard(plan: Plan, tmp_path: Path) -> None:
    run(plan, tmp_path, jobs=1)
    whole = {
        name: (tmp_path / name).read_bytes() for name in ("results.csv", "folds.csv", "costs.csv")
    }
    lines = whole["results.csv"].splitlines(keepends=True)
    (tmp_path / "results.csv").write_bytes(b"".join(lines[:-1]))
    assert CliRunner().invoke(app, ["report", str(tmp_path)]).exit_code == 0
    assert {name: (tmp_path / name).read_bytes() for name in whole} == whole


def test_gathering_again_does_not_change_complete_or_foreign_folders(
    plan: Plan, tmp_path: Path
) -> None:
    gather_again(tmp_path)
    assert not list(tmp_path.glob("*.json"))
    run(plan, tmp_path / "run", jobs=1)
    before = (tmp_path / "run" / "results.csv").stat()
    gather_again(tmp_path / "run")
    assert (tmp_path / "run" / "results.csv").stat().st_mtime_ns == before.st_mtime_ns


def test_a_dry_run_lists_the_runs_of_the_shard(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(
        f'[data]\ndataset = "{tmp_path / "bags.csv"}"\n[protocol]\nfolds = 2\n'
        '[[arms]]\nname = "a"\nmodel = {aggregator = "mean"}\n'
        '[[arms]]\nname = "b"\nmodel = {aggregator = "max"}\n'
    )
    words = ["run", str(tmp_path / "e.toml"), "--dry-run", "--json", "--shard", "2/2"]
    result = CliRunner().invoke(app, words)
    assert [row["cell"] for row in json.loads(result.stdout)] == ["bags--b"]
