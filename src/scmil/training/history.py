"""The record of a training: losses and validation metrics by epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from scmil.sparse_coding.layer import LONGEST_STEP
from scmil.training.selection import best_candidate


@dataclass
class History:
    """Losses and metrics of each epoch; the validation lists are empty without validation bags."""

    train_loss: list[float] = field(default_factory=list)
    valid_loss: list[float] = field(default_factory=list)
    valid_accuracy: list[float] = field(default_factory=list)
    valid_auc: list[float] = field(default_factory=list)
    # Of tasks other than classes: concordance, R², kappa or macro AUC.
    valid_score: list[float] = field(default_factory=list)
    # |D|^2 / mu of the sparse coding layer; empty for models without one.
    step: list[float] = field(default_factory=list)
    # The first epoch that may be chosen. Without an annotation it is not a field: it belongs to the
    # recipe, and files of a history do not have it.
    first_candidate = 1

    def add_step(self, step: float | None) -> None:
        """Record the step of the epoch whose loss was added last; of earlier ones that a checkpoint
        of an earlier version left out, it is unknown.

        >>> history = History(train_loss=[0.7, 0.6])
        >>> history.add_step(1.2)
        >>> history.step
        [nan, 1.2]
        """
        if step is not None:
            unknown = len(self.train_loss) - 1 - len(self.step)
            self.step += [math.nan] * unknown + [step]

    def step_note(self) -> str | None:
        """A sentence if the learned step was too long for the dictionary, else None.

        >>> History(step=[1.0, 1.25]).step_note()
        'The step |D|^2 / mu of the sparse coding layer rose to 1.25 in epoch 2...'
        >>> History(step=[0.9]).step_note()
        """
        steps = [-math.inf if math.isnan(step) else step for step in self.step]
        if not steps or (largest := max(steps)) <= LONGEST_STEP:
            return None
        return (
            f"The step |D|^2 / mu of the sparse coding layer rose to {largest:.2f} in epoch "
            f"{steps.index(largest) + 1}. Above 1 an update can raise the objective, above 2 the "
            "updates diverge; a lower learning rate keeps it below 1."
        )

    @property
    def best_epoch(self) -> int | None:
        """The epoch, from 1, that `scmil.training.selection` chooses; None without validation bags,
        and before the first epoch that may be chosen.

        >>> History(valid_loss=[0.7, 0.5, 0.4], valid_auc=[0.8, 0.9, 0.9]).best_epoch
        3
        """
        skipped = self.first_candidate - 1
        if not self.valid_loss[skipped:]:
            return None
        best = best_candidate(
            (self.valid_score or self.valid_auc)[skipped:], self.valid_loss[skipped:]
        )
        return skipped + best + 1
