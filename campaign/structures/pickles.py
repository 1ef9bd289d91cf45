"""Opcodes of pickles, and pickles that call functions."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random

from structures.values import GeneratedFile


def g(module: str, name: str) -> bytes:
    """The opcode that imports a name."""
    return f"c{module}\n{name}\n".encode()


def s(text: str) -> bytes:
    """A text."""
    return b"X" + struct.pack("<I", len(text.encode())) + text.encode()


def i(number: int) -> bytes:
    """A whole number of any size."""
    packed = (
        number.to_bytes((number.bit_length() + 8) // 8, "little", signed=True) if number else b""
    )
    return b"\x8a" + bytes([len(packed)]) + packed


def t(*items: bytes) -> bytes:
    """A tuple."""
    return b"(" + b"".join(items) + b"t"


def call(function: bytes, *arguments: bytes) -> bytes:
    """The call of a function."""
    return function + t(*arguments) + b"R"


def storage(
    kind: str = "FloatStorage", key: str = "0", numbers: int = 18, device: str = "cpu"
) -> bytes:
    """The storage of a tensor, a member of the archive."""
    return t(s("storage"), g("torch", kind), s(key), s(device), i(numbers)) + b"Q"


def tensor(store: bytes, size: Sequence[int], stride: Sequence[int], offset: int = 0) -> bytes:
    """A tensor with any size and stride over a storage."""
    sides = [t(*map(i, size)), t(*map(i, stride))]
    return call(
        g("torch._utils", "_rebuild_tensor_v2"),
        store,
        i(offset),
        *sides,
        b"\x89",
        call(g("collections", "OrderedDict")),
    )


def hostile_pickles(random: Random) -> dict[str, bytes]:
    """Pickles that import names, by what they do.

    A pickle that is executed writes a file named `ran` to the current folder.
    """
    size = random.choice((10**6, 10**9, 10**10))
    hexed = s("a" * 1000)
    for _ in range(random.choice((3, 24))):
        hexed = call(
            g("_codecs", "encode"), call(g("_codecs", "encode"), hexed, s("latin1")), s("hex")
        )
        hexed = call(g("_codecs", "decode"), hexed, s("latin1")) if random.random() < 0.3 else hexed
    shapes = [t(i(size), i(10)), t(i(-1)), t(i(2**62), i(4)), t()]
    kinds = ["f8", "O", "V1000000000", "U100000000", "M8[ns]", "f4,O", "(1000000000,)f8"]
    kind, shape, pointer = random.choice(kinds), random.choice(shapes), b"C\x08AAAAAAAA"
    numbers = ("numpy.core.multiarray", "numpy.core.numeric", "torch._utils")
    notes, rows = call(g("collections", "OrderedDict")), tensor(storage(), (3, 6), (6, 1))
    array = call(g(numbers[0], "_reconstruct"), g("numpy", "ndarray"), t(i(0)), s("b"))
    fields = b"}" + s("a") + t(_dtype("O8"), i(0)) + b"s"
    state = t(i(3), s("|"), b"N", t(s("a")), fields, i(8), i(1), i(63))
    held = t(i(1), t(i(1)), b"h\x05", b"\x89", b"U\x08@AAAA\0\0\0")
    places = tensor(storage("LongStorage"), (2, 1), (1, 1))
    sparse = t(places, tensor(storage(), (1,), (1,)), t(i(2**31), i(2**31)))
    scale = t(g("torch", "per_tensor_affine"), b"G" + struct.pack(">d", 0.1), i(0))
    sides = (t(i(3), i(6)), t(i(6), i(1)))
    codec = random.choice(("zip", "bz2", "rot13", "idna", "punycode"))
    return {
        "os.system": call(g("posix", "system"), s("touch ran")),
        "eval": call(g("builtins", "eval"), s("open('ran', 'w')")),
        "open": call(g("builtins", "open"), s("ran"), s("w")),
        "bytearray of gigabytes": call(g("builtins", "bytearray"), i(size)),
        "an array called for": call(g("numpy", "ndarray"), shape, s(kind)),
        "a type with another state": _dtype("V8")
        + b"q\x050"
        + array
        + held
        + b"bh\x05"
        + state
        + b"b0",
        "an array with another state": array
        + t(i(1), shape, _dtype(kind), b"\x89", pointer)
        + b"b",
        "a type of any kind": _dtype(kind),
        "hex of hex": hexed,
        "codecs by name": call(g("_codecs", "encode"), s("a" * 1000), s(codec)),
        "a number of numpy": call(g(numbers[0], "scalar"), _dtype("O8"), pointer),
        "frombuffer": call(g(numbers[1], "_frombuffer"), pointer, _dtype(kind), shape, s("C")),
        "a sparse tensor": call(g(numbers[2], "_rebuild_sparse_tensor"), b"N", sparse),
        "a quantised tensor": call(
            g(numbers[2], "_rebuild_qtensor"),
            storage("QInt8Storage"),
            i(0),
            *sides,
            scale,
            b"\x89",
            notes,
        ),
        "a meta tensor": call(
            g(numbers[2], "_rebuild_meta_tensor_no_storage"),
            g("torch", "float32"),
            t(i(size), i(size)),
            sides[1],
            b"\x89",
        ),
        "a parameter": call(g(numbers[2], "_rebuild_parameter"), rows, b"\x89", notes),
        "an ordered dictionary with a state": notes + b"}" + s("__class__") + i(1) + b"sb",
        "notes by the billion": b"N" + b"r" + struct.pack("<I", 2**31 - 1) + b"0N",
        "bytes that are announced": b"\x8e" + struct.pack("<Q", size),
        "frames that are announced": b"\x95" + struct.pack("<Q", size) + b"N",
    }


def _dtype(kind: str) -> bytes:
    return call(g("numpy", "dtype"), s(kind), b"\x89", b"\x88")


def pickle_file(good: bytes, random: Random) -> GeneratedFile:
    """A plain pickle, as in the files of DTFD-MIL."""
    words, pickled = random.choice(list(hostile_pickles(random).items()))
    return b"\x80\x04" + pickled + b".", words
