"""The report as one HTML file: no network, no outside font, and a policy that lets nothing run but its own script."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scmil.report import pictures
from scmil.report.html import tables as html_tables
from scmil.report import paper_tables as paper
from scmil.report.html import plots
from scmil.report.comparisons import Compared
from scmil.report.html.tables import badge, warning
from scmil.report.html.markup import Markup, element, join
from scmil.report.run_files import Run
from scmil.report.html.style import SCRIPT, STYLE
from scmil.report.tables import MEANING
from scmil.report.verdict import verdict


def write_page(run: Run, compared: Sequence[Compared]) -> str:
    """The whole page."""
    sections = {
        "Results": html_tables.results(run),
        "What the protocol is worth": html_tables.worth(run),
        "Comparisons": html_tables.comparisons(run, compared),
        "Folds": _folds(run),
        "Differences": _differences(run, compared),
        "Beside the paper": paper.html_section(run),
        "Pictures": pictures.section(run.folder),
        "Training": _training(run),
        "Cost": html_tables.cost(run),
        "How these numbers were made": _method(run),
        "Missing and failed cells": _unfinished(run),
    }
    present = {title: body for title, body in sections.items() if body}
    places = {title: title.lower().replace(" ", "-") for title in present}
    links = element("nav", *(element("a", title, href=f"#{places[title]}") for title in present), aria_label="Contents")
    body = [
        element(
            "header",
            element("h1", run.title),
            _state(run),
            element("p", run.about, class_="about") if run.about else None,
        ),
        element("p", verdict(run, compared), class_="verdict"),
        links,
        *(element("section", element("h2", title), text, id=places[title]) for title, text in present.items()),
        element("footer", f"Written by scmil {run.versions.get('scmil', '')} from the files of this run."),
    ]
    return whole_page(run.title, *body)


def whole_page(title: str, *body: Markup) -> str:
    """A page of one file around its parts, in the style of all reports."""
    whole = element("body", element("main", *body), element("script", Markup(SCRIPT)))
    return f"<!doctype html>\n{element('html', _head(title), whole, lang='en')}\n"


def _head(title: str) -> Markup:
    policy = (
        f"default-src 'none'; script-src {_digest(SCRIPT)}; style-src {_digest(STYLE)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    metas = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
    )
    return element("head", Markup(metas), element("title", title), element("style", Markup(STYLE)))


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _state(run: Run) -> Markup | None:
    if len(run.finished) == len(run.cells):
        return None
    words = f"half-finished: {len(run.finished)} of {len(run.cells)} cells"
    return element("p", element("span", words, class_="badge warn"))


def _folds(run: Run) -> Markup | None:
    if not run.results:
        return None
    protocol = (run.honest or run.protocols)[0]
    words = (
        f"Accuracy: each dot is a fold by protocol “{protocol}”, the large one the mean, the bar its 95 % interval. "
    )
    return join(element("p", words, badge(protocol)), warning([protocol]), plots.fold_dots(run, protocol))


def _differences(run: Run, compared: Sequence[Compared]) -> Markup | None:
    protocols = run.honest or run.protocols
    if not any(each.protocol in protocols for each in compared):
        return None
    published = any(math.isfinite(each.published) for each in compared)
    words = (
        "Change of accuracy against the arm that each names, with its 95 % interval over bags. The interval takes the "
        "trained models as they are; whether a difference outlives other training bags, the corrected p above tells."
    )
    hollow = " Hollow: the change between the published numbers, whose protocol is not ours." if published else ""
    return join(
        element("p", words + hollow),
        warning(protocols),
        plots.forest_legend(protocols, published),
        plots.forest(run, compared, protocols),
    )


def _training(run: Run) -> Markup | None:
    if not run.history:
        return None
    looked_at = any(np.isfinite(rows["test_accuracy"]).sum() > 1 for rows in run.history.values())
    words = "Means over all folds."
    looked = " Accuracy on the test folds is drawn for looking only; no honest number was chosen by it."
    return join(
        element("p", words + looked * looked_at),
        plots.arm_legend(run),
        element("h3", "Loss on the training folds, by epoch"),
        plots.curves(run, "train_loss", "Training loss"),
        element("h3", "Accuracy on the test folds, by epoch") if looked_at else None,
        plots.curves(run, "test_accuracy", "Test accuracy") if looked_at else None,
    )


def _method(run: Run) -> Markup:
    plan = run.protocol
    words = (
        f"{len(run.arms)} arms on {len(run.datasets)} data set{'s' * (len(run.datasets) > 1)} "
        f"({', '.join(run.datasets)}); {plan.get('repeats', 1)} "
        f"repeats of {plan.get('folds', 1)} folds, seed {plan.get('seed', 'not recorded')}. All arms are tested on the same "
        "folds."
    )
    protocols = [
        join(element("b", name), f": {MEANING[name]}. ", badge(name)) for name in run.protocols if name in MEANING
    ]
    listed = {
        "Protocol": run.protocol,
        "Training": run.training,
        "Versions": run.versions,
        "Data, SHA-256": run.data,
    }
    return join(
        element("p", words),
        element("ul", *(element("li", each) for each in protocols), class_="plain"),
        element("div", *(pairs(title, values) for title, values in listed.items()), class_="panels"),
        element("h3", "Settings of every cell"),
        element("details", element("summary", f"{len(run.cells)} cells, as JSON"), element("pre", _settings(run))),
    )


def pairs(title: str, values: Mapping[str, Any]) -> Markup:
    """Names and values under a heading."""
    items = [
        join(
            element("dt", str(name)),
            element("dd", value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)),
        )
        for name, value in values.items()
    ]
    return element("div", element("h3", title), element("dl", *items))


def _settings(run: Run) -> str:
    return json.dumps({each.name: each.settings for each in run.cells}, indent=2, ensure_ascii=False)


def _unfinished(run: Run) -> Markup | None:
    failed = [element("li", element("b", name), f": {cause}") for name, cause in run.failed.items()]
    missing = [element("li", each.name) for each in run.missing]
    if not failed and not missing:
        return None
    parts = [
        element("p", "Run ", element("code", "scmil run"), " on the same experiment again: finished cells are kept.")
    ]
    parts += [element("h3", f"Failed ({len(failed)})"), element("ul", *failed, class_="plain")] if failed else []
    if missing:
        listed = element("ul", *missing, class_="plain")
        parts.append(element("details", element("summary", f"Without a result ({len(missing)})"), listed))
    return join(*parts)
