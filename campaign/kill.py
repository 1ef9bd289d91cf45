"""Is anything lost if a process is killed?   python campaign/kill.py --kills 300 --seed 0

`scmil encode`, `train`, `run` and `demo` are started on small data, killed with SIGKILL at random
times, and started again with the same arguments until they complete. Most processes are forked
from one that has imported torch, so that the kills hit code of scmil; every tenth is a new
interpreter, so that imports are hit, too.

After every kill, every file under its final name has to be complete, and completed files have to be
unchanged. After every completion, the folder has to be that of an uninterrupted run, byte for byte,
apart from measurements.

Some commands start from existing results and are selected by `--only`: `replaced` encodes a folder
in which slides were replaced and half of the bags exist, `predict` starts from slides with
`--work`, `heatmap` and `locate` compute scores and draw. A command that an uninterrupted run
rejects has to be rejected in the same way after a kill. The result is `results/kill.json`, or the
path of `--out`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from kill_checks import content_of, differences, lost, units
from kill_commands import PATHS, SHARES, SIDE_PX, Verb, attempt, verbs
from shared import RESULTS, say, write_result
from whole import what_is_wrong

FRESH_EVERY = 10


def main() -> int:
    """Kill the commands, write the result, and return 1 if there is a problem."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--kills", type=int, default=300)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--only", choices=SHARES | PATHS, nargs="+", default=list(SHARES))
    options.add_argument("--out", type=Path, default=RESULTS / "kill.json")
    options.add_argument(
        "--resume",
        action="store_true",
        help="Keep the commands that have a result without a problem in --out.",
    )
    arguments = options.parse_args()
    prepare()
    page = earlier(arguments.out, arguments.seed) if arguments.resume else empty(arguments.seed)
    shares = SHARES | PATHS
    total = sum(shares[name] for name in arguments.only)
    with tempfile.TemporaryDirectory(prefix="kill") as home:
        remaining = [name for name in arguments.only if name not in page["by_verb"]]
        for verb in verbs(Path(home), arguments.seed, remaining):
            start = time.monotonic()
            found = campaign(
                verb, Path(home), round(arguments.kills * shares[verb.name] / total), arguments.seed
            )
            page["by_verb"][verb.name] = found
            page |= {key: page[key] + found[key] for key in ("kills", "endings", "problems")}
            page["minutes"] = round(page["minutes"] + (time.monotonic() - start) / 60, 1)
            write_result(arguments.out, page)
    say(f"{page['kills']} kills, {page['endings']} endings, {len(page['problems'])} problems")
    return 1 if page["problems"] else 0


def empty(seed: int) -> dict[str, Any]:
    """A result without commands."""
    return {"seed": seed, "kills": 0, "endings": 0, "problems": [], "minutes": 0.0, "by_verb": {}}


def earlier(path: Path, seed: int) -> dict[str, Any]:
    """The commands without a problem from an interrupted campaign with the same seed."""
    page = empty(seed)
    found = json.loads(path.read_bytes()) if path.is_file() else page
    if found["seed"] == seed:
        page["minutes"] = found["minutes"]
        for name, one in found["by_verb"].items():
            if not one["problems"]:
                page["by_verb"][name] = one
                page |= {key: page[key] + one[key] for key in ("kills", "endings")}
    return page


def prepare() -> None:
    """Import everything for the processes forked from this one, and make the demo small."""
    import torch

    import scmil.cli
    import scmil.demo.slides
    import scmil.encoding.cohort
    import scmil.report
    import scmil.studies
    import scmil.viz.atlas
    import scmil.viz.heatmaps
    import scmil.viz.lesions
    import scmil.viz.pca

    torch.set_num_threads(1)  # a thread pool does not survive a fork
    scmil.demo.slides.SIDE_PX, scmil.demo.slides.EPOCHS = SIDE_PX, 2


def campaign(verb: Verb, home: Path, kills: int, seed: int) -> dict[str, Any]:
    """Record an uninterrupted run, then kill the command until enough runs were killed."""
    out, random = home / "out", Random(f"{seed} {verb.name}")
    _reset(verb, out)
    # The first run fills caches; two runs that differ are a problem, too.
    for _ in range(2):
        begun = time.monotonic()
        status = attempt(verb, None, fresh=False)
        verb.seconds, before = time.monotonic() - begun, verb.expected
        verb.expected, verb.status = content_of(out), status
        _reset(verb, out)
    rejected = verb.name == "replaced" and verb.status == 1  # listed in failures.csv
    problems = [f"{verb.name} ends with {verb.status}"] * (verb.status != 0 and not rejected)
    problems += [
        f"{verb.name}: unbroken runs differ: {line}" for line in differences(before, verb.expected)
    ]
    done, endings, moments, busy = 0, 0, list[float](), False
    while done < kills or busy:
        fresh = len(moments) % FRESH_EVERY == FRESH_EVERY - 1 and verb.name != "demo"
        moment = random.uniform(0, 1)
        life = verb.seconds + 3.0 * fresh  # a new interpreter imports first
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
            problems += [f"{verb.name} ends with {status}, unbroken with {verb.status}"] * (
                status != verb.status
            )
            problems += [
                f"{verb.name}, ending {endings}: {line}"
                for line in lost(kept, units(out, verb.changing))
            ]
            found = differences(verb.expected, content_of(out))
            problems += [f"{verb.name}, ending {endings}: {line}" for line in found]
            _reset(verb, out)
        say(
            f"{verb.name}: {done} kills, {endings} endings, {len(problems)} problems"
            + "".join(problems[-1:])
        )
        if len(problems) > 20:
            break
    return {
        "kills": done,
        "endings": endings,
        "problems": problems,
        "files": len(verb.expected),
        "seconds_unbroken": round(verb.seconds, 1),
        "command": " ".join(["scmil", *verb.words]).replace(str(home), "TINY"),
    }


def _reset(verb: Verb, out: Path) -> None:
    """Restore the folder as it is at the start."""
    shutil.rmtree(out, ignore_errors=True)
    if verb.template:
        shutil.copytree(verb.template, out)


if __name__ == "__main__":
    sys.exit(main())
