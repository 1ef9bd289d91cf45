"""The viewer in a real browser: it shows the slide, its layer and its tiles, obeys the keyboard, and asks nobody else."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("starlette", reason="starlette is not installed")
pytest.importorskip("openslide", reason="openslide is not installed")
pytest.importorskip("playwright", reason="playwright is not installed")

from PIL import Image
from playwright import sync_api
from viewer_case import ATOMS, PLACES, SIDE, running, scored, write_case

from scmil.viz.viewer import Library, Server
from scmil.viewer.browser import redirect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
OPTIONS += ["--disable-background-networking", "--disable-component-update"]
KEPT = Path(__file__).parents[2] / "build" / "screenshots"  # of the last run, to look at
HARMLESS = (
    "willReadFrequently",  # an advice to the tests, which read pixels
    "loaded before reset",  # OpenSeadragon drops tiles of a slide that was left before they came
)
# The share of a canvas that is not one colour, and that is drawn on at all.
DRAWN = """(canvas) => {
    const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data, colours = new Set();
    let drawn = 0;
    for (let i = 0; i < pixels.length; i += 4) {
        if (pixels[i + 3]) { drawn++; colours.add(pixels[i] << 16 | pixels[i + 1] << 8 | pixels[i + 2]); }
    }
    return { drawn: drawn / (pixels.length / 4), colours: colours.size };
}"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_case(tmp_path_factory.mktemp("viewer"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Server]:
    with running(Library([home / "sc", home / "plain"], home / "slides")) as server:
        yield server


@pytest.fixture(scope="module")
def tab(browser: Any) -> Iterator[Any]:
    page = browser.new_page()
    page.set_default_timeout(60_000)
    yield page
    page.close()


@pytest.fixture
def page(tab: Any, server: Server) -> Iterator[Any]:
    """The page with two models, fresh; whatever a test did, nothing was complained of, and nobody else was asked."""
    said: list[str] = []
    asked: list[str] = []

    def hear(message: Any) -> None:
        if not any(harmless in message.text for harmless in HARMLESS):
            said.append(message.text)

    heard = {
        "console": hear,
        "pageerror": lambda error: said.append(str(error)),
        "response": lambda answer: said.append(answer.url) if answer.status >= 400 else None,
        "request": lambda request: asked.append(request.url),
    }
    for event, listener in heard.items():
        tab.on(event, listener)
    tab.set_viewport_size({"width": 1280, "height": 720})
    tab.emulate_media(color_scheme="light")
    tab.goto(server.address)
    ready(tab, "one")
    yield tab
    for event, listener in heard.items():
        tab.remove_listener(event, listener)
    assert said == []
    own = f"http://127.0.0.1:{server.port}/"
    assert [url for url in asked if not url.startswith((own, "data:", f"blob:{own}"))] == []
    assert [url for url in asked if url.startswith(own)]


def ready(page: Any, slide: str) -> None:
    page.wait_for_selector(f"body[data-ready='{slide}']")


def drawn(page: Any, canvas: str, pane: int = 0) -> dict[str, float]:
    return page.locator(f".pane:nth-child({pane + 1}) {canvas}").evaluate(DRAWN)


def slide_is_drawn(page: Any) -> None:
    page.wait_for_function(f"() => ({DRAWN})(scmil.panes[0].zoom.drawer.canvas).colours > 1000")


def click_tile(page: Any, tile: int, pane: int = 0) -> None:
    x, y = PLACES[tile]
    place = page.evaluate(
        """([pane, x, y]) => {
            const [left, top] = scmil.panes[pane].placing().place(x, y);
            const box = scmil.panes[pane].marks.getBoundingClientRect();
            return [left + box.left, top + box.top];
        }""",
        [pane, x + SIDE / 2, y + SIDE / 2],
    )
    page.mouse.click(*place)
    page.wait_for_function(f"() => document.querySelector('#panel h2')?.textContent === 'Tile {tile}'")


def bounds(page: Any, pane: int) -> list[float]:
    return page.evaluate(
        "pane => { const b = scmil.panes[pane].viewport.getBounds(true); return [b.x, b.y, b.width, b.height]; }", pane
    )


def at_rest(page: Any) -> None:
    """Until every pane is where it wants to be."""
    page.wait_for_function(
        """() => scmil.panes.every(({ viewport }) => {
            const [now, then] = [viewport.getBounds(true), viewport.getBounds(false)];
            return ["x", "y", "width", "height"].every((side) => Math.abs(now[side] - then[side]) < 1e-7);
        })"""
    )
    page.evaluate("() => new Promise((done) => setTimeout(done, 150))")  # the last frame of whoever follows


