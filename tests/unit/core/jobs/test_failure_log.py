from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scmil.core.jobs.failure_log import FailureLog
from scmil.errors import DataError


def test_the_failure_log_loses_no_line_when_many_write_at_once(tmp_path: Path) -> None:
    code = "import sys\nfrom scmil.core.jobs.failure_log import FailureLog\n"
    code += "folder, name = sys.argv[1:]\n"
    code += "for i in range(15): FailureLog(folder).add(f'{name}{i}', 'stage', 'cause')"
    writers = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), name]) for name in "xyz"
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    assert sorted(f.slide for f in FailureLog(tmp_path).read()) == sorted(
        f"{name}{i}" for name in "xyz" for i in range(15)
    )


def test_a_failure_log_keeps_any_text(tmp_path: Path) -> None:
    failure_log = FailureLog(tmp_path)
    failure_log.add('sl"ide, ünï\udce9', "tile", "line one\n  line two, with a comma", "a,b.svs")
    [failure] = failure_log.read()
    assert failure[:3] == ('sl"ide, ünï\udce9', "tile", "line one line two, with a comma")
    assert failure.file == "a,b.svs"


@pytest.mark.parametrize(
    "content", [b"slide,cause\na,b\n", b"", b"slide,stage,cause,when,file\na,b\n"]
)
def test_a_damaged_failure_log_is_rejected_with_the_remedy(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "failures.csv").write_bytes(content)
    with pytest.raises(
        DataError,
        match=r"is not a table with the columns slide,stage,cause,when,file\. Correct it, or",
    ):
        FailureLog(tmp_path).read()


def test_a_failure_log_that_is_a_folder_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "failures.csv").mkdir()
    with pytest.raises(DataError, match="cannot be read"):
        FailureLog(tmp_path).read()
