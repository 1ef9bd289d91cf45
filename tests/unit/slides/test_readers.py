from __future__ import annotations

import io
import os
import struct
import sys
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from slide_files import painted, ramp, write_dicom, write_svs, write_tiff

from scmil.errors import MissingExtraError, ScmilError, SlideError
from scmil.slides import open_slide, readers
from scmil.slides.readers import by_pillow, by_tifffile
from scmil.slides.readers.by_tifffile import TiffReader

pytest.importorskip("openslide", reason="the extra 'slides' is not installed")
tifffile = pytest.importorskip("tifffile", reason="the extra 'slides' is not installed")
Image = pytest.importorskip("PIL.Image", reason="the extra 'slides' is not installed")

SIZE = (300, 210)
RAMP = painted(ramp, SIZE)
GREY = np.repeat(RAMP[..., :1], 3, axis=2)
TILED = dict(tile=(64, 64), compression="zlib")


def whole(path: Path) -> np.ndarray:
    with open_slide(path) as slide:
        return slide.region(0, (0, 0), slide.size)


# ----------------------------------------------------------------------------------------------- every kind of TIFF


def in_strips(path: Path) -> None:
    tifffile.imwrite(path, RAMP, photometric="rgb", rowsperstrip=7, compression="lzw", predictor=True)


def in_one_strip(path: Path) -> None:
    tifffile.imwrite(path, RAMP, photometric="rgb")


def in_tiles(path: Path) -> None:
    tifffile.imwrite(path, RAMP, photometric="rgb", **TILED)


def jpeg_2000(path: Path) -> None:
    tifffile.imwrite(path, RAMP, photometric="rgb", tile=(64, 64), compression="jpeg2000")


def colours_apart(path: Path) -> None:
    tifffile.imwrite(path, np.moveaxis(RAMP, 2, 0), photometric="rgb", planarconfig="separate", **TILED)


def colours_of_16_bits(path: Path) -> None:
    tifffile.imwrite(path, RAMP.astype(np.uint16) * 257, photometric="rgb", **TILED)


def opaque(path: Path) -> None:
    tifffile.imwrite(path, np.dstack([RAMP, np.full_like(RAMP[..., 0], 255)]), photometric="rgb", **TILED)


def a_fourth_channel_without_a_meaning(path: Path) -> None:
    samples = np.dstack([RAMP, RAMP[..., 0]])
    tifffile.imwrite(path, samples, photometric="rgb", extrasamples=["unspecified"], **TILED)


def luma_and_chroma(path: Path) -> None:
    ycbcr = np.asarray(Image.fromarray(RAMP).convert("YCbCr"))
    tifffile.imwrite(path, ycbcr, photometric="ycbcr", subsampling=(1, 1), **TILED)


def grey(path: Path) -> None:
    tifffile.imwrite(path, GREY[..., 0], photometric="minisblack", **TILED)


def grey_of_16_bits(path: Path) -> None:
    tifffile.imwrite(path, GREY[..., 0].astype(np.uint16) * 257, photometric="minisblack", rowsperstrip=10)


def negative(path: Path) -> None:
    tifffile.imwrite(path, 255 - GREY[..., 0], photometric="miniswhite", **TILED)


def palette(path: Path) -> None:
    colours = np.tile(np.arange(256, dtype=np.uint16)[::-1] * 257, (3, 1))
    tifffile.imwrite(path, 255 - GREY[..., 0], photometric="palette", colormap=colours, **TILED)


COLOURED: list[tuple[Callable[[Path], None], int]] = [
    *((write, 0) for write in (in_strips, in_one_strip, in_tiles, jpeg_2000, colours_apart, colours_of_16_bits)),
    *((write, 0) for write in (opaque, a_fourth_channel_without_a_meaning)),
    (luma_and_chroma, 3),
]


