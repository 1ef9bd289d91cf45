"""The atlas of a model: for each atom its strongest tiles, its use by class, its attention, and the
atoms that occur with it.
"""

from scmil.viz.atlas.atom import Atlas, Atom
from scmil.viz.atlas.counts import build_atlas
from scmil.viz.atlas.make import make_atlas

__all__ = ["Atlas", "Atom", "build_atlas", "make_atlas"]
