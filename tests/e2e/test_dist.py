"""The wheel contains what the installed package needs; `make dist` also installs and uses it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from check_dist import check_content, requirements

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not find_spec("build"):
        pytest.skip("the package build is not installed")
    copy = tmp_path_factory.mktemp("source")
    shutil.copytree(
        ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    done = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", str(copy)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    [wheel] = (copy / "dist").glob("*.whl")
    return wheel


def test_the_wheel_has_code_types_lists_and_the_viewer_and_nothing_else(wheel: Path) -> None:
    check_content(wheel)


def test_a_wheel_without_its_types_is_rejected(wheel: Path, tmp_path: Path) -> None:
    poor = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(poor, "w") as part:
        for name in whole.namelist():
            if not name.endswith("py.typed"):
                part.writestr(name, whole.read(name))
    with pytest.raises(SystemExit, match=r"not in the wheel: scmil/py\.typed"):
        check_content(poor)


def test_the_core_requires_no_large_package_but_torch(wheel: Path) -> None:
    names = {re.split(r"[<>=!~ ]", line)[0] for line in requirements(wheel)}
    small = {"safetensors", "typer", "rich", "h5py", "filelock", "threadpoolctl"}
    assert names == {"numpy", "torch"} | small
