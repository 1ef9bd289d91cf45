"""Bags of handwritten digits, positive if they contain a nine, as in Ilse et al. (2018).

The instances have labels.
"""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np

from scmil.bags.bag import BagSet
from scmil.bags.datasets import registry, target_registry
from scmil.bags.datasets.positive_share import bag_targets, positive_shares
from scmil.bags.datasets.table import Table
from scmil.bags.targets import NumberTarget, Targets
from scmil.errors import MissingExtraError

BAGS = 150  # with more, an image would be in two bags, and so in training and test splits
REMEDY = "pip install 'scmil[statistics]'"


def find_source() -> str | None:
    """Return the package that contains the images, if it is installed."""
    return "scikit-learn" if find_spec("sklearn") else None


@registry.register("digits", "150 bags of 8 x 8 digits, is there a nine?")
def digits(seed: int = 0) -> BagSet:
    """Return 150 bags of about ten 8 x 8 digits, half of them with at least one nine.

    The 64 features are between 0 and 1. Sizes are drawn from N(10, 2). Each of scikit-learn's
    1 797 images is in at most one bag.

    >>> bags = digits()
    >>> bags, bags[1].label, int(bags[0].instance_labels.sum())
    (BagSet(150 bags, 75/75 of class 0/1), 1, 0)
    """
    if find_source() is None:
        raise MissingExtraError(
            f"the images of 'digits' are part of scikit-learn, which is not installed: {REMEDY}"
        )
    from sklearn.datasets import load_digits

    images, digit = load_digits(return_X_y=True)
    generator = np.random.default_rng(seed)
    sizes = np.maximum(1, generator.normal(10, 2, BAGS).round().astype(int))
    nines, others = (
        generator.permutation(np.flatnonzero(found)) for found in (digit == 9, digit != 9)
    )
    negative, positive = sizes[0::2], sizes[1::2]
    seeds_of_positive, further_nines = np.split(nines, [len(positive)])
    for_negative, for_both = np.split(others, [negative.sum()])
    for_positive = generator.permutation(np.concatenate([further_nines, for_both]))[
        : (positive - 1).sum()
    ]
    image = np.concatenate([for_negative, seeds_of_positive, for_positive])
    even, odd = np.arange(0, BAGS, 2), np.arange(1, BAGS, 2)
    bag = np.concatenate([np.repeat(even, negative), odd, np.repeat(odd, positive - 1)])
    shuffled = generator.permutation(len(image))
    image, bag = image[shuffled], bag[shuffled]
    labels = [position % 2 for position in range(BAGS)]
    features = (images[image] / 16).astype(np.float32)
    return Table(features, bag, labels, instance_labels=(digit[image] == 9).astype(np.int64)).bags()


@target_registry.register("digits/regression", "share of nines among the digits of a bag")
def share_of_nines(bags: BagSet, seed: int = 0) -> Targets:
    """Return the share of images of each bag that show a nine."""
    return bag_targets(bags, NumberTarget("share of nines"), positive_shares(bags).tolist())
