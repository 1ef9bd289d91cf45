"""An experiment from the command line: stopped, killed, repeated."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from command import SCMIL, Finished, scmil

from scmil.core.jobs.locks import locked

EXPERIMENT = """
title = "three methods"
[data]
dataset = "bags.npz"
[protocol]
folds = 3
repeats = 1
selection = ["last", "nested", "test-tuned"]
[model]
aggregator = "abmil"
embed = [8]
[training]
epochs = 5
[[arms]]
name = "plain"
[[arms]]
name = "linear"
against = "plain"
model.refine = "linear"
[[arms]]
name = "SC"
against = "plain"
model.sparse_coding = { atoms = 16 }
"""


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    return write_experiment(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of the experiment in one process, without an interruption."""
    home = tmp_path_factory.mktemp("whole")
    result = run_process(write_experiment(home), home / "out", "--jobs", "1")
    assert "linear" in result.stdout
    assert "test-tuned" in result.stdout
    return home / "out"


def write_experiment(folder: Path) -> Path:
    """A table of bags, and the experiment on it; the name of the folder is not in the results."""
    generator = np.random.default_rng(0)
    bag = np.repeat(np.arange(24), 4)
    np.savez(
        folder / "bags.npz",
        X=generator.normal(size=(96, 6)) + (bag % 2)[:, None],
        bag=bag,
        y=np.arange(24) % 2,
    )
    path = folder / "three.toml"
    path.write_text(EXPERIMENT)
    return path


def run_process(experiment: Path, out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, on which the last bits of a result may depend."""
    command = [str(SCMIL), "run", str(experiment), "--out", str(out), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True)


def run(experiment: Path, out: Path, *words: str, code: int = 0) -> Finished:
    return scmil("run", experiment, "--out", out, *words, code=code)


def results(out: Path) -> list[dict[str, str]]:
    with (out / "results.csv").open(newline="") as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def test_a_killed_experiment_resumes_and_ends_with_the_same_numbers(
    experiment: Path, whole: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    words = [str(SCMIL), "run", str(experiment), "--out", str(broken), "--jobs", "2"]
    broken.mkdir()
    shutil.copy(whole / "experiment.json", broken)  # the folder is that of a run
    with locked(broken / "cells" / "bags--sc", wait=False):  # so that it cannot end before the kill
        process = subprocess.Popen(
            words, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 300  # a busy machine is no failure
        while not list(broken.glob("cells/*/result.json")):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.005)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    done = len(list(broken.glob("cells/*/result.json")))
    assert 1 <= done < 3
    again = json.loads(run_process(experiment, broken, "--jobs", "1", "--json").stdout)
    assert (again["before"], again["finished"], again["failed"]) == (done, 3 - done, {})
    assert results(broken) == results(whole)
    for name in (
        "folds.csv",
        *(f"cells/bags--{arm}/predictions.csv" for arm in ("plain", "linear", "sc")),
    ):
        assert (broken / name).read_bytes() == (whole / name).read_bytes()


def children_of(pid: int) -> set[int]:
    """All processes below a process, as Linux lists them."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended since
            continue
    found, next_ones = set(), {pid}
    while next_ones := {child for child, parent in parents.items() if parent in next_ones}:
        found |= next_ones
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="needs /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "terminated"])
def test_an_interrupted_experiment_leaves_no_process_behind(
    experiment: Path, tmp_path: Path, how: signal.Signals
) -> None:
    words = [str(SCMIL), "run", str(experiment), "--out", str(tmp_path / "out"), "--jobs", "2"]
    words += ["--set", "training.epochs=100000"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while (
        len(children := children_of(process.pid)) < 4
        or len(list(tmp_path.glob("out/cells/.locks/*.lock"))) < 2
    ):
        # Two workers, the queue of their news, and what Python starts beside them.
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(how)
    process.wait()
    deadline = time.monotonic() + 60
    while (
        left := [pid for pid in children if Path(f"/proc/{pid}").exists()]
    ) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def test_a_dry_run_lists_the_runs_with_overrides(experiment: Path, tmp_path: Path) -> None:
    result = run(
        experiment, tmp_path / "out", "--dry-run", "--set", "protocol.selection=last"
    ).stdout
    assert "bags--sc  (last)" in result
    assert "3 runs, 0 done" in result
    assert not (tmp_path / "out").exists()


def test_a_part_of_the_runs_gives_an_incomplete_report(experiment: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(experiment, out, "--only", "*--plain", "--set", "training.epochs=1")
    assert len(results(out)) == 3
    assert "unfinished" in (out / "report.html").read_text().lower()
    result = scmil("report", out, "--format", "md")
    assert "report.md" in result.stdout


def test_a_failed_run_sets_the_exit_code_after_the_others_are_done(
    experiment: Path, tmp_path: Path
) -> None:
    text = experiment.read_text() + '[[arms]]\nname = "too many"\nprotocol.folds = 13\n'
    experiment.write_text(text)
    words = ["--set", "training.epochs=1", "--jobs", "1"]
    result = run(experiment, tmp_path / "out", *words, code=1)
    assert "failed: bags--too-many: SplitError" in result.stderr
    assert "Traceback" not in result.stderr
    assert len(results(tmp_path / "out")) == 9
