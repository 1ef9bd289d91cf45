from __future__ import annotations

import pytest
import torch

from scmil.models.aggregators.acmil import ACMIL


def test_masked_instances_are_among_the_highest() -> None:
    torch.manual_seed(0)
    model, h = ACMIL(6, 2, branches=3, masked=10, mask_ratio=0.6), torch.randn(40, 6)
    highest = model.score(h).topk(10, 0).indices
    weights = model(h).extras[0]
    for branch in range(3):
        masked = (weights[:, branch] == 0).nonzero().flatten().tolist()
        assert len(masked) == 6
        assert set(masked) <= set(highest[:, branch].tolist())


def test_masking_is_drawn_again_and_absent_in_evaluation() -> None:
    model, h = ACMIL(6, 2), torch.randn(40, 6)
    assert not torch.equal(model(h).logits, model(h).logits)
    model.eval()
    assert torch.equal(model(h).logits, model(h).logits)
    assert (model(h).attention > 0).all()


@pytest.mark.parametrize(("n", "masked"), [(1, 0), (2, 1), (5, 3), (10, 6)])
def test_small_bags_keep_an_instance(n: int, masked: int) -> None:
    weights = ACMIL(6, 2)(torch.randn(n, 6)).extras[0]
    assert ((weights == 0).sum(0) == masked).all()


def test_equal_attentions_have_the_largest_diversity_loss() -> None:
    model = ACMIL(6, 2, branches=2, mask_ratio=0.0)
    with torch.no_grad():
        model.score.w.weight[1], model.score.w.bias[1] = model.score.w.weight[0], 0.3
    loss = model.own_loss(model(torch.randn(9, 6)), torch.tensor(0))
    assert loss.item() == pytest.approx(1, abs=1e-6)


def test_one_branch_has_no_loss_of_its_own() -> None:
    model = ACMIL(6, 2, branches=1)
    prediction = model(torch.randn(9, 6))
    assert not prediction.auxiliary
    assert model.own_loss(prediction, torch.tensor(0)) == 0


def test_wrong_options_are_rejected() -> None:
    with pytest.raises(ValueError, match="branches = 0: at least one"):
        ACMIL(6, 2, branches=0)
    with pytest.raises(
        ValueError, match=r"mask_ratio = 2\.0: a number of instances, and a fraction"
    ):
        ACMIL(6, 2, mask_ratio=2.0)
