"""Slides, heatmaps, tiles and atoms in the browser: a page that this computer serves to itself, and that only reads files.

`library` knows what there is to show, `pixels` cuts pictures, `layer` makes QuPath's file, `answers` puts them together,
`guard` and `connections` reject strangers, `workers` are its threads, `server` ties all to addresses, `browser` opens the
page. The page in `static/` is plain JavaScript around OpenSeadragon, and asks nobody else.
"""

from __future__ import annotations

from scmil.viz.viewer.library import Library
from scmil.viz.viewer.server import Server, serve

__all__ = ["Library", "Server", "serve"]
