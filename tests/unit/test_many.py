"""What must not grow faster than the cohort: claims that a hundred thousand slides have made necessary."""

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

from scmil.core.jobs import work
from scmil.bags.audit import audit
from scmil.bags.bag import Bag, BagSet
from scmil.errors import SlideError, SplitError
from scmil.core.files import write_atomically
from scmil.stats.significance import bootstrap_interval
from scmil.slides.find import find_slides
from scmil.bags.splits import Split, check_split
from scmil.core.jobs.work import MADE_GOOD, Ledger, for_each, sweep


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda file: None)


# --------------------------------------------------------------------------------------------------------------- ledger


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all ledgers that are written anew."""
    sizes: list[int] = []

    def write(path: Path, content: bytes | memoryview) -> None:
        sizes.append(len(content))
        write_atomically(path, content)

    monkeypatch.setattr(work, "write_atomically", write)
    return sizes


def test_a_new_failure_is_added_and_the_ledger_is_not_written_anew(tmp_path: Path, written: list[int]) -> None:
    ledger = Ledger(tmp_path)
    for number in range(50):
        ledger.add(f"s{number}", "tile", "no such file")
    assert len(written) == 1  # the first, with the names of the columns
    assert [failure.slide for failure in Ledger(tmp_path).read()] == [f"s{number}" for number in range(50)]


def test_a_large_ledger_is_written_anew_when_half_of_it_is_struck_out(
    tmp_path: Path, written: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "SMALL", 10)
    ledger = Ledger(tmp_path)
    for number in range(64):
        ledger.add(f"s{number}", "tile", "no such file")
    for number in range(64):
        ledger.clear(f"s{number}", "tile")
        assert len(ledger.read()) == 63 - number
    assert len(written) < 20  # and not 64
    assert MADE_GOOD not in ledger.path.read_text()


def test_a_small_ledger_has_one_line_a_slide_and_stage(tmp_path: Path) -> None:
    for cause in ("first", "second"):
        Ledger(tmp_path).add("a", "tile", cause)
    Ledger(tmp_path).add("b", "tile", "other")
    Ledger(tmp_path).clear("b", "tile")
    assert len((tmp_path / "failures.csv").read_text().splitlines()) == 2


def test_only_what_is_new_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, other = Ledger(tmp_path), Ledger(tmp_path)
    for number in range(100):
        other.add(f"s{number}", "tile", "no such file")
    taken: list[int] = []
    take = Ledger._take
    monkeypatch.setattr(Ledger, "_take", lambda self, content: (taken.append(len(content)), take(self, content)))
    assert ledger.of("s99", "tile") is not None
    other.add("new", "tile", "no such file")
    assert ledger.of("new", "tile") is not None
    assert taken[-1] < taken[0] / 50


def test_a_ledger_that_another_process_wrote_anew_is_read_anew(tmp_path: Path) -> None:
    ledger, other = Ledger(tmp_path), Ledger(tmp_path)
    for name in "abc":
        ledger.add(name, "tile", "no such file")
    assert ledger.of("a", "tile")
    other.clear("a", "tile")
    other.add("d", "tile", "no such file")
    assert ledger.of("a", "tile") is None
    assert ledger.of("d", "tile")
    (tmp_path / "failures.csv").unlink()
    assert ledger.of("d", "tile") is None


def test_half_a_line_at_the_end_is_passed_over_and_mended(tmp_path: Path) -> None:
    Ledger(tmp_path).add("a", "tile", "no such file")
    with (tmp_path / "failures.csv").open("ab") as file:
        file.write(b"b,ti")
    assert [failure.slide for failure in Ledger(tmp_path).read()] == ["a"]
    Ledger(tmp_path).add("c", "tile", "no such file")
    assert [failure.slide for failure in Ledger(tmp_path).read()] == ["a", "c"]
    assert "b,ti" not in (tmp_path / "failures.csv").read_text()


def test_a_last_line_without_an_end_that_a_person_left_counts(tmp_path: Path) -> None:
    Ledger(tmp_path).add("a", "tile", "no such file")
    path = tmp_path / "failures.csv"
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    Ledger(tmp_path).add("b", "tile", "no such file")
    assert [failure.slide for failure in Ledger(tmp_path).read()] == ["a", "b"]


def test_what_could_not_be_written_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path)
    ledger.add("a", "tile", "no such file")
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "_append", lambda *_: (_ for _ in ()).throw(OSError("the disk is gone")))
        with pytest.raises(OSError, match="the disk is gone"):
            ledger.add("b", "tile", "no such file")
    assert ledger.of("b", "tile") is None


# -------------------------------------------------------------------------------------------------------------- folders


def test_a_folder_is_looked_through_once_however_many_slides_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Path] = []
    leftovers = work._leftovers
    monkeypatch.setattr(work, "_leftovers", lambda folder: (looks.append(folder), leftovers(folder))[1])

    def make(name: str) -> None:
        raise SlideError("no such file")

    names = [f"s{number}" for number in range(20)]
    out = tmp_path / "out"
    for_each(names, make, target=lambda name: out / f"{name}.h5", ledger=Ledger(tmp_path), stage="tile")
    assert looks.count(out) == 1


def test_what_was_swept_before_is_not_looked_through_for_each_item(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = tmp_path / f".a.h5.{'0' * 32}"
    half.write_bytes(b"half")
    todo: dict[str, Any] = {"target": lambda name: tmp_path / f"{name}.h5", "ledger": Ledger(tmp_path)}
    sweep(["a", "b"], **todo)
    assert not half.exists()
    monkeypatch.setattr(work, "_leftovers", lambda folder: pytest.fail("looked through again"))
    for name in "ab":
        outcome = for_each([name], lambda name: (tmp_path / f"{name}.h5").touch(), stage="x", swept=True, **todo)
        assert outcome.done == (name,)


def test_sweeping_leaves_what_another_process_is_writing(tmp_path: Path) -> None:
    half = tmp_path / f".a.h5.{'0' * 32}"
    half.write_bytes(b"half")
    code = "import sys; from pathlib import Path; from scmil.core.jobs.work import locked\n"
    code += "with locked(Path(sys.argv[1]), wait=True): print('held', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(tmp_path / "a.h5")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert isinstance(other.stdout, io.TextIOBase)
        assert other.stdout.readline() == "held\n"
        sweep(["a"], lambda name: tmp_path / f"{name}.h5", Ledger(tmp_path))
        assert half.exists()
    sweep(["a"], lambda name: tmp_path / f"{name}.h5", Ledger(tmp_path))
    assert not half.exists()


def test_thousands_of_slides_with_a_folder_each_are_found_in_a_moment(tmp_path: Path) -> None:
    for number in range(1500):
        (tmp_path / f"s{number}.mrxs").touch()
        (tmp_path / f"s{number}").mkdir()
    began = time.process_time()
    assert len(find_slides(tmp_path)) == 1500
    assert time.process_time() - began < 2  # looking at all slides for every folder took ten


# -------------------------------------------------------------------------------------------------------------- numbers


def test_a_bootstrap_over_many_patients_stays_small_and_draws_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).random(5000)
    groups = [f"p{i // 3}" for i in range(5000)]
    at_once = bootstrap_interval(values, groups)
    monkeypatch.setattr("scmil.stats.significance.DRAWN_AT_ONCE", 10_000)
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
    features = [torch.full((2, 2), float(i // 2)) + torch.tensor([[0.0, 1.0], [2.0, 3.0]]) for i in range(count)]
    bags = BagSet([Bag(f"s{i}", features[i], i // 2 % 2, f"p{i // 2}") for i in range(count)])
    even, odd = tuple(range(0, count, 2)), tuple(range(1, count, 2))
    found = {finding.code: finding for finding in audit(bags, splits=[[Split(even, odd)]]).findings}
    assert len(found["leak"].slides) == count
    assert "are in two parts of a split" in found["duplicate"].sentence
