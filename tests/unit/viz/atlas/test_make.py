"""The page, the table and the detections of an atlas."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from atlas_case import cohort, random_slides, slide

from scmil.errors import OptionError
from scmil.viz.atlas.atom import Atom
from scmil.viz.atlas.counts import build_atlas
from scmil.viz.atlas.page import atlas_page
from scmil.viz.atlas.qupath import atoms_geojson


def test_names_are_escaped_on_the_page_and_nothing_is_loaded() -> None:
    atlas = build_atlas(cohort(slide("<b>x", [[1.0, 0], [2.0, 1.0]])))
    page = atlas_page(atlas, {(0, 0): "tiles/0/0.jpg"}, "<script>alert(1)</script>")
    assert "<script>alert" not in page
    assert "<b>x" not in page
    assert "http://" not in page
    assert "https://" not in page
    assert "default-src 'none'" in page.replace("&#x27;", "'")
    assert '<img src="tiles/0/0.jpg"' in page
    assert "not readable" in page  # the second picture has no file


def test_the_page_warns_if_slides_were_used_for_training() -> None:
    atlas = build_atlas(random_slides(6))
    assert "5 of these slides were used to train" in atlas_page(atlas, {}, "m", {"trained": 5})
    assert "were used to train" not in atlas_page(atlas, {}, "m", {"trained": 5, "held_out": True})


def test_each_tile_is_a_detection_classified_by_its_strongest_atom(tmp_path: Path) -> None:
    first, second = json.loads(atoms_geojson(slide("a", [[1.0, -3.0], [0, 0]])))["features"]
    assert first["properties"]["classification"]["name"] == "Atom 1−"
    assert first["properties"]["measurements"]["code"] == -3.0
    assert first["geometry"]["coordinates"] == [[[0, 7], [100, 7], [100, 107], [0, 107], [0, 7]]]
    assert all(0 <= channel <= 255 for channel in first["properties"]["classification"]["color"])
    assert "classification" not in second["properties"]  # it uses no atom
    assert first["id"] != second["id"]
    with pytest.raises(OptionError, match="no sparse coding"):
        atoms_geojson(replace(slide("a", [[1.0]]), codes=None))


def test_formulas_in_class_names_are_escaped_in_the_table() -> None:
    from scmil.viz.atlas.make import _atom_record, _atom_table

    evil = ("=HYPERLINK(1)", "＝cmd", "x;=cmd")
    atom = Atom(
        0,
        used=0.5,
        by_class=dict.fromkeys(evil, 0.1),
        use_by_class=dict.fromkeys(evil, 0.1),
        compared=evil[0],
    )
    for line in _atom_table([_atom_record(atom, {})], evil).decode().splitlines():
        for cell in line.split(";"):
            assert not cell.startswith("=")
    [header, row] = csv.reader(io.StringIO(_atom_table([_atom_record(atom, {})], evil).decode()))
    assert row[header.index("compared")] == "'=HYPERLINK(1)"
