"""Weights are found where the user puts them, are the published ones, and are all used."""

from __future__ import annotations

import io
import os
import pickle
import socket
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from scmil.core.fingerprint import sha256_of_file
from scmil.core.registry import Registry
from scmil.encoding import encoders
from scmil.encoding.encoders import Encoder, EncoderInfo, weights
from scmil.encoding.encoders.weights import Checkpoint, digest, load_state, obtain, read_state
from scmil.errors import DataError, OptionError, UnknownNameError, WeightsError

URL = "https://example.org/toy-1234.pth"


@pytest.fixture(autouse=True)
def nothing_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("SCMIL_WEIGHTS", "SCMIL_OFFLINE", "TORCH_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def no_network(*args: object) -> None:
        raise OSError("a test asked for the network")

    monkeypatch.setattr(socket.socket, "connect", no_network)


def network() -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2), nn.BatchNorm1d(2))


def content(state: dict[str, Any] | None = None) -> bytes:
    file = io.BytesIO()
    torch.save(network().state_dict() if state is None else state, file)
    return file.getvalue()


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def checkpoint(tmp_path: Path, url: str = URL) -> tuple[Checkpoint, bytes]:
    data = content()
    sha256 = sha256_of_file(put(tmp_path / "original", data))
    return Checkpoint("toy-1234.pth", sha256, url, hint="Ask the authors"), data


# Where they are found


def test_the_places_are_looked_through_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy, data = checkpoint(tmp_path)
    of_torch = put(tmp_path / "cache" / "torch" / "hub" / "checkpoints" / toy.file, data)
    assert obtain("toy", toy) == of_torch
    downloaded = put(tmp_path / "cache" / "scmil" / "weights" / toy.file, data)
    assert obtain("toy", toy) == downloaded
    monkeypatch.setenv("SCMIL_WEIGHTS", str(tmp_path / "mine"))
    mine = put(tmp_path / "mine" / toy.file, data)
    assert obtain("toy", toy, offline=True) == mine
    assert obtain("toy", toy, given=tmp_path / "original") == tmp_path / "original"


def test_safetensors_of_the_same_name_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy, _ = checkpoint(tmp_path)
    monkeypatch.setenv("SCMIL_WEIGHTS", str(tmp_path))
    save_file(network().state_dict(), tmp_path / "toy-1234.safetensors")
    assert obtain("toy", toy) == tmp_path / "toy-1234.safetensors"


def test_a_file_with_the_published_name_and_another_content_is_rejected(tmp_path: Path) -> None:
    toy, data = checkpoint(tmp_path)
    put(tmp_path / "cache" / "scmil" / "weights" / toy.file, data[:-1])
    with pytest.raises(
        WeightsError,
        match=f"not the published file of weights of toy .*expected {toy.sha256}.*Delete it",
    ):
        obtain("toy", toy)


def test_a_folder_that_does_not_exist_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCMIL_WEIGHTS", str(tmp_path / "nowhere"))
    with pytest.raises(WeightsError, match=r"SCMIL_WEIGHTS = .* is not a folder"):
        obtain("toy", checkpoint(tmp_path)[0])


def test_what_is_nowhere_is_downloaded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy, data = checkpoint(tmp_path)
    asked: list[tuple[str, str]] = []

    def serve(url: str, path: Path, sha256: str) -> None:
        asked.append((url, sha256))
        put(path, data)

    monkeypatch.setattr(weights, "download", serve)
    assert (
        obtain("toy", toy)
        == obtain("toy", toy)
        == tmp_path / "cache" / "scmil" / "weights" / toy.file
    )
    assert asked == [(URL, toy.sha256)]


