"""Counts over slides: use, strength, attention, duplicates."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pytest
from atlas_case import cohort, random_slides, slide

from scmil.errors import DataError, OptionError
from scmil.models.tile_scores import Codes, Scores
from scmil.viz.atlas import counts
from scmil.viz.atlas.atom import Partner
from scmil.viz.atlas.compare import compare_use
from scmil.viz.atlas.counts import build_atlas


def test_use_strength_and_attention_are_those_counted_by_hand() -> None:
    one = slide(
        "a", [[2, 0], [4, 0], [0, 1], [0, 0]], attention=np.array([0.7, 0.1, 0.1, 0.1], np.float32)
    )
    atom = build_atlas(cohort(one)).atoms[0]
    assert (atom.used, atom.strength) == (0.5, 3.0)
    assert atom.attention == pytest.approx((2 * 4 * 0.7 + 4 * 4 * 0.1) / 6, abs=1e-5)


def test_shares_by_class_are_means_over_slides_and_uses_are_counted_over_tiles() -> None:
    # label, tiles that use it, tiles.
    uses = {"a": (0, 1, 2), "b": (0, 0, 10), "c": (1, 4, 4), "d": (1, 1, 4)}
    slides = [
        slide(slide_id, [[1.0]] * used + [[0.0]] * (n - used), label)
        for slide_id, (label, used, n) in uses.items()
    ]
    atom = build_atlas(cohort(*slides)).atoms[0]
    assert atom.by_class == {"normal": 0.25, "tumour": 0.625}
    assert atom.use_by_class == pytest.approx({"normal": 1 / 6, "tumour": 5 / 6}, abs=1e-6)
    assert (atom.compared, atom.difference) == ("tumour", 0.375)


def test_the_sign_that_separates_the_classes_better_is_shown() -> None:
    normal = [slide(f"n{i}", [[3.0, 1.0]] * 5 + [[0, 1.0]] * i, 0) for i in range(6)]
    tumour = [slide(f"t{i}", [[3.0, 1.0]] * 5 + [[-1.0, 1.0]] * (1 + i), 1) for i in range(6)]
    atom = build_atlas(cohort(*normal, *tumour)).atoms[0]
    assert atom.name == "0\N{MINUS SIGN}"
    assert all(tile.code < 0 and tile.slide.startswith("t") for tile in atom.tiles)
    assert atom.by_class["normal"] == 0
    assert atom.opposite > atom.used


def test_without_labels_the_stronger_sign_is_shown_and_nothing_is_compared() -> None:
    atom = build_atlas(cohort(slide("a", [[1.0], [-5.0], [1.0]]))).atoms[0]
    assert atom.sign == "\N{MINUS SIGN}"
    assert (atom.compared, atom.difference, atom.p, dict(atom.by_class)) == (None, None, None, {})
    assert "33 % of all tiles" in atom.sentence


def test_the_strongest_tiles_come_first_and_few_from_one_slide() -> None:
    big = slide("big", [[9.0 - i] for i in range(8)])
    small = slide("small", [[0.5], [1.5]])
    tiles = build_atlas(cohort(big, small), tiles=4, per_slide=2).atoms[0].tiles
    assert [(tile.slide, tile.code, tile.x) for tile in tiles] == [
        ("big", 9.0, 0),
        ("big", 8.0, 100),
        ("small", 1.5, 100),
        ("small", 0.5, 0),
    ]
    assert (tiles[0].y, tiles[0].side) == (7, 100.0)


@pytest.mark.parametrize("rows", [4096, 7])
def test_the_shown_tiles_are_those_of_a_full_sort(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "ROWS", rows)
    scores = random_slides(5)
    for atom in build_atlas(scores, tiles=6, per_slide=2).atoms:
        sign = 1 if atom.sign == "+" else -1
        best = []
        for one in scores.values():
            column = sign * one.of(f"atom:{atom.atom}")
            best += [(column[i], one.id, 100 * i) for i in np.argsort(-column)[:2] if column[i] > 0]
        expected = [(slide_id, x) for _, slide_id, x in sorted(best, reverse=True)[:6]]
        assert [(tile.slide, tile.x) for tile in atom.tiles] == expected


def test_unused_atoms_are_listed() -> None:
    atlas = build_atlas(cohort(slide("a", [[1.0, 0, 0], [2.0, 0, 0], [0, 0, 0.1]])))
    assert [atom.atom for atom in atlas.dead] == [1]
    assert atlas.atoms[1].sentence == "Atom 1 is dead: no tile uses it."
    assert [atom.atom for atom in atlas.ranked] == [0, 2]


def test_atoms_with_correlated_codes_are_duplicates_for_either_sign() -> None:
    codes = [
        [a, -2 * a, b] for a, b in [(1.0, 1.0), (2.0, 0), (0, 1.0), (0, 0), (4.0, 1.0), (0, 0)]
    ]
    codes[3][1] = -0.1  # so atom 1 is used more
    atlas = build_atlas(cohort(slide("a", codes)))
    assert {atom.atom: atom.duplicate_of for atom in atlas.duplicates} == {0: 1}
    assert [atom.atom for atom in atlas.ranked] == [1, 2]
    assert "duplicates atom 1" in atlas.atoms[0].sentence


def test_atoms_with_parallel_dictionary_columns_are_duplicates() -> None:
    codes = [[1.0, 0, 0], [1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0]]
    columns = np.array([[1.0, -0.999, 0], [0, 0.01, 1.0]])
    assert not build_atlas(cohort(slide("a", codes))).duplicates
    found = build_atlas(cohort(slide("a", codes)), columns).duplicates
    assert [(atom.atom, atom.duplicate_of) for atom in found] == [(1, 0)]


def test_atoms_go_together_by_the_cosine_of_their_signs() -> None:
    codes = [[1.0, -3.0, 0, 0.1], [2.0, -6.0, 0, 0], [0, 5.0, 1.0, 0], [0, 0, 1.0, 4.0]]
    atoms = build_atlas(cohort(slide("a", codes))).atoms
    assert atoms[0].together == (Partner(1, "\N{MINUS SIGN}"), Partner(3, "+"))


def test_blocks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = build_atlas(random_slides(4))
    monkeypatch.setattr(counts, "ROWS", 7)
    assert [atom.sentence for atom in build_atlas(random_slides(4)).atoms] == [
        atom.sentence for atom in whole.atoms
    ]


def test_the_codes_of_sixty_thousand_tiles_are_not_dense_at_once() -> None:
    n, m, uses = 60_000, 256, 20
    generator = np.random.default_rng(0)
    columns = generator.integers(m // uses, size=(n, uses)) + np.arange(uses) * (m // uses)
    codes = Codes(
        generator.normal(size=n * uses).astype(np.float16),
        columns.ravel().astype(np.uint16),
        np.arange(n + 1) * uses,
        m,
    )
    large = slide("large", [[0.0]])
    large = replace(
        large,
        xy=np.zeros((n, 2), np.int64),
        attention=np.full(n, 1 / n, np.float32),
        codes=codes,
        instance=np.zeros((n, 2), np.float32),
        lam=np.zeros(n, np.float32),
    )
    tracemalloc.start()
    atlas = build_atlas({"large": large})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert atlas.tiles == n
    assert peak < n * m * 4  # one dense copy of the codes would be as much


class PartlyDamaged(Mapping[str, Scores]):
    """Scores of which some files are damaged."""

    def __init__(self, good: dict[str, Scores], bad: list[str]) -> None:
        self.good, self.bad = good, bad

    def __getitem__(self, slide_id: str) -> Scores:
        if slide_id in self.bad:
            raise DataError(f"{slide_id} is damaged")
        return self.good[slide_id]

    def __iter__(self) -> Iterator[str]:
        return iter([*self.bad, *self.good])

    def __len__(self) -> int:
        return len(self.good) + len(self.bad)


def test_a_damaged_slide_is_reported_and_the_others_are_counted() -> None:
    atlas = build_atlas(PartlyDamaged(random_slides(2), ["broken"]))
    assert (atlas.slides, dict(atlas.failed)) == (2, {"broken": "broken is damaged"})
    with pytest.raises(DataError, match="broken is damaged"):
        build_atlas(PartlyDamaged({}, ["broken"]))


def test_models_without_atoms_and_inconsistent_codes_are_rejected() -> None:
    one = slide("a", [[1.0, 0]])
    with pytest.raises(OptionError, match=r"no atoms\. Train a model with --sc"):
        build_atlas(cohort(replace(one, codes=None)))
    assert (
        "codes of 1 atoms, expected 2" in build_atlas(cohort(one, slide("b", [[1.0]]))).failed["b"]
    )
    with pytest.raises(DataError, match="dictionary has 3 atoms, but the codes have 2"):
        build_atlas(cohort(one), np.zeros((5, 3)))
    with pytest.raises(OptionError, match="at least 1"):
        build_atlas(cohort(one), tiles=0)
    with pytest.raises(DataError, match="no tile scores for an atlas"):
        build_atlas({})
    with pytest.raises(DataError, match="expected at least 2"):
        compare_use(np.zeros((3, 1)), np.zeros(3, np.int64))
