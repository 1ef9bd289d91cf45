"""What the paper prints beside accuracies: AUCs, the average change (Table I), the layer's cost (Table III), FROC (Table IV).

A published table has a column for the accuracy on each data set, `<data set>_auc` for the AUC, `<data set>_froc` for the
FROC score, and `parameters` and `multiply_adds` for the cost of the layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from scmil.report.comparisons import FEWEST_DATASETS
from scmil.report.html.tables import table
from scmil.report.html.markup import ABSENT, Markup, change, element, join, markdown, number, p_value
from scmil.report.run_files import Key, Published, Run
from scmil.stats.significance import SignedRank, wilcoxon

METRICS = {"accuracy": "accuracy", "auc": "AUC"}
INSTANCES = 120  # of the bag for which Table III counts


class Average(NamedTuple):
    """What sparse coding changed on one data set, on average over the models it was put into."""

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
        """The p-value of the signed-rank test over the pairs, NaN if there are too few for it to mean anything."""
        return self.test.p if self.pairs >= FEWEST_DATASETS else math.nan


class Area(NamedTuple):
    """An AUC and the published one."""

    arm: str
    dataset: str
    protocol: str
    ours: float
    published: float


class FrocScore(NamedTuple):
    """A FROC score with its deviation over repeats, and the published ones; NaN where nothing is printed."""

    arm: str
    dataset: str
    protocol: str
    ours: float
    sd: float
    published: float
    published_sd: float


class LayerCost(NamedTuple):
    """What the layer alone costs in the accounting of Table III, and as printed there; NaN where nothing is."""

    arm: str
    atoms: int
    layers: int
    parameters: int
    published_parameters: float
    multiply_adds: int
    published_multiply_adds: float


def average_changes(run: Run) -> list[Average]:
    """The last row of Table I: the mean change over all pairs with and without sparse coding, and Wilcoxon's test of it."""
    found = []
    for dataset in run.datasets:
        for protocol in run.protocols:
            pairs = _pairs(run, dataset, protocol)
            for metric in METRICS if len(pairs) > 1 else ():
                results = [
                    [run.results[Key(arm, dataset, protocol)].metrics[metric].mean for arm in pair] for pair in pairs
                ]
                if np.isnan(results).any():
                    continue
                ours, theirs = np.array(results).T
                paper = _published_changes(run, pairs, dataset, metric)
                mean = float(np.mean(paper)) if paper else math.nan
                p = wilcoxon(paper, [0.0] * len(paper)).p if len(paper) >= FEWEST_DATASETS else math.nan
                delta, test = float(np.mean(ours - theirs)), wilcoxon(ours, theirs)
                found.append(Average(dataset, protocol, metric, len(pairs), delta, test, mean, p))
    return found


def _pairs(run: Run, dataset: str, protocol: str) -> list[tuple[str, str]]:
    """Arms with sparse coding and those that they name, the same aggregator without it; both with a result."""
    models = {cell.arm: cell.settings.get("model", {}) for cell in run.cells}
    return [
        (arm, against)
        for arm, against in run.arms
        if against is not None
        and all(Key(name, dataset, protocol) in run.results for name in (arm, against))
        and _sparse(models[arm]) is not None
        and _sparse(models[against]) is None
        and models[arm].get("aggregator") == models[against].get("aggregator")
    ]


