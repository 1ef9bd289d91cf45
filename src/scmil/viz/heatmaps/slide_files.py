"""Write the files of each slide: sheet, detections and overlay."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scmil.bags.slide_ids import slide_id
from scmil.core.atomic import write_atomically
from scmil.core.extras import import_extra
from scmil.core.fingerprint import sha256_of_json, stat_of
from scmil.core.jobs.locks import safe_name
from scmil.errors import DataError, SlideError
from scmil.models.score_files import ScoreSet, scores_path
from scmil.models.tile_scores import Scores
from scmil.slides import slide_files
from scmil.slides.annotations.lookup import read_outlines
from scmil.slides.readers import Damaged
from scmil.slides.readers.by_pillow import opened_picture
from scmil.viz.drawing.background import Background, plain_background, slide_background
from scmil.viz.drawing.colour_scale import FIFTHS, Numbers, Scale, scale_for
from scmil.viz.drawing.overlay import write_overlay
from scmil.viz.drawing.qupath import is_detection_file, write_detections
from scmil.viz.drawing.sheet import draw_scale_bar, draw_sheet
from scmil.viz.drawing.tiles import OPACITY, colour_tiles, draw_outlines
from scmil.viz.heatmaps.captions import (
    PARTS,
    PLAIN,
    PLAIN_END,
    annotated,
    attention_warning,
    heading,
    meaning,
    numbers,
)
from scmil.viz.heatmaps.measurements import measurements
from scmil.viz.heatmaps.sources import Sources

if TYPE_CHECKING:
    from PIL.Image import Image

LAYOUT = 2  # increased when the layout or the texts of a sheet change, so that it is drawn again
CHUNK = "scmil"  # the PNG text chunk that identifies the inputs of a sheet
PANEL_PX = 800


@dataclass(frozen=True)
class Maps:
    """The heatmaps of one score: everything that is the same for all slides."""

    scores: ScoreSet
    sources: Sources
    out: Path
    score: str
    same: Scale | None
    tiff: bool
    geojson: bool
    labels: Mapping[str, str]
    parts: Mapping[str, str]

    def picture(self, bag_id: str) -> Path:
        """The sheet of a slide; the slide is complete when it exists."""
        return self.out / f"{safe_name(bag_id)}.png"

    def files(self, bag_id: str) -> list[Path]:
        """All files of a slide."""
        wanted = {".geojson": self.geojson, ".tiff": self.tiff, ".png": True}
        return [
            self.out / (safe_name(bag_id) + suffix) for suffix, write in wanted.items() if write
        ]

    def delete_if_outdated(self, bag_id: str) -> None:
        """Delete a sheet that was made from other inputs or options."""
        present, path = [path for path in self.files(bag_id) if is_ours(path)], self.picture(bag_id)
        if os.path.lexists(path) and (
            present != self.files(bag_id)
            or read_sheet_info(path).get("digest") != self._digest(bag_id)
        ):
            path.unlink()

    def draw(self, bag_id: str) -> None:
        """Write all files of one slide, the sheet last."""
        scores = self.scores[bag_id]
        values = scores.of(self.score)
        if not np.isfinite(values).all():
            raise DataError(
                f"{self.score} is not finite for {np.sum(~np.isfinite(values))} of {len(values)} "
                "tiles. Check the features of the slide."
            )
        background = self._make_background(bag_id, scores)
        scale = self.same or scale_for(self.score, [values])
        name = self.out / safe_name(bag_id)
        if self.geojson:
            fifths = np.minimum((scale.shares(values) * FIFTHS).astype(int), FIFTHS - 1)
            classes = [
                (f"{self.score.replace(':', ' ')} {fifth}", colour)
                for fifth, colour in scale.fifths()
            ]
            measured = measurements(scores, self.score)
            write_detections(
                f"{name}.geojson", bag_id, scores.xy, scores.side, measured, fifths, classes
            )
        if self.tiff:
            if background.size is None or background.mpp is None:
                raise DataError(
                    "an overlay needs the size and the microns per pixel of the slide. "
                    "Give the folder of slides: --slides"
                )
            write_overlay(
                f"{name}.tiff",
                background.size,
                background.mpp,
                scores.xy,
                scores.side,
                values,
                scale,
            )
        write_atomically(
            self.picture(bag_id), self._sheet(bag_id, scores, values, scale, background)
        )

    def _make_background(self, bag_id: str, scores: Scores) -> Background:
        path, known = (
            self.sources.slide(bag_id),
            (scores.xy, scores.side, scores.slide_size, scores.slide_mpp, PANEL_PX),
        )
        return (
            plain_background(*known)
            if path is None
            else slide_background(path, *known, scores.slide_digest)
        )

    def _sheet(
        self, bag_id: str, scores: Scores, values: Numbers, scale: Scale, background: Background
    ) -> bytes:
        """The sheet as a PNG, with its digest."""
        pillow, png = (
            import_extra("PIL.Image", "slides"),
            import_extra("PIL.PngImagePlugin", "slides"),
        )
        annotation = self.sources.annotation(bag_id)
        outlines = read_outlines(annotation) if annotation else []
        opacity = OPACITY if background.is_slide else 255
        coloured = colour_tiles(
            background.pixels, background.extent, scores.xy, scores.side, values, scale, opacity
        )
        shown = [background.pixels, coloured] if background.is_slide else [coloured]
        panels: list[Image] = [pillow.fromarray(pixels) for pixels in shown]
        for panel in panels:
            draw_outlines(panel, outlines, background.extent)
        if background.mpp:
            draw_scale_bar(panels[0], background.mpp * background.extent[0] / panels[0].width)
        part = self.parts.get(bag_id)
        lines = [
            *numbers(scores, background.mpp),
            *([PARTS.get(part, f"Split: {part}.")] if part else []),
            *([annotated(annotation.name, len(outlines))] if annotation else []),
            *([] if background.is_slide else [PLAIN if background.size else PLAIN_END]),
        ]
        title, warning = (
            heading(scores, self.labels.get(bag_id)),
            attention_warning(scores.effective_tiles, len(scores)),
        )
        sheet = draw_sheet(
            panels, title, lines, warning, scale, values, meaning(self.score, scores.classes)
        )
        about = png.PngInfo()
        about.add_text(CHUNK, json.dumps({"digest": self._digest(bag_id), "panel": sheet.panel}))
        content = io.BytesIO()
        sheet.picture.save(content, "PNG", pnginfo=about)
        return content.getvalue()

    def _digest(self, bag_id: str) -> str:
        """A digest of the options and of the input files (name, size, times)."""
        slides, annotation = (
            self.sources.slides.get(slide_id(bag_id), []),
            self.sources.annotation(bag_id),
        )
        files = [
            scores_path(self.scores.folder, bag_id),
            *slides,
            *([annotation] if annotation else []),
        ]
        options = [
            LAYOUT,
            self.score,
            str(self.same),
            self.tiff,
            self.geojson,
            self.sources.folder is None,
        ]
        facts = [
            *options,
            self.labels.get(bag_id),
            self.parts.get(bag_id),
            self.scores.page["model_sha256"],
        ]
        stats = [(path.name, stat_of(slide_files(path))) for path in files if path.exists()]
        return sha256_of_json([facts, stats])


def read_sheet_info(path: Path) -> dict[str, Any]:
    """The text chunk of a sheet; empty for other or damaged files."""
    try:
        with opened_picture(path, "PNG") as picture:
            return dict(json.loads(picture.info.get(CHUNK, "{}")))
    except (Damaged, SlideError, OSError, ValueError, TypeError, RecursionError):
        return {}


def is_ours(path: Path) -> bool:
    """Whether a file was written by this command, and may be replaced."""
    if path.is_symlink() or not path.is_file():
        return False
    if path.suffix == ".png":
        return "digest" in read_sheet_info(path)
    with path.open("rb") as file:
        head = file.read(2000)
    return bool(is_detection_file(head)) if path.suffix == ".geojson" else b"scmil heatmap" in head
