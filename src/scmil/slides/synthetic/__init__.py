"""Slides that look like H&E and whose tumour is known: painted from a seed, for tests, the demo and benchmarks."""

from __future__ import annotations

import csv
import hashlib
import inspect
import io
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scmil.errors import OptionError, OutputError, SlideError
from scmil.core.extras import need
from scmil.core.files import write_atomically
from scmil.outputs import Outputs
from scmil.slides.synthetic.anatomy import anatomy
from scmil.slides.synthetic.pyramid import Tile, recipe_of, write_pyramid
from scmil.slides.synthetic.scene import PENS, Scene
from scmil.slides.synthetic.textures import library

__all__ = ["Painted", "paint", "paint_cohort"]

PAINTER = 1  # counted up when the same seed shows something else than before
SMALLEST_PX, LARGEST_PX = 1_000, 100_000
FINEST_MPP, COARSEST_MPP = 0.1, 4.0
LARGEST_UM = 100_000  # a glass slide is 75 mm long
ROOMY_UM = 3_000  # from here on a slide may have several pieces of tissue
LARGE_TUMOUR = 0.15  # the share of the tissue from which on a tumour is alone in a single piece, unless asked otherwise
SUFFIXES = (".svs", ".tif", ".tiff")
LABELS = ("normal", "tumour")


@dataclass(frozen=True, eq=False)
class Painted:
    """What was painted: the file, and the truth about it. Outlines are corners in level-0 pixels, (k, 2)."""

    path: Path
    size: tuple[int, int]
    mpp: float
    seed: int
    tissue: tuple[NDArray[np.float64], ...]
    tumour: tuple[NDArray[np.float64], ...]

    @property
    def label(self) -> int:
        """1 for a slide with tumour, 0 for one without."""
        return int(bool(self.tumour))

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        outlines = {name: [outline.tolist() for outline in getattr(self, name)] for name in ("tissue", "tumour")}
        known = dict(path=str(self.path), size=list(self.size), mpp=self.mpp, seed=self.seed, label=self.label)
        return {**known, **outlines}


def paint(
    path: str | os.PathLike[str],
    *,
    size: tuple[int, int] = (20_000, 20_000),
    mpp: float = 0.5,
    seed: int = 0,
    tumour: bool | int = True,
    tumour_area: float = 0.05,
    pieces: int | None = None,
    folds: int = 1,
    pen: str | None = None,
    step: int = 4,
    quality: int = 85,
    annotations: bool = False,
) -> Painted:
    """Paint a slide as a pyramidal TIFF that OpenSlide takes for one of Aperio's; what it shows follows from the seed.

    `tumour` is whether there is any, or the number of regions; together they take the share `tumour_area` of the tissue.
    Sizes are microns: the same seed on the same extent shows the same tissue at every `mpp`. Borders are rough by about
    12 microns, and the outlines hold to that. `annotations` writes the tumours beside the slide for ASAP (.xml) and
    QuPath (.geojson), too.

    >>> import tempfile
    >>> slide = paint(Path(tempfile.mkdtemp()) / "case.svs", size=(1000, 1200), tumour=2)
    >>> slide.path.name, slide.label, len(slide.tumour), slide.tumour[0].shape
    ('case.svs', 1, 2, (360, 2))
    """
    options: dict[str, Any] = dict(
        size=size, mpp=mpp, seed=seed, tumour=tumour, tumour_area=tumour_area, pieces=pieces, folds=folds, pen=pen, step=step,
        quality=quality, annotations=annotations,
    )  # fmt: skip
    return _paint(Path(path), write_atomically, **options)


