"""Microns per pixel: where files say it, and whether it can be true."""

from __future__ import annotations

import math
from typing import NamedTuple

from scmil.core.extras import need

UM_IN = {"inch": 25_400.0, "centimeter": 10_000.0, "millimeter": 1_000.0, "micrometer": 1.0}
OME_UNITS = {"µm": 1.0, "μm": 1.0, "um": 1.0, "micron": 1.0, "nm": 1e-3, "mm": 1e3, "cm": 1e4, "m": 1e6}  # micro, mu
COARSEST_SCAN = 20.0  # µm a pixel; 72, 96, 300 or 1200 dots an inch are a printer's business
PLAUSIBLE = (0.05, 5.0)
FIX = "Give the right one with --mpp-of, or open_slide(path, mpp=...)."


class Resolution(NamedTuple):
    """Microns per pixel if known, where they come from, and what is doubtful about them."""

    mpp: float | None
    source: str  # "given", "file", "objective" or "unknown"
    warnings: tuple[str, ...] = ()


def resolve(mpp_xy: tuple[float, float] | None, objective: float | None, given: float | None = None) -> Resolution:
    """What is given wins, then what the file says, then 10 µm over the power of the objective.

    >>> resolve((0.25, 0.25), 40)
    Resolution(mpp=0.25, source='file', warnings=())
    >>> resolve(None, 20)
    Resolution(mpp=0.5, source='objective', warnings=())
    >>> resolve((2.5, 2.5), 40).warnings[0]
    'mpp 2.5 contradicts the objective x40 (about 0.25): 10 times too large? Give the right one with --mpp-of, or ...'
    """
    if given is not None:
        return Resolution(given, "given", tuple(_doubts(given, objective)))
    if mpp_xy is not None:
        mpp = sum(mpp_xy) / 2
        return Resolution(mpp, "file", (*_uneven(mpp_xy, mpp), *_doubts(mpp, objective)))
    if objective is not None:
        mpp = 10 / objective
        return Resolution(mpp, "objective", tuple(_doubts(mpp, None)))
    return Resolution(None, "unknown")


def of_density(density: tuple[float | None, float | None], unit_um: float | None) -> tuple[float, float] | None:
    """Microns per pixel from pixels per unit; None if that is a printer's resolution, as 72 dots an inch are.

    >>> of_density((40_000, 40_000), UM_IN["centimeter"]), of_density((72, 72), UM_IN["inch"]), of_density((1, 1), None)
    ((0.25, 0.25), None, None)
    """
    x, y = density
    if not x or not y or not unit_um or not (math.isfinite(x) and math.isfinite(y)) or min(x, y) <= 0:
        return None
    mpp = unit_um / x, unit_um / y
    return mpp if max(mpp) <= COARSEST_SCAN else None


def of_ome(xml: str, size: tuple[int, int]) -> tuple[tuple[float, float] | None, float | None]:
    """Microns per pixel and objective of the picture of that size in OME metadata, each None if it is not there.

    >>> pixels = '<Pixels SizeX="900" SizeY="800" PhysicalSizeX="250" PhysicalSizeXUnit="nm" PhysicalSizeY="0.25"/>'
    >>> of_ome(f'<OME><Objective NominalMagnification="40"/><Image>{pixels}</Image></OME>', (900, 800))
    ((0.25, 0.25), 40.0)
    """
    tree = need("defusedxml.ElementTree", "slides")
    try:
        root = tree.fromstring(xml)
    except (tree.ParseError, ValueError):  # refused entities are ValueErrors
        return None, None
    found = {name: [node for node in root.iter() if node.tag.endswith(name)] for name in ("Pixels", "Objective")}
    powers = [number(node.get("NominalMagnification")) for node in found["Objective"]]
    objective = next((power for power in powers if power), None)
    for node in found["Pixels"]:
        if (node.get("SizeX"), node.get("SizeY")) == tuple(map(str, size)):
            lengths = [number(node.get(f"PhysicalSize{axis}")) for axis in "XY"]
            units = [OME_UNITS.get(node.get(f"PhysicalSize{axis}Unit", "µm")) for axis in "XY"]
            x, y = (length * unit if length and unit else None for length, unit in zip(lengths, units, strict=True))
            return ((x, y) if x and y else None), objective
    return None, objective


def aperio_fields(description: str) -> dict[str, str]:
    """The fields of a description that Aperio's software wrote; none of another.

    >>> aperio_fields("Aperio Image Library v11 900x800|AppMag = 40|MPP = 0.2520")
    {'AppMag': '40', 'MPP': '0.2520'}
    """
    if not description.startswith("Aperio"):
        return {}
    fields = (field.partition("=") for field in description.split("|")[1:])
    return {key.strip(): value.strip() for key, _, value in fields}


def number(text: str | None) -> float | None:
    """A positive number, or None for anything else.

    >>> number("0.25"), number("0"), number("nan"), number(None), number("x40")
    (0.25, None, None, None, None)
    """
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if value > 0 and math.isfinite(value) else None


def _uneven(mpp_xy: tuple[float, float], mean: float) -> list[str]:
    x, y = mpp_xy
    if abs(x - y) <= 0.01 * mean:
        return []
    return [
        f"pixels are not square: mpp {x:.4g} across and {y:.4g} down. Both axes are read with the mean, {mean:.4g}."
    ]


def _doubts(mpp: float, objective: float | None) -> list[str]:
    doubts = []
    if objective and max(ratio := mpp * objective / 10, 1 / ratio) > 1.5:
        times = f"{ratio:.2g} times too large" if ratio > 1 else f"{1 / ratio:.2g} times too small"
        doubts.append(
            f"mpp {mpp:.4g} contradicts the objective x{objective:g} (about {10 / objective:.4g}): {times}? {FIX}"
        )
    if not PLAUSIBLE[0] <= mpp <= PLAUSIBLE[1]:
        low, high = PLAUSIBLE
        doubts.append(f"mpp {mpp:.4g} is implausible: scanners have between {low:g} and {high:g}. {FIX}")
    return doubts
