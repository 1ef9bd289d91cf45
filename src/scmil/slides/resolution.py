"""Microns per pixel: read them from metadata and check whether they are plausible."""

from __future__ import annotations

import math
from typing import NamedTuple

from scmil.core.extras import import_extra

UM_IN = {"inch": 25_400.0, "centimeter": 10_000.0, "millimeter": 1_000.0, "micrometer": 1.0}
# With the micro sign and with the Greek letter mu.
OME_UNITS = {
    "µm": 1.0,
    "μm": 1.0,
    "um": 1.0,
    "micron": 1.0,
    "nm": 1e-3,
    "mm": 1e3,
    "cm": 1e4,
    "m": 1e6,
}
COARSEST_SCAN = 20.0  # µm per pixel; 72 to 1200 dots per inch are a print resolution
PLAUSIBLE = (0.05, 5.0)
PLAUSIBLE_RANGE = f"{PLAUSIBLE[0]:g} and {PLAUSIBLE[1]:g}"  # for messages
FIX = "Give the correct value with --mpp-of VALUE --override-mpp, or open_slide(path, mpp=...)."


class Resolution(NamedTuple):
    """Microns per pixel if known, their source, and warnings about them."""

    mpp: float | None
    source: str  # "given", "file", "objective" or "unknown"
    warnings: tuple[str, ...] = ()


def resolve(
    mpp_xy: tuple[float, float] | None, objective: float | None, given: float | None = None
) -> Resolution:
    """Choose the given value, else that of the file, else 10 µm / magnification of the objective.

    >>> resolve((0.25, 0.25), 40)
    Resolution(mpp=0.25, source='file', warnings=())
    >>> resolve(None, 20)
    Resolution(mpp=0.5, source='objective', warnings=())
    >>> resolve((2.5, 2.5), 40).warnings[0]
    'mpp 2.5 contradicts the objective x40 (about 0.25): 10 times too large? Give the correct ...'
    """
    if given is not None:
        return Resolution(given, "given", tuple(_plausibility_warnings(given, objective)))
    if mpp_xy is not None:
        mpp = sum(mpp_xy) / 2
        return Resolution(
            mpp, "file", (*_square_warnings(mpp_xy, mpp), *_plausibility_warnings(mpp, objective))
        )
    if objective is not None:
        mpp = 10 / objective
        return Resolution(mpp, "objective", tuple(_plausibility_warnings(mpp, None)))
    return Resolution(None, "unknown")


def is_plausible(mpp: float) -> bool:
    """Whether a scanner could have this many microns per pixel.

    >>> is_plausible(0.25), is_plausible(0.00499)
    (True, False)
    """
    return PLAUSIBLE[0] <= mpp <= PLAUSIBLE[1]


def mpp_of_density(
    density: tuple[float | None, float | None], unit_um: float | None
) -> tuple[float, float] | None:
    """Microns per pixel from pixels per unit; None for a print resolution such as 72 dpi.

    >>> mpp_of_density((40_000, 40_000), UM_IN["centimeter"])
    (0.25, 0.25)
    >>> mpp_of_density((72, 72), UM_IN["inch"]), mpp_of_density((1, 1), None)
    (None, None)
    """
    x, y = density
    if (
        not x
        or not y
        or not unit_um
        or not (math.isfinite(x) and math.isfinite(y))
        or min(x, y) <= 0
    ):
        return None
    mpp = unit_um / x, unit_um / y
    return mpp if max(mpp) <= COARSEST_SCAN else None


def read_ome(xml: str, size: tuple[int, int]) -> tuple[tuple[float, float] | None, float | None]:
    """Microns per pixel and objective of the image of this size in OME metadata, None if missing.

    >>> size = 'SizeX="900" SizeY="800" PhysicalSizeX="250" PhysicalSizeXUnit="nm"'
    >>> image = f'<Image><Pixels {size} PhysicalSizeY="0.25"/></Image>'
    >>> read_ome(f'<OME><Objective NominalMagnification="40"/>{image}</OME>', (900, 800))
    ((0.25, 0.25), 40.0)
    """
    tree = import_extra("defusedxml.ElementTree", "slides")
    try:
        root = tree.fromstring(xml)
    except (tree.ParseError, ValueError):  # defusedxml raises a ValueError for entities
        return None, None
    found = {
        name: [node for node in root.iter() if node.tag.endswith(name)]
        for name in ("Pixels", "Objective")
    }
    powers = [parse_positive(node.get("NominalMagnification")) for node in found["Objective"]]
    objective = next((power for power in powers if power), None)
    for node in found["Pixels"]:
        if (node.get("SizeX"), node.get("SizeY")) == tuple(map(str, size)):
            lengths = [parse_positive(node.get(f"PhysicalSize{axis}")) for axis in "XY"]
            units = [OME_UNITS.get(node.get(f"PhysicalSize{axis}Unit", "µm")) for axis in "XY"]
            x, y = (
                length * unit if length and unit else None
                for length, unit in zip(lengths, units, strict=True)
            )
            return ((x, y) if x and y else None), objective
    return None, objective


def aperio_fields(description: str) -> dict[str, str]:
    """The fields of an image description by Aperio; empty for other descriptions.

    >>> aperio_fields("Aperio Image Library v11 900x800|AppMag = 40|MPP = 0.2520")
    {'AppMag': '40', 'MPP': '0.2520'}
    """
    if not description.startswith("Aperio"):
        return {}
    fields = (field.partition("=") for field in description.split("|")[1:])
    return {key.strip(): value.strip() for key, _, value in fields}


def parse_positive(text: str | None) -> float | None:
    """Parse a positive number; None for anything else.

    >>> [parse_positive(text) for text in ("0.25", "0", "nan", None, "x40")]
    [0.25, None, None, None, None]
    """
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if value > 0 and math.isfinite(value) else None


def _square_warnings(mpp_xy: tuple[float, float], mean: float) -> list[str]:
    x, y = mpp_xy
    if abs(x - y) <= 0.01 * mean:
        return []
    return [
        f"pixels are not square: mpp {x:.4g} in x and {y:.4g} in y. The mean, {mean:.4g}, is used "
        "for both axes."
    ]


def _plausibility_warnings(mpp: float, objective: float | None) -> list[str]:
    warnings = []
    if objective and max(ratio := mpp * objective / 10, 1 / ratio) > 1.5:
        times = f"{ratio:.2g} times too large" if ratio > 1 else f"{1 / ratio:.2g} times too small"
        warnings.append(
            f"mpp {mpp:.4g} contradicts the objective x{objective:g} "
            f"(about {10 / objective:.4g}): {times}? {FIX}"
        )
    if not is_plausible(mpp):
        warnings.append(
            f"mpp {mpp:.4g} is implausible: values of scanners lie between {PLAUSIBLE_RANGE}. {FIX}"
        )
    return warnings
