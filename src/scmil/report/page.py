"""The report as one HTML file that needs no network."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from scmil.core.run_format import PATIENT_MEANING
from scmil.report import paper_tables as paper
from scmil.report import pictures
from scmil.report.comparisons import MethodComparison
from scmil.report.html import plots
from scmil.report.html import tables as html_tables
from scmil.report.html.document import html_document, read_asset
from scmil.report.html.layer_matrix import matrix_sections
from scmil.report.html.markup import Markup, element, join
from scmil.report.html.tables import badge, leakage_warning
from scmil.report.layer_matrix import layer_matrix
from scmil.report.run import Run
from scmil.report.tables import MEANING
from scmil.report.verdict import class_verdict


def write_page(run: Run, compared: Sequence[MethodComparison]) -> str:
    """The HTML report of a run directory."""
    sections: dict[str, Markup | None] = {
        "Results": html_tables.results(run),
        "Effect of the selection protocol": html_tables.protocol_effect_table(run),
        "Comparisons": html_tables.comparisons(run, compared),
        "Folds": _fold_plots(run),
        "Differences": _difference_plots(run, compared),
        "Published results": paper.html_section(run),
        "Pictures": pictures.section(run.folder),
        "Training": training_curves(run),
        "Cost": html_tables.cost(run),
        "How the results were computed": computation(run),
        "Missing and failed runs": unfinished(run),
    }
    if (matrix := layer_matrix(run)) is not None:
        sections |= matrix_sections(run, matrix, compared, sections)
    return assemble_page(run, class_verdict(run, compared), sections)


def assemble_page(run: Run, summary: str, sections: Mapping[str, Markup | None]) -> str:
    """The page of a run directory: title, summary, contents and the sections that are not None."""
    present = {title: body for title, body in sections.items() if body}
    places = {title: title.lower().replace(" ", "-") for title in present}
    links = element(
        "nav",
        *(element("a", title, href=f"#{places[title]}") for title in present),
        aria_label="Contents",
    )
    body = [
        element(
            "header",
            element("h1", run.title),
            _state(run),
            element("p", run.about, class_="about") if run.about else None,
        ),
        element("p", summary, class_="verdict"),
        links,
        *(
            element("section", element("h2", title), text, id=places[title])
            for title, text in present.items()
        ),
        element(
            "footer",
            f"Written by scmil {run.versions.get('scmil', '')} from the files in this run "
            "directory.",
        ),
    ]
    return whole_page(run.title, *body)


def whole_page(title: str, *body: Markup) -> str:
    """A page in the style and with the script of all reports."""
    return html_document(title, *body, script=read_asset("scmil.report.html", "report.js"))


def _state(run: Run) -> Markup | None:
    if len(run.finished) == len(run.planned):
        return None
    words = f"unfinished: {len(run.finished)} of {len(run.planned)} runs have results"
    return element("p", element("span", words, class_="badge warn"))


def _fold_plots(run: Run) -> Markup | None:
    if not run.results:
        return None
    protocol = (run.leakage_free or run.protocols)[0]
    words = (
        f"Accuracy under the selection protocol “{protocol}”: each dot is a fold, the large one "
        "the mean, the bar its 95 % confidence interval. "
    )
    return join(
        element("p", words, badge(protocol)),
        leakage_warning([protocol]),
        plots.fold_dots(run, protocol),
    )


def _difference_plots(run: Run, compared: Sequence[MethodComparison]) -> Markup | None:
    protocols = run.leakage_free or run.protocols
    if not any(each.protocol in protocols for each in compared):
        return None
    published = any(math.isfinite(each.published) for each in compared)
    words = (
        "Difference in accuracy to the reference method, with its 95 % confidence interval over "
        "bags. The interval does not include the variation between training sets; the corrected p "
        "above does."
    )
    hollow = (
        " Hollow: the difference between the published results, whose protocol is another one."
        if published
        else ""
    )
    return join(
        element("p", words + hollow),
        leakage_warning(protocols),
        plots.forest_legend(protocols, published),
        plots.forest(run, compared, protocols),
    )


def training_curves(run: Run) -> Markup | None:
    """Loss and accuracy by epoch."""
    if not run.history:
        return None
    has_test = any(np.isfinite(rows["test_accuracy"]).sum() > 1 for rows in run.history.values())
    words = "Means over all folds."
    note = " Accuracy on the test folds is only shown; leakage-free results do not depend on it."
    return join(
        element("p", words + note * has_test),
        plots.method_legend(run),
        element("h3", "Loss on the training folds, by epoch"),
        plots.curves(run, "train_loss", "Training loss"),
        element("h3", "Accuracy on the test folds, by epoch") if has_test else None,
        plots.curves(run, "test_accuracy", "Test accuracy") if has_test else None,
    )


def computation(
    run: Run, meaning: Mapping[str, str] = MEANING, chosen: str = "epoch and decision threshold"
) -> Markup:
    """Splits, selection protocols, settings, versions and data of all runs."""
    plan = run.protocol
    count = plan.get("repeats") or 1
    repeats = "1 repeat" if count == 1 else f"{count} repeats"
    words = (
        f"{len(run.methods)} methods on {len(run.datasets)} data "
        f"set{'s' * (len(run.datasets) > 1)} ({', '.join(run.datasets)}); "
        f"{repeats} of {plan.get('folds', 1)} folds, seed {plan.get('seed', 'not recorded')}. All "
        "methods are tested on the same folds. Selection protocols, the rules that choose "
        f"{chosen} of a model:"
    )
    sites = {str(each.settings.get("data", {}).get("site") or "") for each in run.planned} - {""}
    if sites:
        words = f"All slides of a site (column {', '.join(sorted(sites))}) are in one fold. {words}"
    modes = {(each.settings.get("data") or {}).get("patient") for each in run.planned}
    words = " ".join([*(PATIENT_MEANING[m] for m in PATIENT_MEANING if m in modes), words])
    protocols = [
        join(element("b", name), f": {meaning[name]}. ", badge(name))
        for name in run.protocols
        if name in meaning
    ]
    listed = {
        "Splits": run.protocol,
        "Training": run.training,
        "Versions": run.versions,
        "Data, SHA-256": run.data,
    }
    return join(
        element("p", words),
        element("ul", *(element("li", each) for each in protocols), class_="plain"),
        element(
            "div", *(pairs(title, values) for title, values in listed.items()), class_="panels"
        ),
        element("h3", "Settings of every run"),
        element(
            "details",
            element("summary", f"{len(run.planned)} runs, as JSON"),
            element("pre", _settings(run)),
        ),
    )


def pairs(title: str, values: Mapping[str, Any]) -> Markup:
    """Names and values under a heading; names of nested values are joined by dots."""
    items = [
        join(
            element("dt", name),
            element(
                "dd", value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            ),
        )
        for name, value in _flatten(values)
    ]
    return element("div", element("h3", title), element("dl", *items))


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _settings(run: Run) -> str:
    return json.dumps(
        {each.name: each.settings for each in run.planned}, indent=2, ensure_ascii=False
    )


def unfinished(run: Run) -> Markup | None:
    """The runs that failed or have no result yet."""
    failed = [element("li", element("b", name), f": {cause}") for name, cause in run.failed.items()]
    missing = [element("li", each.name) for each in run.missing]
    if not failed and not missing:
        return None
    parts = [
        element(
            "p",
            "Run ",
            element("code", "scmil run"),
            " on the same experiment again: finished runs are kept.",
        )
    ]
    parts += (
        [element("h3", f"Failed ({len(failed)})"), element("ul", *failed, class_="plain")]
        if failed
        else []
    )
    if missing:
        listed = element("ul", *missing, class_="plain")
        parts.append(
            element("details", element("summary", f"Without a result ({len(missing)})"), listed)
        )
    return join(*parts)
