"""Seeded changes of valid files: bits, numbers, chunks, ends and special words."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable, Sequence
from random import Random

HOW_MANY = (1, 1, 1, 2, 2, 3, 6)  # changes; a single one gets furthest into a reader
LARGEST_CHUNK = 512
ARCHIVE = b"PK\x03\x04"
NUMBERS = (
    0,
    1,
    2,
    3,
    127,
    128,
    255,
    256,
    32767,
    32768,
    65535,
    65536,
    10**6,
    2**31 - 1,
    2**31,
    2**32 - 1,
    10**9,
    2**63 - 1,
)
FORMS = ("<H", ">H", "<I", ">I", "<Q", ">Q")
WORDS: tuple[bytes, ...] = (
    b"",
    b"\x00",
    b"\n",
    b"\r\n",
    b'"',
    b"'",
    b",",
    b";",
    b"\t",
    b"=",
    b"[[",
    b"]]",
    b"{",
    b"}",
    b"[" * 300,
    b"<!DOCTYPE x>",
    b"<!ENTITY a 'b'>",
    b"&a;",
    b"<![CDATA[",
    b"-->",
    b"../../etc/passwd",
    b"/etc/passwd",
    b"=1+1",
    b"nan",
    b"NaN",
    b"inf",
    b"1e999",
    b"-1",
    b"0",
    b"1e308",
    b"99999999999999999999",
    b"null",
    b"true",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\xc3\x28",
    b"\xed\xa0\x80",
    b"1979-05-27",
    b"features",
    b"coords",
    b"cos\nsystem\n",
    b"A" * 5000,
    b"%s%n",
    b"\\u0000",
    b"\\ud800",
)
Change = Callable[[bytearray, Random, Sequence[bytes]], None]


def mutate(seeds: Sequence[bytes], random: Random) -> bytes:
    """One of the valid files with a few changes; the same seed gives the same file.

    >>> valid = b"slide_id,label"
    >>> mutate([valid], Random(1)) == mutate([valid], Random(1)) != valid
    True
    """
    content = random.choice(seeds)
    if content.startswith(ARCHIVE) and random.random() < 0.5:
        return _change_member(content, random)
    return _change(content, random, seeds)


def _change(good: bytes, random: Random, seeds: Sequence[bytes]) -> bytes:
    content = bytearray(good)
    for _ in range(random.choice(HOW_MANY)):
        random.choice(CHANGES)(content, random, seeds)
    return bytes(content)


def _change_member(content: bytes, random: Random) -> bytes:
    """A valid archive with correct checksums and one changed member."""
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as good, zipfile.ZipFile(packed, "w") as bad:
        chosen = random.choice(good.infolist())
        for member in good.infolist():
            inside = good.read(member)
            bad.writestr(member, _change(inside, random, [inside]) if member is chosen else inside)
    return packed.getvalue()


def flip_bits(content: bytearray, random: Random, seeds: Sequence[bytes]) -> None:
    """Flip up to eight bits."""
    for _ in range(random.randint(1, 8) if content else 0):
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)


def set_byte(content: bytearray, random: Random, seeds: Sequence[bytes]) -> None:
    """Set one byte."""
    if content:
        content[random.randrange(len(content))] = random.randrange(256)


def set_number(content: bytearray, random: Random, seeds: Sequence[bytes]) -> None:
    """Write an extreme length, size or offset of two, four or eight bytes."""
    form = random.choice(FORMS)
    value = random.choice((*NUMBERS, len(content), random.getrandbits(32))) % 2 ** (
        8 * struct.calcsize(form)
    )
    at = random.randrange(len(content) + 1)
    content[at : at + struct.calcsize(form)] = struct.pack(form, value)


def cut_off(content: bytearray, random: Random, seeds: Sequence[bytes]) -> None:
    """Truncate the file."""
    del content[random.randrange(len(content) + 1) :]


def remove_chunk(content: bytearray, random: Random, seeds: Sequence[bytes]) -> None:
    """Remove some bytes."""
    at = random.randrange(len(content) + 1)
    del content[at : at + random.randint(1, LARGEST_CHUNK)]


def repeat_chunk(content: bytearray, random: Random, seeds: Sequence[bytes]) -> None:
    """Repeat some bytes."""
    at = random.randrange(len(content) + 1)
    chunk = content[at : at + random.randint(1, LARGEST_CHUNK)]
    content[at:at] = chunk * random.choice((1, 1, 1, 2, 16))


def overwrite_chunk(content: bytearray, random: Random, seeds: Sequence[bytes]) -> None:
    """Copy bytes of this or another valid file over another position."""
    other = random.choice(seeds)
    start, at, length = (
        random.randrange(len(other) + 1),
        random.randrange(len(content) + 1),
        random.randint(1, LARGEST_CHUNK),
    )
    content[at : at + length] = other[start : start + length]


def put_word(content: bytearray, random: Random, seeds: Sequence[bytes]) -> None:
    """Insert a word that is special for a parser."""
    at = random.randrange(len(content) + 1)
    content[at : at + random.choice((0, 1, 8))] = random.choice(WORDS)


CHANGES: tuple[Change, ...] = (
    flip_bits,
    flip_bits,
    set_byte,
    set_number,
    set_number,
    cut_off,
    remove_chunk,
    repeat_chunk,
    overwrite_chunk,
    put_word,
)
