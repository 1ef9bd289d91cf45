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
    mpp: Annotated[
        float | None, typer.Option(help="Microns per pixel; by default that of the scanner.")
    ] = None,
    patients: Annotated[
        int | None, typer.Option(min=1, help="Number of patients; by default one per slide.")
    ] = None,
    outcomes: Annotated[
        str,
        typer.Option(
            help="none: classes only. planted: also times, a number, a grade and labels that "
            "depend on the tissue. random: the same, of random other patients."
        ),
    ] = "none",
    scanner: Annotated[
        str, typer.Option(help="a, or b for another stain, scanner and resolution.")
    ] = "a",
    seed: Seed = 0,
    overwrite: Overwrite = False,
) -> None:
    """Generate synthetic H&E slides with labels and annotations, for tests and tutorials.

    Example: `scmil paint --out slides/ --slides 12 --side 4000`

    Half of the slides contain a tumour. The tumours are annotated in SLIDE.geojson (QuPath) and
    SLIDE.xml (ASAP). With `--outcomes planted`, the fraction of tumour, inflammation and necrosis
    differ, and labels.csv has survival times and other values that depend on them.
    """
    from scmil.slides.synthetic import draw_patients, oracle_concordance, paint_cohort
    from scmil.slides.synthetic.cohort import POSITIVE, choose_tumours

    labels = paint_cohort(
        out,
        slides=slides,
        size=(side, side),
        mpp=mpp,
        seed=seed,
        annotations=True,
        overwrite=overwrite,
        patients=patients,
        outcomes=outcomes,
        scanner=scanner,
    )
    say(f"{slides} slides and {labels}")
    if outcomes != "none":
        tumours = choose_tumours(patients or slides, POSITIVE, seed).tolist()
        best = oracle_concordance(draw_patients(tumours, seed, outcomes))
        say(f"concordance of the true log hazard with os_months: {best:.2f}")
