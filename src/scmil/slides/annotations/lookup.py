"""What people outlined on a slide, from the file that has the slide's name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scmil.errors import DataError
from scmil.core.extras import need
from scmil.slides.annotations.asap import NO_TUMOUR, read_asap, tumour
from scmil.slides.annotations.geojson import read_geojson
from scmil.slides.tissue import polygons

if TYPE_CHECKING:
    from shapely import MultiPolygon

SUFFIXES = (".xml", ".geojson", ".json")  # the first that exists is taken
ANY = "any"


class Truth(NamedTuple):
    """The tumour of a slide, None if nobody says where it is; and who says so, or why it is not known."""

    area: MultiPolygon | None
    told: str


def truth_of(folder: str | Path, id: str, label: int | None, group: str | None = None) -> Truth:
    """What is known of a slide: its annotation, or that its label 0 says that there is no tumour.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> truth_of(folder, "a", 0).told, truth_of(folder, "a", 1).told, truth_of(folder, "a", None).told
    ('its label', 'positive by its label, and without an annotation', 'neither an annotation nor a label')
    """
    path = find_annotation(id, folder)
    if path is None:
        if label == 0:
            return Truth(need("shapely", "slides").MultiPolygon(), "its label")
        known = "positive by its label, and without an annotation"
        return Truth(None, "neither an annotation nor a label" if label is None else known)
    area = read_lesions(path, group)
    if area.is_empty and label:
        return Truth(None, f"positive by its label, and no tumour in {path.name}")
    return Truth(area, path.name)


def find_annotation(id: str, *folders: str | Path) -> Path | None:
    """The annotation of a slide in the first folder that has one: `<slide>.xml` of ASAP, or `<slide>.geojson` of QuPath.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / "tumor_001.xml").touch()
    >>> find_annotation("tumor_001", "nowhere", folder).name, find_annotation("normal_001", folder)
    ('tumor_001.xml', None)
    """
    if Path(id).name != id:
        raise DataError(f"slide {id!r} has a name that is no file name, so it has no annotation of its own.")
    places = (Path(folder) / f"{id}{suffix}" for folder in folders for suffix in SUFFIXES)
    return next((place for place in places if place.is_file()), None)


def read_outlines(path: Path) -> list[NDArray[Any]]:
    """All outlines (points, 2) of an annotation, holes included; regions that are only called tissue are no finding."""
    regions = read_asap(path) if path.suffix == ".xml" else read_geojson(path)
    areas = [area for region in regions if region.group.lower() != "tissue" for area in region.polygon.geoms]
    return [np.asarray(ring.coords)[:, :2] for area in areas for ring in (area.exterior, *area.interiors)]


def read_lesions(path: str | Path, group: str | None = None) -> MultiPolygon:
    """The tumour of an annotation, in level-0 pixels, holes taken out.

    Tumour is what has the group or class `group` ("any": all of them), or by itself CAMELYON's `_0` and `_1`, Tumor, tumour
    and metastases; the groups `_2` and normal are holes.

    >>> import tempfile
    >>> from shapely import MultiPolygon, box
    >>> from scmil.slides.annotations.geojson import Region, write_geojson
    >>> path = Path(tempfile.mkdtemp()) / "slide.geojson"
    >>> areas = {"Tumor": box(0, 0, 9, 9), "normal": box(0, 0, 3, 3), "Necrosis": box(20, 0, 22, 2)}
    >>> write_geojson([Region("", MultiPolygon([area]), name) for name, area in areas.items()], path)
    >>> read_lesions(path).area, read_lesions(path, "necrosis").area, read_lesions(path, "any").area
    (72.0, 4.0, 76.0)
    """
    regions = read_asap(path) if Path(path).suffix == ".xml" else read_geojson(path)
    if group is None:
        try:
            return tumour(regions)
        except DataError as error:
            raise DataError(f"{path}: {error} Name the class that is meant, or 'any'.") from None
    holes = [region.polygon for region in regions if region.group.lower() in NO_TUMOUR - {group.lower()}]
    drawn = [region for region in regions if region.group.lower() not in NO_TUMOUR - {group.lower()}]
    inside = [region.polygon for region in drawn if group == ANY or region.group.lower() == group.lower()]
    if regions and not inside:
        met = ", ".join(sorted({repr(region.group) for region in regions}))
        raise DataError(f"{path} has no region of the class {group!r}; there are {met}.")
    shapely = need("shapely", "slides")
    return polygons(shapely.difference(shapely.union_all(inside), shapely.union_all(holes)))
