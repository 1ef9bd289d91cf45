"""Bags of slides with and without a lesion, with annotations in both formats and labels."""

from __future__ import annotations

from pathlib import Path

import torch
from shapely import MultiPolygon, box

from scmil.bags.bag import Bag
from scmil.bags.hdf5 import write_bag
from scmil.slides.annotations.asap import write_asap
from scmil.slides.annotations.geojson import Region, write_geojson

SIDE, WIDE, DIM, SLIDES = 256, 10, 6, 16
PROVENANCE = {
    "encoder": "drawn",
    "size_px": SIDE,
    "mpp": 0.5,
    "side_level0": float(SIDE),
    "slide_mpp": 0.5,
    "overlap_px": 0,
    "slide_size": [SIDE * WIDE, SIDE * WIDE],
}


def lesion(place: int) -> tuple[int, int]:
    """The tile at which the lesion of three by three tiles begins."""
    return place % 7, place * 3 % 7


def bag(place: int) -> Bag:
    """A slide of ten by ten tiles; every second one has a lesion, whose tiles look different."""
    generator = torch.Generator().manual_seed(place)
    x = torch.randn(WIDE, WIDE, DIM, generator=generator)
    if place % 2:
        left, top = lesion(place)
        x[top : top + 3, left : left + 3, 0] += 5
    xy = SIDE * torch.tensor([(column, row) for row in range(WIDE) for column in range(WIDE)])
    return Bag(
        f"slide_{place:02}",
        x.reshape(-1, DIM),
        place % 2,
        f"p{place}",
        xy=xy,
        provenance=PROVENANCE,
    )


def outline(place: int) -> Region:
    left, top = (SIDE * tile for tile in lesion(place))
    return Region(
        "lesion", MultiPolygon([box(left, top, left + 3 * SIDE, top + 3 * SIDE)]), "Tumor"
    )


def write_lesion_cohort(home: Path) -> None:
    """Write the folders `bags` and `outlines`, and `labels.csv`."""
    for place in range(SLIDES):
        write_bag(bag(place), home / "bags" / f"slide_{place:02}.h5")
    (home / "outlines").mkdir()
    for place in range(1, SLIDES, 2):
        if place % 4 == 1:
            write_asap([outline(place)], home / "outlines" / f"slide_{place:02}.xml")
        else:
            write_geojson([outline(place)], home / "outlines" / f"slide_{place:02}.geojson")
    names = "".join(f"p{i},slide_{i:02},{'tumour' if i % 2 else 'normal'}\n" for i in range(SLIDES))
    (home / "labels.csv").write_text("case_id,slide_id,label\n" + names)
