"""Full disks, changed clocks, locks, other processes.   python campaign/faults.py --seed 0

Faults are real where the machine allows it: a full disk is a small tmpfs, a read-only folder is a
read-only mount. A fault that cannot be created is skipped with the reason. The command has to
succeed or end with an error of scmil that says what to do, and after the fault is removed the same
command has to complete the work. The result is `results/faults.json`.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from shared import RESULTS, paint_cohort, say, write_result
from whole import what_is_wrong

SLIDES, SIDE_PX = 6, 1000
LOCK_FILE = """
import h5py, sys
with h5py.File(sys.argv[1], "r+"):
    print("locked", flush=True)
    input()
"""
FAULTS: dict[str, Callable[[Path], str]] = {}


class Skip(Exception):
    """The fault cannot be created on this machine."""


def fault(name: str) -> Callable[[Callable[[Path], str]], Callable[[Path], str]]:
    """Register a fault: a function of a folder with `slides/` that describes what happened."""

    def add(function: Callable[[Path], str]) -> Callable[[Path], str]:
        FAULTS[name] = function
        return function

    return add


def main() -> int:
    """Create the faults, write the result, and return 1 if a check failed."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--only", choices=FAULTS, nargs="+", default=list(FAULTS))
    options.add_argument("--slides", type=int, default=SLIDES)
    options.add_argument("--out", type=Path, default=RESULTS / "faults.json")
    arguments = options.parse_args()
    import torch

    # A thread pool does not survive a fork: the child would wait for it forever.
    torch.set_num_threads(1)
    found = []
    with tempfile.TemporaryDirectory(prefix="faults") as folder:
        paint_cohort(Path(folder) / "slides", arguments.slides, SIDE_PX, arguments.seed)
        for name in arguments.only:
            found.append(try_fault(name, Path(folder)))
            say("{fault}: {outcome}. {words}".format(**found[-1]))
    write_result(arguments.out, {"seed": arguments.seed, "faults": found})
    return 1 if any(one["outcome"] == "failed" for one in found) else 0


def try_fault(name: str, home: Path) -> dict[str, Any]:
    """Create a fault in its own folder and return the outcome."""
    own, start = home / name.replace(" ", "-"), time.monotonic()
    own.mkdir()
    (own / "slides").symlink_to(home / "slides")
    try:
        outcome, words = "stood", FAULTS[name](own)
    except Skip as reason:
        outcome, words = "skipped", str(reason)
    except Exception:
        outcome, words = "failed", traceback.format_exc(limit=-3)
    return {
        "fault": name,
        "outcome": outcome,
        "seconds": round(time.monotonic() - start, 1),
        "words": words,
    }


# ------------------------------------------------------------------------------------------ helpers


def count(home: Path) -> int:
    """The number of slides."""
    return len(list((home / "slides").glob("*.svs")))


def encoder() -> Any:
    """An encoder of mean colours, since only the code around it is tested."""
    from torch import nn

    from scmil.encoding.encoders import Encoder

    network = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten())
    return Encoder("pixels", 48, network, "none", "none", mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


def slides_to_bags(home: Path, work: Path, retry_failed: bool = False) -> Any:
    """Tile and encode; the outcome of the encoding."""
    from scmil.encoding.cohort import encode_slides, find_cohort, tile_slides

    tile_slides(find_cohort(home / "slides"), work, retry_failed=retry_failed)
    return encode_slides(work, encoder(), retry_failed=retry_failed)


def expect_error(action: Callable[[], Any], *kinds: type[Exception]) -> str:
    """The message of the error that an action has to raise."""
    try:
        action()
    except kinds as error:
        return str(error)
    raise AssertionError("no error was raised")


def check(holds: bool, claim: str) -> None:
    """Check a claim; `assert` has no effect under -O."""
    if not holds:
        raise AssertionError(claim)


@contextmanager
def mounted(place: Path, options: str) -> Iterator[None]:
    """A separate disk in memory."""
    place.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True
    ).returncode:
        raise Skip("a tmpfs cannot be mounted: the permission is missing")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def remount(place: Path, options: str) -> None:
    """Change the options of a mounted disk."""
    subprocess.run(["mount", "-o", f"remount,{options}", place], check=True)


