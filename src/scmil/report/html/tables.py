"""The tables of the page: results, what the protocol is worth, comparisons, cost. Each can be sorted by its headings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from scmil.report.comparisons import Compared, Worth, across_datasets, protocol_worth
from scmil.report.html.markup import ABSENT, MINUS, Markup, change, element, join, number, p_value
from scmil.report.run_files import METRIC_NAMES, TUNED, Cost, Key, Run
from scmil.report.tables import WARNING, Entry, caption, main_table, spread

SPACE = "\N{NO-BREAK SPACE}"  # in headings that must not be broken there
DATASET = f"Data{SPACE}set"
TALL = 16  # rows; a longer table scrolls in its own frame


def table(name: str, words: Sequence[str], columns: Sequence[str], rows: Sequence[Sequence[Markup]]) -> Markup:
    """A sortable table in its own frame: first the columns of words, the very first one heading its row."""
    heads = [
        element("th", element("button", column, type="button"), scope="col", class_="left" if i < len(words) else None)
        for i, column in enumerate([*words, *columns])
    ]
    body = element("tbody", *(element("tr", *row) for row in rows))
    inner = element("table", element("caption", name), element("thead", element("tr", *heads)), body)
    kind = "scroll tall" if len(rows) > TALL else "scroll"
    return element("div", inner, class_=kind, role="region", aria_label=name, tabindex=0)


def warning(protocols: Iterable[str]) -> Markup | None:
    """The sentence that goes with every number that was chosen on its own test fold."""
    return element("p", WARNING, class_="warn") if TUNED in protocols else None


def badge(protocol: str) -> Markup:
    """Honest, or not."""
    words, kind = ("chosen on the test fold", "badge warn") if protocol == TUNED else ("honest", "badge")
    return element("span", words, class_=kind)


def results(run: Run) -> Markup | None:
    """The main tables, one for each protocol, with a choice of metrics."""
    if not run.results:
        return None
    options = [element("option", name, value=metric) for metric, name in METRIC_NAMES.items()]
    pick = element("label", "Show ", element("select", *options, autocomplete="off"), class_="pick", hidden="hidden")
    note = f"Below each number in grey: as published, and how far ours is from it. {run.published_note}".strip()
    return element(
        "div",
        pick,
        element("p", note, class_="note m m-accuracy") if run.published else None,
        *(_main_table(run, protocol) for protocol in run.protocols),
        _patient_table(run),
        data_metric="accuracy",
    )


def worth(run: Run) -> Markup | None:
    """Every protocol beside the published number."""
    rows = protocol_worth(run)
    if not rows:
        return None
    published = any(math.isfinite(row.published) for row in rows)
    honest = next(iter(run.honest), TUNED)
    columns = [*run.protocols]
    columns += [f"{TUNED} {MINUS} {honest}"] if TUNED in run.protocols else []
    columns += ["published", f"published {MINUS} {honest}"] if published else []
    return join(
        element("p", "Accuracy of each arm by every protocol: what it adds to choose on the test fold."),
        warning(run.protocols),
        table(
            "What the protocol is worth",
            ["Arm", DATASET],
            columns,
            [_worth_row(run, row, published) for row in rows],
        ),
    )


def comparisons(run: Run, compared: Sequence[Compared]) -> Markup | None:
    """Each arm against the one it names, by protocol, with a sentence for those who do not read tests."""
    if not compared:
        return None
    explained = (
        "Corrected p: Nadeau and Bengio's t-test over folds, which allows for folds that share bags; judge by this one. "
        "Wilcoxon p: signed-rank test over folds, corrected by Holm over the data sets; it takes folds for independent, so "
        f"it is too sure. Effect: rank-biserial correlation, {MINUS}1 to 1."
        if run.has_folds
        else "Corrected p: there is one test set, and runs on the same bags are no new evidence, so it is a permutation test "
        f"over the bags of the test set. Effect: rank-biserial correlation over the runs, {MINUS}1 to 1."
    )
    intervals = "Δ accuracy: 95 % interval by bootstrap over bags."
    aucs = "Δ AUC: DeLong's test on each bag's mean probability over repeats."
    parts = [element("p", f"{intervals} {aucs} {explained}", class_="note")]
    for protocol in run.protocols:
        if here := [each for each in compared if each.protocol == protocol]:
            parts.append(element("h3", f"Protocol “{protocol}” ", badge(protocol)))
            parts.append(join(warning([protocol]), _comparison_table(protocol, here), _across_table(protocol, here)))
    return join(*parts)


def cost(run: Run) -> Markup | None:
    """What each cell took."""
    rows = []
    for cell in run.cells:
        keys = [Key(cell.arm, cell.dataset, protocol) for protocol in run.protocols]
        if found := next((run.results[key] for key in keys if key in run.results), None):
            more = run.costs.get(cell.name, Cost())
            values = (found.parameters, more.multiply_adds, found.seconds, more.memory_mib)
            numbers = [cell_of_number(_thousands(value), value) for value in values]
            rows.append(
                [
                    cell_of_name(cell.arm),
                    cell_of_words(cell.dataset),
                    *numbers,
                    cell_of_number(number(found.density), found.density),
                ]
            )
    if not rows:
        return None
    words = (
        "Parameters of one model; multiply-adds of its matrix products for one bag of median size; processor seconds of a "
        "cell, all folds; the peak of resident memory above what the process had before, in MiB, where Linux says it; "
        "density, the share of codes that are not 0."
    )
    columns = ["Parameters", "Multiply-adds", "Seconds", "MiB", "Density"]
    return join(element("p", words, class_="note"), table("Cost", ["Arm", DATASET], columns, rows))


def cell_of_number(text: str, sort: float | None = None) -> Markup:
    """A number with the value it is sorted by; without one it goes to the end."""
    return element("td", text, data_sort="" if sort is None or math.isnan(sort) else f"{sort:.9g}")


def cell_of_name(text: str, below: str | None = None) -> Markup:
    """The heading of a row, with a smaller line below."""
    return element("th", text, element("small", below) if below else None, scope="row")


def cell_of_words(text: str) -> Markup:
    """A word, to the left."""
    return element("td", text, class_="left")


def _delta(value: float) -> Markup:
    """A difference in the colour of its direction; the sign says it too, for those who see no colour."""
    kind = None if math.isnan(value) or round(value, 3) == 0 else "up" if value > 0 else "down"
    return element("span", change(value), class_=kind)


def _thousands(value: float) -> str:
    if value < 10:
        return number(value, digits=1)
    return ABSENT if math.isnan(value) else f"{value:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def _main_table(run: Run, protocol: str) -> Markup:
    by_metric = {metric: main_table(run, protocol, metric) for metric in METRIC_NAMES}
    width = len(run.datasets) + any(row.mean for row in by_metric["accuracy"])
    rows = [
        [
            cell_of_name(same_arm[0].arm),
            *(_main_cell(dict(zip(METRIC_NAMES, (row.all_entries[i] for row in same_arm)))) for i in range(width)),
        ]
        for same_arm in zip(*by_metric.values())
    ]
    captions = [element("span", caption(run, protocol, metric), class_=f"m m-{metric}") for metric in METRIC_NAMES]
    return join(
        element("h3", f"Protocol “{protocol}” ", badge(protocol)),
        warning([protocol]),
        element("p", *captions, class_="note"),
        table(f"Results by protocol {protocol}", ["Arm"], [*run.datasets, "mean"][:width], rows),
    )


def _patient_table(run: Run) -> Markup | None:
    """Where a patient has several slides: the patient's probability is the mean over the slides."""
    rows = [
        [
            cell_of_name(key.arm),
            cell_of_words(key.dataset),
            cell_of_words(key.protocol),
            cell_of_number(str(result.bags), result.bags),
        ]
        + [
            cell_of_number(spread(result.metrics[metric]), result.metrics[metric].mean)
            for metric in ("accuracy", "auc")
        ]
        for key, result in run.by_patient.items()
    ]
    if not rows:
        return None
    words = "Of patients instead of slides: a patient's probability is the mean over the slides."
    columns = ["Patients", "Accuracy", "AUC"]
    return join(
        element("h3", "By patient"),
        element("p", words, class_="note"),
        table("Results by patient", ["Arm", DATASET, "Protocol"], columns, rows),
    )


