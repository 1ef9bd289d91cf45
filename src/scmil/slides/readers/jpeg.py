"""Decode JPEG tiles and strips, and reject damaged ones.

libjpeg continues after damaged data with grey or shifted pixels and only warns. imagecodecs and
Pillow ignore the warnings; simplejpeg raises them. OpenSlide raises them too, but does not read
data after the last row: there, damage leaves most traces.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from scmil.core.extras import import_extra
from scmil.slides.readers import Damaged, Pixels

JPEG, CONTIGUOUS = 7, 1
KINDS = {JPEG, 33007, 34892}  # TIFF compressions whose tiles are complete JPEG files
START, END = b"\xff\xd8", b"\xff\xd9"
FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # markers of segments that contain the size
LOSSY_FRAMES = {0xC0, 0xC1, 0xC2}  # sequential and progressive with Huffman codes
# Adobe's marker with transform 0: the components are red, green and blue.
IS_RGB = bytes.fromhex("ffee 000e 41646f6265 0064 0000 0000 00")
# Encoders may pad the data of a picture.
EXTRANEOUS = re.compile(r"Corrupt JPEG data: (\d+) extraneous bytes before marker 0xd9")
PADDING_BYTES = 16
DAMAGE = ("Corrupt JPEG data", "Premature end of JPEG file")  # libjpeg's warnings begin so


class Corrupt(Damaged):
    """The data of a JPEG is damaged, whatever another decoder makes of it."""


class JpegFrame(NamedTuple):
    """The header of the picture in a JPEG: its position, kind, size and number of components."""

    at: int
    marker: int
    width: int
    height: int
    components: int


def find_frame(content: bytes) -> JpegFrame | None:
    """The frame header of a JPEG; None if it is missing.

    >>> find_frame(bytes.fromhex("ffd8 ffe0 0004 0000 ffc0 000b 08 0010 0020 01 011100"))
    JpegFrame(at=8, marker=192, width=32, height=16, components=1)
    """
    at = 2
    while at + 10 <= len(content) and content[at] == 0xFF:
        if content[at + 1] in FRAMES:
            height, width = (int.from_bytes(content[at + i : at + i + 2], "big") for i in (5, 7))
            return JpegFrame(at, content[at + 1], width, height, content[at + 9])
        fill = content[at + 1] == 0xFF
        at += 1 if fill else 2 + int.from_bytes(content[at + 2 : at + 4], "big")
    return None


def is_strict(page: Any) -> bool:
    """Whether `decode_strictly` decodes the tiles or strips of a page of tifffile.

    These are JPEG files of 8 bits in grey or colour, with all samples of a pixel together.
    """
    return (
        int(page.compression) in KINDS
        and int(page.planarconfig) == CONTIGUOUS
        and page.bitspersample == 8
        and page.samplesperpixel in (1, 3)
        and not page.extrasamples
    )


def decode_strictly(page: Any, content: bytes) -> Pixels | None:
    """Decode a tile or strip of a page for which `is_strict`.

    Args:
        page: The page of tifffile, with the tables and colours that its tiles share.
        content: The bytes of the tile.

    Returns:
        Pixels in RGB (h, w, 3), or in grey (h, w, 1), of the size that the tile declares; None for
        a JPEG of a rare kind, such as lossless.

    Raises:
        Corrupt: If the compressed data is damaged.
        Damaged: If it is not a JPEG, or the decoder fails for another reason.
    """
    frame = find_frame(content)
    if frame is None or not content.startswith(START):
        raise Damaged("a tile or strip is not a JPEG file")
    if frame.marker not in LOSSY_FRAMES or frame.components != page.samplesperpixel:
        return None
    tables = page.jpegtables[2:].removesuffix(END) if page.jpegtables else b""
    # libjpeg would take three components without a marker for YCbCr. A JFIF file is YCbCr: there
    # it ignores this marker.
    colours = IS_RGB if page.photometric.name == "RGB" else b""
    whole = b"".join((START, tables, content[2 : frame.at], colours, content[frame.at :]))
    return _decode_whole(whole, "RGB" if frame.components == 3 else "GRAY")


def _decode_whole(content: bytes, colours: str) -> Pixels:
    decode = import_extra("simplejpeg", "slides").decode_jpeg
    try:
        return decode(content, colours)
    except ValueError as error:
        left = EXTRANEOUS.fullmatch(str(error))
        if left and int(left[1]) <= PADDING_BYTES:
            return decode(content, colours, strict=False)
        kind = Corrupt if str(error).startswith(DAMAGE) else Damaged
        raise kind(str(error)) from error
