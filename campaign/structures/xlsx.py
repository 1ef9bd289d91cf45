"""Excel workbooks: distant cells, many sheets, formulas, entities, compressed blanks."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Sequence
from random import Random

from structures.values import EXTREME_INTEGERS, GeneratedFile, nested_entities, raw_zip, zeros

SCHEMAS = "http://schemas.openxmlformats.org"
KINDS = "application/vnd.openxmlformats-officedocument.spreadsheetml"
OFFICE = f"{SCHEMAS}/officeDocument/2006/relationships"


def xlsx_file(good: bytes, random: Random) -> GeneratedFile:
    """A workbook with distant cells, many sheets, long cells, formulas, or compressed blanks."""
    head, cells, words = _xlsx_cells(random)
    sheets, bomb = random.choice((1, 1, 1, 300)), words.endswith("of blanks")
    numbers = range(1, sheets + 1)
    parts = _workbook_parts(numbers)
    begin = f'<worksheet xmlns="{SCHEMAS}/spreadsheetml/2006/main"><sheetData>'
    end = "</sheetData></worksheet>"
    packed = [(name, content.encode(), len(content), 0) for name, content in parts.items()]
    for number in numbers:
        inside = (head + begin + (cells if number == 1 else "") + end).encode()
        packer = zlib.compressobj(6, zlib.DEFLATED, -15)
        content, size = packer.compress(inside) + packer.flush(), len(inside)
        if bomb and number == 1:
            content, size = zeros(2**31), 2**31
        packed.append((f"xl/worksheets/sheet{number}.xml", content, size, 8))
    return _pack_workbook(packed), f"{words}, {sheets} sheets"


def _workbook_parts(sheet_numbers: range) -> dict[str, str]:
    """The members of a workbook beside its sheets."""
    types = "".join(
        f'<Override PartName="/xl/worksheets/sheet{n}.xml" ContentType="{KINDS}.worksheet+xml"/>'
        for n in sheet_numbers
    )
    links = "".join(
        f'<Relationship Id="r{n}" Type="{OFFICE}/worksheet" Target="worksheets/sheet{n}.xml"/>'
        for n in sheet_numbers
    )
    names = "".join(f'<sheet name="s{n}" sheetId="{n}" r:id="r{n}"/>' for n in sheet_numbers)
    relationships = f'<Relationships xmlns="{SCHEMAS}/package/2006/relationships">'
    return {
        "[Content_Types].xml": f'<Types xmlns="{SCHEMAS}/package/2006/content-types">'
        '<Default Extension="rels" '
        'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        '<Default Extension="xml" ContentType="application/xml"/>'
        f'<Override PartName="/xl/workbook.xml" ContentType="{KINDS}.sheet.main+xml"/>'
        f"{types}</Types>",
        "_rels/.rels": f'{relationships}<Relationship Id="r0" '
        f'Type="{OFFICE}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{SCHEMAS}/spreadsheetml/2006/main" '
        f'xmlns:r="{OFFICE}"><sheets>{names}</sheets></workbook>',
        "xl/_rels/workbook.xml.rels": f"{relationships}{links}</Relationships>",
    }


def _xlsx_cells(random: Random) -> tuple[str, str, str]:
    """The start of a sheet, its rows, and a description of what is unusual about them."""
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
        one, other = random.choice(EXTREME_INTEGERS), random.choice(("NaN", "1e999", "-0"))
        numbers = f'<row r="2"><c r="A2"><v>{one}</v></c><c r="B2"><v>{other}</v></c></row>'
        return head, cells + numbers, f"numbers {one} and {other}"
    return (
        head + nested_entities(8),
        f'{cells}<row r="2">{_cell("A2", "&i;")}</row>',
        "entities in entities",
    )


def _cell(place: str, text: str) -> str:
    return f'<c r="{place}" t="inlineStr"><is><t>{text}</t></is></c>'


def _pack_workbook(members: Sequence[tuple[str, bytes, int, int]]) -> bytes:
    """An archive with correct checksums; a member that expands to gigabytes keeps a wrong one."""
    content = io.BytesIO()
    if any(size > 2**27 for _, _, size, _ in members):
        return raw_zip(members)
    with zipfile.ZipFile(content, "w") as archive:
        for name, packed, _, method in members:
            archive.writestr(
                name, zlib.decompress(packed, -15) if method else packed, 8 if method else 0
            )
    return content.getvalue()
