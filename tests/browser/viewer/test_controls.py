"""Controls, keys and files of the page of the viewer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="starlette is not installed")
pytest.importorskip("openslide", reason="openslide is not installed")
from PIL import Image
from viewer_case import ATOMS, scored
from viewer_page import (
    bounds,
    click_tile,
    save_screenshot,
    wait_for_page,
    wait_for_slide,
    wait_until_still,
)


def test_keys_change_the_slide_zoom_and_move(page: Any) -> None:
    page.keyboard.press("ArrowDown")
    wait_for_page(page, "two")
    assert page.locator("#slides [aria-selected=true]").inner_text().startswith("two")
    page.keyboard.press("ArrowUp")
    wait_for_page(page, "one")
    whole = bounds(page, 0)
    page.keyboard.press("+")
    wait_until_still(page)
    assert bounds(page, 0)[2] == pytest.approx(whole[2] / 1.5, rel=0.01)
    page.keyboard.press("Shift+ArrowRight")
    wait_until_still(page)
    assert bounds(page, 0)[0] > whole[0]
    page.keyboard.press("0")
    wait_until_still(page)
    assert bounds(page, 0) == pytest.approx(whole, abs=1e-3)
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#help").is_visible()


def test_all_controls_can_be_reached_by_keyboard_and_show_the_focus(page: Any) -> None:
    seen = []
    for _ in range(22):
        page.keyboard.press("Tab")
        seen.append(
            page.evaluate("() => document.activeElement.id || document.activeElement.className")
        )
    for slide_id in (
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
        assert slide_id in seen
    page.locator("#png").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_scores_and_scales_can_be_selected(page: Any) -> None:
    names = page.locator("#kind option").all_inner_texts()
    assert len(names) == 9  # attention, ratio, probability and evidence of two classes, λ, …
    page.locator("#kind").select_option("probability:tumour")
    page.wait_for_function("() => scmil.panes[0].scale?.kind === 'probability:tumour'")
    page.locator("#scale").select_option("value")
    page.wait_for_function("() => scmil.panes[0].scale?.colourBy === 'value'")
    assert page.evaluate("() => scmil.panes[0].scale.ticks.map(([, value]) => value)") == [
        0,
        0.5,
        1,
    ]
    page.locator("#kind").select_option("atom")
    page.locator("#atom").fill("99")
    page.keyboard.press("Enter")
    page.wait_for_function(f"() => scmil.panes[0].scale?.kind === 'atom:{ATOMS - 1}'")
    page.locator("h1").click()


def test_only_slides_that_the_models_have_not_seen_are_counted(page: Any) -> None:
    counts = [
        f"{name}: {int(scored('two', sparse).predicted == 1)} of 1 right"
        for name, sparse in (("sc", True), ("plain", False))
    ]
    assert page.locator("#count .line").all_inner_texts() == [
        "2 of 2 slides",
        "unseen slides:",
        *counts,
        "not counted (train, valid): 1",
    ]


def test_a_filter_shortens_the_list(page: Any) -> None:
    page.keyboard.press("/")
    page.keyboard.type("test")
    assert page.locator("#slides li:visible").count() == 1
    assert page.locator("#count").inner_text().startswith("1 of 2 slides")
    page.keyboard.press("ArrowDown")
    wait_for_page(page, "two")


def test_the_gallery_has_the_highest_and_lowest_tiles(page: Any) -> None:
    page.keyboard.press("g")
    order = np.argsort(scored("one", True).attention)
    rows = page.locator("#gallery .row")
    assert rows.count() == 4
    assert rows.nth(0).locator(".thumb").first.get_attribute("data-tile") == str(order[-1])
    assert rows.nth(1).locator(".thumb").first.get_attribute("data-tile") == str(order[0])
    rows.nth(0).locator(".thumb").first.click()
    page.wait_for_selector("#panel h2")
    assert page.locator("#panel h2").inner_text() == f"Tile {order[-1]}"
    save_screenshot(page, "viewer_gallery")


def test_the_view_can_be_saved_as_an_image(page: Any, tmp_path: Path) -> None:
    wait_for_slide(page)
    with page.expect_download() as download:
        page.locator("#png").click()
    assert download.value.suggested_filename == "one.png"
    download.value.save_as(tmp_path / "one.png")
    picture = np.asarray(Image.open(tmp_path / "one.png").convert("RGB"))
    assert picture.shape[1] > 1000
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 2000


def test_the_saved_layer_has_the_visible_tiles_only(page: Any, tmp_path: Path) -> None:
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


def test_colours_can_be_dark_or_light(page: Any) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(colour)
    page.keyboard.press("d")
    assert page.evaluate(colour) != light
    page.keyboard.press("d")
    assert page.evaluate(colour) == light
    page.emulate_media(color_scheme="dark")


@pytest.mark.parametrize("size", [(1280, 720), (1024, 700), (1920, 1080)])
def test_the_page_fits_the_screen(page: Any, size: tuple[int, int]) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.wait_for_function(
        """width => innerWidth === width && scmil.panes.every(
            ({ viewport, marks }) => viewport.getContainerSize().x === marks.clientWidth)""",
        arg=size[0],
    )
    wait_until_still(page)
    click_tile(page, 14)
    page.keyboard.press("g")
    assert page.evaluate(
        "[document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
    ) == list(size)
    box = page.locator(".stage").first.bounding_box()
    assert box["height"] > 180
    assert box["width"] > 200
