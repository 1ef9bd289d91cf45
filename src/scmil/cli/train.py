"""The commands train and compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from scmil.cli import app
from scmil.cli.options import (
    TRAINING,
    Data,
    Device,
    Epochs,
    Format,
    Jobs,
    Json,
    Key,
    LabelColumn,
    Missing,
    Overwrite,
    PatientMode,
    Repeats,
    Seed,
    SiteColumn,
    TaskChoice,
    device_of,
    read_task,
    with_options_of,
)
from scmil.cli.output import say, say_json, say_notes, three_decimals
from scmil.cli.panels import COMPARE_PANELS, TRAIN_PANELS, group_options
from scmil.cli.progress import progress_bars

if TYPE_CHECKING:
    from scmil import studies as study

Bags = Annotated[
    str,
    typer.Argument(
        help="Folder of bags in any supported format (scmil ls formats), a table of bags (.csv, "
        ".npz, .svm, .mat), or the name of a data set (scmil ls datasets)."
    ),
]
Labels = Annotated[
    Path | None,
    typer.Argument(
        help="Table with the columns slide_id and label, and optionally patient or case_id. Not "
        "needed if the bags contain their labels."
    ),
]
DropUnlabelled = Annotated[
    bool,
    typer.Option(
        "--drop-unlabelled", help="Skip bags without a label. Without it they are an error."
    ),
]
Standardise = Annotated[
    bool | None,
    typer.Option(
        "--standardise/--no-standardise",
        help="Scale each feature to zero mean and unit variance, computed on the training split.",
        show_default="yes for tables, no for folders",
    ),
]
RecipeName = Annotated[
    str,
    typer.Option(
        "--recipe",
        help="Optimiser, learning rate and number of epochs: the name of a recipe (scmil ls "
        "recipes), or 'official' for the recipe of the aggregator's authors.",
    ),
]


class TrainingInputs(NamedTuple):
    """The bags to train on, the folder of benchmark data sets, and the loss of their task."""

    data: study.Data
    folder: Path | None
    loss: str | None = None


@with_options_of(read_task)
def open_inputs(
    chosen: TaskChoice,
    bags: Bags,
    labels: Labels = None,
    label: LabelColumn = None,
    key: Key = None,
    format_name: Format = None,
    missing: Missing = None,
    drop_unlabelled: DropUnlabelled = False,
    standardise: Standardise = None,
    site: SiteColumn = None,
    data: Data = None,
    patient: PatientMode = None,
) -> TrainingInputs:
    """Open the bags with their labels. The parameters are options of several commands."""
    from scmil import studies as study
    from scmil.studies.settings import TaskOptions

    *task, loss = chosen
    opened = study.open_data(
        bags,
        labels,
        label=label,
        key=key,
        format_name=format_name,
        missing=missing,
        data=data,
        drop_unlabelled=drop_unlabelled,
        standardise=standardise,
        task=TaskOptions(*task),
        patient=patient,
        site=site,
    )
    return TrainingInputs(opened, data, loss)


@app.command("train", rich_help_panel=TRAINING)
@group_options(TRAIN_PANELS)
@with_options_of(open_inputs)
def train_(
    inputs: TrainingInputs,
    out: Annotated[Path, typer.Option(help="Output folder of the model.")] = Path("model"),
    aggregator: Annotated[
        str, typer.Option(help="Name of the aggregator (scmil ls aggregators).")
    ] = "abmil-gated",
    sparse_coding: Annotated[
        bool, typer.Option("--sc/--no-sc", help="Put a sparse coding layer before the aggregator.")
    ] = False,
    folds: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Estimate the performance by cross-validation with this number of folds, then "
            "train the model on all bags but the validation split.",
        ),
    ] = None,
    repeats: Repeats = 1,
    keep_folds: Annotated[
        bool,
        typer.Option(
            "--keep-folds",
            help="With --folds: keep the models of the cross-validation as an ensemble. predict "
            "and test then give the mean of their predictions and their standard deviation.",
        ),
    ] = False,
    epochs: Epochs = None,
    patience: Annotated[
        int,
        typer.Option(
            min=0,
            help="Stop after this number of epochs without a better validation AUC; 0 disables "
            "early stopping.",
        ),
    ] = 20,
    recipe: RecipeName = "official",
    class_weights: Annotated[
        str | None,
        typer.Option(
            help="Weights of the classes in the loss: 'balanced' (inverse class frequency), or one "
            "number per class, such as 1,2.5."
        ),
    ] = None,
    valid: Annotated[
        float, typer.Option(min=0, max=1, help="Fraction of patients in the validation split.")
    ] = 0.2,
    test: Annotated[
        float, typer.Option(min=0, max=1, help="Fraction of patients in the test split.")
    ] = 0.2,
    device: Device = "auto",
    precision: Annotated[
        str,
        typer.Option(
            help="Precision of matrix products: float32 or bfloat16 (about 2x faster on CPUs with "
            "native bfloat16)."
        ),
    ] = "float32",
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate",
            help="Fit a temperature on the validation split, so that probabilities are nearer to "
            "frequencies. Predicted classes do not change. Not for numbers and Cox models.",
        ),
    ] = False,
    seed: Seed = 0,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Fail if there is no interrupted run to resume. (Repeating a command resumes "
            "automatically.)",
        ),
    ] = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Train a model on bags and labels.

    Example: `scmil train bags/ labels.csv --aggregator abmil-gated --sc --out model/`

    Other tasks than classes: `--task survival --time os_months --event os_event`, `--task
    regression --label age`, `--task ordinal --label grade`, `--label tp53,msi`; several targets in
    one model: `--task ordinal,regression --label grade,age`.

    A bag holds the features of all tiles of one slide; the aggregator is the network that combines
    them into one prediction. Patients are divided into a training, a validation and a test split,
    stratified by class. The epoch with the best validation AUC is kept. The output folder contains
    the model, its predictions, metrics with confidence intervals, a report and a model card. An
    interrupted command resumes when it is repeated, and ends with the same model.
    """
    from scmil import studies as study

    say_notes(inputs.data, as_json)
    with progress_bars(as_json) as bars:
        trained = study.train(
            inputs.data,
            out,
            aggregator=aggregator,
            sparse_coding=sparse_coding,
            recipe=recipe,
            epochs=epochs,
            patience=patience or None,
            folds=folds,
            repeats=repeats,
            keep_folds=keep_folds,
            valid=valid,
            test=test,
            class_weights=_parse_class_weights(class_weights),
            device=device_of(device),
            precision=precision,
            seed=seed,
            loss=inputs.loss,
            calibrate=calibrate,
            resume=resume,
            overwrite=overwrite,
            progress=bars.callback,
        )
    say_notes(trained, as_json)
    if as_json:
        say_json(
            {
                "out": str(out),
                "metrics": trained.metrics,
                "study": trained.study,
                "notes": trained.notes,
            }
        )
    else:
        _print_metrics(trained.metrics)
        say(f"Model: {out} (report: {out / 'report.html'}, model card: {out / 'MODEL_CARD.md'})")
        say(f"To apply it to new bags: scmil predict {out} NEW_BAGS --out predictions.csv")


