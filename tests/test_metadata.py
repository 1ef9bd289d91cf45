"""The files that describe the project agree with each other."""

from __future__ import annotations

import contextlib
import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

import pytest
from not_covered import NOT_COVERED

import scmil

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
# What the core installs beside torch; `make dist` measures its size.
CORE = {
    "annotated-doc", "filelock", "h5py", "markdown-it-py", "mdurl", "numpy", "pygments", "rich",
    "safetensors", "shellingham", "threadpoolctl", "typer",
}  # fmt: skip


def find_required(lines: list[str]) -> set[str]:
    """The packages of these requirements and of their requirements; without extras and torch."""
    found: set[str] = set()
    waiting = list(lines)
    while waiting:
        line = waiting.pop()
        name = re.split(r"[\s<>=!~;(\[]", line.lower())[0]
        if ";" in line or name == "torch" or name in found:
            continue
        found.add(name)
        with contextlib.suppress(PackageNotFoundError):  # then its name is enough
            waiting += requires(name) or []
    return found


def test_the_core_needs_few_packages_beside_torch() -> None:
    assert find_required(PROJECT["dependencies"]) <= CORE


def test_the_citation_names_the_version_of_the_package() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"^version: (.*)$", citation, re.M) == [scmil.__version__]


def test_the_authors_are_the_same_everywhere() -> None:
    assert PROJECT["authors"] == [{"name": "scmil contributors"}]
    assert '- name: "scmil contributors"' in (ROOT / "CITATION.cff").read_text()
    assert "scmil contributors" in (ROOT / "LICENSE").read_text()


def test_every_python_of_the_classifiers_is_tested() -> None:
    named = {
        classifier.rpartition(" ")[2]
        for classifier in PROJECT["classifiers"]
        if re.search(r"Python :: 3\.\d+$", classifier)
    }
    tested = (ROOT / ".github" / "workflows" / "tests.yml").read_text()
    assert named == set(re.findall(r'"(3\.\d+)"', tested))
    assert f">={min(named, key=lambda v: int(v[2:]))}" == PROJECT["requires-python"]


def test_pre_commit_has_the_ruff_of_the_constraints() -> None:
    pinned = re.findall(r"^ruff==(.*)$", (ROOT / "constraints.txt").read_text(), re.M)
    config = (ROOT / ".pre-commit-config.yaml").read_text()
    assert re.findall(r"ruff-pre-commit\n    rev: v(.*)$", config, re.M) == pinned


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_call_targets_of_the_makefile(path: Path) -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M))
    called = set(re.findall(r"run: make (\w+)", path.read_text()))
    assert called
    assert called <= targets


def test_links_between_the_project_files_lead_to_files() -> None:
    for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "RELEASING.md"):
        text = (ROOT / name).read_text()
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
            assert (ROOT / target).exists(), f"{name}: {target}"


@pytest.mark.parametrize("start", NOT_COVERED)
def test_every_test_that_is_not_covered_exists(start: str) -> None:
    path, _, function = start.partition("::")
    place = ROOT / path
    assert place.is_dir() if path.endswith("/") else f"def {function}" in place.read_text()
