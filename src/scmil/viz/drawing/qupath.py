"""Write tiles as GeoJSON for QuPath: one detection object per tile, with its scores as
measurements.
"""

from __future__ import annotations

import json
import math
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scmil.core.atomic import atomic_path
from scmil.core.text import printable
from scmil.errors import DataError
from scmil.slides.annotations.geojson import IDS

FIRST_BYTES = re.compile(
    rb'\{"type": "FeatureCollection", "features": \[\n'
    rb'(\]\}|\{"type": "Feature", "id": "[0-9a-f]{8}-[0-9a-f]{4}-5)'
)
AT_A_TIME = 4096  # tiles that are converted at once


def write_detections(
    path: str | Path,
    slide: str,
    xy: NDArray[Any],
    side: float,
    measurements: Mapping[str, NDArray[Any]],
    classes: NDArray[Any] | None = None,
    names: Sequence[tuple[str, tuple[int, int, int]]] = (),
) -> None:
    """Write tiles as detections, one at a time, so that memory does not grow with their number.

    A measurement has one number per tile; NaN is omitted. `classes` are indices into `names`, pairs
    of a class name and the colour in which QuPath shows its tiles. The ids of the objects depend
    only on slide and tile.

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
            raise DataError(
                f"measurement {name!r} has shape {values.shape}, expected one number per tile: "
                f"({len(xy)},)."
            )
        if np.isinf(values).any():
            raise DataError(
                f"measurement {name!r} of slide {slide!r} is infinite for "
                f"{np.isinf(values).sum()} of {len(xy)} tiles. Score the slide again."
            )
    with (
        atomic_path(Path(path)) as temporary,
        temporary.open("w", encoding="utf-8", errors="backslashreplace") as file,
    ):
        features = _detections(slide, xy, side, columns, classes, names)
        file.writelines(feature_collection(features))
        file.write("\n")


def is_detection_file(head: bytes) -> bool:
    """Whether a file that starts with these bytes was written by `write_detections`.

    Recognised by its spacing and the version of its ids: QuPath and other programs write no space
    after a colon or indent their lines, and their ids are random (version 4).

    >>> start = b'{"type": "FeatureCollection", "features": [\\n'
    >>> start += b'{"type": "Feature", "id": "6f1c0f6e-5a0b-%s'
    >>> is_detection_file(start % b"5d0c"), is_detection_file(start % b"4d0c")
    (True, False)
    """
    return FIRST_BYTES.match(head) is not None


def feature_collection(
    features: Iterable[dict[str, Any]], line_breaks: bool = True
) -> Iterator[str]:
    """The text of a GeoJSON file, piece by piece; with `line_breaks`, one feature per line.

    >>> "".join(feature_collection([{"id": 1}, {"id": 2}], line_breaks=False))
    '{"type": "FeatureCollection", "features": [{"id": 1}, {"id": 2}]}'
    """
    yield '{"type": "FeatureCollection", "features": ['
    separator = "\n" if line_breaks else ""
    for feature in features:
        yield separator + json.dumps(feature, ensure_ascii=False, allow_nan=False)
        separator = ",\n" if line_breaks else ", "
    yield "\n]}" if line_breaks else "]}"


def detection(
    object_id: str,
    corners: tuple[float, float, float, float],
    measurements: Mapping[str, float],
    classification: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """One detection object of QuPath; `corners` are left, top, right and bottom."""
    left, top, right, bottom = corners
    outline = [[left, top], [right, top], [right, bottom], [left, bottom], [left, top]]
    kind = {} if classification is None else {"classification": classification}
    return {
        "type": "Feature",
        "id": object_id,
        "geometry": {"type": "Polygon", "coordinates": [outline]},
        "properties": {"objectType": "detection", **kind, "measurements": measurements},
    }


def _detections(
    slide: str,
    xy: NDArray[Any],
    side: float,
    columns: Mapping[str, NDArray[np.float64]],
    classes: NDArray[Any] | None,
    names: Sequence[tuple[str, tuple[int, int, int]]],
) -> Iterator[dict[str, Any]]:
    """The tiles as detection objects; arrays are converted in blocks of rows."""
    kinds = [{"name": name, "color": list(colour)} for name, colour in names]
    for start in range(0, len(xy), AT_A_TIME):
        block = slice(start, start + AT_A_TIME)
        values = {name: column[block].tolist() for name, column in columns.items()}
        own = None if classes is None else classes[block].tolist()
        for position, (x, y) in enumerate(xy[block].tolist()):
            seed = f"{slide} {start + position} {x} {y} {side}"
            yield detection(
                str(uuid.uuid5(IDS, printable(seed))),
                (x, y, _whole(x + side), _whole(y + side)),
                {
                    name: float(f"{column[position]:.6g}")
                    for name, column in values.items()
                    if not math.isnan(column[position])
                },
                None if own is None else kinds[own[position]],
            )


def _whole(value: float) -> float:
    """Write a whole number without a decimal point."""
    return round(value) if float(value).is_integer() else value
