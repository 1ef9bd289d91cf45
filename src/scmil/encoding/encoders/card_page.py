"""The card of an encoder as a page for people, and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from scmil.bags.encoder_names import TOOLS, equivalents
from scmil.encoding.encoders.card import Card
from scmil.encoding.encoders.load_card import checkpoint_of

POOLED = {
    "network": "pooled by the network",
    "cls": "the class token",
    "mean": "the mean of the patch tokens",
    "cls+mean": "the class token joined with the mean of the patch tokens",
    "pooler": "attentional pooling, before the contrastive projection",
    "projection": "after the projection",
}


def card_lines(card: Card) -> list[tuple[str, str]]:
    """The rows of the page: title and text.

    >>> from scmil.encoding.encoders import card_of
    >>> dict(card_lines(card_of("uni2-h")))["tiles"]
    '256 px at 0.5 microns per pixel, resized to 224 px (bilinear)'
    """
    rows = [
        ("encoder", card.summary),
        ("features", f"{card.output.width} numbers per tile: {POOLED[card.output.pool]}"),
        ("tiles", _describe_tiles(card)),
        ("colours", f"mean {_numbers(card.input.mean)}, std {_numbers(card.input.std)}"),
        ("cost", _describe_cost(card)),
        ("weights", _describe_weights(card)),
        ("on this computer", _describe_presence(card)),
        ("licence", card.licence.sentence()),
        ("variants", ", ".join(f"{card.name}:{variant}" for variant in card.variants)),
        ("other tools", _describe_equivalents(card)),
        ("note", card.note),
        ("cite", card.citation),
        ("to encode", f"scmil encode SLIDES --out WORK --encoder {card.name}"),
    ]
    if not card.builder:
        rows = [row for row in rows if row[0] not in ("cost", "on this computer", "to encode")]
        rows.append(("why not here", card.remedy))
    return [row for row in rows if row[1]]


def card_json(card: Card) -> dict[str, Any]:
    """All fields of a card, and whether its weights are on this computer."""
    found = checkpoint_of(card).locate() if card.builder else None
    page = asdict(card)
    page["licence"]["sentence"] = card.licence.sentence()
    page["where"] = None if found is None else str(found)
    page["other_tools"] = [entry._asdict() for entry in equivalents(card.name)]
    return page


def _describe_tiles(card: Card) -> str:
    shown = card.input
    text = f"{shown.tile_px} px"
    if shown.mpp:
        text += f" at {shown.mpp[0]:g} microns per pixel"
        others = ", ".join(f"{value:g}" for value in shown.mpp[1:])
        text += f" (also {others})" if others else ""
    if shown.resize_px:
        text += f", resized to {shown.resize_px} px ({shown.interpolation})"
    if shown.crop_px:
        text += f", cropped to {shown.crop_px} px"
    return text


def _describe_cost(card: Card) -> str:
    millions = card.parameters / 1e6
    size = f"{millions:.0f}" if millions >= 10 else f"{millions:.1f}"
    return (
        f"{size} million parameters, {4 * millions / 1000:.2g} GB in float32; measure the speed "
        f"with: scmil encoder check {card.name} --random 0"
    )


def _describe_weights(card: Card) -> str:
    shown = card.weights
    if shown.url:
        digest = f"sha256 {shown.sha256[:12]}…" if shown.sha256 else "sha256 recorded then"
        return f"{shown.file}, downloaded on first use from {shown.url} ({digest})"
    if shown.hub:
        page = f"https://huggingface.co/{shown.hub}"
        revision = f", revision {shown.revision[:12]}" if shown.revision else ""
        access = ", gated: request access on that page, then log in with: hf auth login"
        return f"{shown.file} of {page}{revision}{access * shown.gated}".strip()
    return f"{shown.file}: {shown.hint}" if shown.file else shown.hint


def _describe_presence(card: Card) -> str:
    checkpoint = checkpoint_of(card)
    if found := checkpoint.locate():
        return f"yes, {found}"
    if not (checkpoint.url or checkpoint.hub):
        return f"no. {checkpoint.remedy()}"
    once = ", once you have access and are logged in" * checkpoint.gated
    return f"no; downloaded on first use{once}. Without internet access: {checkpoint.remedy()}"


def _describe_equivalents(card: Card) -> str:
    return "; ".join(
        f"{TOOLS.get(entry.tool, entry.tool)} {entry.encoder} "
        f"{'is the same' if entry.same else 'differs'}" + (f" ({entry.note})" if entry.note else "")
        for entry in equivalents(card.name)
    )


def _numbers(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:.4g}" for value in values)
