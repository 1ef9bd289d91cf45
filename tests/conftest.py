"""Shapes are types: every function of scmil that names shapes is checked against them while the
tests run.
"""

from __future__ import annotations

import os

# For this process, the workers of pytest-xdist and the commands that tests start. Two workers share
# two cores: further threads of OpenMP and OpenBLAS would only wait for each other, at full load.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Compiled files are kept, so that each process that a test starts does not compile scmil again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

from pathlib import Path

import pytest
from jaxtyping import install_import_hook

CHECKED = [
    "scmil.sparse_coding.equations",
    "scmil.sparse_coding.layer",
    "scmil.sparse_coding.released",
    "scmil.models.aggregators",
    "scmil.bags.bag",
]
install_import_hook(CHECKED, "beartype.beartype")

TESTS = Path(__file__).parent
# As doctests they would be imported by their name, which is the same for all.
collect_ignore_glob = ["*conftest.py"]
os.environ.setdefault("COLUMNS", "120")

import torch  # noqa: E402  (after the hook)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


FOLDERS = {"e2e": pytest.mark.e2e, "browser": pytest.mark.browser}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests in tests/e2e and tests/browser have the marker of that name, and do not count for the
    coverage: it states what the tests of functions and classes reach, and slows them down by half.
    """
    for item in items:
        for folder, marker in FOLDERS.items():
            if TESTS / folder in item.path.parents:
                item.add_marker(marker)
                item.add_marker(pytest.mark.no_cover)


def pytest_configure() -> None:
    torch.set_num_threads(1)  # two workers share two cores
