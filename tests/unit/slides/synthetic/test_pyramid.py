from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from synthetic_slides import level, openslide, tifffile

from scmil.slides.synthetic import SyntheticSlide, paint, pyramid


def test_openslide_opens_it_and_knows_its_resolution(slide: SyntheticSlide) -> None:
    with openslide.OpenSlide(slide.path) as opened:
        assert opened.dimensions == (2600, 2100)
        assert opened.level_dimensions == ((2600, 2100), (650, 525), (162, 131))
        properties = opened.properties
        assert float(properties["openslide.mpp-x"]) == float(properties["openslide.mpp-y"]) == 0.5
        assert properties["openslide.objective-power"] == "20"
        assert properties["openslide.vendor"] == "aperio"
        assert properties["openslide.level[0].tile-width"] == "256"
        assert opened.associated_images["thumbnail"].size == (162, 131)


def test_tifffile_sees_the_same_levels(slide: SyntheticSlide) -> None:
    with tifffile.TiffFile(slide.path) as file:
        assert [each.shape for each in file.series[0].levels] == [
            (2100, 2600, 3),
            (525, 650, 3),
            (131, 162, 3),
        ]


@pytest.mark.parametrize("step", [2, 4])
def test_a_level_is_the_mean_of_the_one_below(tmp_path: Path, step: int) -> None:
    path = paint(tmp_path / "a.tif", size=(1100, 1003), mpp=1.0, seed=1, step=step, quality=98).path
    below, above = level(path, 0), level(path, 1)
    height, width = above.shape[:2]
    assert (width, height) == (1100 // step, 1003 // step)
    means = (
        below[: height * step, : width * step]
        .reshape(height, step, width, step, 3)
        .mean(axis=(1, 3))
    )
    error = np.abs(means - above).mean()
    assert error < 2.5  # JPEG's
    for axis in (0, 1):
        # One pixel of shift would be seen.
        assert np.abs(means - np.roll(above, 1, axis)).mean() > 2 * error


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    first, again, other = (
        paint(tmp_path / name, size=(1000, 1000), mpp=2.0, seed=seed).path.read_bytes()
        for name, seed in (("a.svs", 1), ("b.svs", 1), ("c.svs", 2))
    )
    assert first == again
    assert first != other


def test_empty_tiles_are_encoded_once(tmp_path: Path) -> None:
    path = paint(tmp_path / "a.svs", size=(3000, 3000), mpp=2.0, seed=2, tumour=False).path
    with tifffile.TiffFile(path) as file:
        page = file.pages[0]
        places = zip(page.dataoffsets, page.databytecounts, strict=True)
        tiles = [path.read_bytes()[start : start + length] for start, length in places]
    assert len(set(tiles)) < 0.8 * len(tiles)


def test_a_failure_leaves_no_file_behind(tmp_path: Path) -> None:
    def tile(x: int, y: int) -> pyramid.SceneTile:
        if y:
            raise OSError("no space left")
        return pyramid.SceneTile(np.zeros((256, 256, 3), np.uint8))

    with pytest.raises(OSError, match="no space left"):
        pyramid.write_pyramid(tmp_path / "a.svs", (1000, 1000), tile, mpp=0.5)
    assert list(tmp_path.iterdir()) == []


def test_a_small_slide_takes_less_than_two_seconds(tmp_path: Path) -> None:
    start = time.process_time()
    paint(tmp_path / "a.svs", size=(1000, 1000))
    assert time.process_time() - start < 2


@pytest.mark.slow
def test_memory_does_not_grow_with_the_picture(tmp_path: Path) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip(
            "the largest memory of a process is read from /proc, which this system does not have"
        )
    code = (
        "import pathlib, sys; from scmil.slides.synthetic import paint; "
        "paint(sys.argv[1], size=(12_000, 6_000), mpp=1.0); "
        "print(pathlib.Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0])"
    )  # not ru_maxrss, which counts what the parent had when it forked
    run = [sys.executable, "-c", code, str(tmp_path / "a.svs")]
    used = int(subprocess.run(run, check=True, capture_output=True, text=True).stdout) / 1024
    assert used < 180  # MB, of which Python and NumPy take 60; all pixels would be 216
