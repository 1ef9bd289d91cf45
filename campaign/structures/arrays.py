"""NumPy arrays and archives of them."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from random import Random
from typing import Any

from structures.values import (
    DEPTHS,
    EXTREME_FLOATS,
    SIZES,
    GeneratedFile,
    pack_archive,
    raw_zip,
    short,
    zeros,
)


def npy_file(good: bytes, random: Random) -> GeneratedFile:
    """An array whose header does not match the data, or that has extreme values."""
    if good and random.random() < 0.4:
        return _npy_values(good, random)
    shape = random.choice(
        (
            (3, 6),
            (0, 6),
            (10**9, 6),
            (2**62, 4),
            (2**31, 2**31),
            (-1, 6),
            (6,),
            (1,) * 32,
            (1,) * 70,
            (3, 0),
            (2**63, 2),
            (),
        )
    )
    kind = random.choice(
        (
            "<f4",
            "<f8",
            "<f2",
            "|O",
            "|b1",
            ">i8",
            "<U100000000",
            "|S0",
            "|V8",
            "<c16",
            "<M8[ns]",
            "f4,O",
        )
    )
    header = {
        "descr": kind if "," not in kind else [("a", "<f4"), ("b", "|O")],
        "fortran_order": random.random() < 0.4,
        "shape": shape,
    }
    head = repr(header)
    words = f"shape {shape}, type {kind}"
    if random.random() < 0.1:
        depth = random.choice(DEPTHS)
        head, words = (
            "{'descr': " + "(" * depth + ")" * depth + "}",
            f"a header nested {depth} deep",
        )
    head = head.ljust(-(-(len(head) + 11) // 64) * 64 - 11) + "\n"
    version = random.choice((1, 1, 1, 2, 3, 9))
    length = struct.pack("<H", len(head) % 65536) if version == 1 else struct.pack("<I", len(head))
    body = random.choice((bytes(72), bytes(144), b"", b"\xff" * 72, bytes(10**6)))
    return b"\x93NUMPY" + bytes([version, 0]) + length + head.encode() + body, words


def _npy_values(good: bytes, random: Random) -> GeneratedFile:
    """A complete array of the same or another type with one extreme value."""
    import numpy as np

    values = np.load(io.BytesIO(good), allow_pickle=False)
    kind, value = (
        random.choice(("f2", "f4", "f8", "i8", "u1", "?", "c16", ">f4")),
        random.choice(EXTREME_FLOATS),
    )
    with np.errstate(all="ignore"):
        values = (
            np.nan_to_num(values).astype(kind)
            if values.dtype.kind in "fiub"
            else np.zeros((3, 6), kind)
        )
        if values.size and values.dtype.kind in "fc":
            values.flat[random.randrange(values.size)] = value
    shape = random.choice(
        (values.shape, values.shape[::-1], (1, *values.shape), (0, *values.shape[1:]))
    )
    order: Any = random.choice(("C", "F"))
    made = np.asarray(np.resize(values, shape), order=order)
    np.save(content := io.BytesIO(), made)
    return content.getvalue(), f"{value} as {kind}, shape {shape}"


def npz_file(good: bytes, random: Random) -> GeneratedFile:
    """An archive with compressed zeros, many members, a nested archive, or odd arrays."""
    how = random.randrange(7)
    with zipfile.ZipFile(io.BytesIO(good)) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    target = random.randrange(len(members))
    name = members[target][0]
    if how < 2:
        size = random.choice(SIZES)
        kind, items = random.choice((("<f4", 4), ("<f8", 8), ("|u1", 1)))
        head = repr(
            {
                "descr": kind,
                "fortran_order": random.random() < 0.5,
                "shape": (size // items // 4, 4),
            }
        )
        head = head.ljust(117) + "\n"
        before = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode()
        packer = zlib.compressobj(6, zlib.DEFLATED, -15)
        packed = packer.compress(before) + packer.flush(zlib.Z_FULL_FLUSH) + zeros(size)
        declared = random.choice((size + len(before), 100))
        parts = [(other, content, len(content), 0) for other, content in members if other != name]
        return raw_zip(
            [(name, packed, declared, 8), *parts]
        ), f"{name} of {size} zeros, declared as {declared}"
    if how == 2:
        count = random.choice((1000, 30_000))
        more = [(f"more{number}.npy", npy_of_one()) for number in range(count)]
        return raw_zip(
            [(other, content, len(content), 0) for other, content in members + more]
        ), f"{count} members more"
    if how == 3:
        members.append(members[target])
        words = f"{name} twice"
    elif how == 4:
        members[target] = (name, good)
        words = f"an archive as {name}"
    elif how == 5:
        members[target] = (
            random.choice(("../escaped.npy", "/escaped.npy", "a" * 60_000 + ".npy", ".npy")),
            members[target][1],
        )
        words = f"{name} is called {short(members[target][0])}"
    else:
        content, words = npy_file(members[target][1], random)
        members[target] = (name, content)
        words = f"{name}: {words}"
    return pack_archive(members), words


def npy_of_one() -> bytes:
    """An array with a single value."""
    import numpy as np

    np.save(content := io.BytesIO(), np.zeros(1))
    return content.getvalue()
