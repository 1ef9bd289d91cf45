"""Files whose bytes are right and whose structure is not: filters, strides, types, counts, nesting, numbers at bounds.

`GENERATORS` has one function for each suffix. It takes a good file of that kind (some ignore it) and random numbers, and
gives a file and words that say what is odd about it. The same random numbers give the same file.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import math
import struct
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Any

Made = tuple[bytes, str]
Generator = Callable[[bytes, Random], Made]

WHOLE = (
    0, 1, -1, 2, 3, 127, 128, 255, 256, 32767, 65535, 65536, 10**6, 10**7, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 10**12,
    2**53, 2**62, -(2**62), 2**63 - 1, -(2**63), 2**64, 10**30,
)  # fmt: skip
BROKEN_NUMBERS = (
    0.0, -0.0, 1e-6, 1e-300, 5e-324, 0.5, 1e6, 1e18, 1e38, 1e39, 1e300, 1e308, float("inf"), float("-inf"), float("nan"),
)  # fmt: skip
TEXTS = (
    "", " ", "x", "0", "-1", "nan", "inf", "1e999", "null", "../../escaped", "/etc/passwd", "a\0b", "\ud800", "\u202e",
    "=1+1", "\n=1+1", "＝1+1", "A" * 100_000, "é" * 300, "timm:hf-hub:nobody/nothing", "\x1b[2J", "<script>", "cpu", "true",
)  # fmt: skip
PART = 2**24
SIZES = (2**20, 2**26, 2**30, 2**31)  # bytes of zeros: the two last are more than a reader may take
COUNTS = (2, 10, 1000, 20_000)
DEPTHS = (10, 200, 990, 5000, 100_000)


def bound(random: Random) -> Any:
    """A value that readers of numbers, and of anything, stumble over."""
    kind = random.randrange(8)
    if kind < 3:
        return random.choice(WHOLE)
    if kind < 5:
        return random.choice(BROKEN_NUMBERS)
    if kind < 6:
        return random.choice(TEXTS)
    return random.choice((None, True, False, [], {}, [[]], {"": None}, [0] * 1000, [1, "a", None]))


def short(value: Any) -> str:
    """A value in at most so many letters.

    >>> short("A" * 100), short(2**62)
    ("'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA…", '4611686018427387904')
    """
    text = repr(value)
    return text if len(text) <= 40 else text[:40] + "…"


@cache
def zeros(size: int) -> bytes:
    """So many zeros as a raw deflate stream: a part that is repeated, and a rest.

    >>> zlib.decompress(zeros(10**8 + 1), -15) == bytes(10**8 + 1)
    True
    """
    many, rest = divmod(size, PART)
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return _part() * many + packer.compress(bytes(rest)) + packer.flush()


@cache
def _part() -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(bytes(PART)) + packer.flush(zlib.Z_FULL_FLUSH)


def zlib_zeros(size: int, before: bytes = b"") -> bytes:
    """Some bytes and so many zeros as a zlib stream; its sum at the end is wrong, which is found when all is in memory."""
    packer = zlib.compressobj(1, zlib.DEFLATED, -15)
    first = packer.compress(before) + packer.flush(zlib.Z_FULL_FLUSH) if before else b""
    return b"\x78\x01" + first + zeros(size) + b"\0\0\0\1"


def raw_zip(members: Sequence[tuple[str, bytes, int, int]]) -> bytes:
    """An archive of members that are packed already: name, bytes, the size that they are said to have, and the method."""
    body, directory = bytearray(), bytearray()
    for name, content, size, method in members:
        told = name.encode("utf-8", "surrogatepass")
        size = min(size, 2**32 - 2)
        common = struct.pack("<HHHHHIIIHH", 20, 0, method, 0, 0, 0, len(content), size, len(told), 0)
        directory += b"PK\x01\x02\x14\x00" + common + struct.pack("<HHHII", 0, 0, 0, 0, len(body)) + told
        body += b"PK\x03\x04" + common + told + content
    end = struct.pack("<HHHHIIH", 0, 0, len(members), len(members), len(directory), len(body), 0)
    return bytes(body) + bytes(directory) + b"PK\x05\x06" + end


# -------------------------------------------------------------------------------------------------------------- JSON


def json_file(good: bytes, random: Random) -> Made:
    """A page with values at bounds, with more of everything, or nested deep."""
    page = json.loads(good)
    words = []
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        page, said = changed(page, random)
        words.append(said)
    return _dumped(page).encode("utf-8", "surrogatepass"), "; ".join(words)


def _dumped(page: Any) -> str:
    if isinstance(page, Deep):
        return '{"a":' * page.depth + "1" + "}" * page.depth if page.of_dicts else "[" * page.depth + "]" * page.depth
    if isinstance(page, dict):
        return "{" + ", ".join(f"{json.dumps(str(key))}: {_dumped(value)}" for key, value in page.items()) + "}"
    if isinstance(page, list) and len(page) > 1000 and not isinstance(page[0], list | dict | Deep):
        return json.dumps(page)  # many times one value
    if isinstance(page, list):
        return "[" + ", ".join(map(_dumped, page)) + "]"
    return json.dumps(page)


class Deep:
    """A value that is nested so deep that no page of Python's own holds it."""

    def __init__(self, depth: int, of_dicts: bool) -> None:
        self.depth, self.of_dicts = depth, of_dicts


def changed(page: Any, random: Random) -> tuple[Any, str]:
    """A page with one place in it changed."""
    places = list(_places(page))
    if not places:
        return bound(random), "the whole page"
    at = random.choice(places)
    parent = page
    for key in at[:-1]:
        parent = parent[key]
    key, how = at[-1], random.randrange(12)
    name = ".".join(map(str, at))
    value = parent[key]
    if how < 6:
        parent[key] = bound(random)
    elif how < 7:
        parent[key] = Deep(random.choice(DEPTHS), random.random() < 0.5)
        return page, f"{name} nested {parent[key].depth} deep"
    elif how < 9:
        parent[key] = (
            [value] * random.choice(COUNTS) if not isinstance(value, list) else value * count_of(value, random)
        )
        return page, f"{name} repeated"
    elif how < 10 and isinstance(parent, dict):
        del parent[key]
        return page, f"without {name}"
    elif how < 11 and isinstance(parent, dict):
        for number in range(random.choice(COUNTS)):
            parent[f"{key}{number}"] = value
        return page, f"many of {name}"
    elif isinstance(value, int | float) and not isinstance(value, bool):
        parent[key] = value * random.choice((-1, 1e-6, 1e6, 10**9, 0.5))
    return page, f"{name} = {short(parent.get(key) if isinstance(parent, dict) else parent[key])}"


