"""Atoms: their order, and their description."""

from __future__ import annotations

from atlas_case import CLASSES

from scmil.viz.atlas.atom import Atlas, Atom, Partner


def test_ranks_go_by_p_and_then_by_difference() -> None:
    atoms = (
        Atom(0, used=0.1, p=1.0, difference=0.1),
        Atom(1, used=0.1, p=1.0, difference=-0.2),
        Atom(2, used=0.1, p=0.01, difference=0.01),
        Atom(3, used=0.1, p=0.0, difference=0.3, duplicate_of=2),
        Atom(4),
    )
    assert [atom.atom for atom in Atlas(atoms, CLASSES, 1, 1, {}).ranked] == [2, 1, 0]


def test_the_sentence_for_a_negative_difference_and_many_classes() -> None:
    atom = Atom(
        4,
        "\N{MINUS SIGN}",
        used=0.2,
        by_class={"a": 0.004, "b": 0.3, "c": 0.2},
        compared="a",
        difference=-0.246,
        low=-0.3,
        high=-0.2,
        p=1e-6,
        attention=14.4,
        together=(Partner(9, "+"),),
    )
    assert atom.sentence == (
        "Atom 4− is used by 0.4 % of the tiles of a slides and 25 % of the others (−25 points, "
        "95 % interval −30 to −20, p < 0.001 after correction); tiles that use it get 14 times the "
        "average attention; it goes together with atom 9+."
    )
