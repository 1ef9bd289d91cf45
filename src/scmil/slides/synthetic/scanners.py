"""The looks of synthetic slides: stain, scanner and names of two hospitals."""

from __future__ import annotations

from dataclasses import dataclass

from scmil.errors import OptionError

Colour = tuple[float, float, float]


@dataclass(frozen=True)
class Scanner:
    """How a hospital stains and scans.

    Attributes:
        haematoxylin: Absorbance of red, green and blue.
        eosin: The same of the other stain.
        amount: Factor of the amounts of both stains.
        white: The colour of the empty glass.
        grain: Grey levels of the camera noise.
        slope: Grey levels between the darkest and the brightest corner.
        mpp: The usual resolution in microns per pixel.
        prefix: Start of the names of slides and patients, which differ between hospitals.
    """

    haematoxylin: Colour = (0.58, 0.71, 0.40)
    eosin: Colour = (0.17, 0.85, 0.50)
    amount: float = 1.0
    white: Colour = (243.0, 242.0, 244.0)
    grain: int = 5
    slope: int = 4
    mpp: float = 0.5
    prefix: str = ""


SCANNERS = {
    "a": Scanner(),
    # Bluer haematoxylin, more orange and stronger eosin, a noisier camera.
    "b": Scanner(
        haematoxylin=(0.66, 0.66, 0.30),
        eosin=(0.10, 0.80, 0.62),
        amount=1.25,
        white=(233.0, 234.0, 231.0),
        grain=9,
        slope=8,
        mpp=0.46,
        prefix="b_",
    ),
}


def scanner_of(name: str) -> Scanner:
    """The scanner of this name.

    Raises:
        OptionError: If there is none.

    >>> scanner_of("b").mpp
    0.46
    """
    if name not in SCANNERS:
        raise OptionError(f"scanner = {name!r}; expected one of {', '.join(SCANNERS)}.")
    return SCANNERS[name]
