"""Reader for PNG and JPEG: images of one level, decoded once and kept in memory."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from scmil.core.extras import import_extra
from scmil.core.regular_files import check_regular
from scmil.core.safe_io import check_expansion
from scmil.errors import DataError, SlideError
from scmil.slides.readers import Damaged, Facts, Pixels, Size, in_bands, on_white
from scmil.slides.resolution import UM_IN, mpp_of_density

# Memory for an image: what Pillow decodes to, and the pixels that are kept.
MOST_BYTES = 2 * 2**30
# Bytes per pixel in the memory of Pillow; 4 for all other modes.
STORED = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2}
KEPT = 3
PLUGINS = {
    "PNG": ("PIL.PngImagePlugin", "PngImageFile"),
    "JPEG": ("PIL.JpegImagePlugin", "JpegImageFile"),
}


class _Bounded(io.FileIO):
    """A file that never reads beyond its end: a wrong length in a damaged PNG would allocate memory
    first.
    """

    def read(self, size: int | None = -1) -> bytes | None:  # type: ignore[override]
        """Read at most `size` bytes, or those that are left."""
        left = max(os.fstat(self.fileno()).st_size - self.tell(), 0)
        return super().read(left if size is None or size < 0 else min(size, left))


@contextmanager
def opened_picture(path: Path, kind: str) -> Iterator[Any]:
    """Open a PNG or JPEG with its own plugin; images that need more than 2 GiB are rejected.

    `Image.open` would try every format of Pillow, and its limit of pixels is global.
    """
    module, name = PLUGINS[kind]
    plugin = getattr(import_extra(module, "slides"), name)
    try:
        check_regular(path)
        with _Bounded(path) as file, plugin(file) as image:
            size, each = image.size, STORED.get(image.mode, 4) + KEPT
            if (needed := size[0] * size[1] * each) > MOST_BYTES:
                raise SlideError(
                    f"{path} has {size[0]} x {size[1]} px according to its header. A {kind} is "
                    f"decoded at once, which needs {needed} bytes of memory; at most {MOST_BYTES} "
                    "are allowed. Convert it to a tiled TIFF: vips tiffsave in.png out.tif --tile "
                    "--pyramid"
                )
            check_expansion(needed, path.stat().st_size, str(path))
            yield image
    except (SlideError, DataError):
        raise
    except (OSError, SyntaxError, ValueError) as error:
        # Pillow raises SyntaxError for a header that it cannot read.
        raise Damaged(str(error)) from error


def _picture_rgb(image: Any) -> Pixels:
    """Convert an image of any mode to RGB, transparent pixels on white."""
    if image.mode.startswith("I"):  # 16 bits of grey
        grey = np.asarray(image).astype(np.uint32)
        return np.repeat(((grey * 255 + 32767) // 65535).astype(np.uint8)[..., None], 3, axis=2)
    if image.mode in ("LA", "PA", "RGBA") or "transparency" in image.info:
        rgba = np.asarray(image.convert("RGBA"))
        return on_white(rgba[..., :3], rgba[..., 3])
    return np.asarray(image.convert("RGB"))


class PictureReader:
    """An image without levels."""

    def __init__(self, path: Path, kind: str) -> None:
        self._path, self._kind, self._lock = path, kind, Lock()
        self._pixels: Pixels | None = None
        with opened_picture(path, kind) as image:
            size, dpi = image.size, image.info.get("dpi", (None, None))
        mpp_xy = mpp_of_density(dpi, UM_IN["inch"])
        self.facts = Facts("image", kind, (size,), (1.0,), mpp_xy=mpp_xy)

    def region(self, level: int, xy: Size, size: Size) -> Pixels:
        """Read pixels of the image; white outside."""
        with self._lock:
            if self._pixels is None:
                self._pixels = self._decoded()
        canvas: Pixels = np.full((size[1], size[0], 3), 255, np.uint8)
        (x, y), (height, width, _) = xy, self._pixels.shape
        left, top = max(x, 0), max(y, 0)
        right, bottom = max(min(x + size[0], width), left), max(min(y + size[1], height), top)
        canvas[top - y : bottom - y, left - x : right - x] = self._pixels[top:bottom, left:right]
        return canvas

    def _decoded(self) -> Pixels:
        with opened_picture(self._path, self._kind) as image:
            image.load()
            width = image.size[0]
            return in_bands(
                image.size, lambda rows: _picture_rgb(image.crop((0, rows.start, width, rows.stop)))
            )

    def origin(self, level: int, at: int) -> float:
        """The same coordinate: there is one level."""
        return float(at)

    def close(self) -> None:
        """Free the pixels."""
        self._pixels = None
