"""Bags, plain slides and a trained model, for the tests of heatmaps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from scmil import studies
from scmil.bags.bag import Bag, BagSet
from scmil.bags.formats import open_bags
from scmil.bags.hdf5 import write_bag
from scmil.viz.heatmaps.slide_files import read_sheet_info

SIDE, SIZE, DIM, BACK = 64, (512, 384), 8, (250, 240, 245)
MADE = {
    "encoder": "uni_v1",
    "size_px": 256,
    "mpp": 0.5,
    "side_level0": float(SIDE),
    "slide_mpp": 2.0,
    "overlap_px": 0,
}
SHOWN = ["s00", "s01", "s02"]


def slide_bag(i: int) -> Bag:
    """A bag of 12 tiles; those of odd slides differ in one feature."""
    generator = torch.Generator().manual_seed(i)
    places = torch.tensor([(SIDE * x, SIDE * y) for y in range(1, 4) for x in range(2, 6)])
    features = torch.randn(len(places), DIM, generator=generator) + 3 * (i % 2) * torch.eye(DIM)[0]
    return Bag(f"s{i:02}", features, xy=places, provenance={**MADE, "slide_size": list(SIZE)})


def write_heatmap_case(home: Path) -> Path:
    """24 bags, slides of three of them, one annotation, and a model trained on the bags."""
    (home / "slides").mkdir()
    rows = ["case_id,slide_id,label"]
    for i in range(24):
        write_bag(slide_bag(i), home / "bags" / f"s{i:02}.h5")
        rows.append(f"p{i},s{i:02},{['normal', 'tumour'][i % 2]}")
    (home / "labels.csv").write_text("\n".join(rows))
    for slide_id in SHOWN:
        Image.new("RGB", SIZE, BACK).save(home / "slides" / f"{slide_id}.png")
    ring = [[130, 70], [250, 70], [250, 190], [130, 190], [130, 70]]
    lesion = {"type": "Feature", "properties": {"objectType": "annotation"}}
    lesion["geometry"] = {"type": "Polygon", "coordinates": [ring]}
    (home / "slides" / "s01.geojson").write_text(json.dumps([lesion]))
    data = studies.open_data(home / "bags", home / "labels.csv")
    options: dict[str, Any] = {
        "aggregator": "abmil-gated",
        "sparse_coding": {"atoms": 8},
        "epochs": 2,
    }
    studies.train(data, home / "trained", **options)
    return home


def chosen(home: Path, ids: list[str] = SHOWN) -> BagSet:
    """Some of the bags."""
    return open_bags(home / "bags").subset(ids)


def panel(path: Path) -> np.ndarray:
    """The heatmap on a sheet."""
    with Image.open(path) as picture:
        return np.asarray(picture.crop(read_sheet_info(path)["panel"]).convert("RGB")).astype(int)
