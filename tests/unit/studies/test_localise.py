"""How models rank instances with labels: on the test bags, and on no others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from scmil.bags.bag import BagSet
from scmil.bags.datasets.synthetic import synthetic
from scmil.bags.splits import Split
from scmil.models.model import build_model
from scmil.stats.localisation import rank_instances
from scmil.studies.localise import INSTANCES, rank_by_model
from scmil.studies.plan import make_plan


def test_only_the_instances_of_test_bags_are_ranked() -> None:
    bags = synthetic(bags=8, witness=0.3, noise_dims=0, seed=1)
    model = build_model(bags.dim, 2, "abmil-gated", embed=[8], seed=0).eval()
    plan = make_plan({"data": {"dataset": "synthetic", "standardise": False}}, "mine")
    split = Split(train=(0, 1, 2, 3), test=(4, 5, 6, 7))
    found = rank_by_model(plan.cells[0].settings, bags, model, split)
    tested = bags.subset(split.test)
    with torch.no_grad():
        attention = [model(bag.features).attention.double().numpy() for bag in tested]
        alone = [
            np.array([float(model(row[None]).logits.softmax(-1)[1]) for row in bag.features])
            for bag in tested
        ]
    positive = [np.asarray(bag.instance_labels) > 0 for bag in tested]
    expected = [*rank_instances(positive, attention)[:2], *rank_instances(positive, alone)[:2]]
    assert [found[name] for name in INSTANCES] == pytest.approx(expected, abs=1e-6)


def test_bags_without_instance_labels_have_no_such_metrics() -> None:
    bags = BagSet([replace(bag, instance_labels=None) for bag in synthetic(bags=4)])
    model = build_model(bags.dim, 2, "mean", embed=[4], seed=0)
    plan = make_plan({"data": {"dataset": "synthetic"}}, "mine")
    assert rank_by_model(plan.cells[0].settings, bags, model, Split((0, 1), (2, 3))) == {}
