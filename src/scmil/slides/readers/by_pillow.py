"""PNG and JPEG: pictures of one level, decoded once and kept."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from scmil.errors import DataError, SlideError
from scmil.core.extras import need
from scmil.core.files import check_regular
from scmil.core.safe_io import check_expansion
from scmil.slides.readers import Damaged, Facts, Pixels, Size, in_bands, on_white
from scmil.slides.resolution import UM_IN, of_density

MOST_BYTES = 2 * 2**30  # of memory for a picture: what pillow decodes to, and the pixels that are kept
STORED = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2}  # bytes a pixel in pillow's memory; all others: 4
KEPT = 3
PLUGINS = {"PNG": ("PIL.PngImagePlugin", "PngImageFile"), "JPEG": ("PIL.JpegImagePlugin", "JpegImageFile")}


class _Bounded(io.FileIO):
    """A file of which no more is asked for than there is: a length in a damaged PNG would be taken from memory first."""

    def read(self, size: int | None = -1) -> bytes | None:  # type: ignore[override]
        """So many bytes, or what is left."""
        left = max(os.fstat(self.fileno()).st_size - self.tell(), 0)
        return super().read(left if size is None or size < 0 else min(size, left))


@contextmanager
def opened_picture(path: Path, kind: str) -> Iterator[Any]:
    """A PNG or JPEG, by the plugin of its kind alone; one that would take more than two gigabytes of memory is rejected.

    `Image.open` tries every format that pillow knows, and has a limit of pixels that is everyone's.
    """
    module, name = PLUGINS[kind]
    plugin = getattr(need(module, "slides"), name)
    try:
        check_regular(path)
        with _Bounded(path) as file, plugin(file) as image:
            size, each = image.size, STORED.get(image.mode, 4) + KEPT
            if (needed := size[0] * size[1] * each) > MOST_BYTES:
                raise SlideError(
                    f"{path} says that it is {size[0]} x {size[1]} px. A {kind} is decoded whole, which takes {needed} "
                    f"bytes of memory, and {MOST_BYTES} is the most. Convert it to a tiled TIFF: vips tiffsave in.png "
                    "out.tif --tile --pyramid"
                )
            check_expansion(needed, path.stat().st_size, str(path))
            yield image
    except (SlideError, DataError):
        raise
    except (OSError, SyntaxError, ValueError) as error:  # pillow says SyntaxError of a header that it cannot read
        raise Damaged(str(error)) from error


def _rgb(image: Any) -> Pixels:
    """The pixels of a picture of any mode, transparent ones on white."""
    if image.mode.startswith("I"):  # 16 bits of grey
        grey = np.asarray(image).astype(np.uint32)
        return np.repeat(((grey * 255 + 32767) // 65535).astype(np.uint8)[..., None], 3, axis=2)
    if image.mode in ("LA", "PA", "RGBA") or "transparency" in image.info:
        rgba = np.asarray(image.convert("RGBA"))
        return on_white(rgba[..., :3], rgba[..., 3])
    return np.asarray(image.convert("RGB"))


class PictureReader:
    """A plain picture."""

    def __init__(self, path: Path, kind: str) -> None:
        self._path, self._kind, self._lock = path, kind, Lock()
        self._pixels: Pixels | None = None
        with opened_picture(path, kind) as image:
            size, dpi = image.size, image.info.get("dpi", (None, None))
        self.facts = Facts("image", kind, (size,), (1.0,), mpp_xy=of_density(dpi, UM_IN["inch"]))

    def region(self, level: int, xy: Size, size: Size) -> Pixels:
        """The pixels of the picture, white outside."""
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
            return in_bands(image.size, lambda rows: _rgb(image.crop((0, rows.start, width, rows.stop))))

    def origin(self, level: int, at: int) -> float:
        """There is one level."""
        return float(at)

    def close(self) -> None:
        """Let the pixels go."""
        self._pixels = None
