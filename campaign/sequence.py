"""Is every result that of the data as they are now?   python campaign/sequence.py --sequences 500 --seed 0

Random sequences of what users do, in one folder: encode, replace a slide by another of the same name, edit labels, train,
replace bags, predict, compare, draw heatmaps, start the viewer on another folder ... (see `actions.py`). Each command that
gives numbers or pictures is compared with the same command on a copy of its inputs as they are now, in a new folder. One
of these is expected: the same numbers and pixels, or a nonzero exit code with a message. A finding is anything else:

    stale      a number or a picture is not that of a fresh run
    missing    the command ends with 0, and some of a fresh run's results are not there
    accepted   the command ends with 0, and a fresh run is rejected
    silent     a nonzero exit code without a message
    traceback  an exception that is not one of scmil's
    overwrote  a file that the user made was changed or deleted
    hang       it took longer than a minute

At the end of a sequence the last command of each kind is run once more. `--only 17` does sequence 17 again and prints it.
The result is `results/sequence.json`.
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
Sequence_ = list[tuple[str, str]]  # actions by name, each with the seed of its own choices


def main() -> int:
    """Do the sequences, write the result, and say whether something was found."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--sequences", type=int, default=500)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--only", type=int, help="Do this sequence alone, and print what is done.")
    options.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options.add_argument("--shorten", type=int, default=1, help="Of each kind of finding, shorten so many sequences.")
    options.add_argument("--out", type=Path, default=RESULTS / "sequence.json")
    asked = options.parse_args()
    place = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="sequence-", dir=place) as home:
        pool = make_pool(Path(home) / "pool", asked.seed)
        if asked.only is not None:
            prepare()
            return show(Worker(Path(home), pool, asked.seed), asked.only)
        page = campaign(Path(home), pool, asked)
    say(f"{page['sequences']} sequences, {page['commands']} commands in {page['seconds']} s: {page['outcomes']}")
    for finding in page["findings"]:
        say(f"FOUND {finding['count']} x {finding['kind']}: {finding['what']} (sequences {finding['sequences']})")
        for line in finding.get("shortest", ()):
            say(f"    {line}")
    return 1 if page["findings"] else 0


