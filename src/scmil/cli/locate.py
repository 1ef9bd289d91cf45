"""The command locate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from scmil.cli import app
from scmil.cli.options import (
    VISUALISATION,
    BagsWithCoordinates,
    Device,
    Format,
    Json,
    Key,
    Missing,
    Model,
    Overwrite,
    Seed,
    device_of,
)
from scmil.cli.output import say_failed, say_json, shown, three_decimals
from scmil.cli.panels import LOCATE_PANELS, group_options
from scmil.cli.progress import progress_bars


@app.command("locate", rich_help_panel=VISUALISATION)
@group_options(LOCATE_PANELS)
def locate_(
    model: Model,
    bags: BagsWithCoordinates,
    annotations: Annotated[
        Path,
        typer.Option(
            help="Folder of annotations in level-0 pixels: SLIDE.xml (ASAP) or SLIDE.geojson "
            "(QuPath)."
        ),
    ],
    labels: Annotated[
        Path | None,
        typer.Option(
            help="Table of labels.",
            show_default="those of the bags, or those that the model was trained with",
        ),
    ] = None,
    missing: Missing = None,
    score: Annotated[
        list[str] | None,
        typer.Option(
            help="Score of a tile, may be repeated to compare scores: probability (of a bag that "
            "contains only this tile), "
            "probability:CLASS, evidence (contribution of the tile to the logit), evidence:CLASS, "
            "attention, ratio (attention x number of tiles), weighted (ratio x probability "
            "of the slide); with sparse coding also lambda (sparsity parameter), sparsity "
            "(fraction of zero codes) or atom:K (code of atom K).",
            show_default="probability",
        ),
    ] = None,
    rule: Annotated[
        str,
        typer.Option(
            help="How tile scores become detections: peaks (local maxima) or components "
            "(connected tiles above a threshold)."
        ),
    ] = "peaks",
    radius_um: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Radius in microns around a peak in which no other peak is detected.",
            show_default="75, or more if needed to include neighbouring tiles",
        ),
    ] = None,
    smooth_um: Annotated[
        float,
        typer.Option(
            min=0, help="Standard deviation in microns of a Gaussian filter on the scores; 0: none."
        ),
    ] = 0.0,
    least: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Scores at or below this value are not detections.",
            show_default="0 for peaks; 0.5 for components, 1 for components of ratio",
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--class",
            help="Annotation group or class that means tumour, or 'any'.",
            show_default="Tumor, tumour, metastases, _0, _1",
        ),
    ] = None,
    part: Annotated[
        str,
        typer.Option(
            "--split",
            "--part",  # its name up to 0.6
            help="Which slides to evaluate: unseen (used neither for training nor for choosing the "
            "epoch), all, or the split train, valid or test.",
        ),
    ] = "unseen",
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            help="Name of a slide to skip. May be repeated. 'camelyon16' stands for the slides "
            "of CAMELYON16 whose annotations are incomplete."
        ),
    ] = None,
    mpp: Annotated[
        float | None,
        typer.Option(
            help="Microns per pixel of all slides, instead of the value in each file. The "
            "official evaluation of CAMELYON16 uses 0.243."
        ),
    ] = None,
    tile_share: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Fraction of annotated area from which a tile counts as tumour."
        ),
    ] = 0.5,
    out: Annotated[
        Path | None,
        typer.Option(help="Output folder.", show_default="MODEL/maps/locate"),
    ] = None,
    draws: Annotated[
        int, typer.Option(min=1, help="Number of bootstrap samples for confidence intervals.")
    ] = 1000,
    seed: Seed = 0,
    key: Key = None,
    format_name: Format = None,
    device: Device = "auto",
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Evaluate how well a model localises annotated lesions.

    Example: `scmil locate model/ bags/ --annotations slides/`

    Reports the FROC curve of CAMELYON16 for lesions, and AUC, average precision and Dice for
    tiles. A slide without an annotation counts as normal if its label is the first class, and is
    skipped otherwise. With several scores, they are side by side in report.html.
    """
    from scmil import studies as study
    from scmil.bags.datasets import words_of
    from scmil.stats.localisation import Rule
    from scmil.viz.lesions import locate as locate_folder

    opened = study.open_bags_to_predict([bags], key=key, format_name=format_name)
    with progress_bars(as_json) as bars:
        located = locate_folder(
            model,
            opened,
            annotations,
            out,
            rule=[
                Rule(name, rule, radius_um, smooth_um, least) for name in score or ["probability"]
            ],
            labels=labels,
            missing=words_of(missing),
            group=group,
            part=part,
            exclude=exclude or (),
            mpp=mpp,
            tile_share=tile_share,
            draws=draws,
            seed=seed,
            device=device_of(device),
            overwrite=overwrite,
            progress=lambda done: bars.update("slides", done, len(opened)),
        )
    if as_json:
        say_json({"out": str(located.out), **located.page})
    else:
        _print_result(located)
    say_failed(located.failed)
    if located.failed:
        raise typer.Exit(1)


