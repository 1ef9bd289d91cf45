"""What the atoms have learned: scmil atlas and scmil pca."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scmil.cli import app
from scmil.cli.options import Missing, Overwrite, device_of, progress_bars, say, say_failed

if TYPE_CHECKING:
    from scmil.bags.bag import BagSet

PANEL = "Seeing"

Model = Annotated[Path, typer.Argument(help="A folder that scmil train wrote.")]
Bags = Annotated[Path, typer.Argument(help="A folder of bags with coordinates, as the model was trained on.")]
Labels = Annotated[
    Path | None,
    typer.Option(help="A table of labels. [default: those that the model was trained with, in its predictions.csv]"),
]
Key = Annotated[str | None, typer.Option(help="Which encoder, if the folder has several.")]
Format = Annotated[str | None, typer.Option("--format", help="The format of the folder, if it is not detected.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps; auto takes a GPU if there is one.")]
Seed = Annotated[int, typer.Option(min=0, help="Of what is drawn at random.")]
Json = Annotated[bool, typer.Option("--json", help="For programs.")]


@app.command(rich_help_panel=PANEL)
def atlas(
    model: Model,
    bags: Bags,
    slides: Annotated[Path | None, typer.Option(help="The slides, for pictures; without them there are none.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the atlas. [default: MODEL/maps/atlas]")] = None,
    tiles: Annotated[int, typer.Option(min=1, help="Pictures an atom.")] = 10,
    per_slide: Annotated[int, typer.Option(min=1, help="Of them, at most so many of one slide.")] = 3,
    labels: Labels = None,
    missing: Missing = None,
    held_out: Annotated[
        bool, typer.Option("--held-out", help="Compare classes only on slides that the model has not seen.")
    ] = False,
    key: Key = None,
    format: Format = None,
    device: Device = "auto",
    seed: Seed = 0,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Show what each atom has learned: scmil atlas model/ bags/ --slides slides/

    For each atom the tiles that use it most, how often and in which classes, the attention it gets, and the atoms it goes
    with. OUT gets a page (index.html), a table, classes for QuPath, and JSON. Slides that cannot be read are written to
    OUT/failures.csv, and the others go on. What is there already is kept.
    """
    from scmil.viz.atlas_page import make_atlas

    with _stages(as_json) as progress:
        made = make_atlas(
            model, _open(model, bags, labels, missing, key, format), out, slides=slides, tiles=tiles, per_slide=per_slide,
            held_out=held_out, seed=seed, device=device_of(device), overwrite=overwrite, progress=progress,
        )  # fmt: skip
    ranked = made.atlas.ranked
    if as_json:
        page = {
            "out": str(made.out),
            "atoms": len(made.atlas.atoms),
            "ranked": [atom.atom for atom in ranked],
            "dead": [atom.atom for atom in made.atlas.dead],
            "duplicates": {atom.atom: atom.duplicate_of for atom in made.atlas.duplicates},
            "failed": made.failed,
        }
        say(json.dumps(page, indent=2))
    else:
        for atom in ranked[:3]:
            say(atom.sentence)
        dead, same = len(made.atlas.dead), len(made.atlas.duplicates)
        say(f"{len(ranked)} atoms, {dead} dead and {same} duplicates besides. Look at {made.out / 'index.html'}")
    _say_failed(made.failed, as_json)


@app.command(rich_help_panel=PANEL)
def pca(
    model: Model,
    bags: Bags,
    others: Annotated[list[Path] | None, typer.Option("--with", help="A further model; may be given again.")] = None,
    annotations: Annotated[
        Path | None, typer.Option(help="Folder of <slide>.geojson or .xml: colours are then tumour and other tiles.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The picture; .svg and .csv are written beside it.")] = Path("pca.png"),
    tiles: Annotated[int, typer.Option(min=10, help="How many tiles, half of each colour.")] = 1500,
    labels: Labels = None,
    missing: Missing = None,
    key: Key = None,
    format: Format = None,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Draw tiles as models see them, in two principal components: scmil pca plain/ bags/ --with ilra/ --with sc/

    Of a model with sparse coding its codes, of ILRA what it pools, of others the embedding. The number in each title says
    how well a straight line in the plane tells the colours apart, on slides that it was not fitted to.
    """
    from scmil.viz.pca import draw_pca

    with _stages(as_json) as progress:
        models = [model, *(others or [])]
        drawn = draw_pca(
            models, _open(model, bags, labels, missing, key, format), out, annotations=annotations, tiles=tiles, seed=seed,
            overwrite=overwrite, progress=progress,
        )  # fmt: skip
    if as_json:
        panels = [
            {"model": str(path), "name": panel.name, "explained": list(panel.explained), "auc": panel.auc}
            for path, panel in zip(models, drawn.panels, strict=True)
        ]
        page = {
            "out": [str(path) for path in drawn.files],
            "tiles": drawn.counts,
            "panels": panels,
            "left_out": drawn.left_out,
        }
        say(json.dumps({**page, "failed": drawn.failed}, indent=2))
    else:
        for panel in drawn.panels:
            say(f"{panel.name}, {panel.about}: {panel.separation}")
        if drawn.left_out:
            say(f"left out, without annotations or label: {', '.join(drawn.left_out)}", err=True)
        say(f"Look at {', '.join(str(path) for path in drawn.files)}")
    _say_failed(drawn.failed, as_json)


# ------------------------------------------------------------------------------------------------------------- helpers


def _open(
    model: Path, bags: Path, table: Path | None, missing: str | None, key: str | None, format: str | None
) -> BagSet:
    """The bags with the labels of a table, or with those that the model was trained with; its classes, in its order."""
    from scmil.bags.datasets import words_of
    from scmil.bags.formats import open_bags
    from scmil.bags.labels import read_labels
    from scmil.studies import load_study

    _, study = load_study(model)
    own = model / "predictions.csv"
    known = None
    if table is not None:
        known = read_labels(table, classes=study["classes"], missing=words_of(missing))
    elif own.is_file():
        known = read_labels(own, label="y_true", classes=study["classes"], missing=())
    return open_bags(bags, format, labels=known, key=key)


def _say_failed(failed: dict[str, str], quiet: bool) -> None:
    """Some slides that failed make the command fail."""
    if not failed:
        return
    if not quiet:
        say_failed(failed)
        say(f"{len(failed)} slides failed", err=True)
    raise typer.Exit(1)


@contextmanager
def _stages(quiet: bool) -> Iterator[Callable[[str, int, int], None] | None]:
    """Bars that stages of the work add and move; nothing where nobody looks."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with progress_bars(console=Console(stderr=True)) as bars:
        tasks: dict[str, int] = {}

        def tell(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done)

        yield tell
