from __future__ import annotations

import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ramp_slides import KINDS, SIZE, expected, tiny, write
from slide_files import disc, ramp, rendered, write_dicom, write_svs

import scmil.slides
from scmil.errors import SlideError
from scmil.slides import Slide, open_slide, slide_metadata

REAL = Path(__file__).parents[2] / "data" / "slides" / "cmu-1-small-region.svs"


@pytest.fixture(scope="module", params=KINDS)
def ramp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("ramp"), request.param, ramp)


@pytest.mark.parametrize("slide_mpp", [0.25, 0.243, 0.5])
@pytest.mark.parametrize("mpp", [0.125, 0.25, 0.499, 0.5, 0.7, 1.0, 2.0])
def test_a_window_holds_what_lies_there_at_any_resolution(
    ramp_path: Path, slide_mpp: float, mpp: float
) -> None:
    with open_slide(ramp_path, mpp=slide_mpp) as slide:
        for xy in [(0, 0), (33, 17), (130.6, 50.25)]:
            size = min(64, int(800 * slide_mpp / mpp))
            difference = slide.read(xy, size, mpp).astype(float) - expected(
                xy, size, mpp / slide_mpp
            )
            # At the very edge of the slide an average has one side only.
            inner = difference[2:-2, 2:-2]
            assert np.abs(difference).max() < 3
            assert np.abs(inner).max() < 2  # OpenSlide interpolates between pixels in whole numbers
            assert np.abs(inner.mean((0, 1))).max() < 0.5  # averages round halves upwards


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mpp", [0.1, 0.25, 0.3, 0.5, 0.7, 1.0, 1.9, 2.0])
def test_nothing_is_shifted_at_any_resolution(tmp_path: Path, kind: str, mpp: float) -> None:
    centre, corner = (603.3, 551.8), (401, 349)
    with open_slide(write(tmp_path, kind, disc(centre, radius=70)), mpp=0.25) as slide:
        factor = mpp / 0.25
        light = slide.read(corner, round(440 / factor), mpp)[..., 0].astype(float)
    y, x = (np.indices(light.shape) + 0.5) * factor
    met = corner[0] + (light * x).sum() / light.sum(), corner[1] + (light * y).sum() / light.sum()
    np.testing.assert_allclose(met, centre, atol=0.1)


def test_the_own_resolution_is_not_resampled(ramp_path: Path) -> None:
    with open_slide(ramp_path, mpp=0.25) as slide:
        pixels = slide.read((31, 57), (90, 40), mpp=0.25)
        np.testing.assert_array_equal(pixels, slide.region(0, (31, 57), (90, 40)))
        np.testing.assert_array_equal(pixels, rendered(ramp, SIZE)[57:97, 31:121])


def test_neighbouring_windows_have_no_seam(ramp_slide: Slide) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (905, 1101, 3), dtype=np.uint8)
    ramp_slide._reader.region = lambda level, xy, size: noise[xy[1] :, xy[0] :][
        : size[1], : size[0]
    ]  # type: ignore[method-assign]
    whole = ramp_slide.read((100, 100), (200, 100), mpp=0.45).astype(int)
    right = ramp_slide.read((100 + 100 * 1.8, 100), 100, mpp=0.45)
    assert np.abs(whole[:, 100:] - right).max() <= 1


def test_outside_the_slide_is_white(ramp_path: Path) -> None:
    with open_slide(ramp_path, mpp=0.25) as slide:
        for mpp, factor in [(0.25, 1), (0.5, 2), (0.35, 1.4)]:
            pixels = slide.read((-40 * factor, -30 * factor), 80, mpp)
            assert (pixels[:29] == 255).all()
            assert (pixels[:, :39] == 255).all()
            assert (
                np.abs(
                    pixels[32:, 42:].astype(float)
                    - expected((2 * factor, 2 * factor), 48, factor)[:48, :38]
                ).max()
                < 1.1
            )
        assert (slide.read((5000, 5000), 10, mpp=0.7) == 255).all()
        assert (slide.read((-5000, 10), 10, mpp=0.5) == 255).all()


def test_reads_from_several_threads_are_right(ramp_path: Path) -> None:
    with open_slide(ramp_path, mpp=0.25) as slide, ThreadPoolExecutor(4) as pool:
        places = [(x, y) for x in range(0, 500, 70) for y in range(0, 400, 70)]
        many = list(pool.map(lambda xy: slide.read(xy, 50, mpp=0.6), places))
    with open_slide(ramp_path, mpp=0.25) as slide:
        for place, pixels in zip(places, many, strict=True):
            np.testing.assert_array_equal(pixels, slide.read(place, 50, mpp=0.6))


def test_a_thumbnail_is_the_whole_slide(ramp_path: Path) -> None:
    with open_slide(ramp_path) as slide:  # no resolution is needed
        pixels = slide.thumbnail(100)
        assert pixels.shape == (82, 100, 3)
        assert slide.thumbnail(5000).shape == (905, 1101, 3)
        x, y = (np.arange(100) + 0.5) * 11.01, (np.arange(82) + 0.5) * 905 / 82
        assert np.abs(pixels.astype(float) - ramp(*np.meshgrid(x, y)))[2:-2, 2:-2].max() < 1.1


