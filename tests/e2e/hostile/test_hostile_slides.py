"""Slides that claim absurd sizes or never end neither fill the memory nor stop the process."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from scmil.core.jobs.failure_log import FailureLog
from scmil.errors import SlideError


def chunk(kind: bytes, content: bytes) -> bytes:
    return (
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
    )


def test_a_png_that_claims_a_billion_pixels_a_side_is_rejected(tmp_path: Path) -> None:
    pytest.importorskip("openslide")
    from scmil.slides import open_slide

    header = struct.pack(">IIBBBBB", 10**9, 10**9, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(bytes(10**6)))
    (tmp_path / "bomb.png").write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + pixels + chunk(b"IEND", b"")
    )
    with pytest.raises(SlideError, match=r"bomb\.png has 1000000000 x 1000000000 px"):
        open_slide(tmp_path / "bomb.png")


@pytest.mark.parametrize("suffix", ["tif", "svs"])
def test_a_tiff_that_claims_a_billion_pixels_a_side_fails_alone_and_at_once(
    tmp_path: Path, suffix: str
) -> None:
    pytest.importorskip("openslide")
    from scmil.encoding.cohort import find_cohort, tile_slides

    (tmp_path / "slides").mkdir()
    (tmp_path / "slides" / f"bomb.{suffix}").write_bytes(
        tiff_of(10**9, 10**9, aperio=suffix == "svs")
    )
    outcome = tile_slides(find_cohort(tmp_path / "slides", 0.5), tmp_path / "work")
    assert outcome.failed == ("bomb",)
    assert not outcome.bugs
    [failure] = FailureLog(tmp_path / "work").read()
    assert "bomb" in failure.cause


def tiff_of(width: int, height: int, aperio: bool, tile: int = 256) -> bytes:
    """A tiled TIFF of one tile of 256 pixels, whose header states other sizes."""
    description = (
        b"Aperio Image Library v11\r\nmade by a test|AppMag = 20|MPP = 0.5\0"
        if aperio
        else b"a picture\0"
    )
    tags = [
        (256, 4, 1, width), (257, 4, 1, height), (258, 3, 3, None), (259, 3, 1, 1), (262, 3, 1, 2),
        (270, 2, len(description), None), (277, 3, 1, 3), (322, 4, 1, tile), (323, 4, 1, tile),
        (324, 4, 1, 1024), (325, 4, 1, 256 * 256 * 3),
    ]  # fmt: skip
    at = {258: 400, 270: 500}
    entries = [
        struct.pack("<HHII", tag, kind, n, at.get(tag, value or 0)) for tag, kind, n, value in tags
    ]
    content = bytearray(
        b"II*\0"
        + struct.pack("<I", 8)
        + struct.pack("<H", len(tags))
        + b"".join(entries)
        + bytes(4)
    )
    content += bytes(1024 - len(content)) + bytes(256 * 256 * 3)
    content[400:406] = struct.pack("<HHH", 8, 8, 8)
    content[500 : 500 + len(description)] = description
    return bytes(content)


def test_a_slide_with_tiles_of_billions_of_pixels_raises_without_ending_the_process(
    tmp_path: Path,
) -> None:
    """OpenSlide ends the whole process if the memory for a tile is not there: found by the fuzz
    campaign.
    """
    pytest.importorskip("openslide")
    from scmil.slides import open_slide

    (tmp_path / "bomb.svs").write_bytes(tiff_of(70_000, 70_000, aperio=True, tile=2**16))
    with pytest.raises(SlideError, match=r"bomb\.svs"), open_slide(tmp_path / "bomb.svs") as slide:
        slide.thumbnail(64)


def test_a_png_chunk_that_states_two_gigabytes_allocates_none(tmp_path: Path) -> None:
    """Found by the fuzz campaign: so much memory was asked for before the file was."""
    image = pytest.importorskip("PIL.Image")
    from scmil.slides import open_slide

    image.fromarray(np.zeros((64, 96, 3), np.uint8)).save(
        tmp_path / "picture.png", dpi=(50_800, 50_800)
    )
    content = bytearray((tmp_path / "picture.png").read_bytes())
    at = content.index(b"IDAT") - 4
    content[at : at + 4] = struct.pack(">I", 2**31 - 1)
    (tmp_path / "picture.png").write_bytes(content)
    with open_slide(tmp_path / "picture.png") as slide:
        pixels = np.asarray(slide.thumbnail(48))  # with the limit on memory of all these tests
    assert pixels.shape == (32, 48, 3)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("big", [False, True])
def test_a_cyclic_list_of_pages_raises(tmp_path: Path, order: str, big: bool) -> None:
    """Found by the fuzz campaign: tifffile goes round and round."""
    tifffile = pytest.importorskip("tifffile")
    from scmil.slides import open_slide

    path = tmp_path / "round.tif"
    with tifffile.TiffWriter(path, byteorder=order, bigtiff=big) as writer:
        for side in (64, 32, 16):
            writer.write(
                np.zeros((side, side, 3), np.uint8),
                photometric="rgb",
                tile=(16, 16),
                contiguous=False,
            )
    with tifffile.TiffFile(path) as file:
        offsets = [page.offset for page in file.pages]
    content = path.read_bytes()
    last, first = (
        struct.pack(f"{order}{'Q' if big else 'I'}", offset) for offset in (offsets[2], offsets[1])
    )
    size = len(last)
    *_, at = (at for at in range(offsets[1], offsets[2]) if content[at : at + size] == last)
    # The second page is followed by itself.
    path.write_bytes(content[:at] + first + content[at + size :])
    with pytest.raises(SlideError, match=r"round\.tif.*pages is cyclic"):
        open_slide(path)
