"""Messages of the command for weights that cannot be used, and for a wrong resolution."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import published_layouts as published
import pytest
import torch
from command import SCMIL, scmil
from hub_server import hub_server
from safetensors.torch import save_file
from tiny_card import TINY_CARD
from torch import Tensor

from scmil.encoding.encoders import check

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("shapely")
State = dict[str, Tensor]


@pytest.fixture(autouse=True)
def empty_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SCMIL_WEIGHTS", "SCMIL_OFFLINE", "TORCH_HOME", "HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(check, "SECONDS", 0.0)


def own_card(folder: Path, *lines: str) -> Path:
    path = folder / "own.toml"
    path.write_text(TINY_CARD + "\n".join(lines))
    return path


def own_state() -> State:
    return published.timm_state("", 48, 2, 16, 2, scales=False)


def refused(*words: object) -> str:
    """The message of a command that fails: one error, without a traceback."""
    done = scmil(*words, code=1)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return " ".join(done.stderr.split())


def checked(card: Path, *words: object) -> str:
    return refused("encoder", "check", card, *words)


def test_weights_that_fit_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "given.pth"
    torch.save(own_state(), path)
    done = scmil("encoder", "check", own_card(tmp_path), "--weights", path, "--device", "cpu")
    assert "own: 93840 parameters, as on its card" in done.stdout
    assert "given.pth, sha256" in done.stdout


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda s: {f"encoder.{k}": v for k, v in s.items()},
            [
                "They fit without the prefix 'encoder.'",
                "strip = ['encoder.'] below [weights]",
            ],
        ),
        (lambda s: {k: v for k, v in s.items() if k != "norm.bias"}, ["Missing: trunk.norm.bias."]),
        (
            lambda s: {**s, "pos_embed": torch.ones(1, 10, 48)},
            ["Other shapes: trunk.pos_embed (1, 10, 48) instead of (1, 5, 48)."],
        ),
        (
            lambda s: published.dinov2_state(48, 2, 16, 2, hidden=32),
            ["Missing: ", "Not expected: ", "Expected for own: the file own.pth (Ask us)."],
        ),
        (lambda s: {"a": "text"}, ["is not a dictionary of tensors"]),
    ],
    ids=["a wrong prefix", "incomplete", "another size", "foreign", "no tensors"],
)
def test_a_file_that_does_not_fit_says_why_and_what_is_expected(
    change: Callable[[State], object], words: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "given.pth"
    torch.save(change(own_state()), path)
    text = checked(own_card(tmp_path, 'hint = "Ask us"'), "--weights", path)
    for part in ("WeightsError", "given.pth", *words):
        assert part in text


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_a_truncated_file_says_so(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"given.{suffix}"
    torch.save(own_state(), path) if suffix == "pth" else save_file(own_state(), path)
    path.write_bytes(path.read_bytes()[:-1000])
    text = checked(own_card(tmp_path), "--weights", path)
    assert "it is damaged or incomplete" in text
    assert "Download the file again" in text


def test_a_missing_file_says_where_to_get_it_and_where_to_put_it(tmp_path: Path) -> None:
    text = checked(own_card(tmp_path), "--weights", tmp_path / "none.pth")
    assert "none.pth: no such file. Give an existing file with the weights." in text
    text = checked(own_card(tmp_path, 'hint = "Ask us"'))
    assert "own.pth is not on this computer, and it cannot be downloaded automatically" in text
    assert "Ask us (file own.pth), and put it into" in text
    assert "SCMIL_WEIGHTS/own, or give the file with --weights" in text
    text = refused("encoder", "check", "uni2-h", "--offline")
    assert "pytorch_model.bin is not on this computer, and scmil is offline" in text
    assert "https://huggingface.co/MahmoodLab/UNI2-h, where access has to be requested" in text


def test_a_gated_file_says_where_to_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hub_server() as (address, _, _):
        monkeypatch.setenv("HF_ENDPOINT", address)
        text = checked(own_card(tmp_path, 'hub = "owner/gated"', "gated = true"))
    assert "https://huggingface.co/owner/gated is gated, and your account has no access." in text
    assert "Request access on that page" in text
    assert "hf auth login" in text


@pytest.mark.slow
def test_a_gated_file_says_so_in_a_new_process(tmp_path: Path) -> None:
    # Here, modules that another test imported are there, which a user has not imported.
    card = own_card(tmp_path, 'hub = "owner/gated"', "gated = true")
    with hub_server() as (address, _, _):
        done = subprocess.run(
            [SCMIL, "encoder", "check", card],
            env={**os.environ, "HF_ENDPOINT": address},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "owner/gated is gated, and your account has no access." in " ".join(done.stderr.split())


def test_encode_gives_the_same_messages(tmp_path: Path) -> None:
    (tmp_path / "slides").mkdir()
    Image.new("RGB", (300, 200), (200, 80, 160)).save(tmp_path / "slides" / "pink.png")
    path, work = tmp_path / "given.pth", tmp_path / "work"
    torch.save({f"encoder.{k}": v for k, v in own_state().items()}, path)
    common = ("--out", work, "--encoder", own_card(tmp_path), "--mpp-of", 0.5, "--preset", "biopsy")
    text = refused("encode", tmp_path / "slides", *common, "--weights", path)
    assert "They fit without the prefix 'encoder.'" in text
    torch.save(own_state(), path)
    done = scmil("encode", tmp_path / "slides", *common, "--weights", path, "--mpp", 0.5)
    text = " ".join(done.stderr.split())
    assert "own expects 1 µm per pixel, but the tiles have 0.5" in text
    assert "objects appear 2 times as large" in text
