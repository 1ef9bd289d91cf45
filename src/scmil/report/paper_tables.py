"""Results of the paper other than accuracies: AUCs, the average change (Table I), the cost of the
layer (Table III), FROC (Table IV).

A published table has a column for the accuracy on each data set, `<data set>_auc` for the AUC,
`<data set>_froc` for the FROC score, and `parameters` and `multiply_adds` for the cost of the
layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from scmil.report.comparisons import FEWEST_DATASETS
from scmil.report.html.markup import (
    ABSENT,
    Markup,
    change,
    element,
    format_number,
    join,
    markdown,
    p_equals,
)
from scmil.report.html.tables import table
from scmil.report.run import Key, Published, Run
from scmil.stats.significance import SignedRank, wilcoxon

METRICS = {"accuracy": "accuracy", "auc": "AUC"}
INSTANCES = 120  # of the bag for which Table III counts


class Average(NamedTuple):
    """The change by sparse coding on one data set, averaged over the models."""

    dataset: str
    protocol: str
    metric: str
    pairs: int
    delta: float
    test: SignedRank
    published: float
    published_p: float

    @property
    def p(self) -> float:
        """The p-value of the signed-rank test over the pairs; NaN with too few pairs."""
        return self.test.p if self.pairs >= FEWEST_DATASETS else math.nan


class Area(NamedTuple):
    """An AUC and the published one."""

    method: str
    dataset: str
    protocol: str
    ours: float
    published: float


class FrocScore(NamedTuple):
    """A FROC score with its standard deviation over repeats, and the published ones or NaN."""

    method: str
    dataset: str
    protocol: str
    ours: float
    sd: float
    published: float
    published_sd: float


class LayerCost(NamedTuple):
    """The cost of the layer alone, counted as in Table III, and the published numbers or NaN."""

    method: str
    atoms: int
    layers: int
    parameters: int
    published_parameters: float
    multiply_adds: int
    published_multiply_adds: float


def average_changes(run: Run) -> list[Average]:
    """The last row of Table I: the mean change over all pairs with and without sparse coding, with
    Wilcoxon's test.
    """
    found = []
    for dataset in run.datasets:
        for protocol in run.protocols:
            pairs = _pairs(run, dataset, protocol)
            for metric in METRICS if len(pairs) > 1 else ():
                results = [
                    [
                        run.results[Key(method, dataset, protocol)].metrics[metric].mean
                        for method in pair
                    ]
                    for pair in pairs
                ]
                if np.isnan(results).any():
                    continue
                ours, theirs = np.array(results).T
                paper = _published_changes(run, pairs, dataset, metric)
                mean = float(np.mean(paper)) if paper else math.nan
                p = (
                    wilcoxon(paper, [0.0] * len(paper)).p
                    if len(paper) >= FEWEST_DATASETS
                    else math.nan
                )
                delta, test = float(np.mean(ours - theirs)), wilcoxon(ours, theirs)
                found.append(Average(dataset, protocol, metric, len(pairs), delta, test, mean, p))
    return found


def _pairs(run: Run, dataset: str, protocol: str) -> list[tuple[str, str]]:
    """Methods with sparse coding and their reference methods, the same aggregators without it; both
    with a result.
    """
    models = {planned.method: planned.settings.get("model", {}) for planned in run.planned}
    return [
        (method, against)
        for method, against in run.methods
        if against is not None
        and all(Key(name, dataset, protocol) in run.results for name in (method, against))
        and _sparse(models[method]) is not None
        and _sparse(models[against]) is None
        and models[method].get("aggregator") == models[against].get("aggregator")
    ]


def _sparse(model: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The options of the sparse coding of a model, None if it has none."""
    options = model.get("sparse_coding")
    if options in (None, False) or model.get("refine") not in (None, "sparse-coding"):
        return None
    return options if isinstance(options, Mapping) else {}


def _published_changes(
    run: Run, pairs: Sequence[tuple[str, str]], dataset: str, metric: str
) -> list[float]:
    column = dataset if metric == "accuracy" else f"{dataset}_{metric}"
    printed = [
        (_printed(run, method, column), _printed(run, against, column)) for method, against in pairs
    ]
    return [
        ours - theirs for ours, theirs in printed if math.isfinite(ours) and math.isfinite(theirs)
    ]


def _printed(run: Run, method: str, column: str) -> float:
    published = run.published.get((method, column))
    return math.nan if published is None else published.accuracy


