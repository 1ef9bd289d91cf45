"""What the outputs of a model mean for a task other than classes, and its loss.

An objective needs `numbers` from the model for each bag: hazards, a risk, a value, thresholds of
grades, or one score per label. One or two of them are differences of pairs of outputs, because some
aggregators learn a single score for two classes, which is that difference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from torch import Tensor

from scmil.core.limits import problem
from scmil.core.shapes import Float, Numbers
from scmil.errors import OptionError
from scmil.models.combined_objective import ClassObjective, CombinedObjective
from scmil.models.survival_bins import MOST_NUMBERS
from scmil.models.target_losses import (
    cox_loss,
    cumulative_logits,
    discrete_survival_loss,
    grade_log_probabilities,
)

REGRESSION_LOSSES = ("huber", "squared")


@dataclass(frozen=True)
class SurvivalObjective:
    """Discrete time: a hazard for each bin; the last bin has no end.

    Attributes:
        edges: Ends of all bins but the last, ascending, from the events of the training split.
        censored_weight: Weight of censored bags in the loss.
        start: Logits of hazards, added to the outputs of the model; see `objective_start`.
        temperature: What the outputs of the model are divided by before.
    """

    edges: tuple[float, ...]
    censored_weight: float = 1.0
    start: tuple[float, ...] = ()
    temperature: float = 1.0
    task: ClassVar[str] = "survival"
    risk_set: ClassVar[int] = 1

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.edges, self.edges[1:], strict=False))
        finite = all(math.isfinite(edge) and edge > 0 for edge in self.edges)
        if not (self.edges and rising and finite and len(self.edges) < MOST_NUMBERS):
            raise OptionError(
                f"edges = {list(self.edges)[:5]}: ascending times above 0 are expected."
            )
        if not 0 <= self.censored_weight <= 1:
            raise OptionError(
                f"censored_weight = {self.censored_weight}: a number from 0 to 1 is expected."
            )
        _check_start(self.start, self.numbers, self.temperature)

    @property
    def numbers(self) -> int:
        """Numbers per bag: one for each bin."""
        return len(self.edges) + 1

    def losses(self, numbers: Tensor, target: Tensor) -> Tensor:
        """The loss of each bag; `target` has the time and the event."""
        bins = torch.bucketize(target[..., 0].contiguous(), self._edges(target))
        logits = _from_start(numbers, self.start, self.temperature)
        return discrete_survival_loss(logits, bins, target[..., 1] > 0, self.censored_weight)

    def outputs(self, numbers: Tensor) -> Tensor:
        """The probability of no event up to each edge, and through the last bin."""
        return F.logsigmoid(-_from_start(numbers, self.start, self.temperature)).cumsum(-1).exp()

    def _edges(self, like: Tensor) -> Tensor:
        return torch.tensor(self.edges, dtype=like.dtype, device=like.device)


@dataclass(frozen=True)
class CoxObjective:
    """Cox's partial likelihood over the bags of a step, the risk set.

    Attributes:
        risk_set: Number of bags of a step.
    """

    risk_set: int = 32
    task: ClassVar[str] = "survival"
    numbers: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not 2 <= self.risk_set <= 100_000:
            raise OptionError(
                f"risk_set = {self.risk_set}: a whole number from 2 to 100000 is expected."
            )

    def losses(self, numbers: Tensor, target: Tensor) -> Tensor:
        """The loss of all bags of a step, as a scalar."""
        return cox_loss(numbers[..., 0], target[..., 0], target[..., 1] > 0)

    def outputs(self, numbers: Tensor) -> Tensor:
        """The logarithm of the relative hazard."""
        return numbers


@dataclass(frozen=True)
class RegressionObjective:
    """A number, scaled by the mean and the standard deviation of the training split.

    Attributes:
        mean: Mean of the training targets.
        scale: Their standard deviation.
        loss: "huber", which limits the influence of outliers beyond one standard deviation, or
            "squared".
    """

    mean: float
    scale: float
    loss: str = "huber"
    task: ClassVar[str] = "regression"
    risk_set: ClassVar[int] = 1
    numbers: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.loss not in REGRESSION_LOSSES:
            raise OptionError(f"loss = {self.loss!r}. Known: {', '.join(REGRESSION_LOSSES)}.")
        if not (math.isfinite(self.mean) and math.isfinite(self.scale) and self.scale > 0):
            raise OptionError(
                f"mean = {self.mean}, scale = {self.scale}: finite numbers and a scale above 0 are "
                "expected."
            )

    def losses(self, numbers: Tensor, target: Tensor) -> Tensor:
        """The loss of each bag, in units of the scale."""
        value, scaled = numbers[..., 0], (target[..., 0] - self.mean) / self.scale
        function = F.huber_loss if self.loss == "huber" else F.mse_loss
        return function(value, scaled.to(value.dtype), reduction="none")

    def outputs(self, numbers: Tensor) -> Tensor:
        """The predicted number."""
        return numbers * self.scale + self.mean


@dataclass(frozen=True)
class OrdinalObjective:
    """An ordered grade, by cumulative logits with thresholds that depend on the bag.

    Attributes:
        grades: Number of grades.
        start: Numbers that are added to the outputs of the model; see `objective_start`.
        temperature: What the outputs of the model are divided by before.
    """

    grades: int
    start: tuple[float, ...] = ()
    temperature: float = 1.0
    task: ClassVar[str] = "ordinal"
    risk_set: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not 2 <= self.grades <= MOST_NUMBERS:
            raise OptionError(f"grades = {self.grades}: 2 to {MOST_NUMBERS} are expected.")
        _check_start(self.start, self.numbers, self.temperature)

    @property
    def numbers(self) -> int:
        """Numbers per bag: one for each threshold."""
        return self.grades - 1

    def losses(self, numbers: Tensor, target: Tensor) -> Tensor:
        """The negative log-likelihood of each bag."""
        log_p = grade_log_probabilities(self._logits(numbers))
        return -log_p.gather(-1, target[..., :1].long()).squeeze(-1)

    def outputs(self, numbers: Tensor) -> Tensor:
        """The probability of each grade."""
        return grade_log_probabilities(self._logits(numbers)).exp()

    def _logits(self, numbers: Tensor) -> Tensor:
        return cumulative_logits(_from_start(numbers, self.start, self.temperature))


@dataclass(frozen=True)
class MultilabelObjective:
    """Several yes/no labels; missing ones (NaN) take no part in the loss.

    Attributes:
        labels: Number of labels.
        start: Logits of labels, added to the outputs of the model; see `objective_start`.
        temperature: What the outputs of the model are divided by before.
    """

    labels: int
    start: tuple[float, ...] = ()
    temperature: float = 1.0
    task: ClassVar[str] = "multilabel"
    risk_set: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not 1 <= self.labels <= MOST_NUMBERS:
            raise OptionError(f"labels = {self.labels}: 1 to {MOST_NUMBERS} are expected.")
        _check_start(self.start, self.numbers, self.temperature)

    @property
    def numbers(self) -> int:
        """Numbers per bag: one for each label."""
        return self.labels

    def losses(self, numbers: Tensor, target: Tensor) -> Tensor:
        """The mean binary cross-entropy of the known labels of each bag."""
        known = ~target.isnan()
        filled = torch.where(known, target, 0.0).to(numbers.dtype)
        logits = _from_start(numbers, self.start, self.temperature)
        each = F.binary_cross_entropy_with_logits(logits, filled, reduction="none")
        return (each * known).sum(-1) / known.sum(-1).clamp(min=1)

    def outputs(self, numbers: Tensor) -> Tensor:
        """The probability of each label."""
        return _from_start(numbers, self.start, self.temperature).sigmoid()


def _from_start(numbers: Tensor, start: tuple[float, ...], temperature: float) -> Tensor:
    scaled = numbers if temperature == 1 else numbers / temperature
    return scaled + numbers.new_tensor(start) if start else scaled


def _check_start(start: tuple[float, ...], numbers: int, temperature: float) -> None:
    if reason := problem("temperature", temperature):
        raise OptionError(f"{reason}.")
    if start and (len(start) != numbers or not all(math.isfinite(value) for value in start)):
        raise OptionError(f"start = {list(start)[:5]}: {numbers} finite numbers are expected.")


Objective: TypeAlias = (
    SurvivalObjective
    | CoxObjective
    | RegressionObjective
    | OrdinalObjective
    | MultilabelObjective
    | ClassObjective
    | CombinedObjective
)
OBJECTIVES: dict[str, type[Objective]] = {
    "survival": SurvivalObjective,
    "cox": CoxObjective,
    "regression": RegressionObjective,
    "ordinal": OrdinalObjective,
    "multilabel": MultilabelObjective,
    "class": ClassObjective,
    "combined": CombinedObjective,
}


def model_outputs(objective: Objective) -> int:
    """The number of outputs of a model for an objective.

    >>> model_outputs(RegressionObjective(0.0, 1.0)), model_outputs(OrdinalObjective(5))
    (2, 4)
    """
    return objective.numbers if objective.numbers > 2 else 2 * objective.numbers


def numbers_of(objective: Objective, logits: Float[Tensor, "*b c"]) -> Float[Tensor, "*b k"]:
    """The numbers of an objective from the outputs of a model.

    >>> numbers_of(RegressionObjective(0.0, 1.0), torch.tensor([1.0, 3.0]))
    tensor([2.])
    """
    if objective.numbers > 2:
        return logits
    pairs = logits.unflatten(-1, (objective.numbers, 2))
    return pairs[..., 1] - pairs[..., 0]


def objective_json(objective: Objective) -> dict[str, Any]:
    """An objective as JSON values.

    >>> objective_json(OrdinalObjective(3))
    {'name': 'ordinal', 'grades': 3}
    """
    name = next(name for name, kind in OBJECTIVES.items() if type(objective) is kind)
    if isinstance(objective, CombinedObjective):
        return {
            "name": name,
            "parts": [objective_json(part) for part in objective.parts],
            "weights": list(objective.weights),
        }
    return {"name": name} | {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in asdict(objective).items()
        # As in files that were written before they existed.
        if not ((key == "start" and not value) or (key == "temperature" and value == 1))
    }


def objective_from_json(content: Mapping[str, Any]) -> Objective:
    """The objective that `objective_json` wrote.

    Raises:
        OptionError: If the name or an option is unknown or invalid.

    >>> objective_from_json({"name": "survival", "edges": [12.0, 36.0]}).edges
    (12.0, 36.0)
    """
    options = dict(content)
    name = options.pop("name", None)
    if name not in OBJECTIVES:
        raise OptionError(f"objective {name!r}. Known: {', '.join(OBJECTIVES)}.")
    parts: tuple[Any, ...] = ()
    if name == CombinedObjective.task:
        listed = options.pop("parts", None)
        if not isinstance(listed, list) or not all(isinstance(part, Mapping) for part in listed):
            raise OptionError("objective 'combined': a list of objectives as `parts` is expected.")
        parts = (tuple(map(objective_from_json, listed)),)
    plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
    for key, value in plain.items():
        entries = value if isinstance(value, tuple) else (value,)
        kind: type | tuple[type, ...] = str if key == "loss" else (int, float)
        if any(isinstance(entry, bool) or not isinstance(entry, kind) for entry in entries):
            raise OptionError(f"objective {name!r}: {key} = {value!r} is invalid.")
    try:
        return OBJECTIVES[name](*parts, **plain)
    except TypeError as error:
        raise OptionError(f"objective {name!r}: {error}.") from None


def risk_of(objective: Objective, outputs: ArrayLike) -> Numbers:
    """The risk of each bag, which is higher for earlier events, from the outputs of a model.

    With discrete time it is minus the sum of the survival at the ends of the bins.

    >>> risk_of(SurvivalObjective((1.0,)), [[0.9, 0.8], [0.5, 0.2]]).round(6).tolist()
    [-1.7, -0.7]
    """
    values = np.asarray(outputs, dtype=float)
    return values[:, 0] if isinstance(objective, CoxObjective) else -values.sum(1)
