"""Small slides, their work folder and an encoder, for the tests of `scmil.encoding`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from scmil.bags.bag import Bag
from scmil.bags.hdf5 import read_bag
from scmil.core.jobs.failure_log import FailureLog
from scmil.encoding.cohort import Source, TileSettings, bags_folder, read_sources, tissue_file
from scmil.encoding.encoders import Encoder

pytest.importorskip("shapely")
Image = pytest.importorskip("PIL.Image")


PINK, GLASS = (200, 80, 160), (250, 250, 250)


SETTINGS = TileSettings(size_px=100, mpp=0.5, min_tissue=0.5, preset="biopsy", pen=False)


class Mean(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3))


def mean_colour(**change: Any) -> Encoder:
    encoder = Encoder(
        "mean", 3, Mean(), "digest", "none", mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)
    )
    return replace(encoder, **change)


def picture(
    path: Path, size: tuple[int, int] = (300, 200), colour: tuple[int, int, int] = PINK
) -> Path:
    """A slide of one colour; with the default size it has three by two tiles."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path


def cohort(folder: Path, names: str = "ab") -> list[Source]:
    return [Source(name, picture(folder / "slides" / f"{name}.png"), 0.5) for name in names]


def listed(work: Path) -> list[Source]:
    """The slides of slides.csv, without their file times."""
    return [source._replace(times=None) for source in read_sources(work)]


def draw_outlines(work: Path, name: str, size: tuple[int, int]) -> None:
    """Write a box at the corner as QuPath would save it."""
    width, height = size
    ring = [[0, 0], [width, 0], [width, height], [0, height], [0, 0]]
    path = tissue_file(work, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"type": "Polygon", "coordinates": [ring]}))


def bag_of(work: Path, name: str, encoder: str = "mean", scales: int = 1) -> Bag:
    return read_bag(bags_folder(work, encoder, scales) / f"{name}.h5")


def causes(work: Path) -> dict[tuple[str, str], str]:
    return {(failure.slide, failure.stage): failure.cause for failure in FailureLog(work).read()}


def empty_files(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")
    return folder