def published_areas(run: Run) -> list[Area]:
    """Every AUC for which there is a published one."""
    return [
        Area(*key, result.metrics["auc"].mean, printed)
        for key, result in run.results.items()
        if math.isfinite(printed := _printed(run, key.method, f"{key.dataset}_auc"))
    ]


def froc_scores(run: Run) -> list[FrocScore]:
    """Every FROC score, with the published one if there is one."""
    found = []
    for key, result in run.results.items():
        if (ours := result.metrics.get("froc")) is not None and math.isfinite(ours.mean):
            printed = run.published.get(
                (key.method, f"{key.dataset}_froc"), Published(math.nan, math.nan)
            )
            found.append(FrocScore(*key, ours.mean, ours.sd, printed.accuracy, printed.sd))
    return found


def layer_costs(run: Run) -> list[LayerCost]:
    """Computed and published parameters and multiply-adds of the layer, for each method for which
    they are published.
    """
    costs = {}
    for planned in run.planned:
        model = planned.settings.get("model", {})
        options, width = _sparse(model), _layer_width(model)
        printed = [
            _printed(run, planned.method, column) for column in ("parameters", "multiply_adds")
        ]
        if options is None or width is None or all(map(math.isnan, printed)):
            continue
        atoms, layers = int(options.get("atoms", 256)), int(options.get("layers", 5))
        parameters, multiply_adds = (
            _parameters(width, atoms),
            table3_multiply_adds(atoms, layers, INSTANCES, width),
        )
        costs[planned.method] = LayerCost(
            planned.method, atoms, layers, parameters, printed[0], multiply_adds, printed[1]
        )
    return list(costs.values())


def _layer_width(model: Mapping[str, Any]) -> int | None:
    """The input dimension of the layer, if the experiment specifies it."""
    embed = model.get("embed")
    widths = embed.get("widths") if isinstance(embed, Mapping) else embed
    return int(widths[-1]) if widths else None


def _parameters(p: int, atoms: int) -> int:
    """The dictionary, the lambda-network p -> p/4 -> p/8 -> 1 with its biases, and mu.

    >>> _parameters(484, 256)
    189971
    """
    first, second = p // 4, p // 8
    return p * atoms + (p + 1) * first + (first + 1) * second + second + 1 + 1


