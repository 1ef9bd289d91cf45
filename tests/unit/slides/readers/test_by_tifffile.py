from __future__ import annotations

import io
import struct
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reader_cases import GREY, RAMP, SIZE, TILED, Image, in_tiles, tifffile, whole
from slide_files import ramp, rendered, write_tiff

from scmil.errors import SlideError
from scmil.slides import open_slide, readers
from scmil.slides.readers import by_tifffile
from scmil.slides.readers.by_tifffile import TiffReader


def in_strips(path: Path) -> None:
    tifffile.imwrite(
        path, RAMP, photometric="rgb", rowsperstrip=7, compression="lzw", predictor=True
    )


def in_one_strip(path: Path) -> None:
    tifffile.imwrite(path, RAMP, photometric="rgb")


def jpeg_2000(path: Path) -> None:
    tifffile.imwrite(path, RAMP, photometric="rgb", tile=(64, 64), compression="jpeg2000")


def colours_apart(path: Path) -> None:
    tifffile.imwrite(
        path, np.moveaxis(RAMP, 2, 0), photometric="rgb", planarconfig="separate", **TILED
    )


def colours_of_16_bits(path: Path) -> None:
    tifffile.imwrite(path, RAMP.astype(np.uint16) * 257, photometric="rgb", **TILED)


def opaque(path: Path) -> None:
    tifffile.imwrite(
        path, np.dstack([RAMP, np.full_like(RAMP[..., 0], 255)]), photometric="rgb", **TILED
    )


def a_fourth_channel_without_a_meaning(path: Path) -> None:
    samples = np.dstack([RAMP, RAMP[..., 0]])
    tifffile.imwrite(path, samples, photometric="rgb", extrasamples=["unspecified"], **TILED)


def luma_and_chroma(path: Path) -> None:
    ycbcr = np.asarray(Image.fromarray(RAMP).convert("YCbCr"))
    tifffile.imwrite(path, ycbcr, photometric="ycbcr", subsampling=(1, 1), **TILED)


def grey(path: Path) -> None:
    tifffile.imwrite(path, GREY[..., 0], photometric="minisblack", **TILED)


def grey_of_16_bits(path: Path) -> None:
    tifffile.imwrite(
        path, GREY[..., 0].astype(np.uint16) * 257, photometric="minisblack", rowsperstrip=10
    )


def negative(path: Path) -> None:
    tifffile.imwrite(path, 255 - GREY[..., 0], photometric="miniswhite", **TILED)


def palette(path: Path) -> None:
    colours = np.tile(np.arange(256, dtype=np.uint16)[::-1] * 257, (3, 1))
    tifffile.imwrite(path, 255 - GREY[..., 0], photometric="palette", colormap=colours, **TILED)


COLOURED: list[tuple[Callable[[Path], None], int]] = [
    *(
        (write, 0)
        for write in (
            in_strips,
            in_one_strip,
            in_tiles,
            jpeg_2000,
            colours_apart,
            colours_of_16_bits,
        )
    ),
    *((write, 0) for write in (opaque, a_fourth_channel_without_a_meaning)),
    (luma_and_chroma, 3),
]


@pytest.mark.parametrize(
    ("write", "tolerance"), COLOURED, ids=lambda value: getattr(value, "__name__", "")
)
def test_tiffs_of_every_kind_give_their_colours(
    tmp_path: Path, write: Callable[[Path], None], tolerance: int
) -> None:
    write(tmp_path / "a.tif")
    pixels = whole(tmp_path / "a.tif")
    assert pixels.dtype == np.uint8
    assert np.abs(pixels.astype(int) - RAMP).max() <= tolerance


def test_jpeg_tiles_give_their_colours(tmp_path: Path) -> None:
    tiles = RAMP[:192, :256]  # whole tiles: what is beyond the picture's edge would ring into it
    tifffile.imwrite(
        tmp_path / "a.tif", tiles, photometric="rgb", tile=(64, 64), compression="jpeg"
    )
    difference = whole(tmp_path / "a.tif").astype(int) - tiles
    assert np.abs(difference).max() <= 8
    assert np.abs(difference.mean((0, 1))).max() < 0.5


@pytest.mark.parametrize(
    "write", [grey, grey_of_16_bits, negative, palette], ids=lambda write: write.__name__
)
def test_grey_tiffs_give_grey(tmp_path: Path, write: Callable[[Path], None]) -> None:
    write(tmp_path / "a.tif")
    np.testing.assert_array_equal(whole(tmp_path / "a.tif"), GREY)


@pytest.mark.parametrize(("kind", "own_share"), [("unassalpha", 0.6), ("assocalpha", 1.0)])
def test_transparency_of_a_tiff_is_laid_on_white(
    tmp_path: Path, kind: str, own_share: float
) -> None:
    samples = np.tile(np.array([150, 80, 0, 153], np.uint8), (70, 70, 1))  # 153 of 255 are 0.6
    tifffile.imwrite(tmp_path / "a.tif", samples, photometric="rgb", extrasamples=[kind], **TILED)
    expected = np.array([150, 80, 0]) * own_share + 255 * 0.4
    assert (whole(tmp_path / "a.tif") == np.rint(expected)).all()


