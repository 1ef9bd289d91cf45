from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scmil.core.atomic import write_atomically
from scmil.core.jobs import failure_log
from scmil.core.jobs.failure_log import FailureLog
from scmil.core.jobs.resume import JobOutcome, for_each
from scmil.errors import DataError, DiskFullError, OutputError, ScmilError, SlideError

SLIDES = ["a", "b", "c"]


def todo(folder: Path, **more: Any) -> dict[str, Any]:
    return (
        dict(
            target=lambda slide: folder / f"{slide}.h5",
            failure_log=FailureLog(folder),
            stage="encode",
        )
        | more
    )


def maker(folder: Path, made: list[str], **trouble: BaseException) -> Callable[[str], None]:
    """Makes the file of a slide, and writes down that it did; some slides raise instead."""

    def make(slide: str) -> None:
        made.append(slide)
        if slide in trouble:
            raise trouble[slide]
        write_atomically(folder / f"{slide}.h5", slide.encode())

    return make


def seen(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".locks")


# ------------------------------------------------------------------------------------------ one run


def test_what_has_a_file_is_kept_and_the_rest_is_made(tmp_path: Path) -> None:
    made: list[str] = []
    (tmp_path / "b.h5").write_bytes(b"from before")
    outcome = for_each(SLIDES, maker(tmp_path, made), **todo(tmp_path))
    assert outcome == JobOutcome(done=("a", "c"), kept=("b",))
    assert made == ["a", "c"]
    assert (tmp_path / "b.h5").read_bytes() == b"from before"
    assert seen(tmp_path) == ["a.h5", "b.h5", "c.h5"]


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (SlideError("the file ends too early"), "the file ends too early"),
        (OSError(errno.EIO, "Input/output error", "b.svs"), "Input/output error: b.svs"),
        (MemoryError(), "not enough memory"),
    ],
)
def test_a_slide_that_fails_is_written_down_and_the_others_are_made(
    tmp_path: Path, error: Exception, cause: str
) -> None:
    outcome = for_each(
        SLIDES,
        maker(tmp_path, [], b=error),
        **todo(tmp_path, source=lambda slide: f"in/{slide}.svs"),
    )
    assert outcome == JobOutcome(done=("a", "c"), failed=("b",))
    [failure] = FailureLog(tmp_path).read()
    assert (failure.slide, failure.stage, failure.cause, failure.file) == (
        "b",
        "encode",
        cause,
        "in/b.svs",
    )


def test_a_bug_is_one_slides_failure_too_but_is_called_a_bug(tmp_path: Path) -> None:
    outcome = for_each(SLIDES, maker(tmp_path, [], b=KeyError("mpp")), **todo(tmp_path))
    assert (outcome.done, outcome.failed, outcome.bugs) == (("a", "c"), ("b",), ("b",))
    assert "1 by a bug" in str(outcome)
    assert FailureLog(tmp_path).read()[0].cause == "KeyError: 'mpp' (a bug: please report it)"


def test_a_maker_that_writes_nothing_has_not_succeeded(tmp_path: Path) -> None:
    outcome = for_each(["a"], lambda slide: None, **todo(tmp_path))
    assert (outcome.failed, outcome.bugs) == (("a",), ("a",))
    assert "no file a.h5 was written" in FailureLog(tmp_path).read()[0].cause


def test_failures_are_passed_over_until_a_retry_is_asked_for_and_struck_out_by_success(
    tmp_path: Path,
) -> None:
    for_each(SLIDES, maker(tmp_path, [], b=SlideError("broken")), **todo(tmp_path))
    made: list[str] = []
    again = for_each(SLIDES, maker(tmp_path, made), **todo(tmp_path))
    assert (again.kept, again.failed, made) == (("a", "c"), ("b",), [])
    assert for_each(SLIDES, maker(tmp_path, made), **todo(tmp_path, retry_failed=True)).done == (
        "b",
    )
    assert (made, FailureLog(tmp_path).read()) == (["b"], [])


def test_a_retry_that_fails_again_has_the_new_cause(tmp_path: Path) -> None:
    for_each(["b"], maker(tmp_path, [], b=SlideError("first")), **todo(tmp_path))
    for_each(
        ["b"], maker(tmp_path, [], b=SlideError("second")), **todo(tmp_path, retry_failed=True)
    )
    assert [failure.cause for failure in FailureLog(tmp_path).read()] == ["second"]


@pytest.mark.parametrize("retry_failed", [False, True])
def test_what_failed_elsewhere_since_the_run_began_is_not_tried_again(
    tmp_path: Path, retry_failed: bool
) -> None:
    FailureLog(tmp_path).add("b", "encode", "before this run")
    made: list[str] = []

    def make(slide: str) -> None:
        made.append(slide)
        FailureLog(tmp_path).add("b", "encode", "another process has just tried")
        FailureLog(tmp_path).add("c", "encode", "another process has just tried")
        write_atomically(tmp_path / f"{slide}.h5", b"")

    outcome = for_each(SLIDES, make, **todo(tmp_path, retry_failed=retry_failed))
    assert (outcome.done, outcome.failed, made) == (("a",), ("b", "c"), ["a"])


