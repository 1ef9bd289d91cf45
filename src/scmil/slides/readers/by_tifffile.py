"""Reader for generic TIFF files: tiles or strips, OME pyramids, JPEG 2000, 8 and 16 bits.

Only the tiles or strips that are needed are decoded.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Literal
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from scmil.core.extras import import_extra
from scmil.errors import ScmilError, SlideError
from scmil.slides.readers import (
    MOST_PX_AT_ONCE,
    Damaged,
    Facts,
    Pixels,
    Size,
    in_bands,
    on_white,
    true_downsamples,
)
from scmil.slides.readers.jpeg import decode_strictly, find_frame, is_strict
from scmil.slides.resolution import UM_IN, aperio_fields, mpp_of_density, parse_positive, read_ome

CACHE_BYTES = 64 * 2**20  # decoded tiles; neighbouring windows use the same ones
# Four kinds of JPEG, and WebP: their decoders return RGB.
DECODED_TO_RGB = {6, 7, 33007, 34892, 50001}
APERIO_YCBCR = 33003
JPEGS, JPEGS_2000, WEBP = {6, 7, 33007, 34892}, {33003, 33004, 33005, 34712}, {34927, 50001}
UNITS = {2: "inch", 3: "centimeter", 4: "millimeter", 5: "micrometer"}


class TiffReader:
    """A TIFF file; tiles or strips are decoded one by one, and recent ones are cached."""

    def __init__(self, path: Path) -> None:
        self._tifffile, *_ = (
            import_extra(module, "slides") for module in ("tifffile", "imagecodecs", "simplejpeg")
        )
        self._path, self._reading, self._keeping = path, Lock(), Lock()
        self._kept: OrderedDict[tuple[int, int], Pixels] = OrderedDict()
        self._kept_bytes = 0
        try:
            # A slide is one file: other files that it names are not opened.
            self._file = self._tifffile.TiffFile(path, _multifile=False)
            # Closes the file of a slide that was not closed.
            finalize(self, self._file.close)
            self._check_chain()
            self._pages = self._levels()
            self.facts = self._facts()
        except (ScmilError, Damaged):
            raise
        except Exception as error:  # a damaged directory raises many kinds of errors
            raise Damaged(f"{type(error).__name__}: {error}") from error

    def _check_chain(self) -> None:
        """Reject a cyclic list of pages, which tifffile would follow forever."""
        file, tiff, seen = self._file.filehandle, self._file.tiff, set[int]()
        order: Literal["little", "big"] = "little" if tiff.byteorder == "<" else "big"
        at = self._file.pages[0].offset if self._file.pages else 0
        while 0 < at < file.size:
            if at in seen:
                raise Damaged(f"the list of its {len(seen)} pages is cyclic")
            seen.add(at)
            file.seek(at)
            tags = int.from_bytes(file.read(tiff.tagnosize), order)
            file.seek(at + tiff.tagnosize + tags * tiff.tagsize)
            at = int.from_bytes(file.read(tiff.offsetsize), order)

    def _levels(self) -> list[Any]:
        if not self._file.series:
            raise Damaged("its list of pages, at the end of the file, is missing")
        series = max(
            self._file.series, key=lambda one: one.keyframe.imagewidth * one.keyframe.imagelength
        )
        if series.axes not in ("YX", "YXS", "SYX") or any(
            len(level.pages) != 1 for level in series.levels
        ):
            shape = " x ".join(map(str, series.shape))
            raise SlideError(
                f"{self._path} has the axes {series.axes} ({shape}): several channels, focal "
                "planes or time points, as in fluorescence. Only brightfield images with one plane "
                "in colour or grey are supported."
            )
        pages = [level.keyframe for level in series.levels]
        for page in pages:
            self._check(page)
        return pages

    def _check(self, page: Any) -> None:
        """Reject unsupported pages, and pages whose data is missing from the file."""
        width, height = page.imagewidth, page.imagelength
        kind = getattr(page.photometric, "name", str(page.photometric))
        samples = {
            "RGB": (3, 4),
            "YCBCR": (3,),
            "MINISBLACK": (1,),
            "MINISWHITE": (1,),
            "PALETTE": (1,),
        }.get(kind, ())
        depth = page.dtype is not None and page.dtype.kind in "bu" and page.bitspersample <= 16
        if page.samplesperpixel not in samples or not depth:
            raise SlideError(
                f"{self._path} has {page.samplesperpixel} channels of {page.bitspersample} bits "
                f"({kind}). Only brightfield images are supported: RGB, grey or a palette, with at "
                "most 16 bits."
            )
        across, down = segment_size(page)
        if not across * down:
            raise Damaged(f"its tiles or strips are {across} x {down} px")
        decoded = across * down * page.samplesperpixel * page.dtype.itemsize
        if across * down > MOST_PX_AT_ONCE or decoded > 3 * MOST_PX_AT_ONCE:
            raise SlideError(
                f"{self._path}: {width} x {height} px in tiles or strips of {across} x {down}. "
                f"Each is decoded at once, to {decoded} bytes; at most {3 * MOST_PX_AT_ONCE} are "
                "allowed. Convert it: vips tiffsave in.tif out.tif --tile --pyramid"
            )
        coded = int(page.compression)
        if (
            coded in self._tifffile.TIFF.IMAGE_COMPRESSIONS
            and coded not in JPEGS | JPEGS_2000 | WEBP
        ):
            raise SlideError(
                f"{self._path} is compressed with {getattr(page.compression, 'name', coded)}. "
                "Supported are JPEG, JPEG 2000, WebP and lossless codecs (LZW, deflate, ZSTD, "
                "...). Convert it: vips tiffsave in.tif out.tif --tile --pyramid --compression jpeg"
            )
        planes = page.samplesperpixel if page.planarconfig == 2 else 1
        expected = math.ceil(width / across) * math.ceil(height / down) * planes
        if (actual := len(page.dataoffsets)) != expected or len(page.databytecounts) != expected:
            raise Damaged(
                f"{width} x {height} px need {expected} tiles or strips, but the file has {actual}"
            )
        end = max((start + n for start, n in zip(page.dataoffsets, page.databytecounts)), default=0)
        if end > (length := self._file.filehandle.size):
            raise Damaged(f"its pixels end at byte {end}, but the file has only {length} bytes")

    def _facts(self) -> Facts:
        first = self._pages[0]
        sizes = tuple((page.imagewidth, page.imagelength) for page in self._pages)
        aperio = aperio_fields(first.description)
        ome_mpp, ome_objective = (
            read_ome(self._file.ome_metadata, sizes[0]) if self._file.is_ome else (None, None)
        )
        mpp = parse_positive(aperio.get("MPP"))
        tags = {
            name: first.tags.valueof(name) for name in ("Make", "Model", "Software", "DateTime")
        }
        return Facts(
            reader="tifffile",
            vendor="OME-TIFF" if self._file.is_ome else "TIFF",
            level_sizes=sizes,
            level_downsamples=true_downsamples(sizes),
            storage_tile=(first.tilewidth, first.tilelength) if first.is_tiled else None,
            mpp_xy=ome_mpp or ((mpp, mpp) if mpp else _mpp_of_tags(first)),
            objective=ome_objective or parse_positive(aperio.get("AppMag")),
            properties={f"tiff.{name}": str(value) for name, value in tags.items() if value}
            | _prefixed(aperio),
            associated=tuple(one.name for one in self._file.series if one.keyframe is not first),
        )

    def region(self, level: int, xy: Size, size: Size) -> Pixels:
        """Read pixels of a level; white outside."""
        page = self._pages[level]
        across, down = segment_size(page)
        (x, y), columns = xy, math.ceil(page.imagewidth / across)
        left, top = max(x, 0), max(y, 0)
        right, bottom = min(x + size[0], page.imagewidth), min(y + size[1], page.imagelength)
        canvas: Pixels = np.empty((size[1], size[0], 3), np.uint8)
        if (right - left, bottom - top) != size:
            canvas.fill(255)
        if left >= right or top >= bottom:
            return canvas
        # A tile that is read as a whole is not needed by another window.
        keep = size != (across, down) or x % across > 0 or y % down > 0
        for row in range(top // down, math.ceil(bottom / down)):
            for column in range(left // across, math.ceil(right / across)):
                piece = self._segment(level, row * columns + column, keep)
                x0, y0 = column * across, row * down
                x1, y1 = min(x0 + across, right), min(y0 + down, bottom)
                from_x, from_y = max(x0, left), max(y0, top)
                part = piece[from_y - y0 : y1 - y0, from_x - x0 : x1 - x0]
                canvas[from_y - y : y1 - y, from_x - x : x1 - x] = part
        return canvas

    def _segment(self, level: int, index: int, keep: bool = True) -> Pixels:
        with self._keeping:
            if (kept := self._kept.get((level, index))) is not None:
                self._kept.move_to_end((level, index))
                return kept
        pixels = self._decoded(level, index)
        if not keep:
            return pixels
        with self._keeping:
            if (level, index) not in self._kept:  # another thread may have decoded it meanwhile
                self._kept[level, index] = pixels
                self._kept_bytes += pixels.nbytes
            while len(self._kept) > 1 and self._kept_bytes > CACHE_BYTES:
                self._kept_bytes -= self._kept.popitem(last=False)[1].nbytes
        return pixels

    def _decoded(self, level: int, index: int) -> Pixels:
        page = self._pages[level]
        a_plane = len(page.dataoffsets) // (page.samplesperpixel if page.planarconfig == 2 else 1)
        try:
            planes = [self._plane(page, at) for at in range(index, len(page.dataoffsets), a_plane)]
            if any(plane is None for plane in planes):  # a tile that was never written: background
                across, down = segment_size(page)
                return np.broadcast_to(np.uint8(255), (down, across, 3))
            whole = [plane for plane in planes if plane is not None]
            return _samples_rgb(page, whole[0] if len(whole) == 1 else np.concatenate(whole, -1))
        except (ScmilError, Damaged):
            raise
        except Exception as error:  # codecs raise many kinds of errors
            raise Damaged(str(error)) from error

    def _plane(self, page: Any, index: int) -> NDArray[Any] | None:
        content = self._content(page, index)
        across, down = segment_size(page)
        if content and is_strict(page):
            pixels = decode_strictly(page, content)
            if pixels is not None and pixels.shape[:2] == (down, across):
                return pixels
        # Also a JPEG of another size than declared, such as that of the last strip.
        decoded, _, _ = page.decode(content or None, index, jpegtables=page.jpegtables)
        return None if decoded is None else decoded[0]

    def _content(self, page: Any, index: int) -> bytes:
        """The bytes of a tile or strip; none if it was never written."""
        with self._reading:
            self._file.filehandle.seek(page.dataoffsets[index])
            content: bytes = self._file.filehandle.read(page.databytecounts[index])
        if len(content) != page.databytecounts[index]:
            raise EOFError("the file ends before its pixels do")
        _check_picture(page, content)
        return content

    def origin(self, level: int, at: int) -> float:
        """The level-0 coordinate of a pixel of a level."""
        return at * self.facts.level_downsamples[level]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def segment_size(page: Any) -> Size:
    """Width and height of the tiles or strips of a page."""
    if page.is_tiled:
        return page.tilewidth, page.tilelength
    return page.imagewidth, min(page.rowsperstrip, page.imagelength)


def _check_picture(page: Any, content: bytes) -> None:
    """Raise `Damaged` if an encoded tile or strip is far larger than the file declares.

    It would be decoded at once. Some writers pad the last tile or strip. A WebP has at most 16 383
    px per side and is not checked.
    """
    coded, size = int(page.compression), None
    if coded in JPEGS and (frame := find_frame(content)):
        size = frame.width, frame.height
    elif coded in JPEGS_2000:
        size = _jpeg_2000_size(content)
    across, down = segment_size(page)
    if size and size[0] * size[1] > 2 * across * down + 2**16:
        raise Damaged(
            f"a tile or strip of {across} x {down} px holds a picture of {size[0]} x {size[1]}"
        )


def _jpeg_2000_size(content: bytes) -> Size | None:
    """Width and height of the codestream of a JPEG 2000, with or without boxes; None if missing.

    >>> _jpeg_2000_size(bytes.fromhex("ff4f ff51 0029 0000 00000020 00000010 00000000 00000000"))
    (32, 16)
    """
    at = content.find(b"\xff\x4f\xff\x51")
    if at < 0 or at + 24 > len(content):
        return None
    right, bottom, left, top = (
        int.from_bytes(content[at + 8 + 4 * i : at + 12 + 4 * i], "big") for i in range(4)
    )
    return right - left, bottom - top


def _samples_rgb(page: Any, samples: NDArray[Any]) -> Pixels:
    """Convert samples of any supported kind to 8-bit RGB on white."""
    is_rgb = page.photometric.name == "RGB" or page.compression in DECODED_TO_RGB
    if is_rgb and page.bitspersample == 8 and samples.shape[2] == 3:
        return np.ascontiguousarray(samples, np.uint8)
    return in_bands(
        (samples.shape[1], samples.shape[0]), lambda rows: _converted(page, samples[rows])
    )


def _converted(page: Any, samples: NDArray[Any]) -> Pixels:
    kind = page.photometric.name
    if kind == "PALETTE":
        return (np.asarray(page.colormap)[:, samples[..., 0]].transpose(1, 2, 0) >> 8).astype(
            np.uint8
        )
    if page.bitspersample != 8:
        most = 2**page.bitspersample - 1
        samples = (samples.astype(np.uint32) * 255 + most // 2) // most
    pixels: Pixels = samples.astype(np.uint8, copy=False)
    if kind in ("MINISBLACK", "MINISWHITE"):
        return np.repeat(pixels if kind == "MINISBLACK" else 255 - pixels, 3, axis=2)
    if page.compression == APERIO_YCBCR or (
        kind == "YCBCR" and page.compression not in DECODED_TO_RGB
    ):
        image = import_extra("PIL.Image", "slides")
        return np.array(
            image.frombytes("YCbCr", pixels.shape[1::-1], pixels.tobytes()).convert("RGB")
        )
    # 1: already multiplied with the colours, 2: not, 0: not transparency.
    alpha = next(iter(page.extrasamples), 0)
    if pixels.shape[2] == 4 and alpha:
        return on_white(pixels[..., :3], pixels[..., 3], premultiplied=alpha == 1)
    return np.ascontiguousarray(pixels[..., :3])


def _mpp_of_tags(page: Any) -> tuple[float, float] | None:
    x, y = (_quotient(page.tags.valueof(f"{axis}Resolution")) for axis in "XY")
    return mpp_of_density(
        (x, y), UM_IN.get(UNITS.get(page.tags.valueof("ResolutionUnit", default=2), ""))
    )


def _quotient(value: Sequence[int] | None) -> float | None:
    return value[0] / value[1] if value and value[1] else None


def _prefixed(aperio: dict[str, str]) -> dict[str, str]:
    return {f"aperio.{key}": value for key, value in aperio.items()}
