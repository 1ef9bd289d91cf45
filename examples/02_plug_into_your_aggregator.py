"""Sparse coding in front of somebody else's model.   python examples/02_plug_into_your_aggregator.py

Each model is built for embeddings of 256 dimensions, the number of atoms; one call puts the layer in front. The first is
written here, as you would write it. The others come from the package torchmil, which knows nothing of scmil; they are left
out if it is not installed (pip install torchmil).
"""

from importlib.util import find_spec

import torch
from torch import Tensor, nn

import scmil

torch.manual_seed(0)
bag = torch.randn(300, 512)  # 300 tiles, 512 features each


class Yours(nn.Module):
    """Any module that takes bags (1, n, 256): here attention by one layer, and it gives logits and attention."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.head = nn.Linear(256, 1), nn.Linear(256, 2)

    def forward(self, bags: Tensor) -> tuple[Tensor, Tensor]:
        attention = self.score(bags).squeeze(-1).softmax(-1)
        return self.head((attention.unsqueeze(1) @ bags).squeeze(1)), attention


def look(name: str, model: scmil.MILModel) -> None:
    """Run a bag through the model, and see whether its gradients reach the layer."""
    prediction = model(bag)
    model.loss(prediction, 1).backward()
    reached = sum(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in model.refine.parameters())
    logits = [round(value, 3) for value in prediction.logits.tolist()]
    attention = prediction.attention.sum().item()
    print(f"{name:9} logits {logits}, attention sums to {attention:.3f}, gradients reach {reached} of 8 tensors")


look("Yours", scmil.plug_into(Yours(), dim=512, atoms=256))

if find_spec("torchmil"):
    import torchmil.models as theirs

    for name in ("ABMIL", "DSMIL", "CLAM_SB", "TransMIL"):
        module = getattr(theirs, name)(in_shape=(256,))
        look(name, scmil.plug_into(module, dim=512, atoms=256, call={"return_att": True}))
else:
    print("torchmil is not installed, so its models are left out: pip install torchmil")

# A module that does not pool the instances is refused, with the reason.
try:
    scmil.plug_into(nn.Linear(256, 3), dim=512)
except scmil.ScmilError as error:
    print(f"refused: {error}")
