"""Pictures of what a model looks at: scmil heatmap."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scmil.cli import app
from scmil.cli.options import Overwrite, device_of, progress_bars, say, say_failed

if TYPE_CHECKING:
    from scmil.bags.bag import BagSet

PANEL = "Seeing"


@app.command(rich_help_panel=PANEL)
def heatmap(
    model: Annotated[Path, typer.Argument(help="A folder that scmil train wrote.")],
    bags: Annotated[Path, typer.Argument(help="A folder of bags with coordinates, ours or another tool's.")],
    slides: Annotated[
        Path | None, typer.Option(help="Folder of the slides; without it the maps lie on a plain ground.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the pictures; default: MODEL/maps/SCORE.")] = None,
    score: Annotated[
        str, typer.Option(help="attention, ratio, probability, probability:CLASS, lambda, sparsity or atom:K.")
    ] = "attention",
    same_scale: Annotated[
        bool, typer.Option("--same-scale", help="The same colours for the same values on all slides.")
    ] = False,
    annotations: Annotated[
        Path | None, typer.Option(help="Folder of <slide>.xml (ASAP) or <slide>.geojson; default: that of the slides.")
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(help="A table of labels, for slides that the model was not made with.")
    ] = None,
    tiff: Annotated[bool, typer.Option("--tiff", help="Also a pyramid to lay over the slide in a viewer.")] = False,
    geojson: Annotated[
        bool, typer.Option("--geojson/--no-geojson", help="Also the tiles with their scores for QuPath.")
    ] = True,
    only: Annotated[str | None, typer.Option(help="Slides whose name fits, such as 'tumor_*'.")] = None,
    key: Annotated[str | None, typer.Option(help="Which encoder, if the folder of bags has several.")] = None,
    format: Annotated[str | None, typer.Option("--format", help="The format of the bags, if not detected.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps; auto takes a GPU if there is one.")] = "auto",
    overwrite: Overwrite = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show where a model looks: scmil heatmap model/ bags/ --slides slides/

    From the features that are there already; no slide is encoded again. Look at OUT/index.html. What cannot be drawn is
    written to OUT/failures.csv, and the others go on; what is drawn already is kept.
    """
    from scmil.viz.heatmaps import draw_heatmaps
    from scmil.studies import open_bags_to_predict

    opened = _chosen(open_bags_to_predict([bags], key=key, format=format), only)
    if same_scale and score == "attention":
        say("note: attention is smaller on slides with more tiles. To compare slides: --score ratio", err=True)
    with _bars(as_json) as progress:
        drawn = draw_heatmaps(
            model, opened, out, score=score, slides=slides, annotations=annotations, labels=_names(labels),
            same_scale=same_scale, tiff=tiff, geojson=geojson, device=device_of(device),
            overwrite=overwrite, progress=progress,
        )  # fmt: skip
    if as_json:
        outcome = {key: list(getattr(drawn.outcome, key)) for key in ("done", "kept")}
        page = {"out": str(drawn.out), "score": score, "same_scale": drawn.scale, **outcome, "failed": drawn.failed}
        say(json.dumps(page, indent=2))
    else:
        scale = f" (colours {drawn.scale})" if drawn.scale else ""
        say(f"{score}{scale}: {drawn.outcome}. Look at {drawn.out / 'index.html'}")
        say_failed(drawn.failed)
        if drawn.failed:
            say(f"{len(drawn.failed)} slides failed; causes: {drawn.out / 'failures.csv'}", err=True)
    if drawn.failed:
        raise typer.Exit(1)


def _chosen(bags: BagSet, pattern: str | None) -> BagSet:
    """The bags whose id fits."""
    from fnmatch import fnmatchcase

    from scmil.errors import OptionError

    if pattern is None:
        return bags
    fitting = [id for id in bags.ids if fnmatchcase(id, pattern)]
    if not fitting:
        raise OptionError(f"--only {pattern!r} fits none of {len(bags)} slides, such as {bags.ids[0]!r}.")
    return bags.subset(fitting)


def _names(labels: Path | None) -> dict[str, str]:
    """The class of each slide by name."""
    from scmil.bags.labels import read_labels

    if labels is None:
        return {}
    table = read_labels(labels, missing=())  # they are shown as they are
    return {id: name for id, name in zip(table.ids, table.names) if name is not None}


@contextmanager
def _bars(quiet: bool) -> Iterator[Any]:
    """A bar for each stage; nothing where nobody looks."""
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
