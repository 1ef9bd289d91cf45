from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from slide_files import ramp, rendered
from torch import nn

from scmil import __version__
from scmil.bags.bag import Bag
from scmil.encoding import features
from scmil.encoding.encoders import Encoder
from scmil.encoding.features import WAITING, encode, join_scales, provenance_of
from scmil.errors import OptionError, SlideError
from scmil.slides import open_slide
from scmil.slides.tiling import Tiling

SIZE_PX = 8


class Mean(nn.Module):
    """The mean colour of a tile, and whatever a test wants to happen before."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.before = before

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.before()
        return x.mean((2, 3))


def mean_colour(network: nn.Module | None = None) -> Encoder:
    return Encoder(
        "mean", 3, network or Mean(), "digest", "none", mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)
    )


class FakeSlide:
    """A slide whose tile at (x, y) has the colour (x, y, 0), and that counts who reads what."""

    id, mpp, mpp_source, vendor = "fake", 0.5, "given", "nobody"

    def __init__(self, before: Callable[[int], None] = lambda number: None) -> None:
        self.read_places: list[tuple[float, float]] = []
        self.threads: set[str] = set()
        self.before = before

    def read(self, xy: tuple[int, int], size_px: int, mpp: float) -> np.ndarray:
        self.read_places.append(xy)
        self.threads.add(threading.current_thread().name)
        self.before(xy[0])
        return np.broadcast_to(np.array([*xy, 0], np.uint8), (size_px, size_px, 3)).copy()


def tiles(n: int, **change: Any) -> Tiling:
    """Tiles in a row at x = 0, 1, 2, …; all y are 7."""
    xy = np.stack([np.arange(n), np.full(n, 7)], 1)
    tiling = Tiling(
        "fake", xy, SIZE_PX, 0.5, 0.5, (1000, 1000), overlap_px=0, fraction=np.ones(n, np.float32)
    )
    return replace(tiling, **change)


def encoded(slide: FakeSlide, n: int, encoder: Encoder | None = None, **how: Any) -> Bag:
    return encode(slide, tiles(n), encoder or mean_colour(), **how)  # type: ignore[arg-type]


def reading_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("tiles")]


# ----------------------------------------------------------------------------------------- the rows


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("batch", [1, 2, 7, 20, 100])
def test_rows_are_in_the_order_of_the_tiles_whatever_is_read_first(
    workers: int, batch: int
) -> None:
    # The thread that reads the first tile is overtaken.
    late = FakeSlide(lambda x: time.sleep(0.02 if x == 0 else 0))
    bag = encoded(late, 20, batch=batch, workers=workers)
    expected = torch.tensor([[x / 255, 7 / 255, 0] for x in range(20)])
    torch.testing.assert_close(bag.features, expected, rtol=0, atol=1e-6)
    assert bag.xy is not None
    assert bag.xy.tolist() == tiles(20).xy.tolist()
    assert sorted(late.read_places) == [(x, 7) for x in range(20)]


def test_the_bag_has_the_slides_name_and_features_to_train_on() -> None:
    bag = encoded(FakeSlide(), 3)
    assert (bag.id, bag.label, bag.patient) == ("fake", None, None)
    assert bag.features.dtype == torch.float32
    (nn.Linear(3, 1)(bag.features)).sum().backward()  # refused for tensors of inference mode


@pytest.mark.parametrize(("batch", "counts"), [(4, [4, 8, 10]), (10, [10]), (99, [10])])
def test_progress_counts_tiles(batch: int, counts: list[int]) -> None:
    seen: list[int] = []
    encoded(FakeSlide(), 10, batch=batch, progress=seen.append)
    assert seen == counts


def test_every_window_is_read_with_the_tilings_size_and_resolution() -> None:
    asked = []

    class Recorder(FakeSlide):
        def read(self, xy: tuple[int, int], size_px: int, mpp: float) -> np.ndarray:
            asked.append((xy, size_px, mpp))
            return super().read(xy, size_px, mpp)

    encode(Recorder(), tiles(2, size_px=5, mpp=0.65), mean_colour())  # type: ignore[arg-type]
    assert asked == [((0, 7), 5, 0.65), ((1, 7), 5, 0.65)]


# ------------------------------------------------------------------------------------------ threads


def test_workers_read_at_the_same_time() -> None:
    together = threading.Barrier(3)
    # broken, and an error, unless three read at once.
    slide = FakeSlide(lambda x: together.wait(timeout=120) and None)
    assert len(encoded(slide, 6, batch=1, workers=3).features) == 6
    assert len(slide.threads) == 3


def test_all_workers_read_the_same_batch() -> None:
    # Broken, and an error, unless both halves of the only batch are read at once.
    together = threading.Barrier(2)
    slide = FakeSlide(lambda x: x in (0, 4) and together.wait(timeout=120) and None)
    assert len(encoded(slide, 8, batch=8, workers=2).features) == 8
    assert len(slide.threads) == 2


def test_there_are_as_many_workers_as_threads_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    for threads, expected in ((1, 1), (2, 2), (64, 8)):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        together = threading.Barrier(expected)

        def wait(x: int, together: threading.Barrier = together) -> None:
            together.wait(timeout=120)

        slide = FakeSlide(wait)
        encoded(slide, 8, batch=8)
        assert len(slide.threads) == expected


def test_on_a_processor_fast_reading_and_the_network_take_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(features, "PATIENCE_S", 60.0)
    running = threading.Event()
    beside: list[int] = []

    def note(x: int) -> None:
        if running.is_set():
            beside.append(x)

    def run() -> None:
        running.set()
        time.sleep(0.005)
        running.clear()

    encoded(FakeSlide(note), 40, mean_colour(Mean(run)), batch=4, workers=2)
    assert beside == []


def test_slow_reading_goes_on_beside_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "PATIENCE_S", 0.001)
    started, workers, batch = threading.Event(), 2, 4
    later = (workers * WAITING + 1) * batch  # not needed by the first run of the network

    def read(x: int) -> None:
        if x >= later:
            assert started.wait(timeout=120)  # for ever, if the network waited for it
        else:
            time.sleep(0.01)

    slide = FakeSlide(read)
    bag = encoded(slide, 60, mean_colour(Mean(started.set)), batch=batch, workers=workers)
    assert len(bag.features) == len(slide.read_places) == 60


def test_slow_reading_is_not_waited_for_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    def wait(parts: list[Future[None]], timeout: float) -> Any:
        waited.append(timeout)
        return SimpleNamespace(not_done=set(parts))

    monkeypatch.setattr(features, "wait", wait)
    encoded(FakeSlide(), 40, batch=4, workers=2)
    assert waited == [features.PATIENCE_S] * features.TOO_SLOW


@pytest.mark.parametrize("workers", [1, 2])
def test_only_a_few_batches_are_read_ahead_however_many_tiles_there_are(workers: int) -> None:
    slide, batch, n = FakeSlide(), 2, 60
    calls = 0

    def compare() -> None:
        nonlocal calls
        calls += 1
        allowed = min((calls + workers * WAITING) * batch, n)  # what was taken, and what waits
        deadline = time.monotonic() + 120
        while len(slide.read_places) < allowed and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.005)  # enough to run ahead further
        assert len(slide.read_places) == allowed

    encoded(slide, n, mean_colour(Mean(compare)), batch=batch, workers=workers)
    assert calls == n / batch


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("broken", [0, 25, 99])
def test_a_tile_that_cannot_be_read_is_an_error_and_no_thread_stays(
    workers: int, broken: int
) -> None:
    def fail(x: int) -> None:
        if x == broken:
            raise SlideError("fake.svs: the file is damaged or truncated at 25, 7")

    slide = FakeSlide(fail)
    counts: list[int] = []
    with pytest.raises(SlideError, match="damaged or truncated"):
        encoded(slide, 100, batch=1, workers=workers, progress=counts.append)
    assert counts == list(range(1, broken + 1))
    assert not reading_threads()
    assert len(slide.read_places) <= broken + 1 + workers * WAITING


def test_after_an_error_tiles_that_wait_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled, cancel, calls = threading.Event(), Future.cancel, []

    def cancel_and_count(future: Future[Any]) -> bool:
        done = cancel(future)
        calls.append(future)
        if len(calls) == WAITING:
            cancelled.set()
        return done

    def fail_then_wait(x: int) -> None:
        if x == 0:
            raise SlideError("the first tile is broken")
        cancelled.wait(20)

    monkeypatch.setattr(Future, "cancel", cancel_and_count)
    slide = FakeSlide(fail_then_wait)
    with pytest.raises(SlideError, match="the first tile"):
        encoded(slide, 100, batch=1, workers=1)
    assert len(slide.read_places) <= 2 < 1 + WAITING


def test_an_encoder_that_fails_leaves_no_thread() -> None:
    def fail() -> None:
        raise MemoryError("of the GPU")

    slide = FakeSlide()
    with pytest.raises(MemoryError, match="of the GPU"):
        encoded(slide, 100, mean_colour(Mean(fail)), batch=1, workers=2)
    assert not reading_threads()
    assert len(slide.read_places) < 20


# ----------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("worst", [torch.nan, torch.inf])
def test_features_that_are_not_finite_are_rejected_with_their_number(worst: float) -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            colours = x.mean((2, 3))
            # Of the tiles from x = 8 on.
            return torch.where(colours[:, :1] * 255 > 7.5, worst, colours)

    with pytest.raises(
        SlideError,
        match="slide 'fake': the encoder returned NaN or infinite features for 2 of 10 tiles",
    ):
        encoded(FakeSlide(), 10, mean_colour(Broken()), batch=3)


def test_a_slide_without_tiles_is_rejected() -> None:
    with pytest.raises(SlideError, match="slide 'fake' has no tiles"):
        encoded(FakeSlide(), 0)


@pytest.mark.parametrize("how", [{"batch": 0}, {"workers": 0}])
def test_batches_and_workers_are_counted_from_one(how: dict[str, int]) -> None:
    with pytest.raises(OptionError, match="both must be at least 1"):
        encoded(FakeSlide(), 3, **how)


# --------------------------------------------------------------------------------------- two scales


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    image = pytest.importorskip("PIL.Image")

    path = tmp_path / "picture.png"
    image.fromarray(rendered(ramp, (400, 300))).save(path)
    return path


@pytest.mark.parametrize("factor", [2, 4])
def test_beside_each_tile_are_the_features_of_the_tile_around_it(
    picture: Path, factor: int
) -> None:
    # The last parent reaches beyond the slide.
    side, corners = 32, [(0, 0), (32, 0), (96, 64), (128, 64), (352, 256)]
    tiling = Tiling(
        "picture", np.array(corners), side, 0.5, 0.5, (400, 300), 0, np.ones(5, np.float32)
    )
    with open_slide(picture, mpp=0.5) as slide:
        bag = join_scales(slide, tiling, mean_colour(), factor=factor, batch=2, workers=2)
        around = [
            (x // (factor * side) * factor * side, y // (factor * side) * factor * side)
            for x, y in corners
        ]
        fine = [slide.read(xy, side, 0.5).mean((0, 1)) / 255 for xy in corners]
        coarse = [slide.read(xy, side, 0.5 * factor).mean((0, 1)) / 255 for xy in around]
    np.testing.assert_allclose(bag.features[:, :3], np.array(fine), atol=1e-5)
    np.testing.assert_allclose(bag.features[:, 3:], np.array(coarse), atol=1e-5)
    assert bag.xy is not None
    assert bag.xy.tolist() == [list(xy) for xy in corners]
    assert bag.provenance["scales_mpp"] == [0.5, 0.5 * factor]
    assert bag.provenance["mpp"] == 0.5


def test_the_centre_of_the_tile_around_has_the_colour_of_the_ramp_there(picture: Path) -> None:
    tiling = Tiling(
        "picture", np.array([[160, 128]]), 32, 0.5, 0.5, (400, 300), 0, np.ones(1, np.float32)
    )
    with open_slide(picture, mpp=0.5) as slide:
        [row] = join_scales(slide, tiling, mean_colour()).features.numpy() * 255
    expected = [*ramp(np.array(176.0), np.array(144.0)), *ramp(np.array(192.0), np.array(192.0))]
    np.testing.assert_allclose(row, expected, atol=0.5)


def test_progress_of_two_scales_counts_parents_first_and_never_starts_again() -> None:
    seen: list[int] = []
    tiling = tiles(6, stride=1)  # x = 0 to 3 has one parent, 4 and 5 another
    join_scales(FakeSlide(), tiling, mean_colour(), batch=4, progress=seen.append)  # type: ignore[arg-type]
    assert seen == [2, 6, 8]


# --------------------------------------------------------------------------------------- provenance


def test_provenance_says_all_that_is_needed_to_make_the_features_again() -> None:
    tiling = tiles(2, size_px=256, mpp=0.65, slide_mpp=0.25, overlap_px=16, slide_size=(4000, 3000))
    made = provenance_of(FakeSlide(), tiling, replace(mean_colour(), precision="bfloat16"))  # type: ignore[arg-type]
    assert made == {
        "format": "scmil",
        "scmil": __version__,
        "encoder": "mean",
        "encoder_digest": "digest",
        "precision": "bfloat16",
        "size_px": 256,
        "mpp": 0.65,
        "overlap_px": 16,
        "side_level0": pytest.approx(665.6),
        "slide_mpp": 0.25,
        "slide_size": [4000, 3000],
        "mpp_source": "given",
        "vendor": "nobody",
    }
    assert json.loads(json.dumps(made)) == made
    assert encoded(FakeSlide(), 1).provenance == provenance_of(FakeSlide(), tiles(1), mean_colour())  # type: ignore[arg-type]
