"""Verbs of learning: train, compare, predict, run, report, get."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from scmil.cli import app
from scmil.cli.options import (Missing, On, Overwrite, ShardOf, TaskCpus, TaskGpus, cluster_of, device_of, progress_bars, say, say_failed, shown)
from scmil.core.files import printable

PANEL = "Learning"

Bags = Annotated[
    str,
    typer.Argument(
        help="A folder of bags, ours or another tool's; a table (.csv, .npz); or a data set: scmil ls datasets."
    ),
]
Labels = Annotated[
    Path | None,
    typer.Argument(help="A table: case_id, slide_id, label, or the like. Not needed if the bags have their labels."),
]
LabelColumn = Annotated[str | None, typer.Option("--label", help="The column of the labels, if its name is unusual.")]
Key = Annotated[str | None, typer.Option(help="Which encoder, if the folder has several.")]
Format = Annotated[str | None, typer.Option("--format", help="The format of the folder, if it is not detected.")]
DropUnlabelled = Annotated[
    bool, typer.Option("--drop-unlabelled", help="Leave bags without a label out; else they are refused.")
]
Standardise = Annotated[
    bool | None,
    typer.Option(
        "--standardise/--no-standardise",
        help="Features to zero mean and unit variance on the training part. [default: for tables, not for folders]",
    ),
]
Epochs = Annotated[int | None, typer.Option(min=1, help="Instead of the recipe's.")]
RecipeName = Annotated[
    str, typer.Option("--recipe", help="official: the aggregator's own; or by name, such as paper-slides (200 epochs).")
]
Seed = Annotated[int, typer.Option(min=0, help="Of the split, the initial weights and the order of bags.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps; auto takes a GPU if there is one.")]
Json = Annotated[bool, typer.Option("--json", help="For programs.")]


@app.command(rich_help_panel=PANEL)
def train(
    bags: Bags,
    labels: Labels = None,
    out: Annotated[Path, typer.Option(help="Folder of the model.")] = Path("model"),
    aggregator: Annotated[str, typer.Option(help="scmil ls aggregators.")] = "abmil-gated",
    sparse_coding: Annotated[bool, typer.Option("--sc/--no-sc", help="Sparse coding in front of it.")] = False,
    label: LabelColumn = None,
    folds: Annotated[
        int | None, typer.Option(min=2, help="Cross-validate, then let the model learn from all bags.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="How often the folds are dealt anew.")] = 1,
    epochs: Epochs = None,
    patience: Annotated[int, typer.Option(min=0, help="Stop if the best epoch is that many ago; 0: never.")] = 20,
    recipe: RecipeName = "official",
    class_weights: Annotated[
        str | None, typer.Option(help="balanced, or a number for each class: 1,2.5. Rare classes then count more.")
    ] = None,
    valid: Annotated[float, typer.Option(min=0, max=1, help="Share of patients to choose the epoch on.")] = 0.2,
    test: Annotated[float, typer.Option(min=0, max=1, help="Share of patients to test on.")] = 0.2,
    key: Key = None,
    format: Format = None,
    missing: Missing = None,
    drop_unlabelled: DropUnlabelled = False,
    standardise: Standardise = None,
    device: Device = "auto",
    precision: Annotated[
        str, typer.Option(help="Of products: float32, or bfloat16, twice as fast where the processor knows it.")
    ] = "float32",
    seed: Seed = 0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Refuse to begin anew. The same command resumes anyway.")
    ] = False,
    overwrite: Overwrite = False,
    data: Annotated[Path | None, typer.Option(help="Folder with data sets; default: $SCMIL_DATA.")] = None,
    as_json: Json = False,
) -> None:
    """Train a model on bags and labels: scmil train bags/ labels.csv --aggregator abmil-gated --sc --out model/

    Patients are divided into a training, a validation and a test part, stratified by class. The model is that of the epoch
    with the best validation AUC. OUT gets the model, predictions, metrics with intervals and a model card. Stop it at any
    time: the same command goes on where it stopped, and ends with the same model.
    """
    from scmil import studies as study

    opened = study.open_data(
        bags,
        labels,
        label=label,
        key=key,
        format=format,
        missing=missing,
        data=data,
        drop_unlabelled=drop_unlabelled,
        standardise=standardise,
    )
    _say_notes(opened, as_json)
    with _stages(as_json) as progress:
        trained = study.train(
            opened, out, aggregator=aggregator, sparse_coding=sparse_coding, recipe=recipe, epochs=epochs,
            patience=patience or None, folds=folds, repeats=repeats, valid=valid, test=test,
            class_weights=_weights(class_weights), device=device_of(device), precision=precision, seed=seed,
            resume=resume, overwrite=overwrite, progress=progress,
        )  # fmt: skip
    _say_notes(trained, as_json)
    if as_json:
        page = {"out": str(out), "metrics": trained.metrics, "study": trained.study, "notes": trained.notes}
        say(json.dumps(page, indent=2))
        return
    for name in ("test", "valid"):
        for level, page in trained.metrics.get(name, {}).items():
            said = ", ".join(f"{_metric(metric)} {_interval(page[metric])}" for metric in ("auc", "accuracy"))
            say(f"{name}, {page['n']} {level}s of {page['patients']} patients: {said}")
    for row in trained.metrics.get("cross_validation", []):
        words = f"{row['repeats']} x {row['folds']} folds, {row.get('level', 'slide')}s"
        say(f"cross-validation, {words}: AUC {row['auc']:.3f}, accuracy {row['accuracy']:.3f}")
    say(f"Model: {out} (look at {out / 'report.html'}, read {out / 'MODEL_CARD.md'})")
    say(f"New bags: scmil predict {out} NEW_BAGS --out predictions.csv")


@app.command(rich_help_panel=PANEL)
def compare(
    bags: Bags,
    labels: Labels = None,
    aggregator: Annotated[
        str, typer.Option(help="One or several, with commas: scmil ls aggregators.")
    ] = "abmil-gated,dsmil,transmil",
    out: Annotated[Path | None, typer.Option(help="Folder of the results; default: one below runs/.")] = None,
    folds: Annotated[int, typer.Option(min=2, help="Folds of the cross-validation.")] = 5,
    repeats: Annotated[int, typer.Option(min=1, help="How often the folds are dealt anew.")] = 3,
    label: LabelColumn = None,
    epochs: Epochs = None,
    recipe: RecipeName = "official",
    selection: Annotated[
        str, typer.Option(help="nested: epoch and threshold by a validation part; last: nothing is chosen.")
    ] = "nested",
    key: Key = None,
    format: Format = None,
    missing: Missing = None,
    drop_unlabelled: DropUnlabelled = False,
    standardise: Standardise = None,
    seed: Seed = 0,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Arms to train at the same time; default: one a core.")
    ] = None,
    overwrite: Overwrite = False,
    data: Annotated[Path | None, typer.Option(help="Folder with data sets; default: $SCMIL_DATA.")] = None,
    as_json: Json = False,
) -> None:
    """Does sparse coding help on these bags? scmil compare bags/ labels.csv --aggregator abmil-gated,dsmil

    Each aggregator is trained in three arms on the same splits: without sparse coding, with it, and with a plain layer of
    the same width in its place. Beside them stands a logistic regression on the mean and the maximum of each bag. The
    report has differences with intervals, tests, cost, and a verdict. The same command goes on where it was stopped.
    """
    from scmil import studies as study
    from scmil.bags.checks import survey

    opened = study.open_data(
        bags,
        labels,
        label=label,
        key=key,
        format=format,
        missing=missing,
        data=data,
        drop_unlabelled=drop_unlabelled,
        standardise=standardise,
    )
    _say_notes(opened, as_json)
    names = [name.strip() for name in aggregator.split(",") if name.strip()]
    plan = study.comparison_plan(
        opened, names, data, folds=folds, repeats=repeats, seed=seed, epochs=epochs, recipe=recipe, selection=selection
    )
    survey(opened.bags)
    folder = out or Path("runs") / f"{plan.name}-{repeats}x{folds}-{seed}"
    run_plan(plan, folder, jobs, None, data, as_json, overwrite=overwrite)


@app.command(rich_help_panel=PANEL)
def predict(
    model: Annotated[Path, typer.Argument(help="A folder that scmil train wrote.")],
    bags: Annotated[
        list[Path], typer.Argument(help="A folder of bags, a table, or slides, which are tiled and encoded on the way.")
    ],
    out: Annotated[Path, typer.Option(help="The table of predictions.")] = Path("predictions.csv"),
    work: Annotated[
        Path | None, typer.Option(help="Where tiles and bags of slides are kept; default: they are thrown away.")
    ] = None,
    key: Key = None,
    format: Format = None,
    preset: Annotated[str, typer.Option(help="How the tissue of slides is found; see scmil tile.")] = "default",
    mpp_of: Annotated[float | None, typer.Option(help="Microns per pixel of slides that do not say them.")] = None,
    weights: Annotated[Path | None, typer.Option(help="A file of weights for the encoder of slides.")] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            help="The encoder of slides, as the model names it: then its weights may be downloaded. [default: only those "
            "that are on this computer]"
        ),
    ] = None,
    device: Device = "auto",
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Apply a model to new bags or slides: scmil predict model/ new_bags/ --out predictions.csv

    Bags of another encoder, tile size or resolution than the model's are refused. What cannot be read is written to
    failures.csv beside OUT, and the others go on.
    """
    import tempfile

    from scmil import studies as study
    from scmil.core.jobs.work import Ledger

    place = device_of(device)
    study.load_study(model)
    study.outputs_of(out, overwrite)
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as temporary, _stages(as_json) as progress:
        if study.are_slides(bags):
            home = work or Path(temporary)
            opened, failed = study.encode_for(
                model, bags, home, preset=preset, mpp_of=mpp_of, weights=weights, encoder=encoder, device=place,
                progress=progress,
            )  # fmt: skip
            for name, cause in failed.items():
                Ledger(out.parent).add(name, "predict", cause)
        else:
            opened = study.open_bags_to_predict(bags, key=key, format=format)
        rows = []
        if opened is not None:
            counted = None if progress is None else lambda done: progress("predicting", done, len(opened))
            predicted = study.predict_folder(model, opened, out, device=place, overwrite=overwrite, progress=counted)
            rows, failed = predicted.rows, {**failed, **predicted.failed}
    if as_json:
        say(json.dumps({"out": str(out), "predictions": rows, "failed": failed}, indent=2))
    else:
        for row in rows[:10]:
            chances = ", ".join(
                f"{name[2:]} {float(value):.3f}" for name, value in row.items() if name.startswith("p_")
            )
            say(printable(f"{row['slide_id']}: {row['y_pred']} ({chances})"))
        say(f"{len(rows)} predictions in {out}" if rows else "nothing could be predicted")
        say_failed(failed)
    if failed:
        raise typer.Exit(1)


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
    shard: ShardOf = None,
    on: On = None,
    task_cpus: TaskCpus = 1,
    task_gpus: TaskGpus = 0,
    data: Annotated[Path | None, typer.Option(help="Folder with data sets; default: $SCMIL_DATA.")] = None,
    overwrite: Overwrite = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the file, list the cells, and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Run a table of experiments. Stop it at any time: the same command goes on where it stopped.

    A cell is one arm on one data set, with all its folds. Each writes its own folder, and results.csv is gathered from them;
    at the end the report is written beside it.
    """
    from scmil.studies.runner import chosen_cells
    from scmil.studies.plan import read_plan
    from scmil.core.jobs.shards import parse_shard

    part, cluster = parse_shard(shard), cluster_of(on, task_cpus, task_gpus)
    plan = read_plan(experiment, changes or [], data, only)
    folder = out or Path("runs") / plan.name
    if dry_run:
        _list_cells(chosen_cells(plan, only, part), folder, as_json)
        return
    execute = None
    if cluster:
        from scmil.studies.cluster import cells_on

        execute = cells_on(cluster)
    run_plan(plan, folder, jobs, only, data, as_json, shard=part, execute=execute, overwrite=overwrite)


def run_plan(
    plan: Any,
    folder: Path,
    jobs: int | None,
    only: str | None,
    data: Path | None,
    as_json: bool,
    before_report: Callable[[], None] | None = None,
    **where: Any,
) -> None:
    """Run with progress, write the report, print the tables; a failed cell makes the command fail at its end.

    `where` is what `experiment.run` takes of shards, clusters and results of other data.
    """
    from scmil.studies import runner as experiments
    from scmil.report import read_run, verdict, write_report
    from scmil.core.jobs.shards import ALL

    quiet = as_json or not sys.stderr.isatty()
    cells = experiments.chosen_cells(plan, only, where.get("shard", ALL))
    with _grid_progress(cells, folder, quiet) as (progress, on_cell):
        outcome = experiments.run(
            plan, folder, jobs=jobs, only=only, data=data, progress=progress, on_cell=on_cell, **where
        )
    if before_report:
        before_report()
    _say_notes(outcome, as_json)
    pages = write_report(folder)
    if as_json:
        page = {"out": str(folder), "before": outcome.before, "finished": outcome.finished, "failed": outcome.failed}
        page["notes"] = list(outcome.notes)
        say(json.dumps({**page, **_as_page(read_run(folder)), "verdict": verdict(read_run(folder))}, indent=2))
    else:
        _print_run(folder)
        say_failed(outcome.failed, most=len(outcome.failed))
        say(f"\nReport: {pages[0]}")
    if outcome.failed:
        raise typer.Exit(1)


@app.command(rich_help_panel=PANEL)
def report(
    run: Annotated[Path, typer.Argument(help="The folder that scmil run wrote.")],
    formats: Annotated[list[str] | None, typer.Option("--format", help="html, md or tex; default: all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Write the report of a run again: a page that works offline, Markdown and LaTeX."""
    from scmil.studies.runner import gather_again
    from scmil.report import FORMATS, read_run, verdict, write_report

    gather_again(run)
    pages = write_report(run, formats or FORMATS)
    if as_json:
        say(json.dumps({"verdict": verdict(read_run(run)), "files": [str(page) for page in pages]}, indent=2))
        return
    _print_run(run)
    say("\n" + "\n".join(map(str, pages)))


