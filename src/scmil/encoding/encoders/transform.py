"""Resize and crop tiles as the transforms of torchvision do on images."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import interpolate


def resize_tiles(x: Tensor, size: int, interpolation: str, black: Tensor, white: Tensor) -> Tensor:
    """Resize tiles (b, 3, h, w) to a square, with antialiasing.

    Args:
        x: Normalised tiles.
        size: The new width and height.
        interpolation: "bilinear" or "bicubic". Bicubic weights are partly negative, so colours may
            leave the range of pixels; they are clipped to it, as in images.
        black: The value of black in each channel (3, 1, 1).
        white: The value of white in each channel (3, 1, 1).
    """
    if interpolation == "bilinear":
        return interpolate(x, (size, size), mode="bilinear", antialias=True)
    # Rows, then columns, each clipped: as Pillow does.
    for shape in ((x.shape[2], size), (size, size)):
        x = interpolate(x, shape, mode="bicubic", antialias=True).clamp(black, white)
    return x


def crop_centre(x: Tensor, size: int) -> Tensor:
    """The central square of tiles (b, 3, h, w).

    >>> import torch
    >>> crop_centre(torch.arange(16.0).view(1, 1, 4, 4), 2).flatten().tolist()
    [5.0, 6.0, 9.0, 10.0]
    """
    top, left = (round((length - size) / 2) for length in x.shape[2:])
    return x[:, :, top : top + size, left : left + size]