@pytest.mark.parametrize(("write", "tolerance"), COLOURED, ids=lambda value: getattr(value, "__name__", ""))
def test_tiffs_of_every_kind_give_their_colours(tmp_path: Path, write: Callable[[Path], None], tolerance: int) -> None:
    write(tmp_path / "a.tif")
    pixels = whole(tmp_path / "a.tif")
    assert pixels.dtype == np.uint8
    assert np.abs(pixels.astype(int) - RAMP).max() <= tolerance


def test_jpeg_tiles_give_their_colours(tmp_path: Path) -> None:
    tiles = RAMP[:192, :256]  # whole tiles: what is beyond the picture's edge would ring into it
    tifffile.imwrite(tmp_path / "a.tif", tiles, photometric="rgb", tile=(64, 64), compression="jpeg")
    difference = whole(tmp_path / "a.tif").astype(int) - tiles
    assert np.abs(difference).max() <= 8
    assert np.abs(difference.mean((0, 1))).max() < 0.5


@pytest.mark.parametrize("write", [grey, grey_of_16_bits, negative, palette], ids=lambda write: write.__name__)
def test_grey_tiffs_give_grey(tmp_path: Path, write: Callable[[Path], None]) -> None:
    write(tmp_path / "a.tif")
    np.testing.assert_array_equal(whole(tmp_path / "a.tif"), GREY)


@pytest.mark.parametrize(("kind", "own_share"), [("unassalpha", 0.6), ("assocalpha", 1.0)])
def test_transparency_of_a_tiff_is_laid_on_white(tmp_path: Path, kind: str, own_share: float) -> None:
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
    levels = [painted(ramp, SIZE, by) for by in (1, 2, 4)]
    with open_slide(write_tiff(tmp_path / "a.ome.tif", levels, mpp=0.25, subifds=True)) as slide:
        assert (slide.reader, slide.vendor, slide.mpp_source) == ("tifffile", "OME-TIFF", "file")
        assert slide.level_sizes == ((300, 210), (150, 105), (75, 52))
        for number, level in enumerate(levels):
            np.testing.assert_array_equal(slide.region(number, (0, 0), slide.level_sizes[number]), level)


def test_only_the_tiles_that_are_needed_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_tiles(tmp_path / "a.tif")
    decoded: list[int] = []
    plane = TiffReader._plane
    monkeypatch.setattr(TiffReader, "_plane", lambda self, page, at: decoded.append(at) or plane(self, page, at))
    with open_slide(tmp_path / "a.tif") as slide:
        slide.region(0, (64, 64), (64, 64))
        assert decoded == [6]  # five tiles a row
        slide.region(0, (60, 70), (10, 10))
        assert decoded == [6, 5]  # the other half was kept
        slide.region(0, (-50, -50), (50, 50))
        assert decoded == [6, 5]


def test_decoded_tiles_are_kept_within_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_tiles(tmp_path / "a.tif")
    monkeypatch.setattr(by_tifffile, "CACHE_BYTES", 3 * 64 * 64 * 3)
    with open_slide(tmp_path / "a.tif") as slide:
        np.testing.assert_array_equal(slide.region(0, (0, 0), SIZE), RAMP)
        assert sum(piece.nbytes for piece in slide._reader._kept.values()) <= 3 * 64 * 64 * 3  # type: ignore[attr-defined]


def test_threads_do_not_take_each_others_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_tiles(tmp_path / "a.tif")
    with open_slide(tmp_path / "a.tif") as slide, ThreadPoolExecutor(4) as pool:
        handle = type(slide._reader._file.filehandle)  # type: ignore[attr-defined]
        seek = handle.seek
        monkeypatch.setattr(handle, "seek", lambda self, *to: (seek(self, *to), time.sleep(0.002)))
        rows = list(pool.map(lambda y: slide.region(0, (0, y), (300, 1)), [0, 64, 128, 192]))
    np.testing.assert_array_equal(np.concatenate(rows), RAMP[[0, 64, 128, 192]])