def count_of(value: Sequence[Any], random: Random) -> int:
    """How often a list is repeated, without filling the memory."""
    return max(2, min(random.choice(COUNTS), 200_000 // max(len(value), 1)))


def _places(page: Any, at: tuple[Any, ...] = ()) -> Any:
    items = page.items() if isinstance(page, dict) else enumerate(page) if isinstance(page, list) else ()
    for key, value in itertools.islice(items, 60):
        yield (*at, key)
        yield from _places(value, (*at, key))


# -------------------------------------------------------------------------------------------------------------- TOML


def toml_file(good: bytes, random: Random) -> Made:
    """An experiment with numbers at bounds, a wide grid, or deep tables."""
    page = tomllib.loads(good.decode())
    how = random.randrange(6)
    if how == 0:
        depth = random.choice(DEPTHS)
        return good + b"\n[extra]\nx = " + b"[" * depth + b"]" * depth + b"\n", f"a list nested {depth} deep"
    if how == 1:
        depth = random.choice(DEPTHS)
        return good + b"\n[" + b".".join([b"a"] * depth) + b"]\n", f"a table nested {depth} deep"
    if how == 2:
        values, keys = random.choice((2, 20, 1000)), random.choice((3, 6, 20))
        names = ["training.epochs", "training.lr", "protocol.seed", "protocol.repeats", "model.embed", "protocol.folds"]
        names += [f"model.options.k{number}" for number in range(keys)]
        page["grid"] = {name: list(range(1, values + 1)) for name in names[:keys]}
        return _toml(page).encode(), f"a grid of {values} values to the power of {keys}"
    page, words = changed(page, random)
    return _toml(page).encode("utf-8", "replace"), words


def _toml(page: Any) -> str:
    """Write plain data as TOML, all tables inline."""
    return "\n".join(f"{json.dumps(str(key))} = {_toml_value(value)}" for key, value in dict(page).items()) + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, Deep):
        return "[" * value.depth + "]" * value.depth
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(k))} = {_toml_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf") if math.isinf(value) else repr(value)
    if value is None:
        return '""'
    return str(value) if isinstance(value, int) else json.dumps(str(value))


# ------------------------------------------------------------------------------------------------------------ tables


def csv_file(good: bytes, random: Random) -> Made:
    """A table with odd cells, many or long rows, more columns, or the same names again."""
    text = good.decode("utf-8-sig", "replace")
    mark = max(",;\t", key=text.splitlines()[0].count) if text.strip() else ","
    rows = [line.split(mark) for line in text.splitlines()]
    how = random.randrange(10)
    words = "as it was"
    row, column = random.randrange(len(rows)), random.randrange(len(rows[0]))
    if how < 4:
        value = bound(random)
        rows[row][min(column, len(rows[row]) - 1)] = str(value)
        words = f"cell {row}, {column} = {short(value)}"
    elif how == 4:
        rows += rows[1:] * (count := random.choice((10, 1000, 20_000)))
        words = f"the rows {count} times"
    elif how == 5:
        count = random.choice((10, 1000, 100_000))
        rows = [one + [str(number) for number in range(count)] if place < 3 else one for place, one in enumerate(rows)]
        words = f"{count} more columns"
    elif how == 6:
        rows[0] = [rows[0][0]] * len(rows[0])
        words = "all columns have one name"
    elif how == 7:
        rows[row] = ['"' + "a" * 3_000_000]
        words = "a quote that is not closed, of 3 MB"
    elif how == 8:
        rows = (
            [rows[0], *([f"{number}", *rows[1][1:]] for number in range(random.choice(COUNTS)))]
            if len(rows) > 1
            else rows
        )
        words = "as many names as rows"
    else:
        rows[row][0] = random.choice(TEXTS)
        words = f"the first cell of row {row} = {short(rows[row][0])}"
    return "\n".join(mark.join(one) for one in rows).encode("utf-8", "surrogatepass") + b"\n", words


def svm_file(good: bytes, random: Random) -> Made:
    """Sparse rows whose indices and values are at bounds."""
    rows = random.choice((2, 100, 1000, 5000))
    index = random.choice((1, 100, 100_000, 10**6, 10**6 + 1, 2**31, 2**62, -1, 0))
    value, label = random.choice((1, 0.5, "nan", "inf", 1e300)), random.choice((1, -1, 0, 10**9, "nan", "x"))
    lines = [f"{number}:{number % 7}:{label} 1:1 {index}:{value}" for number in range(rows)]
    return "\n".join(lines).encode(), f"{rows} rows, index {index}, value {value}, label {label}"


def xlsx_file(good: bytes, random: Random) -> Made:
    """A sheet with cells far away, many sheets, long cells, formulas, or a bomb."""
    head, cells, words = _xlsx_cells(random)
    sheets, bomb = random.choice((1, 1, 1, 300)), words.endswith("of blanks")
    space = "http://schemas.openxmlformats.org"
    kinds = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    office = f"{space}/officeDocument/2006/relationships"
    numbers = range(1, sheets + 1)
    types = "".join(
        f'<Override PartName="/xl/worksheets/sheet{n}.xml" ContentType="{kinds}.worksheet+xml"/>' for n in numbers
    )
    links = "".join(
        f'<Relationship Id="r{n}" Type="{office}/worksheet" Target="worksheets/sheet{n}.xml"/>' for n in numbers
    )
    names = "".join(f'<sheet name="s{n}" sheetId="{n}" r:id="r{n}"/>' for n in numbers)
    begin, end = f'<worksheet xmlns="{space}/spreadsheetml/2006/main"><sheetData>', "</sheetData></worksheet>"
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{space}/package/2006/content-types"><Default Extension="rels" '
        'ContentType="application/vnd.openxmlformats-package.relationships+xml"/><Default Extension="xml" '
        f'ContentType="application/xml"/><Override PartName="/xl/workbook.xml" ContentType="{kinds}.sheet.main+xml"/>'
        f"{types}</Types>",
        "_rels/.rels": f'<Relationships xmlns="{space}/package/2006/relationships"><Relationship Id="r0" '
        f'Type="{office}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{space}/spreadsheetml/2006/main" xmlns:r="{office}">'
        f"<sheets>{names}</sheets></workbook>",
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{space}/package/2006/relationships">{links}</Relationships>',
    }
    packed = [(name, content.encode(), len(content), 0) for name, content in parts.items()]
    for number in numbers:
        inside = (head + begin + (cells if number == 1 else "") + end).encode()
        packer = zlib.compressobj(6, zlib.DEFLATED, -15)
        content, size = packer.compress(inside) + packer.flush(), len(inside)
        if bomb and number == 1:
            content, size = zeros(2**31), 2**31
        packed.append((f"xl/worksheets/sheet{number}.xml", content, size, 8))
    return _with_sums(packed), f"{words}, {sheets} sheets"


