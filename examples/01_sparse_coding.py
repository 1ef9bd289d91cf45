"""What the sparse-coding layer does, step by step.   python examples/01_sparse_coding.py

Run it and read along: it takes a few seconds.
"""

import torch

import scmil
from scmil.sparse_coding.layer import dct_dictionary, objective, unrolled_ista

torch.manual_seed(0)

# 1. A signal made of three atoms, out of a dictionary of 256. Can the layer find them?
D = dct_dictionary(p=64, m=256)
truth = torch.zeros(1, 256)
truth[0, [17, 90, 200]] = torch.tensor([3.0, -2.0, 2.5])
x = truth @ D.T
mu = torch.linalg.matrix_norm(D, 2) ** 2
lam = torch.tensor([[0.05]])
print("Eq. (4), layer by layer: Eq. (1) goes down, and few atoms stay.")
for layers in (1, 5, 50, 500):
    alpha = unrolled_ista(x, D, mu, lam, layers)
    cost = objective(x, D, alpha, lam).item()
    print(f"  {layers:4} layers: Eq. (1) = {cost:7.4f}, atoms in use: {int((alpha != 0).sum())}")

# 2. The layer learns D, mu and a lambda for each instance. It starts alive at any scale of the features.
layer = scmil.SparseCoding(dim=512, atoms=256, layers=5)
print("\nThe layer, on features of three scales:")
for scale in (0.01, 1.0, 50.0):
    said = layer.statistics(scale * torch.randn(1000, 512).relu())
    print(
        f"  features times {scale:5}: density {said.density:.2f}, dead instances {said.dead:.0%}, step {said.step:.2f}"
    )

# 3. Each instance has a sparsity of its own, and instances do not see each other.
bag = torch.randn(4, 512)
print("\nlambda of four instances:", [round(value, 3) for value in layer.sparsity(bag).flatten().tolist()])
alone = layer(bag[:1])
print("coded alone or in the bag, the same:", bool(torch.allclose(alone, layer(bag)[:1], atol=1e-5)))

# 4. What it costs: Table III's parameters, and the multiply-adds of a bag of 120 instances.
for atoms in (16, 64, 256, 1024):
    module = scmil.SparseCoding(484, atoms=atoms)
    parameters, products = scmil.count_parameters(module), scmil.count_multiply_adds(module, n=120, dim=484)
    print(f"{atoms:5} atoms: {parameters / 1e3:7.2f} K parameters, {products / 1e6:7.2f} M multiply-adds")
