"""Long help texts show their options by subject; short ones stay as they are."""

from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from scmil.cli import app as scmil_app
from scmil.cli.panels import group_options

SHARED = Annotated[int, typer.Option(help="Number of epochs.")]


def _help_of(*commands: Any) -> list[str]:
    texts = []
    for command in commands:
        app = typer.Typer()
        app.command()(command)
        shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"})
        assert shown.exit_code == 0, shown.output
        texts.append(shown.output)
    return texts


def _two_commands() -> tuple[Any, Any]:
    @group_options({"Training": ("epochs",)})
    def long(name: str, epochs: SHARED = 3, out: str = "model") -> None:
        typer.echo(f"{name} {epochs} {out}")

    def short(epochs: SHARED = 3, out: str = "model") -> None:
        typer.echo(f"{epochs} {out}")

    return long, short


def test_an_option_is_shown_in_its_panel_and_others_stay_in_the_general_one() -> None:
    text, _ = _help_of(*_two_commands())
    general, training = text.index("Options"), text.index("Training")
    assert general < text.index("--out") < training < text.index("--epochs")


def test_a_command_that_shares_the_option_keeps_its_help() -> None:
    _, text = _help_of(*_two_commands())
    assert "Training" not in text


def test_a_grouped_command_takes_its_options_as_before() -> None:
    app = typer.Typer()
    app.command()(_two_commands()[0])
    result = CliRunner().invoke(app, ["a", "--epochs", "5"])
    assert result.output == "a 5 model\n"


def test_a_name_that_is_no_option_of_the_command_is_an_error() -> None:
    with pytest.raises(KeyError, match="epoch"):

        @group_options({"Training": ("epoch",)})
        def command(epochs: SHARED = 3) -> None: ...


@pytest.mark.parametrize("verb", ["train", "compare", "encode", "tile", "locate"])
def test_no_panel_of_a_long_help_text_holds_more_than_twelve_options(verb: str) -> None:
    command = typer.main.get_command(scmil_app).commands[verb]  # type: ignore[attr-defined]
    panels: dict[str | None, int] = {}
    for option in command.params:
        panel = getattr(option, "rich_help_panel", None)
        panels[panel] = panels.get(panel, 0) + 1
    assert max(panels.values()) <= 12, panels
