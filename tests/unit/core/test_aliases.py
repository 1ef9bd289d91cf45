from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import scmil


@pytest.mark.parametrize("name", sorted(scmil._PUBLIC_MODULES))
def test_a_public_module_is_imported_by_its_short_name(name: str) -> None:
    module = importlib.import_module(f"scmil.{name}")
    assert module is getattr(scmil, name)
    assert module is importlib.import_module(f"scmil.{scmil._PUBLIC_MODULES[name]}")
    assert module.__spec__ is not None
    assert module.__spec__.name == module.__name__


def test_names_below_a_short_name_are_the_same_objects() -> None:
    from scmil.aggregators.abmil import ABMIL  # type: ignore[import-not-found]

    from scmil.models.aggregators.abmil import ABMIL as own

    assert ABMIL is own
    assert ABMIL.__module__ == "scmil.models.aggregators.abmil"


def test_a_name_that_does_not_exist_is_an_import_error() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"scmil\.nothing"):
        importlib.import_module("scmil.nothing")
    with pytest.raises(ModuleNotFoundError, match=r"scmil\.models\.aggregators\.nothing"):
        importlib.import_module("scmil.aggregators.nothing")


def test_importing_scmil_imports_no_torch() -> None:
    words = "import sys, scmil; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", words]).returncode == 0