def keep(page: Any, name: str) -> Path:
    KEPT.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=KEPT / f"{name}.png")
    return KEPT / f"{name}.png"


def test_the_slide_appears_with_its_layer_and_the_truth(page: Any) -> None:
    slide_is_drawn(page)
    assert drawn(page, "canvas.layer")["colours"] > 20
    assert page.locator("h1").inner_text() == "one"
    assert "label: tumour" in page.locator("#facts").inner_text()
    assert "µm" in page.locator("canvas.marks").first.get_attribute("aria-label")
    assert np.asarray(Image.open(keep(page, "viewer_two_models"))).std() > 20


def test_the_layer_is_where_its_tiles_are_and_has_their_colours(page: Any) -> None:
    attention = scored("one", True).attention
    highest, lowest = int(attention.argmax()), int(attention.argmin())
    colours = page.evaluate(
        """(places) => places.map(([x, y]) => {
            const pane = scmil.panes[0], [left, top] = pane.placing().place(x, y);
            return [...pane.layer.getContext("2d").getImageData(left, top, 1, 1).data];
        })""",
        [[PLACES[tile][0] + SIDE / 2, PLACES[tile][1] + SIDE / 2] for tile in (highest, lowest)] + [[60, 60]],
    )
    assert colours == [
        [255, 230, 50, 255],
        [45, 20, 80, 255],
        [0, 0, 0, 0],
    ]  # the ends of the scale; no tile, no colour


def test_the_layer_toggles_fades_and_begins_at_a_threshold(page: Any) -> None:
    before = drawn(page, "canvas.layer")["drawn"]
    page.keyboard.press("h")
    assert drawn(page, "canvas.layer")["drawn"] == 0
    page.locator("#heat").check()
    assert drawn(page, "canvas.layer")["drawn"] == before
    page.keyboard.press("[")
    assert float(page.locator("canvas.layer").first.evaluate("layer => layer.style.opacity")) == pytest.approx(0.45)
    page.locator("#threshold").fill("50")
    assert drawn(page, "canvas.layer")["drawn"] == pytest.approx(before / 2, rel=0.1)


def test_the_truth_toggles(page: Any) -> None:
    red = """() => {
        const canvas = scmil.panes[0].marks, context = canvas.getContext("2d");
        const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
        let red = 0;
        for (let i = 0; i < data.length; i += 4) if (data[i] > 200 && data[i + 1] < 60 && data[i + 3] > 200) red++;
        return red;
    }"""
    assert page.evaluate(red) > 100
    page.keyboard.press("t")
    assert page.evaluate(red) == 0
    assert not page.locator("#truth").is_checked()


def test_a_click_shows_the_tile_its_scores_and_its_code(page: Any) -> None:
    click_tile(page, 14)
    codes = scored("one", True).codes
    assert codes is not None
    atoms, values = codes.row(14)
    assert f"Code: {len(atoms)} of {ATOMS} atoms" in page.locator("#panel").inner_text()
    strongest = page.locator(".bar").first
    assert strongest.get_attribute("data-atom") == str(atoms[np.abs(values).argmax()])
    page.wait_for_function("() => document.querySelector('#panel img.tile').naturalWidth === 128")
    assert page.locator("#panel thead th").all_inner_texts() == ["score", "sc", "plain"]
    page.keyboard.press("Escape")
    assert not page.locator("#panel").is_visible()


def test_a_click_on_an_atom_shows_its_row_and_lights_its_tiles(page: Any) -> None:
    click_tile(page, 14)
    bar = page.locator(".bar").first
    atom = int(bar.get_attribute("data-atom"))
    bar.click()
    page.wait_for_selector("#panel .atlas img")
    assert f"Atom {atom} likes nuclei." in page.locator("#panel").inner_text()
    users = np.count_nonzero(scored("one", True).of(f"atom:{atom}"))
    assert page.evaluate("() => scmil.panes[0].shown") == users
    assert f"{users} tiles of this slide use it" in page.locator("#panel").inner_text()
    assert "has no atom" in page.locator("figcaption").nth(1).inner_text()
    keep(page, "viewer_atom")


def test_a_model_without_sparse_coding_says_that_it_has_no_code(page: Any) -> None:
    click_tile(page, 3, pane=1)
    assert "no sparse coding" in page.locator("#panel").inner_text()


def test_both_models_move_together(page: Any) -> None:
    slide_is_drawn(page)
    for pane, wheel in ((0, -600), (1, -300)):
        box = page.locator(".stage").nth(pane).bounding_box()
        page.mouse.move(box["x"] + box["width"] / 3, box["y"] + box["height"] / 3)
        before = bounds(page, 0)
        page.mouse.wheel(0, wheel)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=5)
        page.mouse.up()
        at_rest(page)
        assert bounds(page, 0) != before
        assert bounds(page, 0) == pytest.approx(bounds(page, 1), abs=1e-6)


