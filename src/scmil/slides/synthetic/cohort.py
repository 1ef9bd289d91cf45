"""Generate synthetic slides of many patients, with their labels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scmil.core.outputs import Outputs
from scmil.core.tables import csv_bytes
from scmil.errors import OptionError, OutputError
from scmil.slides.synthetic.outcomes import COLUMNS, Patient, check_outcomes, draw_patients
from scmil.slides.synthetic.pyramid import read_recipe
from scmil.slides.synthetic.scanners import scanner_of
from scmil.slides.synthetic.slide import SlideOptions, check_geometry, generate_slide

LABELS = ("normal", "tumour")
POSITIVE = 0.5  # fraction of the patients with tumour


def paint_cohort(
    folder: str | os.PathLike[str],
    slides: int = 20,
    positive: float = POSITIVE,
    seed: int = 0,
    size: tuple[int, int] = (20_000, 20_000),
    mpp: float | Sequence[float] | None = None,
    patients: int | None = None,
    overwrite: bool = False,
    outcomes: str = "none",
    scanner: str = "a",
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
        mpp: Microns per pixel; that of the scanner if None. Several values are assigned in turn
            within each class, so that the resolution is independent of the label.
        patients: Number of patients; None for one per slide.
        overwrite: Whether files of other programs are replaced.
        outcomes: "none" for classes only. With "planted", tumour fraction, inflammation and
            necrosis differ between patients, and the table has times, a number, a grade and labels
            that depend on them as `synthetic.outcomes` describes. With "random", the slides are
            those of "planted", and each patient has the label and the outcomes of a random one.
        scanner: "a", or "b" for another stain, scanner and resolution; names of its slides and
            patients start with "b_".
        **options: Further options of `paint`.

    Returns:
        The path of labels.csv, with the columns case_id, slide_id and label, followed by those of
        the outcomes.

    Raises:
        OptionError: If an option is invalid.
        OutputError: If the folder contains a slide, annotation or table that was not written by
            this function, unless `overwrite`. Nothing is generated then.
    """
    folder = Path(folder)
    patients = slides if patients is None else patients
    _check_cohort(slides, positive, patients, options)
    check_outcomes(outcomes)
    source = scanner_of(scanner)
    mpp = source.mpp if mpp is None else mpp
    resolutions = [mpp] if isinstance(mpp, int | float) else list(mpp)
    for each in resolutions:
        check_geometry(folder / "slide.svs", size, each)
    has_tumour = choose_tumours(patients, positive, seed)
    people = draw_patients(has_tumour.tolist(), seed, outcomes) if outcomes != "none" else []
    seeds = np.random.SeedSequence([seed, 51]).generate_state(slides)
    missing: dict[Path, SlideOptions] = {}
    rows: list[tuple[Any, ...]] = [("case_id", "slide_id", "label", *(COLUMNS if people else ()))]
    counts = [0, 0]
    for number in range(slides):
        patient = number % patients
        tumour = int(has_tumour[patient])
        path = folder / f"{source.prefix}slide_{number + 1:03d}.svs"
        content = _content(people[patient] if people else None, bool(tumour), options)
        resolution = resolutions[counts[tumour] % len(resolutions)]
        slide = SlideOptions(
            size=size, mpp=resolution, seed=int(seeds[number]), scanner=scanner, **content
        )
        if read_recipe(path) != slide.digest():
            missing[path] = slide
        counts[tumour] += 1
        label = int(people[patient].recorded.fraction > 0) if people else tumour
        outcome = people[patient].cells(scanner) if people else ()
        case = f"{source.prefix}patient_{patient + 1:03d}"
        rows.append((case, path.stem, LABELS[label], *outcome))
    labels = csv_bytes(rows)
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


def choose_tumours(patients: int, positive: float, seed: int) -> NDArray[np.bool_]:
    """Which patients of a cohort have a tumour.

    >>> int(choose_tumours(10, positive=0.3, seed=0).sum())
    3
    """
    order = np.random.default_rng([seed, 50]).permutation(patients)
    return order < round(positive * patients)


def _content(patient: Patient | None, tumour: bool, options: dict[str, Any]) -> dict[str, Any]:
    """What a slide shows: as the options say, and what its patient has."""
    content = {"tumour": True, **options} if tumour else {**options, "tumour": False}
    if patient is None:
        return content
    tissue = patient.tissue
    planted = {"inflammation": tissue.inflammation, "necrosis": tissue.necrosis}
    return content | planted | ({"tumour_area": tissue.fraction} if tumour else {})


def _check_replaceable(path: Path) -> None:
    """Reject an existing file that is not a synthetic slide; those contain a digest of options."""
    if os.path.lexists(path) and (path.is_symlink() or read_recipe(path) is None):
        raise OutputError(
            f"{path} exists and was not written by scmil paint. Choose another folder with --out, "
            "or replace it with --overwrite."
        )


def _check_cohort(slides: int, positive: float, patients: int, options: dict[str, Any]) -> None:
    """Raise for invalid options of `paint_cohort`."""
    own = {"size", "mpp", "seed", "scanner"}
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