def _main_cell(entries: Mapping[str, Entry | None]) -> Markup:
    return element("td", *(_main_number(metric, entry) for metric, entry in entries.items()))


def _main_number(metric: str, entry: Entry | None) -> Markup:
    if entry is None or math.isnan(entry.mean):
        return element("span", ABSENT, class_=f"m m-{metric}", data_sort="")
    ours = element("span", number(entry.mean), class_="best" if entry.best else None)
    sd = None if math.isnan(entry.sd) else element("span", f" ±{number(entry.sd)}", class_="sd")
    paper = None
    if not math.isnan(entry.published):
        paper = element("span", f"{number(entry.published)} ", _delta(entry.difference), class_="published")
    return element("span", ours, sd, paper, class_=f"m m-{metric}", data_sort=f"{entry.mean:.9g}")


def _worth_row(run: Run, row: Worth, published: bool) -> list[Markup]:
    cells = [
        cell_of_name(row.arm),
        cell_of_words(row.dataset),
        *(cell_of_number(number(value), value) for value in row.accuracies),
    ]
    cells += [cell_of_number(change(row.gain), row.gain)] if TUNED in run.protocols else []
    if published:
        cells += [
            cell_of_number(number(row.published), row.published),
            cell_of_number(change(row.published_gain), row.published_gain),
        ]
    return cells


