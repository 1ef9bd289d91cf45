"""The provenance that bags have to share: with each other, and with the bags of a trained model."""

from __future__ import annotations

import shlex
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from scmil.bags.bag import Bag
from scmil.bags.encoder_names import (
    card_name,
    find_equivalent,
    identity_of,
    statement_of,
    tool_of,
)
from scmil.errors import ShapeError


class Requirement(NamedTuple):
    """An entry of the provenance that should be the same in all bags."""

    key: str
    noun: str  # in the plural, for "2 different encoders"
    severity: str | None  # of different values within a data set; None: not reported
    remedy: str
    must_match_model: bool = True  # whether new bags must have the value of the training bags


REQUIREMENTS = (
    Requirement("encoder", "encoders", "error", "Encode all slides with one encoder."),
    Requirement(
        "encoder_digest", "encoder weights", "error", "Encode all slides with the same weights."
    ),
    Requirement(
        "size_px", "tile sizes in pixels", "error", "Tile and encode all slides with one tile size."
    ),
    Requirement(
        "mpp", "tile resolutions (mpp)", "error", "Tile and encode all slides at one resolution."
    ),
    # Another overlap gives more or fewer tiles of the same kind.
    Requirement(
        "overlap_px",
        "tile overlaps",
        "note",
        "Overlapping tiles give larger bags: tile all slides in the same way.",
        must_match_model=False,
    ),
    Requirement("scales_mpp", "tile scales", None, ""),
    # Of imported bags: one name stands for different features in different tools.
    Requirement(
        "encoder_tool",
        "tools that computed the features",
        "error",
        "Use the features of one tool.",
        must_match_model=False,
    ),
)


def required_provenance(bag: Bag) -> dict[str, Any]:
    """Return the entries of a bag's provenance that other bags have to share.

    >>> import torch
    >>> provenance = {"encoder": "uni", "file": "a.h5"}
    >>> required_provenance(Bag("a", torch.zeros(1, 2), provenance=provenance))
    {'encoder': 'uni'}
    """
    values = {requirement.key: bag.provenance.get(requirement.key) for requirement in REQUIREMENTS}
    if find_equivalent(tool := tool_of(bag.provenance), bag.provenance.get("encoder")):
        values["encoder_tool"] = tool  # the same name means other features in another tool
    return {key: value for key, value in values.items() if value is not None}


def comparable(value: Any) -> Hashable:
    """Return a value for comparison; resolutions that agree to two digits are equal.

    >>> comparable(0.502) == comparable(0.4988)
    True
    """
    if isinstance(value, float):
        return float(f"{value:.2g}")
    return value if value is None or isinstance(value, (int, str)) else str(value)


def provenance_differences(expected: Mapping[str, Any], bag: Bag) -> list[str]:
    """Return how a bag differs from the provenance that a trained model expects.

    Entries that are unknown on either side are not compared.

    >>> import torch
    >>> bag = Bag("a", torch.zeros(1, 2), provenance={"encoder": "resnet18"})
    >>> provenance_differences({"encoder": "uni", "mpp": 0.5}, bag)
    ["encoder 'resnet18' instead of 'uni'"]
    """
    compared = {requirement.key for requirement in REQUIREMENTS if requirement.must_match_model}
    differences = _encoder_differences(expected, bag.provenance)
    if differences is not None:
        compared.discard("encoder")
    return [
        *(differences or ()),
        *_plain_differences(expected, bag, compared),
    ]


def _encoder_differences(
    expected: Mapping[str, Any], provenance: Mapping[str, Any]
) -> list[str] | None:
    """How the features of an encoder differ between tools; None if the table does not know both.

    Encoders of other tools that give the same numbers are the same, whatever their names.
    """
    pair = (expected, provenance)
    if not any(find_equivalent(tool_of(each), each.get("encoder")) for each in pair):
        return None
    wanted, actual = (identity_of(each) for each in pair)
    if wanted is None or actual is None or tool_of(expected) is None:
        return None
    if wanted == actual:
        return []
    why = statement_of(provenance) or statement_of(expected)
    return [f"features of {actual!r} instead of {wanted!r} ({why})"]


def _plain_differences(expected: Mapping[str, Any], bag: Bag, compared: set[str]) -> list[str]:
    return [
        f"{key} {bag.provenance[key]!r} instead of {value!r}"
        for key, value in expected.items()
        if key in compared
        and bag.provenance.get(key) is not None
        and value is not None
        and comparable(bag.provenance[key]) != comparable(value)
    ]


def check_same_provenance(
    expected: Mapping[str, Any], bag: Bag, model: str | Path = "the model"
) -> None:
    """Raise ShapeError if a bag was made in another way than the training bags of a model."""
    found = provenance_differences(expected, bag)
    if (dim := bag.features.shape[1]) != expected["dim"]:
        found.insert(0, f"{dim}-dimensional features instead of {expected['dim']}")
    if not found:
        return
    values = {
        "encoder": card_name(expected) or expected.get("encoder"),
        "size": expected.get("size_px"),
        "mpp": expected.get("mpp"),
    }
    options = "".join(
        f" --{option} {shlex.quote(str(value))}" for option, value in values.items() if value
    )
    remedy = (
        f"scmil encode SLIDES{options} --out WORK"
        if options
        else "with the encoder that made the training bags"
    )
    raise ShapeError(
        f"bag {bag.id!r} has {', '.join(found)}, as in the training bags of {model}. "
        f"Encode the slides again: {remedy}"
    )
