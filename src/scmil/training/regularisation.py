"""Options of a training for every aggregator: sampling and masking of tiles, noise, mixup, entropy
of the attention, and a mean teacher. All are off by default.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from scmil.bags.bag import Bag
from scmil.bags.loader import Loader
from scmil.errors import OptionError
from scmil.models.aggregators import Prediction
from scmil.models.model import MILModel
from scmil.models.streaming import predict_bag


@dataclass(frozen=True)
class Regularisation:
    """What happens to a bag and to its loss in each step of a training; nothing by default.

    All draws depend only on the seed of the training, the epoch and the id of the bag, so a resumed
    training repeats them. Validation and prediction use whole bags. With any of these options,
    `fit_folds` trains the folds one after the other.

    Args:
        tile_sample: Largest number of tiles of a step; those of larger bags are drawn at random,
            without replacement.
        tile_dropout: Probability that a tile is left out; at least one stays.
        feature_noise: Standard deviation of Gaussian noise that is added to the features.
        mixup: Parameter alpha of mixup: with l from Beta(alpha, alpha), the bag has the fraction l
            of its tiles and the fraction 1 - l of those of another training bag, and the losses of
            the two labels have the weights l and 1 - l.
        attention_entropy: Weight of the negative entropy of the attention, which is added to the
            loss (AEM).
        mask_top: Number of tiles of highest attention of which some are left out (STKIM).
        mask_top_ratio: Fraction of them that is left out, chosen at random.
        teacher_mask: Fraction of the tiles, those of highest attention of a mean teacher, that is
            left out (MHIM). The teacher is the running mean of the model's weights; it starts with
            the initial weights.
        teacher_momentum: Weight of the old teacher in the running mean.
        teacher_weight: Weight of the cross-entropy between the probabilities of the teacher, who
            has all tiles of the step, and of the model.

    Raises:
        OptionError: If values are out of range; the message lists all of them.

    >>> Regularisation(tile_sample=512, tile_dropout=0.1).is_on, Regularisation().is_on
    (True, False)
    """

    tile_sample: int | None = None
    tile_dropout: float = 0.0
    feature_noise: float = 0.0
    mixup: float = 0.0
    attention_entropy: float = 0.0
    mask_top: int = 0
    mask_top_ratio: float = 0.6
    teacher_mask: float = 0.0
    teacher_momentum: float = 0.9999
    teacher_weight: float = 0.5

    def __post_init__(self) -> None:
        problems = [
            f"regularisation.{name} = {getattr(self, name)!r}: {expected}"
            for name, valid, expected in self._checks()
            if not valid
        ]
        if problems:
            raise OptionError("; ".join(problems) + ".")

    def _checks(self) -> Iterator[tuple[str, bool, str]]:
        """Name, whether the value is valid, and what is expected, for each setting."""
        sample = self.tile_sample
        yield "tile_sample", sample is None or (_is_count(sample) and sample > 0), "1 or more tiles"
        yield "mask_top", _is_count(self.mask_top), "a number of tiles, 0 or more"
        for name in ("tile_dropout", "teacher_mask"):
            value = getattr(self, name)
            yield name, _is_number(value) and 0 <= value < 1, "a number from 0 to below 1"
        for name in ("mask_top_ratio", "teacher_momentum"):
            value = getattr(self, name)
            yield name, _is_number(value) and 0 <= value <= 1, "a number from 0 to 1"
        for name in ("feature_noise", "mixup", "attention_entropy", "teacher_weight"):
            value = getattr(self, name)
            yield name, _is_number(value) and value >= 0, "a number, 0 or more"

    @classmethod
    def of(cls, settings: Regularisation | Mapping[str, Any]) -> Regularisation:
        """From a mapping, as a TOML file has it.

        >>> Regularisation.of({"tile_sample": 512}).tile_sample
        512
        """
        if isinstance(settings, cls):
            return settings
        known = [field.name for field in fields(cls)]
        if not isinstance(settings, Mapping) or (unknown := settings.keys() - set(known)):
            found = ", ".join(sorted(unknown)) if isinstance(settings, Mapping) else repr(settings)
            raise OptionError(f"regularisation: unknown {found}. It takes: {', '.join(known)}.")
        return cls(**settings)

    def to_json(self) -> dict[str, Any]:
        """The settings that are not the defaults."""
        default = asdict(Regularisation())
        return {name: value for name, value in asdict(self).items() if value != default[name]}

    @property
    def is_on(self) -> bool:
        """Whether a step differs from that without regularisation."""
        switches = (self.tile_dropout, self.feature_noise, self.mixup, self.attention_entropy)
        masks = (self.mask_top * self.mask_top_ratio, self.teacher_mask)
        return self.tile_sample is not None or any(switches) or any(masks)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


# -------------------------------------------------------------------------------------- one step


def make_teacher(model: MILModel, options: Regularisation) -> MILModel | None:
    """A copy of the model without gradients, if a mean teacher is asked for."""
    if not options.teacher_mask:
        return None
    return copy.deepcopy(model).requires_grad_(False).eval()


@torch.no_grad()
def update_teacher(teacher: MILModel, model: MILModel, momentum: float) -> None:
    """Move the weights of the teacher towards those of the model; buffers are copied."""
    for mean, weight in zip(teacher.parameters(), model.parameters(), strict=True):
        mean.lerp_(weight, 1 - momentum)
    for old, new in zip(teacher.buffers(), model.buffers(), strict=True):
        old.copy_(new)


def draw_partner(train: Sequence[Bag], options: Regularisation) -> Bag | None:
    """The other bag of mixup, drawn with torch's generator; None without mixup."""
    if not options.mixup:
        return None
    return next(Loader(budget=0).read(train, [int(torch.randint(len(train), (1,)))]))