def test_a_failure_of_another_stage_does_not_count(tmp_path: Path) -> None:
    FailureLog(tmp_path).add("a", "tile", "no tissue")
    assert for_each(["a"], maker(tmp_path, []), **todo(tmp_path)).done == ("a",)
    assert [failure.stage for failure in FailureLog(tmp_path).read()] == ["tile"]


def test_a_file_that_was_made_good_by_hand_clears_its_failure(tmp_path: Path) -> None:
    for_each(["b"], maker(tmp_path, [], b=SlideError("broken")), **todo(tmp_path))
    (tmp_path / "b.h5").write_bytes(b"copied from elsewhere")
    assert for_each(["b"], maker(tmp_path, []), **todo(tmp_path)).kept == ("b",)
    assert FailureLog(tmp_path).read() == []


def test_every_item_is_reported_once_with_its_state(tmp_path: Path) -> None:
    states: list[tuple[str, str]] = []
    (tmp_path / "a.h5").write_bytes(b"")
    make = maker(tmp_path, [], b=SlideError("broken"))
    for_each(
        SLIDES, make, **todo(tmp_path, on_done=lambda slide, state: states.append((slide, state)))
    )
    assert states == [("a", "kept"), ("b", "failed"), ("c", "done")]


def test_two_items_with_one_file_are_rejected_before_anything_is_made(tmp_path: Path) -> None:
    made: list[str] = []
    with pytest.raises(DataError, match=r"x/a and y/a would both be written to .*a\.h5"):
        for_each(
            ["x/a", "y/a"],
            maker(tmp_path, made),
            **todo(tmp_path, target=lambda _: tmp_path / "a.h5"),
        )
    assert made == []


def test_an_interruption_passes_through_and_leaves_no_half_file_and_no_lock(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        for_each(SLIDES, maker(tmp_path, [], b=KeyboardInterrupt()), **todo(tmp_path))
    assert seen(tmp_path) == ["a.h5"]
    assert for_each(SLIDES, maker(tmp_path, []), **todo(tmp_path, wait=False)).done == ("b", "c")


def test_what_a_killed_process_left_is_removed_and_hidden_files_of_others_stay(
    tmp_path: Path,
) -> None:
    for name in (f".a.h5.{'0' * 32}", f".b.h5.{'1' * 32}", ".a.h5.mine", ".gitignore"):
        (tmp_path / name).write_bytes(b"half")
    (tmp_path / "b.h5").write_bytes(b"whole")
    for_each(["a", "b"], maker(tmp_path, []), **todo(tmp_path))
    assert seen(tmp_path) == [".a.h5.mine", ".gitignore", "a.h5", "b.h5"]


# ----------------------------------------------------------------------------------------- the disk


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        # As HDF5 says it.
        OSError("Unable to flush file (errno = 28, error message = 'No space left on device')"),
        DiskFullError("no space"),
    ],
)
def test_a_full_disk_stops_the_run_and_is_no_failure_of_the_slide(
    tmp_path: Path, error: OSError
) -> None:
    made: list[str] = []
    with pytest.raises(DiskFullError, match=r"(?i)no space"):
        for_each(SLIDES, maker(tmp_path, made, b=error), **todo(tmp_path))
    assert made == ["a", "b"]
    assert seen(tmp_path) == ["a.h5"]


def test_the_message_of_a_full_disk_names_the_folder_the_free_space_and_the_way_on(
    tmp_path: Path,
) -> None:
    with pytest.raises(DiskFullError) as caught:
        for_each(["a"], maker(tmp_path, [], a=OSError(errno.ENOSPC, "full")), **todo(tmp_path))
    for part in (str(tmp_path), "MB of the disk are free", "again: completed results were kept"):
        assert part in str(caught.value)


def test_a_disk_that_is_really_full_leaves_no_half_file(mounted: Callable[[str], Path]) -> None:
    folder = mounted("size=1m")

    def make(slide: str) -> None:
        write_atomically(folder / f"{slide}.h5", bytes(400 * 1024))

    with pytest.raises(DiskFullError, match="No space left for"):
        for_each(SLIDES, make, **todo(folder))
    assert seen(folder) == ["a.h5", "b.h5"]


def test_a_failure_log_that_does_not_fit_on_the_disk_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(
        failure_log, "write_atomically", full
    )  # the failure log's; the maker has its own
    with pytest.raises(DiskFullError):
        for_each(SLIDES, maker(tmp_path, [], a=SlideError("broken")), **todo(tmp_path))


