"""Does scmil stand what disks, clocks and other processes do?   python campaign/faults.py --seed 0

Each fault is made for real where this machine allows it: a small disk is a tmpfs of that size, a read-only folder one that is
mounted so, other processes are other processes. What cannot be made here is skipped, with the reason. Each fault has to end
in an error of scmil that says what to do, or in no error at all, and when the fault is gone, the same command has to finish
the work. The result is `results/faults.json`.
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
FAULTS: dict[str, Callable[[Path], str]] = {}


class Skip(Exception):
    """This machine does not let us make the fault."""


def fault(name: str) -> Callable[[Callable[[Path], str]], Callable[[Path], str]]:
    """Add a fault to the list. It gets a folder with `slides/`, and says what happened, or fails."""

    def add(function: Callable[[Path], str]) -> Callable[[Path], str]:
        FAULTS[name] = function
        return function

    return add


def main() -> int:
    """Make all faults, and say which of them did harm."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--only", choices=FAULTS, nargs="+", default=list(FAULTS))
    options.add_argument("--slides", type=int, default=SLIDES)
    options.add_argument("--out", type=Path, default=RESULTS / "faults.json")
    asked = options.parse_args()
    import torch

    torch.set_num_threads(1)  # a thread pool would not survive the fork, and a child would wait for it for ever
    found = []
    with tempfile.TemporaryDirectory(prefix="faults") as folder:
        paint_cohort(Path(folder) / "slides", asked.slides, SIDE_PX, asked.seed)
        for name in asked.only:
            found.append(made(name, Path(folder)))
            say("{fault}: {outcome}. {words}".format(**found[-1]))
    write_result(asked.out, {"seed": asked.seed, "faults": found})
    return 1 if any(one["outcome"] == "failed" for one in found) else 0


def made(name: str, home: Path) -> dict[str, Any]:
    """Make a fault, in a folder of its own, and say what became of it."""
    own, start = home / name.replace(" ", "-"), time.monotonic()
    own.mkdir()
    (own / "slides").symlink_to(home / "slides")
    try:
        outcome, words = "stood", FAULTS[name](own)
    except Skip as reason:
        outcome, words = "skipped", str(reason)
    except Exception:
        outcome, words = "failed", traceback.format_exc(limit=-3)
    return {"fault": name, "outcome": outcome, "seconds": round(time.monotonic() - start, 1), "words": words}


# ---------------------------------------------------------------------------------------------------------------- helpers


def count(home: Path) -> int:
    """How many slides there are."""
    return len(list((home / "slides").glob("*.svs")))


def encoder() -> Any:
    """The mean colours of the parts of a tile: the work around it is what is tested."""
    from torch import nn

    from scmil.encoding.encoders import Encoder

    network = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten())
    return Encoder("pixels", 48, network, "none", "none", mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


def slides_to_bags(home: Path, work: Path, retry_failed: bool = False) -> Any:
    """Tile and encode; the outcome of the second."""
    from scmil.encoding.cohort import encode_slides, find_cohort, tile_slides

    tile_slides(find_cohort(home / "slides"), work, retry_failed=retry_failed)
    return encode_slides(work, encoder(), retry_failed=retry_failed)


def refused(action: Callable[[], Any], *kinds: type[Exception]) -> str:
    """The words in which an action is refused; anything else that happens is a failure of the campaign."""
    try:
        action()
    except kinds as error:
        return str(error)
    raise AssertionError("it was not refused")


def check(holds: bool, claim: str) -> None:
    """A claim that the campaign makes; `assert` would be gone under -O."""
    if not holds:
        raise AssertionError(claim)


@contextmanager
def mounted(place: Path, options: str) -> Iterator[None]:
    """A disk of our own, in memory."""
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True).returncode:
        raise Skip("a tmpfs cannot be mounted here: the right to mount is missing")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def remount(place: Path, options: str) -> None:
    """Change the size or the rights of a mounted disk."""
    subprocess.run(["mount", "-o", f"remount,{options}", place], check=True)


def in_processes(count: int, action: Callable[[int], None]) -> None:
    """Do something in several processes at once; all of them have to succeed."""
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


# ----------------------------------------------------------------------------------------------------------------- faults


@fault("full disk")
def full_disk(home: Path) -> str:
    """The disk fills up in the middle; after room is made, the rest is done."""
    from scmil.errors import DiskFullError

    work = home / "disk" / "work"
    with mounted(home / "disk", "size=160k"):
        words = refused(lambda: slides_to_bags(home, work), DiskFullError)
        check("no space is left" in words, words)
        check(not what_is_wrong(work), f"half files: {what_is_wrong(work)}")
        remount(home / "disk", "size=64m")
        outcome = slides_to_bags(home, work)
        check(len(outcome.done) + len(outcome.kept) == count(home), str(outcome))
    return f"refused in words, no half file; with room again: {outcome}"


@fault("read-only folder")
def read_only(home: Path) -> str:
    """Nothing can be written: refused before any work."""
    from scmil.errors import OutputError

    with mounted(home / "disk", "size=64m"):
        remount(home / "disk", "ro")
        words = refused(lambda: slides_to_bags(home, home / "disk" / "work"), OutputError)
        check("cannot be written to" in words, words)
        remount(home / "disk", "rw")
        outcome = slides_to_bags(home, home / "disk" / "work")
        check(len(outcome.done) == count(home), str(outcome))
    return f"refused before any work; writable again: {outcome}"


