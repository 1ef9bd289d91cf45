"""A stack of models computed by rules says what `vmap` says, and what each model says alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.func import stack_module_state

from scmil.models.model import MILModel, build_model
from scmil.training.stacked_loss import stacked_losses

LABEL = torch.tensor(1)


def alike(count: int = 3, *, refine: str | None, **options: Any) -> list[MILModel]:
    if refine == "sparse-coding":  # cosines have ties of |D^T x|, whose gradient is not unique
        options["sparse_coding"] = {"dictionary": "random"}
    else:
        options["refine"] = refine
    return [build_model(6, 2, **options, seed=seed).double() for seed in range(count)]


@pytest.mark.parametrize("aggregator", ["abmil", "abmil-gated"])
@pytest.mark.parametrize("refine", [None, "sparse-coding", "linear", "normalise"])
@pytest.mark.parametrize("embed", [[9, 4], {"widths": [4], "bias": False}, None])
def test_a_stack_has_the_losses_and_gradients_of_its_models(
    aggregator: str, refine: str | None, embed: Any
) -> None:
    models = alike(aggregator=aggregator, refine=refine, embed=embed)
    parameters, _ = stack_module_state(models)  # type: ignore[arg-type]
    x = torch.randn(3, 5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    losses = stacked_losses(models[0])
    assert losses is not None
    together = losses(parameters, x, LABEL)
    together.sum().backward()
    for index, model in enumerate(models):
        alone = model.loss(model(x[index]), LABEL)
        alone.backward()
        torch.testing.assert_close(together[index], alone)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameters[name].grad[index], parameter.grad, msg=name)


@pytest.mark.parametrize("aggregator", ["dsmil", "transmil", "mi-net", "gnn-mil"])
def test_a_model_with_a_part_without_a_rule_is_left_to_vmap(aggregator: str) -> None:
    assert stacked_losses(build_model(6, 2, aggregator)) is None


def test_the_authors_variant_of_the_layer_has_no_rule() -> None:
    assert stacked_losses(build_model(6, 2, "abmil", refine="released")) is None
