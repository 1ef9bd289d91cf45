"""Text that the commands print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from scmil.core.text import printable


def say(text: object = "", err: bool = False) -> None:
    """Print text; control characters, which may occur in file names, are printed as escapes."""
    typer.echo(printable(text, lines=True), err=err)


def say_json(value: Any) -> None:
    """Print a value as indented JSON."""
    import json

    say(json.dumps(value, indent=2))


def say_failed(failed: Mapping[str, str], most: int = 5) -> None:
    """Print the first failures to standard error, one line each, with the cause."""
    for name, cause in list(failed.items())[:most]:
        say(f"failed: {printable(name)}: {cause}", err=True)


def say_notes(result: Any, as_json: bool) -> None:
    """Print the notes of a result to standard error, unless the output is JSON."""
    for note in result.notes if not as_json else ():
        say(note, err=True)


def shown(text: object) -> str:
    """Escape text for rich: neither markup nor control characters in it have an effect."""
    from rich.markup import escape

    return escape(printable(text, lines=True))


def three_decimals(value: float | None) -> str:
    """Return a number with three decimals, or a dash for None."""
    return "–" if value is None else f"{value:.3f}"