def test_several_channels_are_refused(tmp_path: Path) -> None:
    channels = np.moveaxis(RAMP, 2, 0)
    tifffile.imwrite(tmp_path / "a.ome.tif", channels, photometric="minisblack", metadata={"axes": "CYX"}, **TILED)
    with pytest.raises(SlideError, match=r"axes CYX \(3 x 210 x 300\): several channels.*Only brightfield"):
        open_slide(tmp_path / "a.ome.tif")
    five = np.dstack([RAMP, RAMP[..., :2]])
    tifffile.imwrite(tmp_path / "b.tif", five, photometric="minisblack", planarconfig="contig", **TILED)
    with pytest.raises(SlideError, match="5 channels of 8 bits"):
        open_slide(tmp_path / "b.tif")
    tifffile.imwrite(tmp_path / "c.tif", RAMP.astype(np.float32), photometric="rgb", **TILED)
    with pytest.raises(SlideError, match="3 channels of 32 bits"):
        open_slide(tmp_path / "c.tif")


# --------------------------------------------------------------------------------------------------- plain pictures


@pytest.mark.parametrize("name", ["a.png", "a.jpg"])
def test_pictures_are_slides_of_one_level(tmp_path: Path, name: str) -> None:
    Image.fromarray(RAMP).save(tmp_path / name, quality=98)
    with open_slide(tmp_path / name) as slide:
        assert (slide.reader, slide.size, slide.level_downsamples, slide.known_mpp) == ("image", SIZE, (1.0,), None)
        assert np.abs(slide.region(0, (0, 0), SIZE).astype(int) - RAMP).max() <= (0 if name == "a.png" else 6)
        beyond = slide.region(0, (250, -10), (100, 40))
        assert (beyond[:10] == 255).all()
        assert (beyond[:, 50:] == 255).all()
        np.testing.assert_array_equal(beyond[10:, :50], slide.region(0, (250, 0), (50, 30)))


