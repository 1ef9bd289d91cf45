"""The report in a real browser: it sorts, switches metrics, fits a phone, and asks the network for nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from synthetic_run import write_run

from scmil.report import write_report

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
OPTIONS += ["--disable-background-networking", "--disable-component-update"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    [path] = write_report(write_run(tmp_path_factory.mktemp("run"), bags=40, repeats=2), ["html"])
    return path


@pytest.fixture
def page(browser: Any, report: Path) -> Iterator[Any]:
    """The page, with what it said and asked for; whatever the test did, it must have said and asked for nothing."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(f"dialog: {dialog.message}"))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(report.as_uri())
    yield page
    page.close()
    assert said == []
    assert [url for url in asked if url not in (report.as_uri(), "data:,")] == []


def column(page: Any, table: str, number: int) -> list[str]:
    return page.locator(f"[aria-label='{table}'] tbody tr > :nth-child({number})").all_inner_texts()


def numbers(page: Any) -> list[float]:
    return [float(text.split()[0]) for text in column(page, "Results by protocol last", 2)]


def test_a_click_sorts_and_a_second_one_turns_the_order(page: Any) -> None:
    heading = page.locator("[aria-label='Results by protocol last'] th").nth(1)
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    assert numbers(page) == sorted(numbers(page), reverse=True)
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "ascending"
    assert numbers(page) == sorted(numbers(page))


def test_the_keyboard_sorts_by_words_and_only_one_heading_is_marked(page: Any) -> None:
    headings = page.locator("[aria-label='Results by protocol last'] th button")
    headings.nth(1).click()
    headings.nth(0).focus()
    page.keyboard.press("Enter")
    names = column(page, "Results by protocol last", 1)
    assert names == page.evaluate("names => [...names].sort((a, b) => a.localeCompare(b))", names)
    assert page.locator("[aria-label='Results by protocol last'] th[aria-sort]").count() == 1


def test_a_missing_number_stays_at_the_end_both_ways(page: Any) -> None:
    button = page.locator("[aria-label='Results by protocol last'] th button").nth(2)
    for _ in range(2):
        button.click()
        assert column(page, "Results by protocol last", 3)[-1] == "–"


def test_another_metric_is_shown_and_sorted_by(page: Any) -> None:
    before = numbers(page)
    page.locator("select").select_option("brier")
    after = numbers(page)
    assert after != before
    assert "Brier score, smaller is better" in page.locator("#results").inner_text()
    assert "0.969" not in page.locator("#results").inner_text()  # published numbers are accuracies
    page.locator("[aria-label='Results by protocol last'] th button").nth(1).click()
    assert numbers(page) == sorted(after, reverse=True)


def test_settings_unfold(page: Any) -> None:
    assert not page.locator("pre").is_visible()
    page.locator("summary", has_text="as JSON").click()
    assert page.locator("pre").is_visible()


@pytest.mark.parametrize("width", [390, 800, 1280])
def test_only_tables_scroll_sideways(page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_dark_rooms_get_a_dark_page(page: Any) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(colour)
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(colour) != light


def test_labels_of_the_plots_do_not_overlap(page: Any) -> None:
    overlaps = page.evaluate("""() => [...document.querySelectorAll(".panels svg")].flatMap((svg) => {
        const boxes = [...svg.querySelectorAll("text")].map((text) => [text.textContent, text.getBoundingClientRect()]);
        return boxes.flatMap(([a, p], i) => boxes.slice(i + 1).filter(([, q]) =>
            p.left < q.right && q.left < p.right && p.top + 2 < q.bottom && q.top + 2 < p.bottom).map(([b]) => [a, b]));
    })""")
    assert overlaps == []
