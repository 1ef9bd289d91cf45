"""The command as a whole: what is not a bug ends in a sentence."""

from __future__ import annotations

import errno
import io
import os
import re
from pathlib import Path

import pytest

from scmil import cli
from scmil.cli import options as shared


def test_what_the_system_refuses_is_a_sentence_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "runs/result.json")

    monkeypatch.setattr(cli, "app", full)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == (
        "The system refuses: No space left on device: runs/result.json. What is finished is kept; start again when it is "
        "mended.\n"
    )


EVIL = "\x1b]0;owned\x07[bold red]x[/] [link=http://evil.example]y\u202e" + os.fsdecode(b"\xff")


def test_all_verbs_print_through_one_place() -> None:
    """What a terminal obeys is taken out there; `typer.echo`, `print` and rich's own escape would go around it."""
    folder = Path(cli.__file__).parent
    around = re.compile(r"typer\.(echo|secho)\(|(?<![\w.])print\(|rich\.markup|TextColumn")
    found = {path.name for path in folder.glob("*.py") if around.search(path.read_text())}
    assert found == {"shared.py"}


def test_what_is_said_has_nothing_that_a_terminal_obeys(capsys: pytest.CaptureFixture[str]) -> None:
    shared.say(f"a\n{EVIL}")
    shared.say_failed({f"{EVIL}\nfailed: all others": EVIL})
    said = capsys.readouterr()
    assert said.out == "a\n" + r"\x1b]0;owned\x07[bold red]x[/] [link=http://evil.example]y\u202e\udcff" + "\n"
    assert len(said.err.splitlines()) == 1


def test_an_error_with_a_hostile_name_is_printed_as_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["scmil", "info", f"/nowhere/{EVIL}.svs"])
    with pytest.raises(SystemExit):
        cli.main()
    assert "\x1b" not in (err := capsys.readouterr().err)
    assert r"\x1b]0;owned" in err


def test_rich_shows_names_as_they_are() -> None:
    from rich.console import Console
    from rich.table import Table

    text = io.StringIO()
    table = Table(shown_in_header := shared.shown(EVIL))
    table.add_row(shared.shown(EVIL))
    Console(file=text, force_terminal=True, width=200).print(table)
    assert shown_in_header.count("x1b") == 1
    assert text.getvalue().count("[bold red]x[/] [link=http://evil.example]y") == 2
    assert "\x1b]" not in text.getvalue()


def test_a_bar_shows_names_as_they_are() -> None:
    from rich.console import Console

    text = io.StringIO()
    with shared.progress_bars(console=Console(file=text, force_terminal=True, width=200)) as bars:
        bars.add_task(EVIL, total=1)
    assert "[bold red]x[/] [link=http://evil.example]y" in text.getvalue()
    assert "\x1b]" not in text.getvalue()
    assert "\u202e" not in text.getvalue()
