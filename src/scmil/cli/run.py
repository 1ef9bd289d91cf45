"""The commands run, report and get."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scmil.cli import app
from scmil.cli.options import (
    TRAINING,
    Data,
    Jobs,
    Json,
    On,
    Overwrite,
    ShardOf,
    TaskCpus,
    TaskGpus,
    cluster_of,
)
from scmil.cli.output import say, say_failed, say_json, say_notes, shown
from scmil.cli.progress import run_progress

if TYPE_CHECKING:
    from scmil.studies.data import Data as OpenedData


@app.command("run", rich_help_panel=TRAINING)
def run_(
    experiment: Annotated[
        Path,
        typer.Argument(help="Experiment config, such as experiments/quick_musk1.toml."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Output folder of the results.", show_default="runs/NAME_OF_THE_FILE"),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Override a setting, such as training.epochs=5. May be repeated.",
        ),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(help="Execute only the runs whose name matches, such as 'musk1--*'."),
    ] = None,
    jobs: Jobs = None,
    shard: ShardOf = None,
    on: On = None,
    task_cpus: TaskCpus = 1,
    task_gpus: TaskGpus = 0,
    data: Data = None,
    overwrite: Overwrite = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the config, list the runs, and exit.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Execute the runs of an experiment config.

    Example: `scmil run experiments/quick_musk1.toml`

    A run is one method on one data set with all its folds. Each run has its own folder;
    results.csv collects their results, and the report is written next to it. An interrupted
    command resumes when it is repeated.
    """
    from scmil.core.jobs.shards import parse_shard
    from scmil.studies.data import inferred_columns
    from scmil.studies.plan import read_plan
    from scmil.studies.runner import chosen_cells

    part, cluster = parse_shard(shard), cluster_of(on, task_cpus, task_gpus)
    plan = read_plan(experiment, changes or [], data, only)
    folder = out or Path("runs") / plan.name
    if dry_run:
        _list_runs(chosen_cells(plan, only, part), folder, as_json)
        return
    execute = None
    if cluster:
        from scmil.studies.cluster import cells_on

        execute = cells_on(cluster)
    notes = inferred_columns(cell.settings.data for cell in chosen_cells(plan, only, part))
    for note in notes if not as_json else ():
        say(note, err=True)
    run_plan(
        plan,
        folder,
        jobs,
        only,
        data,
        as_json,
        shard=part,
        execute=execute,
        overwrite=overwrite,
        notes=notes,
    )


def run_plan(
    plan: Any,
    folder: Path,
    jobs: int | None,
    only: str | None,
    data: Path | None,
    as_json: bool,
    before_report: Callable[[], None] | None = None,
    start: Callable[..., Any] | None = None,
    opened: OpenedData | None = None,
    notes: Sequence[str] = (),
    **options: Any,
) -> None:
    """Execute a plan with progress bars, write the report and print the tables.

    The command exits with code 1 after the report if a run failed. The JSON output contains the
    notes and columns of `opened`, the data of a comparison, or the given notes. `options` are
    passed on to `runner.run`: the shard, the cluster, whether to overwrite.
    """
    from scmil.core.jobs.shards import ALL
    from scmil.report import read_run, verdict, write_report
    from scmil.studies import runner as experiments

    cells = experiments.chosen_cells(plan, only, options.get("shard", ALL))
    with run_progress(cells, folder, as_json) as (progress, on_cell):
        outcome = (start or experiments.run)(
            plan,
            folder,
            jobs=jobs,
            only=only,
            data=data,
            progress=progress,
            on_cell=on_cell,
            **options,
        )
    if before_report:
        before_report()
    say_notes(outcome, as_json)
    pages = write_report(folder)
    if as_json:
        result = read_run(folder)
        say_json(
            {
                "out": str(folder),
                "before": outcome.before,
                "finished": outcome.finished,
                "failed": outcome.failed,
                "notes": [*(opened.notes if opened else notes), *outcome.notes],
                **({"columns": dict(opened.columns)} if opened else {}),
                "results": _collect_means(result),
                "verdict": verdict(result),
            }
        )
    else:
        _print_run(folder)
        say_failed(outcome.failed, most=len(outcome.failed))
        say(f"\nReport: {pages[0]}")
    if outcome.failed:
        raise typer.Exit(1)


@app.command(rich_help_panel=TRAINING)
def report(
    run: Annotated[Path, typer.Argument(help="Output folder of scmil run or scmil compare.")],
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format", help="html, md or tex. May be repeated.", show_default="all three"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the report of an experiment again: HTML, Markdown and LaTeX.

    Example: `scmil report runs/quick_musk1`

    The HTML page is a single file that needs no network.
    """
    from scmil.report import FORMATS, read_run, verdict, write_report
    from scmil.studies.runner import gather_again

    gather_again(run)
    pages = write_report(run, formats or FORMATS)
    if as_json:
        say_json({"verdict": verdict(read_run(run)), "files": [str(page) for page in pages]})
        return
    _print_run(run)
    say("\n" + "\n".join(map(str, pages)))


# ------------------------------------------------------------------------------------------ helpers


def _list_runs(cells: Any, folder: Path, as_json: bool) -> None:
    """Print the runs of a plan and which of them are done."""
    from scmil.studies.runner import is_done

    rows = [(cell.name, cell.protocols, is_done(folder, cell)) for cell in cells]
    if as_json:
        keys = ("cell", "protocols", "done")
        say_json([dict(zip(keys, row, strict=True)) for row in rows])
        return
    for name, protocols, done in rows:
        say(f"{'done' if done else '    '}  {name}  ({', '.join(protocols)})")
    say(f"{len(rows)} runs, {sum(row[2] for row in rows)} done; output folder: {folder}")


def _collect_means(run: Any) -> list[dict[str, Any]]:
    """Return the means of the main metrics of every result, such as accuracy and AUC."""
    return [
        {
            "arm": key.method,
            "dataset": key.dataset,
            "protocol": key.protocol,
            **{name: result.metrics[name].mean for name in run.headline if name in result.metrics},
        }
        for key, result in run.results.items()
    ]


def _print_run(folder: Path) -> None:
    """Print the tables and the summary of an experiment."""
    from rich.console import Console
    from rich.table import Table

    from scmil.report import comparisons_for_terminal, read_run, rows_for_terminal, verdict

    run, console = read_run(folder), Console()
    for section in [*rows_for_terminal(run), comparisons_for_terminal(run)]:
        if section is None:
            continue
        table = Table(*map(shown, section.columns), box=None, header_style="bold")
        for row in section.rows:
            table.add_row(*(shown(str(value)) for value in row))
        console.print(f"[bold]{shown(section.title)}[/]")
        console.print(table)
        if section.note:
            console.print(f"[yellow]{shown(section.note)}[/]")
        console.print()
    console.print(shown(verdict(run)))
