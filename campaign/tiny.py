"""Slides of 320 pixels and an encoder of mean colours, for a whole study in a second."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np

SIDE_PX, TILE_PX, MPP = 320, 64, 2.0
ENCODER, BLOCKS = "blocks", 4
# Each slide is padded to this size, so that a replaced slide has the same size.
FILE_BYTES = 2**17


def register_encoder() -> None:
    """Register the encoder: mean colours of 4 x 4 blocks, with a seed a random mixture."""
    import torch
    from torch import nn

    from scmil.encoding.encoders import Encoder, registry

    def load(weights: str | Path | None = None, random: int | None = None) -> Encoder:
        dim = 3 * BLOCKS**2
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(random or 0)
            mixed = [nn.Linear(dim, dim)] if random is not None else []
        network = (
            nn.Sequential(nn.AdaptiveAvgPool2d(BLOCKS), nn.Flatten(), *mixed)
            .eval()
            .requires_grad_(False)
        )
        name = ENCODER if random is None else f"{ENCODER}, random weights of seed {random}"
        return Encoder(
            name, dim, network, f"{random}".rjust(64, "0"), "none", size_px=TILE_PX, mpp=MPP
        )

    if ENCODER not in registry.names():
        registry.register(ENCODER, "mean colours, for the campaign")(load)


def slide(seed: int, tumour: bool, side: int = SIDE_PX) -> tuple[bytes, bytes]:
    """A slide as a tiled TIFF and its annotation as GeoJSON; the same seed gives the same bytes."""
    import tifffile

    random = np.random.default_rng(seed)
    y, x = np.mgrid[:side, :side] / side - 0.5
    angle, radius = np.arctan2(y, x), np.hypot(x, y)
    edge = (
        0.36
        + 0.05 * np.sin(3 * angle + random.uniform(0, 6))
        + 0.03 * np.cos(5 * angle + random.uniform(0, 6))
    )
    pixels = np.full((side, side, 3), 242.0)
    tissue = radius < edge
    colour = np.array([226, 150, 190]) + random.normal(0, 12, 3)
    coarse = np.kron(random.normal(0, 16, (20, 20, 3)), np.ones((side // 20, side // 20, 1)))
    pixels[tissue] = (colour + coarse + random.normal(0, 6, pixels.shape))[tissue]
    left, top = (int(side * random.uniform(0.25, 0.4)) for _ in range(2))
    size = side * 3 // 10
    if tumour:
        lesion = np.zeros_like(tissue)
        lesion[top : top + size, left : left + size] = True
        pixels[lesion & tissue] = (np.array([120, 70, 150]) + 0.6 * coarse)[lesion & tissue]
    content = io.BytesIO()
    tifffile.imwrite(
        content,
        np.clip(pixels, 0, 255).astype(np.uint8),
        tile=(64, 64),
        photometric="rgb",
        compression="zlib",
        compressionargs={"level": 1},
        resolution=(10_000 / MPP, 10_000 / MPP),
        resolutionunit="CENTIMETER",
        metadata=None,
    )
    ring = [
        (left, top),
        (left + size, top),
        (left + size, top + size),
        (left, top + size),
        (left, top),
    ]
    feature = {
        "type": "Feature",
        "geometry": {"type": "Polygon", "coordinates": [ring]},
        "properties": {
            "objectType": "annotation",
            "name": "tumour",
            "classification": {"name": "Tumor"},
        },
    }
    page: dict[str, Any] = {"type": "FeatureCollection", "features": [feature] if tumour else []}
    return content.getvalue(), json.dumps(page).encode()


def pad_slide(content: bytes) -> bytes:
    """The content of a slide, padded to `FILE_BYTES`."""
    if len(content) > FILE_BYTES:
        raise ValueError(f"a slide of {len(content)} bytes: FILE_BYTES is too small")
    return content.ljust(FILE_BYTES, b"\0")
