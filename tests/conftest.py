"""Shapes are types: the functions of scmil that name shapes are checked against them while the
tests run. `MILModel.forward` is not: it rejects wrong bags with messages of its own.
"""

from __future__ import annotations

import gc
import importlib
import os
import pkgutil

# For this process, the workers of pytest-xdist and the commands that tests start. Two workers share
# two cores: further threads of OpenMP and OpenBLAS would only wait for each other, at full load.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Compiled files are kept, so that each process that a test starts does not compile scmil again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
from jaxtyping import install_import_hook
from not_covered import is_covered

CHECKED = [
    "scmil.sparse_coding.data_dictionaries",
    "scmil.sparse_coding.equations",
    "scmil.sparse_coding.layer",
    "scmil.sparse_coding.released",
    "scmil.models.aggregators",
    "scmil.models.objectives",
    "scmil.models.target_losses",
    "scmil.bags.bag",
]
install_import_hook(CHECKED, "shape_checker.check_types")

TESTS = Path(__file__).parent
# As doctests they would be imported by their name, which is the same for all.
collect_ignore_glob = ["*conftest.py"]
os.environ.setdefault("COLUMNS", "120")

import torch  # noqa: E402  (after the hook)

import scmil  # noqa: E402
from scmil.training.randomness import seed_generators  # noqa: E402


@pytest.fixture(autouse=True)
def seeded() -> None:
    seed_generators(0)


@pytest.fixture
def without_shape_checks() -> Iterator[None]:
    """For tests of what a user sees, who has no checks: error messages, and `torch.compile`."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


# Tests whose subject is not a statistic: what they compute has intervals of fewer resamples.
FEW_RESAMPLES = [TESTS / name for name in ("e2e", "browser", "unit/cli", "unit/studies")]
RESAMPLES = 100


@pytest.fixture(scope="module", autouse=True)
def resample_less(request: pytest.FixtureRequest) -> Iterator[None]:
    """At most 100 bootstrap resamples outside of the tests of statistics: a third of the time of
    the tests of studies was spent on 1 000 to 2 000 of them. Other processes have all of them: a
    module that compares their numbers with those of this one sets ALL_RESAMPLES.
    """
    everything = getattr(request.module, "ALL_RESAMPLES", False)
    if everything or not any(folder in request.path.parents for folder in FEW_RESAMPLES):
        yield
        return
    from scmil.stats import bootstrap

    sizes = bootstrap._block_sizes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            bootstrap, "_block_sizes", lambda units, draws: sizes(units, min(draws, RESAMPLES))
        )
        yield


@pytest.fixture(scope="session", autouse=True)
def write_without_fsync() -> Iterator[None]:
    """No test turns the power off, and waiting for the disk takes longer than many of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda file: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def draw_textures_once() -> Iterator[None]:
    """Synthetic slides of this process differ in their scene and colours, and share their textures,
    a third of the time of painting and encoding a small cohort.
    """
    from scmil.slides.synthetic import slide, textures

    @lru_cache(maxsize=16)
    def draw(mpp: float, needed: textures.Needed) -> textures.Materials:
        return textures.draw_materials(mpp, 0, needed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slide, "draw_materials", lambda mpp, seed, needed: draw(mpp, needed))
        yield


@pytest.fixture(scope="session", autouse=True)
def leave_garbage() -> Iterator[None]:
    """A run collects garbage and returns free memory to the system before it measures its peak
    memory. In this large process that takes longer than to train a tiny model.
    """
    from scmil.core import memory
    from scmil.studies import cell

    class FromPresent(memory.PeakMemory):
        def __init__(self) -> None:
            self._start = None
            if memory.STATUS.is_file():
                self._start = memory.read_memory_table(memory.STATUS)["VmRSS"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cell, "PeakMemory", FromPresent)
        yield


MARKED = {"e2e": pytest.mark.e2e, "browser": pytest.mark.browser}


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Reading ten thousand tests takes twice as long while coverage is measured. What it has to see
    is the import of every module.
    """
    controller = _coverage(session.config)
    if controller is None:
        return (yield)
    for module in pkgutil.walk_packages(scmil.__path__, "scmil."):
        importlib.import_module(module.name)
    controller.pause()
    try:
        return (yield)
    finally:
        controller.resume()


def _coverage(config: pytest.Config) -> Any:
    """What pauses the measurement in this process, or None."""
    plugin = config.pluginmanager.getplugin("_cov")
    return getattr(plugin, "cov_controller", None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests in tests/e2e and tests/browser have the marker of that name."""
    for item in items:
        if not is_covered(item.nodeid):
            item.add_marker(pytest.mark.no_cover)
        for folder, marker in MARKED.items():
            if TESTS / folder in item.path.parents:
                item.add_marker(marker)


@contextmanager
def _paused(item: pytest.Item) -> Iterator[None]:
    """pytest-cov measures nothing during the call of such a test; here, during its fixtures."""
    controller = _coverage(item.config) if item.get_closest_marker("no_cover") else None
    if controller is None:
        yield
        return
    controller.pause()
    try:
        yield
    finally:
        controller.resume()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    with _paused(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    with _paused(item):
        return (yield)


def pytest_collection_finish() -> None:
    """The objects of ten thousand collected tests are no garbage: without them a collection, which
    each training makes before it measures its memory, takes 10 instead of 400 milliseconds.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # by default it runs after every 700 new objects


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)  # two workers share two cores
    # Here, since pytest imports the class of a filter in pyproject.toml before the hook above and
    # before coverage is measured.
    config.addinivalue_line("filterwarnings", "ignore::scmil.sparse_coding.layer.StepWarning")
