"""The summary paragraph of a run directory of another task than classes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from scmil.report.html.markup import change, format_number
from scmil.report.run import TUNED, Key
from scmil.report.target_comparisons import (
    TargetComparison,
    compare_target_methods,
    compare_targets,
)
from scmil.report.target_run import TargetRun, explained_selection
from scmil.report.target_tables import interval_text
from scmil.report.verdict import kinds_of, progress_of


def target_verdict(run: TargetRun, compared: Sequence[TargetComparison] | None = None) -> str:
    """Summarise a run directory in one paragraph.

    Args:
        run: The contents of the run directory.
        compared: Its comparisons, if they have been computed already.

    Returns:
        Progress, whether methods are better than chance, significant differences, controls, the
        linear baseline, and the effect of the selection protocol.
    """
    return " ".join([progress_of(run), *task_sentences(run, compared)])


def task_sentences(run: TargetRun, compared: Sequence[TargetComparison] | None = None) -> list[str]:
    """The sentences of the summary that depend on the task."""
    compared = compare_target_methods(run) if compared is None else compared
    sentences: list[str] = []
    protocol = next(iter(run.leakage_free or run.protocols), None)
    judged = [each for each in compared if each.protocol == protocol]
    if protocol:
        against_control = _against_layer(run, judged, "control")
        sentences += _conclusion(run, judged, against_control)
        sentences.append(_above_chance(run, protocol))
        sentences += [_significant_sentence(judged)] if judged else []
        sentences += _layer_sentence("a linear layer of the same width", against_control)
        sentences += _layer_sentence("RRT's re-embedding", _against_layer(run, judged, "rival"))
        sentences += _linear_baseline(run, protocol)
    if protocol == TUNED:
        sentences.append(
            "All epochs were selected on the test folds, so no result estimates the performance "
            "on new slides."
        )
    return [*sentences, *_selection_bias(run, protocol)]


def _above_chance(run: TargetRun, protocol: str) -> str:
    """How many methods are better than chance, and the best of them."""
    found = {key: r.metrics[run.main] for key, r in run.results.items() if key.protocol == protocol}
    known = {key: value for key, value in found.items() if math.isfinite(value.mean)}
    start = f"Under the selection protocol {explained_selection(protocol)}"
    if not known:
        return f"{start}, {run.the_main} of no method is defined."
    above = sum(value.low > run.chance for value in known.values())
    best = max(known, key=lambda key: known[key].mean)
    where = f" on {best.dataset}" if len(run.datasets) > 1 else ""
    limits = interval_text(known[best])
    highest = format_number(known[best].mean) + (f" ({limits})" if limits else "")
    return (
        f"{start}, the 95 % interval of {run.the_main} lies above chance "
        f"({run.chance:g}) in {above or 'none'} of {len(known)} results; the highest is "
        f"{highest}, {best.method}{where}."
    )


def _significant_sentence(judged: Sequence[TargetComparison]) -> str:
    if len(judged) == 1:
        return judged[0].sentence()
    sure = [each for each in judged if each.significant]
    if not sure:
        return f"None of the {len(judged)} comparisons of methods shows a significant difference."
    gains = sum(each.found.difference > 0 for each in sure)
    still = sum(each.holm_p < 0.05 for each in judged)
    return (
        f"{gains} of {len(judged)} comparisons of methods show a significant gain and "
        f"{len(sure) - gains} a significant loss (p < 0.05); {still or 'none'} of these "
        f"{len(sure)} remain significant after Holm's correction."
    )


def _conclusion(
    run: TargetRun,
    judged: Sequence[TargetComparison],
    against_control: Sequence[TargetComparison],
) -> list[str]:
    """One sentence as a conclusion; only if there is a control to compare with."""
    kinds = kinds_of(run)
    coded = [each for each in judged if kinds.get(each.method) == "coded"]
    if not coded or not against_control:
        return []
    gains, losses = (
        sum(each.significant and sign * each.found.difference > 0 for each in coded)
        for sign in (1, -1)
    )
    if losses >= gains:
        conclusion = (
            f"sparse coding lowers {run.the_main}"
            if losses > gains
            else "there is no evidence that sparse coding helps"
        )
    elif any(each.significant and each.found.difference > 0 for each in against_control):
        conclusion = "sparse coding helps, and more than a linear layer in its place"
    else:
        conclusion = "an additional layer helps, but a linear layer does as well as sparse coding"
    return [f"In short: on this data {conclusion}."]


def _against_layer(
    run: TargetRun, judged: Sequence[TargetComparison], kind: str
) -> list[TargetComparison]:
    """Sparse coding against another layer, for each pair with the same reference method."""
    kinds = kinds_of(run)
    return [
        compare_targets(
            run,
            Key(coded.method, coded.dataset, coded.protocol),
            Key(plain.method, plain.dataset, plain.protocol),
        )
        for coded in judged
        for plain in judged
        if (kinds.get(coded.method), kinds.get(plain.method)) == ("coded", kind)
        and (coded.against, coded.dataset) == (plain.against, plain.dataset)
    ]


def _layer_sentence(layer: str, pairs: Sequence[TargetComparison]) -> list[str]:
    if not pairs:
        return []
    better, worse = (
        sum(each.significant and sign * each.found.difference > 0 for each in pairs)
        for sign in (1, -1)
    )
    mean = change(float(np.mean([each.found.difference for each in pairs])))
    start = f"Compared with {layer} in its place, sparse coding"
    if not better and not worse:
        return [f"{start} makes no significant difference ({mean})."]
    return [f"{start} is better in {better} of {len(pairs)} pairs and worse in {worse} ({mean})."]


def _linear_baseline(run: TargetRun, protocol: str) -> list[str]:
    """Compare the linear baseline with the neural networks by the main metric."""
    kinds, sentences = kinds_of(run), []
    for dataset in run.datasets:
        here = {
            key.method: result.metrics[run.main].mean
            for key, result in run.results.items()
            if key[1:] == (dataset, protocol)
        }
        here = {method: value for method, value in here.items() if math.isfinite(value)}
        simple = next((method for method in here if kinds.get(method) == "baseline"), None)
        networks = {method: value for method, value in here.items() if method != simple}
        if simple is None or not networks:
            continue
        best = max(networks, key=networks.__getitem__)
        below = sum(value < here[simple] for value in networks.values())
        sentences.append(
            f"On {dataset}, {simple} is better than {below or 'none'} of the {len(networks)} "
            f"networks: {run.main_name} {format_number(here[simple])}, the best network ({best}) "
            f"{format_number(networks[best])}."
        )
    return sentences


def _selection_bias(run: TargetRun, protocol: str | None) -> list[str]:
    """By how much selection on the test folds changes the main metric."""
    if protocol is None or protocol == TUNED or TUNED not in run.protocols:
        return []
    gains = [
        result.metrics[run.main].mean
        - run.results[key._replace(protocol=protocol)].metrics[run.main].mean
        for key, result in run.results.items()
        if key.protocol == TUNED and key._replace(protocol=protocol) in run.results
    ]
    known = [gain for gain in gains if math.isfinite(gain)]
    if not known:
        return []
    return [
        f"Selecting the epoch on the test fold changes {run.the_main} by "
        f"{change(float(np.mean(known)))} on average over {len(known)} runs."
    ]
