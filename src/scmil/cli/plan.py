"""The command plan."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from scmil.cli import app
from scmil.cli.options import (
    TRAINING,
    EventColumn,
    EventValue,
    Grades,
    Json,
    LabelColumn,
    Missing,
    TaskName,
    TimeColumn,
)
from scmil.cli.output import say, say_json, three_decimals

if TYPE_CHECKING:
    from scmil.bags.patient_counts import PatientCounts
    from scmil.stats.sample_size import ExpectedInterval

ASSUMED = (0.6, 0.7, 0.8, 0.9, 0.95)
OF_AUC = "Score interval with the variance of normal scores at the assumed AUC, as in the reports"
ASSUMPTIONS = {
    "class": f"{OF_AUC}; more than two classes: mean over the classes, each against the rest.",
    "survival": "Score interval with 1.5 samples of each class per event at the assumed "
    "concordance, as in the reports.",
    "regression": "Fisher's interval of Pearson's correlation, as in the reports. R² is at most "
    "the square of the correlation.",
    "ordinal": f"{OF_AUC}, of each grade against the rest: the width of an interval of the "
    "quadratic kappa depends on the errors of the model, which are not known before.",
    "multilabel": f"{OF_AUC}, for each label.",
}
INDEPENDENT = (
    "Patients are independent and the shares of the cohort stay the same. Folds: every patient is "
    "tested once, and that the models share training patients is neglected."
)


class Metric(NamedTuple):
    """The metric of a task: its name in `sample_size`, in text, and its option."""

    name: str
    text: str
    option: str


METRICS = {
    "survival": Metric("concordance", "concordance", "--c-index"),
    "regression": Metric("correlation", "correlation", "--correlation"),
}
AUC = Metric("auc", "AUC", "--auc")


class PlannedPart(NamedTuple):
    """What is expected for the whole table, or for one of several labels."""

    label: str | None
    counts: Mapping[str, int]
    designs: list[tuple[ExpectedInterval, ExpectedInterval]]


@app.command("plan", rich_help_panel=TRAINING)
def plan_(
    labels: Annotated[
        Path, typer.Argument(help="Table of labels, with columns such as case_id and label.")
    ],
    label: LabelColumn = None,
    task: TaskName = None,
    time: TimeColumn = None,
    event: EventColumn = None,
    event_value: EventValue = None,
    grades: Grades = None,
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
    correlation: Annotated[
        list[float] | None,
        typer.Option(
            help="Assumed correlation of predicted and observed numbers. May be repeated.",
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

    Prints the interval of the AUC, concordance or correlation that a test split and a
    cross-validation of these patients can be expected to give, and how many patients would be
    needed for an interval of the given width. Needs no slides and no bags.
    """
    from scmil.bags.datasets import words_of
    from scmil.bags.patient_counts import count_patients
    from scmil.bags.target_tables import TargetColumns

    columns = TargetColumns(
        tuple(words_of(label) or ()),
        time,
        event,
        grades=words_of(grades),
        event_value=event_value,
    )
    found = count_patients(labels, columns, words_of(missing), task)
    assumed = _assumed(
        found.task, {"--auc": auc, "--c-index": c_index, "--correlation": correlation}
    )
    notes = list(found.notes)
    parts = _plan_parts(found, assumed, {"test": test, "folds": folds, "width": width}, notes)
    if as_json:
        say_json(
            {
                "task": found.task,
                "counts": dict(found.counts),
                "labels": {name: dict(own) for name, own in found.labels.items()},
                "patients": found.patients,
                "slides": found.slides,
                "width": width,
                "assumptions": [ASSUMPTIONS[found.task], INDEPENDENT],
                "notes": notes,
                "expected": [
                    ({} if part.label is None else {"label": part.label}) | design.as_json()
                    for part in parts
                    for pair in part.designs
                    for design in pair
                ],
            }
        )
        return
    _print_plan(found, parts, notes, width)


def _assumed(task: str, given: Mapping[str, list[float] | None]) -> list[float]:
    """The assumed values of the metric of the task; those of another metric are an error."""
    from scmil.errors import OptionError

    own = METRICS.get(task, AUC).option
    if wrong := [option for option, values in given.items() if values and option != own]:
        raise OptionError(
            f"{wrong[0]}: the table is read as the task {task!r}. Use {own}, or state the task: "
            "--task, --label, or --time and --event."
        )
    return given[own] or list(ASSUMED)


def _plan_parts(
    found: PatientCounts, assumed: list[float], design: Mapping[str, Any], notes: list[str]
) -> list[PlannedPart]:
    """The expected intervals; a label with too few patients for the folds becomes a note."""
    from scmil.errors import DataError
    from scmil.stats.sample_size import expected_intervals

    metric = METRICS.get(found.task, AUC).name
    parts = []
    for label, counts in found.labels.items() or [(None, found.counts)]:
        try:
            designs = [
                expected_intervals(counts, value, metric=metric, **design) for value in assumed
            ]
        except DataError as error:
            if label is None:
                raise
            notes.append(f"{label}: {error}")
            continue
        parts.append(PlannedPart(label, counts, designs))
    if not parts:
        raise DataError(" ".join(notes[-len(found.labels) :]))
    return parts


def _print_plan(
    found: PatientCounts, parts: list[PlannedPart], notes: list[str], width: float
) -> None:
    from rich.console import Console
    from rich.table import Table

    from scmil.cli.output import shown

    metric = METRICS.get(found.task, AUC).text
    listed = ", ".join(f"{name} {number}" for name, number in found.counts.items())
    size = f"{found.patients} patients, {found.slides} slides"
    say(f"task: {found.task}")
    say(size if listed == f"patients {found.patients}" else f"{size}: {listed}")
    for note in notes:
        say(note, err=True)
    heads = (f"assumed {metric}", "tested", "patients", "95 % interval", "width")
    for part in parts:
        if part.label is not None:
            own = ", ".join(f"{name} {number}" for name, number in part.counts.items())
            say(f"\n{part.label}: {own}")
        table = Table(*heads, f"patients for width {width:g}", box=None, header_style="bold")
        for design in (design for pair in part.designs for design in pair):
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
