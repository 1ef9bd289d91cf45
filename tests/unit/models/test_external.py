from __future__ import annotations

import pytest
import torch
import torchmil.models as theirs
from torch import Tensor, nn

from scmil import plug_into
from scmil.errors import OptionError

OUTSIDE = {
    "ABMIL": lambda: theirs.ABMIL(in_shape=(64,)),
    "ABMIL gated": lambda: theirs.ABMIL(in_shape=(64,), gated=True),
    "DSMIL": lambda: theirs.DSMIL(in_shape=(64,)),
    "CLAM_SB": lambda: theirs.CLAM_SB(in_shape=(64,)),
    "TransMIL": lambda: theirs.TransMIL(in_shape=(64,)),
    "TransformerABMIL": lambda: theirs.TransformerABMIL(in_shape=(64,)),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_the_module_plugs_into_models_of_torchmil(name: str) -> None:
    model = plug_into(OUTSIDE[name](), dim=30, atoms=64, call={"return_att": True})
    prediction = model(torch.randn(17, 30))
    assert prediction.logits.shape == (2,)
    assert prediction.attention.sum().item() == pytest.approx(1, abs=1e-5)
    model.loss(prediction, 1).backward()
    assert all(p.grad is not None and (p.grad != 0).any() for p in model.refine.parameters())


def test_outside_logits_are_those_of_the_outside_module() -> None:
    module = theirs.ABMIL(in_shape=(64,)).eval()
    model, x = plug_into(module, dim=30, atoms=64), torch.randn(17, 30)
    torch.testing.assert_close(model(x).logits[1], module(model.refine(x)[None])[0])
    assert model(x).attention.isnan().all()  # not requested, so not returned


class Flat(nn.Module):
    """Takes (n, d), and returns logits and weights."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 3)

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        assert h.ndim == 2
        return self.head(h.mean(0)), torch.full((len(h),), 1 / len(h))


def test_a_module_without_a_batch_axis_and_with_ready_weights() -> None:
    prediction = plug_into(Flat(), dim=30, atoms=64, attention="weights")(torch.randn(4, 30))
    assert prediction.logits.shape == (3,)
    torch.testing.assert_close(prediction.attention, torch.full((4,), 0.25))


def test_what_gives_no_logits_of_a_bag_is_refused() -> None:
    with pytest.raises(OptionError, match=r"Linear gives no logits for a bag.*let it pool"):
        plug_into(nn.Linear(64, 3), dim=30, atoms=64)
    with pytest.raises(OptionError, match="Build it for 64-dimensional embeddings"):
        plug_into(theirs.ABMIL(in_shape=(99,)), dim=30, atoms=64)
    with pytest.raises(OptionError, match="Known: softmax, weights"):
        plug_into(Flat(), dim=30, atoms=64, attention="max")
