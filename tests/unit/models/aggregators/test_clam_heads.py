from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from scmil import build_model
from scmil.errors import OptionError
from scmil.models import aggregators
from scmil.models.aggregators.clam import CLAM


def extremes(model: CLAM, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions of the tiles by attention, lowest first, and the instance logits of class 0."""
    prediction = model(h)
    return prediction.attention.argsort(), prediction.extras[0][0]


def test_the_instances_are_those_of_highest_and_lowest_attention() -> None:
    model, h = CLAM(6, 2, k=3).eval(), torch.randn(20, 6)
    order, logits = extremes(model, h)
    classifier = model.instance_classifiers[0]
    torch.testing.assert_close(logits[:3], classifier(h[order[-3:].flip(0)]))
    torch.testing.assert_close(logits[3:], classifier(h[order[:3]]))


@pytest.mark.parametrize("name", ["clam-sb", "clam-mb"])
@pytest.mark.parametrize(("n", "ends"), [(1, 0), (2, 1), (7, 3), (8, 8), (20, 8)])
def test_small_bags_have_fewer_instances_at_the_ends(name: str, n: int, ends: int) -> None:
    model = aggregators.build(name, 6, classes=3)
    prediction = model(torch.randn(n, 6))
    assert prediction.extras[0].shape == (3, 2 * ends, 2)
    own = model.own_loss(prediction, torch.tensor(1))  # type: ignore[operator]
    assert own == 0 if n == 1 else own > 0


def test_subtyping_uses_the_other_classes() -> None:
    torch.manual_seed(0)
    model, h = CLAM(6, 3, subtyping=True).eval(), torch.randn(30, 6)
    prediction, k = model(h), 8
    logits = prediction.extras[0]
    expected = F.cross_entropy(logits[1], torch.tensor([1] * k + [0] * k))
    for other in (0, 2):
        expected = expected + F.cross_entropy(logits[other][:k], torch.zeros(k, dtype=torch.long))
    own = model.own_loss(prediction, torch.tensor(1))
    torch.testing.assert_close(own, 0.3 * expected / 3)
    model.subtyping = False
    without = model.own_loss(prediction, torch.tensor(1))
    torch.testing.assert_close(
        without, 0.3 * F.cross_entropy(logits[1], torch.tensor([1] * k + [0] * k))
    )


def test_the_bag_has_the_rest_of_the_weight() -> None:
    model = build_model(6, 2, {"name": "clam-sb", "bag_weight": 1.0}, embed=[5], seed=0).eval()
    prediction = model(torch.randn(20, 6))
    expected = F.cross_entropy(prediction.logits, torch.tensor(1))
    assert model.loss(prediction, 1) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"branches": "two"}, "branches = 'two'. Known: one, classes"),
        ({"instance_loss": "hinge"}, "instance_loss = 'hinge'. Known: cross-entropy, svm"),
        ({"bag_weight": 1.5}, "bag_weight = 1.5: a number from 0 to 1"),
        ({"k": 0}, "k = 0: at least one instance"),
    ],
)
def test_wrong_options_are_rejected(options: dict[str, object], message: str) -> None:
    with pytest.raises((OptionError, ValueError), match=message):
        build_model(6, 2, {"name": "clam-sb", **options})
