from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scmil.core.extras import import_extra
from scmil.demo.benchmark import benchmark_config
from scmil.errors import MissingExtraError, ScmilError
from scmil.stats.significance import corrected_t
from scmil.studies import runner as experiment
from scmil.studies.plan import make_plan


def test_a_module_that_is_there_is_given() -> None:
    import json.decoder

    assert import_extra("json.decoder", "slides") is json.decoder


@pytest.mark.parametrize("module", ["no_such_module", "no_such_module.part"])
def test_a_missing_module_is_reported_with_the_command_that_installs_it(module: str) -> None:
    with pytest.raises(
        MissingExtraError, match=r"'no_such_module'.*pip install 'scmil\[encoders\]'"
    ) as caught:
        import_extra(module, "encoders")
    assert isinstance(caught.value, ScmilError)
    assert isinstance(caught.value, ImportError)  # as `except ImportError` of others expects it
    assert caught.value.__suppress_context__


def test_a_missing_submodule_of_an_installed_package_is_reported_by_its_full_name() -> None:
    with pytest.raises(MissingExtraError, match=r"'json\.no_such_part'"):
        import_extra("json.no_such_part", "slides")


def importable(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: str) -> str:
    (folder / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


def test_a_failing_import_inside_a_module_keeps_its_own_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = importable(tmp_path, monkeypatch, "half_installed", "import its_missing_dependency")
    with pytest.raises(ModuleNotFoundError, match="its_missing_dependency") as caught:
        import_extra(name, "slides")
    assert not isinstance(caught.value, MissingExtraError)


def test_a_module_that_breaks_while_it_is_imported_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = importable(
        tmp_path, monkeypatch, "broken_library", "raise OSError('libopenslide.so.1: cannot open')"
    )
    with pytest.raises(OSError, match="libopenslide") as caught:
        import_extra(name, "slides")
    assert not isinstance(caught.value, ScmilError)


def test_a_run_without_scipy_is_rejected_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(benchmark_config("digits", folds=2, repeats=1, epochs=1, seed=0), "demo")
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'scmil\[statistics\]'"):
        experiment.run(plan, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_test_without_scipy_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'scmil\[statistics\]'"):
        corrected_t([0.1, 0.2, 0.15], test_share=0.1)
