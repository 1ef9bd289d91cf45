"""Bounds for every number that a file can set, in one table, and limits for the JSON and TOML that they stand in.

A number beyond its bound is not obeyed: a model of ten million layers, a tile of 1e7 pixels or a grid of 20^6 experiments
would fill the memory or never end. Bounds are far above what is ever meant, so that they reject damage and harm alone.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from scmil.errors import DataError
from scmil.core.files import check_regular

LARGEST_PAGE = 256 * 2**20  # bytes of a JSON file of ours; `maps.json` of 100 000 slides has 30 MB
LARGEST_TOML = 2**20
DEEPEST = 40  # tables and lists within each other
DEEP_KEY = re.compile(rf"(?:[\w\-\"']+[ \t]*\.[ \t]*){{{DEEPEST}}}")  # tomllib takes the square of its parts
LONGEST_LIST = 1000  # of the options of a model
MOST_CELLS = 10_000  # of an experiment
MOST_TILES = 2**22  # places of the grid over one slide; a slide of 100 000 pixels a side has 150 000


class Bound(NamedTuple):
    """From `low` to `high`, both included; `whole` numbers are integers."""

    low: float
    high: float
    whole: bool = False

    def holds(self, value: Any) -> bool:
        """Whether a value is a number within the bound; integers of any length can be asked."""
        if isinstance(value, bool) or not isinstance(value, int if self.whole else (int, float)):
            return False
        return self.low <= value <= self.high  # NaN is in no interval

    def __str__(self) -> str:
        if self.whole:
            return f"a whole number from {int(self.low)} to {int(self.high)}"
        return f"a number from {self.low:g} to {self.high:g}"


SEED = Bound(0, 2**63 - 1, whole=True)
PIXELS = Bound(-(2**31), 2**31, whole=True)  # a coordinate; level 0 of the largest slides has a million a side

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
    """What is wrong with a number of this name, in words; None if nothing is.

    >>> problem("layers", 10**7), problem("mpp", 0.5)
    ('layers = 10000000: a whole number from 1 to 1000 is needed', None)
    """
    bound = bound or BOUNDS[name]
    return None if bound.holds(value) else f"{name} = {_short(value)}: {bound} is needed"


def bounded(name: str, value: Any, where: object, bound: Bound | None = None) -> Any:
    """The value, if it is a number within the bound of its name; else a DataError that says where it stands.

    >>> bounded("size_px", 256, "study.json")
    256
    >>> bounded("mpp", 1e-6, "study.json")
    Traceback (most recent call last):
    ...
    scmil.errors.DataError: study.json: mpp = 1e-06: a number from 0.01 to 1000 is needed.
    """
    if said := problem(name, value, bound):
        raise DataError(f"{where}: {said}.")
    return value


def check_overlap(size_px: int, overlap_px: int, where: object) -> None:
    """Raise if a file asks for tiles that overlap by more than three quarters: 16 times as many tiles as without.

    >>> check_overlap(256, 255, "study.json")
    Traceback (most recent call last):
    ...
    scmil.errors.DataError: study.json: overlap_px = 255 of tiles of 256 px: at most 192 is read from a file.
    """
    if overlap_px > (most := size_px * 3 // 4):
        raise DataError(
            f"{where}: overlap_px = {overlap_px} of tiles of {size_px} px: at most {most} is read from a file."
        )


def options_problem(options: Any, name: str = "model") -> str | None:
    """The first number of the options of a model, nested or not, that is beyond its bound; None if there is none.

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
                return f"{key} has {len(value)} entries, and {LONGEST_LIST} is the most"
            waiting += [("width" if key in ("embed", "widths") else key, part) for part in value]
        elif type(value) in (int, float) and (said := problem(key, value, BOUNDS.get(key, ANY))):
            return said
    return None


def nested_too_deeply(value: Any) -> bool:
    """Whether lists and tables lie within each other more often than anybody writes them; copying them would fail."""
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


def read_json(path: str | Path, largest: int = LARGEST_PAGE) -> Any:
    """The content of a JSON file that may be anybody's; ValueError, or an OSError, if it cannot be read.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "page.json"
    >>> _ = path.write_text("[" * 100_000)
    >>> read_json(path)
    Traceback (most recent call last):
    ...
    scmil.errors.DataError: ...page.json is nested too deeply.
    """
    if (size := check_regular(path)) > largest:
        raise DataError(f"{path} has {size} bytes, and {largest} is the most that is read.")
    try:
        page = json.loads(Path(path).read_bytes())
    except RecursionError:
        raise DataError(f"{path} is nested too deeply.") from None
    if nested_too_deeply(page):
        raise DataError(f"{path} is nested too deeply.")
    return page


def parse_toml(text: str) -> dict[str, Any]:
    """The content of a TOML text; ValueError if it is not TOML, too long, nested too deeply or has an integer beyond 64 bits.

    >>> parse_toml("a = 0x" + "f" * 5000)
    Traceback (most recent call last):
    ...
    scmil.errors.DataError: a: an integer has more than 64 bits
    """
    if len(text) > LARGEST_TOML:
        raise DataError(f"{len(text)} characters, and {LARGEST_TOML} is the most that is read")
    if DEEP_KEY.search(text):
        raise DataError(f"a key has more than {DEEPEST} parts: tables are nested more than {DEEPEST} times")
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
            waiting += value.items() if isinstance(value, Mapping) else ((key, part) for part in value)
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:  # TOML's own bound; tomllib does not hold it
            raise DataError(f"{key}: an integer has more than 64 bits")
    return document


def _short(value: Any) -> str:
    """A value for a message; an integer of many digits would fill the screen, and cannot always be written out."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**18:
        return f"about {'-' * (value < 0)}10^{round(math.log2(abs(value)) * math.log10(2))}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
