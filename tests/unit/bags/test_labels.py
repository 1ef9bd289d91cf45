"""Labels and patients of slides from tables."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from scmil.bags.labels import Labels, read_labels
from scmil.errors import DataError, MissingExtraError

DATA = Path(__file__).parents[2] / "data"


def table(folder: Path, text: str, name: str = "labels.csv", encoding: str = "utf-8") -> Path:
    path = folder / name
    path.write_bytes(text.encode(encoding))
    return path


def known(labels: Labels) -> dict[str, tuple[str | None, str | None]]:
    return dict(zip(labels.ids, zip(labels.names, labels.patients, strict=True), strict=True))


@pytest.mark.parametrize(
    ("text", "patients"),
    [
        ("case_id,slide_id,label\np1,s1,tumor\np2,s2,normal\n", ("p1", "p2")),  # CLAM
        # slideflow, PathForge.
        ("patient,slide,category,site\np1,s1,tumor,x\np2,s2,normal,y\n", ("p1", "p2")),
        ("PATIENT,FILENAME,Target\np1,s1.h5,tumor\np2,s2.h5,normal\n", ("p1", "p2")),
        ("0,label\nd/a/s1.csv,tumor\nd/b/s2.csv,normal\n", (None, None)),  # DSMIL
        ("image_id,label,fold\ns1,tumor,0\ns2,normal,1\n", (None, None)),  # ILRA
        ("slide_path,label\n/f/s1.pt,tumor\nC:\\f\\s2.pt,normal\n", (None, None)),  # MIL_BASELINE
        # The only column that is left.
        ("wsi,mpp,grade\ns1.svs,0.25,tumor\ns2.svs,0.25,normal\n", (None, None)),
        # With the index of a data frame.
        (",slide_id,label\n0,s1,tumor\n1,s2,normal\n", (None, None)),
    ],
)
def test_the_columns_of_other_tools_are_found(
    tmp_path: Path, text: str, patients: tuple[str | None, ...]
) -> None:
    labels = read_labels(table(tmp_path, text))
    assert (labels.ids, labels.names, labels.patients) == (
        ("s1", "s2"),
        ("tumor", "normal"),
        patients,
    )
    assert (labels.classes, labels.of("s1")[0]) == (("normal", "tumor"), 1)


@pytest.mark.parametrize("separator", [",", "\t", ";"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_separators_and_byte_order_marks_are_seen_through(
    tmp_path: Path, separator: str, encoding: str
) -> None:
    text = "Slide_ID,Label\ns1,Tumör\ns2,normal\n".replace(",", separator)
    assert known(read_labels(table(tmp_path, text, encoding=encoding))) == {
        "s1": ("Tumör", None),
        "s2": ("normal", None),
    }


@pytest.mark.parametrize(
    ("header", "options", "inferred"),
    [
        ("slide_id,patient,label", {}, set()),
        ("Slide,case_id,LABEL", {}, set()),
        ("wsi,case,grade", {}, {"slide", "patient", "label"}),
        ("wsi,case,target", {}, {"slide", "patient", "label"}),
        ("wsi,case,lable", {"slide": "wsi", "patient": "case", "label": "lable"}, set()),
    ],
)
def test_a_column_is_inferred_unless_it_is_requested_or_has_a_documented_name(
    tmp_path: Path, header: str, options: dict[str, str], inferred: set[str]
) -> None:
    labels = read_labels(table(tmp_path, f"{header}\ns1,p1,a\ns2,p2,b\n"), **options)
    names = dict(zip(("slide", "patient", "label"), header.split(","), strict=True))
    assert {role: column.name for role, column in labels.columns.items()} == names
    assert {role for role, column in labels.columns.items() if column.inferred} == inferred
    assert {note.split()[0] for note in labels.notes} == inferred


def test_columns_can_be_named(tmp_path: Path) -> None:
    path = table(tmp_path, "scan,who,label,MSI\ns1,ann,0,high\ns2,bob,0,low\n")
    assert known(read_labels(path, slide="scan", patient="WHO", label="msi")) == {
        "s1": ("high", "ann"),
        "s2": ("low", "bob"),
    }


def test_stamps_two_tables_are_joined_by_the_patient(tmp_path: Path) -> None:
    clini = table(
        tmp_path, "PATIENT,AGE,isMSIH\n01,60,MSIH\n02,50,nonMSIH\n03,40,MSIH\n", "clini.csv"
    )
    slides = table(tmp_path, "PATIENT,FILENAME\n01,a.h5\n01,b.h5\n02,c.h5\n09,d.h5\n", "slide.csv")
    labels = read_labels(clini, slides=slides, label="isMSIH")
    assert known(labels) == {
        "a": ("MSIH", "01"),
        "b": ("MSIH", "01"),
        "c": ("nonMSIH", "02"),
        "d": (None, "09"),
    }
    assert "patients without slides in clini.csv (1): 03." in labels.notes
    assert "patients without a row in clini.csv (1): 09." in labels.notes


def test_a_table_of_patients_alone_asks_for_the_table_of_slides(tmp_path: Path) -> None:
    with pytest.raises(
        DataError,
        match=r"is a table of patients, with the columns PATIENT, isMSIH\. Give .*slides=",
    ):
        read_labels(table(tmp_path, "PATIENT,isMSIH\n01,yes\n"))


def test_a_patient_with_two_labels_in_the_table_of_patients_is_rejected(tmp_path: Path) -> None:
    clini = table(tmp_path, "PATIENT,label\n01,a\n01,b\n", "clini.csv")
    slides = table(tmp_path, "PATIENT,FILENAME\n01,a.h5\n", "slide.csv")
    with pytest.raises(
        DataError, match=r"line 3: patient '01' has the label 'b', but 'a' in line 2"
    ):
        read_labels(clini, slides=slides)


def test_the_official_list_of_camelyon16_is_read() -> None:
    path = DATA / "camelyon16" / "camelyon16_official_split_merged.csv"
    labels = read_labels(path)
    assert (len(labels), labels.counts()) == (399, {"0": 239, "1": 160})
    assert labels.of("tumor_001.tif") == (1, None)


def test_ids_are_text_and_file_names_will_do(tmp_path: Path) -> None:
    labels = read_labels(table(tmp_path, "slide,label\n007.svs,a\n1e5,b\n"))
    assert labels.ids == ("007", "1e5")
    assert labels.of("scans/007.ndpi") == (0, None)
    assert "7" not in labels


def test_numbers_are_sorted_as_numbers_and_one_is_1_0(tmp_path: Path) -> None:
    labels = read_labels(table(tmp_path, "slide,label\na,10\nb,2.0\nc,2\nd,-1\n"))
    assert labels.classes == ("-1", "2", "10")
    assert [labels.of(bag_id)[0] for bag_id in "abcd"] == [2, 1, 1, 0]


def test_the_order_of_classes_can_be_given(tmp_path: Path) -> None:
    path = table(tmp_path, "slide,label\na,tumor\nb,normal\n")
    assert read_labels(path, classes=["tumor", "normal", "other"]).counts() == {
        "tumor": 1,
        "normal": 1,
        "other": 0,
    }
    with pytest.raises(
        DataError,
        match=r"label 'tumor' is not among the classes tumour, normal\. Did you mean 'tumour'",
    ):
        read_labels(path, classes=["tumour", "normal"])


def test_tcga_barcodes_name_the_patients_if_no_column_does(tmp_path: Path) -> None:
    one, other = "TCGA-05-4244-01Z-00-DX1.ab", "TCGA-05-4244-01Z-00-DX2.cd"
    labels = read_labels(table(tmp_path, f"slide,label\n{one},a\n{other},a\nmine,b\n"))
    assert labels.patients == ("TCGA-05-4244", "TCGA-05-4244", None)
    assert "first three parts of TCGA barcodes (2 of 3 slides)" in labels.notes[0]
    labels = read_labels(table(tmp_path, f"slide,label,patient\n{one},a,ann\n{other},b,\n"))
    assert (labels.patients, labels.notes) == (("ann", None), ())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        ("\n  \n", "is empty"),
        ("slide,label\n", "a header but no rows"),
        (
            "slyde,label\na,b\n",
            r"no column 'slide_id' or 'slide' .* found slyde, label\. .* 'slyde'\. .*slide=",
        ),
        (
            "slide,Lable,x\na,b,c\n",
            r"for the label; found slide, Lable, x\. The nearest is 'Lable'\. Name .* label=",
        ),
        (
            "test_001,Tumor\ntest_002,Normal\n",
            "Does the file begin with a line that names its columns",
        ),
        ("slide,label,label\na,b,c\n", "2 columns are called 'label'"),
        ("slide|label\na|b\n", r"one column\. Separate columns by commas, tabs or semicolons"),
        ("slide,label\na,b,c\n", "line 2: 3 values, but 2 columns are named"),
        ("slide,label\na,b\nc\n", "line 3: 1 values, but 2 columns are named"),
        ("slide,label\n,b\n", "line 2: the slide is empty"),
        (
            "slide,label\na,x\nb,y\na.svs,y\n",
            r"line 4: slide 'a' has the label 'y', but 'x' in line 2",
        ),
        (
            "slide,label,patient\na,x,7\na,x,07\n",
            "slide 'a' has the patient '07', but '7' in line 2",
        ),
        ("slide,label\na,x\nb,x\n", "every label is 'x', but at least two classes are needed"),
        ("slide,label\na,\nb,nan\n", "no slide has a label"),
        ("slide,label\na," + "x" * 200_000 + "\n", "line 2: field larger than field limit"),
    ],
)
def test_an_inconsistent_table_is_rejected(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        read_labels(table(tmp_path, text))


def test_a_requested_column_that_is_missing_raises(tmp_path: Path) -> None:
    path = table(tmp_path, "slide,isMSIH,age\na,x,1\nb,y,2\n")
    with pytest.raises(
        DataError, match=r"no column 'isMSI' for the label; .* The nearest is 'isMSIH'"
    ):
        read_labels(path, label="isMSI")
    with pytest.raises(DataError, match="no column 'who' for the patient"):
        read_labels(path, label="isMSIH", patient="who")


def test_latin_1_bytes_are_rejected_and_not_guessed(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"line 3: the bytes are not UTF-8\. Save the table as CSV in UTF-8"
    ):
        read_labels(table(tmp_path, "slide,label\na,normal\nb,Tumör\n", encoding="latin-1"))


def test_a_missing_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_labels(tmp_path / "none.csv")


def test_one_class_is_enough_if_the_others_are_named(tmp_path: Path) -> None:
    labels = read_labels(table(tmp_path, "slide,label\na,x\n"), classes=["x", "y"])
    assert labels.of("a") == (0, None)


def test_lines_that_agree_are_merged_and_noted(tmp_path: Path) -> None:
    labels = read_labels(table(tmp_path, "slide,label,patient\na,1,\na.svs,1.0,ann\nb,0,bob\n"))
    assert known(labels) == {"a": ("1", "ann"), "b": ("0", "bob")}
    assert labels.notes == ("lines that repeat a slide and agree are merged (1): a.",)


def test_blank_labels_are_unknown_and_noted(tmp_path: Path) -> None:
    blank = "".join(f"s{i},{word}\n" for i, word in enumerate(["", "NaN", "NA", "n/a"]))
    labels = read_labels(table(tmp_path, "slide,label\na,x\nb,None\n" + blank), missing=())
    assert labels.classes == ("None", "x")  # the name of a stage in CAMELYON17, not a gap
    assert labels.of("s1") == (None, None)
    assert labels.notes == ("slides without a label (4 of 6): s0, s1, s2 and 1 more.",)


@pytest.mark.parametrize(
    "word", ["None", "none", "-", "?", "unknown", "Unknown", "missing", "N.A."]
)
def test_words_that_may_mean_a_missing_label_are_asked_about(word: str, tmp_path: Path) -> None:
    path = table(tmp_path, f"slide,label\na,x\nb,{word}\nc,y\nd,{word}\n")
    with pytest.raises(
        DataError, match=rf"'{re.escape(word)}' in line 3, 5\. .*--missing '{re.escape(word)}'"
    ):
        read_labels(path)
    labels = read_labels(path, missing=[word])
    assert (labels.classes, labels.of("b")) == (("x", "y"), (None, None))
    assert len(read_labels(path, missing=()).classes) == 3
    assert read_labels(path, classes=["x", "y", word]).of("d") == (2, None)


def test_a_patient_who_is_unknown_is_asked_about_too(tmp_path: Path) -> None:
    path = table(tmp_path, "slide,label,patient\na,x,unknown\nb,y,unknown\nc,y,ann\n")
    with pytest.raises(
        DataError, match=r"can be a patient or mean a missing one: 'unknown' in line 2, 3"
    ):
        read_labels(path)
    # And not one patient with two slides.
    assert read_labels(path, missing=["unknown"]).patients == (None, None, "ann")


def test_classes_that_differ_only_in_how_they_are_spelled_are_one_and_that_is_noted(
    tmp_path: Path,
) -> None:
    words = [
        "Tumour",
        "tumour",
        "TUMOUR",
        "tumour",
        "normal",
        "Normal",
        "Tumo\u0308r",
        "tum\u00f6r",
        "in  situ",
        "In situ",
    ]
    text = "".join(f"s{i},{word}\n" for i, word in enumerate(words))
    labels = read_labels(table(tmp_path, "slide,label\n" + text))
    assert labels.classes == ("In situ", "Normal", "Tumo\u0308r", "tumour")
    assert labels.counts() == {"In situ": 2, "Normal": 2, "Tumo\u0308r": 2, "tumour": 4}
    assert labels.spellings["tumour"] == ("TUMOUR", "Tumour", "tumour")
    merged = "'TUMOUR' (1), 'Tumour' (1), 'tumour' (2) are one class, 'tumour': they differ only in"
    assert any(note.startswith(merged) for note in labels.notes)
    named = read_labels(
        tmp_path / "labels.csv", classes=["NORMAL", "TUMOUR", "TUM\u00d6R", "IN SITU"]
    )
    assert named.counts() == {"NORMAL": 2, "TUMOUR": 4, "TUM\u00d6R": 2, "IN SITU": 2}


def test_a_slide_that_is_listed_twice_may_be_spelled_in_two_ways(tmp_path: Path) -> None:
    labels = read_labels(table(tmp_path, "slide,label\na,Tumour\na,tumour\nb,normal\n"))
    assert len(labels.classes) == 2


def test_empty_lines_and_trailing_commas_of_spreadsheets_do_no_harm(tmp_path: Path) -> None:
    labels = read_labels(table(tmp_path, 'slide,label\n\n"a",x,,\n,\nb,y\n\n'))
    assert labels.ids == ("a", "b")


def test_a_workbook_is_read_as_a_table(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (["slide", "label", "patient"], ["007", 1, 12], ["b", 0.0, None]):
        book.active.append(row)
    book.save(tmp_path / "labels.xlsx")
    assert known(read_labels(tmp_path / "labels.xlsx")) == {"007": ("1", "12"), "b": ("0", None)}


def test_a_damaged_workbook_is_rejected(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    with pytest.raises(DataError, match=r"cannot be read as a workbook: .* Save the table as CSV"):
        read_labels(table(tmp_path, "slide,label\n", "labels.xlsx"))


def test_the_error_without_openpyxl_names_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(MissingExtraError, match=r"'openpyxl'.*pip install 'scmil\[tables\]'"):
        read_labels(table(tmp_path, "", "labels.xlsx"))
