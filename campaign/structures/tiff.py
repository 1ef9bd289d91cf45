"""TIFF with extreme tags: sizes, counts, compressions, offsets, cyclic pages."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from structures.values import GeneratedFile, short, zlib_zeros

Tags = dict[int, tuple[int, Sequence[int]]]  # type and values by tag
TIFF_TYPES = {1: "B", 3: "H", 4: "I", 5: "II", 16: "Q"}


def tiff(
    pages: Sequence[Tags],
    data: bytes,
    following: Sequence[int],
    big: bool = False,
) -> bytes:
    """A TIFF with these pages; the data start at byte 16, `following` is the next page of each."""
    head = (
        struct.pack("<2sHHHQ", b"II", 43, 8, 0, 0) if big else struct.pack("<2sHI8x", b"II", 42, 0)
    )
    content = bytearray(head + data)
    page_offsets: list[int] = []
    form, count_form, inline = ("Q", "Q", 8) if big else ("I", "H", 4)
    pointers: list[tuple[int, int]] = []
    for number, tags in enumerate(pages):
        rows = []
        for tag in sorted(tags):
            kind, values = tags[tag]
            packed = b"".join(
                struct.pack(
                    "<" + TIFF_TYPES[kind][0],
                    value % 2 ** (8 * struct.calcsize(TIFF_TYPES[kind][0])),
                )
                for value in values
            )
            count = len(values) // len(TIFF_TYPES[kind])
            if len(packed) > inline:
                rows.append(struct.pack(f"<HH{form}{form}", tag, kind, count, len(content)))
                content += packed
            else:
                rows.append(
                    struct.pack(f"<HH{form}", tag, kind, count) + packed.ljust(inline, b"\0")
                )
        page_offsets.append(len(content))
        content += struct.pack("<" + count_form, len(rows)) + b"".join(rows)
        pointers.append((len(content), number))
        content += bytes(inline)
    for offset, number in pointers:
        target = following[number]
        content[offset : offset + inline] = struct.pack(
            "<" + form, page_offsets[target] if 0 <= target < len(page_offsets) else 0
        )
    content[8 if big else 4 : 16 if big else 8] = struct.pack("<" + form, page_offsets[0])
    return bytes(content)


class _Layout(NamedTuple):
    """Sizes of the image and of its tiles, and how pixels are stored."""

    width: int
    height: int
    tile: int
    compression: int
    samples: int = 3
    bits: int = 8

    def __str__(self) -> str:
        return (
            f"{self.width} x {self.height}, tiles of {self.tile}, "
            f"{self.samples} samples of {self.bits} bits, compression {self.compression}"
        )

    def pixels(self) -> bytes:
        """The data of one tile."""
        size = self.tile * self.tile * max(self.samples, 1)
        if self.compression == 1:
            return bytes(min(size, 2**16))
        return zlib_zeros(2**31 if size > 2**30 else max(min(size, 2**26), 1))

    def tile_count(self) -> int:
        """The number of tiles that the file lists."""
        if not self.tile:
            return 1
        return min(math.ceil(self.width / self.tile) * math.ceil(self.height / self.tile), 300_000)

    def tags(self) -> Tags:
        """The tags that tiles and strips have in common."""
        return {
            256: (4, [self.width]),
            257: (4, [self.height]),
            258: (3, [self.bits] * min(self.samples, 8)),
            259: (3, [self.compression]),
            262: (3, [2 if self.samples >= 3 else 1]),
            277: (3, [self.samples]),
            284: (3, [1]),
            282: (5, [5000, 1]),
            283: (5, [5000, 1]),
            296: (3, [3]),
        }


EXTREME_LAYOUTS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("width", (0, 1, 64, 60_000, 2**31 - 1, 2**32 - 1)),
    ("height", (0, 1, 64, 60_000, 2**31 - 1, 2**32 - 1)),
    ("tile", (0, 1, 16, 20_000, 60_000, 2**31)),
    ("samples", (1, 4, 65_535)),
    ("bits", (16, 1, 64)),
    ("compression", (5, 7, 32773, 33003, 34712, 50000, 65535)),
)


def _choose_layout(random: Random) -> _Layout:
    side = random.choice((64, 256, 5000, 20_000, 60_000))
    layout = _Layout(side, side, tile=random.choice((64, 256)), compression=random.choice((1, 8)))
    for _ in range(random.choice((0, 1, 1, 2))):
        name, values = EXTREME_LAYOUTS[random.randrange(6)]
        layout = layout._replace(**{name: random.choice(values)})
    return layout


def tiff_file(good: bytes, random: Random) -> GeneratedFile:
    """A TIFF with extreme tags: sizes, counts, compressions, offsets, cyclic pages."""
    big = random.random() < 0.2
    layout = _choose_layout(random)
    pixels, count, words, tags = layout.pixels(), layout.tile_count(), str(layout), layout.tags()
    tile, height = layout.tile, layout.height
    offsets, lengths = [16] * count, [len(pixels)] * count
    if random.random() < 0.15:
        offsets = [random.choice((0, 2**31, 2**32 - 1))] * count
        words += f", at {offsets[0] if offsets else None}"
    if random.random() < 0.75:
        tags |= {322: (4, [tile]), 323: (4, [tile]), 324: (4, offsets), 325: (4, lengths)}
    else:
        rows = random.choice((1, 64, height % 2**32, 2**32 - 1))
        if height * layout.width > 2**28 and layout.compression == 8:
            pixels = zlib_zeros(2**31)
        tags |= {273: (4, [16]), 279: (4, [len(pixels)]), 278: (4, [rows])}
        words += f", strips of {rows} rows"
    if random.random() < 0.2:
        words += _change_tag(tags, random)
    pages = [tags] * random.choice((1, 1, 2, 3, 500 if count < 100 else 3))
    following = [number + 1 for number in range(len(pages))]
    if random.random() < 0.25:
        following[-1] = random.randrange(len(pages))
        words += f", page {len(pages)} leads back to {following[-1] + 1}"
    words += f", {len(pages)} pages{', BigTIFF' if big else ''}"
    return tiff(pages, pixels, following, big), words


def _change_tag(tags: Tags, random: Random) -> str:
    tag = random.choice(list(tags))
    kind = tags[tag][0]
    values = [random.choice((0, 2**16 - 1, 2**32 - 1))] * random.choice((0, 1, 1000))
    tags[tag] = (kind, values)
    return f", tag {tag} is {short(values[:1])} x {len(values)}"
