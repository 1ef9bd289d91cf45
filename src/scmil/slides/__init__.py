"""Slides, their tissue, and the tiles that cover it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from scmil.slides.find import find_slides
from scmil.slides.slide import Slide, open_slide, slide_digest, slide_files, slide_metadata

if TYPE_CHECKING:
    from scmil.slides.tiling import Tiling, tile
    from scmil.slides.tissue import Tissue, find_tissue

__all__ = [
    "Slide",
    "Tiling",
    "Tissue",
    "find_slides",
    "find_tissue",
    "open_slide",
    "slide_digest",
    "slide_files",
    "slide_metadata",
    "tile",
]

# Imported when first used, since they need shapely.
_LAZY = {"Tissue": "tissue", "find_tissue": "tissue", "Tiling": "tiling", "tile": "tiling"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
