"""Is a damaged or hostile file always read or rejected?

    python campaign/fuzz.py --inputs 200000 --seed 0

Valid files of every kind are changed at random (`mutations.py`) and read (`targets.py`) in
processes that may allocate 2 GiB in addition to what they have at the start. Each input has to be
read, or rejected with an error of scmil that names the file. Anything else is a finding:

    crash     the process ended
    hang      it took longer than 10 seconds
    memory    it requested more than 2 GiB
    error     an exception that is not an ScmilError
    nameless  a rejection that does not name the file

`--only slide --case 812` repeats one input and shows what happens. The result is
`results/fuzz.json`.
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

from mutations import mutate
from shared import RESULTS, say, write_result
from targets import TARGETS, Target

BROKEN = 77  # exit code of a child whose own code fails
EXAMPLES = 3  # of each finding
Outcome = tuple[str, str]  # ok, refused or a kind of finding; place and description


class Limits(NamedTuple):
    """Limits of an input.

    `seconds` of processor time, `memory` in bytes above that at the start, and `silence`, the
    seconds by the clock after which a process without an answer is killed.
    """

    seconds: int = 10
    memory: int = 2 * 2**30
    silence: int = 120


class Task(NamedTuple):
    """All inputs of a kind, how a case is built, and the limits."""

    name: str
    seed: int
    inputs: int
    build: Callable[[str, Path], Case]
    limits: Limits


def main() -> int:
    """Read the inputs, write the result, and return 1 if there is a finding."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--inputs", type=int, default=200_000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--only", choices=TARGETS, nargs="+")
    options.add_argument("--case", type=int)
    options.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options.add_argument("--out", type=Path, default=RESULTS / "fuzz.json")
    arguments = options.parse_args()
    prepare()
    if arguments.case is not None:
        return show(arguments.only[0], arguments.seed, arguments.case)
    shares = {name: TARGETS[name].share for name in arguments.only or TARGETS}
    page = fuzz(arguments.inputs, arguments.seed, shares, arguments.processes, arguments.out)
    return print_summary(page)


def print_summary(page: dict[str, Any]) -> int:
    """Print the findings and return the exit code."""
    say(f"{page['inputs']} inputs in {page['seconds']} s: {page['outcomes']}")
    for finding in page["findings"]:
        kind = f"{finding['count']} x {finding['target']} {finding['kind']}"
        say(f"FOUND {kind}: {finding['what']} (cases {finding['cases']})")
    return 1 if page["findings"] else 0


def prepare() -> None:
    """Read every valid file once, which imports everything, and silence logs and warnings."""
    import torch

    # A thread pool does not survive a fork: the child would wait for it forever.
    torch.set_num_threads(1)
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
    """Read `inputs` files, distributed over the kinds; the result is written after each kind."""
    start, total, names = time.monotonic(), sum(shares.values()), list(shares)
    counts = {name: round(inputs * shares[name] / total) for name in names}
    order = sorted(names, key=lambda name: -counts[name])
    tasks = [Task(name, seed, counts[name], build or Case, limits) for name in order]
    found: dict[str, list[tuple[str, str, int]]] = {}
    page: dict[str, Any] = {}
    with multiprocessing.get_context("fork").Pool(processes, maxtasksperchild=1) as pool:
        for name, results in pool.imap_unordered(_guarded, tasks, chunksize=1):
            found[name] = results
            page = _page(found, seed, round(time.monotonic() - start)) | {
                "finished": len(found) == len(names)
            }
            write_result(out, page)
    return page


def _page(found: dict[str, list[tuple[str, str, int]]], seed: int, seconds: int) -> dict[str, Any]:
    outcomes = {name: dict(Counter(kind for kind, _, _ in found[name])) for name in sorted(found)}
    totals = sum((Counter(counts) for counts in outcomes.values()), Counter[str]())
    return {
        "seed": seed,
        "inputs": sum(map(len, found.values())),
        "seconds": seconds,
        "outcomes": dict(totals),
        "by_kind_of_file": outcomes,
        "findings": list(_findings(found)),
    }


def _findings(found: dict[str, list[tuple[str, str, int]]]) -> Iterator[dict[str, Any]]:
    for target, cases in found.items():
        kinds = Counter((kind, what) for kind, what, _ in cases if kind not in ("ok", "refused"))
        for (kind, what), count in kinds.most_common():
            examples = [number for *same, number in cases if same == [kind, what]][:EXAMPLES]
            yield {"target": target, "kind": kind, "what": what, "count": count, "cases": examples}


# ------------------------------------------------------------------------------ inputs of one kind


