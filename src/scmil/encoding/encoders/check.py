"""Check an encoder on this computer: build it, load its weights, encode a fixed image, measure."""

from __future__ import annotations

import hashlib
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch

from scmil.encoding.encoders import Encoder, card_of
from scmil.encoding.encoders.builders import count_parameters
from scmil.encoding.encoders.encoder import agreement
from scmil.encoding.encoders.load_card import load_card
from scmil.encoding.encoders.optimise import synthetic_tiles

ON_PROCESSOR, ON_GPU = 4, 32  # tiles per batch
SECONDS = 2.0  # how long the speed is measured


class EncoderCheck(NamedTuple):
    """The result of a check; features are those of a synthetic tile."""

    name: str
    parameters: int
    expected_parameters: int
    weights: str
    digest: str
    width: int
    features_digest: str
    features_norm: float
    first_features: list[float]
    device: str
    precision: str
    agreement_with_float32: float
    tiles_per_second: float
    megabytes: float


def check_encoder(
    name: str,
    weights: str | Path | None = None,
    *,
    offline: bool | None = None,
    random: int | None = None,
    device: str = "cpu",
    precision: str = "auto",
) -> EncoderCheck:
    """Build an encoder, load its weights, encode a synthetic tile, and measure speed and memory.

    The digest of the features is exact: the same on the same computer with the same versions. To
    compare computers, compare the norm and the first features.

    Args:
        name: The name of the encoder, or the path of a card.
        weights: A file of weights.
        offline: Whether downloads are disabled.
        random: Seed for random weights.
        device: The device.
        precision: "auto", "float32" or "bfloat16".

    Returns:
        The result.
    """
    card = card_of(name)
    loaded = load_card(card, weights, offline, random)
    exact = loaded.to(device, "float32")
    encoder = exact.to(device, precision) if precision != "float32" else exact
    tile = synthetic_tiles(encoder.size_px, count=1)
    features = exact(tile).cpu()
    values = features.contiguous().view(torch.uint8).numpy().tobytes()
    return EncoderCheck(
        name=encoder.name,
        parameters=count_parameters(loaded.network),
        expected_parameters=card.parameters,
        weights=encoder.weights_source,
        digest=encoder.digest,
        width=features.shape[1],
        features_digest=hashlib.sha256(values).hexdigest(),
        features_norm=float(features.norm()),
        first_features=[round(float(value), 4) for value in features[0, :4]],
        device=encoder.device,
        precision=encoder.precision,
        agreement_with_float32=agreement(exact, encoder) if encoder is not exact else 1.0,
        tiles_per_second=_measure_speed(encoder, SECONDS),
        megabytes=_peak_megabytes(device),
    )


def _measure_speed(encoder: Encoder, seconds: float) -> float:
    """Tiles per second, after one batch that is not counted."""
    count = ON_PROCESSOR if encoder.device == "cpu" else ON_GPU
    tiles = synthetic_tiles(encoder.size_px, count=count)
    encoder(tiles).cpu()
    done, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds or not done:
        encoder(tiles).cpu()
        done += count
    return done / max(elapsed, 1e-9)


def _peak_megabytes(device: str) -> float:
    """The largest memory so far: of the GPU, or of this process."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated(device) / 2**20
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
