from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ramp_slides import SIZE, tifffile, write
from slide_files import ramp

from scmil.errors import SlideError
from scmil.slides import Slide, open_slide, window
from scmil.slides.readers import Facts


def test_a_window_too_large_for_memory_is_read_in_parts(
    ramp_slide: Slide, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        pixels = window.read_window(slide._reader, (0, 0, 1024, 896), size, lambda: 0)
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
    pixel = window.read_window(reader, (0, 0, 65_536, 65_536), (1, 1), lambda: 10**9)
    covered = len(range(0, 60_000, 2**24 // 60_000)) / 60_000  # by one row a band
    share = (60_000 / 65_536) ** 2
    assert pixel.ravel().tolist() == [round(90 * covered * share + 255 * (1 - share))] * 3
    assert reader.read == 60_000**2


def test_a_small_file_whose_pixels_would_take_minutes_is_rejected(tmp_path: Path) -> None:
    """Each of 55 000 tiles is the same 64 KiB of the file."""
    path = tmp_path / "a.tif"
    tifffile.imwrite(
        path,
        np.zeros((256, 256), np.uint8),
        tile=(256, 256),
        photometric="minisblack",
        metadata=None,
    )
    with tifffile.TiffFile(path, mode="r+b") as file:
        tags = file.pages.first.tags
        count = (60_000 // 256 + 1) ** 2
        offset, length = tags["TileOffsets"].value[0], tags["TileByteCounts"].value[0]
        for name in ("ImageWidth", "ImageLength"):
            tags[name].overwrite(60_000)
        tags["TileOffsets"].overwrite([offset] * count)
        tags["TileByteCounts"].overwrite([length] * count)
    with open_slide(path, mpp=0.5) as slide:
        assert slide.read((30_000, 30_000), 256, 0.5).max() == 0
        with pytest.raises(
            SlideError, match=r"a\.tif: 1000 x 1000 px need 3\.6e\+09 px of the file"
        ):
            slide.thumbnail(1000)


def test_a_window_far_larger_than_the_slide_is_white_around_it_and_quick(ramp_slide: Slide) -> None:
    start = time.process_time()
    pixels = ramp_slide.read((-5e14, -5e14), (5, 5), mpp=0.25 * 1e15)
    assert (pixels == 255).all()
    assert (ramp_slide.read((1e6, 1e6), (200, 200), mpp=0.25 * 1e9) == 255).all()
    pixel = ramp_slide.read((0, 0), 1, mpp=0.25 * 10 * 1101)
    share = SIZE[0] * SIZE[1] / (10 * 1101) ** 2
    inside = ramp(np.array(SIZE[0] / 2), np.array(SIZE[1] / 2))
    assert np.abs(pixel.ravel() - (inside * share + 255 * (1 - share))).max() <= 1
    assert time.process_time() < start + 10


def test_work_without_end_and_results_without_bounds_are_rejected_in_words(
    ramp_slide: Slide, monkeypatch: pytest.MonkeyPatch
) -> None:
    for size in (30_000, (10**9, 1)):
        with pytest.raises(SlideError, match=r"at most 500000000 px can be read at once"):
            ramp_slide.read((0, 0), size, mpp=0.25)
        with pytest.raises(SlideError, match=r"at most 500000000 px can be read at once"):
            ramp_slide.region(0, (0, 0), size if isinstance(size, tuple) else (size, size))
    monkeypatch.setattr(window, "MOST_PX", 10_000)
    with pytest.raises(SlideError, match=r"a\.tif: .*at most 10000 are read.*pyramid"):
        ramp_slide.thumbnail(100)
