from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from slide_files import Picture, disc, painted, ramp, write_dicom, write_svs, write_tiff

import scmil.slides
from scmil.errors import SlideError
from scmil.slides import Slide, describe, find_slides, open_slide, window
from scmil.slides.readers import Facts
from scmil.slides.resolution import resolve

pytest.importorskip("openslide", reason="the extra 'slides' is not installed")
tifffile = pytest.importorskip("tifffile", reason="the extra 'slides' is not installed")
Image = pytest.importorskip("PIL.Image", reason="the extra 'slides' is not installed")

REAL = Path(__file__).parents[4] / "shared" / "data" / "slides" / "cmu-1-small-region.svs"
SIZE = (1101, 905)  # odd, and the sizes of levels are rounded down: what they are 1 / 2.002 of is exactly 1 / 2 of
KINDS = ["svs", "tiff", "one level", "png"]


def write(folder: Path, kind: str, picture: Picture) -> Path:
    levels = [painted(picture, SIZE, by) for by in (1, 2, 4)]
    if kind == "svs":
        return write_svs(folder / "a.svs", levels, mpp=None, objective=None)
    if kind == "png":
        Image.fromarray(levels[0]).save(folder / "a.png")
        return folder / "a.png"
    return write_tiff(folder / "a.tif", levels if kind == "tiff" else levels[:1], mpp=None)


@pytest.fixture(scope="module", params=KINDS)
def ramp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("ramp"), request.param, ramp)


@pytest.fixture
def ramp_slide(tmp_path: Path) -> Iterator[Slide]:
    with open_slide(write(tmp_path, "tiff", ramp), mpp=0.25) as slide:
        yield slide


def expected(xy: tuple[float, float], size: int, factor: float) -> np.ndarray:
    """What the ramp has at the centre of each pixel of a window."""
    at = (np.arange(size) + 0.5) * factor
    x, y = np.meshgrid(xy[0] + at, xy[1] + at)
    return ramp(x, y)


# ------------------------------------------------------------------------------------------------- pixels, exactly


@pytest.mark.parametrize("slide_mpp", [0.25, 0.243, 0.5])
@pytest.mark.parametrize("mpp", [0.125, 0.25, 0.499, 0.5, 0.7, 1.0, 2.0])
def test_a_window_holds_what_lies_there_at_any_resolution(ramp_path: Path, slide_mpp: float, mpp: float) -> None:
    with open_slide(ramp_path, mpp=slide_mpp) as slide:
        for xy in [(0, 0), (33, 17), (130.6, 50.25)]:
            size = min(64, int(800 * slide_mpp / mpp))
            difference = slide.read(xy, size, mpp).astype(float) - expected(xy, size, mpp / slide_mpp)
            inner = difference[2:-2, 2:-2]  # at the very edge of the slide an average has one side only
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
        np.testing.assert_array_equal(pixels, painted(ramp, SIZE)[57:97, 31:121])


def test_neighbouring_windows_have_no_seam(ramp_slide: Slide) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (905, 1101, 3), dtype=np.uint8)
    ramp_slide._reader.region = lambda level, xy, size: noise[xy[1] :, xy[0] :][: size[1], : size[0]]  # type: ignore[method-assign]
    whole = ramp_slide.read((100, 100), (200, 100), mpp=0.45).astype(int)
    right = ramp_slide.read((100 + 100 * 1.8, 100), 100, mpp=0.45)
    assert np.abs(whole[:, 100:] - right).max() <= 1


