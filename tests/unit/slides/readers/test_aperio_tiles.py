from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reader_cases import tifffile

from scmil.errors import SlideError
from scmil.slides import open_slide
from scmil.slides.readers.aperio_tiles import AperioTiles
from scmil.slides.readers.by_openslide import OpenSlideReader
from scmil.slides.readers.by_tifffile import TiffReader

openslide = pytest.importorskip("openslide")
imagecodecs = pytest.importorskip("imagecodecs")

TILE, SIZE = 64, (300, 210)
CODES: dict[str, dict[str, Any]] = {
    "4:2:2": dict(photometric="ycbcr", compression="jpeg", subsampling=(2, 1)),
    "4:2:0": dict(photometric="ycbcr", compression="jpeg", subsampling=(2, 2)),
    "RGB": dict(photometric="rgb", compression="jpeg", compressionargs={"outcolorspace": "rgb"}),
}


def textured(width: int, height: int) -> np.ndarray[Any, Any]:
    """Pixels whose JPEG has many coefficients."""
    noise = np.random.default_rng(0).integers(0, 120, (height, width, 3))
    return (noise + np.arange(width)[:, None] % 130).astype(np.uint8)


def write_jpeg_svs(path: Path, code: str = "4:2:2", by: float = 2.0, **options: Any) -> Path:
    """An Aperio slide of two levels with tiles in JPEG."""
    sizes = [SIZE, (int(SIZE[0] / by), int(SIZE[1] / by))]
    about = "Aperio Image Library v11.2.1 \r\nmade by a test|AppMag = 20|MPP = 0.5"
    with tifffile.TiffWriter(path) as file:
        for size in sizes:
            file.write(
                textured(*size),
                tile=(TILE, TILE),
                description=about,
                metadata=None,
                **{**CODES[code], **options},
            )
    return path


def tile_bytes(path: Path, index: int) -> tuple[int, int]:
    """Where a tile of the first level begins in the file, and its length."""
    with tifffile.TiffFile(path) as file:
        return file.pages[0].dataoffsets[index], file.pages[0].databytecounts[index]


def by_openslide(path: Path, level: int, xy: tuple[int, int], size: tuple[int, int]) -> Any:
    """Pixels of OpenSlide itself, on white."""
    with openslide.OpenSlide(path) as slide:
        at = tuple(round(value * slide.level_downsamples[level]) for value in xy)
        image = np.asarray(slide.read_region(at, level, size))
    return np.where(image[..., 3:] == 255, image[..., :3], 255)


def tiles_of(path: Path) -> AperioTiles | None:
    reader = OpenSlideReader(path)
    try:
        return reader._tiles
    finally:
        reader.close()


@pytest.mark.parametrize("code", CODES)
def test_pixels_are_those_of_openslide_on_every_level_and_beyond_the_border(
    tmp_path: Path, code: str
) -> None:
    path = write_jpeg_svs(tmp_path / "a.svs", code)
    assert tiles_of(path) is not None  # else OpenSlide is compared with itself
    with open_slide(path) as slide:
        for level in (0, 1):
            for xy, size in [
                ((0, 0), (TILE, TILE)),
                ((37, 51), (90, 70)),
                ((100, 60), (250, 200)),
                ((-20, -9), (70, 60)),
                ((400, 0), (5, 5)),
            ]:
                np.testing.assert_array_equal(
                    slide.region(level, xy, size), by_openslide(path, level, xy, size)
                )


def test_after_the_comparison_no_tile_is_read_by_openslide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_slide(write_jpeg_svs(tmp_path / "a.svs")) as slide:
        slide.region(0, (0, 0), (10, 10))  # compares one tile with OpenSlide
        monkeypatch.setattr(
            openslide.OpenSlide, "read_region", lambda *_: pytest.fail("was read by OpenSlide")
        )
        slide.region(0, (0, 0), SIZE)


