from __future__ import annotations

from pathlib import Path

import pytest

from scmil.bags.split_files import read_splits
from scmil.bags.split_writers import WRITERS, write_repeats, write_splits
from scmil.bags.splits import Split
from scmil.errors import OutputError, SplitError

IDS = ["a", "b", "c", "007"]
SPLIT = Split(train=(0, 1), test=(3,), valid=(2,))
PATIENTS = ["ann", "ann", "bob", "cy"]


@pytest.mark.parametrize("format_name", WRITERS)
def test_written_splits_are_read_back(tmp_path: Path, format_name: str) -> None:
    splits = [SPLIT] if format_name != "stamp" else [Split((0, 1, 2), (3,)), Split((3,), (2, 0, 1))]
    write_splits(tmp_path, splits, IDS, format_name, labels=["x", "y", "x", "y"], patients=PATIENTS)
    read = read_splits(tmp_path, IDS, PATIENTS)
    assert (read.format, read.notes) == (format_name, ())
    assert [[sorted(part) for part in split] for split in read.splits[0]] == [
        [sorted(part) for part in split] for split in splits
    ]


@pytest.mark.parametrize("format_name", ["clam", "transmil", "mil_baseline", "patho_bench"])
def test_several_folds_are_read_back_in_their_order(tmp_path: Path, format_name: str) -> None:
    splits = [Split((0, 1), (2, 3)), Split((2, 3), (0, 1))] * 6
    write_splits(tmp_path, splits, IDS, format_name, labels=[0, 1, 0, 1], patients=PATIENTS)
    assert read_splits(tmp_path, IDS, PATIENTS).splits == [splits]


def test_clam_files_have_the_layout_of_clam(tmp_path: Path) -> None:
    files = write_splits(tmp_path, [SPLIT], IDS, "clam")
    assert [path.name for path in files] == ["splits_0.csv", "splits_0_bool.csv"]
    assert files[0].read_text() == ",train,val,test\n0,a,c,007\n1,b,,\n"
    assert files[1].read_text().splitlines()[:2] == [",train,val,test", "a,True,False,False"]


def test_transmil_files_have_the_layout_of_transmil(tmp_path: Path) -> None:
    [path] = write_splits(tmp_path, [SPLIT], IDS, "transmil", labels=[0, 1, 0, 1])
    expected = ",train,train_label,val,val_label,test,test_label\n0,a,0,c,0,007,1\n1,b,1,,,,\n"
    assert (path.name, path.read_text()) == ("fold0.csv", expected)


def test_mil_baseline_file_names_contain_folds_name_and_number(tmp_path: Path) -> None:
    files = write_splits(
        tmp_path, [SPLIT, SPLIT], IDS, "mil_baseline", labels=[0, 1, 0, 1], name="c16"
    )
    assert [path.name for path in files] == [
        "Total_2-fold_c16_1fold.csv",
        "Total_2-fold_c16_2fold.csv",
    ]


@pytest.mark.parametrize(
    ("format_name", "splits", "message"),
    [
        ("clan", [SPLIT], r"unknown split format 'clan'\. Expected one of: clam"),
        ("transmil", [SPLIT], "contains labels, but only 0 of 4 bags have one"),
        ("stamp", [SPLIT], "STAMP draws its validation split from the training patients"),
        ("stamp", [Split((0,), (1,))], "contains patients, but only 0 of 4 bags have one"),
        ("torchmil", [SPLIT, SPLIT], "holds one split, but there are 2"),
        ("clam", [Split((0,), (0,))], "bag 'a' is in both train and test"),
    ],
)
def test_splits_that_a_tool_cannot_read_are_rejected_and_nothing_is_written(
    tmp_path: Path, format_name: str, splits: list[Split], message: str
) -> None:
    with pytest.raises(SplitError, match=message):
        write_splits(tmp_path, splits, IDS, format_name)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_scmil_did_not_write_is_replaced_only_with_overwrite(tmp_path: Path) -> None:
    (tmp_path / "splits_0.csv").write_text("mine\n")
    with pytest.raises(OutputError, match=r"splits_0\.csv"):
        write_splits(tmp_path, [SPLIT], IDS, "clam")
    assert (tmp_path / "splits_0.csv").read_text() == "mine\n"
    write_splits(tmp_path, [SPLIT], IDS, "clam", overwrite=True)
    assert read_splits(tmp_path, IDS).splits == [[SPLIT]]


def test_torchmil_has_no_place_for_several_repeats(tmp_path: Path) -> None:
    with pytest.raises(SplitError, match="holds one split, but there are 2 repeats"):
        write_repeats(tmp_path, [[SPLIT], [SPLIT]], IDS, "torchmil")


def test_a_missing_label_is_rejected_where_the_format_contains_labels(tmp_path: Path) -> None:
    with pytest.raises(SplitError, match="only 3 of 4 bags have one"):
        write_splits(tmp_path, [SPLIT], IDS, "transmil", labels=[0, 1, None, 1])
