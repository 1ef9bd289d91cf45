"""The command test."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from scmil.cli import app
from scmil.cli.options import (
    TRAINING,
    Device,
    EventColumn,
    EventValue,
    Format,
    Json,
    Key,
    LabelColumn,
    Missing,
    Model,
    Overwrite,
    TimeColumn,
    device_of,
)
from scmil.cli.output import say, say_failed, say_json, say_notes, three_decimals
from scmil.cli.progress import progress_bars
from scmil.cli.train import DropUnlabelled, Labels
from scmil.core.run_format import COMBINED
from scmil.core.text import printable


@app.command("test", rich_help_panel=TRAINING)
def evaluate_(
    model: Model,
    bags: Annotated[
        Path,
        typer.Argument(
            help="Folder of bags in any supported format (scmil ls formats), or a table of bags "
            "(.csv, .npz, .svm, .mat)."
        ),
    ],
    labels: Labels = None,
    out: Annotated[Path, typer.Option(help="Output folder.")] = Path("test"),
    exclude_overlap: Annotated[
        bool,
        typer.Option(
            "--exclude-overlap",
            help="Leave out slides that the model was trained on. Without it they are an error.",
        ),
    ] = False,
    allow_overlap: Annotated[
        bool,
        typer.Option(
            "--allow-overlap",
            help="Evaluate slides that the model was trained on, with a warning on the page.",
        ),
    ] = False,
    label: LabelColumn = None,
    time: TimeColumn = None,
    event: EventColumn = None,
    event_value: EventValue = None,
    key: Key = None,
    format_name: Format = None,
    missing: Missing = None,
    drop_unlabelled: DropUnlabelled = False,
    device: Device = "auto",
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Test a trained model on another cohort (external validation).

    Example: `scmil test model/ other_hospital/ labels.csv --out test/`

    Slides and patients that the model was trained on are found by their ids and by their features,
    also under other names, and are an error. The output folder contains metrics with confidence
    intervals, calibration, the change against the internal test split or cross-validation, a
    comparison of the two cohorts, the predictions, and a page with all of them. The task and its
    columns are those of the training; name the columns if they differ in this table.
    """
    from scmil import studies as study
    from scmil.errors import OptionError

    if exclude_overlap and allow_overlap:
        raise OptionError("--exclude-overlap and --allow-overlap were both given. Choose one.")
    rule = "exclude" if exclude_overlap else "allow" if allow_overlap else "reject"
    options = study.CohortOptions(
        label, key, format_name, missing, drop_unlabelled, time, event, event_value
    )
    with progress_bars(as_json) as bars:
        tested = study.evaluate_cohort(
            model,
            bags,
            labels,
            out,
            options=options,
            overlap=rule,
            device=device_of(device),
            overwrite=overwrite,
            progress=bars.callback,
        )
    say_notes(tested, as_json)
    if as_json:
        say_json({"out": str(out), "metrics": tested.metrics, "failed": tested.failed})
    else:
        _print_test(tested.metrics, out)
        say_failed(tested.failed)
    if tested.failed:
        raise typer.Exit(1)


# ------------------------------------------------------------------------------------------ helpers


def _print_test(page: dict[str, Any], out: Path) -> None:
    """Print the first metrics with their change, and the overlap."""
    found = page["overlap"]
    if found["fitted"]:
        done = "left out" if found["rule"] == "exclude" else "evaluated, with a bias"
        say(f"{found['fitted']} slides were used to train the model; they were {done}.", err=True)
    internal = page["internal"]
    if page["task"] == COMBINED:
        for name, own in page["metrics"].items():
            _print_levels(own, page["change"][name], f"{name}, ")
        internal = next(filter(None, page["internal"].values()), None)
    else:
        _print_levels(page["metrics"], page["change"])
    if internal is not None:
        say(f"Changes are differences to {internal['source']}.")
    say(f"Report: {out / 'report.html'}")


def _print_levels(metrics: dict[str, Any], changes: dict[str, Any], first: str = "") -> None:
    """Print the first metrics of slides and patients."""
    for level in ("slide", "patient"):
        own = metrics.get(level)
        if own is None:
            continue
        of = f" of {own['patients']} patients" if level == "slide" else ""
        say(printable(f"{first}{own['n']} {level}s{of}:"))
        for name in [name for name in own if isinstance(own[name], dict)][:4]:
            change = changes.get(level, {}).get(name)
            words = f", change {_format(change)}" if change else ""
            say(printable(f"  {name.replace('_', ' ')} {_format(own[name])}{words}"))


def _format(values: dict[str, float | None]) -> str:
    value, low, high = map(three_decimals, values.values())
    return f"{value} (95 % interval {low} to {high})"
