"""The command heatmap."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scmil.cli import app
from scmil.cli.options import (
    VISUALISATION,
    Annotations,
    BagsWithCoordinates,
    Device,
    Format,
    Json,
    Key,
    Model,
    Overwrite,
    device_of,
)
from scmil.cli.output import say, say_failed, say_json
from scmil.cli.progress import progress_bars

if TYPE_CHECKING:
    from scmil.bags.bag import BagSet


@app.command(rich_help_panel=VISUALISATION)
def heatmap(
    model: Model,
    bags: BagsWithCoordinates,
    slides: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the slides. Without it the heatmaps have a plain background.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Output folder.", show_default="MODEL/maps/SCORE"),
    ] = None,
    score: Annotated[
        str,
        typer.Option(
            help="Score to draw: attention, ratio (attention x number of tiles), probability (of a "
            "bag that contains only this tile) or probability:CLASS, evidence (contribution of the "
            "tile to the logit) or evidence:CLASS; with sparse coding also "
            "lambda (sparsity parameter), sparsity (fraction of zero codes) or atom:K (code of "
            "atom K)."
        ),
    ] = "attention",
    also: Annotated[
        list[Path] | None,
        typer.Option(
            help="Model folder of another fold or seed, or a folder of such folders, as MODEL/"
            "ensemble of scmil train --keep-folds. May be repeated. The standard deviation of the "
            "score over all models is drawn as a further panel, and with --tiff as a further "
            "overlay."
        ),
    ] = None,
    same_scale: Annotated[
        bool,
        typer.Option("--same-scale", help="Use one colour scale for all slides."),
    ] = False,
    annotations: Annotations = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            help="Table of labels to show in the captions.",
            show_default="the labels that the model was trained with",
        ),
    ] = None,
    tiff: Annotated[
        bool,
        typer.Option("--tiff", help="Also write a pyramidal TIFF overlay for slide viewers."),
    ] = False,
    geojson: Annotated[
        bool,
        typer.Option(
            "--geojson/--no-geojson", help="Also write the tiles with their scores for QuPath."
        ),
    ] = True,
    only: Annotated[
        str | None, typer.Option(help="Draw only the slides whose name matches, such as 'tumor_*'.")
    ] = None,
    key: Key = None,
    format_name: Format = None,
    device: Device = "auto",
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Draw the scores of a model over the slides.

    Example: `scmil heatmap model/ bags/ --slides slides/`

    The scores are computed from existing bags; no slide is encoded again. Open OUT/index.html to
    see all heatmaps. Slides that fail are listed in OUT/failures.csv and skipped. Existing heatmaps
    are kept if their inputs have not changed.
    """
    from scmil.studies import open_bags_to_predict
    from scmil.viz.heatmaps import draw_heatmaps
    from scmil.viz.model_folders import find_models

    opened = _select_bags(open_bags_to_predict([bags], key=key, format_name=format_name), only)
    if same_scale and score == "attention":
        say(
            "note: attention decreases with the number of tiles. To compare slides, use "
            "--score ratio.",
            err=True,
        )
    with progress_bars(as_json) as bars:
        drawn = draw_heatmaps(
            [model, *(each for folder in also or [] for each in find_models(folder))],
            opened,
            out,
            score=score,
            slides=slides,
            annotations=annotations,
            labels=_read_class_names(labels),
            same_scale=same_scale,
            tiff=tiff,
            geojson=geojson,
            device=device_of(device),
            overwrite=overwrite,
            progress=bars.callback,
        )
    if as_json:
        say_json(
            {
                "out": str(drawn.out),
                "score": score,
                "same_scale": drawn.scale,
                "done": list(drawn.outcome.done),
                "kept": list(drawn.outcome.kept),
                "failed": drawn.failed,
            }
        )
    else:
        scale = f" (colours {drawn.scale})" if drawn.scale else ""
        say(f"{score}{scale}: {drawn.outcome}. Open {drawn.out / 'index.html'}")
        say_failed(drawn.failed)
        if drawn.failed:
            say(
                f"{len(drawn.failed)} slides failed; causes: {drawn.out / 'failures.csv'}", err=True
            )
    if drawn.failed:
        raise typer.Exit(1)


def _select_bags(bags: BagSet, pattern: str | None) -> BagSet:
    """Return the bags whose id matches the pattern."""
    from fnmatch import fnmatchcase

    from scmil.errors import OptionError

    if pattern is None:
        return bags
    matching = [bag_id for bag_id in bags.ids if fnmatchcase(bag_id, pattern)]
    if not matching:
        raise OptionError(
            f"--only {pattern!r} matches none of {len(bags)} slides, such as {bags.ids[0]!r}."
        )
    return bags.subset(matching)


def _read_class_names(labels: Path | None) -> dict[str, str]:
    """Return the name of the class of each slide."""
    from scmil.bags.labels import read_labels

    if labels is None:
        return {}
    table = read_labels(labels, missing=())  # captions show every value as it is
    return {bag_id: name for bag_id, name in zip(table.ids, table.names) if name is not None}