def test_a_window_too_large_for_memory_is_read_in_parts(ramp_slide: Slide, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = ramp_slide.read((5, 5), (500, 301), mpp=0.37).astype(int)
    largest = 0
    region = ramp_slide._reader.region

    def watched(level: int, xy: Any, size: tuple[int, int]) -> Any:
        nonlocal largest
        largest = max(largest, size[0] * size[1])
        return region(level, xy, size)

    monkeypatch.setattr(window, "BLOCK_PX", 5000)
    monkeypatch.setattr(ramp_slide._reader, "region", watched)
    in_parts = ramp_slide.read((5, 5), (500, 301), mpp=0.37)
    assert np.abs(in_parts - at_once).max() <= 1
    assert largest < 8000  # the margins come on top


def watch(slide: Slide, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The sizes of all regions that are read from now on."""
    sizes: list[tuple[int, int]] = []
    region = slide._reader.region

    def watched(level: int, xy: Any, size: tuple[int, int]) -> Any:
        sizes.append(size)
        return region(level, xy, size)

    monkeypatch.setattr(slide._reader, "region", watched)
    return sizes


@pytest.mark.parametrize("kind", ["one level", "png"])
@pytest.mark.parametrize("size", [(1, 1), (2, 1), (1, 2), (4, 2)])
def test_however_few_pixels_are_asked_for_a_flat_slide_is_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, size: tuple[int, int]
) -> None:
    with open_slide(write(tmp_path, kind, ramp), mpp=1.0) as slide:
        monkeypatch.setattr(window, "BLOCK_PX", 20_000)
        sizes = watch(slide, monkeypatch)
        pixels = window.read_window(slide._reader, (0, 0, 1024, 896), size)
    x, y = ((np.arange(n) + 0.5) * side / n for n, side in zip(size, (1024, 896), strict=True))
    assert np.abs(pixels - ramp(*np.meshgrid(x, y))).max() < 1
    assert max(width * height for width, height in sizes) <= 2.2 * 20_000
    assert sum(width * height for width, height in sizes) < 12 * SIZE[0] * SIZE[1]


def test_a_flat_slide_of_60000_pixels_is_never_read_at_once() -> None:
    """The lowest level of the viewer's pyramid is one pixel; it took 23.5 GB."""

    class Flat:
        facts = Facts("fake", "fake", ((60_000, 60_000),), (1.0,))
        rows = np.full((1, 60_000, 3), 90, np.uint8)
        read = 0

        def region(self, level: int, xy: Any, size: tuple[int, int]) -> Any:
            assert size[0] * size[1] <= 2**24
            self.read += size[0] * size[1]
            return self.rows[:, : size[0]]  # one row for all of a band, so that the test is quick

        def origin(self, level: int, at: int) -> float:
            return float(at)

        def close(self) -> None: ...

    reader = Flat()
    pixel = window.read_window(reader, (0, 0, 65_536, 65_536), (1, 1))
    covered = len(range(0, 60_000, 2**24 // 60_000)) / 60_000  # by one row a band
    share = (60_000 / 65_536) ** 2
    assert pixel.ravel().tolist() == [round(90 * covered * share + 255 * (1 - share))] * 3
    assert reader.read == 60_000**2


def test_a_window_far_larger_than_the_slide_is_white_around_it_and_quick(ramp_slide: Slide) -> None:
    start = time.monotonic()
    pixels = ramp_slide.read((-5e14, -5e14), (5, 5), mpp=0.25 * 1e15)
    assert (pixels == 255).all()
    assert (ramp_slide.read((1e6, 1e6), (200, 200), mpp=0.25 * 1e9) == 255).all()
    pixel = ramp_slide.read((0, 0), 1, mpp=0.25 * 10 * 1101)
    share = SIZE[0] * SIZE[1] / (10 * 1101) ** 2
    inside = ramp(np.array(SIZE[0] / 2), np.array(SIZE[1] / 2))
    assert np.abs(pixel.ravel() - (inside * share + 255 * (1 - share))).max() <= 1
    assert time.monotonic() < start + 10


def test_work_without_end_and_results_without_bounds_are_rejected_in_words(
    ramp_slide: Slide, monkeypatch: pytest.MonkeyPatch
) -> None:
    for size in (30_000, (10**9, 1)):
        with pytest.raises(SlideError, match=r"500000000 px is the most at once"):
            ramp_slide.read((0, 0), size, mpp=0.25)
        with pytest.raises(SlideError, match=r"500000000 px is the most at once"):
            ramp_slide.region(0, (0, 0), size if isinstance(size, tuple) else (size, size))
    monkeypatch.setattr(window, "MOST_PX", 10_000)
    with pytest.raises(SlideError, match=r"a\.tif: .*10000 is the most.*pyramid"):
        ramp_slide.thumbnail(100)


def test_outside_the_slide_is_white(ramp_path: Path) -> None:
    with open_slide(ramp_path, mpp=0.25) as slide:
        for mpp, factor in [(0.25, 1), (0.5, 2), (0.35, 1.4)]:
            pixels = slide.read((-40 * factor, -30 * factor), 80, mpp)
            assert (pixels[:29] == 255).all()
            assert (pixels[:, :39] == 255).all()
            assert (
                np.abs(pixels[32:, 42:].astype(float) - expected((2 * factor, 2 * factor), 48, factor)[:48, :38]).max()
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


def test_the_nearest_finer_level_is_read(ramp_slide: Slide, monkeypatch: pytest.MonkeyPatch) -> None:
    levels: list[int] = []
    region = ramp_slide._reader.region
    monkeypatch.setattr(
        ramp_slide._reader, "region", lambda level, xy, size: levels.append(level) or region(level, xy, size)
    )
    for mpp in (0.1, 0.25, 0.45, 0.4999, 0.5, 0.9, 1.0, 3.0):
        ramp_slide.read((0, 0), 20, mpp)
    assert levels == [0, 0, 0, 1, 1, 1, 2, 2]


@pytest.mark.parametrize(("size", "mpp"), [(0, 0.5), ((5, -1), 0.5), (5, 0.0), (5, float("nan"))])
def test_impossible_windows_are_refused(ramp_slide: Slide, size: Any, mpp: float) -> None:
    with pytest.raises(SlideError, match=r"slide 'a': .* cannot be read. Sizes and mpp must be positive"):
        ramp_slide.read((0, 0), size, mpp)


def test_a_level_that_is_not_there_is_refused(ramp_slide: Slide) -> None:
    for level in (3, -1):
        with pytest.raises(SlideError, match=f"no level {level}: it has 3, counted from 0"):
            ramp_slide.region(level, (0, 0), (5, 5))
    with pytest.raises(SlideError, match="longest_px = 0"):
        ramp_slide.thumbnail(0)


def _corner(slide: Slide) -> tuple[float, list[int]]:
    return slide.mpp, slide.read((50, 50), 1, mpp=0.3)[0, 0].tolist()


def test_a_slide_goes_to_another_process(ramp_slide: Slide) -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        assert pool.submit(_corner, ramp_slide).result() == _corner(ramp_slide)


# ---------------------------------------------------------------------------------------------------- resolution


def tiny(path: Path, **how: Any) -> Slide:
    tifffile.imwrite(path, np.zeros((70, 90, 3), np.uint8), photometric="rgb", **how)
    return open_slide(path)


@pytest.mark.parametrize(
    ("how", "mpp"),
    [
        (dict(resolution=(20_000, 20_000), resolutionunit="CENTIMETER"), 0.5),
        (dict(resolution=(101_600, 101_600), resolutionunit="INCH"), 0.25),
        (dict(resolution=(72, 72), resolutionunit="INCH"), None),
        (dict(resolution=(96, 96), resolutionunit="INCH"), None),
        (dict(resolution=(300, 300), resolutionunit="INCH"), None),
        (dict(resolution=(1, 1), resolutionunit="CENTIMETER"), None),
        (dict(resolution=(40_000, 40_000), resolutionunit="NONE"), None),
        (dict(description="Aperio x|MPP = 0.2520|AppMag = 40", metadata=None), 0.252),
    ],
)
def test_a_tiff_says_its_resolution_in_tags_or_words(tmp_path: Path, how: dict[str, Any], mpp: float | None) -> None:
    slide = tiny(tmp_path / "a.tif", **how)
    assert slide.known_mpp == (None if mpp is None else pytest.approx(mpp))
    assert slide.mpp_source == ("unknown" if mpp is None else "file")


@pytest.mark.parametrize(("size", "unit"), [(0.25, "µm"), (250, "nm"), (0.00025, "mm")])
def test_ome_says_its_resolution_in_a_unit(tmp_path: Path, size: float, unit: str) -> None:
    said = {f"PhysicalSize{axis}{what}": value for axis in "XY" for what, value in (("", size), ("Unit", unit))}
    assert tiny(tmp_path / "a.ome.tif", metadata={"axes": "YXS", **said}).mpp == pytest.approx(0.25)


def test_a_picture_says_its_resolution_if_it_is_no_printers(tmp_path: Path) -> None:
    for dpi, mpp in ((50_800, 0.5), (72, None)):
        Image.new("RGB", (9, 9)).save(tmp_path / "a.png", dpi=(dpi, dpi))
        assert open_slide(tmp_path / "a.png").known_mpp == (mpp and pytest.approx(mpp, rel=1e-4))


def test_the_objective_stands_in_for_a_missing_resolution(tmp_path: Path) -> None:
    slide = open_slide(write_svs(tmp_path / "a.svs", [painted(ramp, (90, 70))], mpp=None, objective=20))
    assert (slide.mpp, slide.mpp_source, slide.objective) == (0.5, "objective", 20)


def test_what_is_given_wins(tmp_path: Path) -> None:
    path = write_svs(tmp_path / "a.svs", [painted(ramp, (90, 70))], mpp=0.25)
    assert (open_slide(path).mpp, open_slide(path).mpp_source) == (0.25, "file")
    given = open_slide(path, mpp=0.23)
    assert (given.mpp, given.mpp_source, given.warnings) == (0.23, "given", ())
    for wrong in (0.0, -1.0, float("inf")):
        with pytest.raises(SlideError, match="microns per pixel are a positive number"):
            open_slide(path, mpp=wrong)


def test_an_unknown_resolution_is_refused_with_the_remedies(tmp_path: Path) -> None:
    slide = tiny(tmp_path / "a.tif")
    for remedy in ("column 'mpp' of the table", "--mpp-of", r"open_slide\(path, mpp=0.25\)", "0.25 for x40"):
        with pytest.raises(SlideError, match=remedy):
            slide.mpp
    with pytest.raises(SlideError, match="slide 'a' says neither its resolution"):
        slide.read((0, 0), 5, mpp=0.5)


@pytest.mark.parametrize(
    ("mpp_xy", "objective", "said"),
    [
        ((2.5, 2.5), 40, "mpp 2.5 contradicts the objective x40 (about 0.25): 10 times too large?"),
        ((0.25, 0.25), 20, "mpp 0.25 contradicts the objective x20 (about 0.5): 2 times too small?"),
        ((8.0, 8.0), None, "mpp 8 is implausible: scanners have between 0.05 and 5."),
        ((0.01, 0.01), None, "mpp 0.01 is implausible"),
        (
            (0.25, 0.26),
            40,
            "pixels are not square: mpp 0.25 across and 0.26 down. Both axes are read with the mean, 0.255.",
        ),
    ],
)
def test_an_implausible_resolution_is_doubted(mpp_xy: tuple[float, float], objective: float | None, said: str) -> None:
    [warning] = resolve(mpp_xy, objective).warnings
    assert said in warning
    assert "not square" in said or "--mpp-of" in warning


def test_a_plausible_resolution_is_not_doubted() -> None:
    for mpp_xy, objective in [((0.25, 0.252), 40), ((0.499, 0.499), 20), ((0.35, 0.35), 40), ((1.0, 1.0), None)]:
        assert resolve(mpp_xy, objective).warnings == ()


def test_doubts_reach_the_slide(tmp_path: Path) -> None:
    slide = open_slide(write_svs(tmp_path / "a.svs", [painted(ramp, (90, 70))], mpp=2.5, objective=40))
    assert "10 times too large?" in slide.warnings[0]
    assert "contradicts the objective x40" in open_slide(slide.path, mpp=25.0).warnings[0]


# ------------------------------------------------------------------------------------------------ what a person sees


def test_a_description_is_plain_data(tmp_path: Path) -> None:
    levels = [painted(ramp, (1024, 600), by) for by in (1, 2)]
    with open_slide(write_svs(tmp_path / "a.svs", levels, mpp=0.25)) as slide:
        said = json.loads(json.dumps(describe(slide)))
    assert (said["id"], said["format"], said["reader"]) == ("a", "aperio", "openslide")
    assert said["bytes"] == (tmp_path / "a.svs").stat().st_size
    assert (said["size_px"], said["size_mm"], said["mpp"], said["mpp_source"]) == (
        [1024, 600],
        [0.256, 0.15],
        0.25,
        "file",
    )
    assert [level["mpp"] for level in said["levels"]] == [0.25, 0.5]
    assert said["tiles_that_fit"] == {"size_px": 256, "mpp": 0.5, "count": 2}
    assert (said["storage_tile"], said["warnings"], said["associated_images"]) == ([64, 64], [], [])


def test_a_description_does_without_a_resolution(tmp_path: Path) -> None:
    said = describe(tiny(tmp_path / "a.tif", software="Scan 7"))
    assert (said["mpp"], said["size_mm"], said["tiles_that_fit"], said["mpp_source"]) == (None, None, None, "unknown")
    assert said["scanner"] == {"tiff.Software": "Scan 7"}
    assert repr(open_slide(tmp_path / "a.tif")) == "Slide('a', 90 x 70 px, mpp unknown, TIFF)"


def test_a_dicom_folder_is_described_as_one_slide(tmp_path: Path) -> None:
    path = write_dicom(tmp_path / "slide", painted(ramp, (90, 70)))
    with open_slide(tmp_path / "slide") as slide:
        said = describe(slide)
    assert (said["id"], said["bytes"], said["objective"]) == ("slide", path.stat().st_size, 40)


@pytest.mark.skipif(not REAL.exists(), reason=f"the real slide is not there: {REAL.name}")
def test_a_real_slide() -> None:
    with open_slide(REAL) as slide:
        assert (slide.size, slide.mpp, slide.mpp_source, slide.objective) == ((2220, 2967), 0.499, "file", 20)
        assert (slide.vendor, slide.warnings, slide.storage_tile) == ("aperio", (), (240, 240))
        assert slide.associated == ("label", "macro", "thumbnail")
        fine, coarse = slide.read((512, 512), 512, mpp=0.499), slide.read((512, 512), 256, mpp=0.998)
        means = fine.reshape(256, 2, 256, 2, 3).mean((1, 3))
        assert np.abs(coarse - means).max() <= 0.51
        near = slide.read((512, 512), 256, mpp=1.0)  # 0.2 % further: the same picture, a little blurred
        assert np.abs(near.astype(float) - means).mean() < 6
        assert slide.thumbnail(300).shape == (300, 224, 3)


# ------------------------------------------------------------------------------------------------- finding slides


def test_the_slides_below_a_folder_are_found(tmp_path: Path) -> None:
    for name in ["b.svs", "A.NDPI", "x/c.tif", "x/y/d.png", ".hidden.svs", ".cache/e.svs", "notes.txt", "m.mrxs"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for name in ["m/Data0001.dat", "m/preview.jpg", "h/h.vms", "h/h_part1.jpg", "v.vsi", "_v_/stack1/frame.tif"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = [str(path.relative_to(tmp_path)) for path in find_slides(tmp_path)]
    assert found == ["A.NDPI", "b.svs", "h/h.vms", "m.mrxs", "v.vsi", "x/c.tif", "x/y/d.png"]


def test_a_folder_of_one_dicom_series_is_one_slide(tmp_path: Path) -> None:
    pixels = painted(ramp, (90, 70))
    for _ in range(2):
        write_dicom(tmp_path / "one", pixels, series="1.2.3")
    two = sorted(write_dicom(tmp_path / "two", pixels, series=series) for series in ("1.2.4", "1.2.5"))
    assert find_slides(tmp_path) == [tmp_path / "one", *two]
    assert open_slide(two[1]).size == (90, 70)
    with pytest.raises(SlideError, match=r"two holds 2 DICOM series\. Open one by one of its files: "):
        open_slide(tmp_path / "two")


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights on Windows")
def test_links_lead_to_files_and_never_round_in_circles(tmp_path: Path) -> None:
    slides, elsewhere = tmp_path / "slides", tmp_path / "elsewhere"
    for folder in (slides, elsewhere):
        folder.mkdir()
    (elsewhere / "far.svs").touch()
    (slides / "linked.svs").symlink_to(elsewhere / "far.svs")
    (slides / "broken.svs").symlink_to(elsewhere / "gone.svs")
    (slides / "round").symlink_to(slides)
    (slides / "out").symlink_to(elsewhere)
    assert find_slides(slides) == [slides / "broken.svs", slides / "linked.svs"]  # what is missing is not passed over
    with pytest.raises(SlideError, match=r"broken\.svs is a link to .*gone\.svs, which is not there. Mount the disk"):
        open_slide(slides / "broken.svs")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("name", ["pipe.svs", "pipe.dcm"])
def test_a_pipe_with_the_name_of_a_slide_is_an_error_and_not_waited_for(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    [found] = find_slides(tmp_path)
    with pytest.raises(SlideError, match="is not a regular file"):
        open_slide(found)


def test_a_folder_that_cannot_be_listed_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "locked").mkdir()
    scandir = os.scandir

    def guarded(path: Any) -> Any:
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)
    monkeypatch.setattr(os, "listdir", guarded)  # by which pathlib lists
    (tmp_path / "good.svs").touch()
    assert find_slides(tmp_path) == [tmp_path / "good.svs", tmp_path / "locked"]
    for call in (lambda: open_slide(tmp_path / "locked"), lambda: find_slides(tmp_path / "locked")):
        with pytest.raises(SlideError, match="locked: the folder cannot be listed: Permission denied"):
            call()


def test_only_a_folder_is_searched(tmp_path: Path) -> None:
    with pytest.raises(SlideError, match="is not a folder"):
        find_slides(tmp_path / "missing")
    assert find_slides(tmp_path) == []


def test_the_package_knows_no_other_names() -> None:
    with pytest.raises(AttributeError, match="no attribute 'tisue'"):
        scmil.slides.tisue
    assert {"open_slide", "find_tissue", "tile"} <= set(scmil.slides.__all__)