def campaign(home: Path, pool: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """All sequences, dealt to processes; the page of results is written as they end."""
    start, done = time.monotonic(), list[dict[str, Any]]()
    page: dict[str, Any] = {}
    numbers = range(asked.sequences)
    context = multiprocessing.get_context("fork")
    prepare()  # before the fork: all is imported once
    with context.Pool(asked.processes, _begin, (home, pool, asked.seed, asked.shorten)) as workers:
        for result in workers.imap_unordered(_one, numbers, chunksize=1):
            done.append(result)
            page = summary(done, asked.seed, round(time.monotonic() - start))
            if len(done) % 10 == 0 or len(done) == len(numbers):
                write_result(asked.out, page | {"finished": len(done) == len(numbers)})
                say(f"{len(done)} sequences, {page['seconds']} s, {len(page['findings'])} kinds of findings")
    return page | {"finished": True}


def summary(done: Sequence[dict[str, Any]], seed: int, seconds: int) -> dict[str, Any]:
    """One page of all sequences.

    >>> one = {"number": 3, "commands": 2, "outcomes": {"train": {"equal": 1, "rejected": 1}}, "findings": []}
    >>> page = summary([one], seed=0, seconds=9)
    >>> page["outcomes"], page["by_command"]
    ({'equal': 1, 'rejected': 1}, {'train': {'equal': 1, 'rejected': 1}})
    """
    by_command: dict[str, Counter[str]] = {}
    for one in done:
        for verb, counts in one["outcomes"].items():
            by_command.setdefault(verb, Counter()).update(counts)
    kinds = Counter((finding["kind"], finding["verb"]) for one in done for finding in one["findings"])
    findings = []
    for (kind, verb), count in kinds.most_common():
        same = [
            (one, finding)
            for one in sorted(done, key=lambda one: one["number"])
            for finding in one["findings"]
            if (finding["kind"], finding["verb"]) == (kind, verb)
        ]
        short = min((finding["shortest"] for _, finding in same if "shortest" in finding), key=len, default=None)
        findings.append(
            {"kind": kind, "verb": verb, "count": count, "what": f"{verb}: {same[0][1]['what']}"}
            | {"sequences": list(dict.fromkeys(one["number"] for one, _ in same))[:5]}
            | ({"shortest": short} if short else {})
        )
    total = sum(by_command.values(), Counter[str]())
    return {
        "seed": seed, "sequences": len(done), "actions": LENGTH * len(done), "commands": sum(one["commands"] for one in done),
        "seconds": seconds, "outcomes": dict(sorted(total.items())),
        "by_command": {verb: dict(sorted(by_command[verb].items())) for verb in sorted(by_command)}, "findings": findings,
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------------ one sequence


_worker: Worker | None = None


def _begin(home: Path, pool: Path, seed: int, shorten: int) -> None:
    global _worker
    _worker = Worker(home, pool, seed, shorten)


def _one(number: int) -> dict[str, Any]:
    if _worker is None:
        raise RuntimeError("a process has not begun")
    return _worker.run(number)


class Worker:
    """A process with a folder of its own, in which it does one sequence after another."""

    def __init__(self, home: Path, pool: Path, seed: int, shorten: int = 0) -> None:
        self.place, self.pool, self.seed, self.shorten = home / f"worker-{os.getpid()}", pool, seed, shorten
        self.place.mkdir()
        self.fresh = Fresh(self.place / "fresh")
        self.shortened = Counter[tuple[str, str]]()

    def run(self, number: int) -> dict[str, Any]:
        """Do a sequence; what is found in it is shortened once for each kind."""
        steps = sequence(self.seed, number)
        world = self.play(steps)
        findings = [finding.as_page() for finding in world.findings]
        for finding in findings:
            kind = (finding["kind"], finding["verb"])
            if self.shortened[kind] < self.shorten:
                self.shortened[kind] += 1
                finding["shortest"] = self.shortest(steps, kind)
        return {"number": number, "commands": world.commands, "outcomes": world.outcomes, "findings": findings}

    def play(self, steps: Iterable[tuple[str, str]], loud: bool = False) -> World:
        """Do some actions from the beginning, and ask for everything once more at the end."""
        home = self.place / "home"
        shutil.rmtree(home, ignore_errors=True)
        world = World(home, self.pool, self.fresh, self.seed, loud)
        for name, seed in steps:
            world.act(name, ACTIONS[name], Random(seed))
        world.ask_again()
        return world

    def shortest(self, steps: Sequence_, kind: tuple[str, str]) -> list[str]:
        """What is left of a sequence if each action without which the finding is still made is left out."""
        kept = list(steps)
        for step in reversed(steps):
            fewer = [one for one in kept if one != step]
            if any((finding.kind, finding.verb) == kind for finding in self.play(fewer).findings):
                kept = fewer
        world = self.play(kept)
        last = next((finding for finding in world.findings if (finding.kind, finding.verb) == kind), None)
        return [*world.log[: last.after if last else None], *([f"-> {last.what}"] if last else [])]


def sequence(seed: int, number: int) -> Sequence_:
    """The actions of a sequence: the first encodes and the second trains more often than not.

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
    """Do one sequence again, and print it."""
    steps = sequence(worker.seed, number)
    world = worker.play(steps, loud=True)
    for finding in world.findings:
        say(f"FOUND {json.dumps(finding.as_page(), indent=1)}")
        for line in worker.shortest(steps, (finding.kind, finding.verb)):
            say(f"    {line}")
    return 1 if world.findings else 0


if __name__ == "__main__":
    sys.exit(main())
