"""What a run shows, in plain words that claim no more than it can."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from scmil import significance
from scmil.report.comparing import Compared, compare_arms, protocol_worth
from scmil.report.markup import change, number
from scmil.report.reading import TUNED, Arm, Key, Run


def verdict(run: Run, compared: Sequence[Compared] | None = None) -> str:
    """What the run shows, in a paragraph that claims no more than it can."""
    compared = compare_arms(run) if compared is None else compared
    sentences = [_progress(run)]
    protocol = next(iter(run.honest or run.protocols), None)
    judged = [each for each in compared if each.protocol == protocol]
    if judged:
        sentences += [_counted(judged), *_averages(run.arms, judged)]
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
