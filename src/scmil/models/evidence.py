"""Evidence: the signed contribution of each tile to each class logit.

For every class c, `logit_c = constant_c + sum_i evidence_ic + error_c`.

- **Exact.** Where the head is linear after pooling, `logit_c = b_c + sum_i a_i w_c . h_i`: the
  evidence of tile i is `a_i w_c . h_i` and the constant is the bias b_c. `h_i` is the embedding of
  the tile, after sparse coding if there is any, and may be any function of the tile; its weight a_i
  in the pooling is taken as given, although it depends on the other tiles. The error is rounding.
- **Integrated gradients** for all other aggregators, along the straight line from a bag of n zero
  embeddings to h: `evidence_ic = h_i . mean_t d logit_c(t h) / d h_i`. The constant is the logit of
  the bag of zeros. The error is that of the quadrature, and of jumps of the logit along the line.

The line is in the space of the embeddings that the aggregator receives, not in that of the
features: the normalisation of sparse coding does not depend on the length of a feature vector, so a
line from zero features would have all its change at its start. In both cases the baseline is the
same: embeddings that are zero, with which a linear head returns its bias.

Both forms are sums over the dimensions of h. Behind sparse coding these are the atoms, so that the
same numbers, summed over tiles, are the contributions of the atoms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from scmil.models.aggregators import Evidence, Prediction, aggregate_bag

# Numbers of steps of the quadrature that are tried in turn, until the error is small.
STEPS = (8, 16, 32, 64)
TOLERANCE = 1e-3  # of the change of the logit
SMALL_CHANGE = 0.1  # of a logit; for smaller ones the tolerance is that of this change
# Rows that the steps of one try may evaluate together: large bags get fewer steps, at least 8.
STEP_ROWS = 2**20
SUSPICIOUS = 0.05  # a larger error, relative to the change of the logit, is a warning


@dataclass(frozen=True, eq=False)
class TileEvidence:
    """The evidence of the tiles of one bag; see the module for the definition.

    Args:
        tiles: Evidence (n, c) of each tile for each class.
        constant: The part (c,) of the logits that no tile contributes.
        logits: The logits (c,) that the model predicts.
        steps: Steps of the integrated gradients; 0 if the evidence is exact.
        atoms: Contribution (2 m, c) of each atom, first that of its positive codes for all atoms,
            then that of its negative codes; None without sparse coding, or if the terms are not
            linear in the codes.
    """

    tiles: NDArray[np.float32]
    constant: NDArray[np.float64]
    logits: NDArray[np.float64]
    steps: int = 0
    atoms: NDArray[np.float64] | None = None

    @property
    def errors(self) -> NDArray[np.float64]:
        """The completeness error (c,): the constant plus the sum of the evidence minus the logit.

        >>> tiles = np.array([[0.5, -1.0], [0.25, 2.0]], np.float32)
        >>> TileEvidence(tiles, np.array([0.25, 0.5]), np.array([1.0, 1.25])).errors
        array([0.  , 0.25])
        """
        return self.constant + self.tiles.sum(0, dtype=np.float64) - self.logits

    @property
    def method(self) -> str:
        """How the evidence was computed."""
        return f"integrated gradients, {self.steps} steps" if self.steps else "exact"

    def is_complete(self, position: int) -> bool:
        """Whether the completeness error of a class is small against the change of its logit."""
        change = max(abs(self.logits[position] - self.constant[position]), SMALL_CHANGE)
        return bool(abs(self.errors[position]) <= SUSPICIOUS * change)


def has_exact_evidence(aggregate: nn.Module) -> bool:
    """Whether an aggregator declares exact evidence; all others get integrated gradients.

    >>> from scmil.models import aggregators
    >>> [has_exact_evidence(aggregators.build(name, 8, 2)) for name in ("abmil", "transmil")]
    [True, False]
    """
    return getattr(aggregate, "evidence", None) is not None


def find_evidence(
    aggregate: nn.Module,
    blocks: Sequence[Tensor],
    prediction: Prediction,
    xy: Tensor | None = None,
    atoms: bool = False,
) -> TileEvidence:
    """Compute the evidence of all tiles of a bag, exact if the aggregator declares it.

    Args:
        aggregate: The aggregator, in evaluation mode.
        blocks: The embeddings of the bag that the aggregator receives, as blocks of rows.
        prediction: Its prediction for the bag.
        xy: Positions (n, 2) of the tiles, for aggregators that declare `uses_positions`.
        atoms: Whether the dimensions of the embeddings are atoms.

    Returns:
        The evidence; its memory is that of the blocks and, for integrated gradients, of one step of
        training.

    >>> from scmil.models import aggregators
    >>> aggregate = aggregators.build("abmil", 8, classes=3).eval()
    >>> h = torch.randn(5, 8)
    >>> evidence = find_evidence(aggregate, [h], aggregate(h))
    >>> evidence.method, evidence.tiles.shape, bool((abs(evidence.errors) < 1e-5).all())
    ('exact', (5, 3), True)
    """
    logits = prediction.logits.detach().double().cpu().numpy()
    if has_exact_evidence(aggregate):
        exact = _find_exact(aggregate, blocks, prediction, logits, atoms)
        if exact is not None:
            return exact

    def forward(h: Tensor) -> Prediction:
        return aggregate_bag(aggregate, h, xy)

    return integrate_gradients(forward, _concatenate(blocks), logits, atoms)


def _find_exact(
    aggregate: nn.Module,
    blocks: Sequence[Tensor],
    prediction: Prediction,
    logits: NDArray[np.float64],
    atoms: bool,
) -> TileEvidence | None:
    """The evidence that the aggregator declares; None if its options make the head non-linear."""
    if not getattr(aggregate, "evidence_by_rows", False):
        blocks = [_concatenate(blocks)]
    terms: list[Tensor] = []
    by_atom: Tensor | None = None
    constant: Tensor | None = None
    for h in blocks:
        first = sum(map(len, terms))
        with torch.set_grad_enabled(atoms):
            rows = h.detach().requires_grad_(atoms)
            attention = prediction.attention[first : first + len(h)]
            found: Evidence | None = aggregate.evidence(rows, attention)  # type: ignore[operator]
        if found is None:
            return None
        if atoms and found.linear:
            with torch.enable_grad():
                columns = found.terms.sum(0)
            products = _gradient_times(columns, rows, h)
            block = torch.stack([_sum_by_atom(product, h) for product in products], dim=1)
            by_atom = block if by_atom is None else by_atom + block
        terms.append(found.terms.detach())
        constant = found.constant.detach()
    assert constant is not None  # a bag has at least one block
    return TileEvidence(
        torch.cat(terms).float().cpu().numpy(),
        constant.double().cpu().numpy(),
        logits,
        atoms=None if by_atom is None else by_atom.cpu().numpy(),
    )


def _concatenate(blocks: Sequence[Tensor]) -> Tensor:
    return blocks[0] if len(blocks) == 1 else torch.cat(list(blocks))


def _gradient_times(outputs: Tensor, rows: Tensor, h: Tensor) -> Iterator[Tensor]:
    """For each output: its gradient with respect to the rows, times h (n, d)."""
    for position in range(len(outputs)):
        more = position + 1 < len(outputs)
        with torch.enable_grad():
            output = outputs[position]
        [gradient] = torch.autograd.grad(output, rows, retain_graph=more, materialize_grads=True)
        yield gradient * h


def _sum_by_atom(product: Tensor, h: Tensor) -> Tensor:
    """Sums (2 d,) over the rows: of those where h is positive, then of the others."""
    positive = torch.where(h > 0, product, 0).sum(0, dtype=torch.float64)
    return torch.cat([positive, product.sum(0, dtype=torch.float64) - positive])


def integrate_gradients(
    forward: Callable[[Tensor], Prediction],
    h: Tensor,
    logits: NDArray[np.float64],
    atoms: bool = False,
) -> TileEvidence:
    """Integrated gradients of the logits (Sundararajan et al., 2017) from zero embeddings to h.

    Gauss-Legendre quadrature with 8 steps, doubled up to 64 until the completeness error is at most
    0.001 of the change of each logit. A step is a forward pass and one backward pass per class; its
    gradients are summed at once, so that memory does not grow with the steps.

    Args:
        forward: Maps embeddings (n, d) to a prediction.
        h: The embeddings.
        logits: The logits (c,) of h.
        atoms: Whether the dimensions of h are atoms, whose contributions are then summed.

    Returns:
        The evidence, with its number of steps.

    >>> def square(h):
    ...     return Prediction(h.sum(1).square().sum()[None], h[:, 0])
    >>> found = integrate_gradients(square, torch.tensor([[1.0], [3.0]]), np.array([10.0]))
    >>> found.tiles.round(4).tolist(), found.constant.tolist()
    ([[1.0], [9.0]], [0.0])
    """
    with torch.no_grad():
        constant = forward(torch.zeros_like(h)).logits.double().cpu().numpy()
    change = np.maximum(np.abs(logits - constant), SMALL_CHANGE)
    for steps in STEPS:
        if steps > STEPS[0] and steps * len(h) > STEP_ROWS:
            break
        tiles, by_atom = _integrate(forward, h, steps, len(logits), atoms)
        found = TileEvidence(tiles, constant, logits, steps, by_atom)
        if (np.abs(found.errors) <= TOLERANCE * change).all():
            break
    return found


def _integrate(
    forward: Callable[[Tensor], Prediction], h: Tensor, steps: int, classes: int, atoms: bool
) -> tuple[NDArray[np.float32], NDArray[np.float64] | None]:
    """The quadrature with a number of steps: contributions of tiles, and of atoms."""
    tiles = torch.zeros(len(h), classes, dtype=torch.float64, device=h.device)
    by_atom = torch.zeros(2 * h.shape[1], classes, dtype=torch.float64, device=h.device)
    for node, weight in zip(*np.polynomial.legendre.leggauss(steps), strict=True):
        with torch.enable_grad():
            rows = (h.detach() * float((node + 1) / 2)).requires_grad_(True)
            logits = forward(rows).logits
        for position, product in enumerate(_gradient_times(logits, rows, h)):
            tiles[:, position] += float(weight / 2) * product.sum(1)
            if atoms:
                by_atom[:, position] += float(weight / 2) * _sum_by_atom(product, h)
    return tiles.float().cpu().numpy(), by_atom.cpu().numpy() if atoms else None
