"""Train, compare and predict on the command line: killed, repeated, and from a slide."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command import SCMIL, scmil


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """30 bags of three classes."""
    generator = np.random.default_rng(0)
    bag, y = np.repeat(np.arange(30), 4), np.arange(30) % 3
    np.savez(
        tmp_path / "three.npz",
        X=generator.normal(size=(120, 6)) + 2 * np.eye(6)[y[bag]],
        bag=bag,
        y=y,
    )
    return tmp_path / "three.npz"


# The command, killed after its third checkpoint.
KILLED = """
import os, signal, sys
from scmil.cli import app
from scmil.training.checkpoint import TrainingCheckpoint

save, saved = TrainingCheckpoint.save, []

def save_and_kill(*arguments):
    save(*arguments)
    saved.append(1)
    if len(saved) == 3:
        os.kill(os.getpid(), signal.SIGKILL)

TrainingCheckpoint.save = save_and_kill
app(sys.argv[1:])
"""


def test_a_killed_training_resumes_and_ends_with_the_same_model(
    table: Path, tmp_path: Path
) -> None:
    words = ["train", table, "--sc", "--epochs", "30", "--patience", "0", "--out"]
    # All three in processes of their own: the last bits depend on how a process is set up.
    subprocess.run([SCMIL, *map(str, words), tmp_path / "whole"], check=True, capture_output=True)
    broken = tmp_path / "broken"
    command = [sys.executable, "-c", KILLED, *map(str, words), str(broken)]
    killed = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert killed.returncode == -signal.SIGKILL
    assert (broken / "checkpoint.safetensors").exists()
    assert not (broken / "study.json").exists()
    resume = [SCMIL, *map(str, words), broken, "--resume"]
    subprocess.run(resume, check=True, capture_output=True)
    for name in (
        "model.safetensors",
        "history.csv",
        "predictions.csv",
        "metrics.json",
        "study.json",
    ):
        assert (broken / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_compare_takes_a_data_set_by_the_first_letters_of_its_name(tmp_path: Path) -> None:
    result = scmil(
        "compare",
        "ucsb",
        "--aggregator",
        "mean",
        "--folds",
        "2",
        "--repeats",
        "1",
        "--epochs",
        "1",
        "--jobs",
        "1",
        "--out",
        tmp_path / "out",
        "--json",
    )
    page = json.loads(result.stdout)
    assert page["failed"] == {}
    assert len(page["results"]) == 4
    assert "logistic regression" in page["verdict"]


def test_errors_are_sentences_without_a_traceback(table: Path, tmp_path: Path) -> None:
    result = scmil("train", table, "--aggregator", "abml", "--out", tmp_path / "model", code=1)
    assert result.returncode == 1
    assert result.stderr.startswith(
        "UnknownNameError: unknown aggregator 'abml'. Did you mean 'abmil'?"
    )
    assert not (tmp_path / "model").exists()
    result = scmil("predict", tmp_path, table, code=1)
    assert result.returncode == 1
    assert "is not a model folder of `scmil train`" in result.stderr
    assert "Traceback" not in result.stderr


def test_predict_tiles_and_encodes_a_slide(tmp_path: Path) -> None:
    from scmil.slides.synthetic import paint_cohort

    labels = paint_cohort(tmp_path / "slides", slides=6, size=(1024, 1024), mpp=0.5, seed=0)
    encode = [
        "encode",
        tmp_path / "slides",
        "--encoder",
        "resnet18",
        "--random",
        "0",
        "--out",
        tmp_path / "work",
    ]
    scmil(*encode, "--preset", "biopsy")
    words = [
        "--aggregator",
        "mean",
        "--epochs",
        "1",
        "--valid",
        "0.34",
        "--test",
        "0.33",
        "--out",
        tmp_path / "model",
    ]
    scmil("train", tmp_path / "work", labels, *words)
    slide = next(
        path
        for path in sorted((tmp_path / "slides").rglob("*"))
        if path.suffix in (".svs", ".tif", ".tiff")
    )
    broken = tmp_path / "broken.tif"
    broken.write_bytes(b"no slide")
    words = ["--preset", "biopsy", "--out", tmp_path / "p.csv", "--json"]
    result = scmil("predict", tmp_path / "model", slide, broken, *words, code=1)
    page = json.loads(result.stdout)
    assert result.returncode == 1  # one of them failed
    assert list(page["failed"]) == ["broken"]
    with (tmp_path / "p.csv").open(newline="") as file:
        [row] = csv.DictReader(file)
    assert row["slide_id"] == slide.stem
    with (tmp_path / "model/predictions.csv").open(newline="") as file:
        before = next(known for known in csv.DictReader(file) if known["slide_id"] == slide.stem)
    for name in (name for name in row if name.startswith("p_")):
        assert float(row[name]) == pytest.approx(float(before[name]), abs=1e-4)