@app.command("compare", rich_help_panel=TRAINING)
@group_options(COMPARE_PANELS)
@with_options_of(open_inputs)
def compare_(
    inputs: TrainingInputs,
    aggregator: Annotated[
        str,
        typer.Option(help="Names of aggregators, separated by commas (scmil ls aggregators)."),
    ] = "abmil-gated,dsmil,transmil",
    refine: Annotated[
        str,
        typer.Option(
            help="Layers to place in front of each aggregator, separated by commas: sc (sparse "
            "coding), linear (a linear layer of the same width), rrt (the regional "
            "transformer of RRT-MIL)."
        ),
    ] = "sc,linear",
    out: Annotated[
        Path | None,
        typer.Option(help="Output folder of the results.", show_default="a folder in runs/"),
    ] = None,
    folds: Annotated[int, typer.Option(min=2, help="Number of cross-validation folds.")] = 5,
    repeats: Repeats = 3,
    epochs: Epochs = None,
    recipe: RecipeName = "official",
    selection: Annotated[
        str,
        typer.Option(
            help="Selection protocol. nested: epoch and threshold are chosen on an inner "
            "validation split; last: last epoch, threshold 0.5."
        ),
    ] = "nested",
    seed: Seed = 0,
    jobs: Jobs = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Compare models with and without sparse coding on the same data.

    Example: `scmil compare bags/ labels.csv --aggregator abmil-gated,dsmil`

    Example: `scmil compare bags/ clinical.csv --task survival --time os_months --event os_status`

    Each aggregator is cross-validated with three methods on the same splits: without sparse
    coding, with sparse coding, and with a linear layer of the same width instead. Other layers are
    chosen with `--refine`. The baseline is a logistic regression on the mean and the maximum of the
    features of each bag; for other tasks than classes it is a Cox or ridge regression. The report
    contains differences with confidence intervals, significance tests, cost and a summary. An
    interrupted command resumes when it is repeated.
    """
    from scmil import studies as study
    from scmil.cli.run import run_plan

    say_notes(inputs.data, as_json)
    names = [name.strip() for name in aggregator.split(",") if name.strip()]
    plan = study.comparison_plan(
        inputs.data,
        names,
        inputs.folder,
        folds=folds,
        repeats=repeats,
        seed=seed,
        epochs=epochs,
        recipe=recipe,
        selection=selection,
        refine=[layer.strip() for layer in refine.split(",") if layer.strip()],
        loss=inputs.loss,
    )
    folder = out or Path("runs") / f"{plan.name}-{repeats}x{folds}-{seed}"
    start = study.run_comparison
    run_plan(
        plan,
        folder,
        jobs,
        None,
        inputs.folder,
        as_json,
        start=start,
        opened=inputs.data,
        overwrite=overwrite,
    )


# ------------------------------------------------------------------------------------------ helpers


def _print_metrics(metrics: dict[str, Any]) -> None:
    """Print AUC and accuracy of the test and validation splits and of the cross-validation, or the
    metrics of another task.
    """
    from scmil.report.combined_run import shown_metrics
    from scmil.report.fold_estimates import fold_estimates

    shown = [("auc", "AUC"), ("accuracy", "accuracy")]
    if "task" in metrics:
        shown = shown_metrics(metrics)
    for split, split_name in (("test", "test split"), ("valid", "validation split")):
        for level, values in metrics.get(split, {}).items():
            text = ", ".join(
                f"{name} {_format_estimate(values[key])}" for key, name in shown if key in values
            )
            say(f"{split_name}, {values['n']} {level}s of {values['patients']} patients: {text}")
    for row in metrics.get("cross_validation", []):
        size = f"{row['repeats']} x {row['folds']} folds, {row.get('level', 'slide')}s"
        say(f"cross-validation, {size}: {fold_estimates(row, shown=shown)}")


def _format_estimate(values: dict[str, float | None]) -> str:
    value, low, high = map(three_decimals, values.values())
    return f"{value} (95 % interval {low} to {high})"


def _parse_class_weights(text: str | None) -> str | list[float] | None:
    from scmil.errors import OptionError

    if text is None or text == "balanced":
        return text
    try:
        return [float(number) for number in text.split(",")]
    except ValueError:
        raise OptionError(
            f"--class-weights {text}: expected 'balanced' or one number per class, such as 1,2.5."
        ) from None
