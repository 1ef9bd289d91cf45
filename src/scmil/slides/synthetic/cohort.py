"""Generate synthetic slides of many patients, with their labels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from scmil.core.outputs import Outputs
from scmil.core.tables import csv_bytes
from scmil.errors import OptionError, OutputError
from scmil.slides.synthetic.pyramid import read_recipe
from scmil.slides.synthetic.slide import SlideOptions, check_geometry, generate_slide

LABELS = ("normal", "tumour")


def paint_cohort(
    folder: str | os.PathLike[str],
    slides: int = 20,
    positive: float = 0.5,
    seed: int = 0,
    size: tuple[int, int] = (20_000, 20_000),
    mpp: float | Sequence[float] = 0.5,
    patients: int | None = None,
    overwrite: bool = False,
    **options: Any,
) -> Path:
    """Generate synthetic slides of many patients and a table of their labels.

    Existing slides that were generated with the same options are kept.

    Args:
        folder: The output folder.
        slides: Number of slides.
        positive: The fraction of the patients with tumour, on each of their slides.
        seed: Determines the content of all slides.
        size: Width and height of a slide in pixels.
        mpp: Microns per pixel. Several values are assigned in turn within each class, so that the
            resolution is independent of the label.
        patients: Number of patients; None for one per slide.
        overwrite: Whether files of other programs are replaced.
        **options: Further options of `paint`.

    Returns:
        The path of labels.csv, with the columns case_id, slide_id and label.

    Raises:
        OptionError: If an option is invalid.
        OutputError: If the folder contains a slide, annotation or table that was not written by
            this function, unless `overwrite`. Nothing is generated then.
    """
    folder = Path(folder)
    patients = slides if patients is None else patients
    _check_cohort(slides, positive, patients, options)
    resolutions = [mpp] if isinstance(mpp, int | float) else list(mpp)
    for each in resolutions:
        check_geometry(folder / "slide.svs", size, each)
    has_tumour = np.random.default_rng([seed, 50]).permutation(patients) < round(
        positive * patients
    )
    seeds = np.random.SeedSequence([seed, 51]).generate_state(slides)
    missing: dict[Path, SlideOptions] = {}
    rows, counts = [], [0, 0]
    for number in range(slides):
        patient = number % patients
        label = int(has_tumour[patient])
        path = folder / f"slide_{number + 1:03d}.svs"
        content = {"tumour": True, **options} if label else {**options, "tumour": False}
        resolution = resolutions[counts[label] % len(resolutions)]
        slide = SlideOptions(size=size, mpp=resolution, seed=int(seeds[number]), **content)
        if read_recipe(path) != slide.digest():
            missing[path] = slide
        counts[label] += 1
        rows.append((f"patient_{patient + 1:03d}", path.stem, LABELS[label]))
    labels = csv_bytes([("case_id", "slide_id", "label"), *rows])
    outputs = Outputs(folder, "paint", overwrite)
    outputs.check(folder / "labels.csv", content=labels)
    for path, slide in missing.items():
        if not overwrite:
            _check_replaceable(path)
        if slide.annotations:
            outputs.check(path.with_suffix(".xml"), path.with_suffix(".geojson"))
    for path, slide in missing.items():
        generate_slide(path, slide, outputs.write)
    outputs.write(folder / "labels.csv", labels)
    return folder / "labels.csv"


def _check_replaceable(path: Path) -> None:
    """Reject an existing file that is not a synthetic slide; those contain a digest of options."""
    if os.path.lexists(path) and (path.is_symlink() or read_recipe(path) is None):
        raise OutputError(
            f"{path} exists and was not written by scmil paint. Choose another folder with --out, "
            "or replace it with --overwrite."
        )


def _check_cohort(slides: int, positive: float, patients: int, options: dict[str, Any]) -> None:
    """Raise for invalid options of `paint_cohort`."""
    own = {"size", "mpp", "seed"}
    available = [each.name for each in fields(SlideOptions) if each.name not in own]
    if unknown := [name for name in options if name not in available]:
        raise OptionError(
            f"paint_cohort has no option {unknown[0]!r}. Further options: {', '.join(available)}."
        )
    if not 1 <= patients <= slides:
        raise OptionError(
            f"{slides} slides of {patients} patients; expected at least 1 patient, and at least as "
            "many slides as patients."
        )
    if not 0 <= positive <= 1:
        raise OptionError(f"positive = {positive}; expected a fraction between 0 and 1.")
