"""Losses of tasks other than classes: functions of what a model returns for bags."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from scmil.core.shapes import Float


def discrete_survival_loss(
    hazard_logits: Float[Tensor, "*b k"], bins: Tensor, events: Tensor, censored_weight: float = 1.0
) -> Tensor:
    """The negative log-likelihood of times in k bins, one value per bag.

    Args:
        hazard_logits: Logits of the probability of an event in each bin, if there was none before.
        bins: The bin of each time.
        events: True if the time is an event; a censored bag survives its bin.
        censored_weight: Weight of censored bags. The α of Patch-GCN is 1 minus this.

    Returns:
        The loss of each bag.

    >>> discrete_survival_loss(torch.zeros(2, 4), torch.tensor([0, 1]), torch.tensor([True, False]))
    tensor([0.6931, 1.3863])
    """
    last = hazard_logits.shape[-1] - 1
    log_hazard, log_survival = F.logsigmoid(hazard_logits), F.logsigmoid(-hazard_logits)
    number = torch.arange(last + 1, device=hazard_logits.device)
    before = (number < bins[..., None]).to(hazard_logits.dtype)
    survived = (log_survival * before).sum(-1)
    own = bins[..., None].clamp(max=last)
    event_loss = -(survived + log_hazard.gather(-1, own).squeeze(-1))
    censored_loss = -(survived + log_survival.gather(-1, own).squeeze(-1)) * censored_weight
    return torch.where(events, event_loss, censored_loss)


def cox_loss(risk: Float[Tensor, "*b"], times: Tensor, events: Tensor) -> Tensor:
    """The negative log partial likelihood of Cox with Efron's ties, divided by the events.

    Args:
        risk: Logarithm of the relative hazard of each bag of the risk set, or of one bag.
        times: Follow-up times.
        events: True if the time is an event.

    Returns:
        The loss; zero without an event.

    >>> cox_loss(torch.zeros(2), torch.tensor([1.0, 2.0]), torch.tensor([True, False]))
    tensor(0.6931)
    """
    total = risk.sum() * 0.0
    for time in times[events].unique():
        dead = events & (times == time)
        log_all = risk[times >= time].logsumexp(0)
        log_dead = risk[dead].logsumexp(0)
        number = int(dead.sum())
        share = torch.arange(number, dtype=risk.dtype, device=risk.device) / number
        # log(sum of all - share * sum of the tied events), relative to the sum of all.
        ratio = (log_dead - log_all).exp()
        left = torch.log1p(-(share * ratio).clamp(max=1 - 1e-7)) + log_all
        total = total - (risk[dead].sum() - left.sum())
    return total / max(1, int(events.sum()))


def cumulative_logits(numbers: Float[Tensor, "*b k"]) -> Float[Tensor, "*b k"]:
    """The logits of a grade above each of the k thresholds, which fall from one to the next.

    >>> cumulative_logits(torch.tensor([1.0, 0.0]))
    tensor([1.0000, 0.3069])
    """
    steps = F.softplus(numbers[..., 1:])
    return torch.cat([numbers[..., :1], numbers[..., :1] - steps.cumsum(-1)], dim=-1)


def grade_log_probabilities(logits: Float[Tensor, "*b k"]) -> Float[Tensor, "*b g"]:
    """The log-probability of each of k + 1 grades for cumulative logits that fall.

    >>> grade_log_probabilities(torch.tensor([0.0])).exp()
    tensor([0.5000, 0.5000])
    """
    first, last = F.logsigmoid(-logits[..., :1]), F.logsigmoid(logits[..., -1:])
    # log(sigmoid(a) - sigmoid(b)) for a > b, without the difference of two numbers close to 1.
    a, b = logits[..., :-1], logits[..., 1:]
    gap = (a - b).clamp(min=1e-6)
    middle = F.logsigmoid(a) + F.logsigmoid(-b) + torch.log(-torch.expm1(-gap))
    return torch.cat([first, middle, last], dim=-1)
