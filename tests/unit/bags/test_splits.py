from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scmil.bags.splits import (
    Split,
    check_split,
    holdout,
    load_splits,
    repeated_folds,
    save_splits,
    stratified_folds,
    with_validation,
)
from scmil.errors import SplitError

LABELS = [0] * 45 + [1] * 47
IDS = ["a", "b", "c", "d"]
SPLITS = [
    [Split((0, 3), (1,), (2,)), Split((1, 2), (0, 3))],
    [Split((2, 1), (0,)), Split((0, 3), (2,))],
]


def test_folds_are_stratified_complete_and_repeat_for_a_seed() -> None:
    folds = stratified_folds(LABELS, 10, seed=3)
    assert sorted(i for split in folds for i in split.test) == list(range(92))
    assert {sum(LABELS[i] for i in split.test) for split in folds} == {4, 5}
    assert {len(split.test) for split in folds} == {9, 10}
    assert folds == stratified_folds(LABELS, 10, seed=3)
    assert folds != stratified_folds(LABELS, 10, seed=4)


def test_the_deal_of_earlier_versions_is_kept() -> None:
    generator = np.random.default_rng(7)
    order = np.concatenate(
        [generator.permutation(range(45)), 45 + generator.permutation(range(47))]
    )
    expected = [tuple(sorted(order[fold::10].tolist())) for fold in range(10)]
    assert [split.test for split in stratified_folds(LABELS, 10, seed=7)] == expected


def test_patients_of_one_bag_each_change_nothing() -> None:
    alone = [None, *map(str, range(1, 92))]
    assert stratified_folds(LABELS, 10, 0, alone) == stratified_folds(LABELS, 10, 0)


def test_patients_stay_whole_and_classes_stay_balanced() -> None:
    # 1 to 4 slides each.
    labels = [int(patient >= 12) for patient in range(24) for _ in range(1 + patient % 4)]
    patients = [f"patient {patient}" for patient in range(24) for _ in range(1 + patient % 4)]
    folds = stratified_folds(labels, 5, seed=1, groups=patients)
    for split in folds:
        check_split(split, [str(i) for i in range(60)], patients)
        assert sum(labels[i] for i in split.test) == 6
        assert len(split.test) == 12


def test_the_first_repeat_is_the_plain_cross_validation_and_the_others_differ() -> None:
    repeats = repeated_folds(LABELS, 10, repeats=3, seed=5)
    assert repeats[0] == stratified_folds(LABELS, 10, seed=5)
    assert repeats[2] == stratified_folds(LABELS, 10, seed=2005)
    assert repeats[0] != repeats[1] != repeats[2]
    with pytest.raises(SplitError, match="repeats = 0: use at least 1"):
        repeated_folds(LABELS, 10, repeats=0, seed=5)


def test_a_holdout_has_its_shares_of_every_class() -> None:
    labels = [0] * 50 + [1] * 30 + [2] * 20
    split = holdout(labels, test=0.2, valid=0.1, seed=2)
    assert np.bincount([labels[i] for i in split.test]).tolist() == [10, 6, 4]
    assert np.bincount([labels[i] for i in split.valid]).tolist() == [5, 3, 2]
    assert sorted(split.train + split.test + split.valid) == list(range(100))
    assert split != holdout(labels, test=0.2, valid=0.1, seed=3)


def test_a_rare_class_is_on_both_sides_of_a_holdout() -> None:
    labels = [0] * 100 + [1] * 2
    split = holdout(labels, test=0.1)
    assert {labels[i] for i in split.test} == {labels[i] for i in split.train} == {0, 1}
    assert len(split.test) == 11


def test_a_large_patient_does_not_swell_a_small_test_set() -> None:
    labels = [0] * 16 + [1] * 16
    patients: list[str | None] = ["many"] * 8 + [None] * 24
    for seed in range(5):
        assert len(holdout(labels, test=0.25, seed=seed, groups=patients).test) == 8


