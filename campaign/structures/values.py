"""Extreme values, compressed zeros and archives, which the generators of all formats use."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Any

GeneratedFile = tuple[bytes, str]
Generator = Callable[[bytes, Random], GeneratedFile]
EXTREME_INTEGERS = (
    0,
    1,
    -1,
    2,
    3,
    127,
    128,
    255,
    256,
    32767,
    65535,
    65536,
    10**6,
    10**7,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    10**12,
    2**53,
    2**62,
    -(2**62),
    2**63 - 1,
    -(2**63),
    2**64,
    10**30,
)
EXTREME_FLOATS = (
    0.0,
    -0.0,
    1e-6,
    1e-300,
    5e-324,
    0.5,
    1e6,
    1e18,
    1e38,
    1e39,
    1e300,
    1e308,
    float("inf"),
    float("-inf"),
    float("nan"),
)
TEXTS = (
    "",
    " ",
    "x",
    "0",
    "-1",
    "nan",
    "inf",
    "1e999",
    "null",
    "../../escaped",
    "/etc/passwd",
    "a\0b",
    "\ud800",
    "\u202e",
    "=1+1",
    "\n=1+1",
    "＝1+1",
    "A" * 100_000,
    "é" * 300,
    "timm:hf-hub:nobody/nothing",
    "\x1b[2J",
    "<script>",
    "cpu",
    "true",
)
BLOCK = 2**24
SIZES = (2**20, 2**26, 2**30, 2**31)  # bytes of zeros; the last two exceed the memory limit
COUNTS = (2, 10, 1000, 20_000)
DEPTHS = (10, 200, 990, 5000, 100_000)


def extreme_value(random: Random) -> Any:
    """An extreme number, a text or an unexpected type."""
    kind = random.randrange(8)
    if kind < 3:
        return random.choice(EXTREME_INTEGERS)
    if kind < 5:
        return random.choice(EXTREME_FLOATS)
    if kind < 6:
        return random.choice(TEXTS)
    return random.choice((None, True, False, [], {}, [[]], {"": None}, [0] * 1000, [1, "a", None]))


def short(value: Any) -> str:
    """The representation of a value, cut to 40 characters.

    >>> short("A" * 100), short(2**62)
    ("'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA…", '4611686018427387904')
    """
    text = repr(value)
    return text if len(text) <= 40 else text[:40] + "…"


@cache
def zeros(size: int) -> bytes:
    """A raw deflate stream of `size` zeros: a repeated block and a remainder.

    >>> zlib.decompress(zeros(10**8 + 1), -15) == bytes(10**8 + 1)
    True
    """
    many, rest = divmod(size, BLOCK)
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return _packed_block() * many + packer.compress(bytes(rest)) + packer.flush()


@cache
def _packed_block() -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(bytes(BLOCK)) + packer.flush(zlib.Z_FULL_FLUSH)


def zlib_zeros(size: int, before: bytes = b"") -> bytes:
    """A zlib stream of some bytes and `size` zeros.

    Its checksum is wrong, which a reader notices only after it has expanded everything.
    """
    packer = zlib.compressobj(1, zlib.DEFLATED, -15)
    first = packer.compress(before) + packer.flush(zlib.Z_FULL_FLUSH) if before else b""
    return b"\x78\x01" + first + zeros(size) + b"\0\0\0\1"


def raw_zip(members: Sequence[tuple[str, bytes, int, int]]) -> bytes:
    """A ZIP archive of compressed members: name, bytes, declared size, method."""
    body, directory = bytearray(), bytearray()
    for name, content, size, method in members:
        encoded = name.encode("utf-8", "surrogatepass")
        size = min(size, 2**32 - 2)
        common = struct.pack(
            "<HHHHHIIIHH", 20, 0, method, 0, 0, 0, len(content), size, len(encoded), 0
        )
        directory += (
            b"PK\x01\x02\x14\x00" + common + struct.pack("<HHHII", 0, 0, 0, 0, len(body)) + encoded
        )
        body += b"PK\x03\x04" + common + encoded + content
    end = struct.pack("<HHHHIIH", 0, 0, len(members), len(members), len(directory), len(body), 0)
    return bytes(body) + bytes(directory) + b"PK\x05\x06" + end


def nested_entities(levels: int) -> str:
    """XML entities, each ten times as long as the one before."""
    each = (f'<!ENTITY {chr(98 + n)} "{("&" + chr(97 + n) + ";") * 10}">' for n in range(levels))
    return f'<!DOCTYPE a [<!ENTITY a "{"x" * 100}">{"".join(each)}]>'


def pack_archive(members: Sequence[tuple[str, bytes]]) -> bytes:
    """A ZIP archive of uncompressed members; names may repeat."""
    import warnings

    content = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(content, "w") as archive:
        warnings.simplefilter("ignore")
        for name, inside in members:
            archive.writestr(name, inside)
    return content.getvalue()