def _xlsx_cells(random: Random) -> tuple[str, str, str]:
    """The beginning of a sheet, its rows, and what is odd about them."""
    head, how = '<?xml version="1.0"?>', random.randrange(7)
    cells = f'<row r="1">{_cell("A1", "slide_id")}{_cell("B1", "label")}</row>'
    if how == 0:
        far = random.choice(("XFD1048576", "A1048576", "XFD1", "ZZZZ99999999", "A0", "A-1"))
        number = "".join(filter(str.isdigit, far))
        return head, f'{cells}<row r="{number}"><c r="{far}"><v>1</v></c></row>', f"a cell at {far}"
    if how == 1:
        rows = (f'<row r="{n}"><c r="A{n}"><v>{n}</v></c></row>' for n in range(2, 1_000_000, 5000))
        return head, cells + "".join(rows), "cells every 5000 rows"
    if how == 2:
        return head, f'{cells}<row r="2">{_cell("A2", "A" * 5_000_000)}</row>', "a cell of 5 MB"
    if how == 3:
        odd = '<row r="2"><c r="A2"><f>1+1</f></c><c r="B2" t="e"><v>#REF!</v></c></row>'
        return head, cells + odd, "a formula and an error"
    if how == 4:
        return head, cells, "a sheet of gigabytes of blanks"
    if how == 5:
        one, other = random.choice(WHOLE), random.choice(("NaN", "1e999", "-0"))
        numbers = f'<row r="2"><c r="A2"><v>{one}</v></c><c r="B2"><v>{other}</v></c></row>'
        return head, cells + numbers, f"numbers {one} and {other}"
    return head + _entities(8), f'{cells}<row r="2">{_cell("A2", "&i;")}</row>', "entities in entities"


def _cell(place: str, text: str) -> str:
    return f'<c r="{place}" t="inlineStr"><is><t>{text}</t></is></c>'


def _entities(levels: int) -> str:
    """Texts of ten times the one before."""
    each = (f'<!ENTITY {chr(98 + n)} "{("&" + chr(97 + n) + ";") * 10}">' for n in range(levels))
    return f'<!DOCTYPE a [<!ENTITY a "{"x" * 100}">{"".join(each)}]>'


def _with_sums(members: Sequence[tuple[str, bytes, int, int]]) -> bytes:
    """An archive with the right sums, of members that are small; a bomb keeps a wrong one."""
    content = io.BytesIO()
    if any(size > 2**27 for _, _, size, _ in members):
        return raw_zip(members)
    with zipfile.ZipFile(content, "w") as archive:
        for name, packed, _, method in members:
            archive.writestr(name, zlib.decompress(packed, -15) if method else packed, 8 if method else 0)
    return content.getvalue()


# ------------------------------------------------------------------------------------------------------------ arrays


