"""`scmil audit --results` audits the results of another tool."""

from __future__ import annotations

import json
from pathlib import Path

from command import scmil
from other_results import clam_folder, clam_split, label_table


def test_the_report_has_metrics_beside_the_claims(tmp_path: Path) -> None:
    table = label_table(tmp_path / "labels.csv", clam_folder(tmp_path / "clam"))
    text = scmil("audit", table, "--results", tmp_path / "clam").stdout
    assert "results of CLAM" in text
    assert "; claimed 0." in text
    assert "Wilson's score interval" in text
    page = json.loads(scmil("audit", table, "--results", tmp_path / "clam", "--json").stdout)
    assert page["ok"]
    assert {row["fold"] for row in page["metrics"]} == {0, 1, None}


def test_errors_exit_with_1(tmp_path: Path) -> None:
    clam_folder(tmp_path / "clam")
    path = tmp_path / "clam/results/exp_s1/splits_0.csv"
    clam_split(path, {"train": ["s0", "s4"], "val": ["s8"], "test": ["s0"]})
    assert "1 slides in the" in scmil("audit", "--results", tmp_path / "clam", code=1).stdout


def test_bags_beside_results_are_rejected(tmp_path: Path) -> None:
    error = scmil("audit", tmp_path, "--results", tmp_path, code=1).stderr
    assert "with --results no bags are read" in error
    assert "nothing to audit" in scmil("audit", code=1).stderr
