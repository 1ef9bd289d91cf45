"""Logits, attention, losses and gradients of the authors' own code, with weights copied by name."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from golden_cases import (
    CASES,
    LAYERS,
    NOT_COMPARED,
    NOT_COMPARED_IN,
    NOT_OFFERED,
    WITHOUT_CODE,
    Case,
    onednn,
)
from golden_comparisons import compare_case, compare_layer, place
from golden_numbers import GOLDEN, Golden, uniform

from scmil.models import aggregators
from scmil.models.official_weights import Choices, convert, layouts
from scmil.sparse_coding.equations import dct_dictionary

CLOSE = 1e-5


@pytest.fixture(autouse=True)
def without_onednn() -> Iterator[None]:
    """As the golden numbers: oneDNN's gradient of TransMIL's convolution is wrong on some CPUs."""
    with onednn(False):
        yield


def test_every_file_is_compared_or_says_why_not() -> None:
    files = {path.stem for path in GOLDEN.glob("*.npz")}
    assert files == {case.file for case in CASES} | set(LAYERS) | set(NOT_OFFERED) | {"sc_dct"}


def test_the_rule_gives_the_check_values_of_its_description() -> None:
    expected = [-0.4473951457, 0.7357101392, -0.1719882151]
    assert uniform("clam/x_0", (3,)).tolist() == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("file", [*(case.file for case in CASES), *LAYERS])
def test_the_weights_have_the_sums_of_the_authors(file: str) -> None:
    golden = Golden(file)
    for (total, absolute), tensor in zip(
        golden.arrays["weight_sums"], golden.tensors.values(), strict=True
    ):
        actual = tensor.double().numpy()
        assert actual.sum() == pytest.approx(total, abs=1e-10)
        assert np.abs(actual).sum() == pytest.approx(absolute, rel=1e-10)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.file)
def test_the_network_gives_the_numbers_of_the_authors(case: Case) -> None:
    """Logits, attention, loss and gradients, as far as the file has them."""
    differences = compare_case(case)
    assert differences.outputs < CLOSE
    assert differences.gradients < CLOSE
    explained = (*NOT_COMPARED, *NOT_COMPARED_IN.get(case.file, ()))
    assert [key for key in differences.unread if not key.startswith(explained)] == []


@pytest.mark.slow
def test_transmil_gives_the_numbers_of_the_authors_with_onednn() -> None:
    with onednn(True):
        assert compare_case(Case("transmil", "transmil")).gradients < CLOSE


@pytest.mark.parametrize("name", LAYERS)
def test_the_released_layer_gives_the_numbers_of_the_authors(name: str) -> None:
    differences = compare_layer(name)
    assert differences.outputs < CLOSE
    assert differences.gradients < CLOSE


@pytest.mark.parametrize(("p", "m"), [(16, 36), (36, 16), (9, 9)])
def test_the_cosine_dictionary_is_the_authors_with_rows_in_another_order(p: int, m: int) -> None:
    with np.load(GOLDEN / "sc_dct.npz") as file:
        expected = file[f"dct_{p}x{m}"]
    side = int(p**0.5)
    rows = dct_dictionary(p, m).reshape(side, side, m).transpose(0, 1).reshape(p, m)
    assert np.abs(rows.numpy() - expected).max() < 1e-6


def test_the_corrected_nystrom_attention_is_not_that_of_the_pinned_library() -> None:
    golden = Golden("transmil_nystrom_0_0_9")
    model = convert(golden.tensors, "transmil").model
    expected = golden.get("logits", 2)
    assert expected is not None
    with torch.no_grad():
        assert (model(golden.x(2)).logits - expected[0]).abs().max() > 0.01


def test_stamps_mask_and_padding_are_not_ours_and_its_unpadded_bag_is() -> None:
    """A batch of two bags; the last 4 of 10 tiles of the first are zeros."""
    golden = Golden("stamp_vit_mask")
    model = convert(golden.tensors, "transformer", Choices(options={"heads": 4})).model
    padded, full = golden.x(0).unbind(0)
    mask = torch.tensor(golden.arrays["mask_0"])
    expected = {
        name: torch.tensor(golden.arrays[f"logits_{name}"])
        for name in ("with_mask", "without_mask", "first_bag_unpadded")
    }
    with torch.no_grad():
        ours = model(padded[~mask[0]]).logits
        torch.testing.assert_close(
            ours, expected["first_bag_unpadded"].flatten(), atol=CLOSE, rtol=0
        )
        # Zeros that are given as tiles take part, as in the authors' training.
        both = torch.stack([model(padded).logits, model(full).logits])
        torch.testing.assert_close(both, expected["without_mask"], atol=CLOSE, rtol=0)
        assert (ours - expected["without_mask"][0]).abs().max() > 1e-3
        # With a mask no tile attends to the class token, even if nothing is padded.
        for bag in (0, 1):
            tokens = (padded[~mask[0]], full)[bag]
            assert (model(tokens).logits - expected["with_mask"][bag]).abs().max() > 1e-3


def test_a_wrong_entry_of_a_table_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tensors of the same shape that are exchanged change the numbers."""
    golden = Golden("dsmil_2class")
    exchanged = dict(golden.tensors)
    names = ("b_classifier.q.0.bias", "b_classifier.q.2.bias")
    exchanged[names[0]], exchanged[names[1]] = exchanged[names[1]], exchanged[names[0]]
    monkeypatch.setattr(Golden, "tensors", exchanged)
    assert compare_case(Case("dsmil_2class", "dsmil")).outputs > CLOSE


