"""Sparse coding in front of somebody else's model.   python examples/02_plug_into_your_aggregator.py

The models here come from the package torchmil (pip install torchmil), which knows nothing of scmil. Each is built for
embeddings of 256 dimensions, the number of atoms; one call puts the layer in front.
"""

import torch
import torchmil.models as theirs

import scmil

torch.manual_seed(0)
bag = torch.randn(300, 512)  # 300 tiles, 512 features each
models = {
    "ABMIL": theirs.ABMIL(in_shape=(256,)),
    "DSMIL": theirs.DSMIL(in_shape=(256,)),
    "CLAM_SB": theirs.CLAM_SB(in_shape=(256,)),
    "TransMIL": theirs.TransMIL(in_shape=(256,)),
}
for name, module in models.items():
    model = scmil.plug_into(module, dim=512, atoms=256, call={"return_att": True})
    prediction = model(bag)
    model.loss(prediction, 1).backward()
    reached = sum(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in model.refine.parameters())
    logits = [round(value, 3) for value in prediction.logits.tolist()]
    attention = prediction.attention.sum().item()
    print(f"{name:9} logits {logits}, attention sums to {attention:.3f}, gradients reach {reached} of 8 tensors")

# A module that does not pool the instances is refused, with the reason.
try:
    scmil.plug_into(torch.nn.Linear(256, 3), dim=512)
except scmil.ScmilError as error:
    print(f"refused: {error}")