@app.command(rich_help_panel=PANEL)
def get(
    name: Annotated[str, typer.Argument(help="fox, tiger, elephant, musk1 or musk2.")],
    url: Annotated[
        str | None, typer.Option(help="Another place to download from; the content is checked all the same.")
    ] = None,
) -> None:
    """Download a data set from its public original, and check that its content is the known one."""
    from scmil.bags.datasets import fetch

    say(f"{name} is ready: {fetch(name, url)}")


def _list_cells(cells: Any, folder: Path, as_json: bool) -> None:
    from scmil.studies.runner import is_done

    rows = [(cell.name, cell.protocols, is_done(folder, cell)) for cell in cells]
    if as_json:
        keys = ("cell", "protocols", "done")
        say(json.dumps([dict(zip(keys, row, strict=True)) for row in rows], indent=2))
        return
    for name, protocols, done in rows:
        say(f"{'done' if done else '    '}  {name}  ({', '.join(protocols)})")
    say(f"{len(rows)} cells, {sum(row[2] for row in rows)} done, into {folder}")


@contextmanager
def _grid_progress(cells: Any, folder: Path, quiet: bool) -> Iterator[tuple[Any, Any]]:
    """A bar for the grid with the time left, and one for every cell that is running."""
    if quiet:
        yield None, (lambda name: say(f"done: {name}", err=True))
        return
    from scmil.studies.runner import is_done

    waiting = [cell for cell in cells if not is_done(folder, cell)]
    with progress_bars() as bars:
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
    from rich.table import Table

    from scmil.report import comparisons_for_terminal, read_run, rows_for_terminal, verdict

    run, console = read_run(folder), Console()
    for part in [*rows_for_terminal(run), comparisons_for_terminal(run)]:
        if part is None:
            continue
        table = Table(*map(shown, part.columns), box=None, header_style="bold")
        for row in part.rows:
            table.add_row(*(shown(str(value)) for value in row))
        console.print(f"[bold]{shown(part.title)}[/]")
        console.print(table)
        if part.note:
            console.print(f"[yellow]{shown(part.note)}[/]")
        console.print()
    console.print(shown(verdict(run)))


def _say_notes(opened: Any, as_json: bool) -> None:
    for note in opened.notes if not as_json else ():
        say(note, err=True)


def _weights(text: str | None) -> str | list[float] | None:
    from scmil.errors import OptionError

    if text is None or text == "balanced":
        return text
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise OptionError(f"--class-weights {text}: 'balanced', or a number for each class, such as 1,2.5.") from None


def _metric(name: str) -> str:
    return {"auc": "AUC"}.get(name, name)


def _interval(page: dict[str, float | None]) -> str:
    value, low, high = ("–" if number is None else f"{number:.3f}" for number in page.values())
    return f"{value} ({low} to {high})"


@contextmanager
def _stages(quiet: bool) -> Iterator[Any]:
    """A bar for whatever is being done; nothing where nobody looks."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with progress_bars(console=Console(stderr=True)) as bars:
        tasks: dict[str, Any] = {}

        def progress(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done)

        yield progress
