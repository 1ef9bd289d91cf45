from __future__ import annotations

from typing import Any

import pytest
import torch

from scmil.bags.bag import Bag
from scmil.bags.provenance import check_same_provenance, provenance_differences
from scmil.errors import ShapeError


def bag(**provenance: Any) -> Bag:
    return Bag("a", torch.ones(3, 4), provenance=provenance)


def test_only_values_known_on_both_sides_are_compared() -> None:
    expected = {"dim": 4, "encoder": "uni", "encoder_digest": None, "mpp": 0.5, "overlap_px": 0}
    same = bag(encoder_digest="x", mpp=0.502, overlap_px=32)
    assert provenance_differences(expected, same) == []
    assert provenance_differences(expected, bag(mpp=0.25)) == ["mpp 0.25 instead of 0.5"]


def test_every_required_value_is_compared_with_the_model_except_the_overlap() -> None:
    expected = {
        "encoder": "uni",
        "encoder_digest": "x",
        "size_px": 256,
        "mpp": 0.5,
        "overlap_px": 0,
        "scales_mpp": [0.5, 1.0],
    }
    other = bag(
        encoder="a", encoder_digest="y", size_px=512, mpp=1.0, overlap_px=9, scales_mpp=[1.0, 2.0]
    )
    found = [text.partition(" ")[0] for text in provenance_differences(expected, other)]
    assert found == ["encoder", "encoder_digest", "size_px", "mpp", "scales_mpp"]


def test_a_rejected_bag_names_the_command_that_encodes_it_again() -> None:
    expected = {"dim": 5, "encoder": "uni", "size_px": 256, "mpp": 0.5}
    with pytest.raises(ShapeError) as error:
        check_same_provenance(expected, bag(encoder="resnet18"), "models/m")
    assert str(error.value) == (
        "bag 'a' has 4-dimensional features instead of 5, encoder 'resnet18' instead of 'uni', "
        "as in the training bags of models/m. Encode the slides again: "
        "scmil encode SLIDES --encoder uni --size 256 --mpp 0.5 --out WORK"
    )


def test_a_bag_with_the_expected_provenance_is_accepted() -> None:
    check_same_provenance({"dim": 4, "encoder": "uni"}, bag(encoder="uni"))
