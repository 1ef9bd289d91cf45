from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reader_cases import SIZE, tifffile

from scmil.errors import SlideError
from scmil.slides import open_slide
from scmil.slides.readers.jpeg import PADDING_BYTES, Corrupt, decode_strictly, find_frame, is_strict

imagecodecs = pytest.importorskip("imagecodecs")

NOISE = np.random.default_rng(0).integers(0, 256, (*SIZE[::-1], 3)).astype(np.uint8)
KINDS: dict[str, dict[str, Any]] = {
    "4:4:4": dict(photometric="ycbcr", subsampling=(1, 1), tile=(64, 64)),
    "4:2:0": dict(photometric="ycbcr", subsampling=(2, 2), tile=(64, 64)),
    "RGB": dict(photometric="rgb", tile=(64, 64), compressionargs={"outcolorspace": "rgb"}),
    "strips": dict(photometric="ycbcr", subsampling=(2, 1), rowsperstrip=64),
    "grey": dict(photometric="minisblack", tile=(64, 64)),
}


def write_jpeg(path: Path, kind: str) -> Path:
    """A TIFF in JPEG that no scanner wrote, so that tifffile reads it."""
    pixels = NOISE[..., 0] if kind == "grey" else NOISE
    tifffile.imwrite(path, pixels, compression="jpeg", **KINDS[kind])
    return path


def second_tile(path: Path) -> tuple[int, int]:
    with tifffile.TiffFile(path) as file:
        return file.pages[0].dataoffsets[1], file.pages[0].databytecounts[1]


def changed(path: Path, at: int, content: bytes) -> None:
    """Overwrite bytes of a file."""
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


@pytest.mark.parametrize("kind", KINDS)
def test_pixels_are_those_of_tifffile(tmp_path: Path, kind: str) -> None:
    path = write_jpeg(tmp_path / "a.tif", kind)
    expected = tifffile.imread(path)
    with open_slide(path, mpp=0.5) as slide, tifffile.TiffFile(path) as file:
        assert slide.reader == "tifffile"
        assert is_strict(file.pages[0])
        assert file.pages[0].photometric.name.lower() == KINDS[kind]["photometric"]
        found = slide.region(0, (0, 0), SIZE)
    np.testing.assert_array_equal(found[..., 0] if kind == "grey" else found, expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", ["an early end", "zeros", "a flipped bit", "cut off"])
def test_a_damaged_tile_of_a_tiff_is_reported_and_the_others_are_read(
    tmp_path: Path, kind: str, damage: str
) -> None:
    path = write_jpeg(tmp_path / "a.tif", kind)
    (start, length), before = second_tile(path), tifffile.imread(path)
    middle = start + length // 2
    if damage == "an early end":
        changed(path, middle, b"\xff\xd9")
    elif damage == "zeros":
        changed(path, middle, bytes(100))
    elif damage == "cut off":
        changed(path, middle, bytes(length - length // 2))
    else:  # many flips leave the length of every code as it is, and are not damage for a decoder
        content = path.read_bytes()
        bits = ((at, bytes([content[at] ^ 8])) for at in range(middle, middle + 200))
        for at, byte in bits:
            changed(path, at, byte)
            if _is_rejected(path):
                break
            changed(path, at, content[at : at + 1])
    x, y = (0, 64) if kind == "strips" else (64, 0)
    with open_slide(path, mpp=0.5) as slide:
        message = rf"damaged or truncated at {x + 1}, {y + 1}: (Corrupt|Premature end of) JPEG"
        with pytest.raises(SlideError, match=message):
            slide.region(0, (x + 1, y + 1), (10, 10))
        found = slide.region(0, (0, 0), (64, 64))
    expected = before[:64, :64]
    np.testing.assert_array_equal(found[..., 0] if kind == "grey" else found, expected)


def _is_rejected(path: Path) -> bool:
    with tifffile.TiffFile(path) as file:
        page = file.pages[0]
        start, length = page.dataoffsets[1], page.databytecounts[1]
        try:
            decode_strictly(page, path.read_bytes()[start : start + length])
        except Corrupt:
            return True
        return False


@pytest.mark.parametrize(
    ("padding", "accepted"), [(PADDING_BYTES, True), (4 * PADDING_BYTES, False)]
)
def test_a_few_bytes_of_padding_before_the_end_are_no_damage(
    tmp_path: Path, padding: int, accepted: bool
) -> None:
    path = write_jpeg(tmp_path / "a.tif", "4:2:0")
    start, length = second_tile(path)
    content = path.read_bytes()[start : start + length]
    padded = content[:-2] + bytes(padding) + content[-2:]
    with tifffile.TiffFile(path) as file:
        page = file.pages[0]
        if accepted:
            np.testing.assert_array_equal(
                decode_strictly(page, padded), decode_strictly(page, content)
            )
            return
        with pytest.raises(Corrupt, match=r"extraneous bytes before marker 0xd9"):
            decode_strictly(page, padded)


def test_a_lossless_jpeg_is_left_to_imagecodecs(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    options = {"lossless": True, "bitspersample": 8}
    tifffile.imwrite(
        path, NOISE[..., 0], compression="jpeg", compressionargs=options, tile=(64, 64)
    )
    start, length = second_tile(path)
    frame = find_frame(path.read_bytes()[start : start + length])
    assert frame is not None
    assert frame.marker == 0xC3
    with open_slide(path, mpp=0.5) as slide:
        np.testing.assert_array_equal(slide.region(0, (0, 0), SIZE)[..., 0], NOISE[..., 0])


def test_a_tile_that_is_no_jpeg_is_reported(tmp_path: Path) -> None:
    path = write_jpeg(tmp_path / "a.tif", "4:4:4")
    changed(path, second_tile(path)[0], b"\0\0")
    with (
        open_slide(path, mpp=0.5) as slide,
        pytest.raises(SlideError, match=r"a tile or strip is not a JPEG file"),
    ):
        slide.region(0, (64, 0), (10, 10))


def without_a_hint(content: bytes) -> bytes:
    """A JPEG in RGB whose components are numbered as those of YCbCr are, without Adobe's marker."""
    if (at := content.find(b"\xff\xee")) > 0:
        content = content[:at] + content[at + 2 + int.from_bytes(content[at + 2 : at + 4], "big") :]
    patched = bytearray(content)
    for marker, first, step in ((b"\xff\xc0", 10, 3), (b"\xff\xda", 5, 2)):
        start = patched.index(marker) + first
        patched[start : start + 3 * step : step] = b"\1\2\3"
    return bytes(patched)


def test_rgb_without_a_hint_is_read_as_the_file_declares_it(tmp_path: Path) -> None:
    tile = NOISE[:64, :64]
    plain = imagecodecs.jpeg8_encode(tile, 90, colorspace="rgb", outcolorspace="rgb")
    hidden = without_a_hint(plain)
    expected = imagecodecs.jpeg8_decode(plain)
    assert (imagecodecs.jpeg8_decode(hidden) != expected).any()  # taken for YCbCr
    tifffile.imwrite(
        tmp_path / "a.tif",
        iter([hidden]),
        shape=tile.shape,
        dtype=np.uint8,
        photometric="rgb",
        compression="jpeg",
        compressionargs={"outcolorspace": "rgb"},  # else tifffile declares YCbCr
        tile=(64, 64),
    )
    with open_slide(tmp_path / "a.tif", mpp=0.5) as slide:
        np.testing.assert_array_equal(slide.region(0, (0, 0), (64, 64)), expected)
