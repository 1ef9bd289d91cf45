"""Which encoder of another tool gives the same features as which encoder of scmil.

Tools use the same names for different features: other weights, pooling, crops or normalisation.
The table `encoder_names.csv` states for names of other tools which card of scmil gives the same
numbers, or that none does.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from scmil.bags.bag import Bag

TABLE = Path(__file__).with_suffix(".csv")
TOOLS = {
    "trident": "TRIDENT",
    "stamp": "STAMP",
    "clam": "CLAM",
    "lazyslide": "LazySlide",
}
OWN = "scmil"
# STAMP cuts tiles of 256 microns into 224 pixels unless it is configured otherwise.
STAMP_MPP = 256 / 224


class Equivalent(NamedTuple):
    """An encoder of another tool and the card of scmil that it is compared with."""

    tool: str
    encoder: str
    card: str
    same: bool  # whether the numbers are the same
    note: str


@cache
def read_table() -> tuple[Equivalent, ...]:
    """All rows of the table."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return tuple(
            Equivalent(row["tool"], row["encoder"], row["card"], row["same"] == "yes", row["note"])
            for row in csv.DictReader(file)
        )


def equivalents(card: str) -> list[Equivalent]:
    """The encoders of other tools that a card is compared with.

    >>> [(e.tool, e.encoder) for e in equivalents("virchow2:cls")]
    [('trident', 'virchow2-cls'), ('stamp', 'virchow2'), ('eva', 'paige_virchow2')]
    """
    return [entry for entry in read_table() if entry.card == card]


def find_equivalent(tool: str | None, encoder: str | None) -> Equivalent | None:
    """The row of an encoder of a tool, or None if the table has none.

    STAMP appends digests to its names, and slideflow names classes.

    >>> find_equivalent("trident", "ctranspath").card
    'chief-ctranspath'
    >>> find_equivalent("stamp", "xiyuewang-ctranspath-7c998680-02627079").card
    'ctranspath'
    """
    if tool is None or encoder is None:
        return None
    wanted = {_normal(encoder), _normal(re.sub(r"(-[0-9a-f]{8})+$", "", encoder))}
    wanted.add(_normal(encoder.rpartition(".")[2].removesuffix("Features")))
    rows = [entry for entry in read_table() if entry.tool == tool]
    return next((entry for entry in rows if _normal(entry.encoder) in wanted), None)


def identity_of(provenance: Mapping[str, Any]) -> str | None:
    """A name under which features can be compared between tools; None if nothing is known.

    Features of scmil, and those of other tools with the same numbers, have the name of the card.
    Those that only share a name have the name of the tool in front.

    >>> identity_of({"format": "trident", "encoder": "uni_v1"}), identity_of({"encoder": "uni"})
    ('uni', 'uni')
    >>> identity_of({"format": "lazyslide", "encoder": "musk"})
    'musk of LazySlide'
    """
    encoder = provenance.get("encoder")
    if not isinstance(encoder, str):
        return None
    tool = tool_of(provenance)
    entry = find_equivalent(tool, encoder)
    if entry is None:
        return encoder
    return entry.card if entry.same else f"{entry.card} of {TOOLS.get(entry.tool, entry.tool)}"


def card_name(provenance: Mapping[str, Any]) -> str | None:
    """The card of scmil that gives the features of another tool's encoder, or None."""
    encoder = provenance.get("encoder")
    entry = find_equivalent(tool_of(provenance), encoder) if isinstance(encoder, str) else None
    return entry.card if entry is not None and entry.same else None


def tool_of(provenance: Mapping[str, Any]) -> str | None:
    """The tool that computed features; features with a digest of weights are of scmil."""
    if isinstance(tool := provenance.get("encoder_tool"), str):
        return tool
    if provenance.get("encoder_digest") is not None:
        return OWN
    tool = provenance.get("format")
    return tool if isinstance(tool, str) else None


def with_tool(bag: Bag) -> Bag:
    """A bag whose provenance keeps the tool that computed it, for the format of scmil."""
    if find_equivalent(tool := tool_of(bag.provenance), bag.provenance.get("encoder")) is None:
        return bag
    return replace(bag, provenance={**bag.provenance, "encoder_tool": tool})


def statement_of(provenance: Mapping[str, Any]) -> str | None:
    """A sentence about features of another tool, for people; None for those of scmil.

    >>> print(statement_of({"format": "trident", "encoder": "ctranspath"}))
    TRIDENT 'ctranspath' gives the features of 'chief-ctranspath' here, not of 'ctranspath' (TRIDENT
    loads the weights of CHIEF under the name ctranspath)
    """
    tool, encoder = tool_of(provenance), provenance.get("encoder")
    if not isinstance(encoder, str) or (entry := find_equivalent(tool, encoder)) is None:
        return None
    shown = f"{TOOLS.get(entry.tool, entry.tool)} {encoder!r}"
    note = f" ({entry.note})" if entry.note else ""
    if not entry.same:
        return f"{shown} does not give the features of {entry.card!r} here{note}"
    apart = f", not of {encoder!r}" if _is_card(encoder) and entry.card != _normal(encoder) else ""
    return f"{shown} gives the features of {entry.card!r} here{apart}{note}"


def shares_only_the_name(provenance: Mapping[str, Any]) -> bool:
    """Whether features differ from those of scmil that a user would expect by the name.

    >>> shares_only_the_name({"format": "stamp", "encoder": "virchow2"})
    True
    >>> shares_only_the_name({"format": "trident", "encoder": "uni_v1"})
    False
    """
    encoder = provenance.get("encoder")
    entry = find_equivalent(tool_of(provenance), encoder) if isinstance(encoder, str) else None
    if entry is None:
        return False
    other = _is_card(str(encoder)) and entry.card != _normal(str(encoder))
    return not entry.same or ":" in entry.card or other


def _is_card(name: str) -> bool:
    """Whether a card of scmil in the table has this name."""
    return any(entry.card == _normal(name) for entry in read_table())


def _normal(name: str) -> str:
    return name.lower().replace("_", "-")
