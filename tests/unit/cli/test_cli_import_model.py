"""The help of `scmil import-model` agrees with the layouts that can be imported."""

from __future__ import annotations

import re

import typer

from scmil.cli import app
from scmil.models.official_weights import layouts


def test_the_help_lists_every_aggregator_with_a_layout() -> None:
    command = typer.main.get_command(app).commands["import-model"]  # type: ignore[attr-defined]
    [text] = [option.help for option in command.params if "--as" in option.opts]
    listed = re.findall(r"[\w-]+", text.removeprefix("Aggregator: ").replace(" or ", ", "))
    assert sorted(listed) == sorted(layouts())
