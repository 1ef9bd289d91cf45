"""All maps of a folder on one page."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

from scmil.errors import SlideError
from scmil.viz.heatmaps.slide_files import Maps, made_of
from scmil.viz.heatmaps.captions import meaning, warning
from scmil.report.html.contact_sheet import Card, contact_sheet
from scmil.slides.readers import Damaged
from scmil.slides.readers.by_pillow import opened_picture

CARD_PX = 480


def index_page(maps: Maps, model: str, failed: Mapping[str, str]) -> str:
    """The maps that are there, the most probable slide first, and below them what failed."""
    page, classes = maps.scores.page, maps.scores.page["classes"]
    cards = []
    for id, facts in sorted(page["slides"].items(), key=lambda item: (-item[1]["probabilities"][-1], item[0])):
        path, label, said = maps.picture(id), maps.labels.get(id), classes[facts["predicted"]]
        if path.is_file():
            lines = [
                f"{classes[-1]} {facts['probabilities'][-1]:.3f}",
                f"label {label or 'unknown'}, the model says {said}",
                f"{facts['effective_tiles']:.1f} of {facts['tiles']:,} tiles share the attention",
                *filter(None, [warning(facts["effective_tiles"], facts["tiles"]).partition(":")[0]]),
                *([f"{maps.parts[id]} part"] if id in maps.parts else []),
            ]
            verdict = "" if label is None else "right" if label == said else "wrong"
            cards.append(Card(id, path.name, _small(path), lines, verdict))
    scale = f"Colours {maps.same.words}." if maps.same else "The scale is on each picture."
    order = f"Sorted by the probability of {classes[-1]}."
    about = f"{meaning(maps.score, classes)}. {scale} {order} For research only."
    return contact_sheet(f"{maps.score} of {model}", [about], cards, list(failed.items()))


def _small(path: Path) -> bytes:
    """The map of a sheet, as a small JPEG."""
    try:
        with opened_picture(path, "PNG") as picture:
            panel = picture.crop(made_of(path).get("panel")).convert("RGB")
    except Damaged as error:
        raise SlideError(f"{path} is damaged: {error}. Delete it, and start again: it is drawn anew.") from None
    panel.thumbnail((CARD_PX, CARD_PX))
    content = io.BytesIO()
    panel.save(content, "JPEG", quality=80)
    return content.getvalue()
