"""The sparse coding layer, step by step: `python examples/01_sparse_coding.py` (a few seconds)."""

import torch

import scmil
from scmil.sparse_coding.equations import dct_dictionary, objective, unrolled_ista

torch.manual_seed(0)

# 1. A signal composed of three atoms of a dictionary with 256 atoms. ISTA recovers them.
D = dct_dictionary(p=64, m=256)
expected = torch.zeros(1, 256)
expected[0, [17, 90, 200]] = torch.tensor([3.0, -2.0, 2.5])
x = expected @ D.T
mu = torch.linalg.matrix_norm(D, 2) ** 2
lam = torch.tensor([[0.05]])
print("Eq. (4): with more layers the objective of Eq. (1) decreases, and few atoms remain.")
for layers in (1, 5, 50, 500):
    alpha = unrolled_ista(x, D, mu, lam, layers)
    cost = objective(x, D, alpha, lam).item()
    print(f"  {layers:4} layers: Eq. (1) = {cost:7.4f}, nonzero codes: {int((alpha != 0).sum())}")

# 2. The layer learns D, mu and a lambda for each instance. Its initialisation gives nonzero codes
# at any scale of the features.
layer = scmil.SparseCoding(dim=512, atoms=256, layers=5)
print("\nThe layer on features of three scales:")
for scale in (0.01, 1.0, 50.0):
    statistics = layer.statistics(scale * torch.randn(1000, 512).relu())
    print(
        f"  features times {scale:5}: density {statistics.density:.2f}, "
        f"dead instances {statistics.dead:.0%}, step {statistics.step:.2f}"
    )

# 3. Each instance has its own lambda, and its code does not depend on the other instances.
bag = torch.randn(4, 512)
print(
    "\nlambda of four instances:",
    [round(value, 3) for value in layer.sparsity(bag).flatten().tolist()],
)
single = layer(bag[:1])
print("same code alone and in the bag:", bool(torch.allclose(single, layer(bag)[:1], atol=1e-5)))

# 4. Cost: the parameters of Table III, and the multiply-adds for a bag of 120 instances.
for atoms in (16, 64, 256, 1024):
    module = scmil.SparseCoding(484, atoms=atoms)
    parameters, products = (
        scmil.count_parameters(module),
        scmil.count_multiply_adds(module, n=120, dim=484),
    )
    print(
        f"{atoms:5} atoms: {parameters / 1e3:7.2f} K parameters, "
        f"{products / 1e6:7.2f} M multiply-adds"
    )
