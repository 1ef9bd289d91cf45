"""Plots of the page."""

from __future__ import annotations

import re
from pathlib import Path

from synthetic_run import small_run

from scmil.report import (
    read_run,
)
from scmil.report.html.plots import fold_dots, line_styles
from scmil.report.page import write_page
from scmil.report.run import Method


def test_every_fold_is_a_dot(tmp_path: Path) -> None:
    run = read_run(small_run(tmp_path))
    assert write_page(run, []).count('class="dot ') == 6 * 2 * 5


def test_an_interval_wider_than_the_folds_stays_on_the_axis(tmp_path: Path) -> None:
    run = read_run(small_run(tmp_path))
    for key, result in run.results.items():
        accuracy = result.metrics["accuracy"]._replace(low=0.0, high=1.0)
        run.results[key] = result._replace(metrics={**result.metrics, "accuracy": accuracy})
    figure = fold_dots(run, next(iter(run.results)).protocol)
    starts = [float(x) for x in re.findall(r'd="M([-\d.]+),[\d.]+H[\d.]+" class="interval', figure)]
    ticks = [float(x) for x in re.findall(r'<text x="([-\d.]+)"[^>]*class="tick', figure)]
    assert starts
    assert min(starts) >= min(ticks) - 1  # the axis has a tick at 0


def test_methods_have_different_colours_and_many_share_that_of_their_reference() -> None:
    few = line_styles([Method(str(i), None) for i in range(7)])
    assert len(set(few.values())) == 7
    many = line_styles(
        [
            Method(f"{i}{kind}", None if not kind else str(i))
            for i in range(6)
            for kind in ("", " + SC")
        ]
    )
    assert many["3"].colour == many["3 + SC"].colour
    assert len(set(many.values())) == 12
