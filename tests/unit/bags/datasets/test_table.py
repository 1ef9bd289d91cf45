"""Tables of bags as .csv files."""

from __future__ import annotations

from pathlib import Path

import pytest
from bag_tables import lists, write

from scmil.bags.datasets import load_dataset
from scmil.bags.datasets.table import read_bags
from scmil.errors import DataError


def test_a_csv_may_have_its_columns_and_rows_in_any_order(tmp_path: Path) -> None:
    text = "x,patient,label,bag,y,instance_label\n1,P,1,b,2,0\n\n3,Q,0,a,4,0\n5,P,1,b,6,1\n"
    bags = read_bags(write(tmp_path, text))
    assert (bags.ids, bags.labels, bags.patients) == (("b", "a"), (1, 0), ("P", "Q"))
    assert lists(bags) == [[[1, 2], [5, 6]], [[3, 4]]]
    assert bags[0].instance_labels is not None
    assert bags[0].instance_labels.tolist() == [0, 1]


def test_words_are_classes_and_empty_cells_are_unknown(tmp_path: Path) -> None:
    text = '\ufeffbag,label,patient,x\n"a, 1",LUSC,,1\nb,LUAD,P,2\nc,,P,3\n'
    bags = read_bags(write(tmp_path, text))
    assert (bags.ids, bags.labels, bags.patients) == (
        ("a, 1", "b", "c"),
        (1, 0, None),
        (None, "P", "P"),
    )
    assert bags.classes == ("LUAD", "LUSC")


def test_numeric_labels_are_class_numbers(tmp_path: Path) -> None:
    assert read_bags(write(tmp_path, "bag,label,x\na,1,0\nb,1,0\n")).labels == (1, 1)
    assert read_bags(write(tmp_path, "bag,label,x\na,-1,0\nb,1,0\n")).labels == (0, 1)
    assert read_bags(write(tmp_path, "bag,label,x\na,2,0\nb,0,0\n")).classes == ("0", "1", "2")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the file is empty. Its first line must name the columns"),
        ("bag,label,x\n", "a header but no rows"),
        (
            "bag;label;x\n",
            "0 columns are called 'bag', but one is needed. Found: 1 column, not shown",
        ),
        ("bag,x\na,1\n", "0 columns are called 'label'"),
        ("bag,label,label,x\na,1,1,1\n", "2 columns are called 'label'"),
        ("bag,label,patient\na,1,P\n", "there is no feature: all columns are among"),
        ("bag,label,x\na,1,2\na,1,nan\n", r"line 3, column 'x': 'nan', but a finite"),
        ("bag,label,x,y\na,1,2,-inf\n", r"line 2, column 'y': '-inf', but a finite"),
        ("bag,label,x\na,1,1e39\n", r"column 'x': '1e39', but a finite 32-bit number"),
        ("bag,label,x,y\na,1,2,many\n", r"line 2, column 'y': 'many', but a finite"),
        ("bag,label,x,y\na,1,2,3\na,1,2\n", r"line 3 has 3 values, but the header has 4"),
        (
            "bag,label,x\na,1,2\na,0,2\n",
            "bag 'a' has the labels '1' and '0', but a bag has one label",
        ),
        ("bag,label,patient,x\na,1,P,2\na,1,Q,2\n", "bag 'a' has the patients 'P' and 'Q'"),
        (
            "bag,label,x\na,1.5,2\n",
            "label 1.5: numeric labels must be integers from 0 to 999. Use words",
        ),
        ("bag,label,x\na,20190412,2\n", "label 20190412: numeric labels must be"),
        (b"bag,label,x\n\xe4,1,2\n", "byte 12 is not UTF-8. Save the file as UTF-8"),
    ],
)
def test_a_csv_that_cannot_be_used_is_rejected_with_the_place(
    tmp_path: Path, text: str | bytes, reason: str
) -> None:
    with pytest.raises(DataError, match=rf"bags\.csv: .*{reason}"):
        read_bags(write(tmp_path, text))


def test_unknown_suffixes_and_missing_files_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"suffixes \.csv, \.npz, \.svm, \.mat"):
        read_bags(write(tmp_path, "", "bags.xlsx"))
    with pytest.raises(DataError, match=r"none\.csv: cannot be read \(No such file"):
        read_bags(tmp_path / "none.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(DataError, match=r"folder\.csv: cannot be read"):
        read_bags(tmp_path / "folder.csv")


def test_load_dataset_reads_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "bag,label,x\na,1,2\n")
    monkeypatch.chdir(tmp_path)
    for name in (path, str(path), "bags.csv", "./bags.csv"):
        assert load_dataset(name).ids == ("a",)
    with pytest.raises(DataError, match=r"nosuch\.csv: cannot be read"):
        load_dataset("nosuch.csv")
    with pytest.raises(DataError, match="suffixes"):
        load_dataset("folder/musk1")


def test_a_csv_cell_beyond_the_size_limit_is_rejected_with_the_file_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"bags\.csv: not a table \(field larger than field limit"):
        read_bags(write(tmp_path, "bag,label,x\n" + "a" * 200_000 + ",1,0\n"))
