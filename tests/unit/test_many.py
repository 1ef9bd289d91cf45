"""What must not grow faster than the cohort: claims that a hundred thousand slides have made
necessary.
"""

from __future__ import annotations

import io
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scmil.bags.audit import audit
from scmil.bags.bag import Bag, BagSet
from scmil.bags.splits import Split, check_split
from scmil.core.atomic import write_atomically
from scmil.core.jobs import failure_log as log_module
from scmil.core.jobs import resume
from scmil.core.jobs.failure_log import RESOLVED, FailureLog
from scmil.core.jobs.resume import for_each, prepare_targets
from scmil.errors import SlideError, SplitError
from scmil.slides.find import find_slides
from scmil.stats.significance import bootstrap_interval

# -------------------------------------------------------------------------------------- failure log


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all failure logs that are written anew."""
    sizes: list[int] = []

    def write(path: Path, content: bytes | memoryview) -> None:
        sizes.append(len(content))
        write_atomically(path, content)

    monkeypatch.setattr(log_module, "write_atomically", write)
    return sizes


def test_a_new_failure_is_added_and_the_failure_log_is_not_written_anew(
    tmp_path: Path, written: list[int]
) -> None:
    failure_log = FailureLog(tmp_path)
    for number in range(50):
        failure_log.add(f"s{number}", "tile", "no such file")
    assert len(written) == 1  # the first, with the names of the columns
    assert [failure.slide for failure in FailureLog(tmp_path).read()] == [
        f"s{number}" for number in range(50)
    ]


def test_a_large_failure_log_is_written_anew_when_half_of_it_is_struck_out(
    tmp_path: Path, written: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "SMALL", 10)
    failure_log = FailureLog(tmp_path)
    for number in range(64):
        failure_log.add(f"s{number}", "tile", "no such file")
    for number in range(64):
        failure_log.clear(f"s{number}", "tile")
        assert len(failure_log.read()) == 63 - number
    assert len(written) < 20  # and not 64
    assert RESOLVED not in failure_log.path.read_text()


def test_a_small_failure_log_has_one_line_a_slide_and_stage(tmp_path: Path) -> None:
    for cause in ("first", "second"):
        FailureLog(tmp_path).add("a", "tile", cause)
    FailureLog(tmp_path).add("b", "tile", "other")
    FailureLog(tmp_path).clear("b", "tile")
    assert len((tmp_path / "failures.csv").read_text().splitlines()) == 2


def test_only_what_is_new_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failure_log, other = FailureLog(tmp_path), FailureLog(tmp_path)
    for number in range(100):
        other.add(f"s{number}", "tile", "no such file")
    taken: list[int] = []
    take = FailureLog._parse
    monkeypatch.setattr(
        FailureLog,
        "_parse",
        lambda self, content: (taken.append(len(content)), take(self, content)),
    )
    assert failure_log.of("s99", "tile") is not None
    other.add("new", "tile", "no such file")
    assert failure_log.of("new", "tile") is not None
    assert taken[-1] < taken[0] / 50


def test_a_failure_log_that_another_process_wrote_anew_is_read_anew(tmp_path: Path) -> None:
    failure_log, other = FailureLog(tmp_path), FailureLog(tmp_path)
    for name in "abc":
        failure_log.add(name, "tile", "no such file")
    assert failure_log.of("a", "tile")
    other.clear("a", "tile")
    other.add("d", "tile", "no such file")
    assert failure_log.of("a", "tile") is None
    assert failure_log.of("d", "tile")
    (tmp_path / "failures.csv").unlink()
    assert failure_log.of("d", "tile") is None


def test_half_a_line_at_the_end_is_ignored_and_removed(tmp_path: Path) -> None:
    FailureLog(tmp_path).add("a", "tile", "no such file")
    with (tmp_path / "failures.csv").open("ab") as file:
        file.write(b"b,ti")
    assert [failure.slide for failure in FailureLog(tmp_path).read()] == ["a"]
    FailureLog(tmp_path).add("c", "tile", "no such file")
    assert [failure.slide for failure in FailureLog(tmp_path).read()] == ["a", "c"]
    assert "b,ti" not in (tmp_path / "failures.csv").read_text()


def test_a_last_line_without_an_end_that_a_person_left_counts(tmp_path: Path) -> None:
    FailureLog(tmp_path).add("a", "tile", "no such file")
    path = tmp_path / "failures.csv"
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    FailureLog(tmp_path).add("b", "tile", "no such file")
    assert [failure.slide for failure in FailureLog(tmp_path).read()] == ["a", "b"]


def test_what_could_not_be_written_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure_log = FailureLog(tmp_path)
    failure_log.add("a", "tile", "no such file")
    with monkeypatch.context() as patch:
        patch.setattr(
            FailureLog, "_append", lambda *_: (_ for _ in ()).throw(OSError("the disk is gone"))
        )
        with pytest.raises(OSError, match="the disk is gone"):
            failure_log.add("b", "tile", "no such file")
    assert failure_log.of("b", "tile") is None


# ------------------------------------------------------------------------------------------ folders


def test_a_folder_is_looked_through_once_however_many_slides_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Path] = []
    leftovers = resume.find_leftovers  # type: ignore[attr-defined]
    monkeypatch.setattr(
        resume, "find_leftovers", lambda folder: (looks.append(folder), leftovers(folder))[1]
    )

    def make(name: str) -> None:
        raise SlideError("no such file")

    names = [f"s{number}" for number in range(20)]
    out = tmp_path / "out"
    for_each(
        names,
        make,
        target=lambda name: out / f"{name}.h5",
        failure_log=FailureLog(tmp_path),
        stage="tile",
    )
    assert looks.count(out) == 1


def test_what_was_swept_before_is_not_looked_through_for_each_item(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = tmp_path / f".a.h5.{'0' * 32}"
    half.write_bytes(b"half")
    todo: dict[str, Any] = {
        "target": lambda name: tmp_path / f"{name}.h5",
        "failure_log": FailureLog(tmp_path),
    }
    prepare_targets(["a", "b"], **todo)
    assert not half.exists()
    monkeypatch.setattr(
        resume, "find_leftovers", lambda folder: pytest.fail("looked through again")
    )
    for name in "ab":
        outcome = for_each(
            [name], lambda name: (tmp_path / f"{name}.h5").touch(), stage="x", prepared=True, **todo
        )
        assert outcome.done == (name,)


def test_sweeping_leaves_what_another_process_is_writing(tmp_path: Path) -> None:
    half = tmp_path / f".a.h5.{'0' * 32}"
    half.write_bytes(b"half")
    code = "import sys; from pathlib import Path; from scmil.core.jobs.locks import locked\n"
    code += "with locked(Path(sys.argv[1]), wait=True): print('held', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(tmp_path / "a.h5")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert isinstance(other.stdout, io.TextIOBase)
        assert other.stdout.readline() == "held\n"
        prepare_targets(["a"], lambda name: tmp_path / f"{name}.h5", FailureLog(tmp_path))
        assert half.exists()
    prepare_targets(["a"], lambda name: tmp_path / f"{name}.h5", FailureLog(tmp_path))
    assert not half.exists()


def test_thousands_of_slides_with_a_folder_each_are_found_in_a_moment(tmp_path: Path) -> None:
    for number in range(1500):
        (tmp_path / f"s{number}.mrxs").touch()
        (tmp_path / f"s{number}").mkdir()
    began = time.process_time()
    assert len(find_slides(tmp_path)) == 1500
    assert time.process_time() - began < 2  # looking at all slides for every folder took ten


# ------------------------------------------------------------------------------------------ numbers


def test_a_bootstrap_over_many_patients_stays_small_and_draws_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = np.random.default_rng(0).random(5000)
    groups = [f"p{i // 3}" for i in range(5000)]
    at_once = bootstrap_interval(values, groups)
    monkeypatch.setattr("scmil.stats.bootstrap.BLOCK_NUMBERS", 10_000)
    tracemalloc.start()
    in_pieces = bootstrap_interval(values, groups)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert in_pieces == at_once
    assert peak < 5_000_000  # all draws at once are 27 million numbers of 8 bytes


def test_a_bag_that_is_twice_in_a_large_split_is_named_without_a_search_of_hours() -> None:
    part = (*range(60_000), 59_999)
    began = time.process_time()
    with pytest.raises(SplitError, match="has bag '59999' twice"):
        check_split(Split(train=part, test=(60_000,)), [str(i) for i in range(60_001)])
    assert time.process_time() - began < 2  # looking back from every place took half a minute


def test_many_patients_in_two_parts_and_many_copies_are_all_found() -> None:
    count = 600
    features = [
        torch.full((2, 2), float(i // 2)) + torch.tensor([[0.0, 1.0], [2.0, 3.0]])
        for i in range(count)
    ]
    bags = BagSet([Bag(f"s{i}", features[i], i // 2 % 2, f"p{i // 2}") for i in range(count)])
    even, odd = tuple(range(0, count, 2)), tuple(range(1, count, 2))
    found = {finding.code: finding for finding in audit(bags, splits=[[Split(even, odd)]]).findings}
    assert len(found["leak"].slides) == count
    assert "are in two subsets of a split" in found["duplicate"].sentence