def table3_multiply_adds(atoms: int, layers: int = 5, n: int = 120, p: int = 484) -> int:
    """The multiply-adds of the SC module in the accounting that gives Table III, whose "K" are
    millions.

    A reconstruction from the printed numbers, not confirmed by the authors: the lambda-network, two
    n x p x m products, L + 1 products with the m x m matrix, and the element-wise operations (8 +
    6L) nm + 2 m^2. It counts one product of each kind more than the released code makes, and leaves
    the Gram matrix out; `count_multiply_adds` counts what is run. The table's labels 64, 128, 256,
    512 stand for 16, 64, 256 and 1024 atoms.

    >>> [round(table3_multiply_adds(m) / 1e6, 2) for m in (16, 64, 256, 1024)]
    [10.02, 18.59, 86.13, 888.6]
    """
    network = p * (p // 4) + (p // 4) * (p // 8) + p // 8
    elementwise = (8 + 6 * layers) * n * atoms + 2 * atoms**2
    return n * network + 2 * n * p * atoms + (layers + 1) * n * atoms**2 + elementwise


# ----------------------------------------------------------------------------------------- in words


def average_sentences(run: Run) -> list[str]:
    """The average changes, one sentence each."""
    return [_sentence(row) for row in average_changes(run)]


def _sentence(row: Average) -> str:
    words = (
        f"{row.dataset}, {METRICS[row.metric]}, selection protocol “{row.protocol}”: sparse coding "
        f"changes {row.pairs} models by {change(row.delta)} on average; it is better in "
        f"{row.test.better} and worse in {row.test.worse}"
    )
    if math.isnan(row.p):
        words += f"; too few models for a test over them (at least {FEWEST_DATASETS})"
    else:
        words += f"; Wilcoxon signed-rank test over the models {p_equals(row.p)}"
    if math.isfinite(row.published):
        words += f". Published: {change(row.published)}" + (
            "" if math.isnan(row.published_p) else f", {p_equals(row.published_p)}"
        )
    return f"{words}."


FROC_COLUMNS = ("FROC score", "published", "difference")
FROC_NOTE = (
    "FROC score: how well tile scores detect the annotated lesions of the test slides, as the mean "
    "sensitivity at 1/4, 1/2, 1, 2, 4 and 8 false positives per slide; mean ± standard deviation "
    "over the repeats."
)
AREA_COLUMNS = ("AUC", "published", "difference")
COST_COLUMNS = ("Atoms", "Layers", "Parameters", "published", "Multiply-adds", "published ")
COST_NOTE = (
    f"The layer alone, for a bag of {INSTANCES} instances, counted as in Table III of the paper. "
    "The counting rule is reconstructed from the published numbers, whose “K” of multiply-adds are "
    "millions."
)


def markdown_section(run: Run) -> str:
    """The published results for report.md; empty if there are none."""
    parts = ["\n".join(f"- {markdown(sentence)}" for sentence in average_sentences(run))]
    for words, columns, rows, note in _tables(run):
        rule = ["---"] * len(words) + ["---:"] * len(columns)
        lines = [
            [*words, *columns],
            rule,
            *([*map(markdown, row[: len(words)]), *row[len(words) :]] for row in rows),
        ]
        parts += [note, "\n".join("| " + " | ".join(line) + " |" for line in lines)]
    text = "\n\n".join(part for part in parts if part)
    return f"## Published results\n\n{text}" if text else ""


def html_section(run: Run) -> Markup | None:
    """The published results for the page; None if there are none."""
    sentences = average_sentences(run)
    parts = (
        [element("ul", *(element("li", sentence) for sentence in sentences))] if sentences else []
    )
    for words, columns, rows, note in _tables(run):
        body = [
            [element("th", row[0], scope="row"), *(element("td", text) for text in row[1:])]
            for row in rows
        ]
        parts += [element("p", note), table(columns[0], words, columns, body)]
    return join(*parts) if parts else None


def _tables(run: Run) -> list[tuple[list[str], Sequence[str], list[list[str]], str]]:
    """Text columns, number columns, rows and a note of each table that is not empty."""
    areas = [
        [
            area.method,
            area.dataset,
            area.protocol,
            format_number(area.ours),
            format_number(area.published),
            change(area.ours - area.published),
        ]
        for area in published_areas(run)
    ]
    located = [
        [
            *each[:3],
            _with_sd(each.ours, each.sd),
            _with_sd(each.published, each.published_sd),
            change(each.ours - each.published),
        ]
        for each in froc_scores(run)
    ]
    costs = [[cost.method, *_cells(cost)] for cost in layer_costs(run)]
    found = [
        (
            ["Method", "Data set", "Selection protocol"],
            AREA_COLUMNS,
            areas,
            "AUC and the published AUC.",
        ),
        (
            ["Method", "Data set", "Selection protocol"],
            FROC_COLUMNS,
            located,
            FROC_NOTE + _detection_note(run),
        ),
        (["Method"], COST_COLUMNS, costs, COST_NOTE),
    ]
    return [each for each in found if each[2]]


def _with_sd(mean: float, sd: float) -> str:
    """A mean with its deviation, where there is one.

    >>> _with_sd(0.246, 0.022), _with_sd(0.5, math.nan)
    ('0.246 ± 0.022', '0.500')
    """
    return format_number(mean) if math.isnan(sd) else f"{format_number(mean)} ± {format_number(sd)}"


def _detection_note(run: Run) -> str:
    """The tile score and the detection rule that were used; the paper does not specify its own."""
    own = next(
        (
            planned.settings["localisation"]
            for planned in run.planned
            if "localisation" in planned.settings
        ),
        None,
    )
    if own is None:
        return ""
    excluded = f"; {len(own['exclude'])} slides are excluded" if own.get("exclude") else ""
    return f" Score of a tile: {own.get('score')}; detections: {own.get('rule')}{excluded}."


def _cells(cost: LayerCost) -> list[str]:
    counted = (cost.parameters / 1e3, cost.published_parameters / 1e3)
    worked = (cost.multiply_adds / 1e6, cost.published_multiply_adds / 1e6)
    return [
        str(cost.atoms),
        str(cost.layers),
        *(ABSENT if math.isnan(value) else f"{format_number(value, 2)} K" for value in counted),
        *(ABSENT if math.isnan(value) else f"{format_number(value, 2)} M" for value in worked),
    ]
