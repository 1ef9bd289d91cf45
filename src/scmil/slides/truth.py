"""The annotated outlines of a slide, from whichever file its annotator has written."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scmil.slides.asap import read_asap
from scmil.slides.geojson import read_geojson

SUFFIXES = (".xml", ".geojson")  # ASAP's before QuPath's, if a slide has both


def find_annotation(id: str, folders: Iterable[Path]) -> Path | None:
    """The annotation of a slide in the first of these folders that has one.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "tumor_001.geojson").write_text("[]")
    >>> find_annotation("tumor_001", [folder]).name, find_annotation("tumor_002", [folder])
    ('tumor_001.geojson', None)
    """
    places = (folder / f"{id}{suffix}" for folder in folders for suffix in SUFFIXES)
    return next((place for place in places if place.is_file()), None)


def read_outlines(path: Path) -> list[NDArray[Any]]:
    """All outlines (points, 2) of an annotation, holes included; regions that are only called tissue are no finding."""
    regions = read_asap(path) if path.suffix == ".xml" else read_geojson(path)
    areas = [area for region in regions if region.group.lower() != "tissue" for area in region.polygon.geoms]
    return [np.asarray(ring.coords)[:, :2] for area in areas for ring in (area.exterior, *area.interiors)]
