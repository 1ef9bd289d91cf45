"""Tiles with their scores as GeoJSON that QuPath opens: one detection a tile, with measurements."""

from __future__ import annotations

import json
import math
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scmil.errors import DataError
from scmil.core.files import printable
from scmil.slides.annotations.geojson import IDS
from scmil.viz.drawing.overlay import appearing

OURS = re.compile(
    rb'\{"type": "FeatureCollection", "features": \[\n(\]\}|\{"type": "Feature", "id": "[0-9a-f]{8}-[0-9a-f]{4}-5)'
)
AT_A_TIME = 4096  # tiles that are text in memory


def write_detections(
    path: str | Path,
    slide: str,
    xy: NDArray[Any],
    side: float,
    measurements: Mapping[str, NDArray[Any]],
    classes: NDArray[Any] | None = None,
    names: Sequence[tuple[str, tuple[int, int, int]]] = (),
) -> None:
    """Write tiles as detections, tile by tile, so that memory does not grow with their number.

    A measurement is one number a tile; NaN is left out. `classes` are positions in `names`, of which each is a name and a
    colour: QuPath shows the tiles in these colours. The same tiles get the same ids.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "slide.geojson"
    >>> write_detections(path, "slide", np.array([[0, 256]]), 256.0, {"attention": np.array([1.0])})
    >>> [feature] = json.loads(path.read_text())["features"]
    >>> feature["properties"], feature["geometry"]["coordinates"]
    ({'objectType': 'detection', 'measurements': {'attention': 1.0}},
     [[[0, 256], [256, 256], [256, 512], [0, 512], [0, 256]]])
    """
    columns = {name: np.asarray(values, np.float64) for name, values in measurements.items()}
    for name, values in columns.items():
        if values.shape != (len(xy),):
            raise DataError(f"measurement {name!r} has the shape {values.shape}, and one number a tile is needed.")
        if np.isinf(values).any():
            raise DataError(f"measurement {name!r} of slide {slide!r} is infinite for {np.isinf(values).sum()} tiles.")
    with appearing(Path(path)) as temporary, temporary.open("w", encoding="utf-8", errors="backslashreplace") as file:
        file.write('{"type": "FeatureCollection", "features": [')
        separator = "\n"
        for start in range(0, len(xy), AT_A_TIME):
            part = slice(start, start + AT_A_TIME)
            block = {name: values[part].tolist() for name, values in columns.items()}
            own = None if classes is None else classes[part].tolist()
            for feature in _features(slide, start, xy[part].tolist(), side, block, own, names):
                file.write(separator + json.dumps(feature, ensure_ascii=False, allow_nan=False))
                separator = ",\n"
        file.write("\n]}\n")


def is_of_detections(head: bytes) -> bool:
    """Whether a file that begins like this is of `write_detections`: by its spacing and the kind of its ids.

    QuPath and others write no space after a colon or indent their lines, and their ids are random (version 4).

    >>> is_of_detections(b'{"type": "FeatureCollection", "features": [\\n{"type": "Feature", "id": "6f1c0f6e-5a0b-5d0c-')
    True
    >>> is_of_detections(b'{"type":"FeatureCollection","features":[{"type":"Feature","id":"6f1c0f6e-5a0b-4d0c-')
    False
    """
    return OURS.match(head) is not None


def _features(
    slide: str,
    start: int,
    corners: list[list[float]],
    side: float,
    columns: dict[str, list[float]],
    classes: list[int] | None,
    names: Sequence[tuple[str, tuple[int, int, int]]],
) -> Iterator[dict[str, Any]]:
    kinds = [{"name": name, "color": list(colour)} for name, colour in names]
    for position, (x, y) in enumerate(corners):
        properties: dict[str, Any] = {"objectType": "detection"}
        if classes is not None:
            properties["classification"] = kinds[classes[position]]
        values = {name: column[position] for name, column in columns.items()}
        properties["measurements"] = {
            name: float(f"{value:.6g}") for name, value in values.items() if not math.isnan(value)
        }
        yield {
            "type": "Feature",
            "id": str(uuid.uuid5(IDS, printable(f"{slide} {start + position} {x} {y} {side}"))),
            "geometry": {"type": "Polygon", "coordinates": [_ring(x, y, side)]},
            "properties": properties,
        }


def _ring(x: float, y: float, side: float) -> list[list[float]]:
    """The tile's outline, closed."""
    right, bottom = (round(value) if float(value).is_integer() else value for value in (x + side, y + side))
    return [[x, y], [right, y], [right, bottom], [x, bottom], [x, y]]
