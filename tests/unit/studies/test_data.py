"""Bags and their labels are checked before any bag is read."""

from __future__ import annotations

from pathlib import Path

import pytest
from study_cases import cohort, labelled_folder, relabel
from typer.testing import CliRunner

from scmil import studies
from scmil.bags.formats import export_bags
from scmil.cli import app
from scmil.errors import DataError, ScmilError


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"s03": "", "s07": ""}, {}, "bags without a label (2 of 24): s03, s07."),
        (
            {f"s{i:02}": "normal" for i in range(24)},
            {},
            "every label is 'normal', but at least two classes are needed.",
        ),
        ({"s00": "rare", "s01": "rare"}, {}, "class 'rare' has only one patient, 'p0'"),
        (
            {},
            {"label": "grade"},
            "no column 'grade' for the label; found case_id, slide_id, label.",
        ),
        ({}, {"key": "uni"}, "format 'clam' does not support the option key."),
    ],
)
def test_wrong_labels_are_rejected_before_any_bag_is_read(
    change: dict[str, str], options: dict[str, str], message: str, tmp_path: Path
) -> None:
    export_bags(cohort(24, 2), tmp_path / "bags", "clam")
    labels = relabel(tmp_path / "bags", change)
    for file in (tmp_path / "bags").rglob("*.h5"):
        file.write_bytes(b"never read")
    with pytest.raises(ScmilError) as raised:
        studies.open_data(tmp_path / "bags", labels, **options)
    assert message in str(raised.value)


def test_bags_without_a_label_are_left_out_with_a_note(tmp_path: Path) -> None:
    export_bags(cohort(24, 2), tmp_path / "bags", "clam")
    labels = relabel(tmp_path / "bags", {"s03": ""})
    data = studies.open_data(tmp_path / "bags", labels, drop_unlabelled=True)
    assert len(data.bags) == 23
    assert data.notes == (
        "1 of 24 bags have no label and are left out.",
        "slides without a label (1 of 24): s03.",
    )


def test_missing_folders_and_missing_labels_are_reported(tmp_path: Path) -> None:
    with pytest.raises(ScmilError, match=r"unknown dataset 'musc1'. Did you mean 'musk1'"):
        studies.open_data("musc1")
    with pytest.raises(DataError, match="there is no such folder, table or data set"):
        studies.open_data(tmp_path / "nowhere")
    export_bags(cohort(4, 2), tmp_path / "bags", "clam")
    with pytest.raises(DataError, match=r"the bags have no labels. Give a table"):
        studies.open_data(tmp_path / "bags")


def test_labels_without_bags_and_merged_classes_are_noted_when_training(tmp_path: Path) -> None:
    label_of = {f"s{i}": ["tumour", "normal", "Tumour"][i % 3] for i in range(12)}
    files = {f"{slide_id}.pt": label for slide_id, label in label_of.items()}
    bags, labels = labelled_folder(tmp_path, files, {**label_of, "lost": "normal"})
    data = studies.open_data(bags, labels)
    assert "labelled slides without a bag (1 of 13): lost." in data.notes
    assert any("'Tumour' (4), 'tumour' (4) are one class" in note for note in data.notes)
    assert data.bags.classes == ("Tumour", "normal")


def test_two_bags_with_one_row_of_labels_are_rejected(tmp_path: Path) -> None:
    bags, labels = labelled_folder(
        tmp_path, dict.fromkeys(["a.pt", "a.ome.pt", "b.pt"], ""), {"a": "x", "b": "y"}
    )
    with pytest.raises(
        DataError, match=r"bags 'a' and 'a\.ome' have the same row 'a' in the table of labels"
    ):
        studies.open_data(bags, labels)


def test_a_label_that_differs_by_unicode_normalisation_is_reported(tmp_path: Path) -> None:
    files = dict.fromkeys(["Mu\u0308ller.pt", "a.pt", "b.pt"], "")
    bags, labels = labelled_folder(tmp_path, files, {"M\u00fcller": "x", "a": "x", "b": "y"})
    with pytest.raises(
        DataError,
        match=r"another Unicode normalisation, as 'M\\xfcller' for the bag 'Mu\\u0308ller'",
    ):
        studies.open_data(bags, labels)


def test_values_of_a_missing_label_are_given_on_the_command_line(tmp_path: Path) -> None:
    label_of = {f"s{i:02}": ["tumour", "normal"][i % 2] for i in range(16)} | {"s16": "unknown"}
    bags, labels = labelled_folder(
        tmp_path, {f"{slide_id}.pt": "" for slide_id in label_of}, label_of
    )
    command = [
        "train",
        str(bags),
        str(labels),
        "--aggregator",
        "mean",
        "--epochs",
        "1",
        "--out",
        str(tmp_path / "model"),
    ]
    rejected = CliRunner().invoke(app, command)
    assert isinstance(rejected.exception, DataError)
    assert "'unknown' in line 18" in str(rejected.exception)
    audited = CliRunner().invoke(app, ["audit", str(bags), str(labels), "--missing", "unknown"])
    assert "no-label: 1 bag without a label (s16)" in audited.output
    done = CliRunner().invoke(app, [*command, "--missing", "unknown", "--drop-unlabelled"])
    assert done.exit_code == 0, done.output