# ------------------------------------------------------------------------------------------ helpers


def _print_result(located: Any) -> None:
    """Print the tables of lesions and tiles, the settings, and the warnings."""
    from rich.console import Console

    from scmil.viz.lesions import describe_rule

    console, page = Console(), located.page
    if page["compared"]:
        _print_comparison(console, page)
    else:
        if page["froc"]:
            _print_froc(console, page)
        _print_tiles(console, page)
    which = (
        "that were not used in training"
        if page["part"] == "unseen"
        else f"of the split {page['part']!r}"
    )
    console.print(
        shown(f"{describe_rule(page)}\n{page['slides']} slides {which}; {located.out}/report.html")
    )
    for warning in page["warnings"]:
        console.print(f"[bold yellow]warning:[/] {shown(warning)}")


def _print_comparison(console: Any, page: dict[str, Any]) -> None:
    """Print FROC score and AUC of tiles of every score, and the differences from the first."""
    from rich.table import Table

    first = page["rule"]["score"]
    columns = ("Score", "FROC score", f"minus {first}", "AUC of tiles", f"minus {first}")
    table = Table(*map(shown, columns), box=None, header_style="bold")
    for found in [page, *page["compared"]]:
        froc, tiles = found["froc"] or {"score": None, "interval": (None, None)}, found["tiles"]
        difference = found.get("difference", {})
        table.add_row(
            shown(found["rule"]["score"]),
            _value_above_interval(froc["score"], froc["interval"]),
            _changed(difference.get("froc")),
            _value_above_interval(tiles["auc"], tiles["auc_interval"]),
            _changed(difference.get("auc")),
        )
    console.print(table)
    console.print("in brackets: 95 % intervals; the same resamples for both scores\n")


def _value_above_interval(value: float | None, interval: list[float | None]) -> str:
    return f"{three_decimals(value)}\n({_format_interval(interval)})"


def _changed(found: dict[str, Any] | None) -> str:
    """A difference and its interval, with signs."""
    from scmil.report.html.markup import change

    if found is None:
        return ""
    return f"{change(found['value'])}\n({' to '.join(map(change, found['interval']))})"


def _print_froc(console: Any, page: dict[str, Any]) -> None:
    """Print the sensitivity at the six rates of false positives, and their mean."""
    from rich.table import Table

    froc = page["froc"]
    columns = ("False positives per slide", "Sensitivity", "95 % interval")
    table = Table(*columns, box=None, header_style="bold")
    for point in froc["points"]:
        rate = point["false_positives"]
        name = {0.25: "1/4", 0.5: "1/2"}.get(rate, f"{rate:g}")
        table.add_row(
            name, three_decimals(point["sensitivity"]), _format_interval(point["interval"])
        )
    table.add_row(
        "[bold]mean (FROC score)[/]",
        f"[bold]{three_decimals(froc['score'])}[/]",
        _format_interval(froc["interval"]),
    )
    console.print(table)
    console.print(
        f"{froc['lesions']} lesions in {page['slides_with_lesions']} of {page['slides']} slides; "
        f"{froc['isolated']} isolated tumour cells are not counted\n"
    )


def _print_tiles(console: Any, page: dict[str, Any]) -> None:
    """Print the metrics of tiles."""
    from rich.table import Table

    tiles = page["tiles"]
    table = Table("Tiles", "", "95 % interval", "mean over slides", box=None, header_style="bold")
    for key, name, slide_key in (
        ("auc", "AUC", "slide_auc"),
        ("ap", "average precision", "slide_ap"),
        ("dice", "Dice, best threshold", None),
    ):
        mean = three_decimals(tiles[slide_key]) if slide_key else ""
        table.add_row(
            name, three_decimals(tiles[key]), _format_interval(tiles[f"{key}_interval"]), mean
        )
    console.print(table)
    console.print(
        f"{tiles['tumour_tiles']} of {tiles['tiles']} tiles are tumour (at least "
        f"{page['tile_share']:g} of their area is annotated); the threshold of Dice, "
        f"{three_decimals(tiles['dice_threshold'])}, was chosen on the same slides\n"
    )


def _format_interval(interval: list[float | None]) -> str:
    return " to ".join(map(three_decimals, interval))
