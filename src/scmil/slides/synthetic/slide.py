"""Generate one synthetic slide."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scmil.core.atomic import write_atomically
from scmil.core.extras import import_extra
from scmil.errors import OptionError, SlideError
from scmil.slides.synthetic.anatomy import anatomy
from scmil.slides.synthetic.pyramid import SceneTile, write_pyramid
from scmil.slides.synthetic.scanners import scanner_of
from scmil.slides.synthetic.scene import INFLAMED, PENS, SPARSE, Scene
from scmil.slides.synthetic.textures import Needed, draw_materials

PAINTER = 1  # incremented when the same seed gives another slide than before
SMALLEST_PX, LARGEST_PX = 1_000, 100_000
FINEST_MPP, COARSEST_MPP = 0.1, 4.0
LARGEST_UM = 100_000  # a glass slide is 75 mm long
ROOMY_UM = 3_000  # larger slides may have several pieces of tissue
# A tumour with a larger fraction of the tissue is alone in a single piece by default.
LARGE_TUMOUR = 0.15
SUFFIXES = (".svs", ".tif", ".tiff")


@dataclass(frozen=True, eq=False)
class SyntheticSlide:
    """A synthetic slide: its file and its ground truth.

    Outlines are arrays of corners (k, 2) in level-0 pixels.
    """

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
        outlines = {
            name: [outline.tolist() for outline in getattr(self, name)]
            for name in ("tissue", "tumour")
        }
        return {
            "path": str(self.path),
            "size": list(self.size),
            "mpp": self.mpp,
            "seed": self.seed,
            "label": self.label,
            **outlines,
        }


@dataclass(frozen=True)
class SlideOptions:
    """What a synthetic slide shows; see `paint`.

    Attributes beside the arguments of `paint`:
        scanner: Stain and camera, a name of `scanners.SCANNERS`.
        inflammation: Whether 38 % of the tissue has lymphocytes, instead of 4 %.
        necrosis: Whether the centres of the tumours are necrotic, about a third of their area.
    """

    size: tuple[int, int] = (20_000, 20_000)
    mpp: float = 0.5
    seed: int = 0
    tumour: bool | int = True
    tumour_area: float = 0.05
    pieces: int | None = None
    folds: int = 1
    pen: str | None = None
    step: int = 4
    quality: int = 85
    annotations: bool = False
    scanner: str = "a"
    inflammation: bool = False
    necrosis: bool = False

    def digest(self) -> str:
        """A digest of all options, by which a slide with the same content is recognised.

        Options that were added later take part only if they are set, as slides have this digest.
        """
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        later = {"scanner": "a", "inflammation": False, "necrosis": False}
        values = {name: v for name, v in values.items() if name not in later or v != later[name]}
        text = json.dumps({"painter": PAINTER, **values}, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


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
) -> SyntheticSlide:
    """Generate a synthetic slide as a pyramidal TIFF that OpenSlide reads as an Aperio slide.

    Args:
        path: The file, with the suffix .svs, .tif or .tiff.
        size: Width and height in pixels.
        mpp: Microns per pixel. The same seed and extent in microns give the same tissue at every
            resolution.
        seed: Determines the content.
        tumour: Whether there is tumour, or the number of tumour regions.
        tumour_area: The fraction of the tissue that is tumour.
        pieces: Number of pieces of tissue; None chooses it by the seed.
        folds: Number of tissue folds.
        pen: Colour of pen marks, None for no marks.
        step: Downsample factor between levels, 4 or 2.
        quality: JPEG quality.
        annotations: Whether the tumours are written next to the slide for ASAP (.xml) and QuPath
            (.geojson).

    Returns:
        The file and its ground truth. Borders of tissue and tumour are rough by about 12 microns,
        which is the accuracy of the outlines.

    Raises:
        SlideError: If size, resolution or suffix is not supported, or there is no space for the
            tumours.
        OptionError: If another option is invalid.

    >>> import tempfile
    >>> slide = paint(Path(tempfile.mkdtemp()) / "case.svs", size=(1000, 1200), tumour=2)
    >>> slide.path.name, slide.label, len(slide.tumour), slide.tumour[0].shape
    ('case.svs', 1, 2, (360, 2))
    """
    options = SlideOptions(
        size,
        mpp,
        seed,
        tumour,
        tumour_area,
        pieces,
        folds,
        pen,
        step,
        quality,
        annotations,
    )
    return generate_slide(Path(path), options, write_atomically)


def generate_slide(
    path: Path, options: SlideOptions, write: Callable[[Path, bytes], None]
) -> SyntheticSlide:
    """Generate a slide; `write` writes the annotations."""
    size, mpp, seed = options.size, options.mpp, options.seed
    check_geometry(path, size, mpp)
    _check_content(options)
    width, height = (length * mpp for length in size)
    number, pieces = _choose_counts(options, max(width, height))
    content = anatomy(
        (width, height),
        seed,
        number,
        options.tumour_area,
        pieces,
        options.folds,
        pen=options.pen is not None,
        necrosis=options.necrosis,
    )
    needed = Needed(
        bool(content.tumours), options.necrosis, len(content.glands) > 0, len(content.fat) > 0
    )
    scene = Scene(
        content,
        draw_materials(mpp, seed, needed),
        size,
        mpp,
        seed,
        options.pen,
        scanner_of(options.scanner),
        INFLAMED if options.inflammation else SPARSE,
    )

    def tile(x: int, y: int) -> SceneTile:
        return SceneTile(scene.tile(x, y), scene.light(x, y) if scene.is_empty(x, y) else None)

    tissue, tumours = (
        tuple(each.points / mpp for each in outlines)
        for outlines in (content.tissue, content.tumours)
    )
    if options.annotations:
        _write_annotations(path, tumours, write)
    # Last, so that a slide that exists has its annotations.
    write_pyramid(path, size, tile, mpp, options.step, options.quality, options.digest())
    return SyntheticSlide(path, size, mpp, seed, tissue, tumours)


def _choose_counts(options: SlideOptions, longest_um: float) -> tuple[int, int]:
    """The numbers of tumours and of pieces of tissue; large tumours get a single piece."""
    tumour, pieces = options.tumour, options.pieces
    generator = np.random.default_rng([options.seed, 40])
    drawn_tumours, drawn_pieces = generator.integers(1, 4, 2).tolist()
    large, roomy = options.tumour_area > LARGE_TUMOUR, longest_um > ROOMY_UM
    number = int(tumour) if tumour is not True or large else drawn_tumours
    alone = not roomy or (large and number > 0)
    return number, (1 if alone else drawn_pieces) if pieces is None else pieces


def _write_annotations(
    path: Path, tumours: Sequence[NDArray[np.float64]], write: Callable[[Path, bytes], None]
) -> None:
    """Write the tumours for ASAP and QuPath."""
    from scmil.slides.annotations.asap import asap_bytes
    from scmil.slides.annotations.geojson import Region, geojson_bytes
    from scmil.slides.tissue import polygons

    shapely = import_extra("shapely", "slides")
    shapes = [polygons(shapely.Polygon(outline)) for outline in tumours]
    regions = [
        Region(f"tumour {number}", shape, "Tumor") for number, shape in enumerate(shapes, start=1)
    ]
    write(path.with_suffix(".xml"), asap_bytes(regions))
    write(path.with_suffix(".geojson"), geojson_bytes(regions))


def check_geometry(path: Path, size: tuple[int, int], mpp: float) -> None:
    """Raise if suffix, size or resolution of a synthetic slide is not supported."""
    if path.suffix.lower() not in SUFFIXES:
        raise SlideError(
            f"{path}: a synthetic slide is a TIFF file. Use a suffix of {', '.join(SUFFIXES)}."
        )
    if len(size) != 2 or not all(
        isinstance(side, Integral) and SMALLEST_PX <= side <= LARGEST_PX for side in size
    ):
        actual = " x ".join(map(str, size))
        raise SlideError(
            f"size = {actual} pixels; expected two integers between {SMALLEST_PX} and {LARGEST_PX}."
        )
    if not FINEST_MPP <= mpp <= COARSEST_MPP:
        raise SlideError(
            f"mpp = {mpp}; expected microns per pixel between {FINEST_MPP} and {COARSEST_MPP}."
        )
    if max(size) * mpp > LARGEST_UM:
        raise SlideError(
            f"{max(size)} pixels of {mpp} microns are {max(size) * mpp / 1000:.0f} mm; a slide has "
            f"at most {LARGEST_UM // 1000} mm. Use fewer pixels, or a smaller mpp."
        )


def _check_content(options: SlideOptions) -> None:
    """Raise for the first invalid option."""
    o = options
    scanner_of(o.scanner)
    integer_seed = isinstance(o.seed, Integral) and o.seed >= 0
    checks = {
        f"seed = {o.seed}; expected an integer of at least 0": integer_seed,
        f"tumour = {o.tumour}; expected True, False or 0 to 20 regions": 0 <= o.tumour <= 20,
        f"tumour_area = {o.tumour_area}; expected a fraction above 0 and at most 0.5": (
            0 < o.tumour_area <= 0.5
        ),
        f"pieces = {o.pieces}; expected 1 to 10": o.pieces is None or 1 <= o.pieces <= 10,
        f"folds = {o.folds}; expected 0 to 20": 0 <= o.folds <= 20,
        f"pen = {o.pen!r}; expected None or one of {', '.join(PENS)}": (
            o.pen is None or o.pen in PENS
        ),
        f"step = {o.step}; expected 4, as in Aperio slides, or 2": o.step in (2, 4),
        f"quality = {o.quality}; expected a JPEG quality of 10 to 100": 10 <= o.quality <= 100,
    }
    for message, is_valid in checks.items():
        if not is_valid:
            raise OptionError(f"{message}.")
