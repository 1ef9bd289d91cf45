"""The files of each slide: the sheet, the detections, the overlay."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scmil.errors import DataError, SlideError
from scmil.core.extras import need
from scmil.core.files import write_atomically
from scmil.fingerprint import sha256_of_json, stat_of
from scmil.viz.heatmaps.measurements import measurements
from scmil.viz.heatmaps.sources import Sources
from scmil.viz.heatmaps.captions import PARTS, PLAIN, PLAIN_END, annotated, heading, meaning, numbers, warning
from scmil.bags.labels import slide_id
from scmil.models.tile_scores import Scores, ScoreSet, scores_path
from scmil.slides import slide_files
from scmil.viz.drawing.qupath import is_of_detections, write_detections
from scmil.viz.drawing.background import Ground, plain_ground, slide_ground
from scmil.viz.drawing.tiles import STRENGTH, draw_outlines, paint_tiles
from scmil.slides.annotations.lookup import read_outlines
from scmil.viz.drawing.overlay import write_overlay
from scmil.slides.readers import Damaged
from scmil.slides.readers.by_pillow import opened_picture
from scmil.viz.drawing.colour_scale import FIFTHS, Numbers, Scale, scale_for
from scmil.viz.drawing.sheet import draw_scale_bar, draw_sheet
from scmil.core.jobs.work import safe_name

if TYPE_CHECKING:
    from PIL.Image import Image

LAYOUT = 1  # grows when the same facts are to be drawn in another way
CHUNK = "scmil"  # the part of a PNG that says what it was made of
PANEL_PX = 800


@dataclass(frozen=True)
class Maps:
    """The maps of one score: everything that is the same for all slides."""

    scores: ScoreSet
    sources: Sources
    out: Path
    score: str
    same: Scale | None
    tiff: bool
    geojson: bool
    labels: Mapping[str, str]
    parts: Mapping[str, str]

    def picture(self, id: str) -> Path:
        """The file that says, by being there, that the slide is done."""
        return self.out / f"{safe_name(id)}.png"

    def files(self, id: str) -> list[Path]:
        """All files that are to be written for a slide."""
        asked = {".geojson": self.geojson, ".tiff": self.tiff, ".png": True}
        return [self.out / (safe_name(id) + suffix) for suffix, wanted in asked.items() if wanted]

    def forget_if_changed(self, id: str) -> None:
        """Remove a picture that shows something else than what is asked for now."""
        present, path = [path for path in self.files(id) if is_ours(path)], self.picture(id)
        if os.path.lexists(path) and (present != self.files(id) or made_of(path).get("digest") != self._digest(id)):
            path.unlink()

    def draw(self, id: str) -> None:
        """Write all files of one slide, the picture last."""
        scores = self.scores[id]
        values = scores.of(self.score)
        if not np.isfinite(values).all():
            raise DataError(f"{self.score} is not a number for {np.sum(~np.isfinite(values))} of {len(values)} tiles.")
        ground = self._ground(id, scores)
        scale = self.same or scale_for(self.score, [values])
        name = self.out / safe_name(id)
        if self.geojson:
            fifths = np.minimum((scale.shares(values) * FIFTHS).astype(int), FIFTHS - 1)
            classes = [(f"{self.score.replace(':', ' ')} {fifth}", colour) for fifth, colour in scale.fifths()]
            measured = measurements(scores, self.score)
            write_detections(f"{name}.geojson", id, scores.xy, scores.side, measured, fifths, classes)
        if self.tiff:
            if ground.size is None or ground.mpp is None:
                raise DataError("an overlay needs the slide's size and microns per pixel. Give the slides: --slides")
            write_overlay(f"{name}.tiff", ground.size, ground.mpp, scores.xy, scores.side, values, scale)
        write_atomically(self.picture(id), self._sheet(id, scores, values, scale, ground))

    def _ground(self, id: str, scores: Scores) -> Ground:
        path, known = self.sources.slide(id), (scores.xy, scores.side, scores.slide_size, scores.slide_mpp, PANEL_PX)
        return plain_ground(*known) if path is None else slide_ground(path, *known, scores.slide_digest)

    def _sheet(self, id: str, scores: Scores, values: Numbers, scale: Scale, ground: Ground) -> bytes:
        """The slide and its map, as a PNG that says what it was made of."""
        pillow, png = need("PIL.Image", "slides"), need("PIL.PngImagePlugin", "slides")
        annotation = self.sources.annotation(id)
        truth = read_outlines(annotation) if annotation else []
        strength = STRENGTH if ground.is_slide else 255
        painted = paint_tiles(ground.pixels, ground.extent, scores.xy, scores.side, values, scale, strength)
        shown = [ground.pixels, painted] if ground.is_slide else [painted]
        panels: list[Image] = [pillow.fromarray(pixels) for pixels in shown]
        for panel in panels:
            draw_outlines(panel, truth, ground.extent)
        if ground.mpp:
            draw_scale_bar(panels[0], ground.mpp * ground.extent[0] / panels[0].width)
        part = self.parts.get(id)
        lines = [
            *numbers(scores, ground.mpp),
            *([PARTS.get(part, f"Part of the study: {part}.")] if part else []),
            *([annotated(annotation.name, len(truth))] if annotation else []),
            *([] if ground.is_slide else [PLAIN if ground.size else PLAIN_END]),
        ]
        title, doubt = heading(scores, self.labels.get(id)), warning(scores.effective_tiles, len(scores))
        sheet = draw_sheet(panels, title, lines, doubt, scale, values, meaning(self.score, scores.classes))
        about = png.PngInfo()
        about.add_text(CHUNK, json.dumps({"digest": self._digest(id), "panel": sheet.panel}))
        content = io.BytesIO()
        sheet.picture.save(content, "PNG", pnginfo=about)
        return content.getvalue()

    def _digest(self, id: str) -> str:
        """Of everything that the picture shows: what is asked for, and the files by name, size and times."""
        slides, annotation = self.sources.slides.get(slide_id(id), []), self.sources.annotation(id)
        files = [scores_path(self.scores.folder, id), *slides, *([annotation] if annotation else [])]
        asked = [LAYOUT, self.score, str(self.same), self.tiff, self.geojson, self.sources.folder is None]
        facts = [*asked, self.labels.get(id), self.parts.get(id), self.scores.page["model_sha256"]]
        stats = [(path.name, stat_of(slide_files(path))) for path in files if path.exists()]
        return sha256_of_json([facts, stats])


def made_of(path: Path) -> dict[str, Any]:
    """What a picture of ours says of itself; nothing, if it is another's or damaged."""
    try:
        with opened_picture(path, "PNG") as picture:
            return dict(json.loads(picture.info.get(CHUNK, "{}")))
    except (Damaged, SlideError, OSError, ValueError, TypeError, RecursionError):
        return {}


def is_ours(path: Path) -> bool:
    """Whether a file is one that we wrote, and may be written again: a slide or an annotation of somebody is not."""
    if path.is_symlink() or not path.is_file():
        return False
    if path.suffix == ".png":
        return "digest" in made_of(path)
    with path.open("rb") as file:
        head = file.read(2000)
    return bool(is_of_detections(head)) if path.suffix == ".geojson" else b"scmil heatmap" in head