def test_pictures_of_every_mode_give_colours_on_white(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(np.dstack([RAMP, np.full_like(RAMP[..., 0], 51)])).save(path)
    np.testing.assert_allclose(whole(path), RAMP * 0.2 + 255 * 0.8, atol=0.51)
    Image.fromarray(GREY[..., 0].astype(np.uint16) * 257).save(path)
    np.testing.assert_array_equal(whole(path), GREY)
    Image.fromarray(GREY[..., 0]).save(path)
    np.testing.assert_array_equal(whole(path), GREY)
    indexed = Image.new("P", (9, 9), 1)
    indexed.putpalette([0, 0, 0, 10, 20, 30])
    indexed.save(path)
    assert (whole(path) == (10, 20, 30)).all()
    indexed.save(path, transparency=1)
    assert (whole(path) == 255).all()


# -------------------------------------------------------------------------------------------------- OpenSlide's own


def test_dicom_gives_its_pixels(tmp_path: Path) -> None:
    write_dicom(tmp_path / "slide.7", RAMP, mpp=0.25, series="1.2.3")
    half = painted(ramp, SIZE, by=2)
    write_dicom(tmp_path / "slide.7", half, mpp=0.5, series="1.2.3")
    with open_slide(tmp_path / "slide.7") as slide:
        assert (slide.id, slide.vendor, slide.reader) == ("slide.7", "dicom", "openslide")
        assert (slide.mpp, slide.objective, slide.storage_tile) == (0.25, 40, (64, 64))
        np.testing.assert_array_equal(slide.region(0, (0, 0), SIZE), RAMP)
        np.testing.assert_array_equal(slide.read((0, 0), (150, 105), mpp=0.5), half)


def with_a_damaged_tile(path: Path) -> Path:
    """A slide whose second tile, 64 px from the left, holds no pixels any more."""
    write_svs(path, [RAMP])
    with tifffile.TiffFile(path) as file:
        start, length = file.pages[0].dataoffsets[1], file.pages[0].databytecounts[1]
    content = bytearray(path.read_bytes())
    content[start : start + length] = b"\xff" * length
    path.write_bytes(content)
    return path


def test_damage_is_told_with_its_place_and_the_rest_stays_readable(tmp_path: Path) -> None:
    with open_slide(with_a_damaged_tile(tmp_path / "a.svs")) as slide:
        for _ in range(2):
            with pytest.raises(SlideError, match=r"a\.svs: the file is damaged or truncated at 70, 5: "):
                slide.region(0, (70, 5), (10, 10))
            np.testing.assert_array_equal(slide.region(0, (128, 0), (100, 64)), RAMP[:64, 128:228])
        with pytest.raises(SlideError, match=r"a\.svs: the file is damaged or truncated at 60, 0: "):
            slide.read((60, 0), 30, mpp=0.5)


def test_damage_in_one_thread_does_not_reach_the_others(tmp_path: Path) -> None:
    def read(x: int) -> bool:
        try:
            return bool((slide.region(0, (x, 0), (64, 64)) == RAMP[:64, x : x + 64]).all())
        except SlideError:
            return False

    with open_slide(with_a_damaged_tile(tmp_path / "a.svs")) as slide, ThreadPoolExecutor(4) as pool:
        places = [0, 64, 128, 192] * 10
        assert list(pool.map(read, places)) == [x != 64 for x in places]


# ------------------------------------------------------------------------------------------------------- refusals


def test_what_is_no_slide_is_refused_in_plain_words(tmp_path: Path) -> None:
    (tmp_path / "empty.svs").touch()
    (tmp_path / "text.svs").write_text("slide,label\n1,0\n")
    for name, said in {
        "empty.svs": r"empty\.svs is empty \(0 bytes\)",
        "text.svs": r"text\.svs is not a slide.*its 16 bytes begin with b'slide,la'",
        "missing.svs": r"missing\.svs: there is no such file",
        ".": "is a folder; a slide is a file",
    }.items():
        with pytest.raises(SlideError, match=said):
            open_slide(tmp_path / name)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_refused(tmp_path: Path) -> None:
    in_tiles(tmp_path / "a.tif")
    (tmp_path / "a.tif").chmod(0)
    with pytest.raises(SlideError, match="no permission to read it"):
        open_slide(tmp_path / "a.tif")


def test_a_wrong_name_is_only_warned_of(tmp_path: Path) -> None:
    Image.fromarray(RAMP).save(tmp_path / "a.svs", format="PNG")
    in_tiles(tmp_path / "b.png")
    in_tiles(tmp_path / "c.tif")
    with open_slide(tmp_path / "a.svs") as slide:
        np.testing.assert_array_equal(slide.region(0, (0, 0), SIZE), RAMP)
        assert slide.warnings == ("the name ends in .svs, but the content is PNG; it is read by its content.",)
    assert open_slide(tmp_path / "b.png").warnings == (
        "the name ends in .png, but the content is TIFF; it is read by its content.",
    )
    assert open_slide(tmp_path / "c.tif").warnings == ()


@pytest.mark.parametrize(("name", "folder"), [("a.mrxs", "a"), ("a.vsi", "_a_")])
def test_the_cover_of_a_slide_is_not_taken_for_the_slide(tmp_path: Path, name: str, folder: str) -> None:
    Image.fromarray(RAMP).save(tmp_path / name, format="JPEG" if name == "a.mrxs" else "TIFF")
    with pytest.raises(
        SlideError, match=f"only the cover of a slide .* in the folder {folder}, which is not there: copy it"
    ):
        open_slide(tmp_path / name)


@pytest.mark.parametrize("kept", [0.02, 0.4, 0.95])
@pytest.mark.parametrize("write", [in_tiles, in_strips, in_one_strip], ids=lambda write: write.__name__)
def test_a_truncated_tiff_is_refused(tmp_path: Path, write: Callable[[Path], None], kept: float) -> None:
    write(tmp_path / "whole.tif")
    content = (tmp_path / "whole.tif").read_bytes()
    (tmp_path / "cut.tif").write_bytes(content[: int(kept * len(content))])
    with pytest.raises(SlideError, match=r"cut\.tif: the file is damaged or truncated"):
        open_slide(tmp_path / "cut.tif")


@pytest.mark.parametrize("kept", [0.02, 0.4, 0.95])
def test_a_truncated_svs_is_refused_when_it_is_opened_or_read(tmp_path: Path, kept: float) -> None:
    content = write_svs(tmp_path / "whole.svs", [RAMP]).read_bytes()
    (tmp_path / "cut.svs").write_bytes(content[: int(kept * len(content))])
    with pytest.raises(SlideError, match=r"cut\.svs: the file is damaged or truncated"):
        open_slide(tmp_path / "cut.svs").read((0, 0), SIZE, mpp=0.25)


@pytest.mark.parametrize("kept", [20, 200])
def test_a_truncated_picture_is_refused(tmp_path: Path, kept: int) -> None:
    for name in ("a.png", "a.jpg"):
        Image.fromarray(RAMP).save(tmp_path / name)
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:kept])
        with pytest.raises(SlideError, match=r"damaged or truncated"):
            open_slide(tmp_path / name).region(0, (0, 0), SIZE)


