"""Write the files of each slide: sheet, detections and overlay."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Mapping, Sequence
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
from scmil.stats.localisation import is_evidence
from scmil.viz.drawing.background import Background, plain_background, slide_background
from scmil.viz.drawing.colour_scale import FIFTHS, Numbers, Scale, scale_for
from scmil.viz.drawing.overlay import write_overlay
from scmil.viz.drawing.qupath import is_detection_file, write_detections
from scmil.viz.drawing.sheet import ColourBar, draw_scale_bar, draw_sheet
from scmil.viz.drawing.tiles import OPACITY, colour_tiles, draw_outlines
from scmil.viz.heatmaps.captions import (
    PARTS,
    PLAIN,
    PLAIN_END,
    annotated,
    attention_warning,
    evidence_lines,
    evidence_warning,
    heading,
    meaning,
    numbers,
)
from scmil.viz.heatmaps.decisive import draw_decisive_tiles
from scmil.viz.heatmaps.measurements import measurements
from scmil.viz.heatmaps.sources import Sources
from scmil.viz.spread import scores_of_others, spread_of

if TYPE_CHECKING:
    from PIL.Image import Image

LAYOUT = 3  # increased when the layout or the texts of a sheet change, so that it is drawn again
CHUNK = "scmil"  # the PNG text chunk that identifies the inputs of a sheet
PANEL_PX = 800
TILES = "tiles"  # folder of the sheets of tiles
SPREAD = "spread"  # folder of the overlays of the spread over several models


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
    others: Sequence[ScoreSet] = ()  # of further models, for the spread

    def picture(self, bag_id: str) -> Path:
        """The sheet of a slide; the slide is complete when it exists."""
        return self.out / f"{safe_name(bag_id)}.png"

    def files(self, bag_id: str) -> list[Path]:
        """All files of a slide."""
        wanted = {".geojson": self.geojson, ".tiff": self.tiff}
        written = [
            self.out / (safe_name(bag_id) + suffix) for suffix, write in wanted.items() if write
        ]
        if self.tiff and self.others:
            written.append(self.spread_overlay(bag_id))
        return [*written, *([self.tile_sheet(bag_id)] * self.has_tile_sheets), self.picture(bag_id)]

    @property
    def task(self) -> str | None:
        """The task of the model; None for classes."""
        return self.scores.page.get("task")

    @property
    def has_tile_sheets(self) -> bool:
        """Whether the most and least decisive tiles are drawn: for evidence, from slides."""
        return is_evidence(self.score) and self.sources.folder is not None

    def spread_overlay(self, bag_id: str) -> Path:
        """The overlay of the spread over the models."""
        return self.out / SPREAD / f"{safe_name(bag_id)}.tiff"

    def tile_sheet(self, bag_id: str) -> Path:
        """The sheet of the most and least decisive tiles of a slide."""
        return self.out / TILES / f"{safe_name(bag_id)}.png"

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
        spread = self._spread(scores)
        name = self.out / safe_name(bag_id)
        if self.geojson:
            fifths = np.minimum((scale.shares(values) * FIFTHS).astype(int), FIFTHS - 1)
            classes = [
                (f"{self.score.replace(':', ' ')} {fifth}", colour)
                for fifth, colour in scale.fifths()
            ]
            measured = measurements(scores, self.score)
            if spread is not None:
                measured["spread"] = spread
            write_detections(
                f"{name}.geojson", bag_id, scores.xy, scores.side, measured, fifths, classes
            )
        if self.tiff:
            write_layer = _overlay_writer(background, scores)
            write_layer(Path(f"{name}.tiff"), values, scale)
            if spread is not None:
                write_layer(self.spread_overlay(bag_id), spread, scale_for("spread", [spread]))
        if self.has_tile_sheets:
            sheet = draw_decisive_tiles(
                self.sources.slide(bag_id),
                scores,
                self.score,
                heading(scores, self.labels.get(bag_id), self.task),
                self.task,
            )
            path = self.tile_sheet(bag_id)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, as_png(sheet, {"digest": self._digest(bag_id)}))
        write_atomically(
            self.picture(bag_id), self._sheet(bag_id, scores, values, scale, background, spread)
        )

    def _spread(self, scores: Scores) -> Numbers | None:
        """The standard deviation of the score of each tile over all models; None for one model."""
        if not self.others:
            return None
        return spread_of([scores, *scores_of_others(scores, self.others)], self.score)

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
        self,
        bag_id: str,
        scores: Scores,
        values: Numbers,
        scale: Scale,
        background: Background,
        spread: Numbers | None,
    ) -> bytes:
        """The sheet as a PNG, with its digest."""
        pillow = import_extra("PIL.Image", "slides")
        annotation = self.sources.annotation(bag_id)
        outlines = read_outlines(annotation) if annotation else []
        opacity = OPACITY if background.is_slide else 255

        def colour(numbers: Numbers, scale: Scale) -> Any:
            where = background.pixels, background.extent, scores.xy, scores.side
            return colour_tiles(*where, numbers, scale, opacity)

        bars = [ColourBar(meaning(self.score, scores.classes, self.task), scale, values)]
        shown = [background.pixels] if background.is_slide else []
        main = len(shown)
        shown.append(colour(values, scale))
        if spread is not None:
            bars.append(ColourBar(self._spread_title(), scale_for("spread", [spread]), spread))
            shown.append(colour(spread, bars[1].scale))
        panels: list[Image] = [pillow.fromarray(pixels) for pixels in shown]
        for panel in panels:
            draw_outlines(panel, outlines, background.extent)
        if background.mpp:
            draw_scale_bar(panels[0], background.mpp * background.extent[0] / panels[0].width)
        part = self.parts.get(bag_id)
        lines = [
            *evidence_lines(scores, self.score, self.task),
            *numbers(scores, background.mpp),
            *([PARTS.get(part, f"Split: {part}.")] if part else []),
            *([annotated(annotation.name, len(outlines))] if annotation else []),
            *([] if background.is_slide else [PLAIN if background.size else PLAIN_END]),
        ]
        title = heading(scores, self.labels.get(bag_id), self.task)
        attention = attention_warning(scores.effective_tiles, len(scores))
        warning = " ".join(
            filter(None, [evidence_warning(scores, self.score, self.task), attention])
        )
        sheet = draw_sheet(panels, title, lines, warning, bars, main)
        return as_png(sheet.picture, {"digest": self._digest(bag_id), "panel": sheet.panel})

    def _spread_title(self) -> str:
        """The title of the second layer."""
        names = ", ".join(str(scores.page["model"]) for scores in (self.scores, *self.others))
        return f"Last panel: standard deviation of the score over the models {names}"

    def _digest(self, bag_id: str) -> str:
        """A digest of the options and of the input files (name, size, times)."""
        slides, annotation = (
            self.sources.slides.get(slide_id(bag_id), []),
            self.sources.annotation(bag_id),
        )
        files = [
            *(scores_path(scores.folder, bag_id) for scores in (self.scores, *self.others)),
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
            *(scores.page["model_sha256"] for scores in (self.scores, *self.others)),
        ]
        stats = [(path.name, stat_of(slide_files(path))) for path in files if path.exists()]
        return sha256_of_json([facts, stats])


def _overlay_writer(
    background: Background, scores: Scores
) -> Callable[[Path, Numbers, Scale], None]:
    """A function that writes numbers of the tiles as an overlay of the slide."""
    if background.size is None or background.mpp is None:
        raise DataError(
            "an overlay needs the size and the microns per pixel of the slide. "
            "Give the folder of slides: --slides"
        )
    size, mpp = background.size, background.mpp

    def write(path: Path, values: Numbers, scale: Scale) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_overlay(path, size, mpp, scores.xy, scores.side, values, scale)

    return write


# A sheet of 1636 x 1201 px: 0.34 s and 0.99 MB at zlib's default of 6, 0.18 s and 1.02 MB at 4.
COMPRESSION = 4


def as_png(picture: Image, info: Mapping[str, Any]) -> bytes:
    """A picture as PNG, with the text chunk that identifies its inputs."""
    about = import_extra("PIL.PngImagePlugin", "slides").PngInfo()
    about.add_text(CHUNK, json.dumps(info))
    content = io.BytesIO()
    picture.save(content, "PNG", pnginfo=about, compress_level=COMPRESSION)
    return content.getvalue()


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
