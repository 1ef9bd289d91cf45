"""Does every result belong to the present data?

    python campaign/sequence.py --sequences 500 --seed 0

Random sequences of user actions in one folder: encode, replace a slide by another of the same name,
edit labels, train, replace bags, predict, compare, draw heatmaps, start the viewer on another
folder (`actions.py`). Each command that writes numbers or pictures is compared with the same
command on a copy of its present inputs in a new folder. The numbers and pixels have to be equal, or
the command has to end with a nonzero exit code and a message. Anything else is a finding:

    stale      a number or a picture differs from that of a fresh run
    missing    the command ends with 0, and a result of a fresh run is missing
    accepted   the command ends with 0, and a fresh run is rejected
    silent     a nonzero exit code without a message
    traceback  an exception that is not an ScmilError
    overwrote  a file of the user was changed or deleted
    hang       the command took more than a minute

At the end of a sequence the last command of each kind is run once more. `--only 17` repeats
sequence 17 and prints it. The result is `results/sequence.json`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from actions import ACTIONS, COMMANDS, WEIGHTS
from commands import Fresh, prepare
from shared import RESULTS, say, write_result
from world import World, make_pool

LENGTH = 8  # actions
Sequence_ = list[tuple[str, str]]  # actions by name, each with its own seed


def main() -> int:
    """Run the sequences, write the result, and return 1 if there is a finding."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--sequences", type=int, default=500)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--only", type=int, help="Run this sequence only, and print its steps.")
    options.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options.add_argument(
        "--shorten",
        type=int,
        default=1,
        help="Shorten this many sequences of each kind of finding.",
    )
    options.add_argument("--out", type=Path, default=RESULTS / "sequence.json")
    arguments = options.parse_args()
    place = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="sequence-", dir=place) as home:
        pool = make_pool(Path(home) / "pool", arguments.seed)
        if arguments.only is not None:
            prepare()
            return show(Worker(Path(home), pool, arguments.seed), arguments.only)
        page = campaign(Path(home), pool, arguments)
    size = f"{page['sequences']} sequences, {page['commands']} commands in {page['seconds']} s"
    say(f"{size}: {page['outcomes']}")
    for finding in page["findings"]:
        what = f"{finding['count']} x {finding['kind']}: {finding['what']}"
        say(f"FOUND {what} (sequences {finding['sequences']})")
        for line in finding.get("shortest", ()):
            say(f"    {line}")
    return 1 if page["findings"] else 0


