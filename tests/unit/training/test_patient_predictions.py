"""Predictions of patients from those of their slides."""

from __future__ import annotations

import numpy as np
import pytest

from scmil.bags.targets import (
    ClassTarget,
    CombinedTarget,
    GradeTarget,
    LabelsTarget,
    NumberTarget,
    SurvivalTarget,
    Targets,
)
from scmil.training.held_out import HeldOut, score_held_out
from scmil.training.patient_predictions import patient_targets, pool_predictions

IDS, PATIENTS = ("a", "b", "c"), ("p", "p", None)


def predicted(outputs: list[list[float]], **more: object) -> HeldOut:
    return HeldOut(IDS, np.array(outputs), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("target", "value", "outputs", "mean", "largest"),
    [
        (NumberTarget(), 1.0, [[2.0], [4.0], [9.0]], [3.0], [4.0]),
        (
            GradeTarget("g", ("1", "2", "3")),
            1,
            [[0.6, 0.4, 0.0], [0.1, 0.2, 0.7], [1.0, 0.0, 0.0]],
            [0.35, 0.3, 0.35],
            [0.1, 0.2, 0.7],
        ),
        (
            LabelsTarget(("x", "y")),
            (True, None),
            [[0.2, 0.9], [0.6, 0.1], [0.0, 0.0]],
            [0.4, 0.5],
            [0.6, 0.9],
        ),
    ],
)
def test_slides_are_averaged_or_the_largest_counts(
    target: NumberTarget | GradeTarget | LabelsTarget,
    value: float,
    outputs: list[list[float]],
    mean: list[float],
    largest: list[float],
) -> None:
    targets = Targets(target, IDS, (value,) * 3, PATIENTS)
    for mode, expected in (("mean", mean), ("max", largest)):
        found = pool_predictions(targets, predicted(outputs), mode)
        assert found.ids == ("p", "c")
        np.testing.assert_allclose(found.outputs, [expected, outputs[2]])


def test_the_largest_risk_brings_its_curve_and_group() -> None:
    targets = Targets(SurvivalTarget(), IDS, ((3.0, True),) * 3, PATIENTS)
    slides = predicted(
        [[0.9], [0.2], [0.5]],
        risk=np.array([-0.9, -0.2, -0.5]),
        high=np.array([False, True, False]),
        times=(1.0,),
    )
    largest, mean = (pool_predictions(targets, slides, mode) for mode in ("max", "mean"))
    assert largest.risk is not None
    assert largest.high is not None
    assert mean.risk is not None
    assert mean.high is not None
    assert largest.risk.tolist() == [-0.2, -0.5]
    assert largest.outputs[:, 0].tolist() == [0.2, 0.5]
    assert largest.high.tolist() == [True, False]
    np.testing.assert_allclose(mean.risk, [-0.55, -0.5])
    assert mean.high.tolist() == [False, False]  # not more than half
    assert largest.times == (1.0,)


def test_each_of_several_targets_is_that_of_the_first_slide_that_has_it() -> None:
    target = CombinedTarget((NumberTarget("age"), ClassTarget("type", ("x", "y"))))
    values = ((None, 1), (60.0, None), (50.0, 0))
    targets = Targets(target, IDS, values, PATIENTS)
    assert patient_targets(targets).values == ((60.0, 1), (50.0, 0))
    parts = (
        predicted([[50.0], [70.0], [40.0]]),
        predicted([[0.9, 0.1], [0.4, 0.6], [0.5, 0.5]]),
    )
    slides = predicted([[0.0] * 3] * 3, parts=parts)
    found = pool_predictions(targets, slides, "max")
    np.testing.assert_allclose(found.outputs, [[70.0, 0.4, 0.6], [40.0, 0.5, 0.5]])
    assert score_held_out(patient_targets(targets), found)["age: mae"].value == 10.0


def test_a_patient_counts_once() -> None:
    targets = Targets(NumberTarget(), IDS, (1.0, 1.0, 2.0), PATIENTS)
    found = pool_predictions(targets, predicted([[0.0], [2.0], [2.0]]))
    assert score_held_out(patient_targets(targets), found)["mae"].value == 0.0
