"""The texts on a heatmap sheet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("openslide")
pytest.importorskip("PIL")
from heatmap_case import chosen, slide_bag
from PIL import Image

from scmil import studies
from scmil.models.tile_scores import score_bag
from scmil.viz.heatmaps import draw_heatmaps
from scmil.viz.heatmaps.captions import annotated, attention_warning, heading, meaning, numbers


def test_collapsed_and_flat_attention_have_a_warning() -> None:
    assert "has collapsed: 1.0 of 900 tiles" in attention_warning(1.0, 900)
    assert attention_warning(40, 900) == ""
    assert "is flat: 899.0 of 900" in attention_warning(899, 900)
    assert attention_warning(1, 1) == ""  # one tile cannot share
    assert attention_warning(2.5, 8) == ""  # few of few are no collapse


def test_the_warning_is_on_the_sheet(
    home: Path, model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The frame of the warning is drawn if, and only if, there is a warning."""
    from scmil.viz.heatmaps import slide_files

    heights = []
    for words in ("", "The attention has collapsed."):
        monkeypatch.setattr(slide_files, "attention_warning", lambda *_, words=words: words)
        out = draw_heatmaps(model, chosen(home, ["s00"]), tmp_path / f"maps{len(words)}").out
        with Image.open(out / "s00.png") as picture:
            heights.append(picture.height)
            frame = (np.asarray(picture) == (255, 243, 214)).all(-1).sum()
        assert (frame > 1000) == bool(words)
    assert heights[1] > heights[0]


def test_the_captions_have_label_prediction_and_numbers(home: Path, model: Path) -> None:
    network, _ = studies.load_trained_model(model)
    scores = score_bag(network, slide_bag(1), ("normal", "tumour"), 0.25)
    sure = replace(scores, probabilities=np.array([0.1, 0.9]))
    assert heading(sure, "tumour") == "s01  ·  label: tumour  ·  predicted: tumour (right)"
    assert heading(sure, "normal").endswith("(wrong)")
    assert heading(sure, None) == "s01  ·  label: unknown  ·  predicted: tumour"
    chances, tiles = numbers(sure, 2.0)
    assert chances == "Probability: tumour 0.900, normal 0.100 (threshold 0.250)."
    assert tiles.startswith("12 tiles of 64 pixels (128 microns).")
    assert f"{sure.effective_tiles:.1f}" in tiles
    assert annotated("s01.xml", 3) == "Red: 3 outlines of s01.xml."
    assert all(meaning(kind, ["normal", "tumour"]) for kind in sure.kinds())


def test_several_labels_are_predicted_independently(model: Path) -> None:
    network, _ = studies.load_trained_model(model)
    sure = score_bag(network, slide_bag(1), ("normal", "tumour"))
    none = replace(sure, probabilities=np.array([0.4, 0.3]))
    both = replace(sure, probabilities=np.array([0.9, 0.6]))
    assert heading(none, None, "multilabel") == "s01  ·  predicted: none"
    assert heading(both, None, "multilabel") == "s01  ·  predicted: normal+tumour"
    assert heading(both, None, "class,class") == "s01  ·  predicted: normal 0.9, tumour 0.6"
    assert heading(none, None, "ordinal") == "s01  ·  label: unknown  ·  predicted: normal"


def test_evidence_for_grades_is_that_for_the_lowest_threshold() -> None:
    words = meaning("evidence", ["0", "1", "2", "3"], "ordinal")
    assert words == "Evidence for 1 or higher: contribution of each tile to its logit"
