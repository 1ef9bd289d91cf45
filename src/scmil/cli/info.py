"""The command info."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from scmil.cli import app
from scmil.cli.options import SLIDES, Json, MppOf, OverrideMpp, parse_number
from scmil.cli.output import say_json, shown


@app.command(rich_help_panel=SLIDES)
def info(
    slide: Annotated[Path, typer.Argument(help="File of a slide.")],
    mpp_of: MppOf = None,
    override_mpp: OverrideMpp = False,
    as_json: Json = False,
) -> None:
    """Print slide metadata: format, dimensions, microns per pixel, pyramid levels, warnings.

    Example: `scmil info slides/slide_001.svs`
    """
    from scmil.slides import open_slide, slide_metadata
    from scmil.slides.slide import check_mpp

    mpp = parse_number(mpp_of)
    if mpp_of is not None and mpp is None:
        from scmil.bags.slide_ids import slide_id
        from scmil.encoding.cohort import read_mpp

        mpp = read_mpp(mpp_of).get(slide_id(slide.name))
    if mpp is not None:
        check_mpp(slide, mpp)
    with open_slide(slide) as opened:
        if mpp is not None and (override_mpp or opened.stated_mpp is None):
            opened = opened.with_mpp(mpp)
        metadata = slide_metadata(opened)
    if as_json:
        say_json(metadata)
    else:
        _print_metadata(metadata)


def _print_metadata(metadata: dict[str, Any]) -> None:
    """Print the metadata of a slide as a table, then its warnings."""
    from rich.console import Console
    from rich.table import Table

    console, table = Console(), Table(box=None, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    for key, value in metadata.items():
        if key != "warnings" and value not in (None, [], {}, ()):
            table.add_row(key.replace("_", " "), shown(_format_value(value)))
    console.print(table)
    for warning in metadata.get("warnings", ()):
        console.print(f"[bold yellow]warning:[/] {shown(warning)}")


def _format_value(value: Any) -> str:
    """Return a value as text: one line per entry of a dictionary, numbers separated by commas."""
    if isinstance(value, dict):
        return "\n".join(f"{key}: {_format_value(part)}" for key, part in value.items())
    if isinstance(value, (list, tuple)):
        simple = all(isinstance(part, (int, float, str)) for part in value)
        return (", " if simple else "\n").join(map(_format_in_line, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _format_in_line(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_format_value(part)}" for key, part in value.items())
    return _format_value(value)
