from __future__ import annotations

import csv
import io
import json
import tracemalloc
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from scmil.viz import atlas as module
from scmil.viz.atlas import Atlas, Atom, Partner, build_atlas, compare_use
from scmil.viz.atlas_page import atoms_geojson, write_page
from scmil.errors import DataError, OptionError
from scmil.models.tile_scores import Codes, Scores
from scmil.stats.significance import holm

CLASSES = ("normal", "tumour")


def slide(id: str, codes: list[list[float]], label: int | None = None, **facts: object) -> Scores:
    n = len(codes)
    scores = Scores(
        id=id,
        xy=np.array([(100 * i, 7) for i in range(n)]),
        side=100.0,
        slide_size=None,
        slide_mpp=0.5,
        label=label,
        patient=None,
        classes=CLASSES,
        probabilities=np.array([0.5, 0.5]),
        threshold=0.5,
        attention=np.full(n, 1 / n, np.float32),
        instance=np.full((n, 2), 0.5, np.float32),
        lam=np.ones(n, np.float32),
        codes=Codes.of(np.array(codes)),
    )
    return replace(scores, **facts)  # type: ignore[arg-type]


def cohort(*slides: Scores) -> dict[str, Scores]:
    return {scores.id: scores for scores in slides}


def drawn(count: int = 20, tiles: int = 30, atoms: int = 6, shift: float = 0.6) -> dict[str, Scores]:
    """Slides at random; tumour slides use atom 2 with a positive sign more often."""
    generator = np.random.default_rng(0)
    found = []
    for i in range(count):
        codes = generator.normal(size=(tiles, atoms)) * (generator.random((tiles, atoms)) < 0.4)
        if i % 2:
            more = generator.random(tiles) < shift
            codes[more, 2] = generator.uniform(0.5, 2, more.sum())
        found.append(slide(f"s{i:02}", codes.tolist(), i % 2))
    return cohort(*found)


# --------------------------------------------------------------------------------------------------------------- counts


def test_uses_strength_and_attention_are_those_of_a_hand_count() -> None:
    one = slide("a", [[2, 0], [4, 0], [0, 1], [0, 0]], attention=np.array([0.7, 0.1, 0.1, 0.1], np.float32))
    atom = build_atlas(cohort(one)).atoms[0]
    assert (atom.used, atom.strength) == (0.5, 3.0)
    assert atom.attention == pytest.approx((2 * 4 * 0.7 + 4 * 4 * 0.1) / 6, abs=1e-5)


def test_shares_by_class_are_means_over_slides_and_uses_are_counted_over_tiles() -> None:
    uses = {"a": (0, 1, 2), "b": (0, 0, 10), "c": (1, 4, 4), "d": (1, 1, 4)}  # label, tiles that use it, tiles
    slides = [slide(id, [[1.0]] * used + [[0.0]] * (n - used), label) for id, (label, used, n) in uses.items()]
    atom = build_atlas(cohort(*slides)).atoms[0]
    assert atom.by_class == {"normal": 0.25, "tumour": 0.625}
    assert atom.use_by_class == pytest.approx({"normal": 1 / 6, "tumour": 5 / 6}, abs=1e-6)
    assert (atom.compared, atom.difference) == ("tumour", 0.375)


def test_the_sign_that_tells_the_classes_apart_is_shown() -> None:
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
        ("big", 9.0, 0), ("big", 8.0, 100), ("small", 1.5, 100), ("small", 0.5, 0)
    ]  # fmt: skip
    assert (tiles[0].y, tiles[0].side) == (7, 100.0)


@pytest.mark.parametrize("rows", [4096, 7])
def test_the_shown_tiles_are_those_of_a_full_sort(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS", rows)
    scores = drawn(5)
    for atom in build_atlas(scores, tiles=6, per_slide=2).atoms:
        sign = 1 if atom.sign == "+" else -1
        best = []
        for one in scores.values():
            column = sign * one.of(f"atom:{atom.atom}")
            best += [(column[i], one.id, 100 * i) for i in np.argsort(-column)[:2] if column[i] > 0]
        expected = [(id, x) for _, id, x in sorted(best, reverse=True)[:6]]
        assert [(tile.slide, tile.x) for tile in atom.tiles] == expected


def test_dead_atoms_are_named() -> None:
    atlas = build_atlas(cohort(slide("a", [[1.0, 0, 0], [2.0, 0, 0], [0, 0, 0.1]])))
    assert [atom.atom for atom in atlas.dead] == [1]
    assert atlas.atoms[1].sentence == "Atom 1 is dead: no tile uses it."
    assert [atom.atom for atom in atlas.ranked] == [0, 2]


def test_atoms_whose_codes_go_along_are_duplicates_whatever_their_sign() -> None:
    codes = [[a, -2 * a, b] for a, b in [(1.0, 1.0), (2.0, 0), (0, 1.0), (0, 0), (4.0, 1.0), (0, 0)]]
    codes[3][1] = -0.1  # so atom 1 is used more
    atlas = build_atlas(cohort(slide("a", codes)))
    assert {atom.atom: atom.duplicate_of for atom in atlas.duplicates} == {0: 1}
    assert [atom.atom for atom in atlas.ranked] == [1, 2]
    assert "says the same as atom 1" in atlas.atoms[0].sentence


def test_atoms_whose_columns_point_the_same_way_are_duplicates() -> None:
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
    whole = build_atlas(drawn(4))
    monkeypatch.setattr(module, "ROWS", 7)
    assert [atom.sentence for atom in build_atlas(drawn(4)).atoms] == [atom.sentence for atom in whole.atoms]


def test_sixty_thousand_tiles_are_never_dense_at_once() -> None:
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
        large, xy=np.zeros((n, 2), np.int64), attention=np.full(n, 1 / n, np.float32), codes=codes,
        instance=np.zeros((n, 2), np.float32), lam=np.zeros(n, np.float32),
    )  # fmt: skip
    tracemalloc.start()
    atlas = build_atlas({"large": large})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert atlas.tiles == n
    assert peak < n * m * 4  # one dense copy of the codes would be as much


