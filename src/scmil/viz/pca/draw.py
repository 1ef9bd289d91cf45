"""Draw the PCA figure of the paper: tiles in two principal components of each model, side by side.

The features are the codes of a model with sparse coding, the outputs of the low-rank layers of
ILRA, and the embeddings of any other model. The figure is written as SVG and as PNG.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scmil.core.outputs import Outputs
from scmil.core.tables import csv_bytes
from scmil.core.text import encode_utf8
from scmil.errors import DataError
from scmil.studies import load_trained_model
from scmil.viz.pca.figure import make_drawing, render_png, render_svg
from scmil.viz.pca.project import Panel, make_panel, project_tiles
from scmil.viz.pca.sample import Sample, choose_tiles

if TYPE_CHECKING:
    from scmil.bags.bag import BagSet

STAGE = "pca"


@dataclass(frozen=True, eq=False)
class DrawnPca:
    """The panels, the number of tiles by colour, the files, and the slides that are not shown."""

    panels: list[Panel]
    counts: dict[str, int]
    files: tuple[Path, ...]
    failed: dict[str, str]
    # Slides whose tiles have no colour, because they have neither annotation nor label.
    left_out: list[str]
    svg: str


def draw_pca(
    models: Sequence[str | Path],
    bags: BagSet,
    out: str | Path,
    *,
    annotations: str | Path | None = None,
    tiles: int = 1500,
    seed: int = 0,
    overwrite: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> DrawnPca:
    """Draw the same tiles of a cohort in two principal components of each model; writes PNG, SVG
    and CSV.

    Tiles are sampled at random, balanced by colour (see `balanced`) and spread over the slides.
    With `annotations`, a folder of `<slide>.xml` (ASAP) or `<slide>.geojson` (QuPath), the colours
    are tumour and other tiles, by the centre of the tile; a slide without annotation counts as
    normal if its label is the first class, and is excluded otherwise. Without `annotations`, the
    colour is the label of the slide, and slides without a label are excluded. Existing files that
    were not written by this function are rejected, unless `overwrite`.
    """
    from scmil.core.jobs.failure_log import FailureLog

    studies = [load_trained_model(path) for path in models]
    if annotations is not None and not Path(annotations).is_dir():
        raise DataError(
            f"{annotations} is not a folder. Give the folder with <slide>.xml or "
            "<slide>.geojson files."
        )
    names = [f"tiles of {name} slides" for name in studies[0][1]["classes"]]
    names = names if annotations is None else ["other tiles", "tumour tiles"]
    failed: dict[str, str] = {}
    left_out: list[str] = []
    sample = choose_tiles(bags, annotations, tiles, seed, failed, left_out, progress)
    kept, points = project_tiles(models, studies, bags, sample, failed, progress)
    sample = Sample(
        [sample.slides[i] for i in kept], sample.rows[kept], sample.xy[kept], sample.colour[kept]
    )
    panels = [
        make_panel(model, study, x, sample, seed)
        for (model, study), x in zip(studies, map(np.concatenate, points), strict=True)
    ]
    counts = {name: int((sample.colour == k).sum()) for k, name in enumerate(names)}
    counts = {name: count for name, count in counts.items() if count}
    marks, size = make_drawing(panels, sample.colour, names)
    path, svg = Path(out), render_svg(marks, size)
    parts = {
        ".png": render_png(marks, size),
        ".svg": encode_utf8(svg),
        ".csv": _tile_table(panels, sample, names),
    }
    contents = {path.with_suffix(suffix): content for suffix, content in parts.items()}
    outputs = Outputs(path.parent, STAGE, overwrite)
    for file, content in contents.items():  # all files are checked before the first one is written
        outputs.check(file, content=content)
    for file, content in contents.items():
        outputs.write(file, content)
    failure_log = FailureLog(path.parent)
    for slide_id, cause in failed.items():
        failure_log.add(slide_id, STAGE, cause)
    for failure in [
        each for each in failure_log.read() if each.stage == STAGE and each.slide not in failed
    ]:
        failure_log.clear(failure.slide, STAGE)
    return DrawnPca(panels, counts, tuple(contents), failed, left_out, svg)


def _tile_table(panels: Sequence[Panel], sample: Sample, names: Sequence[str]) -> bytes:
    rows: list[list[Any]] = [["model", "slide", "x", "y", "colour", "pc1", "pc2"]]
    for panel in panels:
        for slide, (x, y), colour, (one, two) in zip(
            sample.slides,
            sample.xy.tolist(),
            sample.colour.tolist(),
            panel.plane.tolist(),
            strict=True,
        ):
            rows.append([panel.name, slide, x, y, names[colour], f"{one:.6g}", f"{two:.6g}"])
    return csv_bytes(rows)
