"""Annotations as GeoJSON and as ASAP XML."""

from __future__ import annotations

import json
import math
from random import Random
from typing import Any

from structures.json_file import json_file
from structures.values import (
    EXTREME_FLOATS,
    EXTREME_INTEGERS,
    GeneratedFile,
    nested_entities,
    short,
)


def rings(random: Random) -> tuple[list[list[list[float]]], str]:
    """The rings of a polygon: the outline and its holes."""
    how = random.randrange(7)
    count = random.choice((3, 300, 1000, 3000))
    if how == 0:
        ring = [[random.uniform(0, 10_000), random.uniform(0, 10_000)] for _ in range(count)]
        return [[*ring, ring[0]]], f"a ring of {count} random points"
    if how == 1:
        outer = [[0.0, 0.0], [10_000.0, 0.0], [10_000.0, 10_000.0], [0.0, 10_000.0], [0.0, 0.0]]
        holes = [
            _square(random.uniform(0, 9000), random.uniform(0, 9000), random.uniform(10, 3000))
            for _ in range(count // 3)
        ]
        return [outer, *holes], f"{count // 3} overlapping holes"
    if how == 2:
        value = random.choice((*EXTREME_FLOATS, *EXTREME_INTEGERS))
        ring = _square(0, 0, 100)
        ring[random.randrange(4)] = [value, random.choice((value, 5))]
        return [ring], f"a corner at {short(value)}"
    if how == 3:
        return [[[0.0, 0.0]] * random.choice((0, 1, 2, 3, 10_000))], "a ring of one point"
    if how == 4:
        points = 200_000
        return [
            [[math.cos(n / 31831), math.sin(n / 31831)] for n in range(points)]
        ], f"a ring of {points} points"
    if how == 5:
        ring = [[0.0, float(n)] if n % 2 else [10_000.0, float(n)] for n in range(count)]
        return [[*ring, [5000.0, -1.0], ring[0]]], f"a comb of {count} teeth"
    size = random.choice((1e15, 1e300, 2.0**62))
    return [_square(-size, -size, 2 * size)], f"a square of {size:g}"


def _square(x: float, y: float, side: float) -> list[list[float]]:
    return [[x, y], [x + side, y], [x + side, y + side], [x, y + side], [x, y]]


def geojson_file(good: bytes, random: Random) -> GeneratedFile:
    """Annotations with unusual rings, many features, or deep nesting."""
    if random.random() < 0.35:
        return json_file(good, random)
    made, words = rings(random)
    geometry: dict[str, Any] = {"type": "Polygon", "coordinates": made}
    if random.random() < 0.2:
        count = random.choice((1, 2, 30)) if sum(map(len, made)) < 5000 else 1
        geometry = {"type": "MultiPolygon", "coordinates": [made] * count}
        words = f"{len(geometry['coordinates'])} times {words}"
    if random.random() < 0.15:
        depth = random.choice((10, 2000))
        text = (
            '{"type":"GeometryCollection","geometries":[' * depth
            + json.dumps(geometry)
            + "]}" * depth
        )
        return (
            b'{"type":"Feature","properties":{},"geometry":' + text.encode() + b"}",
            f"{words}, {depth} collections deep",
        )
    feature = {
        "type": "Feature",
        "properties": {"classification": {"name": "Tumor"}},
        "geometry": geometry,
    }
    count = random.choice((1, 1, 1, 5)) if len(json.dumps(made)) < 200_000 else 1
    return json.dumps({"type": "FeatureCollection", "features": [feature] * count}).encode(), words


def asap_file(good: bytes, random: Random) -> GeneratedFile:
    """ASAP annotations with unusual rings, entities, or nested elements."""
    how = random.randrange(5)
    if how == 0:
        depth = random.choice((100, 5000, 100_000))
        return (
            b"<ASAP_Annotations>"
            + b"<Annotation>" * depth
            + b"</Annotation>" * depth
            + b"</ASAP_Annotations>",
            f"{depth} deep",
        )
    if how == 1:
        text = f'<?xml version="1.0"?>{nested_entities(9)}<ASAP_Annotations>&j;</ASAP_Annotations>'
        return text.encode(), "entities in entities"
    if how == 2:
        text = '<?xml version="1.0"?><!DOCTYPE a [<!ENTITY a SYSTEM "file:///etc/passwd">]><ASAP_Annotations>&a;</ASAP_Annotations>'
        return text.encode(), "an entity that is a file"
    made, words = rings(random)
    texts = []
    for number, ring in enumerate(made[:2000]):
        corners = "".join(
            f'<Coordinate Order="{n}" X="{x}" Y="{y}"/>' for n, (x, y) in enumerate(ring)
        )
        group = "Tumor" if number == 0 else random.choice(("Exclusion", "Tumor", "_2"))
        kind = random.choice(("Polygon", "Spline", "Rectangle", "Dot", "PointSet", ""))
        about = f'Name="a{number}" Type="{kind}" PartOfGroup="{group}"'
        texts.append(f"<Annotation {about}><Coordinates>{corners}</Coordinates></Annotation>")
    return (
        f"<ASAP_Annotations><Annotations>{''.join(texts)}</Annotations></ASAP_Annotations>".encode(),
        words,
    )
