"""The command as a whole: errors end in a sentence, and names of files are printed safely."""

from __future__ import annotations

import errno
import io
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from scmil import cli
from scmil.cli import output, progress
from scmil.errors import DataError


def test_an_operating_system_error_is_one_sentence_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fill_disk() -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "runs/result.json")

    monkeypatch.setattr(cli, "app", fill_disk)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == (
        "Operating system error: No space left on device: runs/result.json. Completed results were "
        "kept; run the command again once the problem is fixed.\n"
    )


def test_an_error_ends_with_exit_code_1_and_goes_to_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise DataError("labels.csv: the table has no rows.")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "DataError: labels.csv: the table has no rows.\n")


def test_warnings_of_libraries_do_not_reach_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    child = "import warnings; warnings.warn('of a worker')"

    def warn() -> None:
        warnings.warn("the learned step is too long", stacklevel=1)
        printed = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True)
        assert printed.stderr == ""

    monkeypatch.setattr(cli, "app", warn)
    monkeypatch.setattr(sys, "warnoptions", [])
    monkeypatch.delenv("PYTHONWARNINGS", raising=False)
    with warnings.catch_warnings():
        cli.main()
    assert capsys.readouterr().err == ""


HOSTILE = "\x1b]0;owned\x07[bold red]x[/] [link=http://evil.example]y\u202e" + os.fsdecode(b"\xff")


def test_all_commands_print_through_one_module() -> None:
    """It escapes control characters, which `typer.echo`, `print` and rich's escape do not."""
    folder = Path(cli.__file__).parent
    direct = re.compile(r"typer\.(echo|secho)\(|(?<![\w.])print\(|rich\.markup|TextColumn")
    modules = {path.name for path in folder.glob("*.py") if direct.search(path.read_text())}
    assert modules == {"output.py", "progress.py"}


def test_printed_text_contains_no_control_sequences(capsys: pytest.CaptureFixture[str]) -> None:
    output.say(f"a\n{HOSTILE}")
    output.say_failed({f"{HOSTILE}\nfailed: all others": HOSTILE})
    printed = capsys.readouterr()
    assert (
        printed.out
        == "a\n" + r"\x1b]0;owned\x07[bold red]x[/] [link=http://evil.example]y\u202e\udcff" + "\n"
    )
    assert len(printed.err.splitlines()) == 1


def test_an_error_with_a_hostile_name_is_printed_as_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["scmil", "info", f"/nowhere/{HOSTILE}.svs"])
    with pytest.raises(SystemExit):
        cli.main()
    assert "\x1b" not in (err := capsys.readouterr().err)
    assert r"\x1b]0;owned" in err


def test_rich_tables_show_names_literally() -> None:
    from rich.console import Console
    from rich.table import Table

    text = io.StringIO()
    table = Table(header := output.shown(HOSTILE))
    table.add_row(output.shown(HOSTILE))
    Console(file=text, force_terminal=True, width=200).print(table)
    assert header.count("x1b") == 1
    assert text.getvalue().count("[bold red]x[/] [link=http://evil.example]y") == 2
    assert "\x1b]" not in text.getvalue()


# ---------------------------------------------------------------------------------------- progress


def test_progress_bars_show_names_literally() -> None:
    from rich.console import Console

    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=200)
    with progress.progress_bars(quiet=False, console=console) as bars:
        bars.update(HOSTILE, 0, 1)
    assert "[bold red]x[/] [link=http://evil.example]y" in text.getvalue()
    assert "\x1b]" not in text.getvalue()
    assert "\u202e" not in text.getvalue()


def test_without_a_terminal_no_bars_are_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.progress_bars(quiet=False) as bars:
        assert bars.callback is None
        bars.update("slides", 1, 2)
        bars.remove("slides")
    assert capsys.readouterr().err == ""


def test_without_a_terminal_each_new_or_failed_slide_is_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with progress.slide_progress(quiet=False) as slides:
        slides.start("encode", 3)
        for name, state in (("a", "done"), ("b", "kept"), ("c", "failed")):
            slides.update_tiles(name, 5, 9)
            slides.finish_slide(name, state)
    assert capsys.readouterr().err == "done: a\nfailed: c\n"


class FakeDisplay:
    """Stands in for rich's Progress: description, completed and total of each task."""

    def __init__(self) -> None:
        self.tasks: dict[int, list[object]] = {}

    def add_task(self, description: str, total: int | None) -> int:
        self.tasks[task := len(self.tasks)] = [description, 0, total]
        return task

    def update(self, task: int, completed: int, total: int | None) -> None:
        self.tasks[task][1:] = [completed, total]

    def remove_task(self, task: int) -> None:
        self.tasks[task].append("removed")


def test_slide_progress_counts_slides_and_shows_tiles_of_the_current_one() -> None:
    display = FakeDisplay()
    slides = progress.SlideProgress(progress.ProgressBars(display))
    slides.start("encode", 3)
    slides.update_tiles("a", 5, 9)
    slides.update_tiles("a", 9, 9)
    slides.finish_slide("a", "done")
    slides.finish_slide("b", "kept")
    slides.update_tiles("c", 1, 4)
    assert list(display.tasks.values()) == [
        ["encode, slides", 2, 3],
        ["  a, tiles", 9, 9, "removed"],
        ["  c, tiles", 1, 4],
    ]
