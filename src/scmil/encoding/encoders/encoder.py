"""The class `Encoder`: a frozen network that maps tiles to features."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from scmil.encoding.encoders import optimise as speed
from scmil.encoding.encoders.transform import crop_centre, resize_tiles
from scmil.errors import OptionError, ShapeError

PRECISIONS = ("auto", "float32", "bfloat16")
AGREES = 0.999  # minimum cosine similarity between features in bfloat16 and float32
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
RGB = tuple[float, float, float]


@dataclass(frozen=True, eq=False)
class Encoder:
    """φ_w: a network with frozen weights that maps tiles to features, and the tiles it expects.

    Args:
        name: The name of the encoder.
        dim: The number of features.
        network: The network, in evaluation mode.
        digest: The SHA-256 of the weights as they were read, regardless of the precision.
        weights_source: Where the weights came from.
        size_px: The expected width and height of tiles.
        mpp: The expected microns per pixel of tiles; None for any.
        input_px: Tiles are resized to this width and height; None: they are not resized.
        mean: Mean of each channel of pixels from 0 to 1.
        std: Standard deviation of each channel.
        foldable: Whether torch.fx can trace the network, so that batch norms can be folded.
        device: The device of the network.
        precision: The precision of the network, "float32" or "bfloat16".

    >>> network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    >>> zero, one = (0, 0, 0), (1, 1, 1)
    >>> encoder = Encoder("mean colour", 3, network, "no weights", "none", mean=zero, std=one)
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
    foldable: bool = False
    device: str = "cpu"
    precision: str = "float32"
    interpolation: str = "bilinear"
    crop_px: int | None = None  # the centre that is kept after resizing
    mpps: tuple[float, ...] = ()  # all resolutions that it was trained for, if there are several
    # Further entries of the provenance: file, parameters and card.
    details: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __call__(self, tiles: Tensor) -> Tensor:
        """Encode tiles (b, h, w, 3) in uint8 as features (b, dim) in float32, on its device.

        Raises:
            ShapeError: If the tiles have another type or shape.
        """
        if tiles.dtype != torch.uint8 or tiles.ndim != 4 or tiles.shape[-1] != 3:
            raise ShapeError(
                f"{self.name}: tiles are {tiles.dtype} of shape {tuple(tiles.shape)}; expected "
                "uint8 of shape (b, h, w, 3)."
            )
        if not len(tiles):
            return torch.empty(0, self.dim, device=self.device)
        with torch.inference_mode():
            features = self.network(
                self._normalise(tiles.to(self.device, non_blocking=True))
            ).float()
        return features.clone()  # outside of inference mode, so that a model can be trained on it

    def to(self, device: str = "cpu", precision: str = "auto") -> Encoder:
        """Return the encoder on a device, optimised: channels last, batch norms folded.

        Args:
            device: The device, such as "cpu" or "cuda".
            precision: "float32", "bfloat16", or "auto": bfloat16 if the device supports it natively
                and the features agree with those in float32 (cosine similarity above 0.999 on
                synthetic tiles), otherwise float32.

        Raises:
            OptionError: If the precision is unknown, or an encoder in bfloat16 is converted to
                float32.
        """
        if precision not in PRECISIONS:
            raise OptionError(
                f"precision = {precision!r}; expected one of {', '.join(PRECISIONS)}."
            )
        if self.precision == "bfloat16":
            if precision == "float32":
                raise OptionError(
                    f"{self.name} is in bfloat16 and cannot be converted back to float32. Load it "
                    "again in float32."
                )
            return replace(self, network=self.network.to(device), device=device)
        network = speed.folded(self.network) if self.foldable else deepcopy(self.network)
        network = network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        exact = replace(self, network=network, foldable=False, device=device)
        if precision == "float32" or (
            precision == "auto" and not speed.computes_bfloat16(torch.device(device))
        ):
            return exact
        fast = replace(exact, network=deepcopy(exact.network).bfloat16(), precision="bfloat16")
        return fast if precision == "bfloat16" or agreement(exact, fast) > AGREES else exact

    def _normalise(self, tiles: Tensor) -> Tensor:
        """(x / 255 - mean) / std; tiles are channels last already, so no pixel is moved."""
        mean, std = (
            torch.tensor(values, device=self.device).view(3, 1, 1)
            for values in (self.mean, self.std)
        )
        x = tiles.permute(0, 3, 1, 2).float().mul_(1 / (255 * std)).sub_(mean / std)
        if self.input_px and tuple(x.shape[2:]) != (self.input_px, self.input_px):
            x = resize_tiles(x, self.input_px, self.interpolation, -mean / std, (1 - mean) / std)
        if self.crop_px:
            x = crop_centre(x, self.crop_px)
        return x.to(getattr(torch, self.precision), memory_format=torch.channels_last)


def agreement(one: Encoder, other: Encoder) -> float:
    """The minimum cosine similarity of two encoders' features of synthetic tiles."""
    tiles = speed.synthetic_tiles(one.input_px or min(one.size_px, 256))
    return float(cosine_similarity(one(tiles), other(tiles)).min())


def tile_warnings(encoder: Encoder, size_px: int, mpp: float) -> list[str]:
    """Warnings if the size or resolution of tiles is not that expected by an encoder.

    >>> encoder = Encoder("ctranspath", 768, nn.Identity(), "", "", mpp=1.0, input_px=224)
    >>> tile_warnings(encoder, size_px=256, mpp=1.0)
    []
    >>> tile_warnings(encoder, size_px=256, mpp=0.5)
    ['ctranspath expects 1 µm per pixel, but the tiles have 0.5: objects appear 2 times as large.']
    """
    warnings = []
    if size_px != encoder.size_px:
        treated = f"are resized to {encoder.input_px} px" if encoder.input_px else "are not resized"
        warnings.append(
            f"{encoder.name} expects tiles of {encoder.size_px} px, but the tiles have {size_px} "
            f"px and {treated}."
        )
    # The resolutions of scanners differ by a few per cent.
    fits = any(0.95 < mpp / each < 1.05 for each in (*encoder.mpps, encoder.mpp) if each)
    if encoder.mpp is not None and not fits:
        ratio, change = (
            max(mpp / encoder.mpp, encoder.mpp / mpp),
            "small" if mpp > encoder.mpp else "large",
        )
        warnings.append(
            f"{encoder.name} expects {encoder.mpp:g} µm per pixel, but the tiles have {mpp:g}: "
            f"objects appear {ratio:.3g} times as {change}."
        )
    return warnings
