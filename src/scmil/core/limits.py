"""Bounds for every number that a file can set, and limits for JSON and TOML files.

A model of ten million layers, a tile of 1e7 pixels or a grid of 20^6 runs would exhaust the memory
or never end. The bounds are far above useful values, so that only damaged or malicious files exceed
them.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from typing import Any, NamedTuple

from scmil.errors import DataError

# In bytes; `maps.json` of 100 000 slides has 30 MB.
LARGEST_JSON = 256 * 2**20
LARGEST_TOML = 2**20
# In bytes; a checkpoint of TransMIL has 11 MB.
LARGEST_CHECKPOINT = 2**31
DEEPEST = 40  # levels of nested tables and lists
# The time that tomllib needs for a key grows with the square of its parts.
DEEP_KEY = re.compile(rf"(?<![\w\-\"'])(?:[\w\-\"']+[ \t]*\.[ \t]*){{{DEEPEST}}}")
LONGEST_LIST = 1000  # in the options of a model
MOST_CELLS = 10_000  # runs of an experiment
# Windows of the grid over one slide; a slide of 100 000 x 100 000 pixels has 150 000.
MOST_TILES = 2**22


class Bound(NamedTuple):
    """From `low` to `high`, both included; `whole` numbers are integers."""

    low: float
    high: float
    whole: bool = False

    def holds(self, value: Any) -> bool:
        """Whether a value is a number within the bound; integers may be of any size."""
        if isinstance(value, bool) or not isinstance(value, int if self.whole else (int, float)):
            return False
        return self.low <= value <= self.high  # False for NaN

    def __str__(self) -> str:
        if self.whole:
            return f"a whole number from {int(self.low)} to {int(self.high)}"
        return f"a number from {self.low:g} to {self.high:g}"


SEED = Bound(0, 2**63 - 1, whole=True)
# A coordinate; the largest slides are a million pixels wide.
PIXELS = Bound(-(2**31), 2**31, whole=True)

BOUNDS: Mapping[str, Bound] = {
    # a model
    "dim": Bound(1, 2**20, whole=True),
    "classes": Bound(2, 10_000, whole=True),
    "layers": Bound(1, 1000, whole=True),
    "iterations": Bound(1, 1000, whole=True),
    "groups": Bound(1, 1000, whole=True),
    "clusters": Bound(1, 1000, whole=True),
    "heads": Bound(1, 1024, whole=True),
    "atoms": Bound(1, 2**16, whole=True),
    "width": Bound(1, 2**20, whole=True),
    # tiles
    "size_px": Bound(1, 2**13, whole=True),
    "overlap_px": Bound(0, 2**13, whole=True),
    "mpp": Bound(0.01, 1000),
    "slide_mpp": Bound(0.001, 10_000),
    "side_level0": Bound(1e-3, 2**16),
    "slide_size": Bound(1, 2**31, whole=True),
    "min_tissue": Bound(0, 1),
    # a study
    "threshold": Bound(-1e9, 1e9),
    "temperature": Bound(0.01, 100),
    # an experiment
    "folds": Bound(2, 1000, whole=True),
    "repeats": Bound(1, 1000, whole=True),
    "seed": SEED,
    "epochs": Bound(1, 100_000, whole=True),
    "patience": Bound(1, 100_000, whole=True),
    "learning_rate": Bound(1e-12, 1e6),
    "weight_decay": Bound(0, 1e6),
    "final_rate": Bound(0, 1e6),
    "clip": Bound(1e-12, 1e12),
    "class_weights": Bound(1e-9, 1e9),
    "radius_um": Bound(0, 1e6),
    "smooth_um": Bound(0, 1e6),
    "least": Bound(-1e12, 1e12),
}
ANY = Bound(-1e12, 1e12)  # an option that has no bound of its own


def problem(name: str, value: Any, bound: Bound | None = None) -> str | None:
    """Describe what is wrong with the value of an option; None if it is within its bound.

    >>> problem("layers", 10**7), problem("mpp", 0.5)
    ('layers = 10000000: a whole number from 1 to 1000 is needed', None)
    """
    bound = bound or BOUNDS[name]
    return None if bound.holds(value) else f"{name} = {_shorten_value(value)}: {bound} is needed"


def bounded(name: str, value: Any, where: object, bound: Bound | None = None) -> Any:
    """Return a value that is within the bound of its name.

    Args:
        name: The name of the option.
        value: Its value.
        where: The file, for the message.
        bound: The bound, by default that of the name.

    Raises:
        DataError: If the value is not a number or not within the bound.

    >>> bounded("size_px", 256, "study.json")
    256
    >>> bounded("mpp", 1e-6, "study.json")
    Traceback (most recent call last):
    ...
    scmil.errors.DataError: study.json: mpp = 1e-06: a number from 0.01 to 1000 is needed.
    """
    if reason := problem(name, value, bound):
        raise DataError(f"{where}: {reason}.")
    return value


def check_overlap(size_px: int, overlap_px: int, where: object) -> None:
    """Raise if tiles overlap by more than three quarters, which gives 16 times as many tiles.

    >>> check_overlap(256, 255, "study.json")
    Traceback (most recent call last):
    ...
    scmil.errors.DataError: study.json: overlap_px = 255 of tiles of 256 px: expected at most 192.
    """
    if overlap_px > (most := size_px * 3 // 4):
        raise DataError(
            f"{where}: overlap_px = {overlap_px} of tiles of {size_px} px: expected at most {most}."
        )


def options_problem(options: Any, name: str = "model") -> str | None:
    """Describe the first number in the (nested) options of a model that is beyond its bound.

    None if there is none.

    >>> options_problem({"aggregator": {"name": "ilra", "layers": 10**7}})
    'layers = 10000000: a whole number from 1 to 1000 is needed'
    """
    if nested_too_deeply(options):
        return f"{name} is nested more than {DEEPEST} times"
    waiting: list[tuple[str, Any]] = [(name, options)]
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += [(str(own), part) for own, part in value.items()]
        elif isinstance(value, (list, tuple)):
            if len(value) > LONGEST_LIST:
                return f"{key} has {len(value)} entries; at most {LONGEST_LIST} are supported"
            waiting += [("width" if key in ("embed", "widths") else key, part) for part in value]
        elif type(value) in (int, float) and (reason := problem(key, value, BOUNDS.get(key, ANY))):
            return reason
    return None


def nested_too_deeply(value: Any) -> bool:
    """Whether lists and tables are nested more than `DEEPEST` times, so that copying would fail."""
    level: list[Any] = [value]
    for _ in range(DEEPEST):
        level = [
            part
            for one in level
            if isinstance(one, (Mapping, list, tuple))
            for part in (one.values() if isinstance(one, Mapping) else one)
            if isinstance(part, (Mapping, list, tuple))
        ]
        if not level:
            return False
    return True


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a TOML text.

    Raises:
        ValueError: If it is not TOML, too long, nested too deeply, or has an integer of more than
            64 bits.

    >>> parse_toml("a = 0x" + "f" * 5000)
    Traceback (most recent call last):
    ...
    scmil.errors.DataError: a: an integer has more than 64 bits
    """
    if len(text) > LARGEST_TOML:
        raise DataError(f"{len(text)} characters; at most {LARGEST_TOML} are read")
    if DEEP_KEY.search(text):
        raise DataError(
            f"a key has more than {DEEPEST} parts: tables are nested more than {DEEPEST} times"
        )
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise DataError("tables or lists are nested too deeply") from None
    if nested_too_deeply(document):
        raise DataError(f"tables or lists are nested more than {DEEPEST} times")
    waiting: list[tuple[str, Any]] = list(document.items())
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, (Mapping, list)):
            waiting += (
                value.items() if isinstance(value, Mapping) else ((key, part) for part in value)
            )
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            # The limit of the TOML specification, which tomllib does not check.
            raise DataError(f"{key}: an integer has more than 64 bits")
    return document


def _shorten_value(value: Any) -> str:
    """Format a value for a message; Python cannot format integers of many digits."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**18:
        return f"about {'-' * (value < 0)}10^{round(math.log2(abs(value)) * math.log10(2))}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
