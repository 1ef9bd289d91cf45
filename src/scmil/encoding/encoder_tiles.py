"""The tile size and resolution to encode with, unless the user gives them."""

from __future__ import annotations

from pathlib import Path

from scmil.encoding.encoders import Encoder
from scmil.encoding.work_folder import TileSettings, read_settings

DEFAULT = TileSettings()


def choose_tile(
    encoder: Encoder, work: Path, size_px: int | None = None, mpp: float | None = None
) -> tuple[int, float]:
    """Tile size in pixels and microns per pixel.

    What the user gives comes first, then what the work folder was started with, then the card of
    the encoder, then 256 pixels at 0.5 microns per pixel. An encoder without a card does not
    change the tiles.

    Args:
        encoder: The encoder.
        work: The work folder, which may not exist yet.
        size_px: The tile size of the user, or None.
        mpp: The resolution of the user, or None.
    """
    if (work / "tiling.json").is_file():
        settings = read_settings(work)
        return size_px or settings.size_px, mpp or settings.mpp
    if "encoder_card" not in encoder.details:
        return size_px or DEFAULT.size_px, mpp or DEFAULT.mpp
    return size_px or encoder.size_px, mpp or encoder.mpp or DEFAULT.mpp
