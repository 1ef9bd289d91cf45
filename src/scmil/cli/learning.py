"""Verbs of learning: demo, run, report, get."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from scmil.cli import app

PANEL = "Learning"


@app.command(rich_help_panel=PANEL)
def demo(
    dataset: Annotated[str, typer.Option(help="musk1, musk2, elephant, or another: scmil ls datasets.")] = "musk1",
    folds: Annotated[int, typer.Option(min=2, help="Folds of the cross-validation.")] = 10,
    repeats: Annotated[int, typer.Option(min=1, help="How often the folds are dealt anew.")] = 2,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs a model.")] = 40,
    seed: Annotated[int, typer.Option(min=0, help="Of the folds, the initial weights and the order of bags.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder of the results; default: one below runs/.")] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Arms to train at the same time; default: one a core.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Compare a model with and without sparse coding on a real benchmark: about two minutes on two cores."""
    from scmil.demo import document
    from scmil.plan import make_plan

    plan = make_plan(document(dataset, folds, repeats, epochs, seed), "demo")
    if not as_json:
        typer.echo(f"{plan.title}\n{plan.about}\n{repeats} x {folds} folds, {epochs} epochs.", err=True)
    folder = out or Path("runs") / f"demo-{plan.datasets[0]}-{repeats}x{folds}-{epochs}-{seed}"
    _run_plan(plan, folder, jobs, None, None, as_json)


@app.command(rich_help_panel=PANEL)
def run(
    experiment: Annotated[Path, typer.Argument(help="An experiment file, such as experiments/quick_musk1.toml.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the results; default: runs/<name of the file>.")] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override, such as training.epochs=5. Repeatable."),
    ] = None,
    only: Annotated[str | None, typer.Option(help="Run the cells whose name fits, such as 'musk1--*'.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Cells to run at the same time; default: one a core.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder with data sets; default: $SCMIL_DATA.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the file, list the cells, and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Run a table of experiments. Stop it at any time: the same command goes on where it stopped.

    A cell is one arm on one data set, with all its folds. Each writes its own folder, and results.csv is gathered from them;
    at the end the report is written beside it.
    """
    from scmil.plan import read_plan

    plan = read_plan(experiment, changes or [], data, only)
    folder = out or Path("runs") / plan.name
    if dry_run:
        _list_cells(plan, folder, as_json)
        return
    _run_plan(plan, folder, jobs, only, data, as_json)


def _run_plan(plan: Any, folder: Path, jobs: int | None, only: str | None, data: Path | None, as_json: bool) -> None:
    """Run with progress, write the report, print the tables; a failed cell makes the command fail at its end."""
    from scmil import experiment as experiments
    from scmil.report import read_run, verdict, write_report

    quiet = as_json or not sys.stderr.isatty()
    with _grid_progress(plan, folder, only, quiet) as (progress, on_cell):
        outcome = experiments.run(plan, folder, jobs=jobs, only=only, data=data, progress=progress, on_cell=on_cell)
    pages = write_report(folder)
    if as_json:
        page = {"out": str(folder), "before": outcome.before, "finished": outcome.finished, "failed": outcome.failed}
        typer.echo(json.dumps({**page, **_as_page(read_run(folder)), "verdict": verdict(read_run(folder))}, indent=2))
    else:
        _print_run(folder)
        for name, cause in outcome.failed.items():
            typer.echo(f"failed: {name}: {cause}", err=True)
        typer.echo(f"\nReport: {pages[0]}")
    if outcome.failed:
        raise typer.Exit(1)


@app.command(rich_help_panel=PANEL)
def report(
    run: Annotated[Path, typer.Argument(help="The folder that scmil run wrote.")],
    formats: Annotated[list[str] | None, typer.Option("--format", help="html, md or tex; default: all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Write the report of a run again: a page that works offline, Markdown and LaTeX."""
    from scmil.report import FORMATS, read_run, verdict, write_report

    pages = write_report(run, formats or FORMATS)
    if as_json:
        typer.echo(json.dumps({"verdict": verdict(read_run(run)), "files": [str(page) for page in pages]}, indent=2))
        return
    _print_run(run)
    typer.echo("\n" + "\n".join(map(str, pages)))


@app.command(rich_help_panel=PANEL)
def get(
    name: Annotated[str, typer.Argument(help="fox, tiger, elephant, musk1 or musk2.")],
    url: Annotated[
        str | None, typer.Option(help="Another place to download from; the content is checked all the same.")
    ] = None,
) -> None:
    """Download a data set from its public original, and check that its content is the known one."""
    from scmil.datasets import fetch

    typer.echo(f"{name} is ready: {fetch(name, url)}")


def _list_cells(plan: Any, folder: Path, as_json: bool) -> None:
    from scmil.experiment import RESULT, cell_folder

    rows = [(cell.name, cell.protocols, (cell_folder(folder, cell) / RESULT).exists()) for cell in plan.cells]
    if as_json:
        keys = ("cell", "protocols", "done")
        typer.echo(json.dumps([dict(zip(keys, row, strict=True)) for row in rows], indent=2))
        return
    for name, protocols, done in rows:
        typer.echo(f"{'done' if done else '    '}  {name}  ({', '.join(protocols)})")
    typer.echo(f"{len(rows)} cells, {sum(row[2] for row in rows)} done, into {folder}")


@contextmanager
def _grid_progress(plan: Any, folder: Path, only: str | None, quiet: bool) -> Iterator[tuple[Any, Any]]:
    """A bar for the grid with the time left, and one for every cell that is running."""
    if quiet:
        yield None, (lambda name: typer.echo(f"done: {name}", err=True))
        return
    import fnmatch

    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from scmil.experiment import RESULT, cell_folder

    cells = [cell for cell in plan.cells if only is None or fnmatch.fnmatch(cell.name, only)]
    waiting = [cell for cell in cells if not (cell_folder(folder, cell) / RESULT).exists()]
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as bars:
        # The grid counts epochs of all cells, so that its time left is known before the first cell ends.
        grid = bars.add_task("all cells, epochs", total=None)
        tasks: dict[str, Any] = {}
        seen: dict[str, int] = {}

        def progress(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(f"  {name}", total=total)
                bars.update(grid, total=total * len(waiting))
            bars.update(tasks[name], completed=done)
            bars.advance(grid, done - seen.get(name, 0))
            seen[name] = done

        def on_cell(name: str) -> None:
            if name in tasks:
                bars.remove_task(tasks[name])

        yield progress, on_cell


def _as_page(run: Any) -> dict[str, Any]:
    """The numbers of the run for programs."""
    return {
        "results": [
            {**key._asdict(), "accuracy": result.metrics["accuracy"].mean, "auc": result.metrics["auc"].mean}
            for key, result in run.results.items()
        ]
    }


def _print_run(folder: Path) -> None:
    """The tables and the verdict, for a terminal."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from scmil.report import comparisons_for_terminal, read_run, rows_for_terminal, verdict

    run, console = read_run(folder), Console()
    for part in [*rows_for_terminal(run), comparisons_for_terminal(run)]:
        if part is None:
            continue
        table = Table(*map(escape, part.columns), box=None, header_style="bold")
        for row in part.rows:
            table.add_row(*(escape(str(value)) for value in row))
        console.print(f"[bold]{escape(part.title)}[/]")
        console.print(table)
        if part.note:
            console.print(f"[yellow]{escape(part.note)}[/]")
        console.print()
    console.print(escape(verdict(run)))
