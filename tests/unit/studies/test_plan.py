from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from scmil.errors import ConfigError
from scmil.studies.plan import make_plan, read_plan, recipe_of
from scmil.training.regularisation import Regularisation

ROOT = Path(__file__).parents[3]
MUSK1: dict[str, Any] = {"data": {"dataset": "musk1"}}


def problems_of(document: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        make_plan({**MUSK1, **document}, "mine")
    return [line.strip() for line in str(raised.value).splitlines()[1:]]


def test_arms_times_grid_are_the_cells() -> None:
    plan = make_plan(
        {
            "grid": {"data.dataset": ["musk1", "elephant"]},
            "arms": [
                {"name": "plain"},
                {"name": "SC", "against": "plain", "model": {"sparse_coding": True}},
            ],
        },
        "mine",
    )
    assert [cell.name for cell in plan.cells] == [
        "musk1--plain",
        "elephant--plain",
        "musk1--sc",
        "elephant--sc",
    ]
    assert plan.datasets == ["musk1", "elephant"]
    assert plan.arms == (("plain", None), ("SC", "plain"))
    assert plan.cells[2].settings.model.sparse_coding is True
    assert plan.cells[0].settings.model.sparse_coding is False


def test_a_grid_without_arms_names_them_and_pair_says_what_is_compared() -> None:
    plan = make_plan(
        {
            **MUSK1,
            "grid": {
                "model.aggregator": ["abmil", "mean"],
                "model.sparse_coding": [False, {"atoms": 16}],
            },
            "report": {"pair": "model.sparse_coding"},
        },
        "mine",
    )
    assert plan.arms == (
        ("abmil", None),
        ("abmil sparse_coding=atoms=16", "abmil"),
        ("mean", None),
        ("mean sparse_coding=atoms=16", "mean"),
    )


def test_arms_that_differ_in_capitals_only_get_folders_of_their_own() -> None:
    plan = make_plan({**MUSK1, "arms": [{"name": "mi-Net"}, {"name": "MI-Net"}]}, "mine")
    assert [cell.name for cell in plan.cells] == ["musk1--mi-net", "musk1--mi-net-2"]


def test_all_mistakes_are_listed_at_once() -> None:
    problems = problems_of(
        {
            "titel": "x",
            "model": {"agregator": "abmil"},
            "protocol": {"fold": 3},
            "report": {"publishd": "x"},
            "grid": {"dataset": ["musk1"], "data.dataset": "musk1"},
            "arms": [{"against": "x", "modell": {}}],
        }
    )
    assert problems == [
        "titel: unknown key. Did you mean 'title'?",
        "[protocol] fold: unknown key. Did you mean 'folds'?",
        "[model] agregator: unknown key. Did you mean 'aggregator'?",
        "[report] publishd: unknown key. Did you mean 'published'?",
        "[grid] 'dataset': expected a key such as \"data.dataset\", of data, protocol, model, "
        "training.",
        "[grid] 'data.dataset' = 'musk1': expected a list of at least one value.",
        "[[arms]] number 1: a name is required.",
        "[[arms]] number 1: modell: unknown key. Did you mean 'model'?",
    ]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            {"data": {"dataset": "musk3"}},
            "[data] dataset = 'musk3': unknown data set. Did you mean",
        ),
        (
            {"data": {}},
            "[data] dataset = None: expected the name of a data set, or the path ",
        ),
        ({"data": {"dataset": "none.csv"}}, "none.csv does not exist."),
        (
            {"data": {"dataset": "musk1", "standardise": 1}},
            "[data] standardise = 1: expected true or false.",
        ),
        (
            {"model": {"aggregator": "abml"}},
            "[model] unknown aggregator 'abml'. Did you mean 'abmil'?",
        ),
        ({"model": {"aggregator": {"name": "abmil", "hiden": 3}}}, "[model] aggregator 'abmil':"),
        ({"model": {"sparse_coding": {"atms": 3}}}, "[model] sparse_coding:"),
        ({"model": {"refine": "quadratic"}}, "[model] refine = 'quadratic'. Known:"),
        (
            {"training": {"recipe": "papr"}},
            "[training] unknown recipe 'papr'. Did you mean 'paper'?",
        ),
        (
            {"training": {"epochs": "200"}},
            "[training] epochs = '200': a whole number from 1 to 100000.",
        ),
        (
            {"protocol": {"folds": 1}},
            "[protocol] folds = 1: a whole number from 2 to 1000 is needed.",
        ),
        (
            {"protocol": {"valid": 1.5}},
            "[protocol] valid = 1.5: expected a fraction between 0 and 1.",
        ),
        (
            {"protocol": {"kind": "loo"}},
            "[protocol] kind = 'loo': expected one of kfold, holdout, official.",
        ),
        ({"protocol": {"selection": ["best"]}}, "[protocol] selection: unknown protocol 'best'."),
        (
            {"protocol": {"selection": []}},
            "[protocol] selection = []: expected a list of some of last, nested, test-tuned.",
        ),
        ({"protocol": {"splits": "no.csv"}}, "[protocol] splits: no.csv does not exist."),
        (
            {"arms": [{"name": "a", "against": "b"}]},
            "[[arms]] a: against = 'b': there is no such method.",
        ),
        ({"arms": [{"name": "a"}, {"name": "a"}]}, "two methods have the name 'a'."),
        ({"report": {"pair": "model.x"}}, "[report] pair = 'model.x': not a key of [grid]."),
        (
            {"report": {"published": float("inf")}},
            "[report] published = inf: expected the name of a table.",
        ),
        (
            {"report": {"published": "no.csv"}},
            "[report] published: no.csv cannot be read (No such file or directory).",
        ),
        ({"model": 3}, "[model]: expected a table, not 3."),
        (
            {"data": {"dataset": "musk1", "labels": "no.csv"}},
            "[data] labels: no.csv does not exist.",
        ),
        ({"data": {"dataset": "musk1", "key": 3}}, "[data] key = 3: expected a string."),
        (
            {"data": {"dataset": "musk1", "drop_unlabelled": 1}},
            "[data] drop_unlabelled = 1: expected true or false.",
        ),
        (
            {"data": {"dataset": "musk1", "lable": "x"}},
            "[data] lable: unknown key. Did you mean 'label'?",
        ),
        ({"data": {"dataset": "my/bags"}}, "There is no folder my/bags."),
        (
            {"training": {"patience": 0}},
            "[training] patience = 0: a whole number from 1 to 100000.",
        ),
        (
            {"training": {"regularisation": {"tile_dropout": 2}}},
            "[training] regularisation.tile_dropout = 2: a number from 0 to below 1.",
        ),
        (
            {"training": {"regularisation": {"dropout": 2}}},
            "[training] regularisation: unknown dropout. It takes: tile_sample",
        ),
        (
            {"model": {"aggregator": "logistic-mean-max", "embed": [64]}},
            "[model] embed: logistic-mean-max is not a neural network; it takes only sparse_coding",
        ),
        (
            {"model": {"aggregator": "logistic-mean-max", "refine": "lineal"}},
            "[model] refine = 'lineal'. Known: ",
        ),
    ],
)
def test_each_mistake_reads_well(document: dict[str, Any], message: str) -> None:
    assert any(message in problem for problem in problems_of(document)), problems_of(document)


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


