"""The commands that kill.py interrupts, their data, and how a command is run and killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shared import paint_cohort

SLIDES, SIDE_PX = 4, 1000
PLAN = """
title = "tiny"
[data]
dataset = "{bags}"
standardise = true
name = "tiny"
labels = "{labels}"
[protocol]
folds = 2
[training]
epochs = 3
[model]
embed = [16]
[grid]
"model.aggregator" = ["abmil", "abmil-gated", "mean", "dsmil"]
"model.sparse_coding" = [false, {{ atoms = 16, layers = 2 }}]
"""
SHARES = {"encode": 0.3, "train": 0.3, "run": 0.25, "demo": 0.15}  # of the kills
# The same for commands that start from existing results.
PATHS = {
    "replaced": 0.25,
    "predict": 0.2,
    "heatmap": 0.2,
    "compare": 0.15,
    "locate": 0.1,
    "paint": 0.1,
}
COHORT = 8  # slides of the commands that need a model


@dataclass
class Verb:
    """A command under test, with the duration and the files of an uninterrupted run."""

    name: str
    words: list[str]
    template: Path | None = None  # the content of the folder at the start
    changing: Sequence[str] = ()  # slides whose files are outdated and may be replaced
    expected: dict[str, bytes] = field(default_factory=dict)
    seconds: float = 0.0
    status: int = 0


def verbs(home: Path, seed: int, names: list[str]) -> list[Verb]:
    """The commands on small data; all write to `home/out`."""
    out, plan = str(home / "out"), home / "tiny.toml"
    slides, (bags, labels) = home / "slides", write_bags(home / "bags", seed)
    if "encode" in names:
        paint_cohort(slides, SLIDES, SIDE_PX, seed)
    plan.write_text(PLAN.format(bags=bags, labels=labels))
    train = [
        "train",
        str(bags),
        str(labels),
        "--out",
        out,
        "--sc",
        "--epochs",
        "12",
        "--patience",
        "0",
    ]
    words = {
        "encode": ["encode", str(slides), "--out", out, "--encoder", "resnet18", "--random", "0"],
        "train": [*train, "--valid", "0.25", "--test", "0.25"],
        "run": ["run", str(plan), "--out", out, "--jobs", "1"],
        "demo": [
            "demo",
            "--slides",
            "8",
            "--folds",
            "2",
            "--repeats",
            "1",
            "--out",
            out,
            "--jobs",
            "1",
        ],
    }
    return [
        path_verb(name, home, seed) if name in PATHS else Verb(name, words[name]) for name in names
    ]


def path_verb(name: str, home: Path, seed: int) -> Verb:
    """A command that starts from slides, bags and a model, which are created once."""
    cohort, model = home / "cohort", home / "begin" / "model"
    slides, work = cohort / "slides", cohort / "work"
    bags, labels, out = (
        work / "bags" / "resnet18, random weights of seed 0",
        slides / "labels.csv",
        home / "out",
    )
    encode = ["encode", str(slides), "--encoder", "resnet18", "--random", "0", "--out"]
    if not cohort.exists():
        paint_cohort(slides, COHORT, SIDE_PX, seed)
        bags = _run_command([*encode, str(work)], bags)
        parts = ["--valid", "0.25", "--test", "0.25"]
        _run_command(
            ["train", str(bags), str(labels), "--out", str(model), "--epochs", "2", *parts], model
        )
    bags = next((work / "bags").iterdir())
    own = str(out / "model")
    predictions, located = str(out / "predictions.csv"), str(out / "located")
    predict = ["predict", str(model), str(slides), "--work", str(out / "kept")]
    locate = ["locate", own, str(bags), "--annotations", str(slides), "--split", "all"]
    compare = ["compare", str(bags), str(labels), "--aggregator", "mean,abmil", "--folds", "2"]
    words = {
        "predict": [*predict, "--out", predictions],
        "heatmap": ["heatmap", own, str(bags), "--slides", str(slides)],
        "locate": [*locate, "--out", located],
        "paint": ["paint", "--out", str(out / "slides"), "--slides", "6", "--side", "1000"],
        "compare": [*compare, "--repeats", "1", "--epochs", "3", "--jobs", "1", "--out", str(out)],
    }
    if name in ("heatmap", "locate"):
        return Verb(name, words[name], template=home / "begin")
    if name == "replaced":
        return _replaced(home, encode, slides, work, seed)
    return Verb(name, words[name])


def _run_command(words: list[str], folder: Path) -> Path:
    """Run a command that has to succeed."""
    if status := attempt(Verb(words[0], words), None, fresh=False):
        raise RuntimeError(f"scmil {' '.join(words)} ends with {status}")
    return folder


def _replaced(home: Path, encode: list[str], slides: Path, work: Path, seed: int) -> Verb:
    """A work folder with half of its bags, and slides of which two were replaced after encoding."""
    template, mixed = home / "half", home / "mixed"
    shutil.copytree(slides, mixed)
    shutil.copytree(work, template)
    table = template / "slides.csv"
    table.write_text(table.read_text().replace(str(slides), str(mixed)))
    names = sorted(path.stem for path in mixed.glob("*.svs"))
    shutil.copyfile(mixed / f"{names[2]}.svs", mixed / f"{names[0]}.svs")
    shutil.copyfile(mixed / f"{names[3]}.svs", mixed / f"{names[-1]}.svs")
    for name in names[COHORT // 2 :]:
        for path in [
            *template.glob(f"bags/*/{name}.h5"),
            *template.glob(f"tiles/{name}.*"),
            *template.glob(f"tissue/{name}.*"),
        ]:
            path.unlink()
    words = [str(mixed) if word == str(slides) else word for word in encode] + [str(home / "out")]
    return Verb("replaced", words, template, changing=(names[0], names[-1]))


def write_bags(folder: Path, seed: int) -> tuple[Path, Path]:
    """Write bags in which one feature depends on the class, and their labels."""
    import torch

    from scmil.bags.bag import Bag, BagSet
    from scmil.bags.formats import export_bags

    generator = torch.Generator().manual_seed(seed)
    made = {
        "side_level0": 256.0,
        "size_px": 256,
        "mpp": 0.5,
        "slide_mpp": 0.5,
        "slide_size": (3000, 3000),
        "overlap_px": 0,
    }
    bags = [
        Bag(
            f"slide_{i:02}",
            torch.randn(40, 64, generator=generator) + 2 * (i % 2) * torch.eye(64)[0],
            label=i % 2,
            patient=f"patient_{i:02}",
            xy=torch.tensor([(256 * (n % 8), 256 * (n // 8)) for n in range(40)]),
            provenance={"encoder": "random", **made},
        )
        for i in range(16)
    ]
    export_bags(BagSet(bags, ["normal", "tumour"]), folder, "trident")
    return folder, folder / "labels.csv"


def attempt(verb: Verb, kill_after: float | None, fresh: bool) -> int:
    """Run a command in its own process group, kill it after some seconds; its exit status."""
    command = [sys.executable, "-c", "from scmil.cli import main; main()", *verb.words]
    if fresh:
        quiet = subprocess.DEVNULL
        child = subprocess.Popen(command, process_group=0, stdout=quiet, stderr=quiet).pid
    else:
        child = _forked(verb.words)
    end = None if kill_after is None else time.monotonic() + kill_after
    while True:
        gone, status = os.waitpid(child, os.WNOHANG)
        if gone:
            return os.waitstatus_to_exitcode(status)
        if end is not None and time.monotonic() >= end:
            os.killpg(child, signal.SIGKILL)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        time.sleep(0.002)


def _forked(words: list[str]) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.setpgid(0, 0)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        from scmil.cli import app

        # Without standalone mode the exit code is returned instead of raised.
        status = int(app(words, standalone_mode=False) or 0)
    except SystemExit as error:
        status = int(error.code or 0)
    except BaseException:
        Path(tempfile.gettempdir(), "kill-campaign-error.txt").write_text(traceback.format_exc())
    os._exit(status)