def test_validation_comes_from_the_training_bags_alone() -> None:
    split = stratified_folds(LABELS, 10, seed=0)[0]
    thirds = with_validation(split, LABELS, fraction=0.1, seed=0)
    assert thirds.test == split.test
    assert set(thirds.train) | set(thirds.valid) == set(split.train)
    assert not set(thirds.train) & set(thirds.valid)
    assert np.bincount([LABELS[i] for i in thirds.valid]).tolist() == [4, 4]


def test_validation_keeps_patients_whole() -> None:
    labels, patients = [0, 0, 1, 1] * 6, [f"patient {i // 2}" for i in range(24)]
    split = with_validation(
        holdout(labels, 0.25, groups=patients), labels, 0.3, seed=1, groups=patients
    )
    check_split(split, [str(i) for i in range(24)], patients)


def test_only_training_bags_need_a_label_for_validation() -> None:
    assert with_validation(Split((0, 1, 2, 3), (4,)), [0, 0, 1, 1, None], 0.5, seed=0).test == (4,)


@pytest.mark.parametrize(
    ("labels", "folds", "groups", "message"),
    [
        ([0, 0, 1, 1], 1, None, "folds = 1: use at least 2, and at most 2"),
        ([0, 0, 0, 1, 1], 3, None, "at most 2, the number of bags of the rarest class"),
        (
            [0, 0, 0, 1, 1],
            2,
            ["x", "y", "z", "w", "w"],
            "at most 1, the number of patients of the rarest class",
        ),
        ([0, None, 1, None], 2, None, r"2 of 4 bags have no label; the first is at position 1"),
        ([1, 1, 1], 2, None, "fewer than 2 classes"),
        ([], 2, None, "fewer than 2 classes"),
        ([0, 0, 1, 1], 2, ["x"], "1 groups for 4 bags"),
    ],
)
def test_impossible_folds_are_rejected(
    labels: list[int | None], folds: int, groups: list[str | None] | None, message: str
) -> None:
    with pytest.raises(SplitError, match=message):
        stratified_folds(labels, folds, seed=0, groups=groups)


def test_folds_without_one_of_the_classes_are_rejected() -> None:
    labels = [0, 0, 0, 1] + [0, 0, 0, 1] + [0, 0, 0, 0, 1] + [0] * 5 + [0] * 5
    patients = ["a"] * 4 + ["b"] * 4 + ["c"] * 5 + ["d"] * 5 + ["e"] * 5
    with pytest.raises(SplitError, match="a split would have no bag of class 1"):
        stratified_folds(labels, 3, seed=0, groups=patients)


def test_impossible_shares_are_rejected() -> None:
    with pytest.raises(
        SplitError, match=r"test = 0\.7, valid = 0\.3: use fractions between 0 and 1"
    ):
        holdout([0, 1] * 5, test=0.7, valid=0.3)
    with pytest.raises(SplitError, match="3 splits, but the rarest class has only 2 bags"):
        holdout([0, 0, 0, 1, 1], valid=0.2)
    with pytest.raises(SplitError, match="2 splits, but the rarest class has only 1 patients"):
        with_validation(
            Split((0, 1, 2, 3), (4,)),
            [0, 0, 1, 1, 0],
            0.5,
            seed=0,
            groups=["p", "q", "r", "r", None],
        )
    with pytest.raises(SplitError, match="fraction = 1: use a number between 0 and 1"):
        with_validation(Split((0, 1, 2, 3), (4,)), [0, 0, 1, 1, 0], 1, seed=0)
    with pytest.raises(SplitError, match="already has 1 validation bags"):
        with_validation(Split((0, 1), (2,), (3,)), [0, 0, 1, 1], 0.5, seed=0)


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (Split((0, 1), (1, 2)), "bag 'b' is in both train and test"),
        (Split((0, 2), (1,), (1,)), "bag 'b' is in both test and valid"),
        (Split((), (1,)), "train is empty"),
        (Split((1,), ()), "test is empty"),
        (Split((0, 4), (1,)), "train has the position 4, but there are 4 bags"),
        (Split((-1,), (1,)), "train has the position -1"),
        (Split((0, 2, 2), (1,)), "train has bag 'c' twice"),
        (
            Split((0,), (1, 2)),
            r"patient 'ann' is in both train and test \(slides a, c\)\. Split by patient",
        ),
        (Split((3,), (1,), (0, 2)), None),
        (Split((0, 2), (1,), (3,)), None),  # b and d have no known patient: nothing to leak
    ],
)
def test_leaks_are_rejected(split: Split, message: str | None) -> None:
    patients = ["ann", None, "ann", None]
    if message is None:
        check_split(split, IDS, patients)
    else:
        with pytest.raises(SplitError, match=message):
            check_split(split, IDS, patients)


