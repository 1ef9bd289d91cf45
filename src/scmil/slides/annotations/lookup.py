"""Find and read the annotation of a slide: the file with the name of the slide."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scmil.core.extras import import_extra
from scmil.errors import DataError
from scmil.slides.annotations.asap import NO_TUMOUR, read_asap, tumour
from scmil.slides.annotations.geojson import read_geojson
from scmil.slides.tissue import polygons

if TYPE_CHECKING:
    from shapely import MultiPolygon

SUFFIXES = (".xml", ".geojson", ".json")  # the first that exists is used
ANY = "any"


class GroundTruth(NamedTuple):
    """The tumour of a slide, None if unknown, and its source or the reason why it is unknown."""

    area: MultiPolygon | None
    source: str


def find_ground_truth(
    folder: str | Path, slide_id: str, label: int | None, group: str | None = None
) -> GroundTruth:
    """The tumour of a slide by its annotation; without one, no tumour if its label is 0.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> find_ground_truth(folder, "a", 0).source, find_ground_truth(folder, "a", None).source
    ('its label', 'neither an annotation nor a label')
    """
    path = find_annotation(slide_id, folder)
    if path is None:
        if label == 0:
            return GroundTruth(import_extra("shapely", "slides").MultiPolygon(), "its label")
        known = "positive by its label, and without an annotation"
        return GroundTruth(None, "neither an annotation nor a label" if label is None else known)
    area = read_lesions(path, group)
    if area.is_empty and label:
        return GroundTruth(None, f"positive by its label, and no tumour in {path.name}")
    return GroundTruth(area, path.name)


def find_annotation(slide_id: str, *folders: str | Path) -> Path | None:
    """The annotation of a slide in the first folder that has one.

    It is `<slide>.xml` of ASAP, else `<slide>.geojson` or `<slide>.json` of QuPath. All commands
    use this function.

    Raises:
        DataError: If the name of the slide is not a file name, such as `../other/a`.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / "tumor_001.xml").touch()
    >>> find_annotation("tumor_001", "nowhere", folder).name, find_annotation("normal_001", folder)
    ('tumor_001.xml', None)
    """
    if Path(slide_id).name != slide_id:
        raise DataError(
            f"slide {slide_id!r} has a name that is not a file name, so it cannot have an "
            "annotation. Rename the slide."
        )
    places = (Path(folder) / f"{slide_id}{suffix}" for folder in folders for suffix in SUFFIXES)
    return next((place for place in places if place.is_file()), None)


def read_outlines(path: Path) -> list[NDArray[Any]]:
    """All outlines (points, 2) of an annotation, including holes, except the class tissue."""
    regions = read_asap(path) if path.suffix == ".xml" else read_geojson(path)
    areas = [
        area
        for region in regions
        if region.group.lower() != "tissue"
        for area in region.polygon.geoms
    ]
    return [
        np.asarray(ring.coords)[:, :2]
        for area in areas
        for ring in (area.exterior, *area.interiors)
    ]


def read_lesions(path: str | Path, group: str | None = None) -> MultiPolygon:
    """The tumour of an annotation, in level-0 pixels, without holes.

    Tumour are the regions of the group or class `group` ("any": all regions); without `group`,
    those of `_0` and `_1` (CAMELYON), Tumor, tumour and metastases. The groups `_2` and normal are
    holes.

    >>> import tempfile
    >>> from shapely import MultiPolygon, box
    >>> from scmil.slides.annotations.geojson import Region, write_geojson
    >>> path = Path(tempfile.mkdtemp()) / "slide.geojson"
    >>> areas = {"Tumor": box(0, 0, 9, 9), "normal": box(0, 0, 3, 3), "Necrosis": box(20, 0, 22, 2)}
    >>> regions = [Region("", MultiPolygon([area]), name) for name, area in areas.items()]
    >>> write_geojson(regions, path)
    >>> read_lesions(path).area, read_lesions(path, "necrosis").area, read_lesions(path, "any").area
    (72.0, 4.0, 76.0)
    """
    regions = read_asap(path) if Path(path).suffix == ".xml" else read_geojson(path)
    if group is None:
        try:
            return tumour(regions)
        except DataError as error:
            raise DataError(f"{path}: {error} Give the class of the tumour, or 'any'.") from None
    holes = [
        region.polygon for region in regions if region.group.lower() in NO_TUMOUR - {group.lower()}
    ]
    drawn = [
        region for region in regions if region.group.lower() not in NO_TUMOUR - {group.lower()}
    ]
    inside = [
        region.polygon for region in drawn if group == ANY or region.group.lower() == group.lower()
    ]
    if regions and not inside:
        groups = ", ".join(sorted({repr(region.group) for region in regions}))
        raise DataError(f"{path} has no region of the class {group!r}; its classes are {groups}.")
    shapely = import_extra("shapely", "slides")
    return polygons(shapely.difference(shapely.union_all(inside), shapely.union_all(holes)))
