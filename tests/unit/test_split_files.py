from __future__ import annotations

import json
from pathlib import Path

import pytest

from scmil.errors import SplitError
from scmil.bags.split_files import WRITERS, read_splits, write_splits
from scmil.bags.splits import Split, save_splits

SHARED = Path(__file__).parents[3] / "shared"
IDS = ["a", "b", "c", "007"]
SPLIT = Split(train=(0, 1), test=(3,), valid=(2,))
PATIENTS = ["ann", "ann", "bob", "cy"]


def file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


# ------------------------------------------------------------------------------------------- the files of other tools


@pytest.mark.parametrize(
    ("name", "text", "format"),
    [
        ("splits_0.csv", ",train,val,test\n0,a,c,007\n1,b,,\n", "clam"),
        ("splits_0.csv", ",train,val,test\n0,a,c,007\n1,b\n", "clam"),  # ragged for good
        ("splits_0_bool.csv", ",train,val,test\na,True,False,False\nb,True,False,False\n"
            "c,False,True,False\n007,False,False,True\n", "clam"),
        ("fold0.csv", ",train,train_label,val,val_label,test,test_label\n0,a,0,c,1,007,0\n1,b,1,,,,\n", "transmil"),
        ("Total_5-fold_mine_1fold.csv", "train_slide_path,train_label,val_slide_path,val_label,test_slide_path,test_label\n"
            "/f/a.pt,0,/f/c.pt,1.0,/f/007.pt,0.0\n/f/b.pt,1,,,,\n", "mil_baseline"),
        ("mine.csv", "train_slide_path,train_label,val_slide_path,val_label,test_slide_path,test_slide_label\n"
            "a.h5,0,c.h5,1,007.h5,0\nb.h5,1,,,,\n", "mil_baseline"),
        ("k=all.tsv", "case_id\tslide_id\tMSI\tfold_0\nann\ta\t1\ttrain\nann\tb\t1\ttrain\n"
            "bob\tc\t0\tval\ncy\t007\t0\ttest\n", "patho_bench"),
        ("splits.csv", "bag_name,split\na,train\nb,train\nc,val\n007,test\n", "torchmil"),
        ("official.csv", "slide_id,split,label\na,training,0\nb,train,0\nc,validation,1\n007,Test,1\nd,,1\n", "torchmil"),
        ("ours.csv", "repeat,fold,part,bag\n0,0,train,a\n0,0,train,b\n0,0,valid,c\n0,0,test,007\n", "scmil"),
    ],
)  # fmt: skip
def test_a_tool_is_known_by_its_columns(tmp_path: Path, name: str, text: str, format: str) -> None:
    assert read_splits(file(tmp_path, name, text), IDS, PATIENTS) == ([[SPLIT]], format, ())


def test_stamps_patients_become_their_slides(tmp_path: Path) -> None:
    folds = [
        {"train_patients": ["bob", "ann"], "test_patients": ["cy"]},
        {"train_patients": ["cy"], "test_patients": ["ann"]},
    ]
    path = file(tmp_path, "splits.json", json.dumps({"splits": folds}))
    read = read_splits(path, IDS, PATIENTS)
    assert read == ([[Split((2, 0, 1), (3,)), Split((3,), (0, 1))]], "stamp", ())
    with pytest.raises(SplitError, match="splits patients: the patient of every bag is needed"):
        read_splits(path, IDS)


@pytest.mark.parametrize("text", ["{", "[]", '{"splits": [3]}', '{"folds": []}', '{"splits": [{"train_patients": 3}]}'])
def test_json_that_is_not_stamps_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(SplitError, match=r"cannot be read as splits of patients .*Expected"):
        read_splits(file(tmp_path, "splits.json", text), IDS, PATIENTS)


def test_a_folder_is_read_fold_by_fold_in_the_order_of_numbers(tmp_path: Path) -> None:
    for fold in (0, 2, 10):
        test = "abc"[(0, 2, 10).index(fold)]
        rest = [id for id in IDS if id != test]
        rows = "".join(f"{at},{id},,{test if at == 0 else ''}\n" for at, id in enumerate(rest))
        file(tmp_path, f"splits_{fold}.csv", ",train,val,test\n" + rows)
        file(tmp_path, f"splits_{fold}_bool.csv", "not read")
        file(tmp_path, f"splits_{fold}_descriptor.csv", "not read")
    [folds] = read_splits(tmp_path, IDS).splits
    assert [split.test for split in folds] == [(0,), (1,), (2,)]


