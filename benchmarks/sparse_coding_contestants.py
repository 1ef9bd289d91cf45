"""The contestants of `sparse_coding_shapes.py`: one pass of each over a shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

CONTESTANTS = ("ours", "transcription", "released", "floor")
SLIDE = 12_000  # rows
SOME_P = (512, 1536)  # of the combinations that take longest
LAYERS = 5


class Shape(NamedTuple):
    n: int
    p: int
    m: int
    backward: bool

    @property
    def is_in_grid(self) -> bool:
        """Whether the shape is measured without `--all`."""
        if self.n < SLIDE or (self.p in SOME_P and self.m == 256):
            return True
        return self.n == SLIDE and (self.m < 1024 or self.p in SOME_P)

    @property
    def contestants(self) -> tuple[str, ...]:
        """Those that are timed."""
        short = self.n <= SLIDE and self.m <= 256
        return tuple(name for name in CONTESTANTS if short or name != "released")


def make_step(name: str, shape: Shape) -> Callable[[], None]:
    """One pass of a contestant."""
    import torch

    from scmil import ReleasedSparseCoding, SparseCoding

    torch.manual_seed(0)
    if name == "floor":
        return floor_step(shape)
    x, g = torch.randn(shape.n, shape.p).relu(), torch.randn(shape.n, shape.m)
    build = ReleasedSparseCoding if name == "released" else SparseCoding
    layer = build(shape.p, atoms=shape.m, layers=LAYERS)
    run = (lambda: transcribe(layer, x)) if name == "transcription" else (lambda: layer(x))

    def forward() -> None:
        with torch.no_grad():
            run()

    def both() -> None:
        x.grad = None
        layer.zero_grad(set_to_none=True)
        run().backward(g)

    if shape.backward:
        x.requires_grad_()
    return both if shape.backward else forward


def transcribe(layer: Any, x: Any) -> Any:
    """The equations of `SparseCoding`, operation by operation, with the cheaper of two products."""
    import torch
    import torch.nn.functional as F

    from scmil.sparse_coding.equations import soft_threshold
    from scmil.sparse_coding.kernel_torch import gram_is_cheaper

    x = F.layer_norm(x, x.shape[-1:], eps=1e-12)
    D, mu, (low, high) = layer.dictionary, layer.mu, layer.relative
    n, (p, m) = len(x), D.shape
    s = layer.network(x)
    W = D / mu
    drive = x @ W
    fraction = low + (high - low) * s / (1 + s)
    threshold = fraction * drive.abs().amax(-1, keepdim=True)
    alpha = soft_threshold(drive, threshold)
    if gram_is_cheaper(n, p, m, layer.layers, torch.is_grad_enabled()):
        W_t = torch.eye(m) - D.mT @ W
        for _ in range(layer.layers - 1):
            alpha = soft_threshold(drive + alpha @ W_t, threshold)
    else:
        for _ in range(layer.layers - 1):
            alpha = soft_threshold(alpha + (x - alpha @ D.mT) @ W, threshold)
    return alpha


def floor_step(shape: Shape) -> Callable[[], None]:
    """The matrix products of ours, in the form that it chooses, into memory that is ready."""
    import torch

    from scmil.sparse_coding.kernel_torch import gram_is_cheaper

    n, p, m, backward = shape
    h1, h2 = max(1, p // 4), max(1, p // 8)
    gram = gram_is_cheaper(n, p, m, LAYERS, backward)
    once = [(n, p, h1), (n, h1, h2), (n, h2, 1), (n, p, m)]
    each = [(n, m, m)] if gram else [(n, m, p), (n, p, m)]
    if gram:
        once += [(m, p, m)]
    if backward:
        once += [(n, 1, h2), (h2, n, 1), (n, h2, h1), (h1, n, h2), (n, h1, p), (p, n, h1)]
        once += [(n, m, p), (p, n, m)]
        each += [(n, m, m), (m, n, m)] if gram else [(n, m, p), (n, p, m), (p, n, m), (p, n, m)]
        once += [(p, m, m)] if gram else []
    made: dict[tuple[int, int], Any] = {}

    def matrix(rows: int, columns: int) -> Any:
        return made.setdefault((rows, columns), torch.randn(rows, columns))

    products = [
        (matrix(k, a).mT if k == n else matrix(a, k), matrix(k, b), torch.empty(a, b))
        for a, k, b in once
    ]
    products += [
        (matrix(k, a).mT if k == n else matrix(a, k), matrix(k, b), torch.empty(a, b))
        for a, k, b in each
    ] * (LAYERS - 1)

    def step() -> None:
        with torch.no_grad():
            for left, right, out in products:
                torch.mm(left, right, out=out)

    return step
