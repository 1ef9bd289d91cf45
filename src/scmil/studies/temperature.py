"""Temperature scaling of a trained model: fitted on its validation split, applied to every
prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from scmil.core.limits import Bound
from scmil.core.run_format import COMBINED
from scmil.core.shapes import Numbers
from scmil.errors import OptionError
from scmil.stats.calibration import SMALLEST, fit_temperature, temper

if TYPE_CHECKING:
    from scmil.training.fold import TrainedFold

# At a limit the likelihood of the validation split has no maximum.
DETERMINED = Bound(0.02, 50)


def tempered(p: Numbers, temperature: float | None) -> Numbers:
    """Probabilities (..., c) of classes at a temperature; None leaves them unchanged.

    >>> tempered(np.array([0.2, 0.8]), 2.0).round(3).tolist()
    [0.333, 0.667]
    """
    if temperature is None:
        return p
    logits = np.log(np.clip(p, SMALLEST, 1))
    return temper(np.atleast_2d(logits), temperature).reshape(p.shape)


def tempered_threshold(threshold: float, temperature: float) -> float:
    """The threshold that gives the same decisions for tempered probabilities of two classes.

    >>> round(tempered_threshold(0.8, 2.0), 3), tempered_threshold(0.5, 2.0)
    (0.667, 0.5)
    """
    if not 0 < threshold < 1:
        return threshold
    return float(tempered(np.array([1 - threshold, threshold]), temperature)[1])


def calibrate_fold(
    fold: TrainedFold, labels: Sequence[int | None], valid: Sequence[int]
) -> tuple[TrainedFold, float | None, str]:
    """Fit a temperature to the validation bags and apply it to the predictions of all bags.

    Only the validation bags are used. The decisions do not change. If the likelihood has no
    maximum, because the validation split is separated without an error or is predicted worse than
    at random, nothing is calibrated.

    Args:
        fold: The trained model's predictions.
        labels: The class of each bag.
        valid: Positions of the validation bags.

    Returns:
        The predictions, the temperature or None, and a sentence for the report.
    """
    positions = list(valid)
    y: NDArray[np.int64] = np.array([labels[i] for i in positions], dtype=np.int64)
    logits = np.log(np.clip(fold.probabilities[-1][positions], SMALLEST, 1))
    temperature = fit_temperature(y, logits)
    if not DETERMINED.holds(temperature):
        return fold, None, describe_temperature(None, len(y))
    note = describe_temperature(temperature, len(y))
    changed = replace(
        fold,
        probabilities=np.stack([tempered(p, temperature) for p in fold.probabilities]),
        threshold=tempered_threshold(float(fold.threshold), temperature),
    )
    return changed, temperature, note


def describe_temperature(temperature: float | None, slides: int) -> str:
    """A sentence for the report: the temperature, or why there is none.

    >>> print(describe_temperature(1.5, 9))
    Probabilities are calibrated: temperature 1.5, fitted on the 9 slides of the validation split.
    """
    if temperature is None:
        return (
            f"Not calibrated: the {slides} slides of the validation split do not determine a "
            "temperature, because they are separated too well or too badly."
        )
    return (
        f"Probabilities are calibrated: temperature {temperature:.3g}, fitted on the {slides} "
        "slides of the validation split."
    )


def check_calibration(task: str | None, loss: str | None) -> None:
    """Raise OptionError if a task has no probabilities that a temperature could scale.

    Args:
        task: The task; None for classes.
        loss: The loss, if one was chosen.

    >>> check_calibration("regression", None)
    Traceback (most recent call last):
    ...
    scmil.errors.OptionError: --calibrate scales probabilities, and the task 'regression' has...
    """
    if task == COMBINED:
        raise OptionError(
            "--calibrate is not available for several targets at once: each part would need a "
            "temperature of its own. Omit the option, or train a model for each target."
        )
    if task == "regression":
        raise OptionError(
            "--calibrate scales probabilities, and the task 'regression' has none: a predicted "
            "number is calibrated by its scale, which comes from the training split. Omit the "
            "option; `scmil test` shows intercept and slope."
        )
    if task == "survival" and loss == "cox":
        raise OptionError(
            "--calibrate scales probabilities, and a Cox model has none: it predicts relative "
            "hazards without a baseline. Omit the option, or use --loss discrete."
        )
