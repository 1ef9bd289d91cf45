"""The commands ls and doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from scmil.cli import app
from scmil.cli.options import INFORMATION, Data, Json
from scmil.cli.output import say, say_json, shown

# Column names, rows, and a note printed below the table.
Listing = tuple[tuple[str, ...], list[tuple[Any, ...]], str]
# Titles that are clearer than the keys of the JSON output, which stay as they are.
TITLES = {"written too": "can be exported", "how tissue is found": "settings", "dim": "width"}
# Columns that are left out if the terminal is narrower than WIDE.
ONLY_WIDE = {"encoders": ("summary", "ready"), "features": ("source",)}
WIDE = 120


@app.command("ls", rich_help_panel=INFORMATION)
def list_(
    kind: Annotated[
        str,
        typer.Argument(
            help="aggregators, datasets, encoders, features, formats, presets or recipes."
        ),
    ] = "aggregators",
    data: Data = None,
    as_json: Json = False,
) -> None:
    """List the available aggregators, data sets, encoders, features, formats, presets or recipes.

    Example: `scmil ls encoders`

    For data sets and encoders the list shows which are installed, and how to get the others.
    """
    from scmil.errors import OptionError

    listings = {
        "aggregators": _list_aggregators,
        "datasets": lambda: _list_datasets(data),
        "encoders": _list_encoders,
        "features": _list_features,
        "formats": _list_formats,
        "presets": _list_presets,
        "recipes": _list_recipes,
    }
    if kind not in listings:
        raise OptionError(f"scmil ls {kind}: unknown kind. Known: {', '.join(listings)}.")
    header, rows, note = listings[kind]()
    if as_json:
        keys = [title.replace(" ", "_") for title in header]
        say_json([dict(zip(keys, row, strict=True)) for row in rows])
        return
    from rich.console import Console
    from rich.table import Table

    console = Console()
    hidden = ONLY_WIDE.get(kind, ()) if console.width < WIDE else ()
    kept = [place for place, title in enumerate(header) if title not in hidden]
    titles = [TITLES.get(header[place], header[place]) for place in kept]
    table = Table(*titles, box=None, pad_edge=False, header_style="bold")
    for column in table.columns:
        column.overflow = "fold"  # no text is cut off
    table.columns[0].no_wrap = True  # names are copied into commands
    for row in rows:
        table.add_row(*(_format_entry(row[place]) for place in kept))
    console.print(table)
    if note:
        say(f"\n{note}")


@app.command(rich_help_panel=INFORMATION)
def doctor(as_json: Json = False) -> None:
    """Check the installation and print the command that fixes each problem.

    Checks the versions of Python and packages, threads, GPU, memory, disk and data sets. Nothing is
    changed or downloaded.
    """
    from scmil.cli.doctor import examine

    checks = examine()
    if as_json:
        say_json([check._asdict() for check in checks])
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("", "", "found", "what to do", box=None, header_style="bold")
    for check in checks:
        mark = "[green]ok[/]" if check.ok else "[yellow]--[/]"
        table.add_row(mark, shown(check.name), shown(str(check.found)), shown(check.remedy or ""))
    Console().print(table)


# ----------------------------------------------------------------------------------------- listings


def _format_entry(value: Any) -> str:
    """Return the text of a table cell: yes, no or ? for booleans and None."""
    if value is None or isinstance(value, bool):
        return {True: "yes", False: "no", None: "?"}[value]
    return shown(value)


def _list_aggregators() -> Listing:
    from scmil.models import aggregators

    rows = [
        (entry.name, getattr(entry.factory, "permutation_invariant", None), entry.summary)
        for entry in aggregators.registry
    ]
    note = "With sparse coding: scmil.build_model(dim, classes, NAME, sparse_coding=True)"
    return ("name", "permutation invariant", "summary"), rows, note


def _list_datasets(data: Path | None) -> Listing:
    from scmil.bags.datasets import dataset_status

    rows = [
        (s.name, s.ready, s.summary, str(s.where or "") if s.ready else s.remedy or "")
        for s in dataset_status(data)
    ]
    return (
        ("name", "ready", "summary", "where"),
        rows,
        "A table of bags can be used as well: a .csv, .npz, .svm or .mat file.",
    )


def _list_encoders() -> Listing:
    from scmil.encoding.encoders import encoder_status

    header = ("name", "ready", "dim", "tile", "licence", "gated", "summary", "weights")
    rows = [
        (
            s.name,
            s.ready,
            str(s.dim or "?"),
            _describe_tile(s.size_px, s.mpps or ((s.mpp,) if s.mpp else ())),
            s.licence or "?",
            s.gated,
            s.summary,
            _describe_weights(s),
        )
        for s in encoder_status()
    ]
    note = (
        "All of one: scmil encoder NAME. Any timm model can be used as well: --encoder timm:NAME."
    )
    return header, rows, note


def _describe_weights(entry: Any) -> str:
    """Return in a word how to get the weights; `scmil encoder NAME` has the details."""
    if entry.ready:
        return "installed"
    if entry.gated:
        return "by request"
    if entry.remedy.startswith("It is downloaded"):
        return "download"
    return "by hand" if "--weights" in entry.remedy else "not available"


def _describe_tile(size_px: int | None, mpps: tuple[float, ...]) -> str:
    if size_px is None:
        return "?"
    resolutions = ", ".join(f"{mpp:g}" for mpp in mpps)
    return f"{size_px} px" + (f" at {resolutions} µm" if mpps else "")


def _list_features() -> Listing:
    from scmil.bags.datasets.feature_download import RECORD
    from scmil.bags.datasets.feature_sets import read_feature_sets

    rows = [
        (
            each.name,
            (each.folder() / RECORD).is_file(),
            each.gated,
            each.licence,
            each.summary,
            each.source,
        )
        for each in read_feature_sets().values()
    ]
    header = ("name", "ready", "gated", "licence", "summary", "source")
    return header, rows, "Size and encoders before a download: scmil get NAME --dry-run"


def _list_formats() -> Listing:
    from scmil.bags.formats import registry, writable

    written = writable()
    rows = [(entry.name, entry.name in written, entry.summary) for entry in registry]
    return (
        ("name", "written too", "summary"),
        rows,
        "Every command that reads bags reads folders in these formats.",
    )


def _list_presets() -> Listing:
    from scmil.slides.tissue import PRESETS

    rows = [
        (name, ", ".join(f"{key} {value}" for key, value in preset.items()))
        for name, preset in PRESETS.items()
    ]
    note = "To use one: scmil tile SLIDES --out WORK --preset NAME"
    return ("name", "how tissue is found"), rows, note


def _list_recipes() -> Listing:
    from scmil.training.recipes import registry

    return ("name", "summary"), [(entry.name, entry.summary) for entry in registry], ""
