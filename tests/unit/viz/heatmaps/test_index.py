"""The overview page of heatmaps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("openslide")
pytest.importorskip("PIL")
from heatmap_case import SHOWN, chosen, slide_bag

from scmil.bags.bag import BagSet
from scmil.models.score_files import open_scores
from scmil.report.html.contact_sheet import Thumbnail, contact_sheet
from scmil.viz.heatmaps import draw_heatmaps


def test_labels_come_from_the_model_the_bags_or_a_table(home: Path, model: Path) -> None:
    out = draw_heatmaps(model, chosen(home), labels={"s02": "tumour"}).out
    text = (out / "index.html").read_text()
    for slide_id, label in (("s00", "normal"), ("s01", "tumour"), ("s02", "tumour")):
        assert (
            f"label: {label}, predicted" in text.split(f">{slide_id}</a>")[1].split("</figure>")[0]
        )
    named = BagSet([replace(slide_bag(0), label=0)], ["from the bag"])
    assert "label: from the bag" in (draw_heatmaps(model, named).out / "index.html").read_text()


def test_the_index_is_sorted_by_probability_and_loads_nothing(home: Path, model: Path) -> None:
    out = draw_heatmaps(model, chosen(home)).out
    text = (out / "index.html").read_text()
    scores = open_scores(model)
    order = sorted(SHOWN, key=lambda slide_id: -scores[slide_id].probabilities[-1])
    assert [text.index(f">{slide_id}</a>") for slide_id in order] == sorted(
        text.index(f">{slide_id}</a>") for slide_id in SHOWN
    )
    assert "http:" not in text
    assert "https:" not in text
    assert "<script" not in text
    assert "default-src &#x27;none&#x27;" in text


def test_names_on_the_index_are_escaped() -> None:
    bad = "<img src=x onerror=alert(1)>"
    page = contact_sheet(
        bad, [bad], [Thumbnail(bad, f'{bad}".png', b"", [bad], "wrong")], [(bad, bad)]
    )
    assert "<img src=x" not in page
    # All places, and nowhere as markup.
    assert page.count("&lt;img src=x onerror=alert(1)&gt;") == 8
    assert 'href="%3Cimg%20src%3Dx' in page


def test_the_same_scale_is_stated_and_shared(home: Path, model: Path) -> None:
    drawn = draw_heatmaps(model, chosen(home), score="ratio", same_scale=True)
    known = np.concatenate([open_scores(model)[slide_id].of("ratio") for slide_id in SHOWN])
    low, high = np.percentile(known, [1, 99])
    assert drawn.scale == (
        f"by value from {low:.3g} to {high:.3g}, percentiles 1 to 99 of all slides, the same for "
        "all"
    )
    assert drawn.scale in (drawn.out / "index.html").read_text()