def test_a_folder_without_splits_is_refused(tmp_path: Path) -> None:
    file(tmp_path, "notes.txt", "")
    with pytest.raises(SplitError, match=r"no file of splits; met notes\.txt\. Expected splits_0\.csv"):
        read_splits(tmp_path, IDS)


def test_a_folder_with_files_of_several_tools_is_refused(tmp_path: Path) -> None:
    file(tmp_path, "fold0.csv", "train,test\na,b\n")
    file(tmp_path, "fold1.csv", "train,train_label,test,test_label\na,0,b,1\n")
    with pytest.raises(SplitError, match=r"files of several tools, clam, transmil\. Give each a folder of its own"):
        read_splits(tmp_path, IDS)


def test_several_repeats_of_our_own_stay_apart(tmp_path: Path) -> None:
    splits = [[SPLIT, Split((3,), (0, 1))], [Split((2,), (0, 3))]]
    save_splits(tmp_path / "splits.csv", splits, IDS)
    assert read_splits(tmp_path, IDS).splits == splits


def test_the_official_split_of_camelyon16_is_read() -> None:
    path = SHARED / "data" / "camelyon16" / "camelyon16_official_split_merged.csv"
    if not path.exists():
        pytest.skip("the list of CAMELYON16 is not beside the project")
    ids = [f"normal_{i:03}" for i in range(1, 11)] + ["test_001", "test_002"]
    read = read_splits(path, ids, missing="drop")
    assert read.splits == [[Split(tuple(range(10)), (10, 11))]]
    assert read.notes[0].startswith("left out, because they have no bag (387): normal_011")


# ------------------------------------------------------------------------------------------------ leaks and other doubts


def test_a_patient_in_two_parts_is_refused_with_file_and_fold(tmp_path: Path) -> None:
    path = file(tmp_path, "splits_0.csv", ",train,val,test\n0,a,,b\n")
    with pytest.raises(
        SplitError, match=r"splits_0\.csv, fold 0: patient 'ann' is in both train and test \(slides a, b\)"
    ):
        read_splits(path, IDS, PATIENTS)
    assert read_splits(path, IDS).splits == [[Split((0,), (1,))]]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("0,a,,a\n", "bag 'a' is in both train and test"),
        ("0,a,,b\n1,a,,\n", "train has bag 'a' twice"),
        ("0,a,b,\n", "test is empty"),
        ("0,x,,b\n", r"slide 'x' has no bag\. Ids here are such as a, b, c\. .*missing=\"drop\""),
    ],
)
def test_a_split_that_cannot_be_meant_is_refused(tmp_path: Path, rows: str, said: str) -> None:
    with pytest.raises(SplitError, match=said):
        read_splits(file(tmp_path, "splits_0.csv", ",train,val,test\n" + rows), IDS)


def test_what_has_no_bag_or_no_part_is_noted(tmp_path: Path) -> None:
    path = file(tmp_path, "splits_0.csv", ",train,val,test\n0,a,,b\n1,x,,y\n2,x2.svs,,x\n")
    read = read_splits(path, IDS, missing="drop")
    assert read.splits == [[Split((0,), (1,))]]
    assert read.notes == (
        "left out, because they have no bag (3): x, x2.svs, y.",
        "bags in no part of any split (2): c, 007.",
    )


def test_a_validation_that_is_the_test_is_not_used_for_choosing(tmp_path: Path) -> None:
    text = "train_slide_path,train_label,val_slide_path,val_label,test_slide_path,test_label\na,0,c,1,c,1\nb,1,007,0,007,0\n"
    read = read_splits(file(tmp_path, "mine.csv", text), IDS)
    assert read.splits == [[Split((0, 1), (2, 3))]]
    assert read.notes == ("mine.csv: val and test are the same slides; they are for the test, none for choosing.",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x,y\n1,2\n", r"no splits of a tool that is known; met x, y\. Expected train, val and test"),
        ("slide,split\na,practice\n", "line 2: part 'practice'; train, val or test is needed"),
        ("who,split\na,train\n", "no column 'slide_id' .* for the slide; met who, split"),
        ("", "is empty"),
    ],
)
def test_a_table_of_something_else_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SplitError, match=said):
        read_splits(file(tmp_path, "table.csv", text), IDS)


