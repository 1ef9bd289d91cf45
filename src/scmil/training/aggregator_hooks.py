"""What a training does for aggregators that use tile positions or start losses later."""

from __future__ import annotations

from collections.abc import Sequence

from scmil.bags.bag import Bag
from scmil.bags.loader import Loader
from scmil.core.text import first_names
from scmil.errors import BagError
from scmil.models.aggregators import uses_positions
from scmil.models.model import MILModel
from scmil.training.recipes import Recipe


def check_positions(model: MILModel, bags: Sequence[Bag], loader: Loader | None = None) -> None:
    """Raise BagError with the names of bags without tile positions if the model's aggregator uses
    them. Every bag is read for it; other models read none.
    """
    if not uses_positions(model.aggregate):
        return
    loader = loader or Loader(budget=0)
    if missing := [bag.id for bag in loader.read(bags) if bag.xy is None]:
        raise BagError(
            f"bags without tile positions: {first_names(missing, 5)}. "
            f"The aggregator {type(model.aggregate).__name__} uses them: encode the slides with "
            "scmil encode, import features together with their coordinates, or choose another "
            "aggregator."
        )


def can_be_stacked(model: MILModel, recipe: Recipe) -> bool:
    """Whether the folds of such a model are trained together: not if its aggregator keeps state,
    nor with a regularisation.
    """
    return getattr(model.aggregate, "stackable", True) and not recipe.regularisation.is_on


def announce_epoch(model: MILModel, epoch: int) -> None:
    """Call the `set_epoch` of an aggregator that has one."""
    if (set_epoch := getattr(model.aggregate, "set_epoch", None)) is not None:
        set_epoch(epoch)
