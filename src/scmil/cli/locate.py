"""How well a model finds lesions: scmil locate."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from scmil.cli import app
from scmil.cli.options import Missing, Overwrite, device_of, progress_bars, say, say_failed, shown

PANEL = "Seeing"


@app.command(rich_help_panel=PANEL)
def locate(
    model: Annotated[Path, typer.Argument(help="A folder that scmil train wrote.")],
    bags: Annotated[Path, typer.Argument(help="A folder of bags with coordinates.")],
    annotations: Annotated[
        Path, typer.Option(help="Folder with <slide>.xml of ASAP or <slide>.geojson of QuPath, in level-0 pixels.")
    ],
    labels: Annotated[
        Path | None, typer.Option(help="A table of labels, if neither the bags nor the model's study has them.")
    ] = None,
    missing: Missing = None,
    score: Annotated[
        str,
        typer.Option(
            help="probability (of a bag with this tile alone), ratio (attention x tiles), weighted (ratio x the slide's "
            "probability), probability:CLASS, lambda, sparsity, atom:K."
        ),
    ] = "probability",
    rule: Annotated[str, typer.Option(help="How detections are made: peaks or components.")] = "peaks",
    radius_um: Annotated[
        float | None,
        typer.Option(min=0, help="What a peak silences. [default: 75, or as much as reaches a tile's neighbours]"),
    ] = None,
    smooth_um: Annotated[float, typer.Option(min=0, help="A Gaussian over neighbours first; 0: none.")] = 0.0,
    least: Annotated[
        float | None,
        typer.Option(min=0, help="What a detection has to exceed. [default: peaks 0; components 0.5, of ratio 1]"),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--class", help="The group or class that is tumour, or any. [default: Tumor, tumour, metastases, _0, _1]"
        ),
    ] = None,
    part: Annotated[
        str, typer.Option(help="unseen: neither learned from nor chosen on; all; or train, valid, test.")
    ] = "unseen",
    exclude: Annotated[
        list[str] | None,
        typer.Option(help="A slide to leave out, again for more; camelyon16: those it outlines in part."),
    ] = None,
    mpp: Annotated[
        float | None,
        typer.Option(help="Microns per pixel of all slides, in place of their own; officially 0.243 for CAMELYON16."),
    ] = None,
    tile_share: Annotated[float, typer.Option(min=0, max=1, help="A tile is tumour if so much of it is.")] = 0.5,
    out: Annotated[Path | None, typer.Option(help="Folder of the results. [default: MODEL/maps/locate]")] = None,
    draws: Annotated[int, typer.Option(min=1, help="Of slides, for the intervals.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Of these draws.")] = 0,
    key: Annotated[str | None, typer.Option(help="Which encoder, if the folder has several.")] = None,
    format: Annotated[
        str | None, typer.Option("--format", help="The format of the folder, if it is not detected.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps; auto takes a GPU if there is one.")] = "auto",
    overwrite: Overwrite = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Compare a model's scores with outlined lesions: FROC as CAMELYON16 counts it, and AUC, precision and Dice of tiles.

    Slides without an annotation are normal if their label is the first class, and are left out otherwise.
    """
    from scmil import studies as study
    from scmil.bags.datasets import words_of
    from scmil.stats.localisation import Rule
    from scmil.viz.lesions import locate as locate_folder

    opened = study.open_bags_to_predict([bags], key=key, format=format)
    asked = Rule(score, rule, radius_um, smooth_um, least)
    with _Bar(len(opened), as_json) as told:
        found = locate_folder(
            model, opened, annotations, out, rule=asked, labels=labels,
            missing=words_of(missing), group=group, part=part, exclude=exclude or (),
            mpp=mpp, tile_share=tile_share, draws=draws, seed=seed, device=device_of(device), overwrite=overwrite,
            progress=told.advance_to,
        )  # fmt: skip
    if as_json:
        say(json.dumps({"out": str(found.out), **found.page}, indent=2))
    else:
        _print(found)
    say_failed(found.failed)
    if found.failed:
        raise typer.Exit(1)


class _Bar:
    """A bar over slides that are scored; silent where nobody looks."""

    def __init__(self, total: int, quiet: bool) -> None:
        self.total, self.bars = total, None if quiet or not sys.stderr.isatty() else progress_bars()

    def __enter__(self) -> _Bar:
        if self.bars:
            self.bars.start()
            self.task = self.bars.add_task("slides", total=self.total)
        return self

    def __exit__(self, *error: object) -> None:
        if self.bars:
            self.bars.stop()

    def advance_to(self, done: int) -> None:
        if self.bars:
            self.bars.update(self.task, completed=done)


def _print(found: Any) -> None:
    from rich.console import Console
    from rich.table import Table

    from scmil.viz.lesions import made_of

    console, page, froc, tiles = Console(), found.page, found.page["froc"], found.page["tiles"]
    if froc:
        table = Table("False positives per slide", "Lesions found", "95 % interval", box=None, header_style="bold")
        for point in froc["points"]:
            name = {0.25: "1/4", 0.5: "1/2"}.get(point["false_positives"], f"{point['false_positives']:g}")
            table.add_row(name, _number(point["sensitivity"]), _between(point["interval"]))
        table.add_row("[bold]mean: FROC score[/]", f"[bold]{_number(froc['score'])}[/]", _between(froc["interval"]))
        console.print(table)
        console.print(
            f"{froc['lesions']} lesions in {page['slides_with_lesions']} of {page['slides']} slides; {froc['isolated']} "
            "isolated tumour cells that do not count\n"
        )
    table = Table("Tiles", "", "95 % interval", "mean over slides", box=None, header_style="bold")
    for name, words, of_slide in (
        ("auc", "AUC", "slide_auc"), ("ap", "average precision", "slide_ap"), ("dice", "Dice, best threshold", None),
    ):  # fmt: skip
        alone = _number(tiles[of_slide]) if of_slide else ""
        table.add_row(words, _number(tiles[name]), _between(tiles[f"{name}_interval"]), alone)
    console.print(table)
    console.print(
        f"{tiles['tumour_tiles']} of {tiles['tiles']} tiles are tumour ({page['tile_share']:g} of their area or more); the "
        f"threshold of Dice, {_number(tiles['dice_threshold'])}, is chosen on these very slides\n"
    )
    part = "that the model has not seen" if page["part"] == "unseen" else f"of the part {page['part']!r}"
    console.print(shown(f"{made_of(page)}\n{page['slides']} slides {part}; {found.out}"))
    for warning in page["warnings"]:
        console.print(f"[bold yellow]warning:[/] {shown(warning)}")


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _between(interval: list[float | None]) -> str:
    return " to ".join(map(_number, interval))
