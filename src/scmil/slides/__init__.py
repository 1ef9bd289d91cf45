"""Pixels: slides, the tissue on them, and the tiles that cover it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from scmil.slides.find import find_slides
from scmil.slides.slide import Slide, describe, open_slide, slide_digest, slide_files

if TYPE_CHECKING:
    from scmil.slides.tiling import Tiling, tile
    from scmil.slides.tissue import Tissue, find_tissue

__all__ = [
    "Slide",
    "Tiling",
    "Tissue",
    "describe",
    "find_slides",
    "find_tissue",
    "open_slide",
    "slide_digest",
    "slide_files",
    "tile",
]

_LATER = {"Tissue": "tissue", "find_tissue": "tissue", "Tiling": "tiling", "tile": "tiling"}  # they need shapely


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
