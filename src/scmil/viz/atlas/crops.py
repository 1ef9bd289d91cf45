"""Crop the strongest tiles of each atom from the slides."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from scmil.core.atomic import write_atomically
from scmil.core.extras import import_extra
from scmil.core.jobs.failure_log import record_failure
from scmil.core.outputs import Outputs
from scmil.errors import DataError, SlideError
from scmil.slides.readers import Damaged
from scmil.slides.readers.by_pillow import opened_picture
from scmil.viz.atlas.atom import Atlas, Tile

if TYPE_CHECKING:
    from scmil.slides import Slide

# Threads, because each file is flushed to the disk before the next one is written.
WRITERS = 8
Progress = Callable[[str, int, int], None]


def cut_crops(
    atlas: Atlas,
    sources: Mapping[str, Path],
    digests: Mapping[str, str | None],
    outputs: Outputs,
    size_px: int,
    progress: Progress | None,
) -> tuple[dict[tuple[int, int], str], dict[str, str]]:
    """Crop the tiles of all atoms, slide by slide; returns the files by atom and rank, and the
    slides that failed with their causes.
    """
    from scmil.bags.slide_ids import slide_id
    from scmil.slides import open_slide
    from scmil.viz.drawing.background import check_slide

    wanted: dict[str, list[tuple[int, int, Tile]]] = {}
    for atom in atlas.atoms:
        for rank, tile in enumerate(atom.tiles):
            wanted.setdefault(tile.slide, []).append((atom.atom, rank, tile))
    files: dict[tuple[int, int], str] = {}
    failed: dict[str, str] = {}
    out = outputs.folder
    outputs.check(
        *(out / _crop_name(*place[:2]) for places in wanted.values() for place in places),
        marked=_is_marked,
    )
    for done, (bag_id, places) in enumerate(sorted(wanted.items()), start=1):
        with record_failure(bag_id, failed):
            digest = digests.get(bag_id)
            if slide_id(bag_id) not in sources:
                raise DataError(
                    f"slide {bag_id!r} is not in the folder of slides. Add it, or give another "
                    "folder."
                )
            # Positions and sizes are level-0 pixels, so with mpp=1 a pixel is the unit.
            with open_slide(sources[slide_id(bag_id)], mpp=1.0) as slide:
                # Also if all crops exist: they may be those of a slide that was replaced since.
                check_slide(slide, digest)
                missing = [
                    place
                    for place in places
                    if not _is_current(out / _crop_name(*place[:2]), place[2], size_px, digest)
                ]
                _crop_tiles(slide, missing, size_px, out, digest)
            files |= {place[:2]: _crop_name(*place[:2]) for place in places}
        if progress:
            progress("cropping tiles", done, len(wanted))
    return files, failed


def delete_stale_crops(out: Path, current: Collection[str]) -> None:
    """Delete images of an earlier atlas in this folder that are not among the current files."""
    for path in sorted((out / "tiles").glob("*/*.jpg")):
        if path.relative_to(out).as_posix() not in current and _is_marked(path):
            path.unlink()


def _crop_name(atom: int, rank: int) -> str:
    return f"tiles/{atom}/{rank}.jpg"


def _mark(tile: Tile, size_px: int, slide_digest: str | None) -> bytes:
    """The JPEG comment that identifies a crop by slide, position and size."""
    return json.dumps([tile.slide, tile.x, tile.y, tile.side, size_px, slide_digest]).encode()


def _read_mark(path: Path) -> bytes:
    try:
        with opened_picture(path, "JPEG") as picture:
            return bytes(picture.info.get("comment", b""))
    except (Damaged, SlideError, OSError, TypeError, ValueError):  # missing, or not a picture
        return b""


def _is_current(path: Path, tile: Tile, size_px: int, slide_digest: str | None) -> bool:
    return _read_mark(path) == _mark(tile, size_px, slide_digest)


def _is_marked(path: Path) -> bool:
    """Whether the comment of a picture is that of an atlas, also of an earlier version."""
    try:
        return [type(part) for part in json.loads(_read_mark(path))][:5] == [
            str,
            int,
            int,
            float,
            int,
        ]
    except (TypeError, ValueError):
        return False


def _crop_tiles(
    slide: Slide, places: list[tuple[int, int, Tile]], size_px: int, out: Path, digest: str | None
) -> None:
    """Crop tiles from one slide; a tile that several atoms use is read once."""
    pictures: dict[tuple[int, int], bytes] = {}
    for _, _, tile in places:
        if (tile.x, tile.y) not in pictures:
            pixels = slide.read((tile.x, tile.y), size_px, tile.side / size_px)
            content = io.BytesIO()
            image = import_extra("PIL.Image", "slides").fromarray(pixels)
            image.save(content, "JPEG", quality=88, comment=_mark(tile, size_px, digest))
            pictures[tile.x, tile.y] = content.getvalue()

    def write(place: tuple[int, int, Tile]) -> None:
        atom, rank, tile = place
        write_atomically(out / _crop_name(atom, rank), pictures[tile.x, tile.y])

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, places))
