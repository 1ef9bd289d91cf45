"""The sortable tables of the page: results, selection protocols, comparisons, cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from scmil.report.comparisons import (
    MethodComparison,
    ProtocolEffect,
    across_datasets,
    protocol_effects,
)
from scmil.report.html.markup import (
    ABSENT,
    MINUS,
    Markup,
    change,
    element,
    format_number,
    join,
    p_equals,
    p_value,
    with_minus,
)
from scmil.report.run import METRIC_NAMES, TUNED, Cost, Key, Run
from scmil.report.tables import WARNING, TableEntry, caption, main_table, spread
from scmil.stats.fold_intervals import DECISION_METHODS, FOLD_METHODS

SPACE = "\N{NO-BREAK SPACE}"  # in headings that must not be wrapped here
DATASET = f"Data{SPACE}set"
TALL = 16  # rows; longer tables scroll in their own frame


def table(
    name: str,
    words: Sequence[str],
    columns: Sequence[str],
    rows: Sequence[Sequence[Markup]],
    foot: Sequence[Sequence[Markup]] = (),
) -> Markup:
    """A sortable table in its own frame: first the columns `words` with text, then those with
    numbers.

    The first column is the header of its row. The rows of `foot` stay at the end.
    """
    heads = [
        element(
            "th",
            element("button", column, type="button"),
            scope="col",
            class_="left" if i < len(words) else None,
        )
        for i, column in enumerate([*words, *columns])
    ]
    head = element("thead", element("tr", *heads))
    body = element("tbody", *(element("tr", *row) for row in rows))
    end = element("tfoot", *(element("tr", *row) for row in foot)) if foot else None
    inner = element("table", element("caption", name), head, body, end)
    kind = "scroll tall" if len(rows) > TALL else "scroll"
    return element("div", inner, class_=kind, role="region", aria_label=name, tabindex=0)


def leakage_warning(protocols: Iterable[str]) -> Markup | None:
    """The warning for results that were selected on their own test fold."""
    return element("p", WARNING, class_="warn") if TUNED in protocols else None


def badge(protocol: str) -> Markup:
    """Whether a selection protocol is leakage-free, as a badge."""
    words, kind = (
        ("selected on the test fold", "badge warn")
        if protocol == TUNED
        else ("leakage-free", "badge")
    )
    return element("span", words, class_=kind)


def results(run: Run) -> Markup | None:
    """The main tables, one per selection protocol, with a menu of metrics."""
    if not run.results:
        return None
    further = (each.metrics.get("balanced_accuracy") for each in run.results.values())
    decided = any(found is not None and math.isfinite(found.low) for found in further)
    methods = f"{FOLD_METHODS}; {DECISION_METHODS}" if decided else FOLD_METHODS
    intervals = f"Small numbers are 95 % intervals, where there is one: {methods}."
    note = (
        "Below each result, in grey: the published result and the difference of ours to it. "
        f"{run.published_note}"
    ).strip()
    return element(
        "div",
        metric_menu(),
        element("p", intervals, class_="note"),
        element("p", note, class_="note m m-accuracy") if run.published else None,
        *(_main_table(run, protocol) for protocol in run.protocols),
        _patient_table(run),
        data_metric="accuracy",
    )


def metric_menu() -> Markup:
    """The menu that chooses the metric of the tables beside it."""
    options = [element("option", name, value=metric) for metric, name in METRIC_NAMES.items()]
    select = element("select", *options, autocomplete="off")
    return element("label", "Show ", select, class_="pick", hidden="hidden")


def protocol_effect_table(run: Run) -> Markup | None:
    """The accuracy under each selection protocol, and the published one."""
    rows = protocol_effects(run)
    if not rows:
        return None
    published = any(math.isfinite(row.published) for row in rows)
    reference = next(iter(run.leakage_free), TUNED)
    columns = [*run.protocols]
    columns += [f"{TUNED} {MINUS} {reference}"] if TUNED in run.protocols else []
    columns += ["published", f"published {MINUS} {reference}"] if published else []
    return join(
        element(
            "p",
            "Accuracy of each method under every selection protocol: how much higher it appears if "
            "epoch and threshold are selected on the test fold.",
        ),
        leakage_warning(run.protocols),
        table(
            "Effect of the selection protocol",
            ["Method", DATASET],
            columns,
            [_protocol_effect_row(run, row, published) for row in rows],
        ),
    )


def comparisons(run: Run, compared: Sequence[MethodComparison]) -> Markup | None:
    """Each method against its reference method, by selection protocol, with a sentence each."""
    if not compared:
        return None
    explained = (
        "Corrected p: t-test over folds of Nadeau and Bengio, which accounts for overlapping "
        "training folds; prefer this one. Wilcoxon p: signed-rank test over folds with Holm's "
        "correction over the data sets; it assumes independent folds, so its p-values are too "
        f"small. Effect: rank-biserial correlation, {MINUS}1 to 1."
        if run.has_folds
        else "Corrected p: permutation test over the bags of the test set, because repeated "
        "training with one test set adds no independent evidence. "
        f"Effect: rank-biserial correlation over the repeats, {MINUS}1 to 1."
    )
    intervals = "Δ accuracy: 95 % confidence interval by bootstrap over bags."
    aucs = "Δ AUC: DeLong's test on each bag's mean probability over repeats."
    parts = [element("p", f"{intervals} {aucs} {explained}", class_="note")]
    for protocol in run.protocols:
        if here := [each for each in compared if each.protocol == protocol]:
            parts.append(element("h3", f"Selection protocol “{protocol}” ", badge(protocol)))
            parts.append(
                join(
                    leakage_warning([protocol]),
                    _comparison_table(protocol, here),
                    _across_table(protocol, here),
                )
            )
    return join(*parts)


def cost(run: Run) -> Markup | None:
    """The cost of each run."""
    rows = []
    for planned in run.planned:
        keys = [Key(planned.method, planned.dataset, protocol) for protocol in run.protocols]
        if result := next((run.results[key] for key in keys if key in run.results), None):
            more = run.costs.get(planned.name, Cost())
            values = (result.parameters, more.multiply_adds, result.seconds, more.memory_mib)
            numbers = [number_cell(_thousands(value), value) for value in values]
            rows.append(
                [
                    row_header(planned.method),
                    text_cell(planned.dataset),
                    *numbers,
                    number_cell(format_number(result.density), result.density),
                ]
            )
    if not rows:
        return None
    words = (
        "Parameters of one model; multiply-adds of its matrix products for one bag of median size; "
        "processor time in seconds over all folds; peak resident memory above that before the run "
        "in MiB (Linux only); density, the fraction of non-zero codes."
    )
    columns = ["Parameters", "Multiply-adds", "Seconds", "MiB", "Density"]
    return join(
        element("p", words, class_="note"), table("Cost", ["Method", DATASET], columns, rows)
    )


def number_cell(text: str, sort: float | None = None) -> Markup:
    """A number with the value that it is sorted by; without a value it is sorted to the end."""
    return element("td", text, data_sort="" if sort is None or math.isnan(sort) else f"{sort:.9g}")


def row_header(text: str, below: str | None = None) -> Markup:
    """The header of a row, with a smaller line below."""
    return element("th", text, element("small", below) if below else None, scope="row")


def text_cell(text: str) -> Markup:
    """Left-aligned text."""
    return element("td", text, class_="left")


def delta_span(value: float) -> Markup:
    """A difference with its sign, coloured by its direction."""
    kind = None if math.isnan(value) or round(value, 3) == 0 else "up" if value > 0 else "down"
    return element("span", change(value), class_=kind)


def _thousands(value: float) -> str:
    if value < 10:
        return format_number(value, digits=1)
    return (
        ABSENT if math.isnan(value) else f"{value:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")
    )


def _main_table(run: Run, protocol: str) -> Markup:
    by_metric = {metric: main_table(run, protocol, metric) for metric in METRIC_NAMES}
    width = len(run.datasets) + any(row.mean for row in by_metric["accuracy"])
    rows = [
        [
            row_header(same_method[0].method),
            *(
                _main_cell(dict(zip(METRIC_NAMES, (row.all_entries[i] for row in same_method))))
                for i in range(width)
            ),
        ]
        for same_method in zip(*by_metric.values())
    ]
    captions = [
        element("span", caption(run, protocol, metric), class_=f"m m-{metric}")
        for metric in METRIC_NAMES
    ]
    return join(
        element("h3", f"Selection protocol “{protocol}” ", badge(protocol)),
        leakage_warning([protocol]),
        element("p", *captions, class_="note"),
        table(
            f"Results under selection protocol {protocol}",
            ["Method"],
            [*run.datasets, "mean"][:width],
            rows,
        ),
    )


def _patient_table(run: Run) -> Markup | None:
    """Results by patient, if a patient has several slides."""
    rows = [
        [
            row_header(key.method),
            text_cell(key.dataset),
            text_cell(key.protocol),
            number_cell(str(result.bags), result.bags),
        ]
        + [
            number_cell(spread(result.metrics[metric]), result.metrics[metric].mean)
            for metric in ("accuracy", "auc")
        ]
        for key, result in run.by_patient.items()
    ]
    if not rows:
        return None
    words = "Patients instead of slides: the probability of a patient is the mean over the slides."
    columns = ["Patients", "Accuracy", "AUC"]
    return join(
        element("h3", "By patient"),
        element("p", words, class_="note"),
        table("Results by patient", ["Method", DATASET, "Protocol"], columns, rows),
    )


def _main_cell(entries: Mapping[str, TableEntry | None]) -> Markup:
    return element("td", *(_main_number(metric, entry) for metric, entry in entries.items()))


def _main_number(metric: str, entry: TableEntry | None) -> Markup:
    if entry is None or math.isnan(entry.mean):
        return element("span", ABSENT, class_=f"m m-{metric}", data_sort="")
    ours = element("span", format_number(entry.mean), class_="best" if entry.best else None)
    sd = (
        None
        if math.isnan(entry.sd)
        else element("span", f" ±{format_number(entry.sd)}", class_="sd")
    )
    paper = None
    if not math.isnan(entry.published):
        paper = element(
            "span",
            f"{format_number(entry.published)} ",
            delta_span(entry.difference),
            class_="published",
        )
    limits = None
    if math.isfinite(entry.low + entry.high):
        words = f"{format_number(entry.low)} to {format_number(entry.high)}"
        limits = element("small", words)
    return element(
        "span", ours, sd, limits, paper, class_=f"m m-{metric}", data_sort=f"{entry.mean:.9g}"
    )


def _protocol_effect_row(run: Run, row: ProtocolEffect, published: bool) -> list[Markup]:
    cells = [
        row_header(row.method),
        text_cell(row.dataset),
        *(number_cell(format_number(value), value) for value in row.accuracies),
    ]
    cells += [number_cell(change(row.gain), row.gain)] if TUNED in run.protocols else []
    if published:
        cells += [
            number_cell(format_number(row.published), row.published),
            number_cell(change(row.published_gain), row.published_gain),
        ]
    return cells


def _comparison_table(protocol: str, compared: Sequence[MethodComparison]) -> Markup:
    words = ["Method", DATASET, "Summary"]
    columns = [
        f"Δ{SPACE}accuracy",
        f"Δ{SPACE}AUC",
        "corrected p",
        "Wilcoxon p",
        "effect",
        f"folds +{SPACE}/{SPACE}{MINUS}{SPACE}/{SPACE}=",
    ]
    return table(
        f"Comparisons under selection protocol {protocol}",
        words,
        columns,
        [_comparison_row(each) for each in compared],
    )


def _comparison_row(each: MethodComparison) -> list[Markup]:
    result, ranks, auc = each.accuracy, each.accuracy.signed_rank, each.auc
    interval = element("small", f"{change(each.interval.low)} to {change(each.interval.high)}")
    auc_p = element("small", p_equals(auc.p)) if auc else None
    return [
        row_header(each.method, f"against {each.against}"),
        text_cell(each.dataset),
        element("td", with_minus(result.sentence()), class_="words"),
        number_cell(join(delta_span(result.delta), interval), result.delta),
        number_cell(join(delta_span(auc.difference), auc_p), auc.difference)
        if auc
        else number_cell(ABSENT),
        number_cell(p_value(result.p), result.p),
        number_cell(p_value(each.holm_p), each.holm_p),
        number_cell(f"{ranks.effect:+.2f}".replace("-", MINUS), ranks.effect),
        number_cell(f"{ranks.better} / {ranks.worse} / {ranks.equal}", ranks.better - ranks.worse),
    ]


def _across_table(protocol: str, compared: Sequence[MethodComparison]) -> Markup | None:
    rows = [
        [
            row_header(each.method, f"against {each.against}"),
            number_cell(str(each.datasets), each.datasets),
            number_cell(delta_span(each.delta), each.delta),
            number_cell(
                f"{each.test.better} / {each.test.worse} / {each.test.equal}",
                each.test.better - each.test.worse,
            ),
            number_cell(p_value(each.p), each.p),
            number_cell(f"{each.smallest_p:.4f}", each.smallest_p),
        ]
        for each in across_datasets(compared)
    ]
    if not rows:
        return None
    words = (
        "Over all data sets: Wilcoxon's signed-rank test of their means, for at least 5 data sets. "
        "The last column is the smallest p-value that is possible with this number of data sets."
    )
    columns = [
        "data sets",
        "mean Δ accuracy",
        "better / worse / equal",
        "Wilcoxon p",
        "smallest possible p",
    ]
    return join(
        element("p", words, class_="note"),
        table(f"Over data sets under selection protocol {protocol}", ["Method"], columns, rows),
    )
