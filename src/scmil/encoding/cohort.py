"""From a folder of slides to a folder of bags: the public functions of the stages tile and encode.

`scmil.encoding.work_folder` describes the files of a work folder.
"""

from scmil.encoding.dispatch import Dispatch, Job, OnSlide
from scmil.encoding.encode_stage import EncodeSettings, encode_slides
from scmil.encoding.tile_stage import resolution_notes, tile_slides
from scmil.encoding.work_folder import (
    Source,
    TileSettings,
    bags_folder,
    find_cohort,
    read_mpp,
    read_settings,
    read_sources,
    tiled_slides,
    tiles_file,
    tissue_file,
)

__all__ = [
    "Dispatch",
    "EncodeSettings",
    "Job",
    "OnSlide",
    "Source",
    "TileSettings",
    "bags_folder",
    "encode_slides",
    "find_cohort",
    "read_mpp",
    "read_settings",
    "read_sources",
    "resolution_notes",
    "tile_slides",
    "tiled_slides",
    "tiles_file",
    "tissue_file",
]
