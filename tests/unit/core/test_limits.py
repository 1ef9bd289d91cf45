"""Numbers and sizes that a file can set: beyond their bounds they are a sentence, before memory or
time is spent.
"""

from __future__ import annotations

import json
import os
import resource
import struct
import time
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scmil.bags.bag import Bag
from scmil.core.limits import BOUNDS, nested_too_deeply, options_problem, parse_toml, problem
from scmil.core.tables import read_json
from scmil.encoding.cohort import read_settings
from scmil.errors import BagError, DataError, OptionError, SlideError
from scmil.models.model import MILModel, build_model
from scmil.models.score_files import read_scores, write_scores
from scmil.models.tile_scores import score_bag


@pytest.fixture
def little_memory() -> Iterator[None]:
    """A quarter of a gigabyte beside what is in use."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("name", BOUNDS)
def test_no_bound_admits_what_is_not_a_number_of_its_kind(name: str) -> None:
    bound = BOUNDS[name]
    for value in (float("nan"), float("inf"), "1", None, True, [1], 10**400, -(10**400)):
        assert f"{name} = " in (problem(name, value) or ""), value
    assert bound.holds(bound.low if not bound.whole else int(bound.low))
    assert bound.holds(bound.high if not bound.whole else int(bound.high))


def test_numbers_anywhere_in_the_options_of_a_model_are_bounded() -> None:
    assert (
        options_problem({"a": [{"b": {"layers": 1001}}]})
        == "layers = 1001: a whole number from 1 to 1000 is needed"
    )
    assert (
        options_problem({"embed": {"widths": [8, 2**21]}})
        == "width = 2097152: a whole number from 1 to 1048576 is needed"
    )
    assert "of_my_own = inf" in (options_problem({"of_my_own": float("inf")}) or "")
    assert (
        options_problem(
            {"dim": 1024, "classes": 2, "aggregator": {"name": "ilra", "rank": 4}, "embed": [512]}
        )
        is None
    )


def test_nesting_is_measured_without_recursion() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert nested_too_deeply(deep)
    assert not nested_too_deeply({"a": [{"b": [1, 2]}]})
    while deep:  # taken apart by hand: freeing it in one piece recurses in C
        deep = deep.pop()


# ----------------------------------------------------------------------------------------- pictures


def chunk(kind: bytes, content: bytes) -> bytes:
    return (
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
    )


def png(
    path: Path, side: int, depth: int, colour: int, *extra: bytes, pixels: bytes | None = None
) -> Path:
    header = struct.pack(">IIBBBBB", side, side, depth, colour, 0, 0, 0)
    packed = zlib.compress(bytes(10**6) if pixels is None else pixels, 9)
    parts = [chunk(b"IHDR", header), *extra, chunk(b"IDAT", packed), chunk(b"IEND", b"")]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))
    return path


@pytest.mark.parametrize(
    ("depth", "colour", "side"), [(8, 2, 18_000), (8, 6, 18_000), (16, 0, 21_000), (8, 0, 24_000)]
)
def test_a_picture_is_limited_by_the_memory_that_it_takes(
    tmp_path: Path, depth: int, colour: int, side: int
) -> None:
    """All of these have fewer than 600 million pixels; decoding the first took 4.5 GB."""
    pytest.importorskip("openslide")
    from scmil.slides import open_slide

    with pytest.raises(
        SlideError,
        match=r"bomb\.png has .* bytes of memory; at most 2147483648 are allowed",
    ):
        open_slide(png(tmp_path / "bomb.png", side, depth, colour), mpp=0.5)


@cache
def packed_zeros() -> bytes:
    """Three hundred megabytes in one."""
    bomb = zlib.compressobj(1)
    return b"".join(bomb.compress(bytes(2**20)) for _ in range(300)) + bomb.flush()


@pytest.mark.parametrize("kind", [b"zTXt", b"iTXt", b"iCCP"])
def test_text_and_profiles_in_a_picture_are_not_unpacked_without_limit(
    tmp_path: Path, kind: bytes, little_memory: None
) -> None:
    pytest.importorskip("openslide")
    from scmil.slides import open_slide

    head = {b"zTXt": b"Comment\0\0", b"iTXt": b"Comment\0\1\0\0\0", b"iCCP": b"icc\0\0"}[kind]
    path = png(
        tmp_path / "bomb.png", 8, 8, 0, chunk(kind, head + packed_zeros()), pixels=bytes(9 * 8)
    )
    with pytest.raises(SlideError, match=r"bomb\.png: the file is damaged.*[Tt]oo [Ll]arge"):
        open_slide(path, mpp=0.5)


def test_pictures_are_decoded_in_bands_to_the_same_pixels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openslide")
    from PIL import Image

    from scmil.slides import readers
    from scmil.slides.readers import by_pillow

    monkeypatch.setattr(readers, "BAND_PX", 100)
    pixels = np.random.default_rng(0).integers(0, 256, (37, 23, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    reader = by_pillow.PictureReader(tmp_path / "a.png", "PNG")
    assert np.array_equal(reader.region(0, (0, 0), (23, 37)), pixels)


# ----------------------------------------------------------------------------------- tiles and bags


def test_a_grid_of_more_tiles_than_a_slide_can_have_is_rejected_before_it_is_laid(
    tmp_path: Path,
) -> None:
    pytest.importorskip("openslide")
    from PIL import Image
    from shapely import MultiPolygon, box

    from scmil.slides import Tissue, open_slide, tile

    Image.new("L", (3000, 3000)).save(tmp_path / "slide.png")
    tissue = Tissue(MultiPolygon([box(0, 0, 3000, 3000)]), "slide", (3000, 3000), {}, ())
    with open_slide(tmp_path / "slide.png", mpp=0.5) as slide:
        for asked in ({"mpp": 1e-6}, {"overlap_px": 255}):
            with pytest.raises(
                OptionError,
                match=r"slide 'slide' would have about 9000000 tiles .* at most 4194304 are",
            ):
                tile(slide, tissue, **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"mpp": 1e-6},
        {"overlap_px": 255},
        {"size_px": 10**9},
        {"mpp": "x"},
        {"min_tissue": float("nan")},
        {"size_px": True},
    ],
)
def test_settings_of_tiles_that_would_never_end_are_rejected(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    page = {"size_px": 256, "mpp": 0.5, "overlap_px": 0, "min_tissue": 0.1}
    (tmp_path / "tiling.json").write_text(json.dumps(page))
    assert read_settings(tmp_path).mpp == 0.5
    (tmp_path / "tiling.json").write_text(json.dumps({**page, **change}))
    with pytest.raises(DataError, match=r"tiling\.json does not contain tiling settings"):
        read_settings(tmp_path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -(2.0**62), 2.0**41])
def test_coordinates_that_are_on_no_slide_are_rejected(value: float) -> None:
    with pytest.raises(
        BagError, match="bag 'a': coordinates that are NaN or beyond 1099511627776 pixels"
    ):
        Bag("a", torch.ones(2, 3), xy=torch.tensor([[0.0, 0.0], [0.0, value]]))


def test_the_smallest_integer_is_no_coordinate_either() -> None:
    with pytest.raises(BagError, match="coordinates that are NaN or beyond"):
        Bag("a", torch.ones(1, 3), xy=torch.tensor([[-(2**63), 0]]))


# ----------------------------------------------------------------------------- scores, atlas, study


def small_model() -> MILModel:
    return build_model(16, 2, "abmil-gated", sparse_coding={"atoms": 8}, embed=[16], seed=0)


def a_bag(**made: Any) -> Bag:
    places = torch.tensor([(256 * (i % 3), 256 * (i // 3)) for i in range(9)])
    return Bag(
        "slide",
        torch.randn(9, 16, generator=torch.Generator().manual_seed(0)),
        xy=places,
        provenance=made,
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("slide_mpp", "x"),
        ("slide_mpp", -1),
        ("side_level0", 1e9),
        ("slide_size", [10**12, 5]),
        ("slide_size", [5]),
    ],
)
def test_provenance_that_is_no_number_is_an_error_of_the_bag(key: str, value: Any) -> None:
    with pytest.raises(DataError, match=f"bag 'slide': {key} = "):
        score_bag(small_model(), a_bag(**{key: value}))


@pytest.mark.parametrize(
    "change",
    [
        {"side": 1e9},
        {"side": float("nan")},
        {"slide_mpp": "x"},
        {"slide_size": [1, 10**12]},
        {"label": 7},
        {"label": -1},
        {"threshold": float("nan")},
        {"atoms": 10**9},
    ],
)
def test_scores_with_numbers_that_no_slide_has_are_rejected(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    path = write_scores(score_bag(small_model(), a_bag(), ("a", "b")), tmp_path)
    arrays = dict(np.load(path))
    page = json.loads(arrays["page"].tobytes())
    arrays["page"] = np.frombuffer(json.dumps({**page, **change}).encode(), np.uint8)
    np.savez(path, **arrays)
    with pytest.raises(DataError, match="is damaged or not a file of scores"):
        read_scores(path)


def test_scores_far_outside_any_slide_are_rejected(tmp_path: Path) -> None:
    path = write_scores(score_bag(small_model(), a_bag(), ("a", "b")), tmp_path)
    arrays = dict(np.load(path))
    arrays["xy"][0] = -(2**62)
    np.savez(path, **arrays)
    with pytest.raises(DataError, match="coordinates that are not pixels of a slide"):
        read_scores(path)


def test_tiles_of_an_atlas_that_are_wider_than_any_tile_are_not_cut(tmp_path: Path) -> None:
    from scmil.viz.viewer.library import _read_atlas

    good = {"slide": "a", "x": 0, "y": 0, "side": 512.0, "code": 1.0}
    bad = [
        {**good, **change}
        for change in ({"side": 1e7}, {"side": None}, {"x": 2**62}, {"y": float("nan")}, {"x": "0"})
    ]
    (tmp_path / "atlas.json").write_text(
        json.dumps({"atoms": [{"atom": 3, "tiles": [*bad, good]}]})
    )
    assert _read_atlas(tmp_path / "atlas.json")[3]["tiles"] == [good]


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    from scmil.bags.labels import read_labels

    os.mkfifo(tmp_path / "labels.csv")
    with pytest.raises(DataError, match="a pipe, a device or a folder"):
        read_labels(tmp_path / "labels.csv")
    with pytest.raises(OSError, match="a pipe, a device or a folder"):
        read_json(tmp_path / "labels.csv")


def test_a_key_of_many_parts_is_rejected_before_it_is_parsed() -> None:
    with pytest.raises(DataError, match="a key has more than 40 parts"):
        parse_toml("[" + ".".join("a" * 100_000) + "]")
    assert parse_toml("[a.b.c]\nd.e = 1.5") == {"a": {"b": {"c": {"d": {"e": 1.5}}}}}


def test_a_long_word_in_toml_is_searched_for_deep_keys_once() -> None:
    start = time.process_time()
    assert parse_toml(f"a = '{'A' * 100_000}'")["a"] == "A" * 100_000
    assert time.process_time() - start < 5  # each letter was a beginning: 75 seconds
