"""MATLAB files: compressed zeros, sparse matrices, nested cells, unusual shapes and types."""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from random import Random
from typing import Any

from structures.values import SIZES, GeneratedFile, zlib_zeros


def mat_file(good: bytes, random: Random) -> GeneratedFile:
    """A MATLAB file with compressed zeros, sparse matrices, nested cells, odd shapes or types."""
    how = random.randrange(5)
    head = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM"
    if how == 0:
        size = random.choice(SIZES)
        before = (
            struct.pack("<II", 14, (size + 56) % 2**32)
            + _mat_header(6, (size // 8, 1), "X")
            + struct.pack("<II", 9, size % 2**32)
        )
        packed = zlib_zeros(size, before)
        return head + struct.pack("<II", 15, len(packed)) + packed, f"X of {size} zeros"
    if how == 1:
        shape = random.choice(((2**31 - 1, 2**31 - 1), (2**30, 1), (-1, 5), (0, 0), (3, 2**31 - 1)))
        body = (
            _mat_header(random.choice((5, 6, 1, 2, 3, 4, 13, 15, 99)), shape, "X")
            + struct.pack("<II", 9, 24)
            + bytes(24)
        )
        return head + struct.pack("<II", 14, len(body)) + body, f"X of shape {shape}"
    if how == 2:
        inside = _mat_header(6, (1, 1), "") + struct.pack("<IId", 9, 8, 1.0)
        depth = random.choice((10, 500, 5000))
        for _ in range(depth):
            inside = _mat_header(1, (1, 1), "") + struct.pack("<II", 14, len(inside)) + inside
            if len(inside) > 5_000_000:
                break
        return head + struct.pack("<II", 14, len(inside)) + inside, f"cells {depth} deep"
    import numpy as np
    import scipy.io
    import scipy.sparse

    kind = random.choice(("<f8", "<f4", "<i8", "<c16", "?"))
    features: Any = np.zeros((4, 3), kind)
    if how == 3:
        features = scipy.sparse.csc_matrix(
            ([1.0], ([0], [0])),
            shape=(random.choice((10**6, 2**31 - 1)), random.choice((1000, 10**6))),
        )
    values = {
        "X": features,
        "bag": np.array([1, 1, 2, random.choice((2, 0, 2**40, -1))]),
        "y": np.array([0, 1]),
    }
    content = io.BytesIO()
    scipy.io.savemat(content, values, do_compression=random.random() < 0.5)
    return content.getvalue(), f"X is {'sparse' if how == 3 else kind} {features.shape}"


def _mat_header(kind: int, shape: Sequence[int], name: str) -> bytes:
    padded = name.encode().ljust(8, b"\0") if name else b""
    flags = struct.pack("<IIII", 6, 8, kind, 0)
    sizes = struct.pack(f"<II{len(shape)}i", 5, 4 * len(shape), *shape)
    return flags + sizes + struct.pack("<II", 1, len(name)) + padded
