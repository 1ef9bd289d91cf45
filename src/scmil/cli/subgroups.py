"""The command subgroups."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scmil.cli import app
from scmil.cli.options import TRAINING, Json, Overwrite
from scmil.cli.output import say, say_json, say_notes, three_decimals


@app.command("subgroups", rich_help_panel=TRAINING)
def subgroups_(
    folder: Annotated[
        Path,
        typer.Argument(help="Model folder of scmil train, or output folder of run or compare."),
    ],
    labels: Annotated[
        Path, typer.Argument(help="Table of slides with the columns of the subgroups.")
    ],
    by: Annotated[
        str, typer.Option(help="Columns of the subgroups, separated by commas: sex,site,scanner.")
    ],
    method: Annotated[
        str | None,
        typer.Option(help="Method of an output folder that has several.", show_default="the only"),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(help="Data set of a folder that has several.", show_default="the only"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of subgroups.html and .csv.", show_default="the given folder"),
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Metrics of test predictions by sex, site, scanner or other columns.

    Example: `scmil subgroups model/ labels.csv --by sex,site`

    Each group has its metrics with 95 % intervals over patients; small groups are marked. The
    largest gap between groups of each column is tested by permutation, and the p-values are
    adjusted for the number of gaps.
    """
    from scmil.core.run_format import MAIN_METRICS
    from scmil.report.subgroup_page import summarise_gaps
    from scmil.studies.subgroups import report_subgroups

    names = [name.strip() for name in by.split(",") if name.strip()]
    report = report_subgroups(
        folder, labels, names, method=method, dataset=dataset, out=out, overwrite=overwrite
    )
    say_notes(report, as_json)
    if as_json:
        say_json(report.as_json())
        return
    for row in report.rows():
        task = report.task_of(row["column"])
        main = None if task == "class" else MAIN_METRICS[task]
        if row["metric"] not in (("accuracy", "auc") if main is None else (main.column,)):
            continue
        value, low, high = (three_decimals(row[key]) for key in ("value", "low", "high"))
        small = ", small group" if row["small"] else ""
        group = f"{row['column']} {row['group']}, {row['patients']} patients{small}"
        metric = main.name if main else row["metric"].replace("auc", "AUC")
        say(f"{group}: {metric} {value} (95 % interval {low} to {high})")
    say(summarise_gaps(report.table))
    say("\n".join(map(str, report.files)))