def check_regularisation(model: MILModel, options: Regularisation) -> None:
    """Raise OptionError for options that the aggregator of a model does not allow."""
    if options.mixup and not getattr(model.aggregate, "stackable", True):
        raise OptionError(
            f"regularisation.mixup = {options.mixup}: {type(model.aggregate).__name__} keeps state "
            "of the bags of each class, and a mixed bag has two. Leave mixup out."
        )


Forward = Callable[[MILModel, Bag], Prediction]


@dataclass(frozen=True)
class RegularisedStep:
    """Computes the loss of a bag with the options.

    Args:
        model: The model to train.
        options: What to do in a step.
        teacher: The mean teacher, if the options ask for one.
        weights: Class weights.
        forward: Applies the model to a bag, with gradients.
    """

    model: MILModel
    options: Regularisation
    teacher: MILModel | None
    weights: Sequence[float] | None
    forward: Forward

    def loss(self, bag: Bag, partner: Bag | None = None) -> Tensor:
        """The loss of a bag; `partner` is the other bag of mixup. Draws from torch's generator."""
        options, shares = self.options, [(int(bag.label or 0), 1.0)]
        if options.mixup and partner is not None:
            bag, shares = _mix_bags(bag, partner, options.mixup)
        bag = _drop_tiles(bag, options)
        if options.feature_noise:
            x = bag.features.float()
            bag = replace(bag, features=x + options.feature_noise * torch.randn_like(x))
        taught: Prediction | None = None
        whole = bag
        if options.mask_top * options.mask_top_ratio:
            count = min(options.mask_top, len(whole.features))
            highest = self._attention(self.model, whole, "mask_top").topk(count).indices
            chosen = torch.randperm(count)[: int(count * options.mask_top_ratio + 1e-9)]
            bag = _without(whole, highest[chosen])
        if self.teacher is not None:
            taught = _look(self.teacher, bag)
            attention = self._check_attention(taught.attention, "teacher_mask").cpu()
            count = int(len(attention) * options.teacher_mask)
            bag = _without(bag, attention.topk(count).indices)
        prediction = self.forward(self.model, bag)
        losses = [
            share
            * (self.weights[label] if self.weights else 1.0)
            * self.model.loss(prediction, label)
            for label, share in shares
        ]
        return sum(losses[1:], losses[0]) + self._penalties(prediction, taught)

    def _penalties(self, prediction: Prediction, taught: Prediction | None) -> Tensor:
        loss = prediction.logits.new_zeros(())
        if weight := self.options.attention_entropy:
            attention = self._check_attention(prediction.attention, "attention_entropy")
            if not attention.requires_grad:
                name = type(self.model.aggregate).__name__
                raise OptionError(
                    f"regularisation.attention_entropy = {weight}: the attention of {name} has no "
                    "gradient, so its entropy cannot be trained. Leave attention_entropy out."
                )
            # The gradient of a log a is infinite at 0, which is the weight of a masked tile.
            positive = attention.clamp(min=torch.finfo(attention.dtype).tiny)
            loss = loss + weight * torch.special.entr(positive).sum().neg()
        if taught is not None and self.options.teacher_weight:
            wanted = self.model.probabilities(taught.logits)
            own = prediction.logits
            if self.model.output == "sigmoid":
                distance = torch.nn.functional.binary_cross_entropy_with_logits(own, wanted)
            else:
                distance = torch.nn.functional.cross_entropy(own, wanted)
            loss = loss + self.options.teacher_weight * distance
        return loss

    def _attention(self, model: MILModel, bag: Bag, option: str) -> Tensor:
        return self._check_attention(_look(model, bag).attention, option).cpu()

    def _check_attention(self, attention: Tensor, option: str) -> Tensor:
        if torch.isnan(attention.detach()).any():
            raise OptionError(
                f"regularisation.{option} needs the attention of the tiles, and "
                f"{type(self.model.aggregate).__name__} returns none. Leave {option} out."
            )
        return attention


