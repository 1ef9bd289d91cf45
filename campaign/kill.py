"""Is anything lost when the machine dies?   python campaign/kill.py --kills 300 --seed 0

`scmil encode`, `train`, `run` and `demo` are started on tiny data, killed with SIGKILL at random moments, and started again
with the same command until they end. What is killed is a process of its own; most are forked from one that has torch
imported already, so that the kills are spent on our code, and every tenth is a fresh interpreter: imports are hit, too.

After every kill:    every file under a final name is whole, and what was finished before is still the same file.
After every ending:  the folder is that of a run that was never stopped, byte for byte, apart from what is measured.

Some commands begin in a folder that is not empty, named by `--only`: `replaced` encodes a folder in which slides were
replaced and half of the bags are there, `predict` goes from slides by way of `--work`, `heatmap` and `locate` score and
draw, `paint` and `compare` are as users give them. A command that an unbroken run rejects has to be rejected in the same
way after a kill. The result is `results/kill.json`, or what `--out` says.
"""

from __future__ import annotations

import argparse
import json
import os
import re
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
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from shared import RESULTS, paint_cohort, say, write_result
from timeless import timeless
from whole import what_is_wrong

SLIDES, SIDE_PX = 4, 1000
PLAN = """
title = "tiny"
[data]
dataset = "{bags}"
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
PATHS = {"replaced": 0.25, "predict": 0.2, "heatmap": 0.2, "compare": 0.15, "locate": 0.1, "paint": 0.1}  # of results
COHORT = 8  # slides of those who need a model
FRESH_EVERY = 10
UNITS = re.compile(
    r".*(/bags/.*\.h5|/tiles/.*\.h5|/slides/.*\.svs|/cells/.*/result\.json|/study\.json)"
)  # each written last of its unit


@dataclass
class Verb:
    """A command under test, with how long it takes unbroken and what it leaves."""

    name: str
    words: list[str]
    template: Path | None = None  # what the folder has at the beginning
    changing: Sequence[str] = ()  # slides whose files there are old, and may be made again
    expected: dict[str, bytes] = field(default_factory=dict)
    seconds: float = 0.0
    status: int = 0


def main() -> int:
    """Kill as often as asked, and say whether anything was lost."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--kills", type=int, default=300)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--only", choices=SHARES | PATHS, nargs="+", default=list(SHARES))
    options.add_argument("--out", type=Path, default=RESULTS / "kill.json")
    asked = options.parse_args()
    prepare()
    page: dict[str, Any] = {"seed": asked.seed, "kills": 0, "endings": 0, "problems": [], "by_verb": {}}
    shares = SHARES | PATHS
    start, total = time.monotonic(), sum(shares[name] for name in asked.only)
    with tempfile.TemporaryDirectory(prefix="kill") as home:
        for verb in verbs(Path(home), asked.seed, asked.only):
            found = campaign(verb, Path(home), round(asked.kills * shares[verb.name] / total), asked.seed)
            page["by_verb"][verb.name] = found
            page |= {key: page[key] + found[key] for key in ("kills", "endings", "problems")}
            write_result(asked.out, page | {"minutes": round((time.monotonic() - start) / 60, 1)})
    say(f"{page['kills']} kills, {page['endings']} endings, {len(page['problems'])} problems")
    return 1 if page["problems"] else 0


def prepare() -> None:
    """Import what the verbs import, for all processes that are forked from this one; the demo is made small."""
    import torch

    import scmil.viz.atlas_page
    import scmil.cli
    import scmil.encoding.cohort
    import scmil.demo.slides
    import scmil.viz.heatmaps
    import scmil.viz.lesions
    import scmil.viz.pca
    import scmil.report
    import scmil.studies

    torch.set_num_threads(1)  # a thread pool would not survive the fork
    scmil.demo_slides.SIDE_PX, scmil.demo_slides.EPOCHS = SIDE_PX, 2


