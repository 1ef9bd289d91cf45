"""The report in a browser: sorting, metrics, narrow screens, and no network requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from synthetic_run import write_run

from scmil.report import write_report


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = write_run(tmp_path_factory.mktemp("run"), bags=40, repeats=2)
    (run / "pictures").mkdir()
    Image.new("RGB", (1000, 400)).save(run / "pictures" / "a.png")
    pictures = [{"file": "a.png", "caption": name} for name in ("left", "right")]
    rows = [{"words": "", "half": True, "pictures": pictures}]
    (run / "pictures" / "pictures.json").write_text(json.dumps(rows))
    [path] = write_report(run, ["html"])
    return path


@pytest.fixture
def page(browser: Any, report: Path) -> Iterator[Any]:
    """The page; at the end there must be no console message and no request."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    messages: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("dialog", lambda dialog: messages.append(f"dialog: {dialog.message}"))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(report.as_uri())
    yield page
    page.close()
    assert messages == []
    assert [url for url in requests if url != report.as_uri() and not url.startswith("data:")] == []


def column(page: Any, table: str, number: int) -> list[str]:
    return page.locator(f"[aria-label='{table}'] tbody tr > :nth-child({number})").all_inner_texts()


def numbers(page: Any) -> list[float]:
    return [
        float(text.split()[0]) for text in column(page, "Results under selection protocol last", 2)
    ]


def test_a_click_sorts_and_a_second_one_reverses_the_order(page: Any) -> None:
    heading = page.locator("[aria-label='Results under selection protocol last'] th").nth(1)
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    assert numbers(page) == sorted(numbers(page), reverse=True)
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "ascending"
    assert numbers(page) == sorted(numbers(page))


def test_the_keyboard_sorts_and_only_one_heading_is_marked(page: Any) -> None:
    headings = page.locator("[aria-label='Results under selection protocol last'] th button")
    headings.nth(1).click()
    headings.nth(0).focus()
    page.keyboard.press("Enter")
    names = column(page, "Results under selection protocol last", 1)
    assert names == page.evaluate("names => [...names].sort((a, b) => a.localeCompare(b))", names)
    assert (
        page.locator("[aria-label='Results under selection protocol last'] th[aria-sort]").count()
        == 1
    )


def test_missing_numbers_are_last_in_both_orders(page: Any) -> None:
    button = page.locator("[aria-label='Results under selection protocol last'] th button").nth(2)
    for _ in range(2):
        button.click()
        assert column(page, "Results under selection protocol last", 3)[-1] == "–"


def test_another_metric_can_be_shown_and_sorted(page: Any) -> None:
    before = numbers(page)
    page.locator("select").select_option("brier")
    after = numbers(page)
    assert after != before
    assert "Brier score, smaller is better" in page.locator("#results").inner_text()
    assert "0.969" not in page.locator("#results").inner_text()  # published numbers are accuracies
    page.locator("[aria-label='Results under selection protocol last'] th button").nth(1).click()
    assert numbers(page) == sorted(after, reverse=True)


def test_a_picture_can_be_enlarged(page: Any) -> None:
    width = "image => image.getBoundingClientRect().width"
    image = page.locator("#pictures img").first
    assert image.evaluate(width) < 700
    image.click()
    assert image.evaluate(width) == 1000
    image.press("Enter")
    assert image.evaluate(width) < 700


def test_settings_can_be_unfolded(page: Any) -> None:
    assert not page.locator("pre").is_visible()
    page.locator("summary", has_text="as JSON").click()
    assert page.locator("pre").is_visible()


@pytest.mark.parametrize("width", [390, 800, 1280])
def test_only_tables_scroll_sideways(page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_page_is_dark_if_the_system_is(page: Any) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(colour)
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(colour) != light


def test_labels_of_the_plots_do_not_overlap(page: Any) -> None:
    overlaps = page.evaluate("""() => {
        const overlap = (p, q) => p.left < q.right && q.left < p.right
            && p.top + 2 < q.bottom && q.top + 2 < p.bottom;
        return [...document.querySelectorAll(".panels svg")].flatMap((svg) => {
            const labels = [...svg.querySelectorAll("text")]
                .map((text) => [text.textContent, text.getBoundingClientRect()]);
            return labels.flatMap(([a, p], i) =>
                labels.slice(i + 1).filter(([, q]) => overlap(p, q)).map(([b]) => [a, b]));
        });
    }""")
    assert overlaps == []
