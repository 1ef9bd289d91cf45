"""The HTML page of a run."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from synthetic_run import EVIL, small_run

from scmil.report import (
    read_run,
    verdict,
)
from scmil.report.comparisons import compare_methods
from scmil.report.markdown_latex import write_latex, write_markdown
from scmil.report.page import write_page
from scmil.report.tables import WARNING


class Tags(HTMLParser):
    """Counts elements, and checks that they are closed in the order in which they were opened."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.attributes += attrs
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_run_with_only_test_tuned_results_has_warnings_everywhere(tmp_path: Path) -> None:
    small_run(tmp_path, protocols=["test-tuned"])
    assert "none of them estimates the performance on new bags" in verdict(read_run(tmp_path))
    page = write_page(read_run(tmp_path), compare_methods(read_run(tmp_path)))
    folds, differences = (
        page.split(f'<section id="{place}">')[1].split("</section>")[0]
        for place in ("folds", "differences")
    )
    assert WARNING in folds
    assert WARNING in differences


def test_only_test_tuned_results_have_the_warning(run: Path, page: str) -> None:
    for text in (page, write_markdown(read_run(run), []), write_latex(read_run(run))):
        assert text.index("Selection protocol “nested”") < text.index(WARNING)
    results = page.split('<section id="results">')[1].split("</section>")[0]
    assert results.count(WARNING) == 1
    assert results.index("Selection protocol “test-tuned”") < results.index(WARNING)
    for place in ("effect-of-the-selection-protocol", "comparisons"):
        assert WARNING in page.split(f'<section id="{place}">')[1].split("</section>")[0]


def test_the_page_is_well_formed_and_names_cannot_become_markup(page: str) -> None:
    tags = Tags(page)
    assert tags.open == []
    assert tags.counts["script"] == 1
    assert EVIL not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<b>luck</b>" not in page


def test_the_page_needs_no_network_and_has_no_inline_style(
    page: str,
) -> None:
    tags = Tags(page)
    names = {name for name, _ in tags.attributes}
    assert not {name for name in names if name == "style" or name.startswith("on")}
    targets = [value or "" for name, value in tags.attributes if name in ("href", "src")]
    assert all(target.startswith("#") or target == "data:," for target in targets)
    assert "default-src &#x27;none&#x27;" in page
    assert "unsafe" not in page
    assert "url(" not in page


def test_the_page_is_the_same_every_time(run: Path, page: str) -> None:
    assert write_page(read_run(run), compare_methods(read_run(run))) == page


def test_failed_runs_are_listed_with_their_cause(page: str) -> None:
    assert "<b>fox--method-2</b>: ValueError: no &lt;b&gt;luck&lt;/b&gt;" in page