def verbs(home: Path, seed: int, names: list[str]) -> list[Verb]:
    """The commands on tiny data; all write to `home/out`."""
    out, plan = str(home / "out"), home / "tiny.toml"
    slides, (bags, labels) = home / "slides", write_bags(home / "bags", seed)
    if "encode" in names:
        paint_cohort(slides, SLIDES, SIDE_PX, seed)
    plan.write_text(PLAN.format(bags=bags, labels=labels))
    train = ["train", str(bags), str(labels), "--out", out, "--sc", "--epochs", "12", "--patience", "0"]
    words = {
        "encode": ["encode", str(slides), "--out", out, "--encoder", "resnet18", "--random", "0"],
        "train": [*train, "--valid", "0.25", "--test", "0.25"],
        "run": ["run", str(plan), "--out", out, "--jobs", "1"],
        "demo": ["demo", "--slides", "8", "--folds", "2", "--repeats", "1", "--out", out, "--jobs", "1"],
    }
    return [path_verb(name, home, seed) if name in PATHS else Verb(name, words[name]) for name in names]


def path_verb(name: str, home: Path, seed: int) -> Verb:
    """A command that begins with slides, bags and a model that are there already; these are made once."""
    cohort, model = home / "cohort", home / "begin" / "model"
    slides, work = cohort / "slides", cohort / "work"
    bags, labels, out = work / "bags" / "resnet18, random weights of seed 0", slides / "labels.csv", home / "out"
    encode = ["encode", str(slides), "--encoder", "resnet18", "--random", "0", "--out"]
    if not cohort.exists():
        paint_cohort(slides, COHORT, SIDE_PX, seed)
        bags = _made([*encode, str(work)], bags)
        parts = ["--valid", "0.25", "--test", "0.25"]
        _made(["train", str(bags), str(labels), "--out", str(model), "--epochs", "2", *parts], model)
    bags = next((work / "bags").iterdir())
    own = str(out / "model")
    words = {
        "predict": ["predict", str(model), str(slides), "--work", str(out / "kept"), "--out", str(out / "predictions.csv")],
        "heatmap": ["heatmap", own, str(bags), "--slides", str(slides)],
        "locate": ["locate", own, str(bags), "--annotations", str(slides), "--part", "all", "--out", str(out / "located")],
        "paint": ["paint", "--out", str(out / "slides"), "--slides", "6", "--side", "1000"],
        "compare": ["compare", str(bags), str(labels), "--aggregator", "mean,abmil", "--folds", "2", "--repeats", "1",
                    "--epochs", "3", "--jobs", "1", "--out", str(out)],
    }  # fmt: skip
    if name in ("heatmap", "locate"):
        return Verb(name, words[name], template=home / "begin")
    if name == "replaced":
        return _replaced(home, encode, slides, work, seed)
    return Verb(name, words[name])


def _made(words: list[str], folder: Path) -> Path:
    """Run a command that has to succeed."""
    if status := attempt(Verb(words[0], words), None, fresh=False):
        raise RuntimeError(f"scmil {' '.join(words)} ends with {status}")
    return folder


def _replaced(home: Path, encode: list[str], slides: Path, work: Path, seed: int) -> Verb:
    """A work folder with half of its bags, and slides of which two are no longer those that were encoded."""
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
    """Bags of random numbers, in which the class can be found, and the table of their labels."""
    import torch

    from scmil.bags.bag import Bag, BagSet
    from scmil.bags.formats import export

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
    export(BagSet(bags, ["normal", "tumour"]), folder, "trident")
    return folder, folder / "labels.csv"


# ------------------------------------------------------------------------------------------------------------- one verb


