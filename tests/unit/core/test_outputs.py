"""A command replaces and deletes what it wrote, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scmil.core import outputs as module
from scmil.core.outputs import RECORD, Outputs, check_unclaimed
from scmil.errors import OutputError


def test_what_a_command_wrote_it_may_replace(tmp_path: Path) -> None:
    for content in (b"1", b"2", b"1"):
        Outputs(tmp_path, "pca").write(tmp_path / "fig.png", content)
        assert (tmp_path / "fig.png").read_bytes() == content


@pytest.mark.parametrize(
    "kind", ["foreign", "edited", "of another command", "link", "dangling link"]
)
def test_what_others_wrote_is_rejected_by_name_and_replaced_with_overwrite(
    kind: str, tmp_path: Path
) -> None:
    path, elsewhere = tmp_path / "out" / "fig.png", tmp_path / "elsewhere.png"
    Outputs(tmp_path / "out", "predict" if kind == "of another command" else "pca").write(
        path, b"ours"
    )
    if kind != "of another command":
        path.unlink()
    if kind in ("foreign", "edited"):
        path.write_bytes(b"theirs")
    if kind == "link":
        elsewhere.write_bytes(b"ours")  # although it is what we wrote
    if "link" in kind:
        path.symlink_to(elsewhere)
    for call in (lambda one: one.write(path, b"new"), lambda one: one.check(path)):
        with pytest.raises(
            OutputError, match=r"fig\.png exists, and was not written by scmil pca.*--overwrite"
        ):
            call(Outputs(tmp_path / "out", "pca"))
    assert not Outputs(tmp_path / "out", "pca").remove(path)
    Outputs(tmp_path / "out", "pca", overwrite=True).write(path, b"new")
    assert (path.read_bytes(), path.is_symlink()) == (b"new", False)
    assert not elsewhere.exists() or elsewhere.read_bytes() == b"ours"


def test_a_link_to_another_folder_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "a.csv").write_bytes(b"theirs")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "detections").symlink_to(tmp_path / "others")
    for overwrite in (False, True):
        with pytest.raises(OutputError, match=r"is outside of .*out, because of a symbolic link"):
            Outputs(tmp_path / "out", "locate", overwrite).write(
                tmp_path / "out" / "detections" / "a.csv", b"new"
            )
    assert (tmp_path / "others" / "a.csv").read_bytes() == b"theirs"


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    Outputs(tmp_path / "out", "pca").write(tmp_path / "out" / "fig.png", b"1")
    Outputs(tmp_path / "disk", "pca").write(tmp_path / "disk" / "fig.png", b"2")
    assert (tmp_path / "out" / "fig.png").read_bytes() == b"2"


@pytest.mark.parametrize("before", ["the record", "the file"])
def test_a_command_that_is_killed_knows_its_files_when_it_starts_again(
    before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "fig.png"
    Outputs(tmp_path, "pca").write(path, b"1")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        if before == "the record":
            patched.setattr(Outputs, "_append", killed)
        else:
            patched.setattr(module, "write_atomically", killed)
        with pytest.raises(KeyboardInterrupt):
            Outputs(tmp_path, "pca").write(path, b"2")
    assert path.read_bytes() == b"1"
    Outputs(tmp_path, "pca").write(path, b"3")
    assert path.read_bytes() == b"3"


def test_half_a_line_of_the_record_does_not_affect_other_lines(tmp_path: Path) -> None:
    Outputs(tmp_path, "pca").write(tmp_path / "a", b"1")
    record = tmp_path / RECORD
    os.truncate(record, record.stat().st_size - 5)
    with pytest.raises(OutputError, match="a exists"):  # nothing says any more that it is ours
        Outputs(tmp_path, "pca").write(tmp_path / "a", b"2")
    Outputs(tmp_path, "pca").write(tmp_path / "b", b"1")
    Outputs(tmp_path, "pca").write(tmp_path / "b", b"2")
    assert (tmp_path / "b").read_bytes() == b"2"


def test_a_hostile_record_is_no_more_than_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / RECORD).write_bytes(
        b'[[[\n{"a": 1}\n["pca", 1, 2]\n["pca", ["a"], "b"]\nnull\n\xff\xfe\n' + b"[" * 99_999
    )
    (tmp_path / "a").write_bytes(b"theirs")
    with pytest.raises(OutputError, match="a exists"):
        Outputs(tmp_path, "pca").write(tmp_path / "a", b"1")


def test_the_same_content_is_no_conflict_and_is_not_claimed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"same")
    Outputs(tmp_path, "pca").write(tmp_path / "a", b"same")
    with pytest.raises(OutputError, match="a exists"):
        Outputs(tmp_path, "pca").write(tmp_path / "a", b"other")


def test_a_folder_in_the_place_of_a_file_is_rejected_also_with_overwrite(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(OutputError, match="a is a folder, but a file has to be written there"):
        Outputs(tmp_path, "pca", overwrite=True).write(tmp_path / "a", b"1")


def test_only_what_was_written_is_listed_and_removed(tmp_path: Path) -> None:
    ours = Outputs(tmp_path, "locate")
    ours.write(tmp_path / "detections" / "a.csv", b"1")
    ours.write(tmp_path / "detections" / "b.csv", b"1")
    (tmp_path / "detections" / "b.csv").write_bytes(b"edited")
    (tmp_path / "detections" / "c.csv").write_bytes(b"theirs")
    again = Outputs(tmp_path, "locate")
    assert [path.name for path in again.written()] == ["a.csv"]
    assert [again.remove(tmp_path / "detections" / f"{name}.csv") for name in "abcd"] == [
        True,
        False,
        False,
        False,
    ]
    assert sorted(path.name for path in (tmp_path / "detections").iterdir()) == ["b.csv", "c.csv"]


def test_a_folder_with_its_mark_is_ours(tmp_path: Path) -> None:
    check_unclaimed(tmp_path / "new", "experiment.json", ["results.csv"], "run")
    (tmp_path / "results.csv").symlink_to("nowhere")
    with pytest.raises(OutputError, match=r"results\.csv exists, and was not written by scmil run"):
        check_unclaimed(tmp_path, "experiment.json", ["folds.csv", "results.csv"], "run")
    (tmp_path / "experiment.json").write_text("{}")
    check_unclaimed(tmp_path, "experiment.json", ["results.csv"], "run")


def test_a_folder_that_another_process_creates_during_the_check_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exists = os.path.lexists

    def create_first(path: Path) -> bool:
        (tmp_path / "experiment.json").write_text("{}")
        (tmp_path / "results.csv").write_text("")
        return exists(path)

    monkeypatch.setattr("scmil.core.outputs.os.path.lexists", create_first)
    check_unclaimed(tmp_path, "experiment.json", ["results.csv"], "run")
