"""Pictures cut from slides while somebody looks: pyramid tiles of any format, at interactive speed."""

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

from scmil.core.extras import need
from scmil.slides import open_slide

if TYPE_CHECKING:
    from scmil.slides import Slide
    from scmil.slides.readers import Pixels

TILE_PX = 256  # as most files are stored, and without overlap: a tile of the screen is then a tile of the file
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
    """One tile of the pyramid, smaller at the right and the lower edge; KeyError where there is none."""
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
    """A model's tile, as large as it is on the slide, or reduced to what a page shows."""
    pixels = max(min(round(side), PICTURE_PX), 1)
    return slide.read(xy, pixels, slide.mpp * side / pixels)


def as_jpeg(pixels: Pixels) -> bytes:
    """The pixels as a browser takes them."""
    content = io.BytesIO()
    need("PIL.Image", "slides").fromarray(pixels).save(content, "JPEG", quality=QUALITY)
    return content.getvalue()


class Cache:
    """Pictures that were cut, the oldest dropped when they take too many bytes; what two ask for at once is cut once.

    >>> cache = Cache(8)
    >>> cache.get("a", lambda: b"12345"), cache.get("a", lambda: b"never made"), cache.get("b", lambda: b"6789")
    (b'12345', b'12345', b'6789')
    >>> cache.bytes, cache.get("a", lambda: b"made again")
    (4, b'made again')
    """

    def __init__(self, most_bytes: int = CACHE_BYTES) -> None:
        self.most_bytes, self.bytes = most_bytes, 0
        self._kept: OrderedDict[Hashable, bytes] = OrderedDict()
        self._coming: dict[Hashable, Future[bytes]] = {}
        self._lock = Lock()

    def get(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """What is kept under a key, or is made now."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            coming = self._coming.get(key)
            mine: Future[bytes] = Future()
            if coming is None:
                self._coming[key] = mine
        if coming is not None:
            return coming.result()
        try:
            made = make()
        except BaseException as error:
            with self._lock:
                del self._coming[key]
            mine.set_exception(error)
            raise
        with self._lock:
            del self._coming[key]
            self._keep(key, made)
        mine.set_result(made)
        return made

    def _keep(self, key: Hashable, made: bytes) -> None:
        self._kept[key] = made
        self.bytes += len(made)
        while self.bytes > self.most_bytes:
            _, dropped = self._kept.popitem(last=False)
            self.bytes -= len(dropped)


Identity = tuple[Path, int, int, int]


def identity(path: Path) -> Identity:
    """What changes when another file is put in the place of a slide: inode, size and time of change."""
    state = path.stat()
    return path, state.st_ino, state.st_size, state.st_mtime_ns


class OpenSlides:
    """Slides that stay open while they are looked at; the one longest unused is closed when there are too many."""

    def __init__(self, most: int = MOST_OPEN) -> None:
        self.most = most
        self._open: OrderedDict[Identity, Slide] = OrderedDict()
        self._users: dict[Identity, int] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def use(self, path: Path, mpp: float | None = None) -> Iterator[Slide]:
        """An open slide; many may use it at once. `mpp` is for files that do not say it."""
        file = identity(path)
        with self._lock:
            slide = self._open.pop(file, None) or _opened(path, mpp)
            self._open[file] = slide
            self._users[file] = self._users.get(file, 0) + 1
        try:
            yield slide
        finally:
            with self._lock:
                self._users[file] -= 1
                self._close_idle()

    def _close_idle(self) -> None:
        for file in [file for file in self._open if not self._users[file]][: max(len(self._open) - self.most, 0)]:
            self._open.pop(file).close()
            del self._users[file]

    def close(self) -> None:
        """Let go of all files."""
        with self._lock:
            for slide in self._open.values():
                slide.close()
            self._open.clear()
            self._users.clear()


def _opened(path: Path, mpp: float | None) -> Slide:
    slide = open_slide(path)
    if slide.known_mpp is not None:
        return slide
    slide.close()
    return open_slide(path, mpp=mpp or 1.0)  # of no consequence: windows are asked for as multiples of it