def _paint(
    path: Path,
    write: Callable[[Path, bytes], None],
    *,
    size: tuple[int, int],
    mpp: float,
    seed: int,
    tumour: bool | int,
    tumour_area: float,
    pieces: int | None,
    folds: int,
    pen: str | None,
    step: int,
    quality: int,
    annotations: bool,
) -> Painted:
    """What `paint` does; `write` writes the annotations."""
    _check_slide(path, size, mpp)
    _check_content(seed, tumour, tumour_area, pieces, folds, pen, step, quality)
    recipe = _recipe(
        size=size, mpp=mpp, seed=seed, tumour=tumour, tumour_area=tumour_area, pieces=pieces, folds=folds, pen=pen, step=step,
        quality=quality, annotations=annotations,
    )  # fmt: skip
    width, height = (length * mpp for length in size)
    number, pieces = _counts(seed, tumour, tumour_area, pieces, max(width, height))
    content = anatomy((width, height), seed, number, tumour_area, pieces, folds, pen is not None)
    scene = Scene(content, library(mpp, seed), size, mpp, seed, pen)

    def tile(x: int, y: int) -> Tile:
        return Tile(scene.tile(x, y), scene.light(x, y) if scene.is_empty(x, y) else None)

    tissue, tumours = (tuple(each.points / mpp for each in outlines) for outlines in (content.tissue, content.tumours))
    if annotations:
        _annotate(path, tumours, write)
    write_pyramid(path, size, tile, mpp, step, quality, recipe)  # last: a slide that is there has its annotations
    return Painted(path, size, mpp, seed, tissue, tumours)


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
    """Paint slides of many patients and write who has a tumour into labels.csv, whose path is returned.

    Its columns are case_id, slide_id and label. A share `positive` of the patients has tumour, on each of their slides.
    Several `mpp` are dealt in turn within each class, so that the resolution does not tell the label. Further options are
    those of `paint`. Slides that are there already, painted in the same way, are kept. A slide, annotation or table that
    was not written here before is rejected, before anything is painted, unless `overwrite`.
    """
    folder = Path(folder)
    patients = slides if patients is None else patients
    _check_cohort(slides, positive, patients, options)
    resolutions = [mpp] if isinstance(mpp, int | float) else list(mpp)
    for each in resolutions:
        _check_slide(folder / "slide.svs", size, each)
    ill = np.random.default_rng([seed, 50]).permutation(patients) < round(positive * patients)
    seeds = np.random.SeedSequence([seed, 51]).generate_state(slides)
    known = {name: each.default for name, each in inspect.signature(paint).parameters.items() if name != "path"}
    todo: dict[Path, dict[str, Any]] = {}
    rows, dealt = [], [0, 0]
    for number in range(slides):
        patient = number % patients
        label = int(ill[patient])
        path = folder / f"slide_{number + 1:03d}.svs"
        of_slide = {
            "size": size,
            "mpp": resolutions[dealt[label] % len(resolutions)],
            "seed": int(seeds[number]),
            **{"tumour": bool(label), **(options if label else {**options, "tumour": False})},
        }
        if recipe_of(path) != _recipe(**of_slide):
            todo[path] = {**known, **of_slide}
        dealt[label] += 1
        rows.append((f"patient_{patient + 1:03d}", path.stem, LABELS[label]))
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([("case_id", "slide_id", "label"), *rows])
    outputs, labels = Outputs(folder, "paint", overwrite), text.getvalue().encode()
    outputs.check(folder / "labels.csv", content=labels)
    for path, of_slide in todo.items():
        if not overwrite:
            _check_painted(path)
        if of_slide["annotations"]:
            outputs.check(path.with_suffix(".xml"), path.with_suffix(".geojson"))
    for path, of_slide in todo.items():
        _paint(path, outputs.write, **of_slide)
    outputs.write(folder / "labels.csv", labels)
    return folder / "labels.csv"


def _check_painted(path: Path) -> None:
    """Reject a slide that is there and was not painted: a painted one says its recipe."""
    if os.path.lexists(path) and (path.is_symlink() or recipe_of(path) is None):
        raise OutputError(
            f"{path} is there, and was not painted by scmil. Give --out another folder, or replace it with --overwrite."
        )


def _recipe(**options: Any) -> str:
    """A digest of all that decides what is painted."""
    known = {name: each.default for name, each in inspect.signature(paint).parameters.items() if name != "path"}
    return hashlib.sha256(json.dumps({"painter": PAINTER, **known, **options}, default=str).encode()).hexdigest()[:16]