def _sparse(model: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The options of the sparse coding of a model, None if it has none."""
    options = model.get("sparse_coding")
    if options in (None, False) or model.get("refine") not in (None, "sparse-coding"):
        return None
    return options if isinstance(options, Mapping) else {}


def _published_changes(run: Run, pairs: Sequence[tuple[str, str]], dataset: str, metric: str) -> list[float]:
    column = dataset if metric == "accuracy" else f"{dataset}_{metric}"
    printed = [(_printed(run, arm, column), _printed(run, against, column)) for arm, against in pairs]
    return [ours - theirs for ours, theirs in printed if math.isfinite(ours) and math.isfinite(theirs)]


def _printed(run: Run, arm: str, column: str) -> float:
    number = run.published.get((arm, column))
    return math.nan if number is None else number.accuracy


def published_areas(run: Run) -> list[Area]:
    """Every AUC that a published one belongs to."""
    return [
        Area(*key, result.metrics["auc"].mean, printed)
        for key, result in run.results.items()
        if math.isfinite(printed := _printed(run, key.arm, f"{key.dataset}_auc"))
    ]


def froc_scores(run: Run) -> list[FrocScore]:
    """Every FROC score, beside the published one if there is one."""
    found = []
    for key, result in run.results.items():
        if (ours := result.metrics.get("froc")) is not None and math.isfinite(ours.mean):
            printed = run.published.get((key.arm, f"{key.dataset}_froc"), Published(math.nan, math.nan))
            found.append(FrocScore(*key, ours.mean, ours.sd, printed.accuracy, printed.sd))
    return found


def layer_costs(run: Run) -> list[LayerCost]:
    """Parameters and multiply-adds of the layer of every arm for which they are published, computed beside the printed."""
    costs = {}
    for cell in run.cells:
        model = cell.settings.get("model", {})
        options, width = _sparse(model), _width(model)
        printed = [_printed(run, cell.arm, column) for column in ("parameters", "multiply_adds")]
        if options is None or width is None or all(map(math.isnan, printed)):
            continue
        atoms, layers = int(options.get("atoms", 256)), int(options.get("layers", 5))
        parameters, multiply_adds = _parameters(width, atoms), _multiply_adds(width, atoms, layers)
        costs[cell.arm] = LayerCost(cell.arm, atoms, layers, parameters, printed[0], multiply_adds, printed[1])
    return list(costs.values())


def _width(model: Mapping[str, Any]) -> int | None:
    """The dimension of what the layer is given, if the plan names it."""
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


def _multiply_adds(p: int, atoms: int, layers: int) -> int:
    from scmil.models.cost import table3_multiply_adds  # torch, which a report without this table does not need

    return table3_multiply_adds(atoms, layers, INSTANCES, p)


# ----------------------------------------------------------------------------------------------------------- in words


def average_sentences(run: Run) -> list[str]:
    """The average changes, a sentence each."""
    return [_sentence(row) for row in average_changes(run)]


def _sentence(row: Average) -> str:
    words = (
        f"{row.dataset}, {METRICS[row.metric]}, protocol “{row.protocol}”: sparse coding changes {row.pairs} models by "
        f"{change(row.delta)} on average, better in {row.test.better}, worse in {row.test.worse}"
    )
    if math.isnan(row.p):
        words += f"; too few models for a test over them (at least {FEWEST_DATASETS})"
    else:
        words += f"; Wilcoxon signed-rank test over the models {_p(row.p)}"
    if math.isfinite(row.published):
        words += f". Published: {change(row.published)}" + (
            "" if math.isnan(row.published_p) else f", {_p(row.published_p)}"
        )
    return f"{words}."


def _p(p: float) -> str:
    return f"p = {p_value(p)}".replace("= <", "<")


FROC_COLUMNS = ("FROC score", "as published", "difference")
FROC_NOTE = (
    "How well the scores of tiles find the outlined lesions of the test slides: the mean sensitivity at 1/4, 1/2, 1, 2, 4 "
    "and 8 false positives a slide, mean ± deviation over the runs."
)
AREA_COLUMNS = ("AUC", "as published", "difference")
COST_COLUMNS = ("Atoms", "Layers", "Parameters", "as printed", "Multiply-adds", "as printed ")
COST_NOTE = (
    f"The layer alone, for a bag of {INSTANCES} instances, in the accounting that gives the paper's Table III: "
    "a reconstruction from its printed numbers, whose “K” of multiply-adds are millions."
)


def markdown_section(run: Run) -> str:
    """All of it for report.md; nothing if the run has none."""
    parts = ["\n".join(f"- {markdown(sentence)}" for sentence in average_sentences(run))]
    for words, columns, rows, note in _tables(run):
        rule = ["---"] * len(words) + ["---:"] * len(columns)
        lines = [[*words, *columns], rule, *([*map(markdown, row[: len(words)]), *row[len(words) :]] for row in rows)]
        parts += [note, "\n".join("| " + " | ".join(line) + " |" for line in lines)]
    text = "\n\n".join(part for part in parts if part)
    return f"## Beside the paper\n\n{text}" if text else ""


def html_section(run: Run) -> Markup | None:
    """All of it for the page; None if the run has none."""
    sentences = average_sentences(run)
    parts = [element("ul", *(element("li", sentence) for sentence in sentences))] if sentences else []
    for words, columns, rows, note in _tables(run):
        body = [[element("th", row[0], scope="row"), *(element("td", cell) for cell in row[1:])] for row in rows]
        parts += [element("p", note), table(columns[0], words, columns, body)]
    return join(*parts) if parts else None


def _tables(run: Run) -> list[tuple[list[str], Sequence[str], list[list[str]], str]]:
    """Columns of words, columns of numbers, rows, and a note: of each table that is not empty."""
    areas = [
        [
            area.arm,
            area.dataset,
            area.protocol,
            number(area.ours),
            number(area.published),
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
    costs = [[cost.arm, *_cells(cost)] for cost in layer_costs(run)]
    found = [
        (["Arm", "Data set", "Protocol"], AREA_COLUMNS, areas, "AUC beside the published one."),
        (["Arm", "Data set", "Protocol"], FROC_COLUMNS, located, FROC_NOTE + _rule(run)),
        (["Arm"], COST_COLUMNS, costs, COST_NOTE),
    ]
    return [each for each in found if each[2]]


def _with_sd(mean: float, sd: float) -> str:
    """A mean with its deviation, where there is one.

    >>> _with_sd(0.246, 0.022), _with_sd(0.5, math.nan)
    ('0.246 ± 0.022', '0.500')
    """
    return number(mean) if math.isnan(sd) else f"{number(mean)} ± {number(sd)}"


def _rule(run: Run) -> str:
    """Which score and which detections made the numbers; the paper does not say which made its own."""
    own = next((cell.settings["localisation"] for cell in run.cells if "localisation" in cell.settings), None)
    if own is None:
        return ""
    left = f"; {len(own['exclude'])} slides are left out wherever they are met" if own.get("exclude") else ""
    return f" Score of a tile: {own.get('score')}; detections: {own.get('rule')}{left}."


def _cells(cost: LayerCost) -> list[str]:
    counted = (cost.parameters / 1e3, cost.published_parameters / 1e3)
    worked = (cost.multiply_adds / 1e6, cost.published_multiply_adds / 1e6)
    return [
        str(cost.atoms),
        str(cost.layers),
        *(ABSENT if math.isnan(value) else f"{number(value, 2)} K" for value in counted),
        *(ABSENT if math.isnan(value) else f"{number(value, 2)} M" for value in worked),
    ]
