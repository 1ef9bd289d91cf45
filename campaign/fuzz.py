"""Does a damaged or hostile file ever do more than be refused?   python campaign/fuzz.py --inputs 200000 --seed 0

Good files of every kind are changed at random (see `mutations.py`) and read (see `targets.py`), in processes that may take
2 GiB beside what they had at the start. For each input one of these is expected: it is read, or it is refused with an error
of scmil that names the file. A finding is anything else:

    crash     the process died
    hang      it took longer than 10 seconds
    memory    it asked for more than 2 GiB
    error     an exception that is none of scmil's
    nameless  a refusal that does not say which file

`--only slide --case 812` does one input again and shows what happens. The result is `results/fuzz.json`.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import logging
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from mutations import mutated
from shared import RESULTS, say, write_result
from targets import TARGETS, Target

BROKEN = 77  # exit code of a child whose own code fails
EXAMPLES = 3  # of each finding
Outcome = tuple[str, str]  # ok, refused or a kind of finding; where and what


class Limits(NamedTuple):
    """What an input may take: seconds of work, bytes beside those at the start, seconds by the clock in a library."""

    seconds: int = 10
    memory: int = 2 * 2**30
    silence: int = 120


class Task(NamedTuple):
    """All inputs of a kind: how a case of it is built, and the limits."""

    name: str
    seed: int
    count: int
    build: Callable[[str, Path], Case]
    limits: Limits


def main() -> int:
    """Fuzz, write the result, and say whether something was found."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--inputs", type=int, default=200_000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--only", choices=TARGETS, nargs="+")
    options.add_argument("--case", type=int)
    options.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options.add_argument("--out", type=Path, default=RESULTS / "fuzz.json")
    asked = options.parse_args()
    prepare()
    if asked.case is not None:
        return show(asked.only[0], asked.seed, asked.case)
    shares = {name: TARGETS[name].share for name in asked.only or TARGETS}
    page = fuzz(asked.inputs, asked.seed, shares, asked.processes, asked.out)
    return told(page)


def told(page: dict[str, Any]) -> int:
    """Say what was found; the exit code."""
    say(f"{page['inputs']} inputs in {page['seconds']} s: {page['outcomes']}")
    for finding in page["findings"]:
        say(
            f"FOUND {finding['count']} x {finding['target']} {finding['kind']}: {finding['what']} (cases {finding['cases']})"
        )
    return 1 if page["findings"] else 0


def prepare() -> None:
    """Read every good file once, so that all is imported and known to be good; keep quiet what is said of damaged ones."""
    import torch

    torch.set_num_threads(1)  # a thread pool would not survive the fork, and a child would wait for it for ever
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    for name in TARGETS:
        with tempfile.TemporaryDirectory() as home:
            Case(name, Path(home)).check()


def fuzz(
    inputs: int,
    seed: int,
    shares: Mapping[str, float],
    processes: int,
    out: Path,
    build: Callable[[str, Path], Case] | None = None,
    limits: Limits = Limits(),  # noqa: B008
) -> dict[str, Any]:
    """Read so many inputs, shared out over the kinds; what became of them, written after each kind."""
    start, total, names = time.monotonic(), sum(shares.values()), list(shares)
    counts = {name: round(inputs * shares[name] / total) for name in names}
    order = sorted(names, key=lambda name: -counts[name])
    tasks = [Task(name, seed, counts[name], build or Case, limits) for name in order]
    found: dict[str, list[tuple[str, str, int]]] = {}
    page: dict[str, Any] = {}
    with multiprocessing.get_context("fork").Pool(processes, maxtasksperchild=1) as pool:
        for name, results in pool.imap_unordered(_guarded, tasks, chunksize=1):
            found[name] = results
            page = _page(found, seed, round(time.monotonic() - start)) | {"finished": len(found) == len(names)}
            write_result(out, page)
    return page


def _page(found: dict[str, list[tuple[str, str, int]]], seed: int, seconds: int) -> dict[str, Any]:
    outcomes = {name: dict(Counter(kind for kind, _, _ in found[name])) for name in sorted(found)}
    return {
        "seed": seed, "inputs": sum(map(len, found.values())), "seconds": seconds,
        "outcomes": dict(sum((Counter(each) for each in outcomes.values()), Counter[str]())),
        "by_kind_of_file": outcomes, "findings": list(_findings(found)),
    }  # fmt: skip


def _findings(found: dict[str, list[tuple[str, str, int]]]) -> Iterator[dict[str, Any]]:
    for target, cases in found.items():
        kinds = Counter((kind, what) for kind, what, _ in cases if kind not in ("ok", "refused"))
        for (kind, what), count in kinds.most_common():
            examples = [number for *same, number in cases if same == [kind, what]][:EXAMPLES]
            yield {"target": target, "kind": kind, "what": what, "count": count, "cases": examples}


# ------------------------------------------------------------------------------------------------- one kind, many inputs