def test_the_keyboard_goes_through_slides_zooms_and_moves(page: Any) -> None:
    page.keyboard.press("ArrowDown")
    ready(page, "two")
    assert page.locator("#slides [aria-selected=true]").inner_text().startswith("two")
    page.keyboard.press("ArrowUp")
    ready(page, "one")
    whole = bounds(page, 0)
    page.keyboard.press("+")
    at_rest(page)
    assert bounds(page, 0)[2] == pytest.approx(whole[2] / 1.5, rel=0.01)
    page.keyboard.press("Shift+ArrowRight")
    at_rest(page)
    assert bounds(page, 0)[0] > whole[0]
    page.keyboard.press("0")
    at_rest(page)
    assert bounds(page, 0) == pytest.approx(whole, abs=1e-3)
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#help").is_visible()


def test_the_keyboard_reaches_everything_and_shows_where_it_is(page: Any) -> None:
    seen = []
    for _ in range(22):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("() => document.activeElement.id || document.activeElement.className"))
    for id in (
        "filter",
        "slides",
        "gallery-button",
        "png",
        "geojson",
        "theme",
        "help-button",
        "heat",
        "kind",
        "scale",
        "opacity",
    ):
        assert id in seen
    page.locator("#png").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_scores_change_by_hand_and_by_key(page: Any) -> None:
    names = page.locator("#kind option").all_inner_texts()
    assert len(names) == 7  # attention, ratio, two classes, λ, sparsity, atom …
    page.locator("#kind").select_option("probability:tumour")
    page.wait_for_function("() => scmil.panes[0].scale?.kind === 'probability:tumour'")
    page.locator("#scale").select_option("value")
    page.wait_for_function("() => scmil.panes[0].scale?.how === 'value'")
    assert page.evaluate("() => scmil.panes[0].scale.ticks.map(([, value]) => value)") == [0, 0.5, 1]
    page.locator("#kind").select_option("atom")
    page.locator("#atom").fill("99")
    page.keyboard.press("Enter")
    page.wait_for_function(f"() => scmil.panes[0].scale?.kind === 'atom:{ATOMS - 1}'")
    page.locator("h1").click()


def test_a_filter_shortens_the_list(page: Any) -> None:
    page.keyboard.press("/")
    page.keyboard.type("test")
    assert page.locator("#slides li:visible").count() == 1
    assert page.locator("#count").inner_text().startswith("1 of 2 slides")
    page.keyboard.press("ArrowDown")
    ready(page, "two")


def test_the_gallery_has_the_highest_and_lowest_tiles_and_leads_to_them(page: Any) -> None:
    page.keyboard.press("g")
    order = np.argsort(scored("one", True).attention)
    rows = page.locator("#gallery .row")
    assert rows.count() == 4
    assert rows.nth(0).locator(".thumb").first.get_attribute("data-tile") == str(order[-1])
    assert rows.nth(1).locator(".thumb").first.get_attribute("data-tile") == str(order[0])
    rows.nth(0).locator(".thumb").first.click()
    page.wait_for_selector("#panel h2")
    assert page.locator("#panel h2").inner_text() == f"Tile {order[-1]}"
    keep(page, "viewer_gallery")


def test_the_view_is_saved_as_a_picture(page: Any, tmp_path: Path) -> None:
    slide_is_drawn(page)
    with page.expect_download() as download:
        page.locator("#png").click()
    assert download.value.suggested_filename == "one.png"
    download.value.save_as(tmp_path / "one.png")
    picture = np.asarray(Image.open(tmp_path / "one.png").convert("RGB"))
    assert picture.shape[1] > 1000
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 2000


def test_the_layer_is_saved_as_geojson_without_the_tiles_that_are_hidden(page: Any, tmp_path: Path) -> None:
    page.locator("#threshold").fill("90")
    downloads: list[Any] = []
    page.on("download", lambda download: downloads.append(download))
    page.locator("#geojson").click()
    page.wait_for_timeout(100)
    while len(downloads) < 2:
        page.wait_for_timeout(50)
    first = next(one for one in downloads if " sc " in one.suggested_filename)
    first.save_as(tmp_path / "layer.geojson")
    assert len(json.loads((tmp_path / "layer.geojson").read_text())["features"]) == page.evaluate(
        "scmil.panes[0].shown"
    )


def test_dark_and_light(page: Any) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(colour)
    page.keyboard.press("d")
    assert page.evaluate(colour) != light
    page.keyboard.press("d")
    assert page.evaluate(colour) == light
    page.emulate_media(color_scheme="dark")


