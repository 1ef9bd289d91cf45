"""Whether a model folder is new, started or finished, and by which command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from study_cases import QUICK, open_clam_cohort

from scmil import studies
from scmil.errors import ConfigError, OptionError, OutputError


def test_the_same_command_again_trains_nothing_and_another_is_rejected(
    trained_once: Path, model_copy: Path, tmp_path: Path
) -> None:
    data = studies.open_data(trained_once / "bags", trained_once / "bags" / "labels.csv")
    before = (model_copy / "model.safetensors").stat().st_mtime_ns
    again = studies.train(data, model_copy, **QUICK, resume=True)
    assert again.metrics == json.loads((trained_once / "model" / "metrics.json").read_text())
    assert (model_copy / "model.safetensors").stat().st_mtime_ns == before
    with pytest.raises(
        ConfigError, match=r"was started with other settings: seed was 0, now 1. Choose another"
    ):
        studies.train(data, model_copy, **QUICK, seed=1)
    with pytest.raises(OptionError, match="has no interrupted training"):
        studies.train(data, tmp_path / "new", **QUICK, resume=True)


@pytest.mark.slow
def test_an_interrupted_training_ends_with_the_same_model(tmp_path: Path) -> None:
    data = open_clam_cohort(tmp_path)
    options = {"aggregator": "abmil-gated", "sparse_coding": {"atoms": 9}, "epochs": 4}
    studies.train(data, tmp_path / "whole", **options)

    def interrupt(what: str, done: int, total: int) -> None:
        if (what, done) == ("training, epochs", 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        studies.train(data, tmp_path / "broken", **options, progress=interrupt)
    assert not (tmp_path / "broken/study.json").exists()
    studies.train(data, tmp_path / "broken", **options, resume=True)
    for name in (
        "model.safetensors",
        "model.json",
        "history.csv",
        "predictions.csv",
        "metrics.json",
        "study.json",
    ):
        assert (tmp_path / "broken" / name).read_bytes() == (
            tmp_path / "whole" / name
        ).read_bytes(), name


@pytest.mark.parametrize(
    "name", ["predictions.csv", "report.html", "MODEL_CARD.md", "metrics.json", "history.csv"]
)
def test_a_training_does_not_replace_foreign_files(
    name: str, trained_once: Path, tmp_path: Path
) -> None:
    (tmp_path / name).write_text("theirs")
    data = studies.open_data(trained_once / "bags", trained_once / "bags" / "labels.csv")
    with pytest.raises(OutputError, match=f"{name} exists, and was not written by scmil train"):
        studies.train(data, tmp_path, **QUICK)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_of_two_trainings_into_one_folder_the_second_is_rejected(
    trained_once: Path, tmp_path: Path
) -> None:
    from scmil.core.jobs.locks import locked
    from scmil.studies.train_state import STARTED

    data = studies.open_data(trained_once / "bags", trained_once / "bags" / "labels.csv")
    tried: list[str] = []

    def second(*_: object) -> None:
        if not tried:
            # As another process sees it.
            with locked(tmp_path / "model" / STARTED, wait=False) as free:
                tried.append("free" if free else "taken")

    with (
        locked(tmp_path / "model" / STARTED, wait=False),
        pytest.raises(OutputError, match=r"another process is training into .*model"),
    ):
        studies.train(data, tmp_path / "model", **QUICK)
    studies.train(
        data,
        tmp_path / "model",
        **QUICK,
        progress=lambda what, *_: second() if "epochs" in what else None,
    )
    assert tried == ["taken"]  # while it trains