def test_a_tile_that_was_never_written_is_background(tmp_path: Path) -> None:
    in_tiles(tmp_path / "a.tif")
    with tifffile.TiffFile(tmp_path / "a.tif", mode="r+") as file:
        for name in ("TileOffsets", "TileByteCounts"):
            tag = file.pages[0].tags[name]
            tag.overwrite([0 if at == 6 else value for at, value in enumerate(tag.value)])
    expected = RAMP.copy()
    expected[64:128, 64:128] = 255
    np.testing.assert_array_equal(whole(tmp_path / "a.tif"), expected)


def test_a_pyramid_in_subifds_has_all_its_levels(tmp_path: Path) -> None:
    levels = [rendered(ramp, SIZE, by) for by in (1, 2, 4)]
    with open_slide(write_tiff(tmp_path / "a.ome.tif", levels, mpp=0.25, subifds=True)) as slide:
        assert (slide.reader, slide.vendor, slide.mpp_source) == ("tifffile", "OME-TIFF", "file")
        assert slide.level_sizes == ((300, 210), (150, 105), (75, 52))
        for number, level in enumerate(levels):
            np.testing.assert_array_equal(
                slide.region(number, (0, 0), slide.level_sizes[number]), level
            )


def test_only_the_tiles_that_are_needed_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_tiles(tmp_path / "a.tif")
    decoded: list[int] = []
    plane = TiffReader._plane
    monkeypatch.setattr(
        TiffReader, "_plane", lambda self, page, at: decoded.append(at) or plane(self, page, at)
    )
    with open_slide(tmp_path / "a.tif") as slide:
        slide.region(0, (64, 64), (64, 60))
        assert decoded == [6]  # five tiles a row
        slide.region(0, (60, 70), (10, 10))
        assert decoded == [6, 5]  # the other half was kept
        slide.region(0, (-50, -50), (50, 50))
        assert decoded == [6, 5]


def test_a_tile_that_is_read_as_a_whole_is_not_kept(tmp_path: Path) -> None:
    in_tiles(tmp_path / "a.tif")
    with open_slide(tmp_path / "a.tif") as slide:
        np.testing.assert_array_equal(slide.region(0, (64, 64), (64, 64)), RAMP[64:128, 64:128])
        assert not slide._reader._kept  # type: ignore[attr-defined]
        slide.region(0, (64, 65), (64, 64))
        assert slide._reader._kept  # type: ignore[attr-defined]


def test_decoded_tiles_are_kept_within_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_tiles(tmp_path / "a.tif")
    monkeypatch.setattr(by_tifffile, "CACHE_BYTES", 3 * 64 * 64 * 3)
    with open_slide(tmp_path / "a.tif") as slide:
        np.testing.assert_array_equal(slide.region(0, (0, 0), SIZE), RAMP)
        reader: Any = slide._reader
        kept = sum(piece.nbytes for piece in reader._kept.values())
        assert 0 < kept == reader._kept_bytes <= 3 * 64 * 64 * 3


def test_the_time_of_a_tile_does_not_grow_with_the_number_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = 0

    class Counted(OrderedDict[Any, Any]):
        def values(self) -> Any:
            nonlocal looked_at
            looked_at += len(self)
            return super().values()

    in_tiles(tmp_path / "a.tif")
    monkeypatch.setattr(by_tifffile, "OrderedDict", Counted)
    with open_slide(tmp_path / "a.tif") as slide:
        slide.region(0, (0, 0), SIZE)
        assert len(slide._reader._kept) == 20  # type: ignore[attr-defined]
    assert looked_at == 0


def test_threads_do_not_take_each_others_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_tiles(tmp_path / "a.tif")
    with open_slide(tmp_path / "a.tif") as slide, ThreadPoolExecutor(4) as pool:
        handle = type(slide._reader._file.filehandle)  # type: ignore[attr-defined]
        seek = handle.seek
        monkeypatch.setattr(handle, "seek", lambda self, *to: (seek(self, *to), time.sleep(0.002)))
        rows = list(pool.map(lambda y: slide.region(0, (0, y), (300, 1)), [0, 64, 128, 192]))
    np.testing.assert_array_equal(np.concatenate(rows), RAMP[[0, 64, 128, 192]])


def test_several_channels_are_rejected(tmp_path: Path) -> None:
    channels = np.moveaxis(RAMP, 2, 0)
    tifffile.imwrite(
        tmp_path / "a.ome.tif",
        channels,
        photometric="minisblack",
        metadata={"axes": "CYX"},
        **TILED,
    )
    with pytest.raises(
        SlideError, match=r"axes CYX \(3 x 210 x 300\): several channels.*Only brightfield"
    ):
        open_slide(tmp_path / "a.ome.tif")
    five = np.dstack([RAMP, RAMP[..., :2]])
    tifffile.imwrite(
        tmp_path / "b.tif", five, photometric="minisblack", planarconfig="contig", **TILED
    )
    with pytest.raises(SlideError, match="5 channels of 8 bits"):
        open_slide(tmp_path / "b.tif")
    tifffile.imwrite(tmp_path / "c.tif", RAMP.astype(np.float32), photometric="rgb", **TILED)
    with pytest.raises(SlideError, match="3 channels of 32 bits"):
        open_slide(tmp_path / "c.tif")


