"""All slides of a patient as one bag."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from scmil import Bag
from scmil.bags.bag import BagSet
from scmil.bags.patient_bags import GAP, join_slides
from scmil.bags.target_bags import with_targets
from scmil.bags.targets import NumberTarget, SurvivalTarget, Targets
from scmil.errors import DataError


def slide(name: str, patient: str | None, label: int = 0, value: float = 0.0) -> Bag:
    xy = torch.tensor([[100, 0], [356, 0]])
    origin = {"encoder": "e", "side_level0": 256, "slide_digest": name}
    return Bag(name, torch.full((2, 3), value), label, patient, xy=xy, provenance=origin)


def test_a_patient_has_the_tiles_of_all_slides() -> None:
    joined = join_slides(
        BagSet([slide("a", "p", 1, 1.0), slide("c", "q", 0, 3.0), slide("b", "p", 1, 2.0)])
    )
    assert joined.ids == ("p", "q")
    assert joined[0].features[:, 0].tolist() == [1.0, 1.0, 2.0, 2.0]
    assert joined[0].patient == "p"
    assert dict(joined[0].provenance) == {"encoder": "e", "side_level0": 256}


def test_slides_of_a_patient_do_not_overlap() -> None:
    xy = join_slides(BagSet([slide("a", "p"), slide("b", "p")]))[0].xy
    assert xy is not None
    assert xy[:2].tolist() == [[100, 0], [356, 0]]
    assert xy[2:, 0].min() - (xy[:2, 0].max() + 256) == GAP
    without = [slide("a", "p"), replace(slide("b", "p"), xy=None)]
    assert join_slides(BagSet(without))[0].xy is None


def test_patients_with_different_labels_are_rejected() -> None:
    with pytest.raises(DataError, match=r"1 patients have slides with different labels \(p\)"):
        join_slides(BagSet([slide("a", "p", 0), slide("b", "p", 1)]))


def test_slides_without_patients_cannot_be_joined() -> None:
    with pytest.raises(DataError, match="no patient is known"):
        join_slides(BagSet([slide("a", None)]))


def test_features_of_different_dimensions_are_rejected() -> None:
    wide = replace(slide("b", "p"), features=torch.zeros(2, 5))
    with pytest.raises(DataError, match="features of different dimensions"):
        join_slides(BagSet([slide("a", "p"), wide]))[0]


def test_a_changed_slide_changes_its_patient() -> None:
    first = join_slides(BagSet([slide("a", "p"), slide("b", "p"), slide("c", "q")])).inputs()
    changed = BagSet([slide("a", "p"), slide("b", "p", value=1.0), slide("c", "q")])
    assert join_slides(changed).inputs().changes_since(first) == [
        "the features of 1 bag changed (p)"
    ]


def test_values_of_other_tasks_are_those_of_the_patient() -> None:
    bags = BagSet([slide(name, None) for name in "abcd"])
    values = ((1.0, True), (1.0, True), (3.0, False), (4.0, True))
    targets = Targets(SurvivalTarget(), tuple("abcd"), values, ("p", "p", "q", "r"))
    joined = join_slides(with_targets(bags, targets))
    assert joined.ids == ("p", "q", "r")
    assert joined.targets is not None
    assert joined.targets.array(joined.ids)[:, 0].tolist() == [1.0, 3.0, 4.0]


def test_patients_from_whom_nothing_can_be_learned_are_joined_for_a_test() -> None:
    bags = BagSet([slide(name, None) for name in "abc"])
    targets = Targets(NumberTarget("age"), tuple("abc"), (7.0,) * 3, ("p", "p", "q"))
    with pytest.raises(DataError, match="constant"):
        with_targets(bags, targets)
    assert join_slides(with_targets(bags, targets, check=False)).ids == ("p", "q")
