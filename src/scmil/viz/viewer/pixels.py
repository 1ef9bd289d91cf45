"""Cut images from slides at interactive speed: pyramid tiles, and the tiles of a model."""

from __future__ import annotations

import io
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from scmil.core.extras import import_extra
from scmil.slides import open_slide

if TYPE_CHECKING:
    from scmil.slides import Slide
    from scmil.slides.readers import Pixels

# The tile size of most files, without overlap: one tile on the screen is one tile of the file.
TILE_PX = 256
QUALITY = 80
CACHE_BYTES = 256 * 2**20
MOST_OPEN = 16  # slides
PICTURE_PX = 256


def depth(size: tuple[int, int]) -> int:
    """The number of the finest level of a DeepZoom pyramid; level 0 has one pixel.

    >>> depth((3000, 2000)), depth((4096, 10)), depth((1, 1))
    (12, 12, 0)
    """
    return math.ceil(math.log2(max(size)))


def cut(slide: Slide, level: int, column: int, row: int) -> Pixels:
    """One tile of the pyramid, smaller at the right and the lower edge; KeyError outside of it."""
    finest = depth(slide.size)
    if not 0 <= level <= finest:
        raise KeyError(level)
    factor = 2 ** (finest - level)
    width, height = (math.ceil(side / factor) for side in slide.size)
    left, top = column * TILE_PX, row * TILE_PX
    if left >= width or top >= height:
        raise KeyError((column, row))
    size = min(TILE_PX, width - left), min(TILE_PX, height - top)
    return slide.read((left * factor, top * factor), size, slide.mpp * factor)


def picture(slide: Slide, xy: tuple[int, int], side: float) -> Pixels:
    """A tile of a model at the resolution of the slide, at most 256 pixels wide."""
    pixels = max(min(round(side), PICTURE_PX), 1)
    return slide.read(xy, pixels, slide.mpp * side / pixels)


def as_jpeg(pixels: Pixels) -> bytes:
    """Encode pixels as JPEG."""
    content = io.BytesIO()
    import_extra("PIL.Image", "slides").fromarray(pixels).save(content, "JPEG", quality=QUALITY)
    return content.getvalue()


class Cache:
    """A least-recently-used cache of images, limited in bytes; concurrent requests for one image
    make it once.

    >>> cache = Cache(8)
    >>> cache.get("a", lambda: b"12345"), cache.get("a", lambda: b"not called")
    (b'12345', b'12345')
    >>> cache.get("b", lambda: b"6789"), cache.bytes
    (b'6789', 4)
    >>> cache.get("a", lambda: b"made again")
    b'made again'
    """

    def __init__(self, most_bytes: int = CACHE_BYTES) -> None:
        self.most_bytes, self.bytes = most_bytes, 0
        self._images: OrderedDict[Hashable, bytes] = OrderedDict()
        self._pending: dict[Hashable, Future[bytes]] = {}
        self._lock = Lock()

    def get(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """The image of a key; `make` is called if it is not in the cache."""
        with self._lock:
            if key in self._images:
                self._images.move_to_end(key)
                return self._images[key]
            pending = self._pending.get(key)
            future: Future[bytes] = Future()
            if pending is None:
                self._pending[key] = future
        if pending is not None:
            return pending.result()
        try:
            image = make()
        except BaseException as error:
            with self._lock:
                del self._pending[key]
            future.set_exception(error)
            raise
        with self._lock:
            del self._pending[key]
            self._store(key, image)
        future.set_result(image)
        return image

    def _store(self, key: Hashable, image: bytes) -> None:
        self._images[key] = image
        self.bytes += len(image)
        while self.bytes > self.most_bytes:
            _, dropped = self._images.popitem(last=False)
            self.bytes -= len(dropped)


Identity = tuple[Path, int, int, int]


def identity(path: Path) -> Identity:
    """Path, inode, size and modification time, which differ if a slide file was replaced."""
    state = path.stat()
    return path, state.st_ino, state.st_size, state.st_mtime_ns


class OpenSlides:
    """Keeps slides open; if there are too many, the least recently used one is closed."""

    def __init__(self, most: int = MOST_OPEN) -> None:
        self.most = most
        self._open: OrderedDict[Identity, Slide] = OrderedDict()
        self._users: dict[Identity, int] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def use(self, path: Path, mpp: float | None = None) -> Iterator[Slide]:
        """An open slide, for any number of threads; `mpp` is used if the file has none."""
        file = identity(path)
        with self._lock:
            slide = self._open.pop(file, None) or _open_with_mpp(path, mpp)
            self._open[file] = slide
            self._users[file] = self._users.get(file, 0) + 1
        try:
            yield slide
        finally:
            with self._lock:
                self._users[file] -= 1
                self._close_idle()

    def _close_idle(self) -> None:
        for file in [file for file in self._open if not self._users[file]][
            : max(len(self._open) - self.most, 0)
        ]:
            self._open.pop(file).close()
            del self._users[file]

    def close(self) -> None:
        """Close all files."""
        with self._lock:
            for slide in self._open.values():
                slide.close()
            self._open.clear()
            self._users.clear()


def _open_with_mpp(path: Path, mpp: float | None) -> Slide:
    slide = open_slide(path)
    if slide.known_mpp is not None:
        return slide
    slide.close()
    # Any value works, because windows are read at multiples of it.
    return open_slide(path, mpp=mpp or 1.0)