def _guarded(task: Task) -> tuple[str, list[tuple[str, str, int]]]:
    """All inputs of a kind. They are read by a child process; if it dies or hangs, that is found, and another goes on."""
    name, count = task.name, task.count
    results: list[tuple[str, str, int]] = []
    home = Path(tempfile.mkdtemp(prefix=f"fuzz-{name}-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        while len(results) < count:
            results += _one_child(task, len(results), home)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    say(f"{name}: {dict(Counter(kind for kind, _, _ in results))}")
    return name, results


def _one_child(task: Task, first: int, home: Path) -> list[tuple[str, str, int]]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            _child(task, first, home, writing)
        except BaseException:
            traceback.print_exc()
        os._exit(BROKEN)
    os.close(writing)
    results, hung = [], False
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        for line in _lines(pipe, task.limits.silence):
            if line is None:  # no answer for too long: the alarm could not interrupt a library
                os.kill(child, signal.SIGKILL)
                hung = True
                break
            kind, what = json.loads(line)
            results.append((kind, what, first + len(results)))
    _, status = os.waitpid(child, 0)
    if status >> 8 == BROKEN:
        raise RuntimeError(f"the fuzzer itself is broken at {task.name}: see above")
    if first + len(results) < task.count:
        died = f"signal {signal.Signals(status & 127).name}" if status & 127 else f"exit {status >> 8}"
        results.append(
            ("hang", "in a library", len(results) + first) if hung else ("crash", died, len(results) + first)
        )
    return results


def _lines(pipe: Any, silence: float) -> Iterator[bytes | None]:
    import select

    kept = b""
    while True:
        if not select.select([pipe], [], [], silence)[0]:
            yield None
        content = pipe.read(65536)
        if not content:
            return
        *whole, kept = (kept + content).split(b"\n")
        yield from whole


def _child(task: Task, first: int, home: Path, writing: int) -> None:
    """Read inputs until they are all read; one line for each goes back."""
    os.environ["SCMIL_CACHE"] = str(home)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit_memory(task.limits.memory)
    signal.signal(signal.SIGPROF, _too_slow)  # seconds of work: others may be busy on this machine, too
    folder = home / f"from-{first}"
    with os.fdopen(writing, "w", buffering=1) as pipe:
        folder.mkdir()
        case = task.build(task.name, folder)
        for number in range(first, task.count):
            random = Random(f"{task.seed} {task.name} {number}")
            pipe.write(json.dumps(case.outcome(random, task.limits.seconds)) + "\n")
    os._exit(0)


def limit_memory(more: int) -> None:
    """So much more than what is in use now, and no more."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more, used + more))


def _too_slow(*_: object) -> None:
    raise TooSlow


class TooSlow(BaseException):
    """Not an Exception: nobody but us should catch it."""


class Case:
    """A good folder, of which one file at a time is changed and put right again."""

    targets: Mapping[str, Target] = TARGETS

    def __init__(self, name: str, folder: Path) -> None:
        self.target, self.folder = self.targets[name], folder
        self.target.build(folder)
        self.good = {path: path.read_bytes() for path in sorted(folder.glob(self.target.files)) if path.is_file()}

    def check(self) -> None:
        """Read the good files: they are good."""
        for file in self.good:
            self.target.read(self.folder, file)

    def make(self, random: Random) -> tuple[Path, bytes, str]:
        """A file, what it is to be, and what is odd about it."""
        file = random.choice(list(self.good))
        like = [content for path, content in self.good.items() if path.suffix == file.suffix]
        return file, mutated(like, random), ""

    def outcome(self, random: Random, seconds: float) -> Outcome:
        """What becomes of one changed file."""
        file, content, _ = self.make(random)
        file.write_bytes(content)
        try:
            try:
                signal.setitimer(signal.ITIMER_PROF, seconds)
                self.target.read(self.folder, file)
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)  # before the error is judged, which an alarm must not interrupt
        except BaseException as error:
            return judged(error, file, self.folder)
        finally:
            for path, good in self.good.items():
                if path == file or path.name == "model.json":
                    path.write_bytes(good)
        return "ok", ""


def judged(error: BaseException, file: Path, folder: Path) -> Outcome:
    """Whether an exception is a refusal as it should be."""
    from scmil.errors import ScmilError

    where = next((f for f in reversed(traceback.extract_tb(error.__traceback__)) if "/scmil/" in f.filename), None)
    place = f"{Path(where.filename).name}:{where.name}" if where else "?"
    if isinstance(error, TooSlow):
        return "hang", f"too long in {place}"
    if any(_is_memory(cause) for cause in _chain(error)):
        return "memory", place
    if not isinstance(error, ScmilError):
        return "error", f"{type(error).__name__} in {place}"
    named = file.name in str(error) or str(file.parent) in str(error)
    return ("refused", "") if named else ("nameless", f"{type(error).__name__} in {place}: {str(error)[:60]}")


def _is_memory(error: BaseException) -> bool:
    """Whether an error says that there is not enough memory; libraries have their own words for it."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in ("allocate memory", "bad_alloc"))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def show(
    name: str, seed: int, number: int, build: Callable[[str, Path], Case] | None = None, limits: Limits | None = None
) -> int:
    """Do one input again, here, with what it raises."""
    faulthandler.enable()
    case = (build or Case)(name, Path(tempfile.mkdtemp(prefix="fuzz-")))
    file, content, words = case.make(Random(f"{seed} {name} {number}"))
    file.write_bytes(content)
    say(f"{file}, kept for you to look at ({len(content)} bytes{f', {words}' if words else ''})")
    limit_memory((limits or Limits()).memory)
    case.target.read(case.folder, file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