def _guarded(task: Task) -> tuple[str, list[tuple[str, str, int]]]:
    """Read all inputs of a kind in child processes; one that ends or hangs is replaced."""
    name, count = task.name, task.inputs
    results: list[tuple[str, str, int]] = []
    home = Path(
        tempfile.mkdtemp(
            prefix=f"fuzz-{name}-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None
        )
    )
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
    results: list[Any] = []
    hung = False
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        for line in _lines(pipe, task.limits.silence):
            if line is None:  # the alarm cannot interrupt code of a library
                os.kill(child, signal.SIGKILL)
                hung = True
                break
            kind, what = json.loads(line)
            results.append((kind, what, first + len(results)))
    _, status = os.waitpid(child, 0)
    if status >> 8 == BROKEN:
        raise RuntimeError(f"the fuzzer itself failed at {task.name}: see the traceback above")
    if first + len(results) < task.inputs:
        died = (
            f"signal {signal.Signals(status & 127).name}" if status & 127 else f"exit {status >> 8}"
        )
        results.append(
            ("hang", "in a library", len(results) + first)
            if hung
            else ("crash", died, len(results) + first)
        )
    return results


def _lines(pipe: Any, silence: float) -> Iterator[bytes | None]:
    import select

    incomplete = b""
    while True:
        if not select.select([pipe], [], [], silence)[0]:
            yield None
        content = pipe.read(65536)
        if not content:
            return
        *lines, incomplete = (incomplete + content).split(b"\n")
        yield from lines


def _child(task: Task, first: int, home: Path, writing: int) -> None:
    """Read the remaining inputs and send one line for each."""
    os.environ["SCMIL_CACHE"] = str(home)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit_memory(task.limits.memory)
    # Processor time: the machine may be busy with other work.
    signal.signal(signal.SIGPROF, _too_slow)
    folder = home / f"from-{first}"
    with os.fdopen(writing, "w", buffering=1) as pipe:
        folder.mkdir()
        case = task.build(task.name, folder)
        for number in range(first, task.inputs):
            random = Random(f"{task.seed} {task.name} {number}")
            pipe.write(json.dumps(case.outcome(random, task.limits.seconds)) + "\n")
    os._exit(0)


def limit_memory(more: int) -> None:
    """Limit the memory to what is in use now and `more` bytes."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more, used + more))


def _too_slow(*_: object) -> None:
    raise TooSlow


class TooSlow(BaseException):
    """The time limit; not an Exception, so that no reader catches it."""


class Case:
    """A valid folder, of which one file at a time is changed and restored."""

    targets: Mapping[str, Target] = TARGETS

    def __init__(self, name: str, folder: Path) -> None:
        self.target, self.folder = self.targets[name], folder
        self.target.build(folder)
        self.good = {
            path: path.read_bytes()
            for path in sorted(folder.glob(self.target.files))
            if path.is_file()
        }

    def check(self) -> None:
        """Read the valid files, which has to succeed."""
        for file in self.good:
            self.target.read(self.folder, file)

    def make(self, random: Random) -> tuple[Path, bytes, str]:
        """The path of a file, its new content, and a description of the change."""
        file = random.choice(list(self.good))
        like = [content for path, content in self.good.items() if path.suffix == file.suffix]
        return file, mutate(like, random), ""

    def outcome(self, random: Random, seconds: float) -> Outcome:
        """Change one file, read it, and return the outcome."""
        file, content, _ = self.make(random)
        file.write_bytes(content)
        try:
            try:
                signal.setitimer(signal.ITIMER_PROF, seconds)
                self.target.read(self.folder, file)
            finally:
                # The alarm must not interrupt the classification of the error.
                signal.setitimer(signal.ITIMER_PROF, 0)
        except BaseException as error:
            return classify(error, file, self.folder)
        finally:
            for path, good in self.good.items():
                if path == file or path.name == "model.json":
                    path.write_bytes(good)
        return "ok", ""


def classify(error: BaseException, file: Path, folder: Path) -> Outcome:
    """Whether an exception is a rejection that names the file."""
    from scmil.errors import ScmilError

    where = next(
        (f for f in reversed(traceback.extract_tb(error.__traceback__)) if "/scmil/" in f.filename),
        None,
    )
    place = f"{Path(where.filename).name}:{where.name}" if where else "?"
    if isinstance(error, TooSlow):
        return "hang", f"too long in {place}"
    if any(_is_memory(cause) for cause in _chain(error)):
        return "memory", place
    if not isinstance(error, ScmilError):
        return "error", f"{type(error).__name__} in {place}"
    named = file.name in str(error) or str(file.parent) in str(error)
    return (
        ("refused", "")
        if named
        else ("nameless", f"{type(error).__name__} in {place}: {str(error)[:60]}")
    )


def _is_memory(error: BaseException) -> bool:
    """Whether an error reports missing memory, also in the words of a library."""
    return isinstance(error, MemoryError) or any(
        words in str(error) for words in ("allocate memory", "bad_alloc")
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def show(
    name: str,
    seed: int,
    number: int,
    build: Callable[[str, Path], Case] | None = None,
    limits: Limits | None = None,
) -> int:
    """Repeat one input in this process; its exception is not caught."""
    faulthandler.enable()
    case = (build or Case)(name, Path(tempfile.mkdtemp(prefix="fuzz-")))
    file, content, words = case.make(Random(f"{seed} {name} {number}"))
    file.write_bytes(content)
    say(f"{file}: {len(content)} bytes{f', {words}' if words else ''}")
    limit_memory((limits or Limits()).memory)
    case.target.read(case.folder, file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
