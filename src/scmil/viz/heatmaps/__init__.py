"""Heatmaps of a model: for every slide a sheet, a file for QuPath, and an overlay for slide
viewers.

    out/<slide>.png       the slide and its tile scores in colour, annotations, captions
    out/<slide>.geojson   the tiles as QuPath detections, with all scores as measurements
    out/<slide>.tiff      a pyramid in the geometry of the slide, with `tiff`
    out/index.html        an overview page
    out/failures.csv      the slides that failed, with causes

The scores are in `maps/` of the model's folder, see `scmil.models.tile_scores`. A sheet is drawn
again only if something that it shows has changed.
"""

from __future__ import annotations

from scmil.viz.heatmaps.draw import DrawnHeatmaps, draw_heatmaps
from scmil.viz.heatmaps.measurements import measurements

__all__ = ["DrawnHeatmaps", "draw_heatmaps", "measurements"]
