"""State dicts in files of torch.save, of both formats, are read without torch's unpickler."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from scmil.bags.formats.pt_files import tensors_in_pt
from scmil.errors import DataError


def saved(path: Path, value: Any, zipped: bool = True) -> Path:
    torch.save(value, path, _use_new_zipfile_serialization=zipped)
    return path


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before torch 1.6"])
def test_a_nested_state_dict_comes_back(tmp_path: Path, zipped: bool) -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    state = network.state_dict()
    value = {"epoch": 3, "state_dict": state, "parts": [state, (1, 2.5, None)]}
    with saved(tmp_path / "a.pt", value, zipped).open("rb") as file:
        read = tensors_in_pt(file)
    assert read["epoch"] == 3
    assert read["parts"][1] == [1, 2.5, None]
    for part in (read["state_dict"], read["parts"][0]):
        assert part.keys() == state.keys()
        assert all(torch.equal(part[name], state[name]) for name in state)


def test_views_of_one_storage_share_it(tmp_path: Path) -> None:
    both = torch.arange(12.0).reshape(3, 4)
    with saved(tmp_path / "a.pt", {"a": both[1:], "b": both.T}).open("rb") as file:
        read = tensors_in_pt(file)
    assert torch.equal(read["a"], both[1:])
    assert torch.equal(read["b"], both.T)


class Call:
    """An object whose pickle calls a function."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch called",)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_that_calls_a_function_is_rejected_and_not_run(
    tmp_path: Path, zipped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = saved(tmp_path / "a.pt", {"state_dict": {"a": torch.ones(2)}, "x": Call()}, zipped)
    with path.open("rb") as file, pytest.raises(DataError, match=r"system.*not run"):
        tensors_in_pt(file)
    assert not (tmp_path / "called").exists()


def test_an_object_that_contains_itself_is_rejected(tmp_path: Path) -> None:
    loop: list[Any] = []
    loop += [loop, loop]
    with (
        saved(tmp_path / "a.pt", loop).open("rb") as file,
        pytest.raises(DataError, match="nested more than"),
    ):
        tensors_in_pt(file)


def test_a_list_that_doubles_at_every_level_is_read_once(tmp_path: Path) -> None:
    value: list[Any] = [torch.ones(1)]
    for _ in range(30):
        value = [value, value]
    with saved(tmp_path / "a.pt", value).open("rb") as file:
        assert len(tensors_in_pt(file)) == 2


def test_tensors_that_are_far_larger_than_the_file_are_rejected(tmp_path: Path) -> None:
    large = torch.ones(1).expand(2**13, 2**14)  # 512 MiB of one number
    with (
        saved(tmp_path / "a.pt", {"a": large}).open("rb") as file,
        pytest.raises(DataError, match="would be"),
    ):
        tensors_in_pt(file)
