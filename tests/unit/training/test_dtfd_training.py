"""DTFD's training against a transcription of its published steps."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

from scmil import Bag, MILModel, build_model, fit
from scmil.training.randomness import epoch_order, step_seed
from scmil.training.recipes import recipe
from scmil.training.steps import modules_of


def train_as_published(model: MILModel, bags: list[Bag], limit: float) -> None:
    """Two Adam optimisers; dimension reduction, attention, classifier and tier 2 are clipped
    separately.
    """
    tier1, tier2 = model.aggregate.tier1, model.aggregate.tier2
    first_modules = [model.embed, tier1.score, tier1.classifier]
    first = torch.optim.Adam(
        [p for module in first_modules for p in module.parameters()], lr=1e-4, weight_decay=1e-4
    )
    second = torch.optim.Adam(tier2.parameters(), lr=1e-4, weight_decay=1e-4)
    model.train()
    by_id = {bag.id: bag for bag in bags}
    for position in epoch_order([bag.id for bag in bags], 0, 0):
        bag = by_id[bags[position].id]
        torch.manual_seed(step_seed(0, 0, bag.id))
        prediction = model(bag.features)
        target = torch.tensor(bag.label)
        for optimiser, modules, loss in (
            (
                first,
                first_modules,
                torch.stack([F.cross_entropy(z, target) for z in prediction.auxiliary]).mean(),
            ),
            (second, [tier2], F.cross_entropy(prediction.logits, target)),
        ):
            optimiser.zero_grad()
            loss.backward(retain_graph=True)
            for module in modules:
                torch.nn.utils.clip_grad_norm_(module.parameters(), limit)
        first.step()
        second.step()


@pytest.mark.parametrize("name", ["dtfd-afs", "dtfd-maxmin"])
def test_twelve_steps_of_dtfd_follow_the_published_clipping(name: str) -> None:
    torch.manual_seed(0)
    bags = [Bag(str(i), 3 * torch.randn(9, 10), label=i % 2) for i in range(12)]
    model = build_model(10, 2, name, embed=[8], seed=0)
    expected = copy.deepcopy(model)
    train_as_published(expected, bags, limit=0.02)
    fit(model, bags, recipe=recipe("dtfd", epochs=1, clip=0.02))
    for actual, reference in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(actual, reference, atol=1e-7, rtol=0)


def test_sparse_coding_is_clipped_as_a_group_of_its_own() -> None:
    model = build_model(16, 2, "dtfd-afs", sparse_coding={"atoms": 8}, embed=[16])
    tier1, tier2 = model.aggregate.tier1, model.aggregate.tier2
    expected = [model.embed, model.refine, tier1.score, tier1.classifier, tier2]
    assert modules_of(model) == expected