def _look(model: MILModel, bag: Bag) -> Prediction:
    """The prediction in evaluation mode, without gradients."""
    return predict_bag(model, bag.features, xy=bag.xy)


def _mix_bags(bag: Bag, partner: Bag, alpha: float) -> tuple[Bag, list[tuple[int, float]]]:
    """Tiles of two bags, and the share of either label."""
    share = float(torch.distributions.Beta(alpha, alpha).sample())
    parts = []
    for one, part in ((bag, share), (partner, 1 - share)):
        count = math.ceil(part * len(one.features))
        parts.append(_select(one, torch.randperm(len(one.features))[:count].sort().values))
    has_places = all(part.xy is not None for part in parts)
    mixed = replace(
        parts[0],
        features=torch.cat([part.features for part in parts]),
        # The slides are placed side by side, so that no tile has a neighbour on the other slide.
        xy=_side_by_side([part.xy for part in parts]) if has_places else None,  # type: ignore[misc]
    )
    return mixed, [(int(bag.label or 0), share), (int(partner.label or 0), 1 - share)]


def _side_by_side(places: Sequence[Tensor]) -> Tensor:
    first, second = places
    if not len(first) or not len(second):
        return torch.cat([first, second])
    extent = max(int((xy.amax(0) - xy.amin(0)).max()) for xy in places)
    shift = first[:, 0].amax() - second[:, 0].amin() + 10 * (extent + 1)
    return torch.cat([first, second + torch.stack([shift, torch.zeros_like(shift)])])


def _drop_tiles(bag: Bag, options: Regularisation) -> Bag:
    """Sample the tiles of a step, and leave some of them out."""
    n = len(bag.features)
    if options.tile_sample is not None and n > options.tile_sample:
        bag = _select(bag, torch.randperm(n)[: options.tile_sample].sort().values)
    if options.tile_dropout:
        kept = (torch.rand(len(bag.features)) >= options.tile_dropout).nonzero().flatten()
        one = torch.randint(len(bag.features), (1,))
        bag = _select(bag, kept if len(kept) else one)
    return bag


def _without(bag: Bag, rows: Tensor) -> Bag:
    """The bag without some tiles; one tile stays."""
    stays = torch.ones(len(bag.features), dtype=torch.bool)
    stays[rows] = False
    if not stays.any():
        stays[rows[-1]] = True
    return _select(bag, stays.nonzero().flatten())


def _select(bag: Bag, rows: Tensor) -> Bag:
    xy = None if bag.xy is None else bag.xy[rows]
    return replace(bag, features=bag.features[rows], xy=xy, instance_labels=None)
