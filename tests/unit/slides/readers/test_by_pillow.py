from __future__ import annotations

import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reader_cases import GREY, RAMP, SIZE, Image, whole

from scmil.errors import ScmilError, SlideError
from scmil.slides import open_slide, readers
from scmil.slides.readers import by_pillow


@pytest.mark.parametrize("name", ["a.png", "a.jpg"])
def test_pictures_are_slides_of_one_level(tmp_path: Path, name: str) -> None:
    Image.fromarray(RAMP).save(tmp_path / name, quality=98)
    with open_slide(tmp_path / name) as slide:
        assert (slide.reader, slide.size, slide.level_downsamples, slide.known_mpp) == (
            "image",
            SIZE,
            (1.0,),
            None,
        )
        assert np.abs(slide.region(0, (0, 0), SIZE).astype(int) - RAMP).max() <= (
            0 if name == "a.png" else 6
        )
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


@pytest.mark.parametrize("kept", [20, 200])
def test_a_truncated_picture_is_rejected(tmp_path: Path, kept: int) -> None:
    for name in ("a.png", "a.jpg"):
        Image.fromarray(RAMP).save(tmp_path / name)
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:kept])
        with pytest.raises(SlideError, match=r"damaged or truncated"):
            open_slide(tmp_path / name).region(0, (0, 0), SIZE)


def png_of(width: int, height: int) -> bytes:
    def chunk(name: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content))
            + name
            + content
            + struct.pack(">I", zlib.crc32(name + content))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )


def test_a_picture_of_enormous_size_is_rejected_before_it_is_decoded(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png_of(2**31 - 1, 2**31 - 1))
    with pytest.raises(
        SlideError,
        match=r"2147483647 x 2147483647 px.*at most 2147483648 are allowed.*vips tiffsave",
    ):
        open_slide(tmp_path / "a.png")
    (tmp_path / "a.png").write_bytes(png_of(20_000, 15_000))
    with pytest.raises(
        ScmilError, match="65 bytes in the file would be 2100000000 bytes in memory"
    ):
        open_slide(tmp_path / "a.png")
    (tmp_path / "a.png").write_bytes(
        png_of(20_000, 15_000) + bytes(22_000_000)
    )  # pillow's own limit is lower than this
    with open_slide(tmp_path / "a.png") as slide:
        assert slide.size == (20_000, 15_000)


def test_a_small_picture_file_that_would_fill_the_memory_is_rejected_before_it_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.png").write_bytes(png_of(22_000, 22_000))
    png = sys.modules["PIL.PngImagePlugin"].PngImageFile
    monkeypatch.setattr(png, "load", lambda image: pytest.fail("memory was taken"))
    with pytest.raises(
        ScmilError, match=r"a\.png has 22000 x 22000 px according to its header.*bytes of memory"
    ):
        open_slide(tmp_path / "a.png", mpp=1.0)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "I;16"])
def test_colours_are_converted_a_few_rows_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
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

    rgb = by_pillow._picture_rgb
    monkeypatch.setattr(by_pillow, "_picture_rgb", watched)
    monkeypatch.setattr(readers, "BAND_PX", 10 * SIZE[0])
    np.testing.assert_array_equal(whole(tmp_path / "a.png"), at_once)
    assert 0 < largest <= 10 * SIZE[0]
