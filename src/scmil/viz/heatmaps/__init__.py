"""What a model looks at, as pictures: for every slide a sheet, a file for QuPath, and an overlay for slide viewers.

    out/<slide>.png       the slide, and beside it the score of each tile in colour; annotated outlines; what it means
    out/<slide>.geojson   the tiles as QuPath detections, with all scores as measurements
    out/<slide>.tiff      a pyramid in the slide's own geometry, if asked for
    out/index.html        all of them on a page
    out/failures.csv      what could not be drawn, and why

The scores themselves are in `maps/` of the model's folder, see `scmil.scores`. A picture is drawn again only if something
that it shows has changed.
"""

from __future__ import annotations

from scmil.viz.heatmaps.draw import Drawn, draw_heatmaps
from scmil.viz.heatmaps.measurements import measurements

__all__ = ["Drawn", "draw_heatmaps", "measurements"]
