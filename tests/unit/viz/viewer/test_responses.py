"""The contents of responses: tiles, scores, codes, images and outlines."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("starlette", reason="starlette is not installed")
pytest.importorskip("openslide", reason="openslide is not installed")
from PIL import Image
from viewer_case import (
    ATOMS,
    PLACES,
    SIDE,
    ask,
    get,
    running,
    scored,
    status,
    write_atlas,
)

from scmil.slides import open_slide
from scmil.viz.viewer import Library, Server
from scmil.viz.viewer.pixels import depth


def test_tiles_and_scores_are_those_of_the_files(server: Server) -> None:
    page = json.loads(get(server, "/api/slide/0?model=0"))
    assert page["size"] == [1000, 1000]
    assert (page["mpp"], page["side"], page["atoms"]) == (0.5, SIDE, ATOMS)
    assert np.array(page["xy"]).reshape(-1, 2).tolist() == [list(place) for place in PLACES]
    for kind in ("attention", "ratio", "probability:tumour", "lambda", "sparsity", "atom:3"):
        values = np.frombuffer(get(server, f"/api/slide/0/scores?model=0&kind={kind}"), "<f4")
        assert values == pytest.approx(scored("one", True).of(kind).astype(np.float32))


def test_the_code_of_a_tile_is_its_atoms_and_values(server: Server) -> None:
    page = json.loads(get(server, "/api/slide/0/code/7?model=0"))
    codes = scored("one", True).codes
    assert codes is not None
    atoms, values = codes.row(7)
    assert page["atoms"] == atoms.tolist()
    assert page["values"] == pytest.approx(values.tolist())
    # Without sparse coding.
    assert json.loads(get(server, "/api/slide/0/code/7?model=1"))["of"] == 0


def test_pyramid_tiles_have_the_pixels_of_their_position(server: Server, home: Path) -> None:
    finest = depth((1000, 1000))
    with open_slide(home / "slides" / "one.svs") as slide:
        for level, x, y in ((finest, 1, 2), (finest - 1, 1, 1), (finest - 3, 0, 0)):
            shown = np.asarray(Image.open(io.BytesIO(get(server, f"/dz/0/{level}/{x}_{y}.jpg"))))
            by = 2 ** (finest - level)
            size = tuple(min(256, -(-1000 // by) - 256 * place) for place in (x, y))
            expected = slide.read((x * 256 * by, y * 256 * by), size, slide.mpp * by)
            assert shown.shape == expected.shape
            assert np.abs(shown.astype(int) - expected).mean() < 6  # JPEG


def test_the_image_of_a_tile_is_read_from_the_slide(server: Server, home: Path) -> None:
    shown = np.asarray(Image.open(io.BytesIO(get(server, "/api/slide/0/tile/8?model=0"))))
    with open_slide(home / "slides" / "one.svs") as slide:
        expected = slide.read(PLACES[8], SIDE, slide.mpp)
    assert np.abs(shown.astype(int) - expected).mean() < 6


def test_outlines_are_those_of_the_annotation(server: Server, home: Path) -> None:
    rings = json.loads(get(server, "/api/slide/0/outlines"))
    drawn = json.loads((home / "slides" / "one.geojson").read_text())["features"]
    assert len(rings) == len(drawn) >= 1
    first = np.array(rings[0]).reshape(-1, 2)
    assert first.min() >= 0
    assert first.max() <= 1000
    assert len(first) == len(drawn[0]["geometry"]["coordinates"][0])


def test_an_atom_has_its_row_of_the_atlas_and_pictures(server: Server) -> None:
    row = json.loads(get(server, "/api/atlas/5?model=0"))
    assert row["sentence"] == "Atom 5 responds to nuclei."
    assert row["tiles"][0]["file"] is None  # paths are not sent
    assert Image.open(io.BytesIO(get(server, "/api/atlas/5/0?model=0"))).size == (
        SIDE,
        SIDE,
    )  # cut, as no file is there
    assert json.loads(get(server, "/api/atlas/5?model=1"))["known"] is False
    assert status(server, "/api/atlas/5/1?model=0") == 404


def test_atlas_tiles_of_impossible_size_are_not_read(home: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(home / "sc", tmp_path / "sc"))
    sides = [1e7, 1e300, float("nan"), float("inf"), -1, 0, "x", None, [], {}]
    write_atlas(
        model,
        [{"atom": 0, "tiles": [{"slide": "one", "x": 0, "y": 0, "side": side} for side in sides]}],
    )
    with running(Library([model], home / "slides")) as server:
        for number, side in enumerate(sides):
            answer, message = ask(server, f"/api/atlas/0/{number}")
            assert answer.status in (404, 422), (side, message)


def test_a_damaged_slide_is_reported_and_the_others_are_shown(home: Path, tmp_path: Path) -> None:
    slides = Path(shutil.copytree(home / "slides", tmp_path / "slides"))
    (slides / "one.svs").write_bytes(b"no slide")
    with running(Library([home / "sc"], slides)) as server:
        answer, message = ask(server, "/api/slide/0")
        assert answer.status == 422
        assert b"not a slide" in message
        assert status(server, "/dz/1/10/0_0.jpg") == 200


def test_a_slide_that_is_replaced_while_the_viewer_runs_is_read_again(
    home: Path, tmp_path: Path
) -> None:
    slides = Path(shutil.copytree(home / "slides", tmp_path / "slides"))
    with running(Library([home / "sc"], slides)) as server:
        paths = ("/dz/0/10/1_1.jpg", "/api/slide/0/tile/8")
        before = [get(server, path) for path in paths]
        other = [get(server, path) for path in ("/dz/1/10/1_1.jpg", "/api/slide/1/tile/8")]
        os.replace(slides / "two.svs", slides / "one.svs")
        assert [get(server, path) for path in paths] == other != before


def test_a_slide_without_microns_per_pixel_is_shown_without_them(
    home: Path, tmp_path: Path
) -> None:
    (tmp_path / "slides").mkdir()
    Image.new("RGB", (600, 400), (250, 180, 200)).save(tmp_path / "slides" / "pink.png")
    with running(Library([home / "sc"], tmp_path / "slides")) as server:
        ids = [slide["id"] for slide in json.loads(get(server, "/api/slides"))["slides"]]
        place = ids.index("pink")
        page = json.loads(get(server, f"/api/slide/{place}"))
        assert (page["size"], page["mpp"]) == ([600, 400], None)
        assert np.asarray(Image.open(io.BytesIO(get(server, f"/dz/{place}/10/0_0.jpg")))).mean(
            (0, 1)
        ) == pytest.approx([250, 180, 200], abs=3)
