"""Weights of cards: from a file, a URL or the hub, strictly, with what was loaded on record."""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import published_layouts as published
import pytest
import torch
from hub_server import Files, hub_server
from safetensors.torch import save_file
from tiny_card import TINY_CARD
from torch import Tensor

from scmil.core.fingerprint import sha256_of_file
from scmil.encoding import encoders
from scmil.encoding.encoders import card_of, hub, load_encoder
from scmil.encoding.encoders.builders import build_network, count_parameters
from scmil.encoding.encoders.card import Card
from scmil.encoding.encoders.load_card import load_card, load_network
from scmil.encoding.encoders.optimise import synthetic_tiles
from scmil.errors import MissingExtraError, WeightsError

OWN = TINY_CARD.replace("tile_px = 64", "tile_px = 32").replace("[1.0]", "[0.5, 0.25]")


@pytest.fixture(autouse=True)
def empty_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SCMIL_WEIGHTS", "SCMIL_OFFLINE", "TORCH_HOME", "HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def server() -> Iterator[tuple[str, Files, list[str]]]:
    with hub_server() as running:
        yield running


def own_card(folder: Path, *lines: str, name: str = "own") -> Card:
    path = folder / f"{name}.toml"
    path.write_text(OWN + "\n".join(lines))
    return card_of(str(path))


def own_state(seed: int = 3) -> dict[str, Tensor]:
    state = published.timm_state("", 48, 2, 16, 2, scales=False)
    return {name: value + 0.01 * seed for name, value in state.items()}


def saved(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".safetensors":
        save_file(content, path)
    else:
        torch.save(content, path)
    return path


def test_what_was_loaded_is_recorded(tmp_path: Path) -> None:
    card = own_card(tmp_path)
    path = saved(tmp_path / "given.pth", own_state())
    encoder = load_card(card, weights=path)
    network = load_network(card, own_state(), "own.pth")
    assert all(
        torch.equal(a, b)
        for a, b in zip(network.parameters(), encoder.network.parameters(), strict=True)
    )
    assert not any(value.requires_grad or value.is_meta for value in encoder.network.parameters())
    assert encoder.weights_source == f"given.pth, sha256 {sha256_of_file(path)}"
    assert encoder.details["encoder_file_sha256"] == sha256_of_file(path)
    assert encoder.details["encoder_card"] == "own, version 1"
    assert len(encoder.details["encoder_parameters_digest"]) == 64
    assert encoder.mpps == (0.5, 0.25)
    stored_in_half = saved(tmp_path / "half.pth", {k: v.half() for k, v in own_state().items()})
    half = load_card(card, weights=stored_in_half)
    assert {value.dtype for value in half.network.parameters()} == {torch.float32}


def test_a_change_of_the_input_changes_the_digest(tmp_path: Path) -> None:
    path = saved(tmp_path / "given.pth", own_state())
    plain = load_card(own_card(tmp_path), weights=path)
    (tmp_path / "own.toml").write_text(
        OWN.replace("resize_px = 32", "resize_px = 32\nmean = [0.5, 0.5, 0.5]")
    )
    other = load_card(card_of(str(tmp_path / "own.toml")), weights=path)
    assert plain.digest != other.digest
    key = "encoder_parameters_digest"
    assert plain.details[key] == other.details[key]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: {f"encoder.{k}": v for k, v in s.items()}, r"without the prefix 'encoder\.'"),
        (lambda s: {f"a.b.{k}": v for k, v in s.items()} | {"c": torch.ones(1)}, r"'a\.b\.'"),
        (lambda s: {k: v for k, v in s.items() if k != "norm.bias"}, r"trunk\.norm\.bias\. Exp"),
        (lambda s: {**s, "pos_embed": torch.ones(1, 10, 48)}, r"Other shapes: trunk\.pos_embed"),
        (lambda s: published.dinov2_state(48, 2, 16, 2, hidden=32), "Not expected"),
    ],
    ids=["prefix", "two prefixes", "incomplete", "resolution", "foreign"],
)  # fmt: skip
def test_a_file_that_does_not_fit_is_rejected_with_a_list(
    change: object, message: str, tmp_path: Path
) -> None:
    path = saved(tmp_path / "given.pth", change(own_state()))  # type: ignore[operator]
    with pytest.raises(WeightsError, match=rf"given\.pth: these are not the weights.*{message}"):
        load_card(own_card(tmp_path), weights=path)