def in_processes(count: int, action: Callable[[int], None]) -> None:
    """Run an action in several processes at once; all of them have to succeed."""
    children = []
    for number in range(count):
        child = os.fork()
        if not child:
            status = 1
            try:
                action(number)
                status = 0
            except BaseException:
                traceback.print_exc()
            os._exit(status)
        children.append(child)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    check(not any(statuses), f"processes ended with {statuses}")


# ------------------------------------------------------------------------------------------- faults


@fault("full disk")
def full_disk(home: Path) -> str:
    """The disk fills up during the work; with more space the rest is completed."""
    from scmil.errors import DiskFullError

    work = home / "disk" / "work"
    with mounted(home / "disk", "size=160k"):
        words = expect_error(lambda: slides_to_bags(home, work), DiskFullError)
        check("No space left" in words, words)
        check(not what_is_wrong(work), f"incomplete files: {what_is_wrong(work)}")
        remount(home / "disk", "size=64m")
        outcome = slides_to_bags(home, work)
        check(len(outcome.done) + len(outcome.kept) == count(home), str(outcome))
    return f"an error message, no incomplete file; with more space: {outcome}"


@fault("read-only folder")
def read_only(home: Path) -> str:
    """Nothing can be written: an error before any work."""
    from scmil.errors import OutputError

    with mounted(home / "disk", "size=64m"):
        remount(home / "disk", "ro")
        words = expect_error(lambda: slides_to_bags(home, home / "disk" / "work"), OutputError)
        check("Cannot write to" in words, words)
        remount(home / "disk", "rw")
        outcome = slides_to_bags(home, home / "disk" / "work")
        check(len(outcome.done) == count(home), str(outcome))
    return f"an error before any work; writable again: {outcome}"


@fault("vanished file")
def vanished(home: Path) -> str:
    """A slide vanishes after tiling, and a bag after listing: only these fail."""
    from scmil.bags.formats import open_bags
    from scmil.core.jobs.failure_log import FailureLog
    from scmil.encoding.cohort import bags_folder, encode_slides, find_cohort, tile_slides
    from scmil.errors import DataError

    slides, work = home / "copies", home / "work"
    slides.mkdir()
    for path in (home / "slides").glob("*.svs"):
        (slides / path.name).write_bytes(path.read_bytes())
    tile_slides(find_cohort(slides), work)
    gone = sorted(slides.iterdir())[0]
    content = gone.read_bytes()
    gone.unlink()
    outcome = encode_slides(work, encoder())
    check(outcome.failed == (gone.stem,) and len(outcome.done) == count(home) - 1, str(outcome))
    check("no such file" in FailureLog(work).read()[0].cause.lower(), str(FailureLog(work).read()))
    gone.write_bytes(content)
    check(
        len(encode_slides(work, encoder(), retry_failed=True).done) == 1,
        "the restored slide was not encoded",
    )
    bags = open_bags(bags_folder(work, "pixels"))
    (bags_folder(work, "pixels") / f"{bags.ids[0]}.h5").unlink()
    words = expect_error(lambda: bags[0], DataError)
    check(bags.ids[0] in words and len(bags[1].features) > 0, words)
    return f"the others are encoded, the cause is in the failure log; restored: {outcome}, then 1"