def campaign(verb: Verb, home: Path, kills: int, seed: int) -> dict[str, Any]:
    """Learn what an unbroken run leaves, then kill until it was often enough and the last run has ended."""
    out, random = home / "out", Random(f"{seed} {verb.name}")
    _begin(verb, out)
    for _ in range(2):  # the first warms the disk's cache; two that differ by more than times would be a finding, too
        begun = time.monotonic()
        status = attempt(verb, None, fresh=False)
        verb.seconds, before = time.monotonic() - begun, verb.expected
        verb.expected, verb.status = content_of(out), status
        _begin(verb, out)
    rejected = verb.name == "replaced" and verb.status == 1  # by name, in failures.csv
    problems = [f"{verb.name} ends with {verb.status}"] * (verb.status != 0 and not rejected)
    problems += [f"{verb.name}: unbroken runs differ: {line}" for line in differences(before, verb.expected)]
    done, endings, moments, busy = 0, 0, list[float](), False
    while done < kills or busy:
        fresh = len(moments) % FRESH_EVERY == FRESH_EVERY - 1 and verb.name != "demo"
        moment = random.uniform(0, 1)
        life = verb.seconds + 3.0 * fresh  # a fresh interpreter imports first
        kept = units(out, verb.changing)
        status = attempt(verb, moment * life if done < kills else None, fresh)
        moments.append(round(moment, 3))
        if status == -signal.SIGKILL:
            done, busy = done + 1, True
            problems += [
                f"{verb.name}, kill {done}: {line}"
                for line in [*what_is_wrong(out), *lost(kept, units(out, verb.changing))]
            ]
        else:
            endings, busy = endings + 1, False
            problems += [f"{verb.name} ends with {status}, unbroken with {verb.status}"] * (status != verb.status)
            problems += [f"{verb.name}, ending {endings}: {line}" for line in lost(kept, units(out, verb.changing))]
            found = differences(verb.expected, content_of(out))
            problems += [f"{verb.name}, ending {endings}: {line}" for line in found]
            _begin(verb, out)
        say(f"{verb.name}: {done} kills, {endings} endings, {len(problems)} problems" + "".join(problems[-1:]))
        if len(problems) > 20:
            break
    return {
        "kills": done, "endings": endings, "problems": problems, "files": len(verb.expected),
        "seconds_unbroken": round(verb.seconds, 1), "command": " ".join(["scmil", *verb.words]).replace(str(home), "TINY"),
    }  # fmt: skip


def _begin(verb: Verb, out: Path) -> None:
    """Put the folder back as it is at the beginning."""
    shutil.rmtree(out, ignore_errors=True)
    if verb.template:
        shutil.copytree(verb.template, out)


def attempt(verb: Verb, kill_after: float | None, fresh: bool) -> int:
    """Run a command in a process group of its own, and kill the group after so many seconds; its exit status."""
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

        app(words, standalone_mode=False)
        status = 0
    except SystemExit as error:
        status = int(error.code or 0)
    except BaseException:
        Path(tempfile.gettempdir(), "kill-campaign-error.txt").write_text(traceback.format_exc())
    os._exit(status)


# ----------------------------------------------------------------------------------------------------------- comparing


def content_of(folder: Path) -> dict[str, bytes]:
    """All files with a final name; hidden ones are locks and files that are being written."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    found = {str(path.relative_to(folder)): path for path in paths}
    return {
        name: path.read_bytes() for name, path in found.items() if not any(p.startswith(".") for p in Path(name).parts)
    }


def differences(expected: dict[str, bytes], met: dict[str, bytes]) -> list[str]:
    """Files that are missing, too many, or other than expected by more than times.

    >>> differences({"a.json": b'{"seconds": 1.5}', "b": b""}, {"a.json": b'{"seconds": 2}', "c": b""})
    ['b is missing', 'c is too many']
    """
    found = [f"{name} is missing" for name in expected.keys() - met.keys()]
    found += [f"{name} is too many" for name in met.keys() - expected.keys()]
    both = sorted(expected.keys() & met.keys())
    return found + [f"{name} differs" for name in both if timeless(name, expected[name]) != timeless(name, met[name])]


def units(out: Path, changing: Sequence[str] = ()) -> dict[str, Any]:
    """What is finished: the identity of each file that is a unit of work, and the epoch that a training has reached.

    Files of slides that are `changing` may be made again.
    """
    found: dict[str, Any] = {}
    for path in out.rglob("*") if out.is_dir() else ():
        if path.stem in changing:
            continue
        if UNITS.fullmatch(str(path)) and not path.name.startswith("."):
            found[str(path)] = path.stat().st_ino
        elif path.name == "checkpoint.safetensors":
            found[str(path)] = _epoch(path)
    return found


def _epoch(path: Path) -> int:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return -int(json.loads(file.metadata()["scmil"])["epoch"])


def lost(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Units that were finished, and are gone, made a second time, or set back.

    >>> lost({"a.h5": 7, "checkpoint.safetensors": -3}, {"a.h5": 8, "checkpoint.safetensors": -2})
    ['a.h5 was made again', 'checkpoint.safetensors went back from epoch 3 to 2']
    """
    found = []
    for name, old in before.items():
        new = after.get(name)
        if name.endswith("checkpoint.safetensors"):
            if new is not None and new > old:
                found.append(f"{name} went back from epoch {-old} to {-new}")
        elif new != old:
            found.append(f"{name} is gone" if new is None else f"{name} was made again")
    return found


if __name__ == "__main__":
    sys.exit(main())
