"""Commands for feature bags: import, export, audit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scmil.cli import app
from scmil.cli.options import (
    BAGS,
    EventColumn,
    EventValue,
    Format,
    Grades,
    Json,
    Key,
    LabelColumn,
    Missing,
    Overwrite,
    RetryFailed,
    TaskName,
    TimeColumn,
)
from scmil.cli.output import say, say_failed

if TYPE_CHECKING:
    from scmil.bags.bag import BagSet
    from scmil.bags.labels import Labels
    from scmil.bags.splits import Split
    from scmil.bags.targets import Targets
    from scmil.studies.settings import TaskOptions

Bags = Annotated[
    Path,
    typer.Argument(help="Folder of bags, in any supported format (scmil ls formats)."),
]
TrustPickle = Annotated[
    bool,
    typer.Option(
        "--trust-pickle",
        help="Read pickled features (DTFD-MIL). Only arrays are read; no code in the file is run.",
    ),
]
SlideMpp = Annotated[
    float | None,
    typer.Option(
        "--mpp-of",
        help="Microns per pixel of the slides at full resolution, if the coordinates are in "
        "microns (STAMP).",
    ),
]


@app.command("import", rich_help_panel=BAGS)
def import_(
    folder: Bags,
    out: Annotated[Path, typer.Option(help="Folder for the scmil bags.")],
    format_name: Format = None,
    key: Key = None,
    dtype: Annotated[str, typer.Option(help="float16 or float32.")] = "float16",
    mpp_of: SlideMpp = None,
    trust_pickle: TrustPickle = False,
    retry_failed: RetryFailed = False,
    as_json: Json = False,
) -> None:
    """Convert features of another tool to scmil bags.

    Example: `scmil import trident_job/ --out bags/`

    Conversion is optional: every command that reads bags also reads the formats of other tools.
    """
    from scmil.bags.encoder_names import statement_of, with_tool
    from scmil.bags.formats import open_bags
    from scmil.bags.hdf5 import check_dtype, write_bag
    from scmil.core.jobs.failure_log import FailureLog
    from scmil.core.jobs.locks import safe_name
    from scmil.core.jobs.resume import for_each

    check_dtype(dtype)
    bags = open_bags(folder, format_name, key=key, trust_pickle=trust_pickle, slide_mpp=mpp_of)
    positions = {bag_id: position for position, bag_id in enumerate(bags.ids)}
    statements: set[str] = set()

    def target(bag_id: str) -> Path:
        return out / f"{safe_name(bag_id)}.h5"

    def convert(bag_id: str) -> None:
        bag = with_tool(bags[positions[bag_id]])
        statements.add(statement_of(bag.provenance) or "")
        write_bag(bag, target(bag_id), dtype)

    outcome = for_each(
        bags.ids,
        convert,
        target=target,
        failure_log=FailureLog(out),
        stage="import",
        retry_failed=retry_failed,
        name=str,
        source=lambda bag_id: folder,
    )
    failures = [failure for failure in FailureLog(out).read() if failure.slide in outcome.failed]
    if as_json:
        states = {key: list(getattr(outcome, key)) for key in ("done", "kept", "failed", "taken")}
        rows = [failure._asdict() for failure in failures]
        page: dict[str, object] = {"out": str(out), **states, "failures": rows}
        if statements - {""}:
            page["encoder"] = sorted(statements - {""})
        say(json.dumps(page, indent=2))
    else:
        say(f"import: {outcome}")
        for statement in sorted(statements - {""}):
            say(f"note: {statement}.", err=True)
        say_failed({failure.slide: failure.cause for failure in failures})
    if outcome.failed:
        raise typer.Exit(1)


@app.command("export", rich_help_panel=BAGS)
def export_(
    folder: Bags,
    to: Annotated[str, typer.Option(help="Format to write: clam, trident or torchmil.")],
    out: Annotated[Path, typer.Option(help="Folder for the exported files.")],
    labels: Annotated[
        Path | None, typer.Option(help="Table of labels, which is exported as labels.csv.")
    ] = None,
    label: LabelColumn = None,
    missing: Missing = None,
    splits: Annotated[
        Path | None,
        typer.Option(help="Split file, or folder of split files, which is exported as well."),
    ] = None,
    splits_format: Annotated[
        str | None,
        typer.Option(
            help="Format of the exported splits: clam, transmil, mil_baseline, patho_bench, "
            "torchmil or stamp.",
            show_default="that of the tool; patho_bench for trident",
        ),
    ] = None,
    format_name: Format = None,
    key: Key = None,
    mpp_of: SlideMpp = None,
    trust_pickle: TrustPickle = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Write bags, labels and splits in the format of another tool.

    Example: `scmil export bags/ --to clam --out clam/`

    Bags that were exported before are kept, so an interrupted export can be continued with the
    same command.
    """
    from scmil.bags.formats import build_writer, export_bags, open_bags

    build_writer(to)
    table = _read_label_table(labels, label, missing)
    bags = open_bags(
        folder, format_name, table, key=key, trust_pickle=trust_pickle, slide_mpp=mpp_of
    )
    # Before the bags, which may take hours: invalid splits are an error.
    split_files = _export_splits(splits, bags, out, to, splits_format, overwrite)
    result = export_bags(bags, out, to, overwrite=overwrite)
    if as_json:
        page = {key: list(value) for key, value in result._asdict().items()}
        if splits is not None:
            page["splits"] = [str(path) for path in split_files]
        say(json.dumps({"out": str(out), **page}, indent=2))
        return
    say(
        f"export: {len(result.written)} bags written for {to} into {out}, "
        f"{len(result.kept)} kept from before"
    )
    if split_files:
        say(f"export: {len(split_files)} split files written into {split_files[0].parent}")