@pytest.mark.parametrize("marker", [b"\xff\xd9", b"\xff\xd0"], ids=["end", "restart"])
def test_a_damaged_tile_is_reported_and_the_others_are_read(tmp_path: Path, marker: bytes) -> None:
    path = write_jpeg_svs(tmp_path / "a.svs")
    start, length = tile_bytes(path, 1)
    content = bytearray(path.read_bytes())
    content[start + length // 2 : start + length // 2 + 2] = marker
    path.write_bytes(content)
    with open_slide(path) as slide:
        with pytest.raises(SlideError, match=r"damaged or truncated at 70, 5: Corrupt JPEG data"):
            slide.region(0, (70, 5), (10, 10))
        xy, size = (2 * TILE, 0), (100, 100)
        np.testing.assert_array_equal(slide.region(0, xy, size), by_openslide(path, 0, xy, size))


def damaged_tiles(content: bytes, rounds: int) -> Iterator[tuple[str, bytes]]:
    """A tile with random damage of several kinds."""
    generator, length = np.random.default_rng(0), len(content)
    for _ in range(rounds):
        at, to = sorted(generator.integers(2, length, 2).tolist())
        flipped = bytearray(content)
        flipped[at] ^= 1 << int(generator.integers(8))
        yield "a flipped bit", bytes(flipped)
        yield "zeros in the middle", content[:at] + bytes(to - at) + content[to:]
        yield "zeros to the end", content[:at] + bytes(length - at)
        yield "a second copy", content[:at] + content[: length - at]
        yield "a byte of the header", content[: at % 60] + b"\x17" + content[at % 60 + 1 :]


@pytest.mark.parametrize("code", CODES)
def test_whatever_openslide_rejects_is_rejected_and_much_more(tmp_path: Path, code: str) -> None:
    path = write_jpeg_svs(tmp_path / "a.svs", code)
    start, length = tile_bytes(path, 1)
    whole, where = path.read_bytes(), ((TILE, 0), (TILE, TILE))
    by_us = by_them = 0
    for kind, damaged in damaged_tiles(whole[start : start + length], 12):
        path.write_bytes(whole[:start] + damaged + whole[start + length :])
        try:
            expected = by_openslide(path, 0, *where)
        except openslide.OpenSlideError:
            expected, by_them = None, by_them + 1
        with open_slide(path) as slide:
            try:
                found = slide.region(0, *where)
            except SlideError:
                by_us += 1
            else:
                assert expected is not None, kind
                np.testing.assert_array_equal(found, expected, kind)
    assert by_us > 1.5 * by_them > 0


def test_a_level_whose_largest_tile_is_damaged_is_still_read_without_openslide(
    tmp_path: Path,
) -> None:
    path = write_jpeg_svs(tmp_path / "a.svs")
    with tifffile.TiffFile(path) as file:
        page = file.pages[0]
        index = int(np.argmax(page.databytecounts))
        start, length = page.dataoffsets[index], page.databytecounts[index]
    content = bytearray(path.read_bytes())
    content[start + length // 2 : start + length - 2] = bytes(length - 2 - length // 2)
    path.write_bytes(content)
    reader = OpenSlideReader(path)
    assert reader._tiles is not None
    assert reader._tiles.agrees(0)
    reader.close()


def test_a_tile_that_was_never_written_is_left_to_openslide(tmp_path: Path) -> None:
    path = write_jpeg_svs(tmp_path / "a.svs")
    with tifffile.TiffFile(path, mode="r+b") as file:
        tag = file.pages[1].tags["TileByteCounts"]
        tag.overwrite([0 if at == 1 else count for at, count in enumerate(tag.value)])
    xy, size = (TILE, 0), (TILE, TILE)
    filled = by_openslide(path, 1, xy, size)
    assert filled.mean() < 255  # from the finer level
    with open_slide(path) as slide:
        np.testing.assert_array_equal(slide.region(1, xy, size), filled)


def test_pixels_that_differ_from_openslides_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_jpeg_svs(tmp_path / "a.svs")
    exact = TiffReader._decoded
    monkeypatch.setattr(TiffReader, "_decoded", lambda *where: exact(*where) ^ 1)
    with open_slide(path) as slide:
        np.testing.assert_array_equal(
            slide.region(0, (0, 0), SIZE), by_openslide(path, 0, (0, 0), SIZE)
        )


@pytest.mark.parametrize("compression", ["deflate", "aperio_jp2000_rgb"])
def test_tiles_in_other_codes_are_left_to_openslide(tmp_path: Path, compression: str) -> None:
    path = write_jpeg_svs(tmp_path / "a.svs", "RGB", compression=compression, compressionargs=None)
    assert tiles_of(path) is None
    with open_slide(path) as slide:
        np.testing.assert_array_equal(
            slide.region(0, (9, 9), (99, 99)), by_openslide(path, 0, (9, 9), (99, 99))
        )


def test_a_level_between_whole_factors_is_left_to_openslide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_jpeg_svs(tmp_path / "a.svs", by=2.9)
    monkeypatch.setattr(AperioTiles, "region", lambda *_: pytest.fail("was read without OpenSlide"))
    with open_slide(path) as slide:
        np.testing.assert_array_equal(
            slide.region(1, (20, 20), (50, 40)), by_openslide(path, 1, (20, 20), (50, 40))
        )


def test_the_tiles_are_closed_with_the_slide(tmp_path: Path) -> None:
    reader = OpenSlideReader(write_jpeg_svs(tmp_path / "a.svs"))
    reader.region(0, (0, 0), (10, 10))
    tiles = reader._tiles
    reader.close()
    assert tiles is not None
    assert tiles._file.filehandle.closed