def campaign(home: Path, pool: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run all sequences in processes and write the result as they end."""
    start, done = time.monotonic(), list[dict[str, Any]]()
    page: dict[str, Any] = {}
    numbers = range(arguments.sequences)
    context = multiprocessing.get_context("fork")
    prepare()  # before the fork, so that everything is imported once
    with context.Pool(
        arguments.processes, _start_worker, (home, pool, arguments.seed, arguments.shorten)
    ) as workers:
        for result in workers.imap_unordered(_run_one, numbers, chunksize=1):
            done.append(result)
            page = summary(done, arguments.seed, round(time.monotonic() - start))
            if len(done) % 10 == 0 or len(done) == len(numbers):
                write_result(arguments.out, page | {"finished": len(done) == len(numbers)})
                kinds = len(page["findings"])
                say(f"{len(done)} sequences, {page['seconds']} s, {kinds} kinds of findings")
    return page | {"finished": True}


def summary(done: Sequence[dict[str, Any]], seed: int, seconds: int) -> dict[str, Any]:
    """The result of all sequences.

    >>> outcomes = {"train": {"equal": 1, "rejected": 1}}
    >>> one = {"number": 3, "commands": 2, "outcomes": outcomes, "findings": []}
    >>> page = summary([one], seed=0, seconds=9)
    >>> page["outcomes"], page["by_command"]
    ({'equal': 1, 'rejected': 1}, {'train': {'equal': 1, 'rejected': 1}})
    """
    by_command: dict[str, Counter[str]] = {}
    for one in done:
        for verb, counts in one["outcomes"].items():
            by_command.setdefault(verb, Counter()).update(counts)
    kinds = Counter(
        (finding["kind"], finding["verb"]) for one in done for finding in one["findings"]
    )
    findings = []
    for (kind, verb), count in kinds.most_common():
        same = [
            (one, finding)
            for one in sorted(done, key=lambda one: one["number"])
            for finding in one["findings"]
            if (finding["kind"], finding["verb"]) == (kind, verb)
        ]
        short = min(
            (finding["shortest"] for _, finding in same if "shortest" in finding),
            key=len,
            default=None,
        )
        findings.append(
            {"kind": kind, "verb": verb, "count": count, "what": f"{verb}: {same[0][1]['what']}"}
            | {"sequences": list(dict.fromkeys(one["number"] for one, _ in same))[:5]}
            | ({"shortest": short} if short else {})
        )
    total = sum(by_command.values(), Counter[str]())
    return {
        "seed": seed,
        "sequences": len(done),
        "actions": LENGTH * len(done),
        "commands": sum(one["commands"] for one in done),
        "seconds": seconds,
        "outcomes": dict(sorted(total.items())),
        "by_command": {verb: dict(sorted(by_command[verb].items())) for verb in sorted(by_command)},
        "findings": findings,
    }


# ------------------------------------------------------------------------------------- one sequence


_worker: Worker | None = None


def _start_worker(home: Path, pool: Path, seed: int, shorten: int) -> None:
    global _worker
    _worker = Worker(home, pool, seed, shorten)


def _run_one(number: int) -> dict[str, Any]:
    if _worker is None:
        raise RuntimeError("the process has no worker")
    return _worker.run(number)


class Worker:
    """A process with its own folder that runs one sequence after another."""

    def __init__(self, home: Path, pool: Path, seed: int, shorten: int = 0) -> None:
        self.place, self.pool, self.seed, self.shorten = (
            home / f"worker-{os.getpid()}",
            pool,
            seed,
            shorten,
        )
        self.place.mkdir()
        self.fresh = Fresh(self.place / "fresh")
        self.shortened = Counter[tuple[str, str]]()

    def run(self, number: int) -> dict[str, Any]:
        """Run a sequence, and shorten it once for each kind of finding."""
        steps = sequence(self.seed, number)
        world = self.play(steps)
        findings = [finding.as_page() for finding in world.findings]
        for finding in findings:
            kind = (finding["kind"], finding["verb"])
            if self.shortened[kind] < self.shorten:
                self.shortened[kind] += 1
                finding["shortest"] = self.shortest(steps, kind)
        return {
            "number": number,
            "commands": world.commands,
            "outcomes": world.outcomes,
            "findings": findings,
        }

    def play(self, steps: Iterable[tuple[str, str]], loud: bool = False) -> World:
        """Run some actions from the start, and repeat the last commands at the end."""
        home = self.place / "home"
        shutil.rmtree(home, ignore_errors=True)
        world = World(home, self.pool, self.fresh, self.seed, loud)
        for name, seed in steps:
            world.act(name, ACTIONS[name], Random(seed))
        world.ask_again()
        return world

    def shortest(self, steps: Sequence_, kind: tuple[str, str]) -> list[str]:
        """The log of the sequence without the actions that the finding does not need."""
        kept = list(steps)
        for step in reversed(steps):
            fewer = [one for one in kept if one != step]
            if any((finding.kind, finding.verb) == kind for finding in self.play(fewer).findings):
                kept = fewer
        world = self.play(kept)
        last = next(
            (finding for finding in world.findings if (finding.kind, finding.verb) == kind), None
        )
        return [*world.log[: last.after if last else None], *([f"-> {last.what}"] if last else [])]


def sequence(seed: int, number: int) -> Sequence_:
    """The actions of a sequence; most start with `encode` and a command that needs bags.

    >>> sequence(0, 17) == sequence(0, 17) != sequence(0, 18)
    True
    >>> len(sequence(0, 17))
    8
    """
    random = Random(f"{seed} {number}")
    names = random.choices(list(WEIGHTS), list(WEIGHTS.values()), k=LENGTH)
    if random.random() < 0.9:
        names[0] = "encode"
    if random.random() < 0.7:
        names[1] = random.choice(COMMANDS)
    return [(name, f"{seed} {number} {place}") for place, name in enumerate(names)]


def show(worker: Worker, number: int) -> int:
    """Repeat one sequence and print it."""
    steps = sequence(worker.seed, number)
    world = worker.play(steps, loud=True)
    for finding in world.findings:
        say(f"FOUND {json.dumps(finding.as_page(), indent=1)}")
        for line in worker.shortest(steps, (finding.kind, finding.verb)):
            say(f"    {line}")
    return 1 if world.findings else 0


if __name__ == "__main__":
    sys.exit(main())