def test_splits_come_back_from_their_file(tmp_path: Path) -> None:
    path = tmp_path / "splits.csv"
    save_splits(path, SPLITS, IDS)
    assert path.read_text().splitlines()[:3] == [
        "repeat,fold,part,bag",
        "0,0,train,a",
        "0,0,train,d",
    ]
    assert load_splits(path, IDS) == SPLITS
    assert [file.name for file in tmp_path.iterdir()] == ["splits.csv"]


def test_ids_with_commas_quotes_and_line_ends_come_back(tmp_path: Path) -> None:
    ids = ["slide, 1", 'the "big" one', "two\nlines", "Größe"]
    save_splits(tmp_path / "splits.csv", SPLITS, ids)
    assert load_splits(tmp_path / "splits.csv", ids) == SPLITS


def test_a_table_from_a_spreadsheet_is_read(tmp_path: Path) -> None:
    path = tmp_path / "splits.csv"
    path.write_bytes("\ufefffold,bag,part,repeat,note\r\n2,a,test,1,\r\n2,b,train,1,x\r\n".encode())
    assert load_splits(path, IDS) == [[Split((1,), (0,))]]


def test_a_leaking_split_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(SplitError, match="bag 'a' is in both train and test"):
        save_splits(tmp_path / "splits.csv", [[Split((0,), (0,))]], IDS)
    with pytest.raises(SplitError, match="two bags have the id 'a'"):
        save_splits(tmp_path / "splits.csv", SPLITS, ["a", "a", "c", "d"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["0,0,train,tumour_1"], r"line 2: unknown bag 'tumour_1'\. Did you mean 'tumor_1'\?"),
        (
            ["0,0,train,zzz"],
            r"line 2: unknown bag 'zzz'\. The ids of the bags are such as tumor_1, normal_1",
        ),
        (
            ["0,0,train,normal_1", "0,0,test,normal_1"],
            "line 3: bag 'normal_1' is listed twice in fold 0 of repeat 0",
        ),
        (["0,0,tests,normal_1"], "line 2: part is 'tests', but must be train, test or valid"),
        (["0,one,test,normal_1"], "line 2: fold is 'one', but must be an integer from 0"),
        (["-1,0,test,normal_1"], "line 2: repeat is '-1', but must be an integer from 0"),
        (["0,0,test"], "line 2: fewer values than columns"),
        (["0,3,train,normal_1"], "fold 3 of repeat 0 has no line with part = test"),
        (["0,3,test,normal_1"], "fold 3 of repeat 0 has no line with part = train"),
        ([], "a header but no rows"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_line(
    tmp_path: Path, lines: list[str], message: str
) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("\n".join(["repeat,fold,part,bag", *lines]))
    with pytest.raises(SplitError, match=rf"mine\.csv.*{message}"):
        load_splits(path, ["tumor_1", "normal_1"])


def test_a_file_that_is_no_table_of_splits_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    with pytest.raises(SplitError, match=r"mine\.csv: cannot be read"):
        load_splits(path, IDS)
    path.write_text("")
    with pytest.raises(
        SplitError, match=r"line 1: no column repeat, fold, part, bag\..*found nothing"
    ):
        load_splits(path, IDS)
    path.write_text("repeat;fold;part;bag\n")
    with pytest.raises(
        SplitError, match="Expected repeat,fold,part,bag; found 1 column, not shown"
    ):
        load_splits(path, IDS)
    path.write_bytes(b"repeat,fold,part,bag\n0,0,train,\xff\n")
    with pytest.raises(SplitError, match=r"mine\.csv, line 2: unknown bag"):
        load_splits(path, IDS)
