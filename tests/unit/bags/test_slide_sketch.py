"""The sketch of a slide recognises its copies, and no other slide."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from scmil.bags.scaling import Scaling
from scmil.bags.slide_sketch import (
    CODES,
    DIRECTIONS,
    Sketch,
    Sketcher,
    is_copy,
    matching_tiles,
    stack_rows,
    typical_matches,
)
from scmil.errors import DataError

DIM, TILES, SLIDES = 32, 120, 40
MIXING = torch.randn(12, DIM, generator=torch.Generator().manual_seed(9))


def slide(number: int) -> Tensor:
    """Tiles of four kinds of tissue, correlated features, and three blank tiles."""
    generator = torch.Generator().manual_seed(number)
    kinds = torch.randn(4, 12, generator=torch.Generator().manual_seed(1)) * 2
    tissue = kinds[torch.randint(4, (TILES,), generator=generator)]
    x = (tissue + torch.randn(TILES, 12, generator=generator)) @ MIXING + 3
    return torch.cat([x, torch.full((3, DIM), 9.0)])


@pytest.fixture(scope="module")
def known() -> tuple[Sketcher, list[Sketch]]:
    everything = torch.cat([slide(number) for number in range(SLIDES)]).double()
    sketcher = Sketcher(Scaling(everything.mean(0), everything.std(0)))
    return sketcher, [sketcher.sketch(slide(number)) for number in range(SLIDES)]


def copies_of(known: tuple[Sketcher, list[Sketch]], features: Tensor) -> list[int]:
    sketcher, sketches = known
    deviation = sketcher.deviation()
    patients = [str(number) for number in range(len(sketches))]
    typical = typical_matches(sketches, patients, deviation)
    one = Sketcher(sketcher.scaling).sketch(features)
    matching = matching_tiles(one, stack_rows(sketches), deviation)
    return [
        i
        for i, sketch in enumerate(sketches)
        if is_copy(int(matching[i]), one, sketch, deviation, typical)
    ]


def noisy(x: Tensor) -> Tensor:
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(3))
    return x + 0.01 * x.std(0) * noise


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.clone(),
        lambda x: x.half(),
        lambda x: x.bfloat16(),
        lambda x: x.flip(0),
        noisy,
        lambda x: x[: len(x) // 2],
        lambda x: x[::4],
        lambda x: noisy(x[::3]).half().flip(0),
    ],
    ids=["copy", "float16", "bfloat16", "reordered", "noise", "half", "quarter", "all at once"],
)
def test_a_changed_copy_of_a_slide_is_recognised(
    known: tuple[Sketcher, list[Sketch]], change: object
) -> None:
    for number in (0, 7, 31):
        assert copies_of(known, change(slide(number))) == [number]  # type: ignore[operator]


def test_other_slides_of_the_same_tissue_are_not_copies(
    known: tuple[Sketcher, list[Sketch]],
) -> None:
    for number in range(SLIDES, 2 * SLIDES):
        assert copies_of(known, slide(number)) == []


def test_blank_tiles_that_all_slides_share_make_no_copy(
    known: tuple[Sketcher, list[Sketch]],
) -> None:
    sketcher, sketches = known
    matching = matching_tiles(sketches[0], stack_rows(sketches[1:]), sketcher.deviation())
    assert matching.max() == 1  # the blank tile, which counts once
    blank = torch.full((50, DIM), 9.0) + 1e-3 * torch.arange(50.0)[:, None]
    assert copies_of(known, blank) == []


def test_bags_of_few_tiles_are_copies_if_all_tiles_agree() -> None:
    sketcher = Sketcher(Scaling(torch.zeros(DIM), torch.ones(DIM)))
    x = torch.randn(3, DIM, generator=torch.Generator().manual_seed(0))
    one, copy, part = (sketcher.sketch(rows) for rows in (x[:2], x[:2].half(), x[1:]))
    deviation = sketcher.deviation()
    equal = matching_tiles(copy, stack_rows([one, part]), deviation)
    assert is_copy(int(equal[0]), copy, one, deviation, typical=0)
    assert not is_copy(int(equal[1]), copy, part, deviation, typical=0)


def test_features_that_all_bags_share_raise_the_bar() -> None:
    sketcher = Sketcher(Scaling(torch.zeros(2), torch.ones(2)))
    generator = torch.Generator().manual_seed(0)
    bags = [torch.randint(0, 2, (12, 2), generator=generator).float() for _ in range(20)]
    sketches = [sketcher.sketch(bag) for bag in bags]
    deviation = sketcher.deviation()
    typical = typical_matches(sketches, [None] * 20, deviation)
    assert typical > 1
    matching = matching_tiles(sketches[0], stack_rows(sketches[1:]), deviation)
    assert not any(
        is_copy(int(n), sketches[0], other, deviation, typical)
        for n, other in zip(matching, sketches[1:], strict=True)
    )


def test_large_bags_are_read_in_blocks_with_the_same_sketch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scaling = Scaling(torch.zeros(DIM), torch.ones(DIM))
    whole = Sketcher(scaling).sketch(slide(0))
    monkeypatch.setattr("scmil.bags.slide_sketch.BLOCK", 17)
    blocks = Sketcher(scaling).sketch(slide(0))
    assert np.abs(whole.rows - blocks.rows).max() <= 1


def test_a_sketch_survives_json(known: tuple[Sketcher, list[Sketch]]) -> None:
    sketch = known[1][0]
    again = Sketch.from_json(sketch.to_json())
    assert (again.rows == sketch.rows).all()


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ({"codes": [], "farthest": []}, "is not 64 tiles"),
        ({"codes": [[0] * CODES], "farthest": [0] * 3}, "is not 64 tiles"),
        ({"codes": [[0] * CODES], "farthest": [1] * DIRECTIONS}, "outside of its range"),
        ({"codes": [[10**30] * CODES], "farthest": [0] * DIRECTIONS}, "outside of its range"),
        ({"codes": [["a"] * CODES], "farthest": [0] * DIRECTIONS}, "outside of its range"),
    ],
)
def test_a_damaged_sketch_is_rejected(page: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Sketch.from_json(page)