@pytest.mark.parametrize("kind", ["svs", "tif", "ome.tif"])
def test_random_damage_is_survived_or_refused_and_never_a_crash(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    content = (
        write_svs(path, [RAMP]) if kind == "svs" else write_tiff(path, [RAMP], subifds=kind != "tif")
    ).read_bytes()
    generator, refused = np.random.default_rng(0), 0
    for _ in range(80):
        damaged = np.frombuffer(content, np.uint8).copy()
        places = np.r_[generator.integers(0, 500, 3), generator.integers(0, len(content), 2)]  # the header is in front
        damaged[places] = generator.integers(0, 256, 5)
        path.write_bytes(damaged.tobytes())
        try:
            with open_slide(path, mpp=0.25) as slide:
                slide.read((10, 10), 64, mpp=0.6)
        except SlideError:
            refused += 1
    assert refused > 10


def png_of(width: int, height: int) -> bytes:
    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_a_picture_of_enormous_size_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png_of(2**31 - 1, 2**31 - 1))
    with pytest.raises(SlideError, match=r"2147483647 x 2147483647 px.*2147483648 is the most.*vips tiffsave"):
        open_slide(tmp_path / "a.png")
    (tmp_path / "a.png").write_bytes(png_of(20_000, 15_000))
    with pytest.raises(ScmilError, match="65 bytes in the file that would be 2100000000 in memory"):
        open_slide(tmp_path / "a.png")
    (tmp_path / "a.png").write_bytes(
        png_of(20_000, 15_000) + bytes(22_000_000)
    )  # pillow's own limit is lower than this
    with open_slide(tmp_path / "a.png") as slide:
        assert slide.size == (20_000, 15_000)


def set_tags(path: Path, **values: int) -> None:
    with tifffile.TiffFile(path, mode="r+") as file:
        for name, value in values.items():
            file.pages[0].tags[name].overwrite(value, dtype="I")


def test_a_tiff_of_enormous_size_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    enormous: Any = dict(ImageWidth=2**31 - 1, ImageLength=2**31 - 1)
    in_tiles(tmp_path / "a.tif")
    set_tags(tmp_path / "a.tif", **enormous)
    with pytest.raises(SlideError, match=r"a\.tif: the file is damaged.*but the file lists 20"):
        open_slide(tmp_path / "a.tif")
    set_tags(tmp_path / "a.tif", **enormous, TileWidth=2**30, TileLength=2**30)
    with pytest.raises(SlideError, match="in pieces of 1073741824 x 1073741824, of which each is decoded whole"):
        open_slide(tmp_path / "a.tif")


def test_a_missing_library_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiff(tmp_path / "a.ome.tif", [RAMP], subifds=True)
    for module in ("defusedxml.ElementTree", "tifffile", "openslide"):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingExtraError, match=rf"needs the module '{module}'.*pip install 'scmil\[slides\]'"):
            open_slide(tmp_path / "a.ome.tif")


