"""The licence of the encoder that a model was trained on, for its model card and report."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from scmil.bags.encoder_names import card_name
from scmil.errors import ScmilError

RANDOM = re.compile(r", random weights of seed \d+$")


def licence_of(contract: Mapping[str, Any]) -> dict[str, Any] | None:
    """The licence of the encoder of a model; None if the encoder has no card.

    >>> found = licence_of({"encoder": "uni_v1", "encoder_tool": "trident", "dim": 1024})
    >>> found["encoder"], found["licence"], found["inherits"]
    ('uni', 'CC-BY-NC-ND 4.0', True)
    """
    from scmil.encoding.encoders import card_of

    encoder = card_name(contract) or contract.get("encoder")
    if not isinstance(encoder, str) or encoder.endswith(".toml") or RANDOM.search(encoder):
        return None
    try:
        card = card_of(encoder)
    except ScmilError:  # another tool's name, or an encoder of another package
        return None
    return {
        "encoder": card.name,
        "licence": card.licence.name,
        "commercial": card.licence.commercial,
        "inherits": card.licence.inherits,
        "sentence": card.licence.sentence(),
    }
