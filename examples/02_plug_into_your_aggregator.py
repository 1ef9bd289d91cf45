"""Sparse coding before existing modules: `python examples/02_plug_into_your_aggregator.py`.

Each module takes embeddings of 256 dimensions, the number of atoms; one call places the layer
before it. The first module is defined here. The others are from the package torchmil, and are
skipped if it is not installed (pip install torchmil).
"""

from importlib.util import find_spec

import torch
from torch import Tensor, nn

import scmil

torch.manual_seed(0)
bag = torch.randn(300, 512)  # 300 tiles, 512 features each


class Yours(nn.Module):
    """A module that takes bags (1, n, 256) and returns logits and attention."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.head = nn.Linear(256, 1), nn.Linear(256, 2)

    def forward(self, bags: Tensor) -> tuple[Tensor, Tensor]:
        attention = self.score(bags).squeeze(-1).softmax(-1)
        return self.head((attention.unsqueeze(1) @ bags).squeeze(1)), attention


def show(name: str, model: scmil.MILModel) -> None:
    """Predict a bag, and print how many tensors of the layer receive a gradient."""
    prediction = model(bag)
    model.loss(prediction, 1).backward()
    reached = sum(
        p.grad is not None and bool(p.grad.abs().sum() > 0) for p in model.refine.parameters()
    )
    logits = [round(value, 3) for value in prediction.logits.tolist()]
    attention = prediction.attention.sum().item()
    print(
        f"{name:9} logits {logits}, attention sums to {attention:.3f}, "
        f"gradients reach {reached} of 8 tensors"
    )


show("Yours", scmil.plug_into(Yours(), dim=512, atoms=256))

if find_spec("torchmil"):
    import torchmil.models as theirs

    for name in ("ABMIL", "DSMIL", "CLAM_SB", "TransMIL"):
        module = getattr(theirs, name)(in_shape=(256,))
        show(name, scmil.plug_into(module, dim=512, atoms=256, call={"return_att": True}))
else:
    print("torchmil is not installed; its models are skipped: pip install torchmil")

# A module that does not pool the instances is rejected, with the reason.
try:
    scmil.plug_into(nn.Linear(256, 3), dim=512)
except scmil.ScmilError as error:
    print(f"rejected: {error}")
