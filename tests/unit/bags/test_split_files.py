from __future__ import annotations

import json
from pathlib import Path

import pytest

from scmil.bags.split_files import read_splits
from scmil.bags.splits import Split, save_splits
from scmil.errors import SplitError

DATA = Path(__file__).parents[2] / "data"
IDS = ["a", "b", "c", "007"]
SPLIT = Split(train=(0, 1), test=(3,), valid=(2,))
PATIENTS = ["ann", "ann", "bob", "cy"]


def file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


# ------------------------------------------------------------------------- the files of other tools


@pytest.mark.parametrize(
    ("name", "text", "format_name"),
    [
        ("splits_0.csv", ",train,val,test\n0,a,c,007\n1,b,,\n", "clam"),
        ("splits_0.csv", ",train,val,test\n0,a,c,007\n1,b\n", "clam"),  # ragged for good
        ("splits_0_bool.csv", ",train,val,test\na,True,False,False\nb,True,False,False\n"
            "c,False,True,False\n007,False,False,True\n", "clam"),
        ("fold0.csv", ",train,train_label,val,val_label,test,test_label\n"
            "0,a,0,c,1,007,0\n1,b,1,,,,\n", "transmil"),
        ("Total_5-fold_mine_1fold.csv", "train_slide_path,train_label,val_slide_path,val_label,"
            "test_slide_path,test_label\n"
            "/f/a.pt,0,/f/c.pt,1.0,/f/007.pt,0.0\n/f/b.pt,1,,,,\n", "mil_baseline"),
        ("mine.csv", "train_slide_path,train_label,val_slide_path,val_label,"
            "test_slide_path,test_slide_label\n"
            "a.h5,0,c.h5,1,007.h5,0\nb.h5,1,,,,\n", "mil_baseline"),
        ("k=all.tsv", "case_id\tslide_id\tMSI\tfold_0\nann\ta\t1\ttrain\nann\tb\t1\ttrain\n"
            "bob\tc\t0\tval\ncy\t007\t0\ttest\n", "patho_bench"),
        ("splits.csv", "bag_name,split\na,train\nb,train\nc,val\n007,test\n", "torchmil"),
        ("official.csv", "slide_id,split,label\na,training,0\nb,train,0\nc,validation,1\n"
            "007,Test,1\nd,,1\n", "torchmil"),
        ("ours.csv", "repeat,fold,part,bag\n0,0,train,a\n0,0,train,b\n0,0,valid,c\n"
            "0,0,test,007\n", "scmil"),
    ],
)  # fmt: skip
def test_a_tool_is_known_by_its_columns(
    tmp_path: Path, name: str, text: str, format_name: str
) -> None:
    assert read_splits(file(tmp_path, name, text), IDS, PATIENTS) == ([[SPLIT]], format_name, ())


def test_stamps_patients_become_their_slides(tmp_path: Path) -> None:
    folds = [
        {"train_patients": ["bob", "ann"], "test_patients": ["cy"]},
        {"train_patients": ["cy"], "test_patients": ["ann"]},
    ]
    path = file(tmp_path, "splits.json", json.dumps({"splits": folds}))
    read = read_splits(path, IDS, PATIENTS)
    assert read == ([[Split((2, 0, 1), (3,)), Split((3,), (0, 1))]], "stamp", ())
    with pytest.raises(
        SplitError, match="contains splits of patients, but the patients of the bags are"
    ):
        read_splits(path, IDS)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"splits": [3]}', '{"folds": []}', '{"splits": [{"train_patients": 3}]}']
)
def test_json_that_is_not_stamps_is_rejected(tmp_path: Path, text: str) -> None:
    with pytest.raises(SplitError, match=r"cannot be read as splits of patients .*Expected"):
        read_splits(file(tmp_path, "splits.json", text), IDS, PATIENTS)


def test_a_folder_is_read_fold_by_fold_in_the_order_of_numbers(tmp_path: Path) -> None:
    for fold in (0, 2, 10):
        test = "abc"[(0, 2, 10).index(fold)]
        rest = [bag_id for bag_id in IDS if bag_id != test]
        rows = "".join(
            f"{at},{bag_id},,{test if at == 0 else ''}\n" for at, bag_id in enumerate(rest)
        )
        file(tmp_path, f"splits_{fold}.csv", ",train,val,test\n" + rows)
        file(tmp_path, f"splits_{fold}_bool.csv", "not read")
        file(tmp_path, f"splits_{fold}_descriptor.csv", "not read")
    [folds] = read_splits(tmp_path, IDS).splits
    assert [split.test for split in folds] == [(0,), (1,), (2,)]


