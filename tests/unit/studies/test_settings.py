"""The settings of a run as files hold them, and their digest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scmil.studies.settings import (
    DataSettings,
    ModelSettings,
    ProtocolSettings,
    RunSettings,
    TrainingSettings,
)

PROTOCOLS = ("last", "nested", "test-tuned")
# Of `musk1--abmil-gated-sc` in experiments/results/table2_classic, made by version 0.6 with decay.
DIGEST = "d773b0c9dfdc3de4"


def settings_of(**changes: bool) -> RunSettings:
    return RunSettings(
        DataSettings.from_json({"dataset": "musk1", "standardise": True}),
        ProtocolSettings("kfold", 10, 5, 0, PROTOCOLS, 0.2, 0.2),
        ModelSettings(
            {"name": "abmil-gated", "hidden": 64},
            {"atoms": 256, "layers": 5},
            embed=[256, 128, 64],
        ),
        TrainingSettings("paper", changes),
    )


def test_results_of_a_decayed_layer_belong_only_to_runs_with_its_decay() -> None:
    assert settings_of(decay_sparse_coding=True).digest == DIGEST
    assert settings_of().digest != DIGEST
    assert settings_of(decay_sparse_coding=False).digest == settings_of().digest


@pytest.mark.parametrize(
    "changes", [{"sparse_coding": False}, {"refine": "linear"}], ids=["none", "linear"]
)
def test_decay_of_a_layer_that_is_not_there_changes_no_digest(changes: dict[str, object]) -> None:
    digests = set()
    for decayed in (True, False):
        run = settings_of(decay_sparse_coding=decayed)
        digests.add(replace(run, model=replace(run.model, **changes)).digest)  # type: ignore[arg-type]
    assert len(digests) == 1