@pytest.mark.parametrize("variable", ["1", "yes", None])
def test_offline_says_which_file_from_where_with_which_hash_goes_where(
    variable: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable:
        monkeypatch.setenv("SCMIL_OFFLINE", variable)
    with pytest.raises(WeightsError) as refusal:
        encoders.load_encoder("resnet18", offline=None if variable else True)
    message = str(refusal.value)
    assert "resnet18-f37072fd.pth is not on this computer, and scmil is offline" in message
    assert "https://download.pytorch.org/models/resnet18-f37072fd.pth" in message
    assert "f37072fd47e89c5e827621c5baffa7500819f7896bbacec160b1a16c560e07ec" in message
    assert str(tmp_path / "cache" / "scmil" / "weights") in message
    assert "SCMIL_WEIGHTS" in message


def test_a_failed_download_says_what_else_can_be_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise DataError(f"{URL}: cannot be downloaded (no route).")

    monkeypatch.setattr(weights, "download", fail)
    monkeypatch.setenv("SCMIL_OFFLINE", "0")
    with pytest.raises(
        WeightsError,
        match=r"toy: .*no route\)\. Download https://example.org/toy-1234.pth on a computer",
    ):
        obtain("toy", checkpoint(tmp_path)[0])


def test_ctranspath_has_no_address_and_says_where_to_get_it() -> None:
    with pytest.raises(
        WeightsError,
        match=r"it cannot be downloaded automatically\. .*Google Drive.*ctranspath\.pth",
    ):
        encoders.load_encoder("ctranspath")


def test_the_status_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def resnet() -> encoders.EncoderStatus:
        return next(entry for entry in encoders.encoder_status() if entry.name == "resnet18")

    assert not resnet().ready
    assert resnet().remedy.startswith(
        "It is downloaded on first use. Without internet access: Download https://"
    )
    monkeypatch.setenv("SCMIL_OFFLINE", "1")
    assert resnet().remedy.startswith("Download https://")
    file = put(tmp_path / "cache" / "scmil" / "weights" / "resnet18-f37072fd.pth", b"")
    assert (resnet().ready, resnet().where, resnet().remedy) == (True, str(file), "")
    monkeypatch.setattr(encoders, "find_spec", lambda name: None)
    assert (resnet().ready, resnet().remedy) == (False, "pip install 'scmil[encoders]'")


def test_wrong_names_and_wishes_are_rejected() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'resnet18'"):
        encoders.load_encoder("resnet")
    with pytest.raises(OptionError, match="were both given"):
        encoders.load_encoder("resnet18", "a.pth", random=0)


def test_an_encoder_of_another_package_is_given_what_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outside: Registry[Encoder] = Registry("encoder")
    outside.register("colour", "the mean colour")(
        lambda: Encoder("colour", 2, network().eval(), "", "none")
    )
    monkeypatch.setattr(encoders, "registry", outside)
    assert encoders.load_encoder("colour", offline=True).name == "colour"
    with pytest.raises(OptionError, match="unexpected keyword argument 'weights'"):
        encoders.load_encoder("colour", "a.pth")
    assert [(entry.name, entry.ready, entry.where) for entry in encoders.encoder_status()] == [
        ("colour", True, "another package")
    ]


# How they are read


def test_pth_and_safetensors_hold_the_same_weights(tmp_path: Path) -> None:
    state = network().state_dict()
    torch.save(state, tmp_path / "a.pth")
    save_file(state, tmp_path / "a.safetensors")
    for name in ("a.pth", "a.safetensors"):
        read = read_state(tmp_path / name)
        assert read.keys() == state.keys()
        assert all(torch.equal(read[key], state[key]) for key in state)


@pytest.mark.parametrize("wrap", [{"model": ...}, {"epoch": 3, "state_dict": ...}])
def test_a_state_inside_a_training_checkpoint_is_found(
    tmp_path: Path, wrap: dict[str, Any]
) -> None:
    parallel = {f"module.{name}": value for name, value in network().state_dict().items()}
    wrapped = {key: parallel if value is ... else value for key, value in wrap.items()}
    put(tmp_path / "a.pth", content(wrapped))
    assert read_state(tmp_path / "a.pth").keys() == network().state_dict().keys()


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("evil-was-here"),))


def test_a_file_that_would_run_code_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"weight": Evil()}, tmp_path / "a.pth")
    with pytest.raises(WeightsError, match="would run code when it is read, and was not loaded"):
        read_state(tmp_path / "a.pth")
    assert not (tmp_path / "evil-was-here").exists()


@pytest.mark.parametrize("name", ["a.pth", "a.safetensors"])
@pytest.mark.parametrize("damaged", [b"", b"<html>moved</html>", content()[:500]])
def test_a_damaged_file_is_rejected(tmp_path: Path, name: str, damaged: bytes) -> None:
    with pytest.raises(
        WeightsError, match=r"a\.\w+ (is damaged|cannot be read as weights: it is damaged)"
    ) as raised:
        read_state(put(tmp_path / name, damaged))
    assert "Download the file again" in str(raised.value)
    assert "weights_only" not in str(raised.value)  # torch's advice to load it without protection


def test_what_holds_no_weights_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="no such file"):
        read_state(tmp_path / "nowhere.pth")
    with pytest.raises(WeightsError, match="is not a dictionary of tensors"):
        read_state(put(tmp_path / "a.pth", content({"weight": 3})))