# ----------------------------------------------------------------------------------------------------------- comparisons


def test_p_is_mann_whitneys_and_corrected_for_every_sign_in_use() -> None:
    scores = drawn()
    atlas = build_atlas(scores)
    dense = np.stack([np.hstack([one.codes.dense() > 0, one.codes.dense() < 0]).mean(0) for one in scores.values()])  # type: ignore[union-attr]
    raw = [stats.mannwhitneyu(dense[0::2, k], dense[1::2, k]).pvalue for k in range(12)]
    best = atlas.ranked[0]
    assert (best.atom, best.sign) == (2, "+")
    assert best.p == pytest.approx(holm(raw)[2], rel=1e-3)
    assert best.low is not None
    assert best.high is not None
    assert best.difference is not None
    assert 0 < best.low < best.difference < best.high
    assert best.difference == pytest.approx(dense[1::2, 2].mean() - dense[0::2, 2].mean(), abs=1e-5)


def test_ranks_go_by_p_and_then_by_difference() -> None:
    atoms = (
        Atom(0, used=0.1, p=1.0, difference=0.1), Atom(1, used=0.1, p=1.0, difference=-0.2),
        Atom(2, used=0.1, p=0.01, difference=0.01), Atom(3, used=0.1, p=0.0, difference=0.3, duplicate_of=2), Atom(4),
    )  # fmt: skip
    assert [atom.atom for atom in Atlas(atoms, CLASSES, 1, 1, {}).ranked] == [2, 1, 0]


def test_the_bootstrap_interval_covers_what_resampling_gives_and_repeats_for_a_seed() -> None:
    generator = np.random.default_rng(1)
    shares = generator.random((40, 1))
    labels = np.repeat([0, 1], 20)
    found = compare_use(shares, labels, seed=3)
    error = np.hypot(*(shares[labels == k].std() / np.sqrt(20) for k in (0, 1)))
    assert found.high - found.low == pytest.approx(2 * 1.96 * error, rel=0.1)
    assert compare_use(shares, labels, seed=3).low == found.low
    assert compare_use(shares, labels, seed=4).low != found.low


def test_more_than_two_classes_are_each_compared_with_the_rest() -> None:
    generator = np.random.default_rng(0)
    shares = generator.random((30, 2)) * 0.1
    labels = np.repeat([0, 1, 2], 10)
    shares[labels == 1, 0] += 0.5
    found = compare_use(shares, labels)
    assert found.target[0] == 1
    assert found.difference[0] == pytest.approx(shares[labels == 1, 0].mean() - shares[labels != 1, 0].mean())
    assert found.p[0] == pytest.approx(stats.kruskal(*(shares[labels == k, 0] for k in range(3))).pvalue)
    assert found.low[0] < found.difference[0] < found.high[0]


def test_one_patient_in_a_class_has_no_interval() -> None:
    found = compare_use(np.array([[0.1], [0.2], [0.9]]), np.array([0, 0, 1]))
    assert np.isnan([found.low, found.high]).all()


def test_slides_of_one_patient_count_once() -> None:
    slides = cohort(
        slide("a1", [[1.0]], 0), slide("a2", [[0.0]], 0), slide("b", [[0.0], [0.0], [0.0], [1.0]], 0), slide("c", [[1.0]], 1)
    )  # fmt: skip
    atlas = build_atlas(slides, patients={"a1": "ann", "a2": "ann"})
    assert atlas.compared == {"normal": 2, "tumour": 1}
    assert atlas.atoms[0].by_class["normal"] == 0.375
    assert build_atlas(slides).compared == {"normal": 3, "tumour": 1}


def test_slides_without_a_label_are_counted_and_not_compared() -> None:
    atlas = build_atlas(drawn(6), labels={"s00": 0, "s02": 0, "s01": 1, "s03": 1})
    assert (atlas.slides, atlas.tiles, atlas.compared) == (6, 180, {"normal": 2, "tumour": 2})


# ----------------------------------------------------------------------------------------------------------------- words


