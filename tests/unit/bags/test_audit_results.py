"""The audit of other tools' results names leaks and selection on the test split, and computes the
metrics again.
"""

from __future__ import annotations

import csv
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from other_results import (
    area,
    clam_folder,
    clam_predictions,
    clam_split,
    label_table,
    mil_baseline_folder,
    stamp_folder,
    stamp_outcomes,
    write_table,
)

from scmil.bags.audit_results import ResultsAudit, audit_results
from scmil.bags.labels import Labels, read_labels
from scmil.bags.result_folders import read_result_folder
from scmil.errors import DataError
from scmil.stats.small_samples import metric_intervals, wilson_interval


@pytest.fixture
def clam(tmp_path: Path) -> tuple[Path, Labels]:
    labels = clam_folder(tmp_path / "clam")
    return tmp_path / "clam", read_labels(label_table(tmp_path / "labels.csv", labels))


def errors(found: ResultsAudit) -> list[tuple[str, str]]:
    return [(each.code, each.sentence) for each in found.findings if each.severity == "error"]


def codes(found: ResultsAudit) -> set[str]:
    return {each.code for each in found.findings}


def test_a_cross_validation_without_faults_has_no_errors(clam: tuple[Path, Labels]) -> None:
    found = audit_results(*clam)
    assert found.ok
    assert (found.tool, found.folds) == ("clam", 2)
    assert codes(found) == {"pickle"}


def test_metrics_are_those_of_the_predictions_with_intervals_over_patients(
    clam: tuple[Path, Labels],
) -> None:
    found = audit_results(*clam)
    table = read_result_folder(clam[0]).predictions[0]
    y, scores = [int(own) for own in table.labels], table.probabilities[:, 1].tolist()
    rows = {(row.fold, row.metric): row for row in found.metrics}
    own = rows[0, "auc"]
    assert own.value == pytest.approx(area(y, scores)) == pytest.approx(own.claimed)
    patients = [clam[1].of(name)[1] for name in table.names]
    expected = metric_intervals(np.array(y), table.probabilities, 0.5, patients)["auc"]
    assert (own.low, own.high) == pytest.approx(tuple(expected))
    assert own.patients == len(set(patients)) == own.slides // 2
    everything = rows[None, "auc"]
    assert everything.value == pytest.approx((own.value + rows[1, "auc"].value) / 2)
    assert everything.high - everything.low < own.high - own.low
    assert "all folds, 40 tested of 20 patients: AUC" in "\n".join(found.lines())