@app.command("audit", rich_help_panel=BAGS)
def audit_(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="Folder of bags, in any supported format (scmil ls formats). With --results: the "
            "table of labels."
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Argument(help="Table of labels, with columns such as case_id, slide_id and label."),
    ] = None,
    label: LabelColumn = None,
    task: TaskName = None,
    time: TimeColumn = None,
    event: EventColumn = None,
    event_value: EventValue = None,
    grades: Grades = None,
    missing: Missing = None,
    splits: Annotated[
        Path | None,
        typer.Option(help="Split file, or folder of split files, to check for data leakage."),
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(
            help="Folder with splits and predictions of CLAM, STAMP or MIL_BASELINE, which is "
            "checked instead of bags: scmil audit labels.csv --results FOLDER."
        ),
    ] = None,
    format_name: Format = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Check bags, labels and splits for problems before training.

    Example: `scmil audit bags/ labels.csv`

    Reports mixed encoders, missing labels, data leakage, duplicates, NaN and more; for other tasks
    than classes also times without events, constant numbers, outliers, missing grades and labels
    that are never present. With `--results`, finds patients on both sides of the splits of another
    tool and selection on the test split, and computes its metrics again, with intervals. The exit
    code is 1 if there is at least one error among the findings.
    """
    from scmil.bags.audit import audit
    from scmil.bags.formats import open_bags
    from scmil.studies.settings import TaskOptions

    if results is not None or folder is None:
        from scmil.cli.audit_results import audit_other_tool

        audit_other_tool(results, [path for path in (folder, labels) if path], label, as_json)
        return
    chosen = TaskOptions(task, time, event, event_value, grades)
    targets = _read_audited_targets(folder, labels, label, chosen, missing)
    table = None if targets is not None else _read_label_table(labels, label, missing)
    bags = open_bags(folder, format_name, table, key=key)
    result = audit(bags, table, _read_splits(splits, bags), targets=targets)
    if as_json:
        say(json.dumps(result.as_json(), indent=2))
    else:
        for note in targets.notes if targets is not None else ():
            say(note)
        for line in result.lines():
            say(line)
    if not result.ok:
        raise typer.Exit(1)


def _read_audited_targets(
    folder: Path, path: Path | None, label: str | None, task: TaskOptions, missing: str | None
) -> Targets | None:
    """Read times, numbers, grades or several labels; None for classes and without a table."""
    from scmil.studies.settings import DataSettings
    from scmil.studies.target_data import read_data_targets

    if path is None and task.task is None and task.time is None and task.event is None:
        return None
    settings = DataSettings(
        str(folder),
        False,
        labels=None if path is None else str(path),
        label=label,
        missing=missing,
        task=task.task,
        time=task.time,
        event=task.event,
        event_value=task.event_value,
        grades=task.grades,
    )
    return read_data_targets(settings)


def _read_label_table(path: Path | None, label: str | None, missing: str | None) -> Labels | None:
    """Read the table of labels, if one is given."""
    from scmil.bags.datasets import words_of
    from scmil.bags.labels import read_labels

    return None if path is None else read_labels(path, label=label, missing=words_of(missing))


def _read_splits(path: Path | None, bags: BagSet) -> list[list[Split]] | None:
    """Read the splits to audit; without patients, because leakage is a finding and not an error."""
    if path is None:
        return None
    from scmil.bags.split_files import read_splits

    return read_splits(path, bags.ids).splits


def _export_splits(
    path: Path | None, bags: BagSet, out: Path, to: str, format_name: str | None, overwrite: bool
) -> list[Path]:
    """Write the splits in the format of the other tool, and return the files."""
    from scmil.bags.checks import patients_of
    from scmil.bags.split_files import read_splits
    from scmil.bags.split_writers import SPLIT_FORMATS, write_repeats
    from scmil.errors import OptionError

    if path is None:
        if format_name is not None:
            raise OptionError("--splits-format is given without --splits. Give --splits FILE too.")
        return []
    patients = patients_of(bags)
    return write_repeats(
        out,
        read_splits(path, bags.ids, patients).splits,
        bags.ids,
        format_name or SPLIT_FORMATS.get(to, to),
        labels=bags.labels,
        patients=patients,
        overwrite=overwrite,
    )