@pytest.mark.parametrize("kept", [0.02, 0.4, 0.95])
@pytest.mark.parametrize(
    "write", [in_tiles, in_strips, in_one_strip], ids=lambda write: write.__name__
)
def test_a_truncated_tiff_is_rejected(
    tmp_path: Path, write: Callable[[Path], None], kept: float
) -> None:
    write(tmp_path / "whole.tif")
    content = (tmp_path / "whole.tif").read_bytes()
    (tmp_path / "cut.tif").write_bytes(content[: int(kept * len(content))])
    with pytest.raises(SlideError, match=r"cut\.tif: the file is damaged or truncated"):
        open_slide(tmp_path / "cut.tif")


def set_tags(path: Path, **values: int) -> None:
    with tifffile.TiffFile(path, mode="r+") as file:
        for name, value in values.items():
            file.pages[0].tags[name].overwrite(value, dtype="I")


def test_a_tiff_of_enormous_size_is_rejected_before_it_is_decoded(tmp_path: Path) -> None:
    enormous: Any = dict(ImageWidth=2**31 - 1, ImageLength=2**31 - 1)
    in_tiles(tmp_path / "a.tif")
    set_tags(tmp_path / "a.tif", **enormous)
    with pytest.raises(SlideError, match=r"a\.tif: the file is damaged.*but the file has 20"):
        open_slide(tmp_path / "a.tif")
    set_tags(tmp_path / "a.tif", **enormous, TileWidth=2**30, TileLength=2**30)
    with pytest.raises(SlideError, match=r"of 1073741824 x 1073741824\. Each is decoded at once"):
        open_slide(tmp_path / "a.tif")


def test_samples_of_a_tiff_are_converted_a_few_rows_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tifffile.imwrite(tmp_path / "a.tif", RAMP.astype(np.uint16) * 257, photometric="rgb")
    rows: list[int] = []
    converted = by_tifffile._converted
    monkeypatch.setattr(
        by_tifffile,
        "_converted",
        lambda page, samples: rows.append(len(samples)) or converted(page, samples),
    )
    monkeypatch.setattr(readers, "BAND_PX", 10 * SIZE[0])
    np.testing.assert_array_equal(whole(tmp_path / "a.tif"), RAMP)
    assert max(rows) == 10


def tiff_of_one_tile(path: Path, content: bytes, compression: int) -> Path:
    """A TIFF of 64 x 64 px of grey in one tile, whose content may be of any size."""
    tags = [
        (256, 64),
        (257, 64),
        (258, 8),
        (259, compression),
        (262, 1),
        (277, 1),
        (322, 64),
        (323, 64),
        (324, 8),
    ]
    entries = [
        struct.pack("<HHII", tag, 4, 1, value) for tag, value in [*tags, (325, len(content))]
    ]
    start = b"II*\0" + struct.pack("<I", 8 + len(content)) + content
    path.write_bytes(start + struct.pack("<H", len(entries)) + b"".join(entries) + bytes(4))
    return path


@pytest.mark.parametrize(("compression", "name"), [(7, "JPEG"), (34712, "JPEG2000")])
def test_a_tile_that_is_a_larger_picture_than_the_file_says_is_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: int, name: str
) -> None:
    content = io.BytesIO()
    Image.new("L", (2000, 3000)).save(content, name)
    path = tiff_of_one_tile(tmp_path / "a.tif", content.getvalue(), compression)
    with open_slide(path) as slide:
        monkeypatch.setattr(
            tifffile.TiffPage, "decode", lambda *_, **__: pytest.fail("it was decoded")
        )
        with pytest.raises(SlideError, match="64 x 64 px holds a picture of 2000 x 3000"):
            slide.region(0, (0, 0), (64, 64))


def test_a_compression_whose_pictures_say_their_own_size_and_are_not_checked_is_rejected(
    tmp_path: Path,
) -> None:
    path = tiff_of_one_tile(tmp_path / "a.tif", b"no JPEG XL", 50002)
    with pytest.raises(SlideError, match=r"compressed with JPEGXL.*vips tiffsave"):
        open_slide(path)


def test_a_piece_of_many_bytes_a_pixel_is_rejected_by_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tifffile.imwrite(tmp_path / "a.tif", RAMP.astype(np.uint16), photometric="rgb")
    monkeypatch.setattr(by_tifffile, "MOST_PX_AT_ONCE", SIZE[0] * SIZE[1])
    with pytest.raises(SlideError, match=r"378000 bytes; at most 189000 are allowed"):
        open_slide(tmp_path / "a.tif")


def test_tiles_that_were_never_written_take_no_memory(tmp_path: Path) -> None:
    path = tiff_of_one_tile(tmp_path / "a.tif", b"", 1)
    with open_slide(path) as slide:
        assert (slide.region(0, (0, 0), (64, 64)) == 255).all()
        assert slide._reader._segment(0, 0).strides == (0, 0, 0)  # type: ignore[attr-defined]