def _comparison_table(protocol: str, compared: Sequence[Compared]) -> Markup:
    words = ["Arm", DATASET, "In words"]
    columns = [
        f"Δ{SPACE}accuracy",
        f"Δ{SPACE}AUC",
        "corrected p",
        "Wilcoxon p",
        "effect",
        f"folds +{SPACE}/{SPACE}{MINUS}{SPACE}/{SPACE}=",
    ]
    return table(f"Comparisons by protocol {protocol}", words, columns, [_comparison_row(each) for each in compared])


def _comparison_row(each: Compared) -> list[Markup]:
    result, ranks, auc = each.accuracy, each.accuracy.signed_rank, each.auc
    interval = element("small", f"{change(each.interval.low)} to {change(each.interval.high)}")
    auc_p = element("small", f"p = {p_value(auc.p)}".replace("= <", "<")) if auc else None
    return [
        cell_of_name(each.arm, f"against {each.against}"),
        cell_of_words(each.dataset),
        element("td", result.sentence(), class_="words"),
        cell_of_number(join(_delta(result.delta), interval), result.delta),
        cell_of_number(join(_delta(auc.difference), auc_p), auc.difference) if auc else cell_of_number(ABSENT),
        cell_of_number(p_value(result.p), result.p),
        cell_of_number(p_value(each.holm_p), each.holm_p),
        cell_of_number(f"{ranks.effect:+.2f}".replace("-", MINUS), ranks.effect),
        cell_of_number(f"{ranks.better} / {ranks.worse} / {ranks.equal}", ranks.better - ranks.worse),
    ]


def _across_table(protocol: str, compared: Sequence[Compared]) -> Markup | None:
    rows = [
        [
            cell_of_name(each.arm, f"against {each.against}"),
            cell_of_number(str(each.datasets), each.datasets),
            cell_of_number(_delta(each.delta), each.delta),
            cell_of_number(
                f"{each.test.better} / {each.test.worse} / {each.test.equal}", each.test.better - each.test.worse
            ),
            cell_of_number(p_value(each.p), each.p),
            cell_of_number(f"{each.smallest_p:.4f}", each.smallest_p),
        ]
        for each in across_datasets(compared)
    ]
    if not rows:
        return None
    words = (
        "Over the data sets together: Wilcoxon's signed-rank test of their means, from 5 data sets on. The last column is "
        "the smallest p that so many data sets can give, however large the differences."
    )
    columns = ["data sets", "mean Δ accuracy", "better / worse / equal", "Wilcoxon p", "smallest possible p"]
    return join(
        element("p", words, class_="note"), table(f"Over data sets by protocol {protocol}", ["Arm"], columns, rows)
    )