def test_a_file_that_is_not_there_or_not_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the file does not exist"):
        read_plan(tmp_path / "mine.toml")
    (tmp_path / "mine.toml").write_text("a = = 1")
    with pytest.raises(ConfigError, match="not readable as TOML"):
        read_plan(tmp_path / "mine.toml")


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


# ----------------------------------------------------------------------------- files that mean harm


def test_a_grid_of_millions_of_cells_is_rejected_before_it_is_expanded() -> None:
    grid = {
        f"training.{key}": list(range(1, 21))
        for key in ("epochs", "learning_rate", "weight_decay", "clip", "patience")
    }
    document = {"data": {"dataset": "musk1"}, "grid": {**grid, "protocol.seed": list(range(20))}}
    start = time.process_time()
    with pytest.raises(ConfigError, match=r"\[grid\]: 64000000 runs, more than 10000"):
        make_plan(document, "bomb")
    assert time.process_time() < start + 5


def test_a_grid_of_a_thousand_cells_is_expanded_in_seconds() -> None:
    grid = {"protocol.seed": list(range(40)), "training.epochs": list(range(1, 26))}
    plan = make_plan({"data": {"dataset": "musk1"}, "grid": grid}, "large")
    assert len({cell.name for cell in plan.cells}) == 1000


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("a = " + "[" * 5000 + "]" * 5000, "nested too deeply"),
        ("a = " + "[" * 100 + "]" * 100, "nested more than 40 times"),
        ("[" + ".".join("a" * 100) + "]", "nested more than 40 times"),
        ("a = " + "9" * 5000, "not readable as TOML"),
        ("a = 0x" + "f" * 5000, "an integer has more than 64 bits"),
        ("a = '" + "x" * 2**21 + "'", "has more than 1048576 bytes"),
    ],
    ids=["recursion", "depth", "dotted", "digits", "hex", "long"],
)
def test_toml_that_would_break_the_parser_or_what_follows_is_a_sentence(
    tmp_path: Path, text: str, cause: str
) -> None:
    (tmp_path / "bomb.toml").write_text(text)
    with pytest.raises(ConfigError, match=f"bomb.toml.*{cause}"):
        read_plan(tmp_path / "bomb.toml")


