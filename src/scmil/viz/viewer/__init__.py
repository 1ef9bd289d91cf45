"""The viewer: slides, heatmaps, tiles and atoms in the browser, served on this computer only.

The viewer only reads files. `library` lists what can be shown, `pixels` cuts images from slides,
`export` writes the layer for QuPath, `responses` combines them, `access` and `connections` check
requests, `workers` has the threads, `server` has the addresses, and `browser` opens the page. The
page in `static/` is plain JavaScript with OpenSeadragon and loads nothing from other servers.
"""

from __future__ import annotations

from scmil.viz.viewer.library import Library
from scmil.viz.viewer.server import Server, serve

__all__ = ["Library", "Server", "serve"]