def test_every_aggregator_is_compared_with_its_authors_or_with_a_formula() -> None:
    compared = {case.aggregator for case in CASES}
    assert compared.isdisjoint(WITHOUT_CODE)
    assert compared | set(WITHOUT_CODE) == set(aggregators.names())
    assert set(layouts()) - compared == {"mean", "max"}  # one linear layer: no golden numbers


@pytest.mark.parametrize("file", ["dtfd_afs", "dtfd_maxmins"])
def test_dtfd_groups_shuffled_tiles_and_its_golden_groups_are_consecutive(file: str) -> None:
    """The golden numbers were made without the shuffle: the same tiles in the order of ours give
    them, and in their own order do not.
    """
    case = next(case for case in CASES if case.file == file)
    golden = Golden(file)
    model = convert(case.checkpoint(golden), case.aggregator, case.choices).model.eval()
    x, expected = golden.x(2), golden.get("logits", 2)
    assert expected is not None
    with torch.no_grad():
        placed, unplaced = model(place(x, model)).logits, model(x).logits
    torch.testing.assert_close(placed, expected.flatten(), atol=CLOSE, rtol=0)
    assert (unplaced - expected.flatten()).abs().max() > 1e-3


@pytest.mark.parametrize("kind", ["sb", "mb"])
def test_clam_has_an_instance_loss_where_the_authors_code_fails(kind: str) -> None:
    """The bag of 7 tiles: theirs asks for 8 at either end. Without the instance loss both agree."""
    case = next(case for case in CASES if case.file == f"clam_{kind}")
    golden = Golden(case.file)
    model = convert(case.checkpoint(golden), case.aggregator, case.choices).model.eval()
    assert golden.get("instance_loss", 2) is None
    assert len(golden.x(2)) == 7
    prediction, label = model(golden.x(2)), golden.label(2)
    alone = torch.nn.functional.cross_entropy(prediction.logits, torch.tensor(label))
    bag_loss = golden.get("bag_loss", 2)
    assert bag_loss is not None
    torch.testing.assert_close(alone.detach(), bag_loss, atol=CLOSE, rtol=0)
    own = model.aggregate.own_loss(prediction, torch.tensor(label))  # type: ignore[operator]
    assert own > 0
    torch.testing.assert_close(model.loss(prediction, label), 0.7 * alone + own)
