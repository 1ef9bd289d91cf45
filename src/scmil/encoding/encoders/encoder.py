"""One encoder: tiles in, features out, with the weights' digest."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, interpolate

from scmil.encoding.encoders import optimise as speed
from scmil.errors import OptionError, ShapeError

PRECISIONS = ("auto", "float32", "bfloat16")
AGREES = 0.999  # the least cosine between features in bfloat16 and in float32
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
RGB = tuple[float, float, float]


@dataclass(frozen=True, eq=False)
class Encoder:
    """φ_w: a network with frozen weights that maps tiles to features, and the tiles that it is meant for.

    `input_px` is what tiles are resized to, bilinearly (None: they go in as they are); `mean` and `std` are those of
    pixels from 0 to 1; `digest` is taken over the weights as they were read, whatever precision is computed in.

    >>> network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    >>> encoder = Encoder("mean colour", 3, network, "no weights", "none", mean=(0, 0, 0), std=(1, 1, 1))
    >>> encoder(torch.full((1, 8, 8, 3), 255, dtype=torch.uint8))
    tensor([[1., 1., 1.]])
    """

    name: str
    dim: int
    network: nn.Module = field(repr=False)
    digest: str
    weights_source: str
    size_px: int = 256
    mpp: float | None = None
    input_px: int | None = None
    mean: RGB = IMAGENET_MEAN
    std: RGB = IMAGENET_STD
    foldable: bool = False  # torch.fx can follow the network, so that its batch norms go into its convolutions
    device: str = "cpu"
    precision: str = "float32"

    def __call__(self, tiles: Tensor) -> Tensor:
        """Features (b, dim) in float32 of tiles (b, h, w, 3) in uint8; they stay on the encoder's device."""
        if tiles.dtype != torch.uint8 or tiles.ndim != 4 or tiles.shape[-1] != 3:
            met = f"{tiles.dtype} of the shape {tuple(tiles.shape)}"
            raise ShapeError(f"{self.name}: tiles are uint8 of the shape (b, h, w, 3), and these are {met}.")
        if not len(tiles):
            return torch.empty(0, self.dim, device=self.device)
        with torch.inference_mode():
            features = self.network(self._normalised(tiles.to(self.device, non_blocking=True))).float()
        return features.clone()  # made outside, an ordinary tensor: a model may be trained on it

    def to(self, device: str = "cpu", precision: str = "auto") -> Encoder:
        """The same encoder on a device, made fast: channels last, batch norms folded, and bfloat16 where that is sound.

        `auto` is bfloat16 if the device computes in it natively and the features of this very network agree (cosine
        above 0.999 on painted tissue); otherwise float32, as is `float32`, whose features are exact up to rounding.
        """
        if precision not in PRECISIONS:
            raise OptionError(f"precision {precision!r} is not known: {', '.join(PRECISIONS)}.")
        if self.precision == "bfloat16":
            if precision == "float32":
                raise OptionError(f"{self.name} is in bfloat16, and its digits are gone. Load it again in float32.")
            return replace(self, network=self.network.to(device), device=device)
        network = speed.folded(self.network) if self.foldable else deepcopy(self.network)
        network = network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        exact = replace(self, network=network, foldable=False, device=device)
        if precision == "float32" or (precision == "auto" and not speed.computes_bfloat16(torch.device(device))):
            return exact
        fast = replace(exact, network=deepcopy(exact.network).bfloat16(), precision="bfloat16")
        return fast if precision == "bfloat16" or agreement(exact, fast) > AGREES else exact

    def _normalised(self, tiles: Tensor) -> Tensor:
        """(x / 255 - mean) / std; the pixels' order, RGB by RGB, is that of channels last, so nothing is moved."""
        mean, std = (torch.tensor(values, device=self.device).view(3, 1, 1) for values in (self.mean, self.std))
        x = tiles.permute(0, 3, 1, 2).float().mul_(1 / (255 * std)).sub_(mean / std)
        if self.input_px and tuple(x.shape[2:]) != (self.input_px, self.input_px):
            x = interpolate(x, (self.input_px, self.input_px), mode="bilinear", antialias=True)
        return x.to(getattr(torch, self.precision), memory_format=torch.channels_last)


def agreement(one: Encoder, other: Encoder) -> float:
    """The least cosine between two encoders' features of the same painted tissue."""
    tiles = speed.painted_tiles(one.input_px or one.size_px)
    return float(cosine_similarity(one(tiles), other(tiles)).min())


def check_contract(encoder: Encoder, size_px: int, mpp: float) -> list[str]:
    """Warnings, in plain words, where tiles are not what an encoder is meant for.

    >>> encoder = Encoder("ctranspath", 768, nn.Identity(), "", "", mpp=1.0, input_px=224)
    >>> check_contract(encoder, size_px=256, mpp=1.0)
    []
    >>> check_contract(encoder, size_px=256, mpp=0.5)
    ['ctranspath is meant for 1 µm per pixel, and these tiles have 0.5: it sees things 2 times as large as it knows them.']
    """
    warnings = []
    if size_px != encoder.size_px:
        treated = f"are resized to {encoder.input_px} px" if encoder.input_px else "go in as they are"
        warnings.append(
            f"{encoder.name} is meant for tiles of {encoder.size_px} px, and these have {size_px} px: they {treated}."
        )
    if encoder.mpp is not None and not 0.95 < mpp / encoder.mpp < 1.05:  # scanners' pixels differ by a few per cent
        ratio, change = max(mpp / encoder.mpp, encoder.mpp / mpp), "small" if mpp > encoder.mpp else "large"
        warnings.append(
            f"{encoder.name} is meant for {encoder.mpp:g} µm per pixel, and these tiles have {mpp:g}: "
            f"it sees things {ratio:.3g} times as {change} as it knows them."
        )
    return warnings