def npy_file(good: bytes, random: Random) -> Made:
    """An array whose header says something else than the file has, or whose values are at bounds."""
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
        ("<f4", "<f8", "<f2", "|O", "|b1", ">i8", "<U100000000", "|S0", "|V8", "<c16", "<M8[ns]", "f4,O")
    )
    told = {
        "descr": kind if "," not in kind else [("a", "<f4"), ("b", "|O")],
        "fortran_order": random.random() < 0.4,
        "shape": shape,
    }
    head = repr(told)
    words = f"shape {shape}, type {kind}"
    if random.random() < 0.1:
        depth = random.choice(DEPTHS)
        head, words = "{'descr': " + "(" * depth + ")" * depth + "}", f"a header nested {depth} deep"
    head = head.ljust(-(-(len(head) + 11) // 64) * 64 - 11) + "\n"
    version = random.choice((1, 1, 1, 2, 3, 9))
    length = struct.pack("<H", len(head) % 65536) if version == 1 else struct.pack("<I", len(head))
    body = random.choice((bytes(72), bytes(144), b"", b"\xff" * 72, bytes(10**6)))
    return b"\x93NUMPY" + bytes([version, 0]) + length + head.encode() + body, words


def _npy_values(good: bytes, random: Random) -> Made:
    """A whole array of the same or another type, with a value at a bound."""
    import numpy as np

    values = np.load(io.BytesIO(good), allow_pickle=False)
    kind, value = random.choice(("f2", "f4", "f8", "i8", "u1", "?", "c16", ">f4")), random.choice(BROKEN_NUMBERS)
    with np.errstate(all="ignore"):
        values = np.nan_to_num(values).astype(kind) if values.dtype.kind in "fiub" else np.zeros((3, 6), kind)
        if values.size and values.dtype.kind in "fc":
            values.flat[random.randrange(values.size)] = value
    shape = random.choice((values.shape, values.shape[::-1], (1, *values.shape), (0, *values.shape[1:])))
    made = np.asarray(np.resize(values, shape), order=random.choice("CF"))
    np.save(content := io.BytesIO(), made)
    return content.getvalue(), f"{value} as {kind}, shape {shape}"


def npz_file(good: bytes, random: Random) -> Made:
    """An archive of arrays: bombs, many members, the same name twice, an archive in it, or odd arrays."""
    how = random.randrange(7)
    with zipfile.ZipFile(io.BytesIO(good)) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    target = random.randrange(len(members))
    name = members[target][0]
    if how < 2:
        size = random.choice(SIZES)
        kind, items = random.choice((("<f4", 4), ("<f8", 8), ("|u1", 1)))
        head = repr({"descr": kind, "fortran_order": random.random() < 0.5, "shape": (size // items // 4, 4)})
        head = head.ljust(117) + "\n"
        before = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode()
        packer = zlib.compressobj(6, zlib.DEFLATED, -15)
        packed = packer.compress(before) + packer.flush(zlib.Z_FULL_FLUSH) + zeros(size)
        told = random.choice((size + len(before), 100))
        parts = [(other, content, len(content), 0) for other, content in members if other != name]
        return raw_zip([(name, packed, told, 8), *parts]), f"{name} of {size} zeros, said to be {told}"
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
    return _stored(members), words


def npy_of_one() -> bytes:
    """The smallest array."""
    import numpy as np

    np.save(content := io.BytesIO(), np.zeros(1))
    return content.getvalue()


def _stored(members: Sequence[tuple[str, bytes]]) -> bytes:
    import warnings

    content = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(content, "w") as archive:
        warnings.simplefilter("ignore")
        for name, inside in members:
            archive.writestr(name, inside)
    return content.getvalue()


def mat_file(good: bytes, random: Random) -> Made:
    """A file of MATLAB: bombs, sparse matrices, cells in cells, odd shapes and types."""
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
            ([1.0], ([0], [0])), shape=(random.choice((10**6, 2**31 - 1)), random.choice((1000, 10**6)))
        )
    values = {"X": features, "bag": np.array([1, 1, 2, random.choice((2, 0, 2**40, -1))]), "y": np.array([0, 1])}
    content = io.BytesIO()
    scipy.io.savemat(content, values, do_compression=random.random() < 0.5)
    return content.getvalue(), f"X is {'sparse' if how == 3 else kind} {features.shape}"


def _mat_header(kind: int, shape: Sequence[int], name: str) -> bytes:
    told = name.encode().ljust(8, b"\0") if name else b""
    flags = struct.pack("<IIII", 6, 8, kind, 0)
    sizes = struct.pack(f"<II{len(shape)}i", 5, 4 * len(shape), *shape)
    return flags + sizes + struct.pack("<II", 1, len(name)) + told


def safetensors_file(good: bytes, random: Random) -> Made:
    """Weights whose header is not that of the file."""
    [length] = struct.unpack("<Q", good[:8])
    page, body = json.loads(good[8 : 8 + length]), good[8 + length :]
    how = random.randrange(5)
    if how == 0:
        told = random.choice((0, 2**20, 2**31, 2**62, 2**64 - 1))
        return struct.pack("<Q", told) + good[8:], f"a header of {told} bytes"
    if how == 1:
        name = random.choice(list(page))
        page[name] = {**page[name], "data_offsets": random.choice(([0, 2**62], [-1, 4], [8, 0], [0, 0], [0]))}
        words = f"{name} at {page[name]['data_offsets']}"
    elif how == 2:
        name = random.choice(list(page))
        page[name] = {**page[name], "shape": random.choice(([2**62, 4], [0], [], [-1], [1] * 100, [2**32, 2**32]))}
        words = f"{name} of shape {short(page[name]['shape'])}"
    elif how == 3:
        for number in range(random.choice((1000, 50_000))):
            page[f"more{number}"] = {"dtype": "F32", "shape": [0], "data_offsets": [len(body), len(body)]}
        words = "many tensors"
    else:
        page, words = changed(page, random)
    head = _dumped(page).encode("utf-8", "replace")
    return struct.pack("<Q", len(head)) + head + body, words


# -------------------------------------------------------------------------------------------------------------- HDF5


def h5_file(good: bytes, random: Random) -> Made:
    """A good file, of which one data set or attribute is another: types, chunks, filters, links, counts, values."""
    import h5py

    content = io.BytesIO(good)
    with h5py.File(content, "r+") as file:
        names: list[str] = []
        file.visititems(lambda name, one: names.append(name) if isinstance(one, h5py.Dataset) else None)
        name = random.choice(sorted(names)) if names else "features"
        words = random.choice(H5_CHANGES)(file, name, random)
    return content.getvalue(), f"{name}: {words}"


def _replaced(file: Any, name: str, **how: Any) -> Any:
    old = file.get(name)
    kept = dict(old.attrs) if old is not None else {}
    if old is not None:
        del file[name]
    made = file.create_dataset(name, **how)
    for key, value in kept.items():
        made.attrs[key] = value
    return made


def _h5_bomb(file: Any, name: str, random: Random) -> str:
    """Zeros, packed once, twice or three times."""
    import h5py

    times, size = random.choice((1, 2, 2, 3)), random.choice(SIZES)
    width = file[name].shape[-1] if name in file and file[name].shape else 4
    kept = dict(file[name].attrs)
    rows = random.choice((size // (4 * width), size // (4 * width), 8))  # also far more than the data set says to have
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((rows, width))
    for _ in range(times):
        plist.set_deflate(1)
    del file[name]
    made = h5py.h5d.create(
        file.id,
        name.encode(),
        h5py.h5t.NATIVE_FLOAT,
        h5py.h5s.create_simple((rows, width)),
        _made_parents(plist)[0],
        _made_parents(plist)[1],
    )
    packed = zlib_zeros(size)
    for _ in range(times - 1):
        packed = zlib.compress(packed, 9)
    h5py.Dataset(made).id.write_direct_chunk((0, 0), packed)
    for key, value in kept.items():
        file[name].attrs[key] = value
    return f"{size} zeros, packed {times} times, in {rows} rows"


def _made_parents(plist: Any) -> tuple[Any, Any]:
    import h5py

    links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    return plist, links


def _h5_huge(file: Any, name: str, random: Random) -> str:
    """A data set that says to be huge, and of which nothing is written."""
    shape = random.choice(((2**31, 4), (2**40, 6), (10**9, 1024), (1, 2**40), (2**62, 1), (0, 6), (6, 0)))
    chunks = random.choice((None, True)) if 0 not in shape else None
    try:
        _replaced(file, name, shape=shape, dtype=random.choice(("f4", "f2", "f8", "i8")), chunks=chunks)
    except (ValueError, OSError, OverflowError):
        _replaced(file, name, shape=(2**31, 4), dtype="f4", chunks=(1, 4))
    return f"shape {shape}, chunks {chunks}"


def _h5_type(file: Any, name: str, random: Random) -> str:
    """Another type of numbers, or no numbers."""
    import h5py
    import numpy as np

    shape = file[name].shape or (3,)
    kind: Any = random.choice(
        (
            "f2",
            "f4",
            "f8",
            "i1",
            "u8",
            "i8",
            "?",
            "S10",
            "c16",
            "compound",
            "vlen",
            "text",
            "ref",
            "enum",
            "V8",
            "array",
            ">f4",
        )
    )
    types = {
        "compound": np.dtype([("a", "f4"), ("b", "i8")]), "vlen": h5py.vlen_dtype("f4"), "text": h5py.string_dtype(),
        "ref": h5py.ref_dtype, "enum": h5py.enum_dtype({"a": 1}), "array": np.dtype((np.float32, (6,))),
    }  # fmt: skip
    _replaced(file, name, shape=shape, dtype=types.get(kind, kind))
    return f"type {kind}"


def _h5_shape(file: Any, name: str, random: Random) -> str:
    """Another number of axes, rows or columns."""
    import numpy as np

    shape = random.choice(
        ((), (1,), (6,), (3, 6, 1), (1, 3, 6), (0,), (0, 6), (1, 1), (2, 10**6), (200_000, 2), (1,) * 8)
    )
    _replaced(file, name, data=np.ones(shape, file[name].dtype if file[name].dtype.kind in "fiu" else "f4"))
    return f"shape {shape}"


def _h5_values(file: Any, name: str, random: Random) -> str:
    """Values at bounds."""
    import numpy as np

    values = np.array(file[name][()])
    if values.dtype.kind not in "fiu" or not values.size:
        return "as it was"
    chosen = random.choice(
        (float("nan"), float("inf"), -float("inf"), 1e30, -1e30, 2**62, -(2**62), 2**31, -1, 0, 1e-300)
    )
    kind = random.choice((values.dtype, np.dtype("f8"), np.dtype("i8")))
    with np.errstate(all="ignore"):
        values = values.astype(kind)
        odd = np.array(chosen, "f8").astype(kind) if kind.kind == "f" or math.isfinite(chosen) else np.array(-1, kind)
    if random.random() < 0.5:
        values.flat[random.randrange(values.size)] = odd
    else:
        values[...] = odd
    _replaced(file, name, data=values)
    return f"{chosen} as {kind}"


def _h5_link(file: Any, name: str, random: Random) -> str:
    """A link in place of a data set."""
    import h5py

    kind = random.choice(("soft", "soft itself", "external", "external itself", "virtual", "external storage", "group"))
    shape, dtype = file[name].shape, file[name].dtype
    del file[name]
    if kind == "soft":
        file[name] = h5py.SoftLink("/nowhere")
    elif kind == "soft itself":
        file[name] = h5py.SoftLink(f"/{name}")
    elif kind.startswith("external") and kind != "external storage":
        file[name] = h5py.ExternalLink("/etc/passwd" if kind == "external" else ".", "/features")
    elif kind == "virtual":
        layout = h5py.VirtualLayout(shape=shape or (1,), dtype=dtype)
        if shape:
            layout[...] = h5py.VirtualSource("elsewhere.h5", "features", shape=shape)
        file.create_virtual_dataset(name, layout)
    elif kind == "external storage":
        file.create_dataset(name, shape=shape or (1,), dtype="u1", external=[("/etc/passwd", 0, 10**6)])
    else:
        file.create_group(name)
    return f"a link: {kind}"


def _h5_attribute(file: Any, name: str, random: Random) -> str:
    """Another value or type of an attribute."""
    import h5py
    import numpy as np

    one = file[name] if random.random() < 0.5 and file[name].attrs else file
    known = list(one.attrs)
    key = random.choice(known) if known else "name"
    value: Any = random.choice(
        (
            *WHOLE[:20], *BROKEN_NUMBERS, "", "x", "A" * 60_000, b"\xff\xfe", np.zeros((3, 3)), np.array([1e300, np.nan]),
            np.zeros(0), h5py.Empty("f4"), np.array(["a", "b"], dtype=h5py.string_dtype()), True, '{"slide_mpp": "x"}',
            '{"slide_mpp": NaN, "side_level0": -1}', '{"side_level0": 1e308}', '{"side_level0": 0}', "[" * 5000, "[]", "null",
            '{"slide_size": [1e12, 1e12], "side_level0": 1e-9}', '{"encoder": {"a": []}, "mpp": [1]}',
        )
    )  # fmt: skip
    with contextlib.suppress(KeyError):
        del one.attrs[key]
    try:
        one.attrs[key] = value
    except (TypeError, ValueError, OverflowError, OSError, RuntimeError):
        one.attrs[key] = str(value)[:1000].replace("\0", "")
    return f"attribute {key} = {short(value)}"


def _h5_nested(file: Any, name: str, random: Random) -> str:
    """Groups in groups, or many of them."""
    how = random.randrange(3)
    if how == 0:
        depth, place = random.choice((10, 300, 2000)), file
        for _ in range(depth):
            place = place.create_group("g")
        return f"groups {depth} deep"
    if how == 1:
        count = random.choice((100, 5000))
        for number in range(count):
            file.create_group(f"more{number}")
        return f"{count} groups"
    for number in range(count := random.choice((10, 1000))):
        file.attrs[f"more{number}"] = number
    return f"{count} attributes"


def _h5_chunks(file: Any, name: str, random: Random) -> str:
    """Chunks that do not fit the data, with filters of all kinds."""
    import numpy as np

    data = np.array(file[name][()])
    if data.ndim == 0 or data.dtype.kind not in "fiu" or not data.size:
        return "as it was"
    chunks = tuple(random.choice((1, size, 2 * size + 1, 1000)) for size in data.shape)
    how = random.choice(
        (
            {"compression": "gzip"},
            {"compression": "lzf"},
            {"shuffle": True, "compression": 9},
            {"fletcher32": True},
            {"scaleoffset": 3},
        )
    )
    if "scaleoffset" in how and data.dtype == np.float16:
        how = {"shuffle": True}
    _replaced(file, name, shape=data.shape, dtype=data.dtype, chunks=chunks, maxshape=(None,) * data.ndim, **how)[
        ...
    ] = data
    return f"chunks {chunks}, {how}"


H5_CHANGES = (
    _h5_bomb, _h5_bomb, _h5_huge, _h5_type, _h5_shape, _h5_values, _h5_values, _h5_link, _h5_attribute, _h5_attribute,
    _h5_attribute, _h5_nested, _h5_chunks,
)  # fmt: skip


# ----------------------------------------------------------------------------------------------------------- pickles


def g(module: str, name: str) -> bytes:
    """A name that a pickle asks for."""
    return f"c{module}\n{name}\n".encode()


def s(text: str) -> bytes:
    """A text."""
    return b"X" + struct.pack("<I", len(text.encode())) + text.encode()


def i(number: int) -> bytes:
    """A whole number of any size."""
    packed = number.to_bytes((number.bit_length() + 8) // 8, "little", signed=True) if number else b""
    return b"\x8a" + bytes([len(packed)]) + packed


def t(*items: bytes) -> bytes:
    """A tuple."""
    return b"(" + b"".join(items) + b"t"


def call(function: bytes, *arguments: bytes) -> bytes:
    """The call of a function."""
    return function + t(*arguments) + b"R"


def storage(kind: str = "FloatStorage", key: str = "0", numbers: int = 18, device: str = "cpu") -> bytes:
    """Numbers of a tensor, in a member of the archive."""
    return t(s("storage"), g("torch", kind), s(key), s(device), i(numbers)) + b"Q"


def tensor(store: bytes, size: Sequence[int], stride: Sequence[int], offset: int = 0) -> bytes:
    """A tensor with any size and stride over some numbers."""
    sides = [t(*map(i, size)), t(*map(i, stride))]
    return call(
        g("torch._utils", "_rebuild_tensor_v2"),
        store,
        i(offset),
        *sides,
        b"\x89",
        call(g("collections", "OrderedDict")),
    )


def pt_file(good: bytes, random: Random) -> Made:
    """A tensor of torch: odd strides, sizes, devices and types, containers, and pickles that ask for more."""
    how = random.randrange(12)
    numbers = 18
    if how < 4:
        size = random.choice(
            ((3, 6), (10**9, 10), (2**40, 6), (2**31, 2**31), (0, 6), (3, 0), (-1, 6), (6,), (1,) * 40, (10**5, 10**5))
        )
        stride = random.choice(((6, 1), (0, 0), (0, 1), (-6, 1), (1, 3), (2**62, 1), (1,) * len(size)))
        kind = random.choice(
            (
                "FloatStorage",
                "HalfStorage",
                "DoubleStorage",
                "BoolStorage",
                "BFloat16Storage",
                "QInt8Storage",
                "ComplexFloatStorage",
                "UntypedStorage",
            )
        )
        device, offset = random.choice(("cpu", "cpu", "meta", "cuda:0", "x")), random.choice((0, 0, 5, -1, 2**62))
        numbers = random.choice((18, 18, 0, 10**12, -1))
        pickled = tensor(storage(kind, numbers=numbers, device=device), size, stride[: len(size)], offset)
        words = f"size {size}, stride {stride}, {kind} of {numbers} on {device}, offset {offset}"
    elif how < 5:
        return _torch_saved(random)
    elif how < 6:
        depth = random.choice((100, 5000, 200_000))
        pickled, words = b"]" * depth + b"a" * (depth - 1), f"lists {depth} deep"
    elif how < 7:
        count = random.choice((1000, 100_000))
        each = tensor(storage(), (3, 6), (6, 1))
        pickled = b"}(" + b"".join(s(f"k{n}") + i(n) for n in range(count)) + s("features") + each + b"u"
        words = f"a dictionary of {count}"
    else:
        words, pickled = random.choice(list(hostile_pickles(random).items()))
    content = [("a/data.pkl", b"\x80\x02" + pickled + b"."), ("a/version", b"3\n"), ("a/byteorder", b"little")]
    content.append(("a/data/0", bytes(72)))
    if random.random() < 0.15:
        return b"\x80\x02" + pickled + b".", f"{words}, without an archive"
    if random.random() < 0.1:
        size = random.choice(SIZES)
        packed = [(name, inside, len(inside), 0) for name, inside in content[:-1]]
        return raw_zip([*packed, ("a/data/0", zeros(size), size, 8)]), f"{words}; {size} zeros as numbers"
    return _stored(content), words


def hostile_pickles(random: Random) -> dict[str, bytes]:
    """Pickles that ask for names, by what they do; those that run write a file named `ran` into the current folder."""
    size = random.choice((10**6, 10**9, 10**10))
    hexed = s("a" * 1000)
    for _ in range(random.choice((3, 24))):
        hexed = call(g("_codecs", "encode"), call(g("_codecs", "encode"), hexed, s("latin1")), s("hex"))
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
        "a type with another state": _dtype("V8") + b"q\x050" + array + held + b"bh\x05" + state + b"b0",
        "an array with another state": array + t(i(1), shape, _dtype(kind), b"\x89", pointer) + b"b",
        "a type of any kind": _dtype(kind),
        "hex of hex": hexed,
        "codecs by name": call(g("_codecs", "encode"), s("a" * 1000), s(codec)),
        "a number of numpy": call(g(numbers[0], "scalar"), _dtype("O8"), pointer),
        "frombuffer": call(g(numbers[1], "_frombuffer"), pointer, _dtype(kind), shape, s("C")),
        "a sparse tensor": call(g(numbers[2], "_rebuild_sparse_tensor"), b"N", sparse),
        "a quantised tensor": call(
            g(numbers[2], "_rebuild_qtensor"), storage("QInt8Storage"), i(0), *sides, scale, b"\x89", notes
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


def _torch_saved(random: Random) -> Made:
    """What torch itself writes, of tensors that are odd."""
    import torch

    kinds: dict[str, Callable[[], Any]] = {
        "meta": lambda: torch.empty(3, 6, device="meta"),
        "expanded": lambda: torch.zeros(1, 1).expand(random.choice((10**5, 10**9)), 6),
        "sparse": lambda: torch.sparse_coo_tensor([[0], [0]], [1.0], (10**6, 10**6)),
        "compressed rows": lambda: torch.eye(6).to_sparse_csr(),
        "quantised": lambda: torch.quantize_per_tensor(torch.rand(3, 6), 0.1, 0, torch.qint8),
        "complex": lambda: torch.zeros(3, 6, dtype=torch.complex64),
        "bool": lambda: torch.zeros(3, 6, dtype=torch.bool),
        "half": lambda: torch.zeros(3, 6, dtype=torch.float16),
        "whole": lambda: torch.full((3, 6), 2**62),
        "not finite": lambda: torch.full((3, 6), float(random.choice(("nan", "inf")))),
        "transposed": lambda: torch.zeros(6, 3).t(),
        "list": lambda: [torch.zeros(3, 6)] * 3,
        "dictionary": lambda: {"features": torch.zeros(3, 6), "coords": torch.full((3, 2), float("nan"))},
        "number": lambda: 5,
        "nothing": lambda: None,
        "parameter": lambda: torch.nn.Parameter(torch.zeros(3, 6)),
        "a copy of a view of much": lambda: torch.zeros(10**6)[:18].view(3, 6),
    }
    name = random.choice(list(kinds))
    torch.save(kinds[name](), content := io.BytesIO(), _use_new_zipfile_serialization=random.random() < 0.8)
    return content.getvalue(), f"torch saved: {name}"


def pickle_file(good: bytes, random: Random) -> Made:
    """A plain pickle, as DTFD-MIL has them."""
    words, pickled = random.choice(list(hostile_pickles(random).items()))
    return b"\x80\x04" + pickled + b".", words


# ------------------------------------------------------------------------------------------------------- annotations


def rings(random: Random) -> tuple[list[list[list[float]]], str]:
    """The rings of a polygon: the outline, and holes."""
    how = random.randrange(7)
    count = random.choice((3, 300, 1000, 3000))
    if how == 0:
        ring = [[random.uniform(0, 10_000), random.uniform(0, 10_000)] for _ in range(count)]
        return [[*ring, ring[0]]], f"a ring of {count} random points"
    if how == 1:
        outer = [[0.0, 0.0], [10_000.0, 0.0], [10_000.0, 10_000.0], [0.0, 10_000.0], [0.0, 0.0]]
        holes = [
            _square(random.uniform(0, 9000), random.uniform(0, 9000), random.uniform(10, 3000))
            for _ in range(count // 3)
        ]
        return [outer, *holes], f"{count // 3} overlapping holes"
    if how == 2:
        value = random.choice((*BROKEN_NUMBERS, *WHOLE))
        ring = _square(0, 0, 100)
        ring[random.randrange(4)] = [value, random.choice((value, 5))]
        return [ring], f"a corner at {short(value)}"
    if how == 3:
        return [[[0.0, 0.0]] * random.choice((0, 1, 2, 3, 10_000))], "a ring of one point"
    if how == 4:
        points = 200_000
        return [[[math.cos(n / 31831), math.sin(n / 31831)] for n in range(points)]], f"a ring of {points} points"
    if how == 5:
        ring = [[0.0, float(n)] if n % 2 else [10_000.0, float(n)] for n in range(count)]
        return [[*ring, [5000.0, -1.0], ring[0]]], f"a comb of {count} teeth"
    size = random.choice((1e15, 1e300, 2.0**62))
    return [_square(-size, -size, 2 * size)], f"a square of {size:g}"


def _square(x: float, y: float, side: float) -> list[list[float]]:
    return [[x, y], [x + side, y], [x + side, y + side], [x, y + side], [x, y]]


def geojson_file(good: bytes, random: Random) -> Made:
    """Outlines with odd rings, of many features, or nested deep."""
    if random.random() < 0.35:
        return json_file(good, random)
    made, words = rings(random)
    geometry: dict[str, Any] = {"type": "Polygon", "coordinates": made}
    if random.random() < 0.2:
        count = random.choice((1, 2, 30)) if sum(map(len, made)) < 5000 else 1
        geometry = {"type": "MultiPolygon", "coordinates": [made] * count}
        words = f"{len(geometry['coordinates'])} times {words}"
    if random.random() < 0.15:
        depth = random.choice((10, 2000))
        text = '{"type":"GeometryCollection","geometries":[' * depth + json.dumps(geometry) + "]}" * depth
        return (
            b'{"type":"Feature","properties":{},"geometry":' + text.encode() + b"}",
            f"{words}, {depth} collections deep",
        )
    feature = {"type": "Feature", "properties": {"classification": {"name": "Tumor"}}, "geometry": geometry}
    count = random.choice((1, 1, 1, 5)) if len(json.dumps(made)) < 200_000 else 1
    return json.dumps({"type": "FeatureCollection", "features": [feature] * count}).encode(), words


def asap_file(good: bytes, random: Random) -> Made:
    """Outlines of ASAP with odd rings, entities, and elements in elements."""
    how = random.randrange(5)
    if how == 0:
        depth = random.choice((100, 5000, 100_000))
        return (
            b"<ASAP_Annotations>" + b"<Annotation>" * depth + b"</Annotation>" * depth + b"</ASAP_Annotations>",
            f"{depth} deep",
        )
    if how == 1:
        text = f'<?xml version="1.0"?>{_entities(9)}<ASAP_Annotations>&j;</ASAP_Annotations>'
        return text.encode(), "entities in entities"
    if how == 2:
        text = '<?xml version="1.0"?><!DOCTYPE a [<!ENTITY a SYSTEM "file:///etc/passwd">]><ASAP_Annotations>&a;</ASAP_Annotations>'
        return text.encode(), "an entity that is a file"
    made, words = rings(random)
    texts = []
    for number, ring in enumerate(made[:2000]):
        corners = "".join(f'<Coordinate Order="{n}" X="{x}" Y="{y}"/>' for n, (x, y) in enumerate(ring))
        group = "Tumor" if number == 0 else random.choice(("Exclusion", "Tumor", "_2"))
        kind = random.choice(("Polygon", "Spline", "Rectangle", "Dot", "PointSet", ""))
        about = f'Name="a{number}" Type="{kind}" PartOfGroup="{group}"'
        texts.append(f"<Annotation {about}><Coordinates>{corners}</Coordinates></Annotation>")
    return f"<ASAP_Annotations><Annotations>{''.join(texts)}</Annotations></ASAP_Annotations>".encode(), words


# ---------------------------------------------------------------------------------------------------------- pictures


def png_file(good: bytes, random: Random) -> Made:
    """A picture whose size, depth and chunks are at bounds."""
    width, height = (random.choice((0, 1, 96, 10_000, 30_000, 60_000, 2**31 - 1)) for _ in range(2))
    depth, colour = random.choice(((8, 2), (16, 6), (1, 0), (8, 3), (16, 0), (3, 9)))
    size = random.choice(SIZES)
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, random.choice((0, 0, 1))))]
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
        struct.pack(">I", len(inside)) + kind + inside + struct.pack(">I", zlib.crc32(kind + inside))
        for kind, inside in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body, words


def jpeg_file(good: bytes, random: Random) -> Made:
    """A picture that says to be of another size, or has many scans."""
    width, height = (random.choice((0, 1, 96, 10_000, 65_500, 65_535)) for _ in range(2))
    at = next((place for place in range(len(good) - 9) if good[place : place + 2] in (b"\xff\xc0", b"\xff\xc2")), None)
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


TIFF_TYPES = {1: "B", 3: "H", 4: "I", 5: "II", 16: "Q"}


def tiff(
    pages: Sequence[dict[int, tuple[int, Sequence[int]]]], data: bytes, following: Sequence[int], big: bool = False
) -> bytes:
    """A TIFF of pages by their tags; the data come first, at byte 16, and `following` has the page that each leads to."""
    head = struct.pack("<2sHHHQ", b"II", 43, 8, 0, 0) if big else struct.pack("<2sHI8x", b"II", 42, 0)
    content = bytearray(head + data)
    places: list[int] = []
    form, count_form, inline = ("Q", "Q", 8) if big else ("I", "H", 4)
    holes: list[tuple[int, int]] = []
    for number, tags in enumerate(pages):
        rows = []
        for tag in sorted(tags):
            kind, values = tags[tag]
            packed = b"".join(
                struct.pack("<" + TIFF_TYPES[kind][0], value % 2 ** (8 * struct.calcsize(TIFF_TYPES[kind][0])))
                for value in values
            )
            count = len(values) // len(TIFF_TYPES[kind])
            if len(packed) > inline:
                rows.append(struct.pack(f"<HH{form}{form}", tag, kind, count, len(content)))
                content += packed
            else:
                rows.append(struct.pack(f"<HH{form}", tag, kind, count) + packed.ljust(inline, b"\0"))
        places.append(len(content))
        content += struct.pack("<" + count_form, len(rows)) + b"".join(rows)
        holes.append((len(content), number))
        content += bytes(inline)
    for place, number in holes:
        target = following[number]
        content[place : place + inline] = struct.pack("<" + form, places[target] if 0 <= target < len(places) else 0)
    content[8 if big else 4 : 16 if big else 8] = struct.pack("<" + form, places[0])
    return bytes(content)


def tiff_file(good: bytes, random: Random) -> Made:
    """A TIFF with tags at bounds: sizes of picture and tiles, counts, compressions, offsets, pages that lead back."""
    big = random.random() < 0.2
    width = height = random.choice((64, 256, 5000, 20_000, 60_000))
    tile, samples, bits, compression = random.choice((64, 256)), 3, 8, random.choice((1, 8))
    for _ in range(random.choice((0, 1, 1, 2))):
        what = random.randrange(6)
        if what == 0:
            width = random.choice((0, 1, 64, 60_000, 2**31 - 1, 2**32 - 1))
        elif what == 1:
            height = random.choice((0, 1, 64, 60_000, 2**31 - 1, 2**32 - 1))
        elif what == 2:
            tile = random.choice((0, 1, 16, 20_000, 60_000, 2**31))
        elif what == 3:
            samples = random.choice((1, 4, 65_535))
        elif what == 4:
            bits = random.choice((16, 1, 64))
        else:
            compression = random.choice((5, 7, 32773, 33003, 34712, 50000, 65535))
    inside = tile * tile * max(samples, 1)
    pixels = (
        bytes(min(inside, 2**16))
        if compression == 1
        else zlib_zeros(2**31 if inside > 2**30 else max(min(inside, 2**26), 1))
    )
    tiles = math.ceil(width / tile) * math.ceil(height / tile) if tile else 1
    count = min(tiles, 300_000)
    words = f"{width} x {height}, tiles of {tile}, {samples} samples of {bits} bits, compression {compression}"
    tags: dict[int, tuple[int, Sequence[int]]] = {
        256: (4, [width]), 257: (4, [height]), 258: (3, [bits] * min(samples, 8)), 259: (3, [compression]),
        262: (3, [2 if samples >= 3 else 1]), 277: (3, [samples]), 284: (3, [1]), 282: (5, [5000, 1]), 283: (5, [5000, 1]),
        296: (3, [3]),
    }  # fmt: skip
    offsets, lengths = [16] * count, [len(pixels)] * count
    if random.random() < 0.15:
        offsets = [random.choice((0, 2**31, 2**32 - 1))] * count
        words += f", at {offsets[0] if offsets else None}"
    if random.random() < 0.75:
        tags |= {322: (4, [tile]), 323: (4, [tile]), 324: (4, offsets), 325: (4, lengths)}
    else:
        rows = random.choice((1, 64, height % 2**32, 2**32 - 1))
        pixels = zlib_zeros(2**31) if height * width > 2**28 and compression == 8 else pixels
        tags |= {273: (4, [16]), 279: (4, [len(pixels)]), 278: (4, [rows])}
        words += f", strips of {rows} rows"
    if random.random() < 0.2:
        tag = random.choice(list(tags))
        tags[tag] = (tags[tag][0], [random.choice((0, 2**16 - 1, 2**32 - 1))] * random.choice((0, 1, 1000)))
        words += f", tag {tag} is {short(list(tags[tag][1][:1]))} x {len(tags[tag][1])}"
    pages = [tags] * random.choice((1, 1, 2, 3, 500 if count < 100 else 3))
    following = [number + 1 for number in range(len(pages))]
    if random.random() < 0.25:
        following[-1] = random.randrange(len(pages))
        words += f", page {len(pages)} leads back to {following[-1] + 1}"
    return tiff(pages, pixels, following, big), f"{words}, {len(pages)} pages{', BigTIFF' if big else ''}"


GENERATORS: dict[str, Generator] = {
    ".json": json_file, ".toml": toml_file, ".csv": csv_file, ".tsv": csv_file, ".svm": svm_file, ".xlsx": xlsx_file,
    ".npy": npy_file, ".npz": npz_file, ".mat": mat_file, ".safetensors": safetensors_file, ".h5": h5_file, ".pt": pt_file,
    ".pth": pt_file, ".pkl": pickle_file, ".geojson": geojson_file, ".xml": asap_file, ".png": png_file, ".jpg": jpeg_file,
    ".tif": tiff_file, ".svs": tiff_file,
}  # fmt: skip
