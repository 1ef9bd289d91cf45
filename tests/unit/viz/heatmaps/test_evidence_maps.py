"""Maps of evidence: signs, completeness error, decisive tiles, and the spread over models."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("openslide")
pytest.importorskip("PIL")
from heatmap_case import BACK, SIDE, chosen, slide_bag
from PIL import Image

from scmil import Bag, build_model, studies
from scmil.bags.bag import BagSet
from scmil.errors import OptionError
from scmil.models.score_files import open_scores
from scmil.models.tile_scores import Scores, score_bag
from scmil.viz.drawing.colour_scale import scale_for
from scmil.viz.heatmaps import draw_heatmaps
from scmil.viz.heatmaps.captions import evidence_lines, evidence_warning, meaning
from scmil.viz.heatmaps.decisive import choose_decisive_tiles, draw_decisive_tiles


def scored(name: str = "abmil") -> Scores:
    model = build_model(8, 2, name, embed=[8], seed=0)
    bag = Bag("s", torch.randn(9, 8, generator=torch.Generator().manual_seed(0)),
              xy=SIDE * torch.arange(18).reshape(9, 2))  # fmt: skip
    return score_bag(model, bag, ("normal", "tumour"), evidence=True)


def test_zero_evidence_is_in_the_middle_of_the_scale() -> None:
    scale = scale_for("evidence:tumour", [np.array([-1.0, 0.5, 4.0])])
    assert scale.signed
    assert scale.low == -scale.high  # type: ignore[operator]
    below, zero, above = scale.colours(scale.shares(np.array([-4.0, 0.0, 4.0]))).tolist()
    assert zero == [245, 245, 245]
    assert below[2] > below[0]  # blue
    assert above[0] > above[2]  # orange


def test_the_caption_states_sign_sum_and_completeness_error() -> None:
    scores = scored()
    found = scores.evidence
    assert found is not None
    sign, total = evidence_lines(scores, "evidence:tumour")
    assert sign.startswith("Orange tiles raise the logit of tumour, blue tiles lower it")
    assert f"Logit {found.logits[1]:.4g} = constant {found.constant[1]:.4g}" in total
    assert f"completeness error {abs(found.errors[1]):.1e} (exact)" in total
    assert evidence_lines(scores, "attention") == []
    assert evidence_warning(scores, "evidence:tumour") == ""
    assert meaning("evidence:normal", scores.classes).startswith("Evidence for normal")


def test_the_error_on_the_map_is_that_of_the_stored_numbers() -> None:
    scores = scored()
    assert scores.evidence is not None
    wrong = replace(scores.evidence, tiles=scores.evidence.tiles + np.float32(1))
    text = evidence_lines(replace(scores, evidence=wrong), "evidence:tumour")[1]
    assert "completeness error 9.0e+00" in text
    warning = evidence_warning(replace(scores, evidence=wrong), "evidence:tumour")
    assert warning.startswith("The evidence does not sum to the logit of tumour: the error is 9")


def test_a_class_without_evidence_is_explained() -> None:
    [text] = evidence_lines(scored("dsmil"), "evidence:normal")
    assert "the model has one score for two classes" in text


def test_no_tile_is_decisive_for_and_against() -> None:
    found = choose_decisive_tiles(np.array([1.0, 2.0, 0.1]))
    assert {name: tiles.tolist() for name, tiles in found.items()} == {
        "for": [1, 0, 2],
        "against": [],
        "neither": [2, 0, 1],
    }


def test_decisive_tiles_are_cropped_at_their_positions(tmp_path: Path) -> None:
    scores = scored()
    best = int(scores.of("evidence").argmax())
    x, y = scores.xy[best].tolist()
    picture = Image.new("RGB", (20 * SIDE, 20 * SIDE), BACK)
    side = int(scores.side)
    picture.paste((200, 0, 0), (x, y, x + side, y + side))
    picture.save(tmp_path / "s.png")
    sheet = np.asarray(draw_decisive_tiles(tmp_path / "s.png", scores, "evidence", "title"))
    red = np.argwhere((np.abs(sheet.astype(int) - (200, 0, 0)) < 20).all(-1))
    assert len(red) >= 150 * 150 * 0.9  # one whole tile
    assert red[:, 1].max() < 200  # the first of its row


def test_evidence_is_drawn_with_sheets_of_tiles(home: Path, model: Path) -> None:
    drawn = draw_heatmaps(model, chosen(home), score="evidence:tumour", slides=home / "slides")
    assert not drawn.failed
    assert drawn.out.name == "evidence-tumour"
    for slide_id in ("s00", "s01", "s02"):
        assert (drawn.out / "tiles" / f"{slide_id}.png").is_file()
    page = (drawn.out / "index.html").read_text()
    assert 'href="tiles/s01.png"' in page
    assert "completeness error of the evidence: " in page
    assert "Blue is negative, orange is positive" in page
    features = json.loads((drawn.out / "s01.geojson").read_text())["features"]
    scores = open_scores(model)["s01"]
    for i, feature in enumerate(features):
        measured = feature["properties"]["measurements"]
        assert measured["evidence_tumour"] == pytest.approx(scores.of("evidence")[i], rel=1e-5)
    again = draw_heatmaps(model, chosen(home), score="evidence:tumour", slides=home / "slides")
    assert len(again.outcome.kept) == 3
    (drawn.out / "tiles" / "s01.png").unlink()
    again = draw_heatmaps(model, chosen(home), score="evidence:tumour", slides=home / "slides")
    assert again.outcome.done == ("s01",)


def test_without_slides_there_are_no_sheets_of_tiles(home: Path, model: Path) -> None:
    drawn = draw_heatmaps(model, chosen(home), score="evidence")
    assert not (drawn.out / "tiles").exists()
    assert "decisive tiles" not in (drawn.out / "index.html").read_text()


def test_the_spread_is_the_standard_deviation_over_models(
    home: Path, model: Path, tmp_path: Path
) -> None:
    data = studies.open_data(home / "bags", home / "labels.csv")
    others = []
    for seed in (1, 2):
        others.append(tmp_path / f"model_{seed}")
        studies.train(data, others[-1], aggregator="abmil", epochs=1, seed=seed)
    drawn = draw_heatmaps([model, *others], chosen(home), tmp_path / "out", score="evidence")
    every = [open_scores(folder)["s01"].of("evidence") for folder in (model, *others)]
    features = json.loads((tmp_path / "out" / "s01.geojson").read_text())["features"]
    spread = [feature["properties"]["measurements"]["spread"] for feature in features]
    assert spread == pytest.approx(np.std(every, axis=0, ddof=1), rel=1e-5)
    alone = draw_heatmaps(model, chosen(home), tmp_path / "alone", score="evidence")
    widths = []
    for each in (drawn, alone):
        with Image.open(each.out / "s01.png") as picture:
            widths.append(picture.width)
    assert widths[0] > widths[1]  # a further panel
    with pytest.raises(OptionError, match="the model has no sparse coding"):
        draw_heatmaps([model, *others], chosen(home), tmp_path / "atom", score="atom:1")


def test_the_spread_is_a_second_overlay(home: Path, model: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(model, tmp_path / "other"))
    slides, out, bags = home / "slides", tmp_path / "out", chosen(home)
    draw_heatmaps([model, other], bags, out, score="attention", slides=slides, tiff=True)
    sizes, opaque = [], []
    for path in (out / "s01.tiff", out / "spread" / "s01.tiff"):
        with Image.open(path) as picture:
            sizes.append(picture.size)
            pixels = np.asarray(picture.convert("RGBA"))
        opaque.append(pixels[..., 3] > 0)
    assert sizes[0] == sizes[1]
    assert opaque[0].any()
    assert np.array_equal(*opaque)
    # Two equal models have no spread: all tiles have one colour.
    assert len(np.unique(pixels[opaque[1]], axis=0)) == 1
    again = draw_heatmaps([model, other], bags, out, score="attention", slides=slides, tiff=True)
    assert not again.outcome.done
    (out / "spread" / "s01.tiff").unlink()
    again = draw_heatmaps([model, other], bags, out, score="attention", slides=slides, tiff=True)
    assert again.outcome.done == ("s01",)


def test_a_model_that_scores_other_tiles_fails(home: Path, model: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(model, tmp_path / "other"))
    draw_heatmaps(model, BagSet([slide_bag(0)]), score="evidence")
    moved = slide_bag(0)
    draw_heatmaps(other, BagSet([replace(moved, xy=moved.xy + 64)]), score="evidence")  # type: ignore[operator]
    from scmil.viz.heatmaps.slide_files import Maps
    from scmil.viz.heatmaps.sources import Sources

    sources = Sources.of(None, None, tmp_path / "out")
    maps = Maps(open_scores(model), sources, tmp_path / "out", "evidence", None, False, False,
                {}, {}, others=[open_scores(other)])  # fmt: skip
    with pytest.raises(Exception, match="has other tiles of slide 's00'"):
        maps.draw("s00")
