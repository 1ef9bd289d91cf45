"""Options and arguments that several commands share, each with one help text."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Signature, signature
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

# Panels of `scmil --help`.
SLIDES = "From slides to bags"
BAGS = "Feature bags"
TRAINING = "Training and evaluation"
VISUALISATION = "Visualisation"
INFORMATION = "Information"

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Seed = Annotated[
    int, typer.Option(min=0, help="Random seed. The same seed gives the same results.")
]
Device = Annotated[
    str,
    typer.Option(help="cpu, cuda, cuda:1 or mps. auto selects CUDA if available, otherwise cpu."),
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite",
        help="Replace existing files in the output location, including files that this command "
        "did not write. Without it such files are an error.",
    ),
]
RetryFailed = Annotated[
    bool, typer.Option("--retry-failed", help="Process the slides listed in failures.csv again.")
]
Data = Annotated[
    Path | None,
    typer.Option(help="Folder of the benchmark data sets.", show_default="$SCMIL_DATA"),
]

Mpp = Annotated[
    float | None, typer.Option(help="Microns per pixel of the tiles.", show_default="0.5")
]
EncoderMpp = Annotated[
    float | None,
    typer.Option(
        "--mpp",
        help="Microns per pixel of the tiles.",
        show_default="that of the encoder, or 0.5",
    ),
]
MppOf = Annotated[
    str | None,
    typer.Option(
        help="Microns per pixel at full resolution of slides whose files do not state it: a number "
        "for all slides, or a table with the columns slide and mpp."
    ),
]
OverrideMpp = Annotated[
    bool,
    typer.Option(
        "--override-mpp", help="Use --mpp-of also for slides whose files state another value."
    ),
]

# ----------------------------------------------------------------------------- bags, labels, models

Model = Annotated[Path, typer.Argument(help="Model folder of scmil train or scmil import-model.")]
BagsWithCoordinates = Annotated[
    Path,
    typer.Argument(
        help="Folder of bags with tile coordinates, in any supported format (scmil ls formats)."
    ),
]
Key = Annotated[
    str | None,
    typer.Option(help="Name of the encoder, if the folder contains features of several encoders."),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format", help="Format of the folder (scmil ls formats).", show_default="detected"
    ),
]
LabelColumn = Annotated[
    str | None,
    typer.Option(
        "--label",
        help="Column that contains the labels; several columns of yes/no labels, separated by "
        "commas, are the task multilabel. With several tasks in --task, a column for each.",
        show_default="detected",
    ),
]
PatientMode = Annotated[
    str | None,
    typer.Option(
        "--patient",
        metavar="joined|mean|max",
        help="How the slides of a patient are used: joined to one bag, or one bag per slide whose "
        "predictions are averaged (mean) or of which the largest counts (max).",
        show_default="mean",
    ),
]
Missing = Annotated[
    str | None,
    typer.Option(
        metavar="VALUES",
        help="Comma-separated values of the label column that mean a missing label, such as "
        "'unknown,-'. '' treats every value as a class.",
    ),
]
SiteColumn = Annotated[
    str | None,
    typer.Option(
        "--site",
        help="Column of the label table: all slides of a site, such as a hospital, are in the "
        "same test split.",
    ),
]
Annotations = Annotated[
    Path | None,
    typer.Option(
        help="Folder of annotations: SLIDE.xml (ASAP) or SLIDE.geojson (QuPath).",
        show_default="the folder of the slides",
    ),
]

# ----------------------------------------------------------------------------------------- training

Epochs = Annotated[
    int | None,
    typer.Option(min=1, help="Number of training epochs.", show_default="that of the recipe"),
]
Repeats = Annotated[
    int,
    typer.Option(
        min=1,
        help="Number of repetitions of the cross-validation, each with new random folds.",
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        min=1, help="Number of runs executed in parallel.", show_default="the number of cores"
    ),
]

# ----------------------------------------------------------------------------------------- clusters

ShardOf = Annotated[
    str | None,
    typer.Option(
        "--shard",
        metavar="K/N",
        help="Process only the K-th of N parts, such as 3/16. Use it in job arrays.",
    ),
]
On = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="ray[=ADDRESS]",
        help="Run on a Ray cluster: the one at ADDRESS, or at RAY_ADDRESS, or a local one.",
    ),
]
TaskCpus = Annotated[float, typer.Option(min=0.01, help="With --on: CPUs per task.")]
TaskGpus = Annotated[float, typer.Option(min=0, help="With --on: GPUs per task; may be 0.5.")]


# ------------------------------------------------------------------------------- what is predicted


class TaskChoice(NamedTuple):
    """What is predicted, as the options of a command state it, and with which loss."""

    task: str | None
    time: str | None
    event: str | None
    event_value: str | None
    grades: str | None
    loss: str | None


TaskName = Annotated[
    str | None,
    typer.Option(
        help="What is predicted: class, survival (a time to an event), regression (a number), "
        "ordinal (an ordered grade) or multilabel (several yes/no labels). Several at once, also "
        "with missing values: ordinal,regression,class and a column for each in --label.",
        show_default="inferred from the columns, and stated in the output",
    ),
]
TimeColumn = Annotated[
    str | None,
    typer.Option(
        help="Column of the times to an event, for survival.", show_default="such as os_months"
    ),
]
EventColumn = Annotated[
    str | None,
    typer.Option(
        help="Column of the events, 1 or 0, for survival.", show_default="such as os_event"
    ),
]
EventValue = Annotated[
    str | None,
    typer.Option(help="The value of the column of events that means an event, such as 2."),
]
Grades = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Comma-separated grades from the lowest, such as 'low,medium,high'. Whole numbers "
        "need none.",
    ),
]


def read_task(
    task: TaskName = None,
    time: TimeColumn = None,
    event: EventColumn = None,
    event_value: EventValue = None,
    grades: Grades = None,
    loss: Annotated[
        str | None,
        typer.Option(
            help="Loss of the task: discrete or cox (survival), huber or squared (regression).",
            show_default="the first of the task",
        ),
    ] = None,
) -> TaskChoice:
    """The options that state what is predicted. The parameters are options of several commands."""
    return TaskChoice(task, time, event, event_value, grades, loss)


def with_options_of(
    read: Callable[..., Any],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the parameters of `read`, so that several commands define them once.

    The command is called with the result of `read` as its first argument. Parameters without a
    default come first, as Python expects them.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        shared = signature(read, eval_str=True).parameters
        _, *own = signature(command, eval_str=True).parameters.values()

        @wraps(command)
        def call(**options: Any) -> Any:
            result = read(**{name: options.pop(name) for name in shared})
            return command(result, **options)

        parameters = sorted([*shared.values(), *own], key=lambda one: one.default is not one.empty)
        call.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {each.name: each.annotation for each in parameters}
        return call

    return decorate


def cluster_of(on: str | None, cpus: float, gpus: float) -> Any:
    """Return the cluster that `--on` describes, or None without `--on`."""
    if on is None:
        return None
    from scmil.errors import OptionError

    engine, equals, address = on.partition("=")
    if engine != "ray" or (equals and not address):
        raise OptionError(
            f"--on {on}: expected 'ray', or 'ray=' followed by the address of the head node, "
            "such as ray=10.0.0.1:6379."
        )
    from scmil.studies.ray_cluster import Cluster

    return Cluster(address or None, cpus, gpus)


def device_of(name: str) -> str:
    """Return the device of that name; `auto` is CUDA if available, otherwise the CPU."""
    import torch

    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "cpu"


def parse_number(text: str | None) -> float | None:
    """Return the number in a text; None if there is no text or it is the name of a file."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
