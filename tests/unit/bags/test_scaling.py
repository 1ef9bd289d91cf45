from __future__ import annotations

import json

import torch

from scmil.bags.bag import Bag, BagSet
from scmil.bags.scaling import Scaling, moments, scale_as_recorded, streamed_moments


def large_bags() -> BagSet:
    generator = torch.Generator().manual_seed(0)
    deviation = torch.tensor([1.0, 10.0, 0.1, 0.0])
    features = [1e3 + torch.randn(5, 4, generator=generator) * deviation for _ in range(6)]
    return BagSet([Bag(str(position), x) for position, x in enumerate(features)])


def test_scaling_is_fitted_on_the_training_bags_only() -> None:
    scaling = moments([Bag("a", torch.tensor([[0.0, 7.0], [2.0, 7.0]]))])
    assert scaling.apply(torch.tensor([[0.0, 7.0], [2.0, 7.0]])).tolist() == [[-1, 0], [1, 0]]
    test = scaling.apply_to_bag(Bag("b", torch.tensor([[4.0, 9.0]]), label=1))
    assert (test.features.tolist(), test.label) == ([[3, 2]], 1)


def test_scaling_changes_only_the_features() -> None:
    instance_labels = torch.tensor([0, 1])
    bags = BagSet([Bag("a", torch.tensor([[0.0], [2.0]]), 1, "P", instance_labels)])
    [bag] = moments(bags).apply_to_bags(bags)
    assert (bag.id, bag.label, bag.patient, bag.features.dtype) == ("a", 1, "P", torch.float32)
    assert bag.instance_labels is instance_labels


def test_streamed_moments_equal_the_moments_of_all_bags_at_once() -> None:
    bags = large_bags()
    for actual, expected in zip(streamed_moments(bags), moments(bags), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)
    mean, deviation = moments(streamed_moments(bags).apply_to_bags(bags))
    torch.testing.assert_close(mean, torch.zeros_like(mean), atol=1e-2, rtol=0)
    torch.testing.assert_close(deviation[:2], torch.ones_like(deviation[:2]), atol=1e-2, rtol=0)


def test_the_deviation_of_a_constant_feature_is_one() -> None:
    for scaling in (moments(large_bags()), streamed_moments(large_bags())):
        assert scaling.deviation[3] == 1


def test_a_stored_scaling_gives_the_same_features_bit_for_bit() -> None:
    bags = large_bags()
    scaling = streamed_moments(bags)
    stored = json.loads(json.dumps(scaling.to_json()))
    expected = scaling.apply_to_bag(bags[0]).features
    assert torch.equal(scale_as_recorded(bags[0], stored).features, expected)
    assert torch.equal(Scaling.from_json(stored).apply_to_bags(bags)[0].features, expected)


def test_scaled_bags_keep_the_identity_of_the_original_bags() -> None:
    bags = large_bags()
    scaled = moments(bags).apply_to_bags(bags)
    assert scaled.inputs() == bags.inputs()
