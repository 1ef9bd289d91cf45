"""The summary paragraph of a run directory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from scmil.report.comparisons import (
    MethodComparison,
    compare_methods,
    compare_pair,
    protocol_effects,
)
from scmil.report.html.markup import change, format_number
from scmil.report.run import TUNED, Key, Method, Run
from scmil.report.tables import explained_protocol
from scmil.stats import significance
from scmil.stats.significance import FoldComparison

BASELINE = "logistic-mean-max"  # the method that is not a neural network


def class_verdict(run: Run, compared: Sequence[MethodComparison] | None = None) -> str:
    """Summarise a run directory in one paragraph.

    Args:
        run: The contents of the run directory.
        compared: Its comparisons, if they have been computed already.

    Returns:
        Progress, significant differences, controls, and the effect of the selection protocol.
    """
    compared = compare_methods(run) if compared is None else compared
    sentences = [progress_of(run)]
    protocol = next(iter(run.leakage_free or run.protocols), None)
    judged = [each for each in compared if each.protocol == protocol]
    if judged:
        sentences += [
            *_in_short(run, judged),
            _count_significant(judged),
            *_averages(run.methods, judged),
            *_controls(run, judged),
            *_baseline(run, judged),
        ]
    elif protocol:
        sentences.append("No two methods can be compared yet.")
    if protocol == TUNED:
        sentences.append(
            "All results were selected on the test folds, so none of them estimates the "
            "performance on new bags."
        )
    return " ".join([*sentences, *_protocol_sentences(run)])


def progress_of(run: Run) -> str:
    """How many runs are finished, and how many failed."""
    finished, failed = len(run.finished), len(run.failed)
    words = (
        f"All {finished} runs are finished."
        if finished == len(run.planned)
        else _half_finished(run)
    )
    return words + (f" {failed} failed." if failed else "")


def _half_finished(run: Run) -> str:
    return f"Unfinished: {len(run.finished)} of {len(run.planned)} runs have results."


def _count_significant(judged: Sequence[MethodComparison]) -> str:
    """The number of significant differences, before and after correction for multiple tests."""
    sure = [each for each in judged if each.accuracy.p < 0.05]
    gains = sum(each.accuracy.delta > 0 for each in sure)
    still = sum(p < 0.05 for p in significance.holm([each.accuracy.p for each in judged]))
    start = f"Under the selection protocol {explained_protocol(judged[0].protocol)}"
    if len(judged) == 1:
        return f"{start}: {judged[0].accuracy.sentence()}"
    if not sure:
        return f"{start}, none of the {len(judged)} comparisons shows a significant difference."
    return (
        f"{start}, {gains} of {len(judged)} comparisons show a significant gain and "
        f"{len(sure) - gains} a significant loss (p < 0.05); {still or 'none'} of these "
        f"{len(sure)} remain significant after Holm's correction for {len(judged)} comparisons."
    )


def _averages(methods: Sequence[Method], judged: Sequence[MethodComparison]) -> list[str]:
    means = [
        (
            method.name,
            method.against,
            np.array([each.accuracy.delta for each in judged if each.method == method.name]),
        )
        for method in methods
    ]
    means = [(name, against, deltas) for name, against, deltas in means if len(deltas)]
    if len(judged) == 1:
        return []
    if len(means) <= 3:
        return [
            f"{name} changed the accuracy of {against} by {change(float(deltas.mean()))}"
            + (
                f" on average ({change(deltas.min())} to {change(deltas.max())} over "
                f"{len(deltas)} data sets)."
                if len(deltas) > 1
                else "."
            )
            for name, against, deltas in means
        ]
    low, high = (pick(means, key=lambda each: each[2].mean()) for pick in (min, max))
    return [
        f"Averaged over data sets, the changes lie between {change(float(low[2].mean()))} "
        f"({low[0]}) and {change(float(high[2].mean()))} ({high[0]})."
    ]


def kinds_of(run: Run) -> dict[str, str]:
    """The kind of each method by its settings: coded, control, rival or baseline; others are
    omitted.
    """
    kinds = {}
    for planned in run.planned:
        model = planned.settings.get("model")
        if isinstance(model, Mapping):
            if model.get("aggregator") == BASELINE:
                kinds[planned.method] = "baseline"
            elif model.get("refine") == "rrt":
                kinds[planned.method] = "rival"
            elif model.get("refine") == "linear":
                kinds[planned.method] = "control"
            elif model.get("refine") in ("random", "normalise"):
                continue  # further controls, which the sentences do not compare
            elif model.get("sparse_coding") or model.get("refine") == "sparse-coding":
                kinds[planned.method] = "coded"
    return kinds


def _in_short(run: Run, judged: Sequence[MethodComparison]) -> list[str]:
    """One sentence as a conclusion, by p-values that are corrected for the number of comparisons of
    sparse coding; only if there is a control to compare with.
    """
    kinds, against_control = kinds_of(run), _against_controls(run, judged)
    coded = [each.accuracy for each in judged if kinds.get(each.method) == "coded"]
    if not coded or not against_control:
        return []
    corrected = significance.holm([each.p for each in coded])
    gains, losses = (
        sum(sign * each.delta > 0 and p < 0.05 for each, p in zip(coded, corrected, strict=True))
        for sign in (1, -1)
    )
    if losses >= gains:
        conclusion = (
            "sparse coding lowers accuracy"
            if losses > gains
            else "there is no evidence that sparse coding helps"
        )
    elif any(each.delta > 0 and each.p < 0.05 for each in against_control):
        conclusion = "sparse coding helps, and more than a linear layer in its place"
    else:
        conclusion = "an additional layer helps, but a linear layer does as well as sparse coding"
    return [f"In short: on this data {conclusion}."]


def _against_controls(
    run: Run, judged: Sequence[MethodComparison], kind: str = "control"
) -> list[FoldComparison]:
    """Sparse coding against another layer, for each pair with the same reference method."""
    kinds = kinds_of(run)
    pairs = [
        (
            Key(coded.method, coded.dataset, coded.protocol),
            Key(plain.method, plain.dataset, plain.protocol),
        )
        for coded in judged
        for plain in judged
        if (kinds.get(coded.method), kinds.get(plain.method)) == ("coded", kind)
        and (coded.against, coded.dataset) == (plain.against, plain.dataset)
    ]
    return [compare_pair(run, *pair).accuracy for pair in pairs]


def _controls(run: Run, judged: Sequence[MethodComparison]) -> list[str]:
    """Whether sparse coding helps more than other layers in its place."""
    layers = {"control": "a linear layer of the same width", "rival": "RRT's re-embedding"}
    return [
        sentence
        for kind, layer in layers.items()
        for sentence in _against(layer, _against_controls(run, judged, kind))
    ]


def _against(layer: str, pairs: Sequence[FoldComparison]) -> list[str]:
    if not pairs:
        return []
    better = sum(each.delta > 0 and each.p < 0.05 for each in pairs)
    worse = sum(each.delta < 0 and each.p < 0.05 for each in pairs)
    mean = change(float(np.mean([each.delta for each in pairs])))
    start = f"Compared with {layer} in its place, sparse coding"
    if not better and not worse:
        return [f"{start} makes no significant difference ({mean})."]
    if worse > better:
        count = f"is worse in {worse} of {len(pairs)} pairs and better in {better}"
        return [f"{start} {count} ({mean})."]
    return [f"{start} is better in {better} of {len(pairs)} pairs and worse in {worse} ({mean})."]


def _baseline(run: Run, judged: Sequence[MethodComparison]) -> list[str]:
    """Compare the logistic regression with the neural networks by AUC."""
    kinds, protocol, sentences = kinds_of(run), judged[0].protocol, []
    for dataset in run.datasets:
        here = {
            key.method: r.metrics["auc"].mean
            for key, r in run.results.items()
            if key[1:] == (dataset, protocol)
        }
        here = {method: value for method, value in here.items() if math.isfinite(value)}
        simple = next((method for method in here if kinds.get(method) == "baseline"), None)
        networks = {method: value for method, value in here.items() if method != simple}
        if simple is None or not networks:
            continue
        best = max(networks, key=networks.__getitem__)
        below = sum(value < here[simple] for value in networks.values())
        numbers = (
            f"AUC {format_number(here[simple])}, the best network ({best}) "
            f"{format_number(networks[best])}"
        )
        start = f"On {dataset}, a logistic regression on the mean and the maximum of each bag"
        if below == len(networks):
            sentences.append(f"{start} is better than all {below} networks: {numbers}.")
        else:
            sentences.append(
                f"{start} is better than {below or 'none'} of the {len(networks)} networks: "
                f"{numbers}."
            )
    return sentences


def _protocol_sentences(run: Run) -> list[str]:
    """The gaps between leakage-free, test-tuned and published results, if there are any."""
    rows = protocol_effects(run)
    sentences = []
    if gains := [row.gain for row in rows if math.isfinite(row.gain)]:
        sentences.append(
            f"Selecting epoch and threshold on the test fold changes accuracy by "
            f"{change(float(np.mean(gains)))} on average over {len(gains)} runs."
        )
    protocol = next(iter(run.leakage_free), None)
    gaps = [
        published.accuracy - run.results[Key(*place, protocol)].metrics["accuracy"].mean
        for place, published in run.published.items()
        if protocol and Key(*place, protocol) in run.results
    ]
    if gaps:
        mean = float(np.mean(gaps))
        side = "above" if mean > 0 else "below"
        sentences.append(
            f"Published accuracies are {format_number(abs(mean))} {side} our leakage-free ones, on "
            f"average over {len(gaps)} runs."
        )
    return sentences
