"""Evaluation of tile scores against annotated lesions: detections, the FROC curve of CAMELYON16,
and metrics of single tiles.

The curve equals that of the official evaluation, with three notes. It cannot distinguish a
probability of 0 from no detection, so a detection needs more than 0. It counts only slides that
have a file of detections; here all slides count. It rounds the score of a hit to float32, but not
that of a false positive; here neither is rounded. So equal scores of a hit and a false positive are
always a tie here, and there only if they are float32 numbers, as the scores of scmil's models are.
Only the order of the scores over all slides matters: they need not be probabilities, but must be
comparable between slides.
"""

from __future__ import annotations

from scmil.stats.localisation.detections import (
    DETECTION_KINDS,
    RADIUS_TILES,
    RADIUS_UM,
    Detections,
    Rule,
    TileScores,
    detect_lesions,
    is_evidence,
    tile_values,
)
from scmil.stats.localisation.froc import (
    FALSE_POSITIVES,
    Froc,
    Hits,
    count_hits,
    froc,
    froc_draws,
    froc_intervals,
)
from scmil.stats.localisation.lesions import (
    CELL_UM,
    ISOLATED_UM,
    RIM_UM,
    Lesions,
    find_lesions,
)
from scmil.stats.localisation.tiles import (
    Ranking,
    TileResult,
    rank_instances,
    score_tiles,
    tile_draws,
    tumour_shares,
)

__all__ = [
    "CELL_UM",
    "DETECTION_KINDS",
    "FALSE_POSITIVES",
    "ISOLATED_UM",
    "RADIUS_TILES",
    "RADIUS_UM",
    "RIM_UM",
    "Detections",
    "Froc",
    "Hits",
    "Lesions",
    "Ranking",
    "Rule",
    "TileResult",
    "TileScores",
    "count_hits",
    "detect_lesions",
    "find_lesions",
    "froc",
    "froc_draws",
    "froc_intervals",
    "is_evidence",
    "rank_instances",
    "score_tiles",
    "tile_draws",
    "tile_values",
    "tumour_shares",
]
