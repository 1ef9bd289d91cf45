"""Reading a run directory, and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from synthetic_run import EVIL, small_run

from scmil.errors import DataError, ScmilError
from scmil.report import (
    read_run,
    verdict,
    write_report,
)
from scmil.report.markdown_latex import write_markdown
from scmil.report.page import write_page


def test_finished_failed_and_missing_runs_are_listed(tmp_path: Path) -> None:
    run = read_run(small_run(tmp_path, failed=[(EVIL, "fox")], missing=[("ABMIL + SC", "fox")]))
    assert len(run.finished) == 4
    assert run.failed == {"fox--method-2": "ValueError: no <b>luck</b>"}
    assert [planned.name for planned in run.missing] == ["fox--method-1"]
    assert verdict(run).startswith("Unfinished: 4 of 6 runs have results. 1 failed.")
    assert "unfinished: 4 of 6 runs have results" in write_page(run, [])


def test_leakage_free_protocols_come_first(run: Path) -> None:
    assert read_run(run).protocols == ["last", "nested", "test-tuned"]
    assert read_run(run).leakage_free == ["last", "nested"]


def test_a_run_that_finished_after_a_failure_is_not_failed(tmp_path: Path) -> None:
    small_run(tmp_path)
    (tmp_path / "cells" / "fox--method-0" / "failed.json").write_text('{"error": "earlier"}')
    assert read_run(tmp_path).failed == {}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "experiment.json",
            None,
            "does not exist, expected a run directory written by `scmil run`",
        ),
        ("experiment.json", "{", "experiment.json: not readable as JSON"),
        (
            "experiment.json",
            '{"format": "scmil-run-9"}',
            "format 'scmil-run-9', expected 'scmil-run-1'",
        ),
        ("experiment.json", "[]", "format None, expected"),
        ("experiment.json", '{"format": "scmil-run-1"}', "experiment.json: KeyError 'arms'"),
        ("results.csv", None, "results.csv: the file does not exist. Run `scmil run`"),
        ("results.csv", "cell,dataset\n", "results.csv: without the column 'arm'"),
        ("folds.csv", None, "folds.csv: the file does not exist"),
        (
            "folds.csv",
            "cell,dataset,arm,protocol,repeat,fold,accuracy\n",
            "folds.csv: 0 folds of .*, expected 10",
        ),
        (
            "folds.csv",
            "cell,dataset,arm,protocol,repeat,fold,accuracy\na,b\n",
            "line 2 has 2 fields, expected 7",
        ),
        (
            "folds.csv",
            "dataset,arm,protocol,repeat,fold,accuracy\nd,a,p,0,0,\n",
            "line 2, accuracy: a number is missing",
        ),
        (
            "folds.csv",
            "dataset,arm,protocol,repeat,fold,accuracy\nd,a,p,0,0,x\n",
            "line 2, accuracy: 'x' is not a number",
        ),
        ("folds.csv", "\x00\udcff", "folds.csv: not readable as CSV"),
        ("cells/fox--method-0/predictions.csv", None, "predictions.csv: the file does not exist"),
        (
            "cells/fox--method-0/predictions.csv",
            "protocol,repeat,bag,label,threshold,p0,p1\n",
            "0 predictions by .*, expected 40",
        ),
        ("cells/fox--method-0/history.csv", None, "history.csv: the file does not exist"),
        ("cells/fox--method-2/failed.json", "{}", "failed.json: not readable as"),
    ],
)
def test_the_error_names_a_missing_or_damaged_file(
    tmp_path: Path, name: str, content: str | None, message: str
) -> None:
    small_run(tmp_path, failed=[(EVIL, "fox")])
    path = tmp_path / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(DataError, match=message) as error:
        write_report(tmp_path)
    assert str(tmp_path) in str(error.value)
    assert isinstance(error.value, ScmilError)
    assert not list(tmp_path.glob("*report*"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"arms": [{"name": "A", "against": "B"}]},
            "method 'A' is compared with 'B', which is not listed",
        ),
        (
            {"datasets": ["musk1"]},
            "run 'fox--method-0' has a method or data set that is not listed",
        ),
        ({"arms": 3}, "experiment.json: TypeError"),
    ],
)
def test_an_inconsistent_experiment_is_rejected(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    plan = small_run(tmp_path) / "experiment.json"
    plan.write_text(json.dumps({**json.loads(plan.read_text()), **change}))
    with pytest.raises(DataError, match=message):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"cell": "../../secret"}, "run '../../secret' is not the name of a folder"),
        ({"arm": "ABMIL + SC"}, "two runs have the same method and the same data set"),
        (
            {"cell": "renamed"},
            "results.csv: line 2: run 'musk1--method-0' is not in experiment.json",
        ),
    ],
)
def test_inconsistent_runs_are_rejected(
    tmp_path: Path, cells: dict[str, str], message: str
) -> None:
    path = small_run(tmp_path) / "experiment.json"
    plan = json.loads(path.read_text())
    plan["cells"][0] |= cells
    path.write_text(json.dumps(plan))
    with pytest.raises(DataError, match=message):
        read_run(tmp_path)


def test_costs_and_patients_are_shown_where_they_are_known(tmp_path: Path) -> None:
    small_run(tmp_path, datasets=["musk1"])
    assert read_run(tmp_path).by_patient == {}
    (tmp_path / "costs.csv").write_text(
        "cell,multiply_adds,memory_mib\nmusk1--method-0,1234567,88.5\n"
    )
    header, *lines = (tmp_path / "results.csv").read_text().splitlines()
    patients = [line.replace(",20,", ",10,", 1) + ",patient" for line in lines]
    text = "\n".join([f"{header},level", *(f"{line},slide" for line in lines), *patients])
    (tmp_path / "results.csv").write_text(text + "\n")
    run = read_run(tmp_path)
    assert {result.bags for result in run.results.values()} == {20}
    assert {result.bags for result in run.by_patient.values()} == {10}
    page = write_page(run, [])
    assert "1\N{NARROW NO-BREAK SPACE}234\N{NARROW NO-BREAK SPACE}567" in page
    assert "By patient" in page
    assert "| 1,234,567 | 93 | 88 |" in write_markdown(run, [])
