"""Encoder cards: one TOML file per encoder with all that is needed to build, feed and cite it.

The card of an encoder states the network, its input, its output, the file of weights and the
licence. To add an encoder of a known family, add a card: in the folder `cards` of this package, in
a file or folder named by SCMIL_CARDS, or through an entry point of the group `scmil.encoder_cards`
that returns the path of a file or folder.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from scmil.errors import ConfigError

FOLDER = Path(__file__).with_name("cards")
VARIABLE = "SCMIL_CARDS"
POOLS = ("network", "cls", "mean", "cls+mean", "pooler", "projection")
INTERPOLATIONS = ("bilinear", "bicubic")
PRECISIONS = ("float32", "float16", "bfloat16")
NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")
IMPORT = "Import the features of another tool: scmil import FOLDER --out BAGS"


@dataclass(frozen=True)
class CardInput:
    """The tiles that an encoder expects, and how they are transformed.

    Tiles are resized to `resize_px` pixels a side (0: not resized), then cropped at their centre
    to `crop_px` (0: not cropped).
    """

    tile_px: int = 256
    mpp: tuple[float, ...] = ()  # the first one is the default; empty: no resolution is preferred
    resize_px: int = 0
    crop_px: int = 0
    interpolation: str = "bilinear"
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    precision: str = "float32"  # that of the authors or of other tools, as information


@dataclass(frozen=True)
class CardOutput:
    """The features: how tokens are pooled, how many tokens precede those of patches, the width."""

    width: int = 0
    pool: str = "network"
    prefix_tokens: int = 0


@dataclass(frozen=True)
class CardWeights:
    """The published file: where it is, its digest, and the layout of its tensors.

    `unwrap` are keys under which a file nests its tensors; `strip` are prefixes of names that are
    removed; `ignore` is the pattern of names that the network does not use.
    """

    file: str = ""
    sha256: str = ""
    md5: str = ""
    url: str = ""
    hub: str = ""  # id of a repository of the Hugging Face hub
    revision: str = ""
    gated: bool = False
    package: str = ""
    hint: str = ""  # how to get the file if it cannot be downloaded
    layout: str = "timm"
    unwrap: tuple[str, ...] = ()
    strip: tuple[str, ...] = ()
    ignore: str = r"$."


@dataclass(frozen=True)
class CardLicence:
    """The licence of the weights; `inherits`: it extends to models trained on the features."""

    name: str = "unknown"
    commercial: bool | None = None  # None: sources disagree or say nothing
    inherits: bool = False
    note: str = ""

    def sentence(self) -> str:
        """What the licence allows, in one sentence.

        >>> CardLicence("CC-BY-NC-ND 4.0", False, True).sentence()
        'CC-BY-NC-ND 4.0: no commercial use; models trained on the features fall under it too.'
        """
        uses: dict[bool | None, str] = {
            True: "commercial use is allowed",
            False: "no commercial use",
            None: "commercial use is not settled, ask the authors",
        }
        use = uses[self.commercial]
        derived = "; models trained on the features fall under it too" if self.inherits else ""
        note = f" {self.note}" if self.note else ""
        return f"{self.name}: {use}{derived}.{note}"


@dataclass(frozen=True)
class Card:
    """One encoder; a variant `name:variant` is a card of its own."""

    name: str
    summary: str
    builder: str = ""  # empty: scmil cannot build this encoder
    architecture: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    parameters: int = 0
    version: int = 1
    needs: str = "timm"
    foldable: bool = False
    # "parameters": the digest of the features' provenance covers the weights alone, as in bags of
    # earlier versions; "contract": it covers input and output as well.
    digest: str = "contract"
    reason: str = ""  # why it cannot be built
    note: str = ""  # what is not certain about the card, and other remarks
    citation: str = ""
    input: CardInput = CardInput()
    output: CardOutput = CardOutput()
    weights: CardWeights = CardWeights()
    licence: CardLicence = CardLicence()
    variants: tuple[str, ...] = ()

    @property
    def contract(self) -> str:
        """Input and output as text, which is part of the digest."""
        shown = self.input
        return (
            f"pool {self.output.pool}, width {self.output.width}, resize {shown.resize_px}, "
            f"crop {shown.crop_px}, {shown.interpolation}, mean {shown.mean}, std {shown.std}"
        )

    @property
    def remedy(self) -> str:
        """Why the encoder cannot be built, and what to do instead."""
        return f"{self.reason}. {IMPORT}"


SECTIONS = {
    "input": CardInput,
    "output": CardOutput,
    "weights": CardWeights,
    "licence": CardLicence,
}
TYPES = {"int": int, "str": str, "bool": bool}


def read_cards(path: Path) -> list[Card]:
    """Read the card of a file: the encoder, then its variants.

    Raises:
        ConfigError: If the file is not a valid card; all problems are listed.
    """
    try:
        page = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(
            f"{path}: cannot be read as an encoder card ({error}). A card is a TOML file, see "
            "docs/how-to/choose_an_encoder.md."
        ) from None
    variants = page.pop("variants", {})
    problems: list[str] = []
    if not NAME.fullmatch(path.stem):
        problems.append(f"file name {path.name!r}: expected lower case letters, digits, . and -")
    cards = []
    if not isinstance(variants, dict) or not all(isinstance(v, dict) for v in variants.values()):
        problems.append("[variants]: expected one table for each variant")
        variants = {}
    cards.append(_card_of(path.stem, page, tuple(variants), problems))
    for variant, changes in variants.items():
        changed = _with_changes(page, changes, variant, problems)
        cards.append(_card_of(f"{path.stem}:{variant}", changed, (), problems))
    if problems:
        unique = list(dict.fromkeys(problems))
        lines = "".join(f"\n    {problem}" for problem in unique)
        count = f"{len(unique)} problem{'s' * (len(unique) > 1)}"
        raise ConfigError(f"{path} has {count}; correct the card:{lines}")
    return cards


def all_cards() -> Iterator[Card]:
    """All cards: those of the package, of SCMIL_CARDS, and of installed packages.

    >>> names = [card.name for card in all_cards()]
    >>> "uni2-h" in names, "virchow2:cls" in names
    (True, True)
    """
    seen: dict[str, Path] = {}
    for path in _card_files():
        for card in read_cards(path):
            if card.name in seen:
                raise ConfigError(
                    f"{path}: there is a card {card.name!r} already, {seen[card.name]}. Rename "
                    "this file."
                )
            seen[card.name] = path
            yield card


def _card_files() -> Iterator[Path]:
    yield from sorted(FOLDER.glob("*.toml"))
    if named := os.environ.get(VARIABLE):
        if not Path(named).exists():
            raise ConfigError(f"{VARIABLE} = {named} does not exist. Set it to a card or a folder.")
        yield from _files_of(Path(named))
    for point in entry_points(group="scmil.encoder_cards"):
        value = point.load()
        yield from _files_of(Path(value() if callable(value) else value))


def _files_of(path: Path) -> list[Path]:
    return sorted(path.glob("*.toml")) if path.is_dir() else [path]


def _with_changes(
    page: Mapping[str, Any], changes: Mapping[str, Any], variant: str, problems: list[str]
) -> dict[str, Any]:
    """The page of a variant: keys of [input] and [output], and the summary, are replaced."""
    changed = {key: dict(v) if isinstance(v, dict) else v for key, v in page.items()}
    homes = {each.name: key for key in ("input", "output") for each in fields(SECTIONS[key])}
    for key, value in changes.items():
        if key in ("summary", "parameters"):
            changed[key] = value
        elif key in homes:
            changed.setdefault(homes[key], {})[key] = value
        else:
            problems.append(
                f"[variants.{variant}] {key}: only summary, parameters and keys of input and output"
            )
    return changed


def _card_of(
    name: str, page: Mapping[str, Any], variants: tuple[str, ...], problems: list[str]
) -> Card:
    values: dict[str, Any] = {}
    known = {each.name: each for each in fields(Card)}
    for key, value in page.items():
        if key in SECTIONS:
            values[key] = _section_of(key, value, problems)
        elif key == "arguments":
            values[key] = value if isinstance(value, dict) else {}
            if not isinstance(value, dict):
                problems.append("[arguments]: expected a table")
        elif key in known and key not in ("name", "variants"):
            if _fits(value, str(known[key].type)):
                values[key] = value
            else:
                problems.append(f"{key} = {value!r}: expected {known[key].type}")
        else:
            problems.append(f"{key}: unknown key")
    if "summary" not in values:
        problems.append("summary: missing")
    card = Card(name, values.pop("summary", ""), variants=variants, **values)
    problems += _problems_of(card)
    return card


def _section_of(name: str, page: Any, problems: list[str]) -> Any:
    section = SECTIONS[name]
    if not isinstance(page, dict):
        problems.append(f"[{name}]: expected a table")
        return section()
    known = {each.name: str(each.type) for each in fields(section)}
    values = {}
    for key, value in page.items():
        if key not in known:
            problems.append(f"[{name}] {key}: unknown key")
        elif not _fits(value, known[key]):
            problems.append(f"[{name}] {key} = {value!r}: expected {known[key]}")
        else:
            values[key] = tuple(value) if isinstance(value, list) else value
    return section(**values)


def _fits(value: Any, declared: str) -> bool:
    if declared.startswith("tuple"):
        kinds = (int, float) if "float" in declared else (str,)
        return isinstance(value, list) and all(isinstance(each, kinds) for each in value)
    kind = TYPES[declared.partition(" ")[0]]
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _problems_of(card: Card) -> list[str]:
    """What is wrong with the values of a card."""
    shown, weights = card.input, card.weights
    checks = {
        "summary: expected 1 to 59 characters": 0 < len(card.summary) < 60,
        "[output] width: expected a positive number": card.output.width > 0,
        f"[output] pool {card.output.pool!r}: expected {', '.join(POOLS)}": card.output.pool
        in POOLS,
        f"[input] interpolation {shown.interpolation!r}: expected {', '.join(INTERPOLATIONS)}": (
            shown.interpolation in INTERPOLATIONS
        ),
        f"[input] precision {shown.precision!r}: expected {', '.join(PRECISIONS)}": (
            shown.precision in PRECISIONS
        ),
        "[input] mean, std: expected three numbers, 0 to 1, std above 0": (
            len(shown.mean) == len(shown.std) == 3
            and all(0 <= value <= 1 for value in shown.mean)
            and all(0 < value <= 1 for value in shown.std)
        ),
        "[input] mpp: expected positive numbers": all(value > 0 for value in shown.mpp),
        "[input] tile_px: expected a positive number": shown.tile_px > 0,
        "[input] crop_px: larger than resize_px": shown.crop_px <= (shown.resize_px or 10**6),
        "[weights] sha256: expected 64 hexadecimal digits": re.fullmatch(
            r"([0-9a-f]{64})?", weights.sha256
        )
        is not None,
        "[weights] url: expected an https address": weights.url.startswith(("https://", "http://"))
        or not weights.url,
        "[weights] hub: expected owner/name": re.fullmatch(r"([\w.-]+/[\w.-]+)?", weights.hub)
        is not None,
        "parameters: expected a positive number": card.parameters > 0 or not card.builder,
        "builder: missing; without one, reason must say why": bool(card.builder or card.reason),
        "digest: expected contract or parameters": card.digest in ("contract", "parameters"),
        "[weights] file: missing": bool(weights.file) or not card.builder,
    }
    try:
        re.compile(weights.ignore)
    except re.error as error:
        checks[f"[weights] ignore: not a pattern ({error})"] = False
    return [f"{card.name}: {text}" for text, holds in checks.items() if not holds]