def test_a_pickle_is_never_opened(
    clam: tuple[Path, Labels], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a pickle was opened")

    monkeypatch.setattr(pickle, "load", fail)
    monkeypatch.setattr(pickle, "loads", fail)
    [note] = [each for each in audit_results(*clam).findings if each.code == "pickle"]
    assert note.slides == (
        "results/exp_s1/split_0_results.pkl",
        "results/exp_s1/split_1_results.pkl",
    )
    assert "not opened, because unpickling can run code" in note.sentence


def test_a_patient_on_both_sides_is_named(clam: tuple[Path, Labels]) -> None:
    folder, labels = clam
    split = read_result_folder(folder).folds[0].subsets
    # s0 and s1 are of the patient p0: one of them moves to the training split.
    moved = {"train": [*split["train"], "s0"], "val": split["valid"], "test": split["test"][1:]}
    clam_split(folder / "results/exp_s1/splits_0.csv", moved)
    found = audit_results(folder, labels)
    leak = next(each for each in found.findings if each.code == "leak")
    assert leak.slides == ("p0",)
    assert "1 patients with different slides in the training and the test split of fold 0" in str(
        leak
    )
    assert not found.ok
    # Without patients the leak cannot be seen, and the audit says so.
    blind = audit_results(folder)
    assert "leak" not in codes(blind)
    assert "no-patient" in codes(blind)


def test_a_slide_on_both_sides_is_named(clam: tuple[Path, Labels]) -> None:
    folder, labels = clam
    split = read_result_folder(folder).folds[1].subsets
    both = {"train": [*split["train"], "s4"], "val": split["valid"], "test": split["test"]}
    clam_split(folder / "results/exp_s1/splits_1.csv", both)
    found = audit_results(folder, labels)
    assert ("leak", "1 slides in the training and the test split of fold 1") in errors(found)
    assert "trained-on" not in codes(found)  # it is in the test split too: one finding is enough


def test_the_same_validation_and_test_split_is_selection_on_the_test_split(
    clam: tuple[Path, Labels],
) -> None:
    folder, labels = clam
    split = read_result_folder(folder).folds[0].subsets
    same = {"train": split["train"], "val": split["test"], "test": split["test"]}
    clam_split(folder / "results/exp_s1/splits_0.csv", same)
    [(code, sentence)] = errors(audit_results(folder, labels))
    assert code == "selection"
    assert "validation and test split are the same in fold 0" in sentence


def test_slides_in_validation_and_test_are_selection_too(clam: tuple[Path, Labels]) -> None:
    folder, labels = clam
    split = read_result_folder(folder).folds[0].subsets
    partly = {"train": split["train"], "val": [*split["valid"], "s0"], "test": split["test"]}
    clam_split(folder / "results/exp_s1/splits_0.csv", partly)
    [(code, sentence)] = errors(audit_results(folder, labels))
    assert (code, "1 of 20 names in the test split of fold 0" in sentence) == ("selection", True)


def test_equal_metrics_of_validation_and_test_are_found_without_splits(tmp_path: Path) -> None:
    header = ["", "folds", "test_auc", "val_auc", "test_acc", "val_acc"]
    rows = [[0, 0, 0.91, 0.91, 0.8, 0.8], [1, 1, 0.87, 0.87, 0.75, 0.75]]
    write_table(tmp_path / "summary.csv", header, rows)
    [(code, sentence)] = errors(audit_results(tmp_path))
    assert code == "selection"
    assert "equal in every fold" in sentence


def test_a_claim_that_the_predictions_do_not_give_is_found(clam: tuple[Path, Labels]) -> None:
    folder, labels = clam
    path = folder / "results/exp_s1/summary.csv"
    first, second, *rest = path.read_text().splitlines()
    cells = second.split(",")
    cells[2] = "0.501"
    path.write_text("\n".join([first, ",".join(cells), *rest]))
    found = errors(audit_results(folder, labels))
    assert [code for code, _ in found] == ["claim", "claim"]  # of the fold and of the mean
    assert "auc of fold 0: the folder claims 0.501" in found[0][1]


def test_predictions_of_the_training_split_and_missing_ones_are_found(
    clam: tuple[Path, Labels],
) -> None:
    folder, labels = clam
    found = read_result_folder(folder)
    names = [*found.folds[0].subsets["train"][:2], *found.folds[0].subsets["test"][2:]]
    y = [labels.of(name)[0] or 0 for name in names]
    path = folder / "eval_results/EVAL_exp/fold_0.csv"
    clam_predictions(path, names, y, [0.3] * len(names))
    result = audit_results(folder, labels)
    assert ("trained-on", "2 predictions of fold 0 are of its training split") in errors(result)
    assert "2 of 20 names in the test split of fold 0 have no prediction" in str(result.findings)
    clam_predictions(path, [*names, names[0]], [*y, y[0]], [0.3] * (len(names) + 1))
    assert ("predicted-twice", "fold 0 predicts 1 names twice") in errors(
        audit_results(folder, labels)
    )


def test_other_labels_than_those_of_the_table_are_found(clam: tuple[Path, Labels]) -> None:
    folder, labels = clam
    table = read_result_folder(folder).predictions[0]
    y = [int(own) for own in table.labels]
    y[0] = 1 - y[0]
    scores = table.probabilities[:, 1].tolist()
    clam_predictions(folder / "eval_results/EVAL_exp/fold_0.csv", table.names, y, scores)
    found = [each for each in audit_results(folder, labels).findings if each.code == "label"]
    assert [each.slides for each in found] == [(table.names[0],)]


def test_boolean_splits_are_the_same_splits(tmp_path: Path) -> None:
    subsets = {"train": ["a", "b"], "val": ["c"], "test": ["d"]}
    clam_split(tmp_path / "one/splits_0.csv", subsets)
    clam_split(tmp_path / "one/splits_0_bool.csv", subsets, as_bool=True)
    assert read_result_folder(tmp_path / "one").folds[0].subsets == {
        "train": ["a", "b"],
        "valid": ["c"],
        "test": ["d"],
    }
    clam_split(tmp_path / "one/splits_0_bool.csv", {**subsets, "test": ["e"]}, as_bool=True)
    with pytest.raises(DataError, match="fold 0 has two different files"):
        read_result_folder(tmp_path / "one")


def test_monte_carlo_splits_are_no_leak(tmp_path: Path) -> None:
    clam_split(tmp_path / "splits_0.csv", {"train": ["a"], "val": ["b"], "test": ["c"]})
    clam_split(tmp_path / "splits_1.csv", {"train": ["b"], "val": ["a"], "test": ["c"]})
    found = audit_results(tmp_path)
    assert found.ok
    assert "This is no leak" in next(
        each.sentence for each in found.findings if each.code == "repeated-tests"
    )


def test_stamp_is_read_by_patient_and_its_selection_is_in_doubt(tmp_path: Path) -> None:
    stamp_folder(tmp_path)
    found = audit_results(tmp_path)
    assert found.ok
    [doubt] = [each for each in found.findings if each.code == "selection"]
    assert doubt.severity == "warning"
    assert "splits.json has no validation patients" in doubt.sentence
    rows = {(row.fold, row.metric): row for row in found.metrics}
    assert (rows[0, "auc"].patients, rows[None, "accuracy"].patients) == (12, 24)
    table = read_result_folder(tmp_path).predictions[0]
    assert table.classes == ("mutated", "wild")
    y = [int(label == "wild") for label in table.labels]
    assert rows[0, "auc"].value == pytest.approx(area(y, table.probabilities[:, 1].tolist()))


def test_stamps_survival_is_scored_within_each_fold(tmp_path: Path) -> None:
    stamp_outcomes(tmp_path, "survival")
    found = audit_results(tmp_path)
    assert found.ok
    rows = {(row.fold, row.metric): row for row in found.metrics}
    assert (rows[0, "c_index"].patients, rows[None, "c_index"].patients) == (19, 39)
    with (tmp_path / "split-1/patient-preds.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    pairs = [
        (float(a["pred_score"]) > float(b["pred_score"]))
        for a in table
        for b in table
        if a["event"] == "1" and float(a["time"]) < float(b["time"])
    ]
    assert rows[1, "c_index"].value == pytest.approx(np.mean(pairs))
    # The risks of the second fold are 100 higher: a concordance over both would be lower.
    mean = np.mean([rows[fold, "c_index"].value for fold in (0, 1)])
    assert rows[None, "c_index"].value == pytest.approx(mean)
    assert rows[None, "c_index"].low < mean < rows[None, "c_index"].high
    assert ("no-value", ("pat0",)) in [(each.code, each.slides) for each in found.findings]
    text = "\n".join(found.lines())
    assert "all folds, 39 tested of 39 patients: C index" in text
    assert "score intervals of the concordances" in text


def test_stamps_numbers_of_all_folds_are_one_sample(tmp_path: Path) -> None:
    stamp_outcomes(tmp_path, "regression")
    found = audit_results(tmp_path)
    rows = {(row.fold, row.metric): row for row in found.metrics}
    assert rows[None, "r2"].low < rows[None, "r2"].value < rows[None, "r2"].high
    assert rows[None, "mae"].patients == 39
    assert "R²" in "\n".join(found.lines())


def test_a_patient_on_both_sides_of_stamps_survival_is_named(tmp_path: Path) -> None:
    stamp_outcomes(tmp_path, "survival")
    page = json.loads((tmp_path / "splits.json").read_text())
    page["splits"][0]["train_patients"].append("pat2")
    (tmp_path / "splits.json").write_text(json.dumps(page))
    found = errors(audit_results(tmp_path))
    assert ("leak", "1 patients in the training and the test split of fold 0") in found


def test_predictions_of_survival_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    stamp_outcomes(tmp_path, "survival")
    path, header = (
        tmp_path / "split-0/patient-preds.csv",
        ["PATIENT", "pred_score", "time", "event"],
    )
    write_table(path, header, [["p", 0.5, 3, 2]])
    with pytest.raises(DataError, match=r"line 2: event = '2', but 1 \(event\) or 0 \(censored\)"):
        read_result_folder(tmp_path)
    write_table(path, header, [["p", "high", 3, 1]])
    with pytest.raises(DataError, match="line 2: 'high' is not a number"):
        read_result_folder(tmp_path)
    write_table(path, header, [["p", 0.5, "", 1]])
    with pytest.raises(DataError, match="no patient has an observed value and a prediction"):
        read_result_folder(tmp_path)
    write_table(path, ["PATIENT", "age", "pred", "loss"], [["p", 1.5, 2, 0.5]])
    with pytest.raises(DataError, match="predictions of several tasks"):
        read_result_folder(tmp_path)


def test_a_patient_on_both_sides_of_stamp_is_named(tmp_path: Path) -> None:
    stamp_folder(tmp_path)
    path = tmp_path / "splits.json"
    page = json.loads(path.read_text())
    page["splits"][0]["train_patients"].append("pat0")
    path.write_text(json.dumps(page))
    assert ("leak", "1 patients in the training and the test split of fold 0") in errors(
        audit_results(tmp_path)
    )


def test_mil_baseline_claims_get_an_interval_though_it_writes_no_predictions(
    tmp_path: Path,
) -> None:
    mil_baseline_folder(tmp_path)
    found = audit_results(tmp_path)
    assert (found.tool, found.folds, found.ok) == ("mil_baseline", 2, True)
    row = next(row for row in found.metrics if (row.fold, row.metric) == (1, "accuracy"))
    assert row.claimed == 0.6
    assert (row.low, row.high) == tuple(wilson_interval(0.6, 12))
    assert "accuracy not recomputed, no predictions; claimed 0.600" in "\n".join(found.lines())


def test_an_epoch_that_is_best_on_the_test_split_only_is_selection(tmp_path: Path) -> None:
    mil_baseline_folder(tmp_path, selected=3)
    found = errors(audit_results(tmp_path))
    assert [code for code, _ in found] == ["selection", "selection"]
    assert "the selected epoch 3 of fold 1 is the best of 3 for test_acc" in found[0][1]


def test_equal_metrics_in_every_epoch_are_selection(tmp_path: Path) -> None:
    mil_baseline_folder(tmp_path, folds=2)
    header = ["epoch", "val_acc", "test_acc"]
    path = tmp_path / "fold_1/Log_seed1_demo_AB_MIL.csv"
    write_table(path, header, [[1, 0.5, 0.5], [2, 0.7, 0.7]])
    [(_, sentence)] = errors(audit_results(tmp_path))
    assert "metrics of fold 1 are equal in every epoch" in sentence


def test_results_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a folder"):
        read_result_folder(tmp_path / "none")
    with pytest.raises(DataError, match="no results of CLAM"):
        read_result_folder(tmp_path)
    clam_split(tmp_path / "splits_0.csv", {"train": ["a"], "val": ["b"], "test": ["c"]})
    stamp = tmp_path / "split-0/patient-preds.csv"
    write_table(stamp, ["PATIENT", "KRAS", "pred"], [["p", "x", "x"]])
    with pytest.raises(DataError, match="results of CLAM and STAMP"):
        read_result_folder(tmp_path)
    (tmp_path / "splits_0.csv").unlink()
    with pytest.raises(DataError, match="no probabilities"):
        read_result_folder(tmp_path)
    header = ["PATIENT", "KRAS", "pred", "KRAS_a", "KRAS_b"]
    write_table(stamp, header, [["p", "c", "a", 0.5, 0.5]])
    with pytest.raises(DataError, match="the labels c have no column"):
        read_result_folder(tmp_path)
    write_table(stamp, header, [["p", "a", "a", "high", 0.5]])
    with pytest.raises(DataError, match="line 2: 'high' is not a probability"):
        read_result_folder(tmp_path)
    write_table(stamp, header[:4], [["p", "a", "a", 0.5]])
    with pytest.raises(DataError, match="1 rows with probabilities of 1 classes"):
        read_result_folder(tmp_path)


def test_two_trainings_in_a_folder_are_rejected(tmp_path: Path) -> None:
    mil_baseline_folder(tmp_path)
    log = tmp_path / "fold_1/Log_seed1_demo_AB_MIL.csv"
    (tmp_path / "fold_1/Log_seed2_demo_AB_MIL.csv").write_text(log.read_text())
    with pytest.raises(DataError, match="logs of several trainings"):
        read_result_folder(tmp_path)
