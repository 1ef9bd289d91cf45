"""Images that are cut from slides, and their cache."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Barrier, Thread

import numpy as np
import pytest

pytest.importorskip("starlette", reason="starlette is not installed")
pytest.importorskip("openslide", reason="openslide is not installed")
from PIL import Image

from scmil.slides import open_slide
from scmil.viz.viewer.pixels import Cache, OpenSlides, cut


def test_pyramid_tiles_cover_slides_of_any_size(tmp_path: Path) -> None:
    Image.fromarray(
        np.arange(300 * 517 * 3, dtype=np.uint32).astype(np.uint8).reshape(300, 517, 3)
    ).save(tmp_path / "a.png")
    with open_slide(tmp_path / "a.png", mpp=1.0) as slide:
        rows = [np.concatenate([cut(slide, 10, x, y) for x in range(3)], axis=1) for y in range(2)]
        assert np.array_equal(np.concatenate(rows), slide.read((0, 0), (517, 300), 1.0))
        assert cut(slide, 0, 0, 0).shape == (1, 1, 3)
        for level, x, y in ((11, 0, 0), (-1, 0, 0), (10, 3, 0), (10, 0, 2)):
            with pytest.raises(KeyError):
                cut(slide, level, x, y)


def test_concurrent_requests_make_an_image_once() -> None:
    cache, made, together = Cache(), [], Barrier(4)

    def make() -> bytes:
        made.append(1)
        time.sleep(0.2)
        return b"tile"

    def reader() -> None:
        together.wait()
        assert cache.get("key", make) == b"tile"

    readers = [Thread(target=reader) for _ in range(4)]
    for one in readers:
        one.start()
    for one in readers:
        one.join()
    assert len(made) == 1


def test_a_failure_is_not_cached() -> None:
    cache = Cache()
    with pytest.raises(ZeroDivisionError):
        cache.get("key", lambda: bytes(1 // 0))
    assert cache.get("key", lambda: b"good") == b"good"


def test_slides_in_use_stay_open_and_idle_ones_are_closed(home: Path) -> None:
    slides = OpenSlides(most=1)
    one, two = (home / "slides" / f"{name}.svs" for name in ("one", "two"))
    with slides.use(one) as first:
        with slides.use(two):
            assert len(slides) == 2
        assert first.read((0, 0), 8, 0.5).shape == (8, 8, 3)
    with slides.use(two):
        pass
    assert len(slides) == 1
    slides.close()