@fault("vanished file")
def vanished(home: Path) -> str:
    """A slide goes between tiling and encoding, and a bag between listing and reading: each fails alone."""
    from scmil.encoding.cohort import bags_folder, encode_slides, find_cohort, tile_slides
    from scmil.errors import DataError
    from scmil.bags.formats import open_bags
    from scmil.core.jobs.work import Ledger

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
    check("no such file" in Ledger(work).read()[0].cause.lower(), str(Ledger(work).read()))
    gone.write_bytes(content)
    check(len(encode_slides(work, encoder(), retry_failed=True).done) == 1, "the slide that came back was not encoded")
    bags = open_bags(bags_folder(work, "pixels"))
    (bags_folder(work, "pixels") / f"{bags.ids[0]}.h5").unlink()
    words = refused(lambda: bags[0], DataError)
    check(bags.ids[0] in words and len(bags[1].features) > 0, words)
    return f"the others are done, the cause is in the ledger, and when it is back: {outcome}, then 1 made"


@fault("clock that jumps back")
def clock(home: Path) -> str:
    """Files from the future and from 1970, and a clock that says 1980: what is done stays done, and nothing else."""
    import scmil.core.jobs.work as work_module

    first = slides_to_bags(home, home / "work")
    for number, path in enumerate(sorted((home / "work").rglob("*"))):
        at = 4_000_000_000 if number % 2 else 0
        os.utime(path, (at, at))

    class Early(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime(1980, 1, 1, tzinfo=tz)

    real, real_time = work_module.datetime, time.time
    work_module.datetime, time.time = Early, lambda: 0.0  # type: ignore[attr-defined,misc,assignment]
    try:
        second = slides_to_bags(home, home / "work")
        (home / "work" / "bags" / "pixels" / f"{first.done[0]}.h5").unlink()
        third = slides_to_bags(home, home / "work")
    finally:
        work_module.datetime, time.time = real, real_time  # type: ignore[attr-defined,misc]
    check(len(second.kept) == count(home), str(second))
    check(third.done == first.done[:1] and len(third.kept) == count(home) - 1, str(third))
    return f"{second}; after one bag was deleted: {third}"


@fault("two to eight processes on one folder")
def processes(home: Path) -> str:
    """Each slide is encoded by one of them, and all bags are those of a process alone."""
    from scmil.encoding.cohort import encode_slides, find_cohort, tile_slides

    slides_to_bags(home, home / "alone")
    expected = {path.name: path.read_bytes() for path in (home / "alone" / "bags" / "pixels").glob("*.h5")}
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
            sorted(done) == sorted(Path(name).stem for name in expected), f"{several} processes encoded {sorted(done)}"
        )
        met = {path.name: path.read_bytes() for path in (work / "bags" / "pixels").glob("*.h5")}
        check(met == expected, f"{several} processes: other bags than one alone")
    return f"with 2, 4 and 8 processes each of {count(home)} slides was encoded once, into the same bytes"


@fault("out of file handles")
def handles(home: Path) -> str:
    """Few handles are left: an error in words or none; with enough of them all is done."""
    from scmil.errors import ScmilError
    from scmil.core.jobs.work import Ledger

    first = slides_to_bags(home, home / "before")  # all is imported, and needs no further handles for that
    check(len(first.done) == count(home), str(first))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    said = set()
    for spare in range(12):
        lowest = os.open(os.devnull, os.O_RDONLY)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + spare, hard))
        try:
            outcome = slides_to_bags(home, home / f"work-{spare}")
            check(not outcome.bugs, f"{spare} handles: {Ledger(home / f'work-{spare}').read()}")
            said.add("written into the ledger" if outcome.failed else "done")
        except ScmilError as error:
            said.add("refused: " + ("too many open files" if "oo many open files" in str(error) else str(error)))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        again = slides_to_bags(home, home / f"work-{spare}", retry_failed=True)
        check(len(again.done) + len(again.kept) == count(home), f"{spare} handles, then enough: {again}")
    return f"with 0 to 11 handles left: {'; '.join(sorted(said))}; with enough of them all is done"


@fault("an HDF5 file that another process has locked")
def locked(home: Path) -> str:
    """A bag that is being written by another program is refused by name, and read when that has ended."""
    from scmil.bags.hdf5 import read_bag
    from scmil.encoding.cohort import bags_folder
    from scmil.errors import DataError

    slides_to_bags(home, home / "work")
    path = sorted(bags_folder(home / "work", "pixels").glob("*.h5"))[0]
    code = "import h5py, sys\nwith h5py.File(sys.argv[1], 'r+'):\n    print('locked', flush=True)\n    input()"
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        if not other.stdout or other.stdout.readline().strip() != "locked":
            raise Skip("HDF5 has no locks on this file system")
        words = refused(lambda: read_bag(path), DataError)
        check(path.name in words and "lock" in words, words)
        outcome = slides_to_bags(home, home / "work")
        other.communicate("\n")
    check(len(read_bag(path).features) > 0, "it cannot be read when it is free again")
    return f"refused by name while it is locked, read when it is free; encoding meanwhile: {outcome}"


if __name__ == "__main__":
    sys.exit(main())
