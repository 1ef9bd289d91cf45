"""Actions on the page of the viewer, for tests in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from viewer_case import PLACES, SIDE

SCREENSHOTS = Path(__file__).parents[1] / "build" / "screenshots"  # of the last run
# The share of a canvas that is drawn on, and the number of its colours.
DRAWN = """(canvas) => {
    const context = canvas.getContext("2d"), colours = new Set();
    const { data: pixels } = context.getImageData(0, 0, canvas.width, canvas.height);
    let drawn = 0;
    for (let i = 0; i < pixels.length; i += 4) {
        if (!pixels[i + 3]) continue;
        drawn++;
        colours.add(pixels[i] << 16 | pixels[i + 1] << 8 | pixels[i + 2]);
    }
    return { drawn: drawn / (pixels.length / 4), colours: colours.size };
}"""


def wait_for_page(page: Any, slide: str) -> None:
    """Wait until the page shows a slide."""
    page.wait_for_selector(f"body[data-ready='{slide}']")


def drawn(page: Any, canvas: str, pane: int = 0) -> dict[str, float]:
    """How much of a canvas is drawn, and in how many colours."""
    return page.locator(f".pane:nth-child({pane + 1}) {canvas}").evaluate(DRAWN)


def wait_for_slide(page: Any) -> None:
    """Wait until the slide itself is drawn."""
    page.wait_for_function(f"() => ({DRAWN})(scmil.panes[0].zoom.drawer.canvas).colours > 1000")


def click_tile(page: Any, tile: int, pane: int = 0) -> None:
    """Click a tile, and wait for its panel."""
    x, y = PLACES[tile]
    place = page.evaluate(
        """([pane, x, y]) => {
            const [left, top] = scmil.panes[pane].projection().toScreen(x, y);
            const box = scmil.panes[pane].marks.getBoundingClientRect();
            return [left + box.left, top + box.top];
        }""",
        [pane, x + SIDE / 2, y + SIDE / 2],
    )
    page.mouse.click(*place)
    page.wait_for_function(
        f"() => document.querySelector('#panel h2')?.textContent === 'Tile {tile}'"
    )


def bounds(page: Any, pane: int) -> list[float]:
    """The part of the slide that a pane shows."""
    return page.evaluate(
        """pane => {
            const { x, y, width, height } = scmil.panes[pane].viewport.getBounds(true);
            return [x, y, width, height];
        }""",
        pane,
    )


def wait_until_still(page: Any) -> None:
    """Wait until no pane moves."""
    page.wait_for_function(
        """() => scmil.panes.every(({ viewport }) => {
            const [now, end] = [viewport.getBounds(true), viewport.getBounds(false)];
            const moves = (side) => Math.abs(now[side] - end[side]) >= 1e-7;
            return !["x", "y", "width", "height"].some(moves);
        })"""
    )
    # The last frame of the pane that follows.
    page.evaluate("() => new Promise((done) => setTimeout(done, 150))")


def save_screenshot(page: Any, name: str) -> Path:
    """Save a screenshot for the developer."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png")
    return SCREENSHOTS / f"{name}.png"