def test_weights_that_are_a_pipe_a_bomb_or_without_values_are_rejected(tmp_path: Path) -> None:
    for name in ("pipe.pth", "pipe.safetensors"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(
            WeightsError, match=rf"{name} cannot be read.*not a regular file, but a pipe"
        ):
            read_state(tmp_path / name)
    for tensor in (torch.ones(2, 3, device="meta"), torch.eye(3).to_sparse()):
        with pytest.raises(WeightsError, match=r"a\.pth: weight is sparse or has no values"):
            read_state(put(tmp_path / "a.pth", content({"weight": tensor})))
    with zipfile.ZipFile(tmp_path / "bomb.pth", "w", zipfile.ZIP_DEFLATED) as archive:
        for part in range(17):
            archive.writestr(f"archive/data/{part}", bytes(2**24))
    with pytest.raises(WeightsError, match=r"bomb\.pth .*a decompression bomb"):
        read_state(tmp_path / "bomb.pth")


# That each has its place


@pytest.mark.parametrize("zipped", [False, True])
def test_a_small_file_cannot_ask_for_gigabytes(tmp_path: Path, zipped: bool) -> None:
    pickled = b"\x80\x02cbuiltins\nbytearray\n(" + pickle.dumps(10**10, 2)[2:-1] + b"tR."
    path = tmp_path / "weights.pt"
    if zipped:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("weights/data.pkl", pickled)
            archive.writestr("weights/version", "3\n")
    else:
        path.write_bytes(pickled)
    with pytest.raises(WeightsError, match=r"weights\.pt .*it calls bytearray"):
        read_state(path)


@pytest.mark.parametrize("zipped", [False, True])
def test_weights_are_read_in_both_formats_of_torch(tmp_path: Path, zipped: bool) -> None:
    state = nn.Linear(3, 2).state_dict()
    torch.save(state, tmp_path / "a.pth", _use_new_zipfile_serialization=zipped)
    read = read_state(tmp_path / "a.pth")
    assert read.keys() == state.keys()
    assert all(torch.equal(read[name], value) for name, value in state.items())


def test_weights_that_fit_are_put_in() -> None:
    giver, taker = network(), network()
    load_state(taker, giver.state_dict() | {"head.weight": torch.ones(1)}, r"head\.", "a.pth")
    assert digest(taker) == digest(giver)


def test_a_file_without_counters_of_batches_is_complete() -> None:
    state = {
        name: value for name, value in network().state_dict().items() if "num_batches" not in name
    }
    loaded = network()
    load_state(loaded, state, r"$.", "a.pth")
    values = loaded.state_dict()
    assert all(torch.equal(values[name], value) for name, value in state.items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"2.bias": None}, r"Missing: 2\.bias\.$"),
        ({"more": torch.ones(1)}, r"Not expected: more\.$"),
        ({"2.bias": torch.ones(5)}, r"Other shapes: 2\.bias \(5,\) instead of \(2,\)\.$"),
        ({"2.bias": None, "2.b": torch.ones(2)}, r"Missing: 2\.bias\. Not expected: 2\.b\.$"),
        ({f"extra{i}": torch.ones(1) for i in range(5)}, r"extra0, extra1, extra2 and 2 more\.$"),
    ],
)
def test_weights_of_another_network_are_rejected(
    change: dict[str, Tensor | None], message: str
) -> None:
    state = network().state_dict() | change
    with pytest.raises(
        WeightsError, match=rf"a\.pth: these are not the weights of this network\. .*{message}"
    ):
        load_state(
            network(),
            {name: value for name, value in state.items() if value is not None},
            r"$.",
            "a.pth",
        )


def test_the_digest_changes_with_any_weight_and_only_then() -> None:
    original = network()
    first = digest(original)
    original(torch.zeros(4, 3, 2, 2))  # training mode: counts a batch and moves the running mean
    moved = digest(original)
    assert moved != first
    original.eval()(torch.zeros(4, 3, 2, 2))
    original[3].num_batches_tracked += 1
    assert digest(original) == moved
    with torch.no_grad():
        original[2].weight[0, 0] += 1e-7 + original[2].weight[0, 0].abs() * 1e-6
    assert digest(original) != moved


def test_other_seeds_have_other_digests(tmp_path: Path) -> None:
    info = EncoderInfo(dim=2, checkpoint=checkpoint(tmp_path)[0], needs="torch")
    one, same, other = (
        encoders.assemble("toy", info, network, random=seed).digest for seed in (1, 1, 2)
    )
    assert one == same != other


def test_an_encoder_is_assembled_from_a_file(tmp_path: Path) -> None:
    toy, data = checkpoint(tmp_path)
    path = put(tmp_path / "own.pth", data)
    info = EncoderInfo(dim=2, checkpoint=toy, needs="torch", mean=(0, 0, 0), std=(1, 1, 1))
    encoder = encoders.assemble("toy", info, network, weights=path)
    expected = network().eval()
    expected.load_state_dict(read_state(path))
    tiles = torch.randint(256, (2, 8, 8, 3), dtype=torch.uint8)
    assert torch.allclose(encoder(tiles), expected(tiles.permute(0, 3, 1, 2) / 255), atol=1e-6)
    assert (encoder.name, encoder.weights_source) == ("toy", f"own.pth, sha256 {toy.sha256}")
    assert encoder.digest == digest(expected)
