"""The optimisers of the recipes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scmil.training.optimisers import Lookahead, TransMILLookahead, clip_each, make_optimiser
from scmil.training.recipes import Recipe, recipe


class Toy:
    """A weight and a bias whose gradients are known: those of half the squared distance to 3."""

    def __init__(self) -> None:
        self.weight, self.bias = (
            nn.Parameter(torch.tensor([[1.0, -2.0]])),
            nn.Parameter(torch.tensor([0.5])),
        )

    def walk(self, optimiser: torch.optim.Optimizer, steps: int) -> list[Tensor]:
        for _ in range(steps):
            optimiser.zero_grad()
            loss = sum(((p - 3) ** 2).sum() / 2 for p in (self.weight, self.bias))
            assert isinstance(loss, Tensor)
            loss.backward()
            optimiser.step()
        return [self.weight.detach(), self.bias.detach()]

    def with_recipe(self, steps: int = 9, **settings: Any) -> list[Tensor]:
        return self.walk(
            make_optimiser(Recipe(**settings), [(self.weight, True), (self.bias, False)]), steps
        )


def test_adam_equals_that_of_torch_with_coupled_decay() -> None:
    toy = Toy()
    torchs = torch.optim.Adam([toy.weight, toy.bias], lr=0.1, betas=(0.5, 0.9), weight_decay=0.2)
    torch.testing.assert_close(
        Toy().with_recipe(learning_rate=0.1, betas=(0.5, 0.9), weight_decay=0.2),
        toy.walk(torchs, 9),
    )


def test_sgd_equals_that_of_torch_with_nesterov_momentum() -> None:
    toy = Toy()
    torchs = torch.optim.SGD(
        [toy.weight, toy.bias], lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.2
    )
    torch.testing.assert_close(
        Toy().with_recipe(optimiser="sgd", learning_rate=0.1, weight_decay=0.2), toy.walk(torchs, 9)
    )


@pytest.mark.parametrize(
    "optimiser", ["adam", "adamw", "sgd", "lookahead-radam", "lookahead-radam-zhang"]
)
def test_decay_weights_only_excludes_biases(optimiser: str) -> None:
    def end(**settings: Any) -> list[Tensor]:
        return Toy().with_recipe(optimiser=optimiser, learning_rate=0.1, **settings)

    (plain_w, plain_b), (all_w, all_b) = end(weight_decay=0.0), end(weight_decay=0.5)
    spared_w, spared_b = end(weight_decay=0.5, decay_weights_only=True)
    assert torch.equal(spared_b, plain_b)
    assert torch.equal(spared_w, all_w)
    assert not torch.equal(all_b, plain_b)
    assert not torch.equal(all_w, plain_w)


def test_lookahead_interpolates_half_way_every_sixth_step() -> None:
    """By hand: RAdam's first steps are plain momentum steps, corrected for their start, so with
    gradient 1 each is -rate.
    """
    parameter = nn.Parameter(torch.tensor(10.0, dtype=torch.float64))
    optimiser = Lookahead([parameter], lr=1.0)
    places = []
    for _ in range(5):
        parameter.grad = torch.ones_like(parameter)
        optimiser.step()
        places.append(parameter.item())
    assert places == pytest.approx([9, 8, 7, 6, 5])

    n, beta = 6, 0.999  # the sixth step is RAdam's first that is rectified
    longest = 2 / (1 - beta) - 1
    length = longest - 2 * n * beta**n / (1 - beta**n)
    rectification = math.sqrt(
        (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
    )
    parameter.grad = torch.ones_like(parameter)
    optimiser.step()
    assert length > 5
    assert parameter.item() == pytest.approx((10 + (5 - rectification)) / 2, abs=1e-7)


def test_lookahead_continues_from_the_interpolated_weights() -> None:
    fast, slow = nn.Parameter(torch.tensor(10.0)), 10.0
    parameter = nn.Parameter(torch.tensor(10.0))
    plain, ahead = torch.optim.RAdam([fast], lr=0.1), Lookahead([parameter], lr=0.1)
    for step in range(1, 19):
        for p, optimiser in ((fast, plain), (parameter, ahead)):
            p.grad = torch.ones_like(p)
            optimiser.step()
        if step % 6 == 0:  # the gradient is constant, so RAdam moves alike wherever it is
            slow += (fast.item() - slow) / 2
            with torch.no_grad():
                fast.fill_(slow)
        assert parameter.item() == pytest.approx(fast.item(), abs=1e-5)
    assert slow < 10


def test_lookahead_of_transmil_takes_its_slow_weights_at_the_first_synchronisation() -> None:
    """Up to the eleventh step it is RAdam alone; at the twelfth it goes half way back to the
    weights of the sixth.
    """
    fast, parameter = (nn.Parameter(torch.tensor(10.0, dtype=torch.float64)) for _ in range(2))
    plain, ahead = torch.optim.RAdam([fast], lr=0.1), TransMILLookahead([parameter], lr=0.1)
    slow = 0.0
    for step in range(1, 25):
        for p, optimiser in ((fast, plain), (parameter, ahead)):
            p.grad = torch.ones_like(p)
            optimiser.step()
        if step == 6:
            slow = fast.item()
        elif step % 6 == 0:
            slow += (fast.item() - slow) / 2
            with torch.no_grad():
                fast.fill_(slow)
        assert parameter.item() == pytest.approx(fast.item(), abs=1e-12)


def test_the_recipe_of_transmil_has_its_lookahead_and_zhang_has_a_name() -> None:
    parameters = [(nn.Parameter(torch.ones(2, 2)), True)]
    assert type(make_optimiser(recipe("transmil"), parameters)) is TransMILLookahead
    zhang = recipe("transmil", optimiser="lookahead-radam-zhang")
    assert type(make_optimiser(zhang, parameters)) is Lookahead


def test_a_tensor_without_gradient_takes_and_counts_no_step() -> None:
    late, early = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(1.0))
    optimiser = Lookahead([late, early], lr=0.1)
    for step in range(8):
        early.grad = torch.ones_like(early) if step < 6 else None
        late.grad = torch.ones_like(late) if step >= 2 else None
        optimiser.step()
    assert torch.equal(late, early)


def test_the_gradient_of_each_module_is_clipped_separately() -> None:
    large, also_large, small = (nn.Parameter(torch.zeros(1)) for _ in range(3))
    large.grad, also_large.grad, small.grad = (
        torch.tensor([30.0]),
        torch.tensor([-40.0]),
        torch.tensor([0.5]),
    )
    clip_each([[large, also_large], [small]], limit=5.0)
    torch.testing.assert_close(torch.cat([large.grad, also_large.grad]), torch.tensor([3.0, -4.0]))
    assert small.grad.item() == 0.5