@pytest.mark.parametrize("size", [(1280, 720), (1024, 700), (1920, 1080)])
def test_it_fits_the_screen(page: Any, size: tuple[int, int]) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.wait_for_function(
        "wide => innerWidth === wide && scmil.panes.every((p) => p.viewport.getContainerSize().x === p.marks.clientWidth)",
        arg=size[0],
    )
    at_rest(page)
    click_tile(page, 14)
    page.keyboard.press("g")
    assert page.evaluate("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]") == list(size)
    box = page.locator(".stage").first.bounding_box()
    assert box["height"] > 180
    assert box["width"] > 200


def test_without_a_slide_file_the_tiles_are_still_shown(browser: Any, home: Path) -> None:
    with running(Library([home / "sc"])) as server:
        page = browser.new_page(viewport={"width": 1280, "height": 720})
        page.set_default_timeout(60_000)
        page.goto(server.address)
        ready(page, "one")
        assert "no file of this slide" in page.locator("#facts").inner_text()
        assert drawn(page, "canvas.layer")["colours"] > 20
        page.close()


# ---------------------------------------------------------------------------------------- the right tissue, and the way in


def pictures_shown(context: Any, server: Server) -> dict[str, bytes]:
    """What the browser has for every picture that the page asks for, from its cache or not, by the end of its address."""
    page = context.new_page()
    page.set_default_timeout(60_000)
    answers: list[Any] = []
    page.on("response", lambda answer: answers.append(answer))
    page.goto(server.address)
    ready(page, "one")
    slide_is_drawn(page)
    click_tile(page, 14)
    page.locator(".bar").first.click()
    page.wait_for_selector("#panel .atlas img")
    page.wait_for_function(
        "() => [...document.querySelectorAll('#panel img')].every((one) => one.complete && one.naturalWidth)"
    )
    kept = {
        re.sub(r"^.*?/(?=dz/|api/)", "/", answer.url): answer.body()
        for answer in answers
        if re.search(r"/dz/|/tile/|/atlas/\d+/\d+", answer.url)
    }
    page.close()
    return kept


def test_a_browser_shows_no_tissue_of_an_earlier_start_under_the_name_of_this(
    browser: Any, home: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(home / "slides", tmp_path / "slides"))
    shutil.copy(home / "slides" / "two.svs", other / "one.svs")
    context = browser.new_context(viewport={"width": 1280, "height": 720})
    with running(Library([home / "sc"], home / "slides")) as server:
        first, port = pictures_shown(context, server), server.port
    with running(Library([home / "sc"], other), port) as server:
        second = pictures_shown(context, server)
        answers = server._answers
        for address, shown in second.items():
            if match := re.match(r"/dz/0/(\d+)/(\d+)_(\d+)\.jpg", address):
                assert shown == answers.pyramid(0, *map(int, match.groups()))
            elif match := re.match(r"/api/slide/0/tile/(\d+)", address):
                assert shown == answers.tile(0, 0, int(match[1]))
    assert {kind for kind in ("/dz/", "/tile/", "/atlas/") if any(kind in address for address in second)} == {
        "/dz/",
        "/tile/",
        "/atlas/",
    }
    for address in first.keys() & second.keys():
        assert first[address] != second[address], address
    context.close()


def test_the_private_file_leads_to_the_page(browser: Any, home: Path, tmp_path: Path) -> None:
    with running(Library([home / "sc"], home / "slides")) as server:
        file = redirect(tmp_path / "open.html", server.address)
        page = browser.new_page()
        page.set_default_timeout(60_000)
        page.goto(file.as_uri())
        ready(page, "one")
        assert page.url == f"http://127.0.0.1:{server.port}/{server.prefix}/#one"  # without the token
        page.reload()
        ready(page, "one")
        page.close()


def test_the_cookie_is_not_sent_to_another_server_of_this_computer(browser: Any, home: Path) -> None:
    class Other(BaseHTTPRequestHandler):
        cookies: ClassVar[list[str | None]] = []

        def do_GET(self) -> None:
            self.cookies.append(self.headers["Cookie"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    with running(Library([home / "sc"])) as server, HTTPServer(("127.0.0.1", 0), Other) as other:
        thread = Thread(target=other.serve_forever)
        thread.start()
        context = browser.new_context()
        page = context.new_page()
        page.goto(server.address)
        ready(page, "one")
        page.goto(f"http://127.0.0.1:{other.server_port}/")
        context.close()
        other.shutdown()
        thread.join()
    assert Other.cookies
    assert set(Other.cookies) == {None}