def test_a_truncated_file_is_rejected(tmp_path: Path) -> None:
    for name in ("given.pth", "given.safetensors"):
        path = saved(tmp_path / name, own_state())
        path.write_bytes(path.read_bytes()[:-1000])
        with pytest.raises(WeightsError, match=r"cannot be read as weights|is damaged"):
            load_card(own_card(tmp_path), weights=path)


def test_a_missing_file_says_where_it_is_searched(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="no such file"):
        load_card(own_card(tmp_path), weights=tmp_path / "none.pth")
    with pytest.raises(WeightsError) as raised:
        load_encoder("uni2-h", offline=True)
    text = str(raised.value)
    assert "pytorch_model.bin is not on this computer, and scmil is offline" in text
    assert "https://huggingface.co/MahmoodLab/UNI2-h, where access has to be requested" in text
    assert str(tmp_path / "cache" / "scmil" / "weights" / "uni2-h") in text
    assert "SCMIL_WEIGHTS/uni2-h" in text


def test_files_with_common_names_are_kept_by_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = own_card(tmp_path)
    monkeypatch.setenv("SCMIL_WEIGHTS", str(tmp_path / "mine"))
    saved(tmp_path / "mine" / "own.pth", {"another": torch.ones(1)})  # not in the folder own/
    with pytest.raises(WeightsError, match="is not on this computer"):
        load_card(card)
    path = saved(tmp_path / "mine" / "own" / "own.safetensors", own_state())
    assert load_card(card).details["encoder_file_sha256"] == sha256_of_file(path)


def test_a_url_without_a_digest_records_it_on_the_first_download(
    tmp_path: Path, server: tuple[str, Files, list[str]]
) -> None:
    address, files, asked = server
    files["/own.pth"] = saved(tmp_path / "source.pth", own_state()).read_bytes()
    card = own_card(tmp_path, f'url = "{address}/own.pth"')
    load_card(card)
    load_card(card)
    assert asked == ["/own.pth"]
    path = tmp_path / "cache" / "scmil" / "weights" / "own" / "own.pth"
    assert path.with_name("own.pth.sha256").read_text().strip() == sha256_of_file(path)
    saved(path, own_state(4))
    with pytest.raises(WeightsError, match=r"not the published file.*Delete it"):
        load_card(card)


def test_a_known_md5_is_checked(tmp_path: Path, server: tuple[str, Files, list[str]]) -> None:
    address, files, _ = server
    files["/own.pth"] = saved(tmp_path / "source.pth", own_state()).read_bytes()
    card = own_card(tmp_path, f'url = "{address}/own.pth"', f'md5 = "{"0" * 32}"')
    with pytest.raises(WeightsError, match=r"expected 0+\. This is not the published file"):
        load_card(card)
    assert not (tmp_path / "cache" / "scmil" / "weights" / "own" / "own.pth").exists()


