"""The command paint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scmil.cli import app
from scmil.cli.options import SLIDES, Overwrite, Seed
from scmil.cli.output import say


@app.command("paint", rich_help_panel=SLIDES)
def paint_(
    out: Annotated[Path, typer.Option(help="Output folder of the slides and of labels.csv.")],
    slides: Annotated[int, typer.Option(min=1, help="Number of slides.")] = 8,
    side: Annotated[
        int, typer.Option(min=1000, max=100_000, help="Width and height of a slide in pixels.")
    ] = 6000,
    mpp: Annotated[float, typer.Option(help="Microns per pixel.")] = 0.5,
    seed: Seed = 0,
    overwrite: Overwrite = False,
) -> None:
    """Generate synthetic H&E slides with labels and annotations, for tests and tutorials.

    Example: `scmil paint --out slides/ --slides 12 --side 4000`

    Half of the slides contain a tumour. The tumours are annotated in SLIDE.geojson (QuPath) and
    SLIDE.xml (ASAP).
    """
    from scmil.slides.synthetic import paint_cohort

    labels = paint_cohort(
        out,
        slides=slides,
        size=(side, side),
        mpp=mpp,
        seed=seed,
        annotations=True,
        overwrite=overwrite,
    )
    say(f"{slides} slides and {labels}")
