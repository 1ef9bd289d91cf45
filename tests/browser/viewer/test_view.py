"""What the page of the viewer shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="starlette is not installed")
pytest.importorskip("openslide", reason="openslide is not installed")
from PIL import Image
from viewer_case import ATOMS, PLACES, SIDE, running, scored, write_model
from viewer_page import (
    bounds,
    click_tile,
    drawn,
    save_screenshot,
    wait_for_page,
    wait_for_slide,
    wait_until_still,
)

from scmil.viz.viewer import Library


def test_the_slide_is_shown_with_heatmap_and_label(page: Any) -> None:
    wait_for_slide(page)
    assert drawn(page, "canvas.layer")["colours"] > 20
    assert page.locator("h1").inner_text() == "one"
    assert "label: tumour" in page.locator("#facts").inner_text()
    assert "µm" in page.locator("canvas.marks").first.get_attribute("aria-label")
    assert np.asarray(Image.open(save_screenshot(page, "viewer_two_models"))).std() > 20


def test_tiles_have_the_colours_of_their_scores(page: Any) -> None:
    attention = scored("one", True).attention
    highest, lowest = int(attention.argmax()), int(attention.argmin())
    colours = page.evaluate(
        """(places) => places.map(([x, y]) => {
            const pane = scmil.panes[0], [left, top] = pane.projection().toScreen(x, y);
            return [...pane.layer.getContext("2d").getImageData(left, top, 1, 1).data];
        })""",
        [[PLACES[tile][0] + SIDE / 2, PLACES[tile][1] + SIDE / 2] for tile in (highest, lowest)]
        + [[60, 60]],
    )
    assert colours == [
        [255, 230, 50, 255],
        [45, 20, 80, 255],
        [0, 0, 0, 0],
    ]  # the ends of the scale; no tile, no colour


def test_the_heatmap_can_be_hidden_faded_and_limited(page: Any) -> None:
    before = drawn(page, "canvas.layer")["drawn"]
    page.keyboard.press("h")
    assert drawn(page, "canvas.layer")["drawn"] == 0
    page.locator("#heat").check()
    assert drawn(page, "canvas.layer")["drawn"] == before
    page.keyboard.press("[")
    assert float(
        page.locator("canvas.layer").first.evaluate("layer => layer.style.opacity")
    ) == pytest.approx(0.45)
    page.locator("#threshold").fill("50")
    assert drawn(page, "canvas.layer")["drawn"] == pytest.approx(before / 2, rel=0.1)


def test_annotations_can_be_hidden(page: Any) -> None:
    red = """() => {
        const canvas = scmil.panes[0].marks, context = canvas.getContext("2d");
        const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
        let red = 0;
        for (let i = 0; i < data.length; i += 4) {
            if (data[i] > 200 && data[i + 1] < 60 && data[i + 3] > 200) red++;
        }
        return red;
    }"""
    assert page.evaluate(red) > 100
    page.keyboard.press("t")
    assert page.evaluate(red) == 0
    assert not page.locator("#annotations").is_checked()


def test_a_click_shows_the_tile_its_scores_and_its_code(page: Any) -> None:
    click_tile(page, 14)
    codes = scored("one", True).codes
    assert codes is not None
    atoms, values = codes.row(14)
    assert f"Code: {len(atoms)} of {ATOMS} atoms used" in page.locator("#panel").inner_text()
    strongest = page.locator(".bar").first
    assert strongest.get_attribute("data-atom") == str(atoms[np.abs(values).argmax()])
    page.wait_for_function("() => document.querySelector('#panel img.tile').naturalWidth === 128")
    assert page.locator("#panel thead th").all_inner_texts() == ["score", "sc", "plain"]
    page.keyboard.press("Escape")
    assert not page.locator("#panel").is_visible()


def test_a_click_on_an_atom_shows_its_atlas_row_and_its_tiles(page: Any) -> None:
    click_tile(page, 14)
    bar = page.locator(".bar").first
    atom = int(bar.get_attribute("data-atom"))
    bar.click()
    page.wait_for_selector("#panel .atlas img")
    assert f"Atom {atom} responds to nuclei." in page.locator("#panel").inner_text()
    users = np.count_nonzero(scored("one", True).of(f"atom:{atom}"))
    assert page.evaluate("() => scmil.panes[0].shown") == users
    assert f"{users} tiles of this slide use it" in page.locator("#panel").inner_text()
    assert "has no atom" in page.locator("figcaption").nth(1).inner_text()
    save_screenshot(page, "viewer_atom")


def test_tiles_of_a_model_without_sparse_coding_have_no_code(page: Any) -> None:
    click_tile(page, 3, pane=1)
    assert "no sparse coding" in page.locator("#panel").inner_text()


def test_both_models_move_together(page: Any) -> None:
    wait_for_slide(page)
    for pane, wheel in ((0, -600), (1, -300)):
        box = page.locator(".stage").nth(pane).bounding_box()
        page.mouse.move(box["x"] + box["width"] / 3, box["y"] + box["height"] / 3)
        before = bounds(page, 0)
        page.mouse.wheel(0, wheel)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=5)
        page.mouse.up()
        wait_until_still(page)
        assert bounds(page, 0) != before
        assert bounds(page, 0) == pytest.approx(bounds(page, 1), abs=1e-6)


def test_without_a_slide_file_the_tiles_are_still_shown(browser: Any, home: Path) -> None:
    with running(Library([home / "sc"])) as server:
        page = browser.new_page(viewport={"width": 1280, "height": 720})
        page.set_default_timeout(60_000)
        page.goto(server.address)
        wait_for_page(page, "one")
        assert "no slide file" in page.locator("#facts").inner_text()
        assert drawn(page, "canvas.layer")["colours"] > 20
        page.close()


def test_evidence_is_orange_above_zero_and_blue_below(page: Any) -> None:
    page.locator("#kind").select_option("evidence:tumour")
    page.wait_for_function("() => scmil.panes[0].scale?.kind === 'evidence:tumour'")
    values = scored("one", True).of("evidence:tumour")
    shares = page.evaluate("() => [...scmil.panes[0].scale.shares]")
    for tile, value in enumerate(values):
        assert (shares[tile] > 0.5) == (value > 0)
    low, middle, high = page.evaluate("() => scmil.panes[0].scale.ticks.map(([, value]) => value)")
    assert (low, middle) == (-high, 0)
    ramp = page.evaluate("() => scmil.panes[0].ramp()")
    assert (ramp[0], ramp[-1]) == ("rgb(20,70,140)", "rgb(165,75,0)")
    assert "completeness error" in page.locator("figcaption").first.inner_text()
    assert page.locator("#scale").is_disabled()


def test_the_spread_is_coloured_by_value_from_zero(
    browser: Any, home: Path, tmp_path: Path
) -> None:
    fold = write_model(tmp_path / "fold", ["one", "two"], sparse=False)
    library = Library([home / "sc"], home / "slides", also=[home / "plain", fold])
    with running(library) as server:
        page = browser.new_page(viewport={"width": 1280, "height": 720})
        page.set_default_timeout(60_000)
        page.goto(server.address)
        wait_for_page(page, "one")
        page.locator("#kind").select_option("spread:attention")
        page.wait_for_function("() => scmil.panes[0].scale?.kind === 'spread:attention'")
        values = library.values(0, 0, "spread:attention")
        shares = page.evaluate("() => [...scmil.panes[0].scale.shares]")
        assert shares == pytest.approx((values / values.max()).tolist(), abs=1e-5)
        assert page.evaluate("() => scmil.panes[0].scale.ticks[0][1]") == 0
        caption = page.locator("figcaption").first.inner_text()
        assert "standard deviation over 3 models" in caption
        assert page.locator("#scale").is_disabled()
        assert page.locator("#scale").input_value() == "value"
        page.locator("#kind").select_option("attention")
        page.wait_for_function("() => scmil.panes[0].scale?.kind === 'attention'")
        assert page.locator("#scale").input_value() == "rank"
        page.close()
