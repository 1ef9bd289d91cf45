"""Plant one-line faults in a copy of the package and check that the tests catch each of them.

    python campaign/mutants.py                       all faults, two processes
    python campaign/mutants.py --only splits threshold     those whose name contains a word
    python campaign/mutants.py --list                places only: no test runs

A fault is a place, found by an expression that occurs once below a package, its replacement, and
the tests that must fail (mutants.toml). Every test that caught a fault has to pass without one. The
working tree is never changed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
LIST = ROOT / "campaign" / "mutants.toml"
RESULT = ROOT / "campaign" / "results" / "mutants.json"
SECONDS = 600  # the tests of one fault; they take a few
CAUGHT, SURVIVED = "caught", "survived"
CRASHED, ANOTHER_PACKAGE = 98, 99  # exit codes beside those of pytest
# Loaded once and inherited by every process that runs tests; none of them imports scmil.
PRELOADED = (
    "torch",
    "numpy",
    "h5py",
    "pytest",
    "scipy.stats",
    "torch._dynamo",
    "sklearn.linear_model",
)


class Mutant(NamedTuple):
    """A fault: `code` below src/scmil/`package` becomes `replacement`, and one of `tests` fails."""

    name: str
    package: str
    code: str
    replacement: str
    tests: tuple[str, ...]


class Outcome(NamedTuple):
    """The outcome of a fault: its place, the first test that failed, and the duration."""

    mutant: Mutant
    state: str
    place: str
    caught_by: str
    seconds: float


def main() -> int:
    """Run the faults, write the result, and return 1 unless all are caught."""
    options = _arguments()
    every = read_mutants()
    chosen = [m for m in every if not options.only or any(w in m.name for w in options.only)]
    lost = {mutant.name: problem for mutant in chosen if (problem := find_problem(mutant))}
    for name, problem in lost.items():
        print(f"NOT FOUND  {name}: {problem}")
    if options.list:
        print(f"{len(chosen) - len(lost)} of {len(chosen)} faults have their place")
        return int(bool(lost))
    _preload()
    started = time.monotonic()
    found = [mutant for mutant in chosen if mutant.name not in lost]
    with tempfile.TemporaryDirectory(prefix="scmil-mutants-") as home:
        copies = _make_copies(Path(home), options.jobs)
        outcomes = _run_all(found, copies)
        broken = _run_without_faults(outcomes, copies)
    missed = [outcome for outcome in outcomes if outcome.state != CAUGHT]
    caught = len(outcomes) - len(missed)
    print(f"{caught} of {len(chosen)} faults are caught, in {time.monotonic() - started:.0f} s")
    for test in broken:
        print(f"FAILS WITHOUT A FAULT  {test}")
    if not options.only or options.out != RESULT:
        _write(options.out, chosen, outcomes, lost, broken, time.monotonic() - started)
    return int(bool(missed or lost or broken))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--list", action="store_true", help="find the places only")
    parser.add_argument("--out", type=Path, default=RESULT)
    return parser.parse_args()


# ------------------------------------------------------------------------------ where faults go


def read_mutants(path: Path = LIST) -> list[Mutant]:
    """The faults of the list; a name begins with the package."""
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    return [
        Mutant(
            f"{row['package'].partition('/')[0]}: {row['name']}",
            row["package"],
            row["code"],
            row["replacement"],
            tuple(row["tests"]),
        )
        for row in rows
    ]


def find_problem(mutant: Mutant) -> str | None:
    """Why a fault cannot be planted or has no tests; None if all is well."""
    places = find_places(mutant)
    if len(places) != 1:
        where = ", ".join(str(path.relative_to(ROOT)) for path, _ in places) or "no file"
        return f"{mutant.code!r} is expected once below {mutant.package}, and is in {where}"
    missing = [test for test in mutant.tests if not (ROOT / "tests" / test.split("::")[0]).exists()]
    return f"there is no tests/{missing[0]}" if missing else None


def find_places(mutant: Mutant, source: Path = SOURCE) -> list[tuple[Path, re.Match[str]]]:
    """The files and the positions of the expression below the package."""
    top = source / "scmil" / mutant.package
    files = sorted(top.rglob("*.py")) if top.is_dir() else [top.with_suffix(".py")]
    pattern = as_pattern(mutant.code)
    return [(path, match) for path in files for match in pattern.finditer(path.read_text())]


def as_pattern(code: str) -> re.Pattern[str]:
    """The expression as a pattern that does not depend on line breaks and trailing commas.

    >>> bool(as_pattern("f(a, b) + 1").search("f(\\n    a,\\n    b,\\n) + 1"))
    True
    """
    tokens = re.findall(r"\w+|\s+|[^\w\s]", code)
    parts = [r"\s*" if token.isspace() else re.escape(token) for token in tokens]
    text = "".join(parts)
    for bracket in "([{":
        text = text.replace(re.escape(bracket), re.escape(bracket) + r"\s*")
    for bracket in ")]}":
        text = text.replace(re.escape(bracket), r"(?:,?\s*)" + re.escape(bracket))
    start = r"\b" if code[0].isidentifier() else ""
    return re.compile(start + text)


# ------------------------------------------------------------------------------------ running tests


def _preload() -> None:
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            __import__(name)
    assert "scmil" not in sys.modules, "every process has to import its own copy of scmil"


def _make_copies(home: Path, count: int) -> list[Path]:
    """Compiled copies of the package, one for each process."""
    import compileall

    first = home / "0"
    shutil.copytree(SOURCE, first, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    compileall.compile_dir(first, quiet=2)
    for number in range(1, count):
        shutil.copytree(first, home / str(number))  # times are kept, so compiled files stay valid
    return [home / str(number) for number in range(count)]


def _run_without_faults(outcomes: Sequence[Outcome], copies: Sequence[Path]) -> list[str]:
    """Repeat the tests that caught a fault without any; the first failure of each process."""
    caught = {outcome.caught_by.partition("[")[0] for outcome in outcomes}
    tests = sorted(test.removeprefix("tests/") for test in caught - {""})
    shares = [tests[number :: len(copies)] for number in range(len(copies))]
    runs = [_start(copy, share, ()) for copy, share in zip(copies, shares, strict=True) if share]
    ended = [_wait_for(run, timeout=SECONDS * 6) for run in runs]
    return [run.first_failure or f"pytest ended with {run.code}" for run in ended if run.code != 0]


def _run_all(mutants: Sequence[Mutant], copies: Sequence[Path]) -> list[Outcome]:
    """Plant each fault in a copy that is free; one process of tests for each copy."""
    waiting, free = list(mutants), list(copies)
    busy: list[tuple[Planted, Running]] = []
    outcomes: dict[str, Outcome] = {}
    while waiting or busy:
        while waiting and free:
            planted = Planted(waiting.pop(0), free.pop())
            busy.append((planted, _start(planted.copy, planted.mutant.tests, ("-x",))))
        for planted, running in list(busy):
            if run := _poll(running, SECONDS):
                busy.remove((planted, running))
                planted.restore()
                free.append(planted.copy)
                outcomes[planted.mutant.name] = _report(planted, run, running)
        time.sleep(0.05)
    return [outcomes[mutant.name] for mutant in mutants]


def _report(planted: Planted, run: TestRun, running: Running) -> Outcome:
    state = {0: SURVIVED, 1: CAUGHT}.get(run.code, f"pytest ended with {run.code}")
    seconds = round(time.monotonic() - running.started, 1)
    outcome = Outcome(planted.mutant, state, planted.place, run.first_failure, seconds)
    mark = "ok" if state == CAUGHT else state.upper()
    print(f"{mark:10} {planted.mutant.name}  {seconds} s  {run.first_failure}", flush=True)
    return outcome


class Planted:
    """A fault in a copy of the package, until `restore` takes it out."""

    def __init__(self, mutant: Mutant, copy: Path) -> None:
        ((self._path, match),) = find_places(mutant, copy)
        self.mutant, self.copy = mutant, copy
        self._text, self._times = self._path.read_text(), self._path.stat()
        line = self._text[: match.start()].count("\n") + 1
        self.place = f"{self._path.relative_to(copy)}:{line}"
        self._compiled = list(self._path.parent.glob(f"__pycache__/{self._path.stem}.*.pyc"))
        for file in self._compiled:
            file.rename(file.with_suffix(".kept"))
        start, end = match.span()
        self._path.write_text(self._text[:start] + mutant.replacement + self._text[end:])

    def restore(self) -> None:
        """Bring the file and its compiled form back."""
        self._path.write_text(self._text)
        os.utime(self._path, ns=(self._times.st_atime_ns, self._times.st_mtime_ns))
        for file in self._compiled:
            file.with_suffix(".kept").rename(file)


class TestRun(NamedTuple):
    """The exit code of pytest, and the first test that failed."""

    code: int
    first_failure: str


class Running(NamedTuple):
    """A process that runs tests."""

    process: int
    report: Path
    started: float


def _start(copy: Path, tests: Sequence[str], options: Sequence[str]) -> Running:
    """Run tests against a copy of the package in a process of their own."""
    report = copy.parent / f"{copy.name}.txt"
    report.unlink(missing_ok=True)
    process = os.fork()
    if process == 0:
        code = CRASHED
        try:
            os.setsid()
            code = _run_here(copy, tests, options, report)
        except BaseException as error:
            report.write_text(repr(error))
        finally:
            os._exit(code)  # nothing of the parent is cleaned up here
    return Running(process, report, time.monotonic())


def _poll(running: Running, timeout: float) -> TestRun | None:
    """What became of the tests; None while they run. After `timeout` seconds they are ended."""
    process, status = os.waitpid(running.process, os.WNOHANG)
    if not process:
        if time.monotonic() - running.started > timeout:
            os.killpg(running.process, signal.SIGKILL)
        return None
    words = running.report.read_text() if running.report.is_file() else ""
    return TestRun(os.waitstatus_to_exitcode(status), words)


def _wait_for(running: Running, timeout: float) -> TestRun:
    while (run := _poll(running, timeout)) is None:
        time.sleep(0.05)
    return run


def _run_here(copy: Path, tests: Sequence[str], options: Sequence[str], report: Path) -> int:
    """In the new process: import from the copy, write no compiled files, run pytest."""
    os.chdir(ROOT)
    # A process in the background ignores the interrupts that some tests send to their children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(PYTHONPATH=str(copy), PYTHONDONTWRITEBYTECODE="1")
    sys.path[:] = [str(copy), *(place for place in sys.path if place != str(SOURCE))]
    sys.dont_write_bytecode = True
    with open(os.devnull, "w") as silence:
        os.dup2(silence.fileno(), 1)
        os.dup2(silence.fileno(), 2)
    import pytest

    paths = [str(ROOT / "tests" / test) for test in tests]
    plain = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov"]
    code = int(pytest.main([*plain, *options, *paths], plugins=[_FirstFailure(report)]))
    source = getattr(sys.modules.get("scmil"), "__file__", None) or ""
    return code if source.startswith(str(copy)) else ANOTHER_PACKAGE


class _FirstFailure:
    """A plugin of pytest that writes down which test failed first."""

    def __init__(self, report: Path) -> None:
        self.report = report

    def pytest_runtest_logreport(self, report: object) -> None:
        """Called by pytest after each phase of each test."""
        if getattr(report, "failed", False) and not self.report.exists():
            self.report.write_text(str(getattr(report, "nodeid", "")))


# --------------------------------------------------------------------------------------- the result


def _write(
    path: Path,
    chosen: Sequence[Mutant],
    outcomes: Sequence[Outcome],
    lost: dict[str, str],
    broken: Sequence[str],
    seconds: float,
) -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    from shared import write_result

    write_result(
        path,
        {
            "faults": len(chosen),
            "caught": sum(outcome.state == CAUGHT for outcome in outcomes),
            "seconds": round(seconds),
            "not_found": lost,
            "failing_without_a_fault": list(broken),
            "outcomes": [
                {
                    "name": outcome.mutant.name,
                    "package": outcome.mutant.package.partition("/")[0],
                    "place": outcome.place,
                    "code": outcome.mutant.code,
                    "replacement": outcome.mutant.replacement,
                    "state": outcome.state,
                    "caught_by": outcome.caught_by,
                }
                for outcome in outcomes
            ],
        },
    )


if __name__ == "__main__":
    sys.exit(main())