def test_the_hub_gives_a_file_and_keeps_it_in_its_own_cache(
    tmp_path: Path, server: tuple[str, Files, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, files, asked = server
    monkeypatch.setenv("HF_ENDPOINT", address)
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(hub.cache_folder()))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    content = saved(tmp_path / "source.pth", own_state()).read_bytes()
    files["/owner/model/resolve/main/own.pth"] = content
    card = own_card(tmp_path, 'hub = "owner/model"')
    assert load_card(card).details["encoder_file_sha256"] == hashlib.sha256(content).hexdigest()
    first = len(asked)
    assert load_card(card, offline=True).name == "own"  # from the cache
    assert len(asked) == first


@pytest.mark.parametrize(
    ("repository", "message"),
    [
        ("owner/gated", r"is gated, and your account has no access\. Request access on that page"),
        ("nobody/model", r"does not exist, or is not visible without a login"),
        ("owner/model", r"has no file own\.pth in this revision"),
    ],
)
def test_a_refusal_of_the_hub_is_explained(
    repository: str, message: str, tmp_path: Path, server: tuple[str, Files, list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("HF_ENDPOINT", server[0])
    with pytest.raises(WeightsError, match=rf"own: https://huggingface\.co/{repository} {message}"):
        load_card(own_card(tmp_path, f'hub = "{repository}"'))


def test_an_unreachable_hub_and_a_missing_package_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = own_card(tmp_path, 'hub = "owner/model"')
    import huggingface_hub

    def fail(*args: object, **options: object) -> None:
        raise huggingface_hub.errors.LocalEntryNotFoundError("no route to the hub")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    with pytest.raises(WeightsError, match=r"own\.pth cannot be downloaded from .*Try again"):
        load_card(card)
    # Its retries are not printed.
    assert huggingface_hub.utils.logging.get_verbosity() == logging.ERROR
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'scmil\[hub\]'"):
        load_card(card)


def test_the_status_sees_a_file_in_the_cache_of_the_hub(tmp_path: Path) -> None:
    def ready() -> bool:
        return next(entry.ready for entry in encoders.encoder_status() if entry.name == "phikon")

    assert not ready()
    folder = hub.cache_folder() / "models--owkin--phikon"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    saved(folder / "snapshots" / "abc" / "pytorch_model.bin", {})
    assert ready()


# ------------------------------------------------------ the smallest card of each builder, in full

SMALLEST = ["kaiko-vits16", "kimianet", "chief-ctranspath", "lunit-rn50-bt"]
# Layouts of which test_layouts, test_efficientnet_lite and others run small networks.
ELSEWHERE = ["gpfm", "efficientnet-lite0"]
# With two blocks instead of 12 or 24; test_cards counts the parameters of all of them.
DEEP = ["phikon", "hibou-b", "plip", "quiltnet-b-32", "conch", "keep", "conch-v1.5"]


def shallow_card(name: str) -> Card:
    card = card_of(name)
    shallow = replace(card, arguments={**card.arguments, "depth": 2})
    with torch.device("meta"):
        return replace(shallow, parameters=count_parameters(build_network(shallow)))


def test_each_builder_and_each_layout_of_tensors_is_run() -> None:
    built = [card for card in encoders._cards.values() if card.builder]
    run = [card_of(name) for name in (*SMALLEST, *DEEP, *ELSEWHERE)]
    assert {card.builder for card in run} == {card.builder for card in built}
    assert {card.weights.layout for card in run} == {card.weights.layout for card in built}


def published_state(card: Card) -> dict[str, Tensor]:
    """Tensors with the names, nesting and prefixes of the published file."""
    name = card.name
    if name == "phikon":
        return published.transformers_state(768, 2, 16, 14, dino=False, hidden=0)
    if name == "hibou-b":
        return published.dinov2_state(768, 2, 14, 16, hidden=2048, registers=4)
    if name in ("plip", "quiltnet-b-32"):
        state = published.clip_state(768, 2, 32, 7, out=512)
        return state if name == "plip" else published.to_open_clip(state)
    with torch.device("meta"):  # drawing random weights takes seconds
        shapes = build_network(card).state_dict()
    network = {
        key: torch.full(value.shape, 0.01, dtype=torch.float16) for key, value in shapes.items()
    }
    if name == "kimianet":
        renamed = {f"module.model.{k}": v for k, v in network.items()}
        return {
            **renamed,
            "module.fc_4.weight": torch.ones(30, 1024),
            "module.fc_4.bias": torch.ones(30),
        }
    if name == "conch":
        return {f"visual.{k}": v for k, v in network.items()} | {"text.cls_emb": torch.ones(3)}
    if name == "keep":
        head = {k.replace("projection.", "visual_head."): v for k, v in network.items()}
        return {k.replace("trunk.", "visual."): v for k, v in head.items()}
    return {
        k.removeprefix("trunk.") if name.startswith("kaiko") else k: v for k, v in network.items()
    }


@pytest.mark.parametrize(
    "name", [*SMALLEST, *(pytest.param(name, marks=pytest.mark.slow) for name in DEEP)]
)
def test_the_smallest_card_of_each_builder_loads_its_published_layout(
    name: str, tmp_path: Path
) -> None:
    card = shallow_card(name) if name in DEEP else card_of(name)
    state = published_state(card)
    nested = {"model": state} if name == "chief-ctranspath" else state
    path = saved(tmp_path / "given.pth", nested)
    encoder = load_card(card, weights=path)
    side = 224 if encoder.input_px is None else 256
    features = encoder(synthetic_tiles(side, count=1))
    assert features.shape == (1, card.output.width)
    assert features.isfinite().all()
    path.unlink()
    json.dumps(encoder.details)
