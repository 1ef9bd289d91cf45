"""Ids of slides from file names."""

from __future__ import annotations

import pytest

from scmil.bags.slide_ids import slide_id


@pytest.mark.parametrize(
    ("text", "bag_id"),
    [
        ("a.ome.tiff", "a"),
        ("TCGA-05-4244-01Z-00-DX1.a5f1.svs", "TCGA-05-4244-01Z-00-DX1.a5f1"),
        ("slide 1.v2", "slide 1.v2"),
        ("folder/", "folder"),
        (".h5", ".h5"),
    ],
)
def test_only_known_suffixes_are_cut(text: str, bag_id: str) -> None:
    assert slide_id(text) == bag_id
