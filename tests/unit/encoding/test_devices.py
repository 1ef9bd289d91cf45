"""Several devices, with processes on the processor in their place."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from work_folders import SETTINGS, cohort

from scmil.bags.hdf5 import read_bag
from scmil.encoding.cohort import encode_slides, tile_slides
from scmil.encoding.devices import dispatch_to_devices, parse_devices
from scmil.encoding.encoders import load_encoder
from scmil.errors import OptionError


@pytest.mark.slow  # each process imports torch
def test_two_devices_give_the_bags_of_one(tmp_path: Path) -> None:
    encoder = load_encoder("timm:resnet10t", random=0, precision="float32")
    sources = cohort(tmp_path, "abc")
    bags, reports = [], []
    for number, devices in enumerate((None, ("cpu", "cpu"))):
        work = tmp_path / f"work{number}"
        tile_slides(sources, work, SETTINGS)
        events: list[tuple[str, str]] = []
        outcome = encode_slides(
            work,
            encoder,
            dispatch=dispatch_to_devices(devices) if devices else None,
            precision="float32",
            on_slide=lambda *event, events=events: events.append(event),
        )
        assert sorted(outcome.done) == ["a", "b", "c"]
        reports.append(sorted(events))
        paths = sorted((work / "bags").rglob("*.h5"))
        bags.append([read_bag(path).features for path in paths])
    assert reports[0] == reports[1] == [("a", "done"), ("b", "done"), ("c", "done")]
    for one, other in zip(*bags, strict=True):
        assert torch.allclose(one, other, atol=1e-3)


def test_devices_are_named_or_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert parse_devices("all") == ["cuda:0", "cuda:1"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(OptionError, match="finds no GPU on this computer"):
        parse_devices("all")
    with pytest.raises(OptionError, match="expected 'all', or names"):
        parse_devices(" ,")
