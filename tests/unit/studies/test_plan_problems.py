"""Mistakes in an experiment file are listed at once, each with what is expected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scmil.errors import ConfigError
from scmil.studies.plan import make_plan, read_plan

MUSK1: dict[str, Any] = {"data": {"dataset": "musk1"}}


def problems_of(document: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        make_plan({**MUSK1, **document}, "mine")
    return [line.strip() for line in str(raised.value).splitlines()[1:]]


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


def test_a_file_that_is_not_there_or_not_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the file does not exist"):
        read_plan(tmp_path / "mine.toml")
    (tmp_path / "mine.toml").write_text("a = = 1")
    with pytest.raises(ConfigError, match="not readable as TOML"):
        read_plan(tmp_path / "mine.toml")


def test_grid_of_a_method_is_true_or_false() -> None:
    assert problems_of({"arms": [{"name": "a", "grid": 3}]}) == [
        "[[arms]] number 1 grid = 3: expected true, or false for a method that [grid] does not "
        "change."
    ]
