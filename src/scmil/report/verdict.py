"""What a run shows, in plain words that claim no more than it can."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from scmil.stats import significance
from scmil.report.comparisons import Compared, compare_arms, compare_pair, protocol_worth
from scmil.report.html.markup import change, number
from scmil.report.run_files import TUNED, Arm, Key, Run
from scmil.stats.significance import Comparison

BASELINE = "logistic-mean-max"  # the arm that is not a network


def verdict(run: Run, compared: Sequence[Compared] | None = None) -> str:
    """What the run shows, in a paragraph that claims no more than it can."""
    compared = compare_arms(run) if compared is None else compared
    sentences = [_progress(run)]
    protocol = next(iter(run.honest or run.protocols), None)
    judged = [each for each in compared if each.protocol == protocol]
    if judged:
        sentences += [
            *_in_short(run, judged),
            _counted(judged),
            *_averages(run.arms, judged),
            *_controls(run, judged),
            *_baseline(run, judged),
        ]
    elif protocol:
        sentences.append("No arm can be compared with another yet.")
    if protocol == TUNED:
        sentences.append(
            "All numbers were chosen on the test folds, so none of them says how well a model does on new bags."
        )
    return " ".join([*sentences, *_worth_sentences(run)])


def _progress(run: Run) -> str:
    finished, failed = len(run.finished), len(run.failed)
    words = f"All {finished} cells are finished." if finished == len(run.cells) else _half_finished(run)
    return words + (f" {failed} failed." if failed else "")


def _half_finished(run: Run) -> str:
    return f"Half-finished: {len(run.finished)} of {len(run.cells)} cells have results."


def _counted(judged: Sequence[Compared]) -> str:
    """How many differences are more than chance, before and after the correction for looking many times."""
    sure = [each for each in judged if each.accuracy.p < 0.05]
    gains = sum(each.accuracy.delta > 0 for each in sure)
    still = sum(p < 0.05 for p in significance.holm([each.accuracy.p for each in judged]))
    start = f"By protocol “{judged[0].protocol}”"
    if len(judged) == 1:
        return f"{start}: {judged[0].accuracy.sentence()}"
    if not sure:
        return f"{start}, none of the {len(judged)} comparisons shows a difference that this data can tell from chance."
    return (
        f"{start}, {gains} of {len(judged)} comparisons show a gain and {len(sure) - gains} a loss (p < 0.05); "
        f"{still or 'none'} of these {len(sure)} remain after Holm's correction for {len(judged)} comparisons."
    )


def _averages(arms: Sequence[Arm], judged: Sequence[Compared]) -> list[str]:
    means = [
        (arm.name, arm.against, np.array([each.accuracy.delta for each in judged if each.arm == arm.name]))
        for arm in arms
    ]
    means = [(name, against, deltas) for name, against, deltas in means if len(deltas)]
    if len(judged) == 1:
        return []
    if len(means) <= 3:
        return [
            f"{name} changed the accuracy of {against} by {change(float(deltas.mean()))}"
            + (
                f" on average ({change(deltas.min())} to {change(deltas.max())} over {len(deltas)} data sets)."
                if len(deltas) > 1
                else "."
            )
            for name, against, deltas in means
        ]
    low, high = (pick(means, key=lambda each: each[2].mean()) for pick in (min, max))
    return [
        f"Averaged over data sets, the changes lie between {change(float(low[2].mean()))} ({low[0]}) "
        f"and {change(float(high[2].mean()))} ({high[0]})."
    ]


def _kinds(run: Run) -> dict[str, str]:
    """What each arm is, as its settings say: coded, control or baseline; others have no name here."""
    kinds = {}
    for cell in run.cells:
        model = cell.settings.get("model")
        if isinstance(model, Mapping):
            if model.get("aggregator") == BASELINE:
                kinds[cell.arm] = "baseline"
            elif model.get("refine") == "linear":
                kinds[cell.arm] = "control"
            elif model.get("sparse_coding") or model.get("refine") == "sparse-coding":
                kinds[cell.arm] = "coded"
    return kinds


def _in_short(run: Run, judged: Sequence[Compared]) -> list[str]:
    """One sentence for those who read no further; only where a control is there to say it against."""
    kinds, against_control = _kinds(run), _against_controls(run, judged)
    coded = [each.accuracy for each in judged if kinds.get(each.arm) == "coded"]
    if not coded or not against_control:
        return []
    gains, losses = (sum(sign * each.delta > 0 and each.p < 0.05 for each in coded) for sign in (1, -1))
    if losses >= gains:
        said = "sparse coding does harm" if losses > gains else "nothing shows that sparse coding helps"
    elif any(each.delta > 0 and each.p < 0.05 for each in against_control):
        said = "sparse coding helps, and more than a plain layer in its place"
    else:
        said = "it helps to add a layer, but a plain one does the same as sparse coding"
    return [f"In short: on this data {said}."]


def _against_controls(run: Run, judged: Sequence[Compared]) -> list[Comparison]:
    """Sparse coding against the plain layer, for each pair that stands against the same arm."""
    kinds = _kinds(run)
    pairs = [
        (Key(coded.arm, coded.dataset, coded.protocol), Key(plain.arm, plain.dataset, plain.protocol))
        for coded in judged
        for plain in judged
        if (kinds.get(coded.arm), kinds.get(plain.arm)) == ("coded", "control")
        and (coded.against, coded.dataset) == (plain.against, plain.dataset)
    ]
    return [compare_pair(run, *pair).accuracy for pair in pairs]


def _controls(run: Run, judged: Sequence[Compared]) -> list[str]:
    """Whether it is sparse coding that helps, or any layer in its place."""
    if not (found := _against_controls(run, judged)):
        return []
    better = sum(each.delta > 0 and each.p < 0.05 for each in found)
    worse = sum(each.delta < 0 and each.p < 0.05 for each in found)
    mean = change(float(np.mean([each.delta for each in found])))
    start = "Against a plain layer of the same width in its place, sparse coding"
    if not better and not worse:
        return [
            f"{start} makes no difference that this data can tell from chance ({mean}): a plain layer does the same."
        ]
    if worse > better:
        count = f"is worse in {worse} of {len(found)} pairs and better in {better}"
        return [f"{start} {count} ({mean}): the plain layer does better."]
    return [f"{start} is better in {better} of {len(found)} pairs and worse in {worse} ({mean})."]


def _baseline(run: Run, judged: Sequence[Compared]) -> list[str]:
    """Where a logistic regression stands among the networks, by AUC."""
    kinds, protocol, sentences = _kinds(run), judged[0].protocol, []
    for dataset in run.datasets:
        here = {key.arm: r.metrics["auc"].mean for key, r in run.results.items() if key[1:] == (dataset, protocol)}
        here = {arm: value for arm, value in here.items() if math.isfinite(value)}
        simple = next((arm for arm in here if kinds.get(arm) == "baseline"), None)
        networks = {arm: value for arm, value in here.items() if arm != simple}
        if simple is None or not networks:
            continue
        best = max(networks, key=networks.__getitem__)
        below = sum(value < here[simple] for value in networks.values())
        numbers = f"AUC {number(here[simple])} against {number(networks[best])} of {best}, the best of them"
        start = f"On {dataset}, a logistic regression on the mean and the maximum of each bag"
        if below == len(networks):
            sentences.append(f"{start} does better than all {below} networks: {numbers}.")
        else:
            sentences.append(f"{start} does better than {below or 'none'} of the {len(networks)} networks: {numbers}.")
    return sentences


def _worth_sentences(run: Run) -> list[str]:
    """The gap between honest, tuned and published numbers, where a run has them."""
    rows = protocol_worth(run)
    sentences = []
    if gains := [row.gain for row in rows if math.isfinite(row.gain)]:
        sentences.append(
            f"Choosing epoch and threshold on the test fold changes accuracy by {change(float(np.mean(gains)))} "
            f"on average over {len(gains)} cells."
        )
    protocol = next(iter(run.honest), None)
    gaps = [
        published.accuracy - run.results[Key(*place, protocol)].metrics["accuracy"].mean
        for place, published in run.published.items()
        if protocol and Key(*place, protocol) in run.results
    ]
    if gaps:
        mean = float(np.mean(gaps))
        side = "above" if mean > 0 else "below"
        sentences.append(
            f"Published numbers lie {number(abs(mean))} {side} our honest ones, on average over {len(gaps)} cells."
        )
    return sentences
