"""Synthetic bags of features, of controlled difficulty, with a label for every instance.

Not slides: `scmil.slides.synthetic` draws those.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scmil.bags.bag import BagSet
from scmil.bags.datasets import registry, target_registry
from scmil.bags.datasets.positive_share import bag_targets, positive_shares
from scmil.bags.datasets.table import Table
from scmil.bags.targets import (
    GradeTarget,
    LabelsTarget,
    NumberTarget,
    SurvivalTarget,
    Targets,
)
from scmil.core.shapes import Numbers
from scmil.errors import OptionError

INSTANCES = 20  # of a bag, on average
SIGNAL_DIMS = 32
EFFECT = 5.0  # log hazard of the bag with the most positive instances, relative to none
MEDIAN_MONTHS, FOLLOW_UP_MONTHS = 24.0, (6.0, 60.0)
UNKNOWN = 1 / 6  # of each label
TRUE_ATOMS = 96  # three times as many as dimensions: projections on atoms interfere


@registry.register("synthetic", "bags of controlled difficulty, with a label for every instance")
def synthetic(
    bags: int = 100,
    witness: float = 0.1,
    noise_dims: int = 32,
    active: int = 3,
    strength: float = 0.5,
    noise: float = 0.1,
    seed: int = 0,
) -> BagSet:
    """Return bags of about 20 instances, half of them with positive instances.

    Each instance is a linear combination of `active` of 96 random atoms in 32 dimensions, with
    Gaussian coefficients and a mean squared length of one, whatever `active` is: with 3 the
    structure is sparse, with 96 it is dense. A positive instance has in addition `strength` times
    one more atom, the same in all positive bags. The dimensions are followed by `noise_dims` with
    Gaussian noise of the same variance, and rotated.

    Args:
        bags: Number of bags.
        witness: Fraction of positive instances in a positive bag; each has at least one.
        noise_dims: Number of dimensions without information.
        active: Atoms in each instance, 1 to 96.
        strength: Length of the part that makes an instance positive.
        noise: Standard deviation of Gaussian noise in all dimensions, relative to a dimension's.
        seed: Seed of atoms, instances and noise.

    Returns:
        The bags.

    Raises:
        OptionError: An option is out of range.

    >>> cohort = synthetic(bags=6, witness=0.2, seed=1)
    >>> cohort, cohort.dim
    (BagSet(6 bags, 3/3 of class 0/1), 64)
    >>> [int(bag.instance_labels.sum()) > 0 for bag in cohort]
    [False, True, False, True, False, True]
    """
    _check_range("bags", bags, 2, 100_000)
    _check_range("witness", witness, 0, 1)
    _check_range("noise_dims", noise_dims, 0, 10_000)
    _check_range("active", active, 1, TRUE_ATOMS)
    _check_range("strength", strength, 0, 1000)
    _check_range("noise", noise, 0, 1000)
    generator = np.random.default_rng(seed)
    sizes = np.maximum(2, generator.poisson(INSTANCES, bags))
    labels = np.arange(bags) % 2
    bag = np.repeat(np.arange(bags), sizes)
    positive = _positive_instances(generator, sizes, labels, witness)
    atoms = generator.normal(size=(TRUE_ATOMS + 1, SIGNAL_DIMS))
    atoms /= np.linalg.norm(atoms, axis=1, keepdims=True)
    x = _codes(generator, len(bag), active) @ atoms[:-1] + strength * positive[:, None] * atoms[-1]
    scale = SIGNAL_DIMS**-0.5  # standard deviation of a dimension of the signal
    x = np.hstack([x, generator.normal(0, scale, (len(x), noise_dims))])
    x += noise * scale * generator.normal(size=x.shape)
    rotation = np.linalg.qr(generator.normal(size=(x.shape[1], x.shape[1])))[0]
    return Table(
        (x @ rotation).astype(np.float32),
        bag,
        labels.tolist(),
        instance_labels=positive.astype(np.int64),
    ).bags()


@target_registry.register("synthetic/survival", "months, earlier with more positive instances")
def synthetic_survival(bags: BagSet, seed: int = 0) -> Targets:
    """Return times of an exponential distribution whose log hazard is 5 times the relative share of
    positive instances, with a median of 24 months without any, censored after 6 to 60 months.

    >>> from scmil.bags.datasets import load_targets
    >>> load_targets("synthetic:bags=4", "survival").target
    SurvivalTarget(time='os_months', event='os_event')
    """
    generator = np.random.default_rng([seed, 1])
    shares = _relative_shares(bags)
    hazard = np.log(2) / MEDIAN_MONTHS * np.exp(EFFECT * shares)
    death = generator.exponential(1 / hazard)
    end = generator.uniform(*FOLLOW_UP_MONTHS, len(shares))
    months = np.maximum(np.minimum(death, end), 0.01).round(2)
    values = list(zip(months.tolist(), (death <= end).tolist(), strict=True))
    return bag_targets(bags, SurvivalTarget("os_months", "os_event"), values)


@target_registry.register("synthetic/regression", "share of positive instances")
def synthetic_number(bags: BagSet, seed: int = 0) -> Targets:
    """Return the share of positive instances, relative to the largest."""
    return bag_targets(bags, NumberTarget("share"), _relative_shares(bags).tolist())


@target_registry.register("synthetic/ordinal", "none, few or many positive instances")
def synthetic_grade(bags: BagSet, seed: int = 0) -> Targets:
    """Return 0 without positive instances, 1 up to the median of the other bags, and 2 above."""
    shares = _relative_shares(bags)
    middle = float(np.median(shares[shares > 0])) if shares.any() else 0.0
    grades = [int(share > 0) + int(share > middle) for share in shares.tolist()]
    return bag_targets(bags, GradeTarget("grade", ("0", "1", "2")), grades)


@target_registry.register("synthetic/multilabel", "any and many positive instances, and chance")
def synthetic_labels(bags: BagSet, seed: int = 0) -> Targets:
    """Return whether a bag has any and whether it has many positive instances, and a label without
    signal; a sixth of the last two is missing.
    """
    generator = np.random.default_rng([seed, 2])
    shares = _relative_shares(bags)
    middle = float(np.median(shares[shares > 0])) if shares.any() else 0.0
    chance, *missing = generator.random((3, len(shares)))
    values = [
        (bool(share > 0), _hide(bool(share > middle), first), _hide(bool(drawn < 0.5), second))
        for share, drawn, first, second in zip(shares.tolist(), chance, *missing, strict=True)
    ]
    return bag_targets(bags, LabelsTarget(("any", "many", "chance")), values)


def _hide(value: bool, drawn: float) -> bool | None:
    return None if drawn < UNKNOWN else value


def _relative_shares(bags: BagSet) -> Numbers:
    shares = positive_shares(bags)
    return shares / max(float(shares.max()), 1e-9)


def _positive_instances(
    generator: np.random.Generator,
    sizes: NDArray[np.int64],
    labels: NDArray[np.int64],
    witness: float,
) -> NDArray[np.bool_]:
    """Which instances are positive: in positive bags a binomial number, at least one."""
    rows = []
    for size, label in zip(sizes.tolist(), labels.tolist(), strict=True):
        count = max(1, generator.binomial(size, witness)) if label else 0
        rows.append(generator.permutation(size) < count)
    return np.concatenate(rows)


def _codes(generator: np.random.Generator, n: int, active: int) -> NDArray[np.float64]:
    """Coefficients (n, atoms) of which `active` are not zero, with a mean squared sum of one."""
    chosen = generator.random((n, TRUE_ATOMS)).argsort(1) < active
    return chosen * generator.normal(0, active**-0.5, (n, TRUE_ATOMS))


def _check_range(name: str, value: float, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise OptionError(
            f"data set 'synthetic': {name} = {value!r}, expected a number from {least} to {most}."
        )
