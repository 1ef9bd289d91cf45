"""What several verbs need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from scmil.core.files import printable

ShardOf = Annotated[
    str | None,
    typer.Option("--shard", metavar="K/N", help="Only the K-th of N parts, such as 3/16: for arrays of a cluster."),
]
On = Annotated[
    str | None,
    typer.Option(
        "--on", metavar="ray[=ADDRESS]", help="On a Ray cluster: that of RAY_ADDRESS, of ADDRESS, or of this computer."
    ),
]
TaskCpus = Annotated[float, typer.Option(min=0.01, help="With --on: processors for each task.")]
Missing = Annotated[
    str | None,
    typer.Option(
        metavar="WORDS",
        help="Words in the table that mean a missing label, such as 'unknown,-'; '' if all are classes.",
    ),
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite", help="Replace what is there, also what this command did not write; else it is rejected."
    ),
]
TaskGpus = Annotated[float, typer.Option(min=0, help="With --on: GPUs for each task, also 0.5.")]


def say(text: object = "", err: bool = False) -> None:
    """Print text; names in it come from others, so what a terminal would obey is shown as an escape."""
    typer.echo(printable(text, lines=True), err=err)


def say_failed(failed: Mapping[str, str], most: int = 5) -> None:
    """Print the first few of those that failed, each with its cause, in a line."""
    for name, cause in list(failed.items())[:most]:
        say(f"failed: {printable(name)}: {cause}", err=True)


def shown(text: object) -> str:
    """Text within what rich prints: neither rich nor the terminal obeys anything in it."""
    from rich.markup import escape

    return escape(printable(text, lines=True))


def cluster_of(on: str | None, cpus: float, gpus: float) -> Any:
    """The cluster that `--on` names; None without."""
    if on is None:
        return None
    from scmil.errors import OptionError

    engine, equals, address = on.partition("=")
    if engine != "ray" or (equals and not address):
        raise OptionError(f"--on {on}: 'ray', or 'ray=' and the address of its head, such as ray=10.0.0.1:6379.")
    from scmil.studies.cluster import Cluster

    return Cluster(address or None, cpus, gpus)


def progress_bars(**options: Any) -> Any:
    """Bars with a description, a count, the time that is gone and the time that is left."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Named(TextColumn):
        """The description, which has names of slides and cells in it, as plain text."""

        def render(self, task: Any) -> Any:
            return Text(printable(task.description))

    text = Named("")
    return Progress(text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(), **options)


def device_of(name: str) -> str:
    """The device of that name; `auto` is a GPU if there is one."""
    import torch

    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "cpu"
