from __future__ import annotations

from typing import Any

import pytest
import torch

from scmil.bags.bag import Bag, BagSet
from scmil.bags.checks import check_classes, labelled, validate_bags
from scmil.errors import BagError, DataError, SplitError


def bag(
    bag_id: str, features: torch.Tensor | None = None, label: int | None = 0, **known: Any
) -> Bag:
    x = torch.ones(3, 4) if features is None else features
    return Bag(bag_id, x, label, known.pop("patient", None), provenance=known)


@pytest.mark.parametrize(
    ("other", "error", "message"),
    [
        (
            bag("b", torch.ones(2, 5)),
            DataError,
            "2 different dimensions: 4 in 1 bags (a); 5 in 1 bags (b). Encode all",
        ),
        (
            bag("b", encoder="uni"),
            DataError,
            "2 different encoders: resnet18 in 1 bags (a); uni in 1 bags (b).",
        ),
        (bag("b", encoder_digest="2"), DataError, "2 different encoder weights"),
        (
            bag("b", mpp=1.0),
            DataError,
            "2 different tile resolutions (mpp): 0.5 in 1 bags (a); 1.0 in 1 bags (b).",
        ),
        (bag("b", torch.ones(0, 4)), BagError, "bag 'b' has no instances."),
        (
            bag("b", torch.full((2, 4), float("nan"))),
            BagError,
            "bag 'b' has NaN or infinite features.",
        ),
    ],
)
def test_what_cannot_be_trained_on_together_is_rejected(
    other: Bag, error: type[Exception], message: str
) -> None:
    first = bag("a", encoder="resnet18", encoder_digest="1", mpp=0.5)
    with pytest.raises(error) as error_info:
        validate_bags(BagSet([first, other]))
    assert message in str(error_info.value)


def test_what_some_bags_do_not_say_is_no_mixture() -> None:
    found = validate_bags(
        BagSet([bag("a", encoder="uni", mpp=0.5), bag("b"), bag("c", mpp=0.5001)])
    )
    assert found.provenance == {"encoder": "uni", "mpp": 0.5001}
    assert (found.median, found.numbers) == (3, 36)


@pytest.mark.parametrize(
    ("labels", "patients", "error", "message"),
    [
        (
            [0, None, 1, 1],
            None,
            DataError,
            "bags without a label (1 of 4): b. Label them, or leave them out",
        ),
        ([1, 1, 1, 1], None, SplitError, "all 4 bags are of one class, 'tumor'."),
        ([0, 1, 1, 1], None, SplitError, "class 'normal' has only one bag"),
        (
            [0, 0, 1, 1],
            ["p", "p", "q", "r"],
            SplitError,
            "class 'normal' has only one patient, 'p'",
        ),
    ],
)
def test_labels_that_nothing_can_be_learned_from_are_rejected(
    labels: list[int | None], patients: list[str] | None, error: type[Exception], message: str
) -> None:
    owners = patients or [None] * 4
    bags = [
        bag(bag_id, label=label, patient=owner)
        for bag_id, label, owner in zip("abcd", labels, owners)
    ]
    with pytest.raises(error) as error_info:
        check_classes(BagSet(bags, ["normal", "tumor"]))
    assert message in str(error_info.value)


def test_a_class_without_bags_is_rejected() -> None:
    bags = [bag(str(i), label=i % 2) for i in range(4)]
    check_classes(BagSet(bags))
    with pytest.raises(DataError, match="no bag is of class rare"):
        check_classes(BagSet(bags, ["normal", "tumor", "rare"]))


def test_bags_without_a_label_can_be_left_out() -> None:
    assert labelled(BagSet([bag("a"), bag("b", label=None), bag("c", label=1)])).ids == ("a", "c")
