"""One run: its metrics follow from its predictions, by slide and by patient."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from study_cases import plan_of_folder, plan_of_table, read_rows

from scmil.studies.runner import run

pytestmark = pytest.mark.slow  # models are trained


def test_results_follow_from_the_predictions(table: Path, tmp_path: Path) -> None:
    run(plan_of_table(table), tmp_path / "out", jobs=1)
    for row in read_rows(tmp_path / "out" / "results.csv"):
        predictions = [
            p
            for p in read_rows(tmp_path / "out/cells" / row["cell"] / "predictions.csv")
            if p["protocol"] == row["protocol"]
        ]
        folds: dict[tuple[str, str], list[float]] = {}
        for p in predictions:
            hit = (float(p["p1"]) > float(p["threshold"])) == (p["label"] == "1")
            folds.setdefault((p["repeat"], p["fold"]), []).append(float(hit))
        assert float(row["accuracy"]) == pytest.approx(
            np.mean([np.mean(hits) for hits in folds.values()]), abs=1e-6
        )


def test_a_folder_of_another_tool_is_a_data_set_and_has_rows_for_patients(
    clam_folder: Path, tmp_path: Path
) -> None:
    assert run(plan_of_folder(clam_folder), tmp_path / "out", jobs=1).failed == {}
    results = read_rows(tmp_path / "out" / "results.csv")
    assert [
        (row["protocol"], row["level"], row["bags"]) for row in results if row["arm"] == "SC"
    ] == [
        ("last", "slide", "24"),
        ("nested", "slide", "24"),
        ("last", "patient", "12"),
        ("nested", "patient", "12"),
    ]
    predictions = [
        p
        for p in read_rows(tmp_path / "out/cells/clam--sc/predictions.csv")
        if p["protocol"] == "last"
    ]
    hits: dict[str, list[float]] = {}
    for patient in {int(p["bag"][1:]) // 2 for p in predictions}:
        slides = [p for p in predictions if int(p["bag"][1:]) // 2 == patient]
        right = (np.mean([float(p["p1"]) for p in slides]) > 0.5) == (slides[0]["label"] == "1")
        hits.setdefault(slides[0]["fold"], []).append(float(right))
    row = next(
        row
        for row in results
        if row["arm"] == "SC" and (row["protocol"], row["level"]) == ("last", "patient")
    )
    assert float(row["accuracy"]) == pytest.approx(
        np.mean([np.mean(each) for each in hits.values()]), abs=1e-6
    )


def test_a_table_with_three_classes_and_one_without_labels(table: Path, tmp_path: Path) -> None:
    header, *lines = table.read_text().splitlines()
    three = [line.split(",") for line in lines]
    for number, fields in enumerate(three):
        fields[1] = str(number // 4 % 3)
    table.write_text("\n".join([header, *(",".join(fields) for fields in three)]))
    plan = plan_of_table(table, protocol={"folds": 2})
    assert run(plan, tmp_path / "three", jobs=1).failed == {}
    assert "p2" in read_rows(tmp_path / "three/cells/bags--sc/predictions.csv")[0]
    for fields in three[:4]:
        fields[1] = ""
    table.write_text("\n".join([header, *(",".join(fields) for fields in three)]))
    failed = run(plan, tmp_path / "unlabelled", jobs=1).failed
    assert failed["bags--plain"].startswith(
        "DataError: bags without a label (1 of 24): b0. Label them,"
    )


def test_slides_without_a_label_are_left_out_only_on_request(
    clam_folder: Path, tmp_path: Path
) -> None:
    lines = (clam_folder / "labels.csv").read_text().splitlines()
    (clam_folder / "labels.csv").write_text("\n".join(lines[:-4]))
    plan = plan_of_folder(clam_folder, protocol={"folds": 2})
    failed = run(plan, tmp_path / "rejected", jobs=1).failed
    assert (
        "bags without a label (4 of 24): s20, s21, s22, s23. Label them, or leave them out"
        in failed["clam--plain"]
    )
    plan = plan_of_folder(clam_folder, protocol={"folds": 2}, data={"drop_unlabelled": True})
    assert run(plan, tmp_path / "dropped", jobs=1, only="*--plain").failed == {}
    assert read_rows(tmp_path / "dropped" / "results.csv")[0]["bags"] == "20"


def test_every_run_records_its_cost(table: Path, tmp_path: Path) -> None:
    run(plan_of_table(table, protocol={"selection": ["last"]}), tmp_path / "out", jobs=1)
    plain, coded = read_rows(tmp_path / "out" / "costs.csv")
    assert int(coded["multiply_adds"]) > int(plain["multiply_adds"]) > 0
    assert int(coded["parameters"]) > int(plain["parameters"])
    assert all(float(row["seconds"]) > 0 for row in (plain, coded))