@pytest.mark.parametrize("value", ["[" * 5000 + "]" * 5000, "0x" + "f" * 5000])
def test_an_override_that_would_break_the_parser_is_a_sentence(tmp_path: Path, value: str) -> None:
    (tmp_path / "plan.toml").write_text('[data]\ndataset = "musk1"\n')
    with pytest.raises(ConfigError, match=r"--set training\.epochs: "):
        read_plan(tmp_path / "plan.toml", [f"training.epochs={value}"])


@pytest.mark.parametrize(
    "change",
    [
        {"protocol": {"repeats": 10**9}},
        {"protocol": {"seed": 2**70}},
        {"training": {"epochs": 10**12}},
        {"training": {"learning_rate": 10**400}},
        {"training": {"class_weights": [1, float("inf")]}},
        {"model": {"embed": [10**9]}},
        {"model": {"sparse_coding": {"layers": 10**7}}},
    ],
)
def test_numbers_that_no_experiment_has_are_problems_of_the_file(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="has 1 problem"):
        make_plan({"data": {"dataset": "musk1"}, **change}, "absurd")


def test_an_experiment_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(ConfigError, match="a pipe, a device or a folder"):
        read_plan(tmp_path / "pipe.toml")


@pytest.mark.parametrize(
    "content",
    [
        "root:x:0:0:root:/root:/bin/bash\nbin:x:1:1:bin\n",
        "-----BEGIN PRIVATE KEY-----\nMIIE,abc\n",
        "hf_aVerySecretToken\n",
    ],
)
def test_a_file_that_an_experiment_names_as_labels_is_not_shown(
    tmp_path: Path, content: str
) -> None:
    """An experiment may come from others, and its report is shared: the report must not show
    private files of the person who runs it.
    """
    from scmil.errors import DataError
    from scmil.studies.runner import load_bags

    (tmp_path / "bags").mkdir()
    torch.save(torch.zeros(3, 8), tmp_path / "bags" / "a.pt")
    (tmp_path / "private").write_text(content)
    plan = tmp_path / "plan.toml"
    plan.write_text('[data]\ndataset = "bags"\nlabels = "private"\n')
    [cell] = read_plan(plan).cells
    with pytest.raises(DataError) as raised:
        load_bags(cell.settings.data)
    assert "private" in str(raised.value)
    assert not any(line in str(raised.value) for line in content.splitlines())


def test_a_grid_of_layers_has_one_without_any() -> None:
    layers = ["none", "sparse-coding", "linear", "rrt"]
    plan = make_plan(
        {
            **MUSK1,
            "model": {"sparse_coding": {"atoms": 16}, "embed": [16]},
            "grid": {"model.aggregator": ["abmil", "mean"], "model.refine": layers},
            "arms": [
                {
                    "name": "logistic regression",
                    "grid": False,
                    "model": {
                        "aggregator": "logistic-mean-max",
                        "refine": "none",
                        "embed": [],
                    },
                }
            ],
            "report": {"pair": "model.refine"},
        },
        "mine",
    )
    assert dict(plan.arms)["abmil + linear"] == "abmil"
    assert [name for name, _ in plan.arms] == [
        *(
            f"{name}{layer}"
            for name in ("abmil", "mean")
            for layer in ("", " + SC", " + linear", " + rrt")
        ),
        "logistic regression",
    ]
    without = plan.cells[0].settings.model
    assert (without.refine, without.sparse_coding) == (None, False)
    assert not plan.cells[-1].settings.model.has_layer


def test_a_method_outside_of_the_grid_has_one_run() -> None:
    document = {
        **MUSK1,
        "grid": {"training.epochs": [1, 2]},
        "arms": [{"name": "a"}, {"name": "b", "grid": False}],
    }
    plan = make_plan(document, "mine")
    assert [cell.arm for cell in plan.cells] == ["a epochs=1", "a epochs=2", "b"]
    assert problems_of({"arms": [{"name": "a", "grid": 3}]}) == [
        "[[arms]] number 1 grid = 3: expected true, or false for a method that [grid] does not "
        "change."
    ]