def test_the_nearest_finer_level_is_read(
    ramp_slide: Slide, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels: list[int] = []
    region = ramp_slide._reader.region
    monkeypatch.setattr(
        ramp_slide._reader,
        "region",
        lambda level, xy, size: levels.append(level) or region(level, xy, size),
    )
    for mpp in (0.1, 0.25, 0.45, 0.4999, 0.5, 0.9, 1.0, 3.0):
        ramp_slide.read((0, 0), 20, mpp)
    assert levels == [0, 0, 0, 1, 1, 1, 2, 2]


@pytest.mark.parametrize(("size", "mpp"), [(0, 0.5), ((5, -1), 0.5), (5, 0.0), (5, float("nan"))])
def test_impossible_windows_are_rejected(ramp_slide: Slide, size: Any, mpp: float) -> None:
    with pytest.raises(
        SlideError, match=r"slide 'a': cannot read .* Sizes and mpp must be positive"
    ):
        ramp_slide.read((0, 0), size, mpp)


def test_a_level_that_is_not_there_is_rejected(ramp_slide: Slide) -> None:
    for level in (3, -1):
        with pytest.raises(SlideError, match=f"no level {level}: it has 3 levels, numbered from 0"):
            ramp_slide.region(level, (0, 0), (5, 5))
    with pytest.raises(SlideError, match="longest_px = 0"):
        ramp_slide.thumbnail(0)


def _corner(slide: Slide) -> tuple[float, list[int]]:
    return slide.mpp, slide.read((50, 50), 1, mpp=0.3)[0, 0].tolist()


def test_a_slide_goes_to_another_process(ramp_slide: Slide) -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        assert pool.submit(_corner, ramp_slide).result() == _corner(ramp_slide)


def test_a_description_is_plain_data(tmp_path: Path) -> None:
    levels = [rendered(ramp, (1024, 600), by) for by in (1, 2)]
    with open_slide(write_svs(tmp_path / "a.svs", levels, mpp=0.25)) as slide:
        metadata = json.loads(json.dumps(slide_metadata(slide)))
    assert (metadata["id"], metadata["format"], metadata["reader"]) == ("a", "aperio", "openslide")
    assert metadata["bytes"] == (tmp_path / "a.svs").stat().st_size
    assert (metadata["size_px"], metadata["size_mm"], metadata["mpp"], metadata["mpp_source"]) == (
        [1024, 600],
        [0.256, 0.15],
        0.25,
        "file",
    )
    assert [level["mpp"] for level in metadata["levels"]] == [0.25, 0.5]
    assert metadata["tiles_that_fit"] == {"size_px": 256, "mpp": 0.5, "count": 2}
    assert (metadata["storage_tile"], metadata["warnings"], metadata["associated_images"]) == (
        [64, 64],
        [],
        [],
    )


def test_a_description_does_without_a_resolution(tmp_path: Path) -> None:
    metadata = slide_metadata(tiny(tmp_path / "a.tif", software="Scan 7"))
    assert (
        metadata["mpp"],
        metadata["size_mm"],
        metadata["tiles_that_fit"],
        metadata["mpp_source"],
    ) == (
        None,
        None,
        None,
        "unknown",
    )
    assert metadata["scanner"] == {"tiff.Software": "Scan 7"}
    assert repr(open_slide(tmp_path / "a.tif")) == "Slide('a', 90 x 70 px, mpp unknown, TIFF)"


def test_a_dicom_folder_is_described_as_one_slide(tmp_path: Path) -> None:
    path = write_dicom(tmp_path / "slide", rendered(ramp, (90, 70)))
    with open_slide(tmp_path / "slide") as slide:
        metadata = slide_metadata(slide)
    assert (metadata["id"], metadata["bytes"], metadata["objective"]) == (
        "slide",
        path.stat().st_size,
        40,
    )


def test_a_real_slide() -> None:
    with open_slide(REAL) as slide:
        assert (slide.size, slide.mpp, slide.mpp_source, slide.objective) == (
            (2220, 2967),
            0.499,
            "file",
            20,
        )
        assert (slide.vendor, slide.warnings, slide.storage_tile) == ("aperio", (), (240, 240))
        assert slide.associated == ("label", "macro", "thumbnail")
        fine, coarse = (
            slide.read((512, 512), 512, mpp=0.499),
            slide.read((512, 512), 256, mpp=0.998),
        )
        means = fine.reshape(256, 2, 256, 2, 3).mean((1, 3))
        assert np.abs(coarse - means).max() <= 0.51
        # 0.2 % further: the same picture, a little blurred.
        near = slide.read((512, 512), 256, mpp=1.0)
        assert np.abs(near.astype(float) - means).mean() < 6
        assert slide.thumbnail(300).shape == (300, 224, 3)


def test_the_package_knows_no_other_names() -> None:
    with pytest.raises(AttributeError, match="no attribute 'tisue'"):
        scmil.slides.tisue
    assert {"open_slide", "find_tissue", "tile"} <= set(scmil.slides.__all__)
