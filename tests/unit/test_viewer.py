"""The viewer over HTTP: what it answers, and what it refuses."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import socket
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from threading import Barrier, Thread

import numpy as np
import pytest

pytest.importorskip("starlette", reason="starlette is not installed")
pytest.importorskip("openslide", reason="openslide is not installed")

from PIL import Image
from typer.testing import CliRunner
from viewer_case import ATOMS, PLACES, SIDE, running, scored, write_atlas, write_case, write_model

from scmil.cli import app
from scmil.errors import DataError, OptionError, OutputError
from scmil.slides import open_slide
from scmil.viewer import Library, Server
from scmil.viewer.library import models_of
from scmil.viewer.pixels import Cache, OpenSlides, cut, depth


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_case(tmp_path_factory.mktemp("viewer"))


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Server]:
    with running(Library([home / "sc", home / "plain"], home / "slides")) as server:
        yield server


Answer = tuple[HTTPResponse, bytes]


def ask(server: Server, path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> Answer:
    """A request with the cookie, unless headers say otherwise."""
    sent = {"Cookie": f"scmil_{server.port}={server.token}"} | {k.replace("_", "-"): v for k, v in headers.items()}
    connection = HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request(method, path, body, {name: value for name, value in sent.items() if value})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer, content


def get(server: Server, path: str) -> bytes:
    answer, content = ask(server, path)
    assert answer.status == 200, content
    return content


def status(server: Server, path: str, **headers: str) -> int:
    return ask(server, path, **headers)[0].status


# -------------------------------------------------------------------------------------------------------- what is shown


def test_the_list_says_what_is_true_and_what_each_model_says(server: Server) -> None:
    page = json.loads(get(server, "/api/slides"))
    assert [model["name"] for model in page["models"]] == ["sc", "plain"]
    assert [slide["id"] for slide in page["slides"]] == ["one", "two"]
    said = page["slides"][1]["models"][0]
    expected = scored("two", sparse=True)
    assert said["predicted"] == ("normal", "tumour")[expected.predicted]
    assert said["probability"] == pytest.approx(expected.probabilities[expected.predicted])
    assert said["correct"] is (expected.predicted == 1)
    assert said["part"] == "test"


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
    assert json.loads(get(server, "/api/slide/0/code/7?model=1"))["of"] == 0  # without sparse coding


def test_pyramid_tiles_are_the_pixels_of_the_place(server: Server, home: Path) -> None:
    finest = depth((1000, 1000))
    with open_slide(home / "slides" / "one.svs") as slide:
        for level, x, y in ((finest, 1, 2), (finest - 1, 1, 1), (finest - 3, 0, 0)):
            shown = np.asarray(Image.open(io.BytesIO(get(server, f"/dz/0/{level}/{x}_{y}.jpg"))))
            by = 2 ** (finest - level)
            size = tuple(min(256, -(-1000 // by) - 256 * place) for place in (x, y))
            expected = slide.read((x * 256 * by, y * 256 * by), size, slide.mpp * by)
            assert shown.shape == expected.shape
            assert np.abs(shown.astype(int) - expected).mean() < 6  # JPEG


def test_the_picture_of_a_tile_is_cut_from_the_slide(server: Server, home: Path) -> None:
    shown = np.asarray(Image.open(io.BytesIO(get(server, "/api/slide/0/tile/8?model=0"))))
    with open_slide(home / "slides" / "one.svs") as slide:
        expected = slide.read(PLACES[8], SIDE, slide.mpp)
    assert np.abs(shown.astype(int) - expected).mean() < 6


def test_the_truth_is_the_outline_that_was_painted(server: Server, home: Path) -> None:
    rings = json.loads(get(server, "/api/slide/0/truth"))
    drawn = json.loads((home / "slides" / "one.geojson").read_text())["features"]
    assert len(rings) == len(drawn) >= 1
    first = np.array(rings[0]).reshape(-1, 2)
    assert first.min() >= 0
    assert first.max() <= 1000
    assert len(first) == len(drawn[0]["geometry"]["coordinates"][0])


def test_the_layer_is_a_file_for_qupath(server: Server) -> None:
    attention = scored("one", True).attention
    least = float(np.sort(attention)[-5])
    answer, content = ask(server, f"/api/slide/0/layer.geojson?model=0&kind=attention&least={least!r}")
    features = json.loads(content)["features"]
    assert len(features) == 5
    assert answer.headers["content-disposition"] == "attachment"
    for feature in features:
        [ring] = feature["geometry"]["coordinates"]
        assert ring[0] == ring[-1]
        assert feature["properties"]["objectType"] == "detection"
        assert feature["properties"]["measurements"]["attention"] >= least * (1 - 1e-5)


def test_the_layer_of_an_atom_has_the_tiles_that_use_it(server: Server) -> None:
    features = json.loads(get(server, "/api/slide/0/layer.geojson?model=0&kind=atom:3"))["features"]
    assert len(features) == np.count_nonzero(scored("one", True).of("atom:3"))


def test_an_atom_has_its_row_of_the_atlas_and_pictures(server: Server) -> None:
    row = json.loads(get(server, "/api/atlas/5?model=0"))
    assert row["sentence"] == "Atom 5 likes nuclei."
    assert row["tiles"][0]["file"] is None  # where files are is nobody's business
    assert Image.open(io.BytesIO(get(server, "/api/atlas/5/0?model=0"))).size == (
        SIDE,
        SIDE,
    )  # cut, as no file is there
    assert json.loads(get(server, "/api/atlas/5?model=1"))["known"] is False
    assert status(server, "/api/atlas/5/1?model=0") == 404


def test_slides_without_a_file_and_files_without_scores_are_shown(home: Path, tmp_path: Path) -> None:
    write_model(tmp_path / "model", ["gone"], sparse=False, labels=False)
    with (tmp_path / "model" / "predictions.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("slide_id", "y_true"), ("gone", "normal")])
    with running(Library([tmp_path / "model"], home / "slides")) as server:
        gone, one, _ = json.loads(get(server, "/api/slides"))["slides"]
        assert (gone["id"], gone["picture"], gone["label"]) == ("gone", False, "normal")
        assert (one["id"], one["picture"], one["models"]) == ("one", True, [None])
        assert json.loads(get(server, "/api/slide/0"))["size"] == [1000, 1000]
        assert json.loads(get(server, "/api/slide/1"))["xy"] == []
        assert len(get(server, "/dz/0/10/0_0.jpg")) > 0


def test_a_damaged_slide_says_so_and_the_others_go_on(home: Path, tmp_path: Path) -> None:
    slides = Path(shutil.copytree(home / "slides", tmp_path / "slides"))
    (slides / "one.svs").write_bytes(b"no slide")
    with running(Library([home / "sc"], slides)) as server:
        answer, words = ask(server, "/api/slide/0")
        assert answer.status == 422
        assert b"not a slide" in words
        assert status(server, "/dz/1/10/0_0.jpg") == 200


# ----------------------------------------------------------------------------------------------------- who is let in


def test_the_secret_becomes_a_cookie_that_no_script_reads(server: Server) -> None:
    answer, _ = ask(server, f"/?token={server.token}", Cookie="")
    assert (answer.status, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert status(server, "/", Cookie=cookie.partition(";")[0]) == 200


@pytest.mark.parametrize("path", ["/", "/api/slides", "/static/app.js", "/dz/0/10/0_0.jpg", "/nothing"])
def test_without_the_secret_there_is_nothing(server: Server, path: str) -> None:
    assert status(server, path, Cookie="") == 401
    assert status(server, path, Cookie=f"scmil_{server.port}=guess") == 401
    assert status(server, f"{path}?token=guess", Cookie="") == 401
    assert status(server, path, Cookie=f"other={server.token}") == 401


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1:1", "0.0.0.0:{port}", "[::1]:{port}"]
)
def test_a_foreign_host_is_refused(server: Server, host: str) -> None:
    assert status(server, "/api/slides", Host=host.format(port=server.port)) == 421


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://localhost:{port}"])
def test_a_foreign_origin_is_refused(server: Server, origin: str) -> None:
    assert status(server, "/api/slides", Origin=origin.format(port=server.port)) == 403


def test_what_another_site_embeds_is_refused_but_its_link_is_followed(server: Server) -> None:
    assert status(server, "/api/slides", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors") == 403
    assert status(server, "/api/slides", Sec_Fetch_Site="same-site", Sec_Fetch_Mode="cors") == 403  # another port
    assert status(server, "/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate") == 200
    assert (
        status(server, "/api/slides", Origin=f"http://localhost:{server.port}", Host=f"localhost:{server.port}") == 200
    )


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE"])
def test_nothing_can_be_changed(server: Server, method: str) -> None:
    assert ask(server, "/api/slides", method)[0].status == 405


def test_oversize_requests_are_refused(server: Server) -> None:
    assert status(server, "/api/slides?x=" + "a" * 5000) == 414
    assert ask(server, "/api/slides", "GET", b"x")[0].status == 413
    assert status(server, "/api/slides", Transfer_Encoding="chunked") == 413
    assert status(server, "/api/slides", X="a" * 40_000) == 431


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py", "/static/..%2fserver.py", "/static/%2e%2e/server.py", "/static//etc/passwd", "/static/",
        "/static/..%5cserver.py", "/static/app.js%00.css", "/../../etc/passwd", "/dz/0/10/..%2f0_0.jpg",
        "/api/slide/..%2f..%2fetc/truth", "/api/slide/2", "/api/slide/-1", "/api/slide/one", "/api/slide/0/tile/36",
        "/api/slide/99999999999999999999/truth", "/api/slide/0?model=2", "/api/slide/0?model=-1", "/dz/0/11/0_0.jpg",
        "/dz/0/10/4_0.jpg", "/dz/2/0/0_0.jpg", "/dz/0/10/-1_0.jpg", "/api/slide/0/code/36", "/api/slide/0/scores", "/docs",
    ],
)  # fmt: skip
def test_what_is_not_in_the_list_is_not_there(server: Server, path: str) -> None:
    answer, content = ask(server, path)
    assert answer.status == 404
    assert len(content) < 100


def test_what_is_no_number_or_no_score_is_refused_in_words(server: Server) -> None:
    assert status(server, "/api/slide/0?model=x") == 400
    assert status(server, "/api/slide/0/layer.geojson?kind=attention&least=x") == 400
    answer, words = ask(server, "/api/slide/0/scores?model=1&kind=atom:0")
    assert answer.status == 400
    assert b"no sparse coding" in words


@pytest.mark.parametrize("path", ["/", "/api/slides", "/dz/0/10/0_0.jpg", "/nothing", "/?token=guess"])
def test_every_answer_carries_the_strict_headers(server: Server, path: str) -> None:
    headers = ask(server, path, Cookie="" if "guess" in path else f"scmil_{server.port}={server.token}")[0].headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["server"] is None


def test_only_this_computer_is_listened_to(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        assert connection.getpeername()[0] == "127.0.0.1"
    other = "127.0.0.2"  # loopback too, on Linux, and yet not the address that is bound
    with pytest.raises(OSError, match=r"refused|timed out|not valid|unreachable"):
        socket.create_connection((other, server.port), timeout=1)


def test_the_page_names_no_other_place(server: Server) -> None:
    for name in (
        "app.js",
        "api.js",
        "pane.js",
        "panel.js",
        "list.js",
        "marks.js",
        "scale.js",
        "save.js",
        "gallery.js",
        "style.css",
    ):
        assert not re.findall(rb"https?://", get(server, f"/static/{name}"))
    page = get(server, "/")
    assert not re.findall(rb"https?://|<script>| style=| on\w+=", page)
    assert b"BSD" in get(server, "/static/openseadragon.LICENSE.txt") or b"Redistribution" in get(
        server, "/static/openseadragon.LICENSE.txt"
    )


# -------------------------------------------------------------------------------------------------------- what is read


def test_links_out_of_the_folder_are_not_followed(home: Path, tmp_path: Path) -> None:
    (tmp_path / "slides").mkdir()
    os.symlink(home / "slides" / "one.svs", tmp_path / "slides" / "one.svs")
    os.symlink(home / "slides" / "two.xml", tmp_path / "slides" / "two.xml")
    shutil.copy(home / "slides" / "two.svs", tmp_path / "slides")
    library = Library([home / "sc"], tmp_path / "slides")
    assert [path.name for path in library.left_out] == ["one.svs"]
    assert library.slides[0].path is None
    assert library.truth(1) == []


def test_an_atlas_leads_to_no_file_elsewhere(home: Path, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", ["one"], sparse=True)
    (tmp_path / "secret.jpg").write_bytes(b"secret")
    os.makedirs(model / "maps" / "atlas" / "tiles")
    os.symlink(tmp_path / "secret.jpg", model / "maps" / "atlas" / "tiles" / "link.jpg")
    Image.new("RGB", (9, 9)).save(model / "maps" / "atlas" / "tiles" / "own.png")
    outside = [str(tmp_path / "secret.jpg"), "../../../secret.jpg", "tiles/link.jpg", "atlas.json", ""]
    tiles = [{"slide": "elsewhere", "x": 0, "y": 0, "side": 9, "file": file} for file in [*outside, "tiles/own.png"]]
    write_atlas(model, [{"atom": 0, "tiles": tiles}])
    with running(Library([model], home / "slides")) as server:
        for number in range(len(outside)):
            assert status(server, f"/api/atlas/0/{number}") == 404
        answer, _ = ask(server, f"/api/atlas/0/{len(outside)}")
        assert (answer.status, answer.headers["content-type"]) == (200, "image/png")


def test_damaged_atlases_and_ambiguous_or_missing_slides_are_refused(home: Path, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", ["one"], sparse=True)
    with pytest.raises(DataError, match="no such file or folder"):
        Library([model], tmp_path / "nowhere")
    for name in ("a", "b"):
        (tmp_path / "twice" / name).mkdir(parents=True)
        shutil.copy(home / "slides" / "one.svs", tmp_path / "twice" / name)
    with pytest.raises(DataError, match="two slides are called 'one'"):
        Library([model], tmp_path / "twice")
    write_atlas(model, [])
    (model / "maps" / "atlas" / "atlas.json").write_text("{")
    with pytest.raises(DataError, match="no atlas"):
        Library([model])


def test_a_picture_beside_a_slide_is_its_thumbnail(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "slides", tmp_path / "slides")
    Image.new("RGB", (30, 30)).save(tmp_path / "slides" / "one.jpg")
    path = Library([home / "sc"], tmp_path / "slides").slides[0].path
    assert path is not None
    assert path.suffix == ".svs"


def test_a_folder_of_models_is_its_models(home: Path, tmp_path: Path) -> None:
    assert models_of(home) == [home / "plain", home / "sc"]
    assert models_of(home / "sc") == [home / "sc"]
    with pytest.raises(DataError, match="no model of scmil train"):
        models_of(tmp_path)


def test_nothing_to_show_and_a_port_that_is_taken_are_refused(home: Path, server: Server, tmp_path: Path) -> None:
    write_model(tmp_path / "model", [], sparse=False)
    with pytest.raises(DataError, match="no slide to show"):
        Server(Library([tmp_path / "model"]))
    with pytest.raises(OutputError, match="cannot be had"):
        Server(Library([home / "sc"]), server.port)


# ------------------------------------------------------------------------------------------------------------- pixels


def test_pyramid_tiles_cover_slides_of_any_size(tmp_path: Path) -> None:
    Image.fromarray(np.arange(300 * 517 * 3, dtype=np.uint32).astype(np.uint8).reshape(300, 517, 3)).save(
        tmp_path / "a.png"
    )
    with open_slide(tmp_path / "a.png", mpp=1.0) as slide:
        rows = [np.concatenate([cut(slide, 10, x, y) for x in range(3)], axis=1) for y in range(2)]
        assert np.array_equal(np.concatenate(rows), slide.read((0, 0), (517, 300), 1.0))
        assert cut(slide, 0, 0, 0).shape == (1, 1, 3)
        for level, x, y in ((11, 0, 0), (-1, 0, 0), (10, 3, 0), (10, 0, 2)):
            with pytest.raises(KeyError):
                cut(slide, level, x, y)


def test_what_two_ask_for_at_once_is_cut_once() -> None:
    cache, made, together = Cache(), [], Barrier(4)

    def make() -> bytes:
        made.append(1)
        import time

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


def test_a_failure_is_not_kept_in_the_cache() -> None:
    cache = Cache()
    with pytest.raises(ZeroDivisionError):
        cache.get("key", lambda: bytes(1 // 0))
    assert cache.get("key", lambda: b"good") == b"good"


def test_slides_in_use_stay_open_and_the_idle_are_closed(home: Path) -> None:
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


def test_a_slide_that_does_not_say_its_microns_is_shown_without_them(home: Path, tmp_path: Path) -> None:
    (tmp_path / "slides").mkdir()
    Image.new("RGB", (600, 400), (250, 180, 200)).save(tmp_path / "slides" / "pink.png")
    with running(Library([home / "sc"], tmp_path / "slides")) as server:
        ids = [slide["id"] for slide in json.loads(get(server, "/api/slides"))["slides"]]
        place = ids.index("pink")
        page = json.loads(get(server, f"/api/slide/{place}"))
        assert (page["size"], page["mpp"]) == ([600, 400], None)
        assert np.asarray(Image.open(io.BytesIO(get(server, f"/dz/{place}/10/0_0.jpg")))).mean((0, 1)) == pytest.approx(
            [250, 180, 200], abs=3
        )


# --------------------------------------------------------------------------------------------------------- the command


def test_the_command_tells_the_address_and_serves(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[tuple[list[str], str]] = []
    opened: list[str] = []

    def run(self: Server) -> None:
        served.append((self._answers.library.names, self.address))
        self._socket.close()

    monkeypatch.setattr(Server, "run", run)
    monkeypatch.setattr("webbrowser.open", opened.append)
    words = ["view", str(home / "sc"), str(home / "slides"), "--with", str(home / "plain")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    [(names, address)] = served
    assert names == ["sc", "plain"]
    assert address in result.output
    assert opened == [address]
    CliRunner().invoke(app, [*words, "--no-open"])
    assert len(opened) == 1


def test_the_command_refuses_three_models(home: Path) -> None:
    result = CliRunner().invoke(app, ["view", str(home), "--with", str(home / "sc"), "--no-open"])
    assert isinstance(result.exception, OptionError)
    assert "two fit on a screen" in str(result.exception)