@fault("clock that jumps back")
def clock(home: Path) -> str:
    """Files from the future and from 1970, and a clock in 1980: completed work stays completed."""
    import scmil.core.jobs.failure_log as log_module

    first = slides_to_bags(home, home / "work")
    for number, path in enumerate(sorted((home / "work").rglob("*"))):
        at = 4_000_000_000 if number % 2 else 0
        os.utime(path, (at, at))

    class Early(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime(1980, 1, 1, tzinfo=tz)

    real, real_time = log_module.datetime, time.time  # type: ignore[attr-defined]
    log_module.datetime, time.time = Early, lambda: 0.0  # type: ignore[attr-defined]
    try:
        second = slides_to_bags(home, home / "work")
        (home / "work" / "bags" / "pixels" / f"{first.done[0]}.h5").unlink()
        third = slides_to_bags(home, home / "work")
    finally:
        log_module.datetime, time.time = real, real_time  # type: ignore[attr-defined]
    check(len(second.kept) == count(home), str(second))
    check(third.done == first.done[:1] and len(third.kept) == count(home) - 1, str(third))
    return f"{second}; after one bag was deleted: {third}"


@fault("two to eight processes on one folder")
def processes(home: Path) -> str:
    """Each slide is encoded by one process, and the bags equal those of a single process."""
    from scmil.encoding.cohort import encode_slides, find_cohort, tile_slides

    slides_to_bags(home, home / "alone")
    expected = {
        path.name: path.read_bytes() for path in (home / "alone" / "bags" / "pixels").glob("*.h5")
    }
    for several in (2, 4, 8):
        work = home / f"work-{several}"

        def both(number: int, work: Path = work) -> None:
            tile_slides(find_cohort(home / "slides"), work)
            outcome = encode_slides(work, encoder())
            check(not outcome.failed and not outcome.taken, str(outcome))
            (work / f"done-{number}.txt").write_text(" ".join(outcome.done))

        in_processes(several, both)
        done = [word for path in work.glob("done-*.txt") for word in path.read_text().split()]
        check(
            sorted(done) == sorted(Path(name).stem for name in expected),
            f"{several} processes encoded {sorted(done)}",
        )
        actual = {path.name: path.read_bytes() for path in (work / "bags" / "pixels").glob("*.h5")}
        check(actual == expected, f"{several} processes: other bags than a single process")
    return f"2, 4 and 8 processes: each of {count(home)} slides encoded once, into the same bytes"


@fault("out of file handles")
def handles(home: Path) -> str:
    """Few handles are left: an error message or none; with enough handles all is completed."""
    from scmil.core.jobs.failure_log import FailureLog
    from scmil.errors import ScmilError

    # Imports everything, so that imports need no handles below.
    first = slides_to_bags(home, home / "before")
    check(len(first.done) == count(home), str(first))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    outcomes = set()
    for spare in range(12):
        lowest = os.open(os.devnull, os.O_RDONLY)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + spare, hard))
        try:
            outcome = slides_to_bags(home, home / f"work-{spare}")
            check(not outcome.bugs, f"{spare} handles: {FailureLog(home / f'work-{spare}').read()}")
            outcomes.add("written to the failure log" if outcome.failed else "done")
        except ScmilError as error:
            outcomes.add(
                "error: "
                + ("too many open files" if "oo many open files" in str(error) else str(error))
            )
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        again = slides_to_bags(home, home / f"work-{spare}", retry_failed=True)
        check(
            len(again.done) + len(again.kept) == count(home),
            f"{spare} handles, then enough: {again}",
        )
    return f"with 0 to 11 handles: {'; '.join(sorted(outcomes))}; with enough, all is completed"


@fault("an HDF5 file that another process has locked")
def locked(home: Path) -> str:
    """A bag that another program writes is rejected by name, and read when that has ended."""
    from scmil.bags.hdf5 import read_bag
    from scmil.encoding.cohort import bags_folder
    from scmil.errors import DataError

    slides_to_bags(home, home / "work")
    path = sorted(bags_folder(home / "work", "pixels").glob("*.h5"))[0]
    command = [sys.executable, "-c", LOCK_FILE, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        if not other.stdout or other.stdout.readline().strip() != "locked":
            raise Skip("HDF5 has no locks on this file system")
        words = expect_error(lambda: read_bag(path), DataError)
        check(path.name in words and "lock" in words, words)
        outcome = slides_to_bags(home, home / "work")
        other.communicate("\n")
    check(len(read_bag(path).features) > 0, "the file cannot be read after it was unlocked")
    return f"rejected by name while locked, read when unlocked; encoding in the meantime: {outcome}"


if __name__ == "__main__":
    sys.exit(main())
