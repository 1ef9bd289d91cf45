"""PNG and JPEG with extreme sizes, depths and chunks."""

from __future__ import annotations

import struct
import zlib
from random import Random

from structures.values import SIZES, GeneratedFile, zlib_zeros


def png_file(good: bytes, random: Random) -> GeneratedFile:
    """A PNG with extreme sizes, depths and chunks."""
    width, height = (random.choice((0, 1, 96, 10_000, 30_000, 60_000, 2**31 - 1)) for _ in range(2))
    depth, colour = random.choice(((8, 2), (16, 6), (1, 0), (8, 3), (16, 0), (3, 9)))
    size = random.choice(SIZES)
    chunks = [
        (
            b"IHDR",
            struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, random.choice((0, 0, 1))),
        )
    ]
    words = f"{width} x {height}, {depth} bits of kind {colour}, {size} zeros"
    how = random.randrange(5)
    if how == 0:
        chunks.append((random.choice((b"zTXt", b"iCCP")), b"a\0\0" + zlib_zeros(size)))
        words += ", a packed note of as many"
    elif how == 1:
        chunks += [(b"tEXt", b"a\0b")] * 50_000
        words += ", 50 000 notes"
    elif how == 2:
        chunks.append((b"acTL", struct.pack(">II", 2**31 - 1, 0)))
        words += ", 2 billion frames"
    chunks += [(b"IDAT", zlib_zeros(size)), (b"IEND", b"")]
    body = b"".join(
        struct.pack(">I", len(inside))
        + kind
        + inside
        + struct.pack(">I", zlib.crc32(kind + inside))
        for kind, inside in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body, words


def jpeg_file(good: bytes, random: Random) -> GeneratedFile:
    """A JPEG that declares another size, or has many scans."""
    width, height = (random.choice((0, 1, 96, 10_000, 65_500, 65_535)) for _ in range(2))
    at = next(
        (
            place
            for place in range(len(good) - 9)
            if good[place : place + 2] in (b"\xff\xc0", b"\xff\xc2")
        ),
        None,
    )
    if at is None:
        return good, "as it was"
    content = bytearray(good)
    content[at + 5 : at + 9] = struct.pack(">HH", height, width)
    words = f"{width} x {height}"
    if random.random() < 0.3:
        content[at + 1] = 0xC2
        scan = good.find(b"\xff\xda")
        content[-2:] = good[scan:-2] * random.choice((10, 2000)) + good[-2:]
        words += ", many scans"
    return bytes(content), words