def _counts(seed: int, tumour: bool | int, area: float, pieces: int | None, longest_um: float) -> tuple[int, int]:
    """How many tumours, in how many pieces of tissue: what is not given is drawn, and large tumours are left room."""
    generator = np.random.default_rng([seed, 40])
    drawn_tumours, drawn_pieces = generator.integers(1, 4, 2).tolist()
    large, roomy = area > LARGE_TUMOUR, longest_um > ROOMY_UM
    number = int(tumour) if tumour is not True or large else drawn_tumours
    alone = not roomy or (large and number > 0)
    return number, (1 if alone else drawn_pieces) if pieces is None else pieces


def _annotate(path: Path, tumours: Sequence[NDArray[np.float64]], write: Callable[[Path, bytes], None]) -> None:
    from scmil.slides.annotations.asap import asap_bytes
    from scmil.slides.annotations.geojson import Region, geojson_bytes
    from scmil.slides.tissue import polygons

    shapely = need("shapely", "slides")
    shapes = [polygons(shapely.Polygon(outline)) for outline in tumours]
    regions = [Region(f"tumour {number}", shape, "Tumor") for number, shape in enumerate(shapes, start=1)]
    write(path.with_suffix(".xml"), asap_bytes(regions))
    write(path.with_suffix(".geojson"), geojson_bytes(regions))


def _check_slide(path: Path, size: tuple[int, int], mpp: float) -> None:
    if path.suffix.lower() not in SUFFIXES:
        raise SlideError(f"{path}: a painted slide is a TIFF file. End its name with {', '.join(SUFFIXES)}.")
    if len(size) != 2 or not all(isinstance(side, Integral) and SMALLEST_PX <= side <= LARGEST_PX for side in size):
        met = " x ".join(map(str, size))
        raise SlideError(f"size = {met} pixels: two whole numbers between {SMALLEST_PX} and {LARGEST_PX} are needed.")
    if not FINEST_MPP <= mpp <= COARSEST_MPP:
        raise SlideError(f"mpp = {mpp}: microns per pixel between {FINEST_MPP} and {COARSEST_MPP} can be painted.")
    if max(size) * mpp > LARGEST_UM:
        met = f"{max(size)} pixels of {mpp} microns are {max(size) * mpp / 1000:.0f} mm"
        raise SlideError(
            f"{met}, and a slide has at most {LARGEST_UM // 1000} mm. Ask for fewer pixels or a smaller mpp."
        )


def _check_content(
    seed: int,
    tumour: bool | int,
    area: float,
    pieces: int | None,
    folds: int,
    pen: str | None,
    step: int,
    quality: int,
) -> None:
    needs = {
        f"seed = {seed}: a whole number from 0 on": isinstance(seed, Integral) and seed >= 0,
        f"tumour = {tumour}: True, False or a number of regions from 0 to 20": 0 <= tumour <= 20,
        f"tumour_area = {area}: a share of the tissue above 0 and at most 0.5": 0 < area <= 0.5,
        f"pieces = {pieces}: a number from 1 to 10": pieces is None or 1 <= pieces <= 10,
        f"folds = {folds}: a number from 0 to 20": 0 <= folds <= 20,
        f"pen = {pen!r}: None or one of {', '.join(PENS)}": pen is None or pen in PENS,
        f"step = {step}: 4, as Aperio's slides have it, or 2": step in (2, 4),
        f"quality = {quality}: a JPEG quality from 10 to 100": 10 <= quality <= 100,
    }
    for words, met in needs.items():
        if not met:
            raise OptionError(f"{words} is needed.")


def _check_cohort(slides: int, positive: float, patients: int, options: dict[str, Any]) -> None:
    own = {"path", "size", "mpp", "seed"}
    known = [name for name in inspect.signature(paint).parameters if name not in own]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise OptionError(f"paint_cohort takes no option {unknown[0]!r}. Beside its own it takes: {', '.join(known)}.")
    if not 1 <= patients <= slides:
        raise OptionError(
            f"{slides} slides of {patients} patients: every patient needs a slide, and 1 patient at least."
        )
    if not 0 <= positive <= 1:
        raise OptionError(f"positive = {positive}: a share of the patients between 0 and 1 is needed.")