def test_a_folder_without_splits_is_rejected(tmp_path: Path) -> None:
    file(tmp_path, "notes.txt", "")
    with pytest.raises(
        SplitError, match=r"no split file\. Found notes\.txt; expected splits_0\.csv"
    ):
        read_splits(tmp_path, IDS)


def test_a_folder_with_files_of_several_tools_is_rejected(tmp_path: Path) -> None:
    file(tmp_path, "fold0.csv", "train,test\na,b\n")
    file(tmp_path, "fold1.csv", "train,train_label,test,test_label\na,0,b,1\n")
    with pytest.raises(SplitError, match=r"files of several tools, clam, transmil\. Put the files"):
        read_splits(tmp_path, IDS)


def test_several_repeats_in_our_format_stay_separate(tmp_path: Path) -> None:
    splits = [[SPLIT, Split((3,), (0, 1))], [Split((2,), (0, 3))]]
    save_splits(tmp_path / "splits.csv", splits, IDS)
    assert read_splits(tmp_path, IDS).splits == splits


def test_the_official_split_of_camelyon16_is_read() -> None:
    path = DATA / "camelyon16" / "camelyon16_official_split_merged.csv"
    ids = [f"normal_{i:03}" for i in range(1, 11)] + ["test_001", "test_002"]
    read = read_splits(path, ids, missing="drop")
    assert read.splits == [[Split(tuple(range(10)), (10, 11))]]
    assert read.notes[0].startswith("left out, because they have no bag (387): normal_011")


# --------------------------------------------------------------------------- leaks and other doubts


def test_a_patient_in_two_splits_is_rejected_with_file_and_fold(tmp_path: Path) -> None:
    path = file(tmp_path, "splits_0.csv", ",train,val,test\n0,a,,b\n")
    with pytest.raises(
        SplitError,
        match=r"splits_0\.csv, fold 0: patient 'ann' is in both train and test \(slides a, b\)",
    ):
        read_splits(path, IDS, PATIENTS)
    assert read_splits(path, IDS).splits == [[Split((0,), (1,))]]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ("0,a,,a\n", "bag 'a' is in both train and test"),
        ("0,a,,b\n1,a,,\n", "train has bag 'a' twice"),
        ("0,a,b,\n", "test is empty"),
        (
            "0,x,,b\n",
            r"slide 'x' has no bag\. The slides of the bags are .* a, b, c\. .*missing=\"drop\"",
        ),
    ],
)
def test_an_invalid_split_is_rejected(tmp_path: Path, rows: str, reason: str) -> None:
    with pytest.raises(SplitError, match=reason):
        read_splits(file(tmp_path, "splits_0.csv", ",train,val,test\n" + rows), IDS)


def test_what_has_no_bag_or_no_part_is_noted(tmp_path: Path) -> None:
    path = file(tmp_path, "splits_0.csv", ",train,val,test\n0,a,,b\n1,x,,y\n2,x2.svs,,x\n")
    read = read_splits(path, IDS, missing="drop")
    assert read.splits == [[Split((0,), (1,))]]
    assert read.notes == (
        "left out, because they have no bag (3): x, x2.svs, y.",
        "bags that no split contains (2): c, 007.",
    )


def test_a_validation_that_is_the_test_is_not_used_for_choosing(tmp_path: Path) -> None:
    header = "train_slide_path,train_label,val_slide_path,val_label,test_slide_path,test_label\n"
    text = header + "a,0,c,1,c,1\nb,1,007,0,007,0\n"
    read = read_splits(file(tmp_path, "mine.csv", text), IDS)
    assert read.splits == [[Split((0, 1), (2, 3))]]
    assert read.notes == (
        "mine.csv: val and test are the same slides. They are the test split, and there is no "
        "validation split.",
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "x,y\n1,2\n",
            r"not a split file of a supported tool\. Found the columns x, y; expected train",
        ),
        (
            "slide,split\na,practice\n",
            "line 2: the split is 'practice', but must be train, val or test",
        ),
        ("who,split\na,train\n", "no column 'slide_id' .* for the slide; found who, split"),
        ("", "is empty"),
    ],
)
def test_a_table_of_something_else_is_rejected(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(SplitError, match=reason):
        read_splits(file(tmp_path, "table.csv", text), IDS)


def test_ids_of_bags_may_have_suffixes_too(tmp_path: Path) -> None:
    path = file(tmp_path, "splits_0.csv", ",train,val,test\n0,a,,b.svs\n")
    assert read_splits(path, ["a.svs", "b"]).splits == [[Split((0,), (1,))]]


def test_an_unknown_choice_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(SplitError, match=r"missing = 'ignore': use 'error' or 'drop'"):
        read_splits(tmp_path, IDS, missing="ignore")


# ------------------------------------------------------------------------------------------ writing
