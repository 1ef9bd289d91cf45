"""TIFF files of no scanner: tiled or stripped, OME pyramids, JPEG 2000, 8 and 16 bits; only the segments that are needed."""

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

from scmil.errors import ScmilError, SlideError
from scmil.core.extras import need
from scmil.slides.readers import MOST_PX_AT_ONCE, Damaged, Facts, Pixels, Size, in_bands, on_white, true_downsamples
from scmil.slides.resolution import UM_IN, aperio_fields, number, of_density, of_ome

CACHE_BYTES = 64 * 2**20  # decoded tiles; neighbours on the slide need the same ones again
DECODED_TO_RGB = {6, 7, 33007, 34892, 50001}  # JPEG of four kinds and WebP: their decoders undo YCbCr themselves
APERIO_YCBCR = 33003
JPEGS, JPEGS_2000, WEBP = {6, 7, 33007, 34892}, {33003, 33004, 33005, 34712}, {34927, 50001}
JPEG_SIZES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # the segments of a JPEG that say its size
UNITS = {2: "inch", 3: "centimeter", 4: "millimeter", 5: "micrometer"}


class TiffReader:
    """A TIFF file whose tiles or strips are decoded one by one, the last ones kept."""

    def __init__(self, path: Path) -> None:
        self._tifffile, _ = need("tifffile", "slides"), need("imagecodecs", "slides")
        self._path, self._reading, self._keeping = path, Lock(), Lock()
        self._kept: OrderedDict[tuple[int, int], Pixels] = OrderedDict()
        try:
            self._file = self._tifffile.TiffFile(path, _multifile=False)  # a slide is one file: others are not opened
            finalize(self, self._file.close)  # a slide that nobody closed lets go of its file like any other
            self._check_chain()
            self._pages = self._levels()
            self.facts = self._facts()
        except (ScmilError, Damaged):
            raise
        except Exception as error:  # a damaged directory brings errors of many kinds
            raise Damaged(f"{type(error).__name__}: {error}") from error

    def _check_chain(self) -> None:
        """Refuse a list of pages that leads back to one of them: tifffile would follow it for ever."""
        file, tiff, met = self._file.filehandle, self._file.tiff, set[int]()
        order: Literal["little", "big"] = "little" if tiff.byteorder == "<" else "big"
        at = self._file.pages[0].offset if self._file.pages else 0
        while 0 < at < file.size:
            if at in met:
                raise Damaged(f"the list of its {len(met)} pages leads back to itself")
            met.add(at)
            file.seek(at)
            tags = int.from_bytes(file.read(tiff.tagnosize), order)
            file.seek(at + tiff.tagnosize + tags * tiff.tagsize)
            at = int.from_bytes(file.read(tiff.offsetsize), order)

    def _levels(self) -> list[Any]:
        if not self._file.series:
            raise Damaged("the list of its pages is missing, which such files have at their end")
        series = max(self._file.series, key=lambda one: one.keyframe.imagewidth * one.keyframe.imagelength)
        if series.axes not in ("YX", "YXS", "SYX") or any(len(level.pages) != 1 for level in series.levels):
            shape = " x ".join(map(str, series.shape))
            raise SlideError(
                f"{self._path} has the axes {series.axes} ({shape}): several channels, focal planes or times, as in "
                "fluorescence. Only brightfield pictures are read, of one plane in colour or grey."
            )
        pages = [level.keyframe for level in series.levels]
        for page in pages:
            self._check(page)
        return pages

    def _check(self, page: Any) -> None:
        """Refuse what cannot be shown, and what the header promises and the file does not hold."""
        width, height = page.imagewidth, page.imagelength
        kind = getattr(page.photometric, "name", str(page.photometric))
        samples = {"RGB": (3, 4), "YCBCR": (3,), "MINISBLACK": (1,), "MINISWHITE": (1,), "PALETTE": (1,)}.get(kind, ())
        depth = page.dtype is not None and page.dtype.kind in "bu" and page.bitspersample <= 16
        if page.samplesperpixel not in samples or not depth:
            raise SlideError(
                f"{self._path} has {page.samplesperpixel} channels of {page.bitspersample} bits ({kind}). "
                "Brightfield pictures are read: RGB, grey or a palette, of at most 16 bits."
            )
        across, down = _segment_size(page)
        if not across * down:
            raise Damaged(f"its tiles or strips are {across} x {down} px")
        decoded = across * down * page.samplesperpixel * page.dtype.itemsize
        if across * down > MOST_PX_AT_ONCE or decoded > 3 * MOST_PX_AT_ONCE:
            raise SlideError(
                f"{self._path}: {width} x {height} px in pieces of {across} x {down}, of which each is decoded whole, "
                f"to {decoded} bytes: {3 * MOST_PX_AT_ONCE} is the most. "
                "Convert it: vips tiffsave in.tif out.tif --tile --pyramid"
            )
        coded = int(page.compression)
        if coded in self._tifffile.TIFF.IMAGE_COMPRESSIONS and coded not in JPEGS | JPEGS_2000 | WEBP:
            raise SlideError(
                f"{self._path} is compressed with {getattr(page.compression, 'name', coded)}. JPEG, JPEG 2000, WebP and "
                "what keeps bytes (LZW, deflate, ZSTD, ...) are read. Convert it: vips tiffsave in.tif out.tif --tile "
                "--pyramid --compression jpeg"
            )
        planes = page.samplesperpixel if page.planarconfig == 2 else 1
        expected = math.ceil(width / across) * math.ceil(height / down) * planes
        if (met := len(page.dataoffsets)) != expected or len(page.databytecounts) != expected:
            raise Damaged(f"{width} x {height} px are {expected} tiles or strips, but the file lists {met}")
        end = max((start + n for start, n in zip(page.dataoffsets, page.databytecounts)), default=0)
        if end > (length := self._file.filehandle.size):
            raise Damaged(f"its pixels end at byte {end}, but the file has only {length} bytes")

    def _facts(self) -> Facts:
        first = self._pages[0]
        sizes = tuple((page.imagewidth, page.imagelength) for page in self._pages)
        aperio = aperio_fields(first.description)
        ome_mpp, ome_objective = of_ome(self._file.ome_metadata, sizes[0]) if self._file.is_ome else (None, None)
        mpp = number(aperio.get("MPP"))
        tags = {name: first.tags.valueof(name) for name in ("Make", "Model", "Software", "DateTime")}
        return Facts(
            reader="tifffile",
            vendor="OME-TIFF" if self._file.is_ome else "TIFF",
            level_sizes=sizes,
            level_downsamples=true_downsamples(sizes),
            storage_tile=(first.tilewidth, first.tilelength) if first.is_tiled else None,
            mpp_xy=ome_mpp or ((mpp, mpp) if mpp else _mpp_of_tags(first)),
            objective=ome_objective or number(aperio.get("AppMag")),
            properties={f"tiff.{name}": str(value) for name, value in tags.items() if value} | _prefixed(aperio),
            associated=tuple(one.name for one in self._file.series if one.keyframe is not first),
        )

    def region(self, level: int, xy: Size, size: Size) -> Pixels:
        """The pixels of a level, white outside."""
        page = self._pages[level]
        across, down = _segment_size(page)
        (x, y), columns = xy, math.ceil(page.imagewidth / across)
        canvas: Pixels = np.full((size[1], size[0], 3), 255, np.uint8)
        left, top = max(x, 0), max(y, 0)
        right, bottom = min(x + size[0], page.imagewidth), min(y + size[1], page.imagelength)
        if left >= right or top >= bottom:
            return canvas
        for row in range(top // down, math.ceil(bottom / down)):
            for column in range(left // across, math.ceil(right / across)):
                piece = self._segment(level, row * columns + column)
                x0, y0 = column * across, row * down
                x1, y1 = min(x0 + across, right), min(y0 + down, bottom)
                from_x, from_y = max(x0, left), max(y0, top)
                part = piece[from_y - y0 : y1 - y0, from_x - x0 : x1 - x0]
                canvas[from_y - y : y1 - y, from_x - x : x1 - x] = part
        return canvas

    def _segment(self, level: int, index: int) -> Pixels:
        with self._keeping:
            if (kept := self._kept.get((level, index))) is not None:
                self._kept.move_to_end((level, index))
                return kept
        pixels = self._decoded(self._pages[level], index)
        with self._keeping:
            self._kept[level, index] = pixels
            while len(self._kept) > 1 and sum(piece.nbytes for piece in self._kept.values()) > CACHE_BYTES:
                self._kept.popitem(last=False)
        return pixels

    def _decoded(self, page: Any, index: int) -> Pixels:
        a_plane = len(page.dataoffsets) // (page.samplesperpixel if page.planarconfig == 2 else 1)
        try:
            planes = [self._plane(page, at) for at in range(index, len(page.dataoffsets), a_plane)]
            if any(plane is None for plane in planes):  # a tile that was never written: background
                across, down = _segment_size(page)
                return np.broadcast_to(np.uint8(255), (down, across, 3))
            return _rgb(page, np.concatenate([plane for plane in planes if plane is not None], axis=-1))
        except ScmilError:
            raise
        except Exception as error:  # codecs, too, fail in many ways
            raise Damaged(str(error)) from error

    def _plane(self, page: Any, index: int) -> NDArray[Any] | None:
        with self._reading:
            self._file.filehandle.seek(page.dataoffsets[index])
            content = self._file.filehandle.read(page.databytecounts[index])
        if len(content) != page.databytecounts[index]:
            raise EOFError("the file ends before its pixels do")
        _check_picture(page, content)
        decoded, _, _ = page.decode(content or None, index, jpegtables=page.jpegtables)
        return None if decoded is None else decoded[0]

    def origin(self, level: int, at: int) -> float:
        """Every pixel of a level is exactly so many of level 0."""
        return at * self.facts.level_downsamples[level]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _segment_size(page: Any) -> Size:
    if page.is_tiled:
        return page.tilewidth, page.tilelength
    return page.imagewidth, min(page.rowsperstrip, page.imagelength)


def _check_picture(page: Any, content: bytes) -> None:
    """Raise `Damaged` if a tile or strip that is a picture of its own is far larger than the file says: it is decoded whole.

    Some writers pad the last tile or strip. A WebP has at most 16 383 px a side, and needs no look.
    """
    coded = int(page.compression)
    size = _jpeg_size(content) if coded in JPEGS else _jpeg_2000_size(content) if coded in JPEGS_2000 else None
    across, down = _segment_size(page)
    if size and size[0] * size[1] > 2 * across * down + 2**16:
        raise Damaged(f"a tile or strip of {across} x {down} px holds a picture of {size[0]} x {size[1]}")


def _jpeg_size(content: bytes) -> Size | None:
    """Width and height as the header of a JPEG says them; None if it does not.

    >>> _jpeg_size(bytes.fromhex("ffd8 ffe0 0004 0000 ffc0 000b 08 0010 0020 01 011100"))
    (32, 16)
    """
    at = 2
    while at + 9 <= len(content) and content[at] == 0xFF:
        if content[at + 1] in JPEG_SIZES:
            return int.from_bytes(content[at + 7 : at + 9], "big"), int.from_bytes(content[at + 5 : at + 7], "big")
        fill = content[at + 1] == 0xFF
        at += 1 if fill else 2 + int.from_bytes(content[at + 2 : at + 4], "big")
    return None


def _jpeg_2000_size(content: bytes) -> Size | None:
    """Width and height of the codestream of a JPEG 2000, in a file of boxes or bare; None if there is none.

    >>> _jpeg_2000_size(bytes.fromhex("ff4f ff51 0029 0000 00000020 00000010 00000000 00000000"))
    (32, 16)
    """
    at = content.find(b"\xff\x4f\xff\x51")
    if at < 0 or at + 24 > len(content):
        return None
    right, bottom, left, top = (int.from_bytes(content[at + 8 + 4 * i : at + 12 + 4 * i], "big") for i in range(4))
    return right - left, bottom - top


def _rgb(page: Any, samples: NDArray[Any]) -> Pixels:
    """Any samples that `_check` lets pass, as 8 bits of red, green and blue on white."""
    if page.photometric.name == "RGB" and page.bitspersample == 8 and samples.shape[2] == 3:
        return np.ascontiguousarray(samples, np.uint8)
    return in_bands((samples.shape[1], samples.shape[0]), lambda rows: _converted(page, samples[rows]))


def _converted(page: Any, samples: NDArray[Any]) -> Pixels:
    kind = page.photometric.name
    if kind == "PALETTE":
        return (np.asarray(page.colormap)[:, samples[..., 0]].transpose(1, 2, 0) >> 8).astype(np.uint8)
    if page.bitspersample != 8:
        most = 2**page.bitspersample - 1
        samples = (samples.astype(np.uint32) * 255 + most // 2) // most
    pixels: Pixels = samples.astype(np.uint8, copy=False)
    if kind in ("MINISBLACK", "MINISWHITE"):
        return np.repeat(pixels if kind == "MINISBLACK" else 255 - pixels, 3, axis=2)
    if page.compression == APERIO_YCBCR or (kind == "YCBCR" and page.compression not in DECODED_TO_RGB):
        image = need("PIL.Image", "slides")
        return np.array(image.frombytes("YCbCr", pixels.shape[1::-1], pixels.tobytes()).convert("RGB"))
    alpha = next(iter(page.extrasamples), 0)  # 1: already multiplied with the colours, 2: not, 0: not transparency
    if pixels.shape[2] == 4 and alpha:
        return on_white(pixels[..., :3], pixels[..., 3], premultiplied=alpha == 1)
    return np.ascontiguousarray(pixels[..., :3])


def _mpp_of_tags(page: Any) -> tuple[float, float] | None:
    x, y = (_fraction(page.tags.valueof(f"{axis}Resolution")) for axis in "XY")
    return of_density((x, y), UM_IN.get(UNITS.get(page.tags.valueof("ResolutionUnit", default=2), "")))


def _fraction(value: Sequence[int] | None) -> float | None:
    return value[0] / value[1] if value and value[1] else None


def _prefixed(aperio: dict[str, str]) -> dict[str, str]:
    return {f"aperio.{key}": value for key, value in aperio.items()}
