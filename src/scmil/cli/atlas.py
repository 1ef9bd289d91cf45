"""The commands atlas and pca."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from scmil.cli.output import say, say_failed, say_json
from scmil.cli.progress import progress_bars

if TYPE_CHECKING:
    from scmil.bags.bag import BagSet

Labels = Annotated[
    Path | None,
    typer.Option(
        help="Table of labels.", show_default="the labels that the model was trained with"
    ),
]


@app.command(rich_help_panel=VISUALISATION)
def atlas(
    model: Model,
    bags: BagsWithCoordinates,
    slides: Annotated[
        Path | None,
        typer.Option(help="Folder of the slides. Without it the atlas has no tile images."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Output folder.", show_default="MODEL/maps/atlas")
    ] = None,
    tiles: Annotated[int, typer.Option(min=1, help="Number of tile images per atom.")] = 10,
    per_slide: Annotated[
        int, typer.Option(min=1, help="Maximum number of tile images from one slide, per atom.")
    ] = 3,
    labels: Labels = None,
    missing: Missing = None,
    held_out: Annotated[
        bool,
        typer.Option(
            "--held-out",
            help="Compare classes only on slides that were not used to train the model.",
        ),
    ] = False,
    evidence: Annotated[
        bool,
        typer.Option(
            "--evidence",
            help="Show the contributions of the atoms to the logits for every aggregator. Without "
            "it they are shown only if the head is linear after pooling, because then they are "
            "exact; otherwise they are computed by integrated gradients, which is slow.",
        ),
    ] = False,
    key: Key = None,
    format_name: Format = None,
    device: Device = "auto",
    seed: Seed = 0,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Show what each atom of the sparse coding layer responds to.

    Example: `scmil atlas model/ bags/ --slides slides/`

    An atom is a learned column of the dictionary of the sparse coding layer; a tile is represented
    by a few atoms. For each atom, the atlas shows the tiles with the largest codes, how often the
    atom is used in each class, the attention of these tiles, its contribution to each class logit,
    and the atoms it occurs with. The
    output is a page (index.html), a CSV table, a GeoJSON file per slide for QuPath, and JSON.
    Slides that fail are listed in OUT/failures.csv and skipped. Existing results are kept if
    their inputs have not changed.
    """
    from scmil.viz.atlas import make_atlas

    with progress_bars(as_json) as bars:
        made = make_atlas(
            model,
            _open_bags(model, bags, labels, missing, key, format_name),
            out,
            slides=slides,
            tiles=tiles,
            per_slide=per_slide,
            held_out=held_out,
            evidence=evidence,
            seed=seed,
            device=device_of(device),
            overwrite=overwrite,
            progress=bars.callback,
        )
    ranked, dead, duplicates = made.atlas.ranked, made.atlas.dead, made.atlas.duplicates
    if as_json:
        say_json(
            {
                "out": str(made.out),
                "atoms": len(made.atlas.atoms),
                "ranked": [atom.atom for atom in ranked],
                "dead": [atom.atom for atom in dead],
                "duplicates": {atom.atom: atom.duplicate_of for atom in duplicates},
                "failed": made.failed,
            }
        )
    else:
        for atom in ranked[:3]:
            say(atom.sentence)
        say(
            f"{len(ranked)} atoms; {len(dead)} dead atoms and {len(duplicates)} duplicates are "
            f"listed separately. Open {made.out / 'index.html'}"
        )
    _fail_if_any(made.failed, as_json)


@app.command(rich_help_panel=VISUALISATION)
def pca(
    model: Model,
    bags: BagsWithCoordinates,
    others: Annotated[
        list[Path] | None,
        typer.Option("--with", help="Folder of another model to draw. May be repeated."),
    ] = None,
    annotations: Annotated[
        Path | None,
        typer.Option(
            help="Folder of annotations: SLIDE.xml (ASAP) or SLIDE.geojson (QuPath). Colours then "
            "show tumour and other tiles, instead of the labels of the slides."
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Output image; .svg and .csv files are written next to it.")
    ] = Path("pca.png"),
    tiles: Annotated[
        int, typer.Option(min=10, help="Number of tiles to draw, half of each colour.")
    ] = 1500,
    labels: Labels = None,
    missing: Missing = None,
    key: Key = None,
    format_name: Format = None,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Plot the tile representations of one or more models by PCA.

    Example: `scmil pca plain/ bags/ --with ilra/ --with sc/`

    The representation is the sparse code for models with sparse coding, the input of the pooling
    for ILRA, and the embedding for other models. The number in each title measures how well a
    straight line in the plane separates the colours, on slides it was not fitted to.
    """
    from scmil.viz.pca import draw_pca

    models = [model, *(others or [])]
    with progress_bars(as_json) as bars:
        drawn = draw_pca(
            models,
            _open_bags(model, bags, labels, missing, key, format_name),
            out,
            annotations=annotations,
            tiles=tiles,
            seed=seed,
            overwrite=overwrite,
            progress=bars.callback,
        )
    if as_json:
        panels = [
            {
                "model": str(path),
                "name": panel.name,
                "explained": list(panel.explained),
                "auc": panel.auc,
            }
            for path, panel in zip(models, drawn.panels, strict=True)
        ]
        say_json(
            {
                "out": [str(path) for path in drawn.files],
                "tiles": drawn.counts,
                "panels": panels,
                "left_out": drawn.left_out,
                "failed": drawn.failed,
            }
        )
    else:
        for panel in drawn.panels:
            say(f"{panel.name}, {panel.about}: {panel.separation}")
        if drawn.left_out:
            names = ", ".join(drawn.left_out)
            say(f"skipped slides without an annotation or a label: {names}", err=True)
        say(f"Written: {', '.join(str(path) for path in drawn.files)}")
    _fail_if_any(drawn.failed, as_json)


# ------------------------------------------------------------------------------------------ helpers


def _open_bags(
    model: Path,
    bags: Path,
    table: Path | None,
    missing: str | None,
    key: str | None,
    format_name: str | None,
) -> BagSet:
    """Open bags with the labels of a table, or with those that the model was trained with.

    The classes and their order are those of the model.
    """
    from scmil.bags.datasets import words_of
    from scmil.bags.formats import open_bags
    from scmil.bags.labels import read_labels
    from scmil.models.predictions_file import read_training_labels
    from scmil.studies import load_trained_model

    _, study = load_trained_model(model)
    labels = read_training_labels(model, study["classes"])
    if table is not None:
        labels = read_labels(table, classes=study["classes"], missing=words_of(missing))
    return open_bags(bags, format_name, labels=labels, key=key)


def _fail_if_any(failed: dict[str, str], as_json: bool) -> None:
    """Print the failed slides and exit with code 1 if there are any."""
    if not failed:
        return
    if not as_json:
        say_failed(failed)
        say(f"{len(failed)} slides failed", err=True)
    raise typer.Exit(1)
