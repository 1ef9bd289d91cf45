"""The viewer over HTTP: what it answers, and what it refuses."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from threading import Barrier, Event, Thread
from urllib.parse import urlsplit

import numpy as np
import pytest

pytest.importorskip("starlette", reason="starlette is not installed")
pytest.importorskip("openslide", reason="openslide is not installed")

from PIL import Image
from typer.testing import CliRunner
from viewer_case import ATOMS, PLACES, SIDE, running, scored, write_atlas, write_case, write_model

from scmil.cli import app
from scmil.errors import DataError, OptionError, OutputError
from scmil.models.tile_scores import write_scores
from scmil.slides import apart, open_slide, slide_digest
from scmil.viz.viewer import Library, Server, connections, serve
from scmil.viewer.browser import open_browser
from scmil.viz.viewer.library import models_of
from scmil.viz.viewer.pixels import Cache, OpenSlides, cut, depth
from scmil.viz.viewer.server import READERS_OF_OUTLINES
from scmil.viewer.workers import Workers


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_case(tmp_path_factory.mktemp("viewer"))


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Server]:
    with running(Library([home / "sc", home / "plain"], home / "slides")) as server:
        yield server


Answer = tuple[HTTPResponse, bytes]


def ask(server: Server, path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> Answer:
    """A request with the prefix and the cookie, unless headers say otherwise."""
    sent = {"Cookie": server.cookie} | {k.replace("_", "-"): v for k, v in headers.items()}
    connection = HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request(method, server.path(path), body, {name: value for name, value in sent.items() if value})
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


# ------------------------------------------------------------------------- the tissue and scores of the right slide


def first_pictures(server: Server) -> dict[str, bytes]:
    """A picture of each kind, by the address that the page asks for."""
    paths = ("/dz/0/10/1_1.jpg", "/dz/0/8/0_0.jpg", "/api/slide/0/tile/8?model=0", "/api/atlas/5/0?model=0")
    return {server.path(path): get(server, path) for path in paths}


def test_no_start_answers_at_the_addresses_of_an_earlier_one(home: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(home / "slides", tmp_path / "slides"))
    (other / "two.svs").rename(other / "kept.svs")
    (other / "one.svs").rename(other / "two.svs")
    (other / "kept.svs").rename(other / "one.svs")
    with running(Library([home / "sc"], home / "slides")) as server:
        before, port = first_pictures(server), server.port
    with running(Library([home / "sc"], other), port) as server:
        after = first_pictures(server)
        for path in before:
            connection = HTTPConnection("127.0.0.1", port, timeout=20)
            connection.request("GET", path, headers={"Cookie": server.cookie})
            assert connection.getresponse().status == 401
            connection.close()
    assert not before.keys() & after.keys()
    assert not set(before.values()) & set(after.values())


@pytest.mark.parametrize(
    "path",
    [
        "/", "/static/app.js", "/api/slides", "/api/slide/0", "/api/slide/0/scores?kind=attention", "/api/slide/0/truth",
        "/api/slide/0/layer.geojson?kind=attention", "/api/slide/0/code/7", "/api/slide/0/tile/8", "/api/atlas/5",
        "/api/atlas/5/0", "/dz/0/10/0_0.jpg", "/nothing", "/?token={token}",
    ],
)  # fmt: skip
def test_no_answer_is_kept_by_a_browser(server: Server, path: str) -> None:
    assert ask(server, path.format(token=server.token))[0].headers["cache-control"] == "no-store"


def test_a_slide_that_is_replaced_while_the_viewer_runs_is_shown_as_it_is_now(home: Path, tmp_path: Path) -> None:
    slides = Path(shutil.copytree(home / "slides", tmp_path / "slides"))
    with running(Library([home / "sc"], slides)) as server:
        paths = ("/dz/0/10/1_1.jpg", "/api/slide/0/tile/8")
        before = [get(server, path) for path in paths]
        other = [get(server, path) for path in ("/dz/1/10/1_1.jpg", "/api/slide/1/tile/8")]
        os.replace(slides / "two.svs", slides / "one.svs")
        assert [get(server, path) for path in paths] == other != before


def test_scores_and_atlas_that_are_made_again_while_the_viewer_runs_are_not_mixed_with_the_old(
    home: Path, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(home / "sc", tmp_path / "sc"))
    with running(Library([model], home / "slides")) as server:
        assert status(server, "/api/atlas/5/0") == status(server, "/api/slide/0") == 200
        page = json.loads((model / "maps" / "maps.json").read_text())
        (model / "maps" / "maps.json").write_text(json.dumps({**page, "made": "again"}))
        for path in ("/api/slide/1", "/api/slide/1/scores?kind=attention", "/api/slide/1/tile/8", "/api/atlas/5/0"):
            answer, words = ask(server, path)
            assert answer.status == 422
            assert b"has changed since the viewer was started" in words


def test_scores_of_another_slide_are_not_shown(home: Path, tmp_path: Path) -> None:
    slides = Path(shutil.copytree(home / "slides", tmp_path / "slides"))
    Image.new("RGB", (900, 1000)).save(slides / "two.png")
    (slides / "two.svs").unlink()
    model = Path(shutil.copytree(home / "sc", tmp_path / "sc"))
    shutil.copy(model / "maps" / "scores" / "two.npz", model / "maps" / "scores" / "one.npz")
    with running(Library([model], slides)) as server:
        for slide, words in (
            (0, b"has scores of slide 'two'"),
            (1, b"900 x 1000 pixels, but its tiles are from a slide of 1000 x 1000"),
        ):
            for path in (
                f"/api/slide/{slide}",
                f"/api/slide/{slide}/scores?kind=attention",
                f"/api/slide/{slide}/tile/0",
            ):
                answer, said = ask(server, path)
                assert answer.status == 422
                assert words in said


def test_scores_whose_bags_are_gone_are_not_shown(home: Path) -> None:
    one, two = Library([home / "sc"], home / "slides", scored={"two"}).page()["slides"]
    assert (one["id"], one["picture"], one["models"]) == ("one", True, [None])
    assert two["models"][0]["predicted"]


def test_another_slide_of_the_same_size_and_name_has_no_scores(home: Path, tmp_path: Path) -> None:
    model, page = (
        Path(shutil.copytree(home / "sc", tmp_path / "sc")),
        json.loads((home / "sc/maps/maps.json").read_text()),
    )
    for id in ("one", "two"):
        digest = page["slides"][id]["slide_digest"] = slide_digest(home / "slides" / f"{id}.svs")
        write_scores(replace(scored(id, sparse=True), slide_digest=digest), model / "maps")
    (model / "maps" / "maps.json").write_text(json.dumps(page))
    slides = Path(shutil.copytree(home / "slides", tmp_path / "slides"))
    with running(Library([model], slides)) as server:
        assert status(server, "/api/slide/0/scores?kind=attention") == 200
        shutil.copy(home / "slides" / "two.svs", slides / "one.svs")  # another patient, while the viewer runs
        answer, words = ask(server, "/api/slide/0/scores?kind=attention")
        assert answer.status == 422
        assert b"is not the file that the bag of 'one' was encoded from" in words
        one, two = json.loads(get(server, "/api/slides"))["slides"]
        assert one["models"] == [None]
        assert two["models"][0]["predicted"]


def test_a_tile_of_an_atlas_with_a_size_that_no_tile_has_is_not_read(home: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(home / "sc", tmp_path / "sc"))
    sides = [1e7, 1e300, float("nan"), float("inf"), -1, 0, "x", None, [], {}]
    write_atlas(model, [{"atom": 0, "tiles": [{"slide": "one", "x": 0, "y": 0, "side": side} for side in sides]}])
    with running(Library([model], home / "slides")) as server:
        for number, side in enumerate(sides):
            answer, words = ask(server, f"/api/atlas/0/{number}")
            assert answer.status in (404, 422), (side, words)


# ------------------------------------------------------------------------------------------- threads, and a clean stop


def wait_until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_annotations_that_never_end_delay_no_picture_and_the_server_stops(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apart, "COMMAND", (sys.executable, "-S", "-c", "import time; time.sleep(300)"))
    with running(Library([home / "sc"], home / "slides")) as server:
        asking = [Thread(target=suppressed, args=(server, f"/api/slide/{slide}/truth")) for slide in (0, 1, 0, 1)]
        for one in asking:
            one.start()
        running_now = server._answers.outlines._running
        wait_until(lambda: len(running_now) == READERS_OF_OUTLINES)
        processes = list(running_now)
        assert status(server, "/dz/0/10/0_0.jpg") == 200
        start = time.monotonic()
    assert time.monotonic() < start + 10
    for one in asking:
        one.join(10)
    assert all(process.poll() is not None for process in processes)


def suppressed(server: Server, path: str) -> None:
    with suppress(OSError, HTTPException):
        ask(server, path)


BUSY = """
import sys, time
from scmil.cli import app
from scmil.viz.viewer import responses as answers
answers.cut = lambda *_: time.sleep(300)
app(["view", sys.argv[1], sys.argv[2], "--no-open"])
"""


def test_an_interrupt_ends_the_viewer_although_all_its_threads_are_at_work(home: Path) -> None:
    command = [sys.executable, "-c", BUSY, str(home / "sc"), str(home / "slides")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = urlsplit(process.stdout.readline())
        prefix, cookie = address.path, f"scmil={address.query.strip().removeprefix('token=')}"
        sockets = []
        for x in range(4):
            one = HTTPConnection("127.0.0.1", address.port or 0)
            one.request("GET", f"{prefix}dz/0/10/{x}_0.jpg", headers={"Cookie": cookie})
            sockets.append(one)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        try:
            _, said = process.communicate(timeout=15)
        finally:
            process.kill()
        assert (process.returncode, said) == (130, "")
        for one in sockets:
            one.close()


def test_threads_that_are_stopped_do_not_begin_what_waits() -> None:
    workers, begun, go = Workers(1, "test"), Event(), Event()
    first = workers.submit(lambda: begun.set() or go.wait(20))
    second = workers.submit(int)
    assert begun.wait(20)
    assert not workers.stop(0.05)
    assert second.cancelled()
    go.set()
    assert first.result(20)
    with pytest.raises(ZeroDivisionError):
        Workers(1, "test").submit(lambda: 1 // 0).result(20)


# ----------------------------------------------------------------------------------------------------- who is let in


def test_the_secret_becomes_a_cookie_that_no_script_reads(server: Server) -> None:
    answer, page = ask(server, f"/?token={server.token}", Cookie="")
    assert answer.status == 200
    assert b'content="0; url=./"' in page  # a redirection from a file, another site, would come without the cookie
    cookie = answer.headers["set-cookie"]
    assert f"Path=/{server.prefix}/" in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert status(server, "/", Cookie=cookie.partition(";")[0]) == 200


@pytest.mark.parametrize("path", ["/", "/api/slides", "/static/app.js", "/dz/0/10/0_0.jpg", "/nothing"])
def test_without_the_secret_there_is_nothing(server: Server, path: str) -> None:
    assert status(server, path, Cookie="") == 401
    assert status(server, path, Cookie="scmil=guess") == 401
    assert status(server, f"{path}?token=guess", Cookie="") == 401
    assert status(server, path, Cookie=f"other={server.token}") == 401


@pytest.mark.parametrize("path", ["/", "/{other}/", "/{other}/api/slides", "/{prefix}", "//{prefix}/", "/api/slides"])
def test_without_the_prefix_there_is_nothing(server: Server, path: str) -> None:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=20)
    path = path.format(prefix=server.prefix, other="x" * len(server.prefix))
    for query in ("", f"?token={server.token}"):
        connection.request("GET", path + query, headers={"Cookie": server.cookie})
        answer = connection.getresponse()
        assert answer.status == 401
        answer.read()
    connection.close()


def test_many_silent_connections_keep_nobody_out(server: Server) -> None:
    silent = []
    for _ in range(300):
        one = socket.create_connection(("127.0.0.1", server.port), timeout=20)
        one.sendall(b"GET / HTTP/1.1\r\n")  # and the rest never comes
        silent.append(one)
    try:
        for _ in range(5):
            assert status(server, "/dz/0/10/0_0.jpg") == 200
        assert len(server._server.server_state.connections) <= connections.MOST_WAITING
    finally:
        for one in silent:
            one.close()


def test_a_connection_without_the_secret_is_closed_in_time_and_one_with_it_stays(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    protocol = connections.protocol
    monkeypatch.setattr(connections, "protocol", lambda: protocol(seconds=0.3))
    with running(Library([home / "sc"])) as server:
        known = HTTPConnection("127.0.0.1", server.port, timeout=20)
        silent, slow = (socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(2))
        slow.sendall(b"GET / HTTP/1.1\r\nHost: x")
        for _ in range(2):
            known.request("GET", server.path("/api/slides"), headers={"Cookie": server.cookie})
            known.sock.settimeout(20)
            assert known.getresponse().read()
            first = known.sock
            time.sleep(0.6)
        assert known.sock is first  # the same connection all the time
        for one in (silent, slow):
            with suppress(ConnectionResetError):
                assert one.recv(1) == b""
            one.close()
        known.close()


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
    headers = ask(server, path, Cookie="" if "guess" in path else server.cookie)[0].headers
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
    assert library.annotation(1) is None


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


# --------------------------------------------------------------------------------------------------------- the browser


def test_the_browser_is_given_a_private_file_and_not_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []
    seen, arrived = Event(), Event()

    def open_page(address: str) -> bool:
        given.append(address)
        seen.set()
        return True

    monkeypatch.setattr("webbrowser.open", open_page)
    with open_browser("http://127.0.0.1:1/prefix/?token=secret&x", arrived, pytest.fail):
        assert seen.wait(20)
        file = Path(given[0].removeprefix("file://"))
        assert "secret" not in given[0]
        assert "http://127.0.0.1:1/prefix/?token=secret&amp;x" in file.read_text()
        if os.name == "posix":
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        arrived.set()
        wait_until(lambda: not file.parent.exists())


def test_the_private_file_goes_with_the_server_if_nobody_came(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []
    failed: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: given.append(address))
    with open_browser("http://127.0.0.1:1/", Event(), failed.append):
        wait_until(lambda: bool(failed))
        assert Path(given[0].removeprefix("file://")).is_file()
    assert failed == ["no browser was found"]
    assert not Path(given[0].removeprefix("file://")).parent.exists()


def test_a_browser_that_returns_only_when_it_is_closed_is_served(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As lynx does: it is run in this terminal, and asks for the page before it returns."""
    got: list[int] = []
    addresses: list[str] = []

    def open_page(_: str) -> bool:
        address = urlsplit(addresses[0])
        connection = HTTPConnection("127.0.0.1", address.port or 0, timeout=10)
        connection.request("GET", f"{address.path}?{address.query}")
        got.append(connection.getresponse().status)
        connection.close()
        wait_until(lambda: len(servers) == 1)
        servers[0].stop()
        Event().wait(1)
        return True

    servers: list[Server] = []
    run = Server.run
    monkeypatch.setattr(Server, "run", lambda self: servers.append(self) or run(self))
    monkeypatch.setattr("webbrowser.open", open_page)
    thread = Thread(target=serve, args=(Library([home / "sc"]), 0, addresses.append, pytest.fail))
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    assert got == [200]
    assert servers[0].arrived.is_set()


# --------------------------------------------------------------------------------------------------------- the command


def test_the_command_tells_the_address_and_serves(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[tuple[list[str], str]] = []
    opened: list[bytes] = []
    read = Event()

    def run(self: Server) -> None:
        served.append((self._answers.library.names, self.address))
        self._socket.close()
        read.wait(10)

    def open_page(address: str) -> bool:
        opened.append(Path(address.removeprefix("file://")).read_bytes())
        read.set()
        return True

    monkeypatch.setattr(Server, "run", run)
    monkeypatch.setattr("webbrowser.open", open_page)
    words = ["view", str(home / "sc"), str(home / "slides"), "--with", str(home / "plain")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    [(names, address)] = served
    assert names == ["sc", "plain"]
    assert address in result.output
    assert b"%s" % address.encode() in opened[0]
    CliRunner().invoke(app, [*words, "--no-open"])
    assert len(opened) == 1


def test_the_command_refuses_three_models(home: Path) -> None:
    result = CliRunner().invoke(app, ["view", str(home), "--with", str(home / "sc"), "--no-open"])
    assert isinstance(result.exception, OptionError)
    assert "two fit on a screen" in str(result.exception)