def test_a_folder_that_is_lost_on_the_way_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(*_: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(failure_log, "write_atomically", stale)
    with pytest.raises(OutputError, match="Stale file handle"):
        for_each(SLIDES, maker(tmp_path, [], a=SlideError("broken")), **todo(tmp_path))


@pytest.mark.filterwarnings("ignore:flock not supported")
def test_a_disk_without_locks_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl")

    def unknown(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", unknown)
    made: list[str] = []
    with pytest.raises(OutputError, match="No locks available"):
        for_each(SLIDES, maker(tmp_path, made), **todo(tmp_path))
    assert made == []


def test_a_folder_below_a_file_is_rejected_before_the_first_slide(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    made: list[str] = []
    with pytest.raises(
        OutputError, match=r"Cannot write to .*Choose another output directory"
    ) as caught:
        for_each(SLIDES, maker(tmp_path, made), **todo(tmp_path / "file" / "out"))
    assert isinstance(caught.value, ScmilError)
    assert made == []


# -------------------------------------------------------------------------------- several processes

WORKER = """
import os, sys, time
from pathlib import Path
from scmil.core.atomic import write_atomically
from scmil.core.jobs.failure_log import FailureLog
from scmil.core.jobs.resume import for_each

folder, pause, items, held = Path(sys.argv[1]), float(sys.argv[2]), *map(int, sys.argv[3:])

def make(item):
    with open(folder / "log.txt", "a") as log:
        log.write(f"{os.getpid()} {item}\\n")
    time.sleep(pause)
    while item == held and not (folder / "go on").exists():
        time.sleep(0.01)
    if item == 7:
        raise OSError("broken slide")
    write_atomically(folder / "out" / f"{item}.txt", str(item).encode())

outcome = for_each(range(items), make, target=lambda item: folder / "out" / f"{item}.txt",
                   failure_log=FailureLog(folder / "out"), stage="test")
print(outcome)
"""


def start(folder: Path, items: int, pause: float = 0, held: int = -1) -> subprocess.Popen[str]:
    """A process that makes the items; at the item `held` it waits for the file "go on"."""
    command = [sys.executable, "-c", WORKER, *map(str, (folder, pause, items, held))]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def log_of(folder: Path) -> list[tuple[int, int]]:
    log = folder / "log.txt"
    lines = log.read_text().splitlines() if log.exists() else []
    return [(int(process), int(item)) for process, item in map(str.split, lines)]


def wait_for(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_two_processes_make_everything_and_nothing_twice(tmp_path: Path) -> None:
    workers = [start(tmp_path, 30, pause=0.02) for _ in range(2)]
    summaries = [worker.communicate(timeout=300)[0] for worker in workers]
    assert all(worker.returncode == 0 for worker in workers)
    made = [item for _, item in log_of(tmp_path)]
    assert sorted(made) == list(range(30))
    assert {path.stem for path in (tmp_path / "out").glob("*.txt")} == {
        str(item) for item in range(30) if item != 7
    }
    assert [failure.slide for failure in FailureLog(tmp_path / "out").read()] == ["7"]
    assert all("1 failed" in line for line in summaries)
    assert sum(int(line.split()[0]) for line in summaries) == 29


def test_after_a_kill_the_next_start_makes_the_rest(tmp_path: Path) -> None:
    worker = start(tmp_path, 6, held=2)
    wait_for(lambda: len(log_of(tmp_path)) == 3)
    os.kill(worker.pid, signal.SIGKILL)
    worker.communicate()
    before = {path.name for path in (tmp_path / "out").glob("*.txt")}
    assert before == {"0.txt", "1.txt"}
    follower = start(tmp_path, 6)
    assert follower.communicate(timeout=300)[0] == "4 made, 2 kept, 0 failed\n"


def test_a_slide_in_other_hands_is_taken_or_waited_for(tmp_path: Path) -> None:
    other = start(tmp_path, 1, held=0)
    wait_for(lambda: len(log_of(tmp_path)) == 1)
    made: list[int] = []
    arguments = todo(
        tmp_path / "out", target=lambda item: tmp_path / "out" / f"{item}.txt", stage="test"
    )
    assert for_each([0], made.append, **arguments, wait=False) == JobOutcome(taken=("0",))
    finish = threading.Timer(0.1, (tmp_path / "go on").touch)
    finish.start()
    assert for_each([0], made.append, **arguments) == JobOutcome(kept=("0",))
    assert made == []
    finish.join()
    other.communicate()


def test_a_slide_whose_maker_was_killed_while_we_waited_is_made_by_us(tmp_path: Path) -> None:
    other = start(tmp_path, 1, held=0)
    wait_for(lambda: len(log_of(tmp_path)) == 1)
    out = tmp_path / "out"
    half = out / f".0.txt.{'a' * 32}"

    def make(item: int) -> None:
        if item == 1:  # by now item 0 was found in other hands
            half.write_bytes(b"half a file")
            os.kill(other.pid, signal.SIGKILL)
        write_atomically(out / f"{item}.txt", b"ours")

    outcome = for_each([0, 1], make, **todo(out, target=lambda item: out / f"{item}.txt"))
    other.communicate()
    assert outcome == JobOutcome(done=("1", "0"))
    assert seen(out) == ["0.txt", "1.txt"]
