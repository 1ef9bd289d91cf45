"""Verbs that only look: ls, doctor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from scmil.cli import app
from scmil.cli.options import say, shown

PANEL = "Looking around"


@app.command("ls", rich_help_panel=PANEL)
def list_(
    kind: Annotated[
        str, typer.Argument(help="aggregators, datasets, encoders, formats, presets or recipes.")
    ] = "aggregators",
    data: Annotated[Path | None, typer.Option(help="Folder with data sets; default: $SCMIL_DATA.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """List what can be named: aggregators, data sets and encoders (which are ready, and how to get the others), and more."""
    from scmil.errors import OptionError

    known = {
        "aggregators": _aggregators,
        "datasets": lambda: _datasets(data),
        "encoders": _encoders,
        "formats": _formats,
        "presets": _presets,
        "recipes": _recipes,
    }
    if kind not in known:
        raise OptionError(f"scmil ls {kind}: unknown. Known: {', '.join(known)}.")
    header, rows, closing = known[kind]()
    if as_json:
        keys = [title.replace(" ", "_") for title in header]
        say(json.dumps([dict(zip(keys, row, strict=True)) for row in rows], indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(*header, box=None, header_style="bold")
    words = {True: "yes", False: "no", None: "?"}
    for row in rows:
        table.add_row(*(words[value] if value is None or isinstance(value, bool) else shown(value) for value in row))
    Console().print(table)
    if closing:
        say(f"\n{closing}")


Listing = tuple[tuple[str, ...], list[tuple[Any, ...]], str]


def _aggregators() -> Listing:
    from scmil.models import aggregators

    rows = [(e.name, getattr(e.factory, "permutation_invariant", None), e.summary) for e in aggregators.registry]
    closing = "Each takes sparse coding: scmil.build_model(dim, classes, NAME, sparse_coding=True)"
    return ("name", "permutation invariant", "summary"), rows, closing


def _datasets(data: Path | None) -> Listing:
    from scmil.bags.datasets import status

    rows = [(s.name, s.ready, s.summary, str(s.where or "") if s.ready else s.remedy or "") for s in status(data)]
    return ("name", "ready", "summary", "where"), rows, "Any table of bags works too: a .csv, .npz, .svm or .mat file."


def _encoders() -> Listing:
    from scmil.encoding.encoders import status

    header = ("name", "ready", "dim", "tile", "summary", "weights")
    rows = [
        (
            s.name,
            s.ready,
            str(s.dim or "?"),
            f"{s.size_px} px" + (f" at {s.mpp:g} µm" if s.mpp else "") if s.size_px else "?",
            s.summary,
            "here" if s.ready else s.remedy.partition(". ")[0].partition(" (file")[0],
        )
        for s in status()
    ]
    return header, rows, "Any model of timm works too: --encoder timm:NAME."


def _formats() -> Listing:
    from scmil.bags.formats import registry, writable

    written = writable()
    rows = [(entry.name, entry.name in written, entry.summary) for entry in registry]
    return ("name", "written too", "summary"), rows, "Every verb that takes bags takes folders of these."


def _presets() -> Listing:
    from scmil.slides.tissue import PRESETS

    rows = [(name, ", ".join(f"{key} {value}" for key, value in preset.items())) for name, preset in PRESETS.items()]
    return ("name", "how tissue is found"), rows, "scmil tile SLIDES --out WORK --preset NAME"


def _recipes() -> Listing:
    from scmil.training.recipes import registry

    return ("name", "summary"), [(entry.name, entry.summary) for entry in registry], ""


@app.command(rich_help_panel=PANEL)
def doctor(as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False) -> None:
    """Look at versions, threads, data and extras; each problem comes with the command that fixes it."""
    from scmil.cli.doctor_checks import examine

    checks = examine()
    if as_json:
        say(json.dumps([check._asdict() for check in checks], indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("", "", "found", "what to do", box=None, header_style="bold")
    for check in checks:
        mark = "[green]ok[/]" if check.ok else "[yellow]--[/]"
        table.add_row(mark, shown(check.name), shown(str(check.found)), shown(check.remedy or ""))
    Console().print(table)
