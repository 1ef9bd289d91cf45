"""The page of a report with many methods: matrices of reference methods and layers instead of one
row per method.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from scmil.report.comparisons import MethodComparison
from scmil.report.html.dot_rows import dot_legend, dot_rows
from scmil.report.html.markup import ABSENT, Markup, element, format_number, join
from scmil.report.html.tables import (
    badge,
    delta_span,
    leakage_warning,
    metric_menu,
    number_cell,
    row_header,
    table,
)
from scmil.report.layer_matrix import (
    WITHOUT,
    LayerEffect,
    LayerMatrix,
    final_losses,
    layer_effects,
    matrix_rows,
)
from scmil.report.run import METRIC_NAMES, Key, Run
from scmil.report.tables import Row, TableEntry, caption

METHOD = "Method"


def matrix_sections(
    run: Run,
    matrix: LayerMatrix,
    compared: Sequence[MethodComparison],
    sections: Mapping[str, Markup | None],
) -> dict[str, Markup | None]:
    """The sections of the page that are matrices; long ones of `sections` become expandable."""
    pairs = f"{len(compared)} comparisons"
    return {
        "Results": results(run, matrix, compared),
        "Comparisons": join(
            effects(run, matrix, compared),
            _details(f"{pairs} of a method with its reference method", sections["Comparisons"]),
        ),
        "Folds": None,
        "Differences": _details(f"{pairs} with confidence intervals", sections["Differences"]),
        "Training": losses(run, matrix),
        "Cost": _details(f"Cost of {len(run.finished)} runs", sections["Cost"]),
    }


def _details(summary: str, body: Markup | None) -> Markup | None:
    return body and element("details", element("summary", summary), body)


def results(run: Run, matrix: LayerMatrix, compared: Sequence[MethodComparison]) -> Markup:
    """A plot and a matrix of results for each selection protocol and data set, with a menu."""
    parts = [
        part
        for protocol in run.protocols
        for part in (
            element("h3", f"Selection protocol “{protocol}” ", badge(protocol)),
            leakage_warning([protocol]),
            *(_captions(run, protocol),),
            element("p", _legend_words(matrix), class_="note"),
            *(
                _dataset_results(run, matrix, compared, dataset, protocol)
                for dataset in run.datasets
            ),
        )
    ]
    return element("div", metric_menu(), *parts, data_metric="accuracy")


def _captions(run: Run, protocol: str) -> Markup:
    spans = (
        element("span", caption(run, protocol, metric), class_=f"m m-{metric}")
        for metric in METRIC_NAMES
    )
    return element("p", *spans, class_="note")


def _legend_words(matrix: LayerMatrix) -> str:
    return (
        f"Bold: the best layer of a row. Beside each result: its difference to “{WITHOUT}”; * "
        "marks a difference in accuracy with a corrected p below 0.05, not corrected for the "
        "number of comparisons. A click on a heading sorts the rows."
    )


def _dataset_results(
    run: Run,
    matrix: LayerMatrix,
    compared: Sequence[MethodComparison],
    dataset: str,
    protocol: str,
) -> Markup | None:
    by_metric = {
        metric: {row.method: row for row in matrix_rows(run, matrix, dataset, protocol, metric)}
        for metric in METRIC_NAMES
    }
    names = list(by_metric["accuracy"])
    if not names:
        return None
    sure = {
        each.method
        for each in compared
        if (each.dataset, each.protocol) == (dataset, protocol) and each.accuracy.p < 0.05
    }
    drawn = {name: _matrix_row(matrix, name, by_metric, sure) for name in names}
    inner = [drawn[name] for name in names if name in matrix.rows]
    foot = [drawn[name] for name in names if name not in matrix.rows]
    return join(
        element("h3", dataset) if len(run.datasets) > 1 else None,
        table(f"Results on {dataset}", [METHOD], matrix.columns, inner, foot),
        _layer_plot(run, matrix, dataset, protocol),
    )


def _matrix_row(
    matrix: LayerMatrix, name: str, by_metric: Mapping[str, Mapping[str, Row]], sure: set[str]
) -> list[Markup]:
    cells = []
    for i, column in enumerate(matrix.columns):
        spans = []
        for metric, rows in by_metric.items():
            entries = rows[name].entries
            marked = metric == "accuracy" and matrix.methods.get((name, column)) in sure
            spans.append(_loss_number(metric, entries[i], entries[0] if i else None, marked))
        cells.append(element("td", *spans))
    return [row_header(name), *cells]


def _loss_number(
    metric: str, entry: TableEntry | None, without: TableEntry | None, marked: bool
) -> Markup:
    kind = f"m m-{metric}"
    if entry is None or math.isnan(entry.mean):
        return element("span", ABSENT, class_=kind, data_sort="")
    value = element("span", format_number(entry.mean), class_="best" if entry.best else None)
    below = None
    if without is not None and math.isfinite(without.mean):
        below = element("small", delta_span(entry.mean - without.mean), "*" if marked else None)
    return element("span", value, below, class_=kind, data_sort=f"{entry.mean:.9g}")


def _layer_plot(run: Run, matrix: LayerMatrix, dataset: str, protocol: str) -> Markup:
    """The AUC of every method: a line per reference method, a colour per layer."""
    values = {
        place: run.results[key].metrics["auc"].mean
        for place, name in matrix.methods.items()
        if (key := Key(name, dataset, protocol)) in run.results
    }
    return element(
        "div",
        element("h3", "AUC by layer"),
        dot_legend(matrix.columns),
        dot_rows(f"AUC on {dataset}", matrix.rows, matrix.columns, values),
        class_="m m-auc m-accuracy",
    )


def effects(run: Run, matrix: LayerMatrix, compared: Sequence[MethodComparison]) -> Markup:
    """Every layer over all reference methods, for each selection protocol and data set."""
    words = (
        "Means over the reference methods, which share bags and folds and are not independent: the "
        "counts describe these data, and are no test. Better, worse and equal count the methods "
        "whose mean accuracy differs; gains and losses are those with a corrected p below 0.05 of "
        "the single comparison."
    )
    parts = [element("p", words, class_="note")]
    for protocol in run.protocols:
        for dataset in run.datasets:
            rows = layer_effects(run, matrix, compared, dataset, protocol)
            parts += [
                element("h3", f"{dataset}, selection protocol “{protocol}” ", badge(protocol)),
                leakage_warning([protocol]) or Markup(),
                _effect_table(f"Layers on {dataset} under {protocol}", rows),
            ]
    return join(*parts)


def _effect_table(name: str, rows: Sequence[LayerEffect]) -> Markup:
    columns = [
        "Methods",
        "mean Δ accuracy",
        "mean Δ AUC",
        "better / worse / equal",
        "significant gains / losses",
    ]
    body = [
        [
            row_header(row.layer, f"against {row.against}"),
            number_cell(str(row.pairs), row.pairs),
            number_cell(delta_span(row.accuracy), row.accuracy),
            number_cell(delta_span(row.auc), row.auc),
            number_cell(f"{row.better} / {row.worse} / {row.equal}", row.better - row.worse),
            number_cell(ABSENT)
            if row.gains is None or row.losses is None
            else number_cell(f"{row.gains} / {row.losses}", row.gains - row.losses),
        ]
        for row in rows
    ]
    return table(name, ["Layer"], columns, body)


def losses(run: Run, matrix: LayerMatrix) -> Markup | None:
    """The training loss of the last epoch, which shows what has converged."""
    parts = []
    for dataset in run.datasets:
        found = final_losses(run, matrix, dataset)
        if not found:
            continue
        rows = [
            [
                row_header(name),
                *(
                    number_cell(format_number(value, digits=4), value)
                    for value in (found.get((name, column), math.nan) for column in matrix.columns)
                ),
            ]
            for name in matrix.rows
        ]
        parts += [
            element("h3", dataset),
            table(f"Training loss on {dataset}", [METHOD], matrix.columns, rows),
        ]
    words = (
        "Loss on the training folds in the last epoch, mean over all folds, with the losses that "
        "a method adds to that of the bag. A large value is a method that has not converged."
    )
    return join(element("p", words, class_="note"), *parts) if parts else None
