"""The overview page of all heatmaps in a folder."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

from scmil.errors import SlideError
from scmil.report.html.contact_sheet import Thumbnail, contact_sheet
from scmil.slides.readers import Damaged
from scmil.slides.readers.by_pillow import opened_picture
from scmil.stats.localisation import is_evidence
from scmil.viz.heatmaps.captions import (
    attention_warning,
    has_one_class,
    meaning,
    predicted_words,
)
from scmil.viz.heatmaps.slide_files import Maps, read_sheet_info

CARD_PX = 480


def index_page(maps: Maps, model: str, failed: Mapping[str, str]) -> str:
    """The heatmaps, sorted by probability, and below them the slides that failed."""
    page, classes = maps.scores.page, maps.scores.page["classes"]
    answer = "predicted" if len(classes) == 1 else "probability of"
    cards = []
    for slide_id, facts in sorted(
        page["slides"].items(), key=lambda item: (-item[1]["probabilities"][-1], item[0])
    ):
        path, label, predicted = (
            maps.picture(slide_id),
            maps.labels.get(slide_id),
            predicted_words(classes, facts["probabilities"], facts["predicted"], maps.task),
        )
        if path.is_file():
            one = len(classes) == 1
            label = label if has_one_class(maps.task) else None
            known = f"label: {label or 'unknown'}, " if has_one_class(maps.task) else ""
            lines = [
                *([] if one else [f"{known}predicted: {predicted}"]),
                f"{answer} {classes[-1]}: {facts['probabilities'][-1]:.3f}",
                f"effective tiles: {facts['effective_tiles']:.1f} of {facts['tiles']:,}",
                *filter(
                    None,
                    [attention_warning(facts["effective_tiles"], facts["tiles"]).partition(":")[0]],
                ),
                *([f"split: {maps.parts[slide_id]}"] if slide_id in maps.parts else []),
                *(
                    [f"completeness error of the evidence: {facts['evidence_error']:.1e}"]
                    if is_evidence(maps.score) and "evidence_error" in facts
                    else []
                ),
            ]
            tiles = maps.tile_sheet(slide_id)
            links = [("most and least decisive tiles", f"{tiles.parent.name}/{tiles.name}")]
            verdict = "" if label is None else "right" if label == predicted else "wrong"
            cards.append(
                Thumbnail(
                    slide_id,
                    path.name,
                    _small(path),
                    lines,
                    verdict,
                    links if maps.has_tile_sheets else [],
                )
            )
    colours = (
        f"Colours {maps.same.description}."
        if maps.same
        else "Each slide has its own colour scale, which is on its sheet."
    )
    ends = (
        "Blue is negative, orange is positive, zero is white."
        if maps.score.startswith("atom:") or is_evidence(maps.score)
        else "Dark blue is low, yellow is high."
    )
    about = [
        f"{meaning(maps.score, classes, maps.task)}. {ends} {colours} Click a "
        "slide for its sheet, with the slide beside the heatmap. Red outlines are annotations.",
        f"Sorted by the {answer} {classes[-1]}. Effective tiles: the number of tiles that "
        "share the attention, as the exponential of its entropy. For research use only. Not a "
        "medical device.",
    ]
    return contact_sheet(f"Heatmaps of {model}: {maps.score}", about, cards, list(failed.items()))


def _small(path: Path) -> bytes:
    """The heatmap of a sheet as a small JPEG."""
    try:
        with opened_picture(path, "PNG") as picture:
            panel = picture.crop(read_sheet_info(path).get("panel")).convert("RGB")
    except Damaged as error:
        raise SlideError(
            f"{path} is damaged: {error}. Delete it and repeat the command to draw it again."
        ) from None
    panel.thumbnail((CARD_PX, CARD_PX))
    content = io.BytesIO()
    panel.save(content, "JPEG", quality=80)
    return content.getvalue()