def test_the_sentence_says_fewer_and_many_classes_too() -> None:
    atom = Atom(
        4, "\N{MINUS SIGN}", used=0.2, by_class={"a": 0.004, "b": 0.3, "c": 0.2}, compared="a", difference=-0.246, low=-0.3,
        high=-0.2, p=1e-6, attention=14.4, together=(Partner(9, "+"),),
    )  # fmt: skip
    assert atom.sentence == (
        "Atom 4− is used by 0.4 % of the tiles of a slides and 25 % of the others (−25 points, 95 % interval −30 to −20, "
        "p < 0.001 after correction); tiles that use it get 14 times the average attention; it goes together with atom 9+."
    )


# ---------------------------------------------------------------------------------------------------------------- errors


class Half(Mapping[str, Scores]):
    """Scores of which some files are damaged."""

    def __init__(self, good: dict[str, Scores], bad: list[str]) -> None:
        self.good, self.bad = good, bad

    def __getitem__(self, id: str) -> Scores:
        if id in self.bad:
            raise DataError(f"{id} is damaged")
        return self.good[id]

    def __iter__(self) -> Iterator[str]:
        return iter([*self.bad, *self.good])

    def __len__(self) -> int:
        return len(self.good) + len(self.bad)


def test_a_damaged_slide_stops_nothing() -> None:
    atlas = build_atlas(Half(drawn(2), ["broken"]))
    assert (atlas.slides, dict(atlas.failed)) == (2, {"broken": "broken is damaged"})
    with pytest.raises(DataError, match="broken is damaged"):
        build_atlas(Half({}, ["broken"]))


def test_what_has_no_atoms_or_does_not_fit_is_refused() -> None:
    one = slide("a", [[1.0, 0]])
    with pytest.raises(OptionError, match=r"no atoms\. Train one with --sc"):
        build_atlas(cohort(replace(one, codes=None)))
    assert "codes of 1 atoms, and others of 2" in build_atlas(cohort(one, slide("b", [[1.0]]))).failed["b"]
    with pytest.raises(DataError, match="dictionary has 3 atoms, and the codes 2"):
        build_atlas(cohort(one), np.zeros((5, 3)))
    with pytest.raises(OptionError, match="at least 1"):
        build_atlas(cohort(one), tiles=0)
    with pytest.raises(DataError, match="no scores to make an atlas of"):
        build_atlas({})
    with pytest.raises(DataError, match="at least two"):
        compare_use(np.zeros((3, 1)), np.zeros(3, np.int64))


# ------------------------------------------------------------------------------------------------------- page and QuPath


def test_the_page_is_closed_to_the_outside_and_to_names() -> None:
    atlas = build_atlas(cohort(slide("<b>x", [[1.0, 0], [2.0, 1.0]])))
    page = write_page(atlas, {(0, 0): "tiles/0/0.jpg"}, "<script>alert(1)</script>")
    assert "<script>alert" not in page
    assert "<b>x" not in page
    assert "http://" not in page
    assert "https://" not in page
    assert "default-src 'none'" in page.replace("&#x27;", "'")
    assert '<img src="tiles/0/0.jpg"' in page
    assert "not readable" in page  # the second picture has no file


def test_the_page_says_when_its_slides_have_trained_the_model() -> None:
    atlas = build_atlas(drawn(6))
    assert "5 of these slides have trained" in write_page(atlas, {}, "m", {"trained": 5})
    assert "have trained" not in write_page(atlas, {}, "m", {"trained": 5, "held_out": True})


def test_qupath_gets_a_closed_square_a_tile_with_its_strongest_atom(tmp_path: Path) -> None:
    first, second = json.loads(atoms_geojson(slide("a", [[1.0, -3.0], [0, 0]])))["features"]
    assert first["properties"]["classification"]["name"] == "Atom 1−"
    assert first["properties"]["measurements"]["code"] == -3.0
    assert first["geometry"]["coordinates"] == [[[0, 7], [100, 7], [100, 107], [0, 107], [0, 7]]]
    assert all(0 <= channel <= 255 for channel in first["properties"]["classification"]["color"])
    assert "classification" not in second["properties"]  # it uses no atom
    assert first["id"] != second["id"]
    with pytest.raises(OptionError, match="no sparse coding"):
        atoms_geojson(replace(slide("a", [[1.0]]), codes=None))


def test_class_names_in_the_table_are_no_formulas() -> None:
    from scmil.viz.atlas_page import _row, _table

    evil = ("=HYPERLINK(1)", "＝cmd", "x;=cmd")
    atom = Atom(0, used=0.5, by_class=dict.fromkeys(evil, 0.1), use_by_class=dict.fromkeys(evil, 0.1), compared=evil[0])
    for line in _table([_row(atom, {})], evil).decode().splitlines():
        for cell in line.split(";"):
            assert not cell.startswith("=")
    [header, row] = csv.reader(io.StringIO(_table([_row(atom, {})], evil).decode()))
    assert row[header.index("compared")] == "'=HYPERLINK(1)"
