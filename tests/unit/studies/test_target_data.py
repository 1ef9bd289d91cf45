"""Which task `[data]` describes, and its values."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from scmil import Bag
from scmil.bags.formats import export_bags
from scmil.bags.splits import Split
from scmil.errors import OptionError
from scmil.studies import target_checks
from scmil.studies.data import open_data
from scmil.studies.from_settings import build_for_split
from scmil.studies.plan import make_plan
from scmil.studies.run_inputs import load_bags
from scmil.studies.settings import DataSettings, ModelSettings, TaskOptions
from scmil.studies.target_data import task_of
from scmil.training.fold import train_fold
from scmil.training.recipes import Recipe


@pytest.fixture
def home(tmp_path: Path) -> Path:
    generator = torch.Generator().manual_seed(0)
    bags = [Bag(f"s{i}", torch.randn(5, 6, generator=generator) + i % 4) for i in range(16)]
    export_bags(bags, tmp_path / "bags", "clam")
    rows = [f"p{i},s{i},{20 - i},{i % 2},{i % 3},{i % 2},{(i // 2) % 2}" for i in range(16)]
    header = "case_id,slide_id,os_months,os_event,grade,tp53,msi"
    (tmp_path / "table.csv").write_text("\n".join([header, *rows]))
    return tmp_path


def test_columns_without_doubt_state_the_task(home: Path) -> None:
    data = open_data(home / "bags", home / "table.csv")
    assert data.settings.task == "survival"
    assert "task: 'survival' (inferred from the columns)." in data.notes
    assert data.bags.targets is not None
    assert data.bags.targets.of("s3") == (17.0, True)
    assert data.bags.classes == ("censored", "event")
    again = load_bags(DataSettings.from_json(data.settings.to_json()))
    assert again.targets is not None
    assert again.targets.values == data.bags.targets.values


@pytest.mark.parametrize(
    ("label", "task", "found"),
    [
        (None, TaskOptions(time="os_months", event="os_event"), "survival"),
        ("grade", TaskOptions("ordinal"), "ordinal"),
        ("grade", TaskOptions("regression"), "regression"),
        ("tp53,msi", None, "multilabel"),
        ("tp53", None, None),
    ],
)
def test_the_task_is_stated_or_inferred(
    home: Path, label: str | None, task: TaskOptions | None, found: str | None
) -> None:
    data = open_data(home / "bags", home / "table.csv", label=label, task=task)
    assert data.settings.task == found
    assert (data.bags.targets is None) == (found is None)


def test_an_unknown_task_is_rejected_with_the_known_ones() -> None:
    with pytest.raises(OptionError, match=r"task = 'cure'\. Known: class, survival, regression"):
        task_of(DataSettings("b", False, task="cure"))


def test_a_task_needs_a_table(home: Path) -> None:
    with pytest.raises(OptionError, match="the task 'ordinal' needs a table"):
        open_data(home / "bags", task=TaskOptions("ordinal"))


@pytest.mark.parametrize(
    ("label", "task", "width"),
    [(None, "survival", 4), ("grade", "ordinal", 3), ("tp53,msi", "multilabel", 2)],
)
def test_a_fold_is_trained_on_the_values(
    home: Path, label: str | None, task: str, width: int
) -> None:
    data = open_data(home / "bags", home / "table.csv", label=label, task=TaskOptions(task))
    split = Split(tuple(range(10)), (14, 15), (10, 11, 12, 13))
    model = build_for_split(ModelSettings("mean", embed=[4]), data.bags, split, dim=6, seed=0)
    fold = train_fold(model, data.bags, split, Recipe(epochs=2))
    assert fold.probabilities.shape == (1, 16, width)
    assert len(fold.history.valid_score) == 2


def test_the_folder_of_data_sets_is_searched_when_a_plan_is_checked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from scmil.bags.datasets import load_targets

    folders: list[object] = []

    def read(settings: DataSettings, data: object = None) -> object:
        folders.append(data)
        return load_targets("digits", "regression")

    monkeypatch.setattr(target_checks, "read_data_targets", read)
    make_plan({"data": {"dataset": "digits", "task": "regression"}}, "mine", data=tmp_path)
    assert folders == [tmp_path]
