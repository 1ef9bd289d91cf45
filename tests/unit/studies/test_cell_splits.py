"""Splits of a run keep patients together."""

from __future__ import annotations

from pathlib import Path

from study_cases import plan_of_table, read_rows

from scmil.studies.cell_splits import splits_of
from scmil.studies.runner import run


def test_patients_are_never_on_both_sides(table: Path) -> None:
    from scmil.bags.datasets import load_dataset

    bags = load_dataset(str(table))
    for inner in (False, True):
        for split in (
            s for folds in splits_of(plan_of_table(table).cells[0], bags, inner) for s in folds
        ):
            sides = [{bags.patients[i] for i in part} for part in split]
            assert not sides[0] & sides[1]
            assert not sides[0] & sides[2]
            assert bool(split.valid) == inner


def test_given_splits_are_used(table: Path, tmp_path: Path) -> None:
    from scmil.bags.datasets import load_dataset
    from scmil.bags.splits import save_splits, stratified_folds

    bags = load_dataset(str(table))
    given = [stratified_folds(list(bags.labels), 4, seed=9, groups=list(bags.patients))]
    save_splits(tmp_path / "splits.csv", given, bags.ids)
    plan = plan_of_table(table, protocol={"splits": str(tmp_path / "splits.csv")})
    assert splits_of(plan.cells[0], bags, inner=False) == given


def test_a_holdout_has_one_fold_per_repeat(table: Path, tmp_path: Path) -> None:
    run(
        plan_of_table(table, protocol={"kind": "holdout", "test": 0.25, "selection": ["last"]}),
        tmp_path / "out",
        jobs=1,
    )
    assert [
        (row["folds"], row["repeats"]) for row in read_rows(tmp_path / "out" / "results.csv")
    ] == [("1", "2")] * 2
