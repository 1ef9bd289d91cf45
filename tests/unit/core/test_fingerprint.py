from __future__ import annotations

import os
from pathlib import Path

import pytest

from scmil.core.fingerprint import BLOCK_BYTES, EDGE_BYTES, Inputs, Mark, mark_files, sampled_digest


def test_another_file_of_the_same_size_and_time_is_recognised_by_its_status_times(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(b"first")
    before, times = mark_files([path]), path.stat()
    path.write_bytes(b"other")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert mark_files([path], before).stat != before.stat


def test_a_stored_digest_outlives_a_copy_but_not_an_edit(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    path.write_bytes(b"first")
    before = mark_files([path], stored=lambda: "d1")
    path.touch()
    assert mark_files([path], before, lambda: "d1", lambda: True).token == before.token
    assert mark_files([path], before, lambda: "d1", lambda: False).token != before.token
    assert mark_files([path], before, lambda: "d2", lambda: True).token != before.token


def test_an_unchanged_file_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    path.write_bytes(b"first")
    before = mark_files([path], stored=lambda: "d1")
    assert (
        mark_files([path], before, lambda: pytest.fail("opened"), lambda: pytest.fail("read"))
        == before
    )


@pytest.mark.parametrize("place", [0, EDGE_BYTES // 2, 5_000_000, 9_999_999])
def test_a_slide_with_other_tissue_has_another_digest_wherever_it_lies(
    tmp_path: Path, place: int
) -> None:
    path = tmp_path / "a.tif"
    content = bytearray(10_000_000)
    path.write_bytes(content)
    before = sampled_digest([path])
    content[max(place - 100_000, 0) : place + 100_000] = os.urandom(
        len(content[max(place - 100_000, 0) : place + 100_000])
    )
    path.write_bytes(content)
    assert sampled_digest([path]) != before


def test_a_small_file_is_hashed_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    content = bytearray(10 * BLOCK_BYTES)
    path.write_bytes(content)
    before = sampled_digest([path])
    content[7 * BLOCK_BYTES + 11] ^= 1
    path.write_bytes(content)
    assert sampled_digest([path]) != before


def test_a_series_of_files_is_one_slide_and_its_names_count(tmp_path: Path) -> None:
    first, second = tmp_path / "1.dcm", tmp_path / "2.dcm"
    first.write_bytes(b"a"), second.write_bytes(b"b")
    before = sampled_digest([first, second])
    assert sampled_digest([second, first]) == before
    first.write_bytes(b"b"), second.write_bytes(b"a")
    assert sampled_digest([first, second]) != before


def inputs(**change: object) -> Inputs:
    facts = {
        "ids": ("a", "b"),
        "labels": ("tumour", "normal"),
        "patients": ("p", None),
        "marks": (Mark("sha256:1", (3, 4, 5)), Mark("stat:2")),
        "files": {"splits.csv": "s"},
    }
    return Inputs(**(facts | change))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"labels": ("normal", "normal")}, "the label of 1 bag changed (a)"),
        ({"patients": ("q", "r")}, "the patients of 2 bags changed (a, b)"),
        ({"marks": (Mark("sha256:1"), Mark("stat:3"))}, "the features of 1 bag changed (b)"),
        ({"files": {}}, "splits.csv has changed"),
        (
            {
                "ids": ("b", "a"),
                "labels": ("normal", "tumour"),
                "patients": (None, "p"),
                "marks": inputs().marks[::-1],
            },
            "the order of the bags changed",
        ),
    ],
)
def test_each_change_has_another_digest_and_is_named(change: dict[str, object], words: str) -> None:
    assert inputs(**change).digest != inputs().digest
    assert inputs(**change).changes_since(inputs()) == [words]


def test_times_alone_are_no_change() -> None:
    touched = inputs(marks=(Mark("sha256:1", (3, 9, 9)), Mark("stat:2")))
    assert touched.digest == inputs().digest
    assert touched.changes_since(inputs()) == []


def test_inputs_come_back_from_json() -> None:
    assert Inputs.from_json(inputs().to_json()) == inputs()
    assert Inputs.from_json(Inputs((), (), (), ()).to_json()) == Inputs((), (), (), ())