def test_ids_of_bags_may_have_suffixes_too(tmp_path: Path) -> None:
    path = file(tmp_path, "splits_0.csv", ",train,val,test\n0,a,,b.svs\n")
    assert read_splits(path, ["a.svs", "b"]).splits == [[Split((0,), (1,))]]


def test_an_unknown_choice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SplitError, match=r"missing = 'ignore': 'error' or 'drop'"):
        read_splits(tmp_path, IDS, missing="ignore")


# ------------------------------------------------------------------------------------------------------------- writing


@pytest.mark.parametrize("format", WRITERS)
def test_what_is_written_for_a_tool_is_read_back(tmp_path: Path, format: str) -> None:
    splits = [SPLIT] if format != "stamp" else [Split((0, 1, 2), (3,)), Split((3,), (2, 0, 1))]
    write_splits(tmp_path, splits, IDS, format, labels=["x", "y", "x", "y"], patients=PATIENTS)
    read = read_splits(tmp_path, IDS, PATIENTS)
    assert (read.format, read.notes) == (format, ())
    assert [[sorted(part) for part in split] for split in read.splits[0]] == [
        [sorted(part) for part in split] for split in splits
    ]


@pytest.mark.parametrize("format", ["clam", "transmil", "mil_baseline", "patho_bench"])
def test_several_folds_are_read_back_in_their_order(tmp_path: Path, format: str) -> None:
    splits = [Split((0, 1), (2, 3)), Split((2, 3), (0, 1))] * 6
    write_splits(tmp_path, splits, IDS, format, labels=[0, 1, 0, 1], patients=PATIENTS)
    assert read_splits(tmp_path, IDS, PATIENTS).splits == [splits]


def test_clams_files_are_as_clam_has_them(tmp_path: Path) -> None:
    files = write_splits(tmp_path, [SPLIT], IDS, "clam")
    assert [path.name for path in files] == ["splits_0.csv", "splits_0_bool.csv"]
    assert files[0].read_text() == ",train,val,test\n0,a,c,007\n1,b,,\n"
    assert files[1].read_text().splitlines()[:2] == [",train,val,test", "a,True,False,False"]


def test_transmils_files_are_as_transmil_has_them(tmp_path: Path) -> None:
    [path] = write_splits(tmp_path, [SPLIT], IDS, "transmil", labels=[0, 1, 0, 1])
    expected = ",train,train_label,val,val_label,test,test_label\n0,a,0,c,0,007,1\n1,b,1,,,,\n"
    assert (path.name, path.read_text()) == ("fold0.csv", expected)


def test_mil_baselines_name_has_folds_name_and_number(tmp_path: Path) -> None:
    files = write_splits(tmp_path, [SPLIT, SPLIT], IDS, "mil_baseline", labels=[0, 1, 0, 1], name="c16")
    assert [path.name for path in files] == ["Total_2-fold_c16_1fold.csv", "Total_2-fold_c16_2fold.csv"]


@pytest.mark.parametrize(
    ("format", "splits", "said"),
    [
        ("clan", [SPLIT], r"unknown format 'clan' of splits\. Known: clam"),
        ("transmil", [SPLIT], "the label of each of the 4 bags is needed"),
        ("stamp", [SPLIT], "STAMP draws its validation from the training patients itself"),
        ("stamp", [Split((0,), (1,))], "the patient of each of the 4 bags is needed"),
        ("torchmil", [SPLIT, SPLIT], "has one split, not 2"),
        ("clam", [Split((0,), (0,))], "bag 'a' is in both train and test"),
    ],
)
def test_what_a_tool_cannot_take_is_refused_and_nothing_is_written(
    tmp_path: Path, format: str, splits: list[Split], said: str
) -> None:
    with pytest.raises(SplitError, match=said):
        write_splits(tmp_path, splits, IDS, format)
    assert list(tmp_path.iterdir()) == []