def test_a_small_picture_file_that_would_fill_the_memory_is_rejected_before_it_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.png").write_bytes(png_of(22_000, 22_000))
    png = sys.modules["PIL.PngImagePlugin"].PngImageFile
    monkeypatch.setattr(png, "load", lambda image: pytest.fail("memory was taken"))
    with pytest.raises(ScmilError, match=r"a\.png says that it is 22000 x 22000 px.*bytes of memory"):
        open_slide(tmp_path / "a.png", mpp=1.0)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "I;16"])
def test_colours_are_converted_a_few_rows_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    if mode == "I;16":
        Image.fromarray(RAMP[..., 0].astype(np.uint16) * 257).save(tmp_path / "a.png")
    else:
        Image.fromarray(RAMP).convert(mode).save(tmp_path / "a.png")
    at_once = whole(tmp_path / "a.png")
    largest = 0

    def watched(image: Any) -> Any:
        nonlocal largest
        largest = max(largest, image.size[0] * image.size[1])
        return rgb(image)

    rgb = by_pillow._rgb
    monkeypatch.setattr(by_pillow, "_rgb", watched)
    monkeypatch.setattr(readers, "BAND_PX", 10 * SIZE[0])
    np.testing.assert_array_equal(whole(tmp_path / "a.png"), at_once)
    assert 0 < largest <= 10 * SIZE[0]


def test_samples_of_a_tiff_are_converted_a_few_rows_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tifffile.imwrite(tmp_path / "a.tif", RAMP.astype(np.uint16) * 257, photometric="rgb")
    rows: list[int] = []
    converted = by_tifffile._converted
    monkeypatch.setattr(
        by_tifffile, "_converted", lambda page, samples: rows.append(len(samples)) or converted(page, samples)
    )
    monkeypatch.setattr(readers, "BAND_PX", 10 * SIZE[0])
    np.testing.assert_array_equal(whole(tmp_path / "a.tif"), RAMP)
    assert max(rows) == 10


def tiff_of_one_tile(path: Path, content: bytes, compression: int) -> Path:
    """A TIFF of 64 x 64 px of grey in one tile, whose content may be of any size."""
    tags = [(256, 64), (257, 64), (258, 8), (259, compression), (262, 1), (277, 1), (322, 64), (323, 64), (324, 8)]
    entries = [struct.pack("<HHII", tag, 4, 1, value) for tag, value in [*tags, (325, len(content))]]
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
        monkeypatch.setattr(tifffile.TiffPage, "decode", lambda *_, **__: pytest.fail("it was decoded"))
        with pytest.raises(SlideError, match="64 x 64 px holds a picture of 2000 x 3000"):
            slide.region(0, (0, 0), (64, 64))


def test_a_compression_whose_pictures_say_their_own_size_and_are_not_checked_is_rejected(tmp_path: Path) -> None:
    path = tiff_of_one_tile(tmp_path / "a.tif", b"no JPEG XL", 50002)
    with pytest.raises(SlideError, match=r"compressed with JPEGXL.*vips tiffsave"):
        open_slide(path)


def test_a_piece_of_many_bytes_a_pixel_is_refused_by_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tifffile.imwrite(tmp_path / "a.tif", RAMP.astype(np.uint16), photometric="rgb")
    monkeypatch.setattr(by_tifffile, "MOST_PX_AT_ONCE", SIZE[0] * SIZE[1])
    with pytest.raises(SlideError, match=r"378000 bytes: 189000 is the most"):
        open_slide(tmp_path / "a.tif")


def test_tiles_that_were_never_written_take_no_memory(tmp_path: Path) -> None:
    path = tiff_of_one_tile(tmp_path / "a.tif", b"", 1)
    with open_slide(path) as slide:
        assert (slide.region(0, (0, 0), (64, 64)) == 255).all()
        assert slide._reader._segment(0, 0).strides == (0, 0, 0)  # type: ignore[attr-defined]
