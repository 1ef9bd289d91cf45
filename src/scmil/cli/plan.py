"""The command plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scmil.cli import app
from scmil.cli.options import TRAINING, Json, LabelColumn, Missing
from scmil.cli.output import say, say_json, three_decimals

if TYPE_CHECKING:
    from scmil.bags.patient_counts import PatientCounts
    from scmil.stats.sample_size import ExpectedInterval

ASSUMED = (0.6, 0.7, 0.8, 0.9, 0.95)
ASSUMPTIONS = {
    "class": "Score interval with the variance of normal scores at the assumed AUC, as in the "
    "reports; more than two classes: mean over the classes, each against the rest.",
    "survival": "Score interval with 1.5 samples of each class per event at the assumed "
    "concordance, as in the reports.",
}
INDEPENDENT = (
    "Patients are independent and the shares of the cohort stay the same. Folds: every patient is "
    "tested once, and that the models share training patients is neglected."
)


@app.command("plan", rich_help_panel=TRAINING)
def plan_(
    labels: Annotated[
        Path, typer.Argument(help="Table of labels, with columns such as case_id and label.")
    ],
    label: LabelColumn = None,
    time: Annotated[
        str | None,
        typer.Option(help="Column of the times to an event.", show_default="detected"),
    ] = None,
    event: Annotated[
        str | None, typer.Option(help="Column of the events.", show_default="detected")
    ] = None,
    event_value: Annotated[
        str | None,
        typer.Option(help="Word of the event column that means an event; others are censored."),
    ] = None,
    missing: Missing = None,
    auc: Annotated[
        list[float] | None,
        typer.Option(help="Assumed AUC. May be repeated.", show_default="0.6 to 0.95"),
    ] = None,
    c_index: Annotated[
        list[float] | None,
        typer.Option(
            "--c-index",
            help="Assumed concordance of a survival model. May be repeated.",
            show_default="0.6 to 0.95",
        ),
    ] = None,
    test: Annotated[float, typer.Option(help="Fraction of patients in the test split.")] = 0.2,
    folds: Annotated[int, typer.Option(min=2, help="Number of cross-validation folds.")] = 5,
    width: Annotated[
        float, typer.Option(help="Width for which the number of patients is computed.")
    ] = 0.1,
    as_json: Json = False,
) -> None:
    """Expected width of the 95 % interval for a label table, before anything is encoded.

    Example: `scmil plan labels.csv --auc 0.8 --width 0.1`

    Prints the interval of the AUC or concordance that a test split and a cross-validation of these
    patients can be expected to give, and how many patients would be needed for an interval of the
    given width. Needs no slides and no bags.
    """
    from scmil.bags.datasets import words_of
    from scmil.bags.patient_counts import count_patients
    from scmil.bags.target_tables import TargetColumns
    from scmil.stats.sample_size import expected_intervals

    columns = TargetColumns((label,) if label else (), time, event, event_value=event_value)
    found = count_patients(labels, columns, words_of(missing))
    survival = found.task == "survival"
    _check_metric(found.task, auc, c_index)
    designs = [
        expected_intervals(
            found.counts, value, survival=survival, test=test, folds=folds, width=width
        )
        for value in (c_index if survival else auc) or ASSUMED
    ]
    if as_json:
        say_json(
            {
                "task": found.task,
                "counts": dict(found.counts),
                "patients": found.patients,
                "slides": found.slides,
                "width": width,
                "assumptions": [ASSUMPTIONS[found.task], INDEPENDENT],
                "notes": list(found.notes),
                "expected": [design.as_json() for pair in designs for design in pair],
            }
        )
        return
    _print_plan(found, designs, width)


def _check_metric(task: str, auc: list[float] | None, c_index: list[float] | None) -> None:
    from scmil.errors import OptionError

    given, other = ("--auc", "--c-index") if task == "survival" else ("--c-index", "--auc")
    if auc if task == "survival" else c_index:
        raise OptionError(
            f"{given}: the table is read as the task {task!r}. Use {other}, or name the columns "
            "of the other task: --label, or --time and --event."
        )


def _print_plan(
    found: PatientCounts,
    designs: list[tuple[ExpectedInterval, ExpectedInterval]],
    width: float,
) -> None:
    from rich.console import Console
    from rich.table import Table

    from scmil.cli.output import shown

    metric = "concordance" if found.task == "survival" else "AUC"
    listed = ", ".join(f"{name} {number}" for name, number in found.counts.items())
    say(f"{found.patients} patients, {found.slides} slides: {listed}")
    for note in found.notes:
        say(note, err=True)
    heads = (f"assumed {metric}", "tested", "patients", "95 % interval", "width")
    table = Table(*heads, f"patients for width {width:g}", box=None, header_style="bold")
    for design in (design for pair in designs for design in pair):
        table.add_row(
            f"{design.value:g}",
            shown(design.design),
            " + ".join(f"{number:g}" for number in design.tested.values()),
            f"{three_decimals(design.low)} to {three_decimals(design.high)}",
            three_decimals(design.width),
            "over 10 million" if design.needed is None else str(design.needed),
        )
    Console().print(table)
    say(f"Assumptions: {ASSUMPTIONS[found.task]} {INDEPENDENT}")
