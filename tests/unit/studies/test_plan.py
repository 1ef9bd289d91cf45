"""An experiment file as a plan: overrides, paths, recipes and digests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scmil.errors import ConfigError
from scmil.studies.plan import make_plan, read_plan, recipe_of
from scmil.training.regularisation import Regularisation

ROOT = Path(__file__).parents[3]
MUSK1: dict[str, Any] = {"data": {"dataset": "musk1"}}


def test_overrides_replace_what_varies(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        '[grid]\n"data.dataset" = ["musk1", "elephant"]\n[[arms]]\nname = "a"\nprotocol.folds = 5\n'
    )
    plan = read_plan(file, ["data.dataset=musk1", "training.epochs=2", "protocol.folds=3"])
    assert [cell.name for cell in plan.cells] == ["musk1--a"]
    assert plan.cells[0].settings.training.to_json() == {"recipe": "paper", "epochs": 2}
    assert plan.cells[0].settings.protocol.folds == 3
    with pytest.raises(ConfigError, match="--set epochs: expected key=value"):
        read_plan(file, ["epochs"])


def test_the_digest_changes_with_any_setting() -> None:
    def digest(**training: Any) -> str:
        return make_plan({**MUSK1, "training": training}, "mine").cells[0].digest

    assert digest() == digest()
    assert digest(epochs=3) != digest()


def test_table_2_is_the_papers() -> None:
    changes = ["data.dataset=musk1"]  # fox and tiger may not be here
    plan = read_plan(ROOT / "experiments" / "table2_classic.toml", changes)
    assert len(plan.arms) == 15
    assert len({row["arm"] for row in plan.published}) == 13
    protocol = plan.cells[0].settings.protocol
    assert (protocol.folds, protocol.repeats) == (10, 5)


def test_a_data_set_that_is_not_needed_may_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SCMIL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    table2 = ROOT / "experiments" / "table2_classic.toml"
    with pytest.raises(ConfigError) as raised:
        read_plan(table2)
    # Fox and tiger, each reported once.
    assert str(raised.value).count("is not available. Do one of these:") == 2
    assert len(read_plan(table2, only="musk1--*").cells) == 75


def test_folder_and_labels_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "bags").mkdir()
    (tmp_path / "labels.csv").write_text("slide,label\n")
    file = tmp_path / "mine.toml"
    file.write_text(
        '[data]\ndataset = "bags"\nlabels = "labels.csv"\nlabel = "grade"\nkey = "uni"\n'
    )
    [cell] = read_plan(file).cells
    assert cell.name == "bags--abmil-gated"
    assert cell.settings.data.to_json() == {
        "dataset": str(tmp_path / "bags"),
        "standardise": False,
        "labels": str(tmp_path / "labels.csv"),
        "label": "grade",
        "key": "uni",
    }


def test_the_official_recipe_is_the_aggregators_own() -> None:
    plan = make_plan(
        {
            **MUSK1,
            "training": {"recipe": "official", "epochs": 7},
            "grid": {"model.aggregator": ["dsmil", "transmil", "logistic-mean-max"]},
        },
        "mine",
    )
    dsmil, transmil, _ = (
        recipe_of(cell.settings.model, cell.settings.training) for cell in plan.cells
    )
    assert (dsmil.betas, dsmil.epochs) == ((0.5, 0.9), 7)
    assert (transmil.optimiser, transmil.epochs) == ("lookahead-radam", 7)


def test_a_regularisation_is_part_of_the_recipe() -> None:
    chosen = {"training": {"regularisation": {"tile_sample": 8, "mixup": 0.4}}}
    [cell] = make_plan({**MUSK1, **chosen}, "mine").cells
    recipe = recipe_of(cell.settings.model, cell.settings.training)
    assert recipe.regularisation == Regularisation(tile_sample=8, mixup=0.4)


def test_what_a_plan_does_not_say_is_not_in_its_digest() -> None:
    assert make_plan(MUSK1, "mine").cells[0].settings.data.to_json() == {
        "dataset": "musk1",
        "standardise": True,
    }
