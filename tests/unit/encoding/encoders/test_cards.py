"""Cards are complete, agree with the published numbers, and wrong ones are rejected."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from scmil.encoding import encoders
from scmil.encoding.encoders import card as card_module
from scmil.encoding.encoders import card_of, load_encoder
from scmil.encoding.encoders.builders import build_network, count_parameters
from scmil.encoding.encoders.card import Card, all_cards, read_cards
from scmil.encoding.encoders.load_card import check_parameters
from scmil.errors import ConfigError, UnknownNameError, WeightsError

# Parameters, width of a token and prefix tokens, counted once with timm 1.0.30 from the published
# architecture and arguments, independently of the cards.
COUNTED = {
    "uni": (303350784, 1024, 1),
    "uni2-h": (681394176, 1536, 9),
    "virchow": (631229184, 1280, 1),
    "virchow2": (631239424, 1280, 5),
    "gigapath": (1134953984, 1536, 1),
    "h-optimus-0": (1134774272, 1536, 5),
    "h-optimus-1": (1134774272, 1536, 5),
    "kaiko-vits16": (21665664, 384, 1),
    "kaiko-vits8": (21670272, 384, 1),
    "kaiko-vitb16": (85798656, 768, 1),
    "kaiko-vitb8": (85807872, 768, 1),
    "kaiko-vitl14": (304370688, 1024, 5),
    "lunit-vits16": (21665664, 384, 1),
    "lunit-vits8": (21670272, 384, 1),
    "lunit-rn50-bt": (23508032, 2048, 0),
    "lunit-rn50-mocov2": (23508032, 2048, 0),
    "lunit-rn50-swav": (23508032, 2048, 0),
    "gpfm": (303227904, 1024, 1),
    "mstar": (303350784, 1024, 1),
    "resnet50-trunc": (8543296, 1024, 0),
    "dinov2-vitb14": (86579712, 768, 1),
}
# Millions of parameters and width, as published.
PUBLISHED = {
    "phikon": (85.8, 768),
    "phikon-v2": (303.4, 1024),
    "hibou-b": (85.7, 768),
    "hibou-l": (303.7, 1024),
    "h0-mini": (85.7, 1536),
    "plip": (87.8, 512),
    "ctranspath": (27.5, 768),
    "chief-ctranspath": (27.5, 768),
}
BUILT = [card for card in encoders._cards.values() if card.builder]
WRONG = {
    "widht = 3": r"widht: unknown key",
    'summary = "x"\n[output]\nwidth = 0': r"width: expected a positive number",
    'summary = "x"\n[output]\nwidth = 3\npool = "max"': r"pool 'max': expected network, cls",
    '[input]\ninterpolation = "nearest"': r"interpolation 'nearest': expected bilinear, bicubic",
    "[input]\nmean = [0.5, 0.5]": r"mean, std: expected three numbers",
    "[input]\nmean = [124, 117, 104]": r"mean, std: expected three numbers, 0 to 1",
    "[input]\nresize_px = 224\ncrop_px = 256": r"crop_px: larger than resize_px",
    "[input]\ntile_px = '256'": r"\[input\] tile_px = '256': expected int",
    "[input]\nmpp = 0.5": r"\[input\] mpp = 0.5: expected tuple",
    '[weights]\nsha256 = "123"': r"sha256: expected 64 hexadecimal digits",
    '[weights]\nurl = "ftp://a"': r"url: expected an https address",
    '[weights]\nhub = "uni"': r"hub: expected owner/name",
    '[weights]\nignore = "("': r"ignore: not a pattern",
    "[weights]\ngated = 1": r"gated = 1: expected bool",
    "parameters = true": r"parameters = True: expected int",
    "weights = 3": r"\[weights\]: expected a table",
    "arguments = 3": r"\[arguments\]: expected a table",
    "variants = 3": r"\[variants\]: expected one table for each variant",
    "[variants.cls]\nlicence = 3": r"\[variants.cls\] licence: only summary, parameters and keys",
    "": r"builder: missing; without one, reason must say why",
    "x = [": r"cannot be read as an encoder card",
}
OWN = """
summary = "A small network of ours"
builder = "timm"
architecture = "vit_tiny_patch16_224"
parameters = 5524416
[arguments]
dynamic_img_size = true
[input]
tile_px = 224
mpp = [0.5]
resize_px = 32
[output]
width = 192
pool = "cls"
prefix_tokens = 1
[weights]
file = "own.safetensors"
hint = "Ask us"
[variants.mean]
pool = "mean"
"""


def built(card: Card) -> torch.nn.Module:
    return _built(card.name) if card_of(card.name) is card else _build(card)


@cache
def _built(name: str) -> torch.nn.Module:
    """Without memory, and built once for all tests."""
    return _build(card_of(name))


def _build(card: Card) -> torch.nn.Module:
    with torch.device("meta"):
        return build_network(card)


@pytest.mark.parametrize("name", COUNTED)
def test_parameters_and_width_are_those_of_the_table(name: str) -> None:
    card, (parameters, width, prefix) = card_of(name), COUNTED[name]
    assert count_parameters(built(card)) == card.parameters == parameters
    assert card.output.width == width * (2 if card.output.pool == "cls+mean" else 1)
    assert card.output.prefix_tokens == prefix


@pytest.mark.parametrize("card", [c for c in BUILT if c.name not in COUNTED], ids=lambda c: c.name)
def test_the_other_cards_build_with_their_number_of_parameters(card: Card) -> None:
    check_parameters(card, built(card))
    if card.name in PUBLISHED:
        millions, width = PUBLISHED[card.name]
        assert (round(card.parameters / 1e6, 1), card.output.width) == (millions, width)


@pytest.mark.parametrize("card", BUILT, ids=lambda c: c.name)
def test_a_tile_gives_a_vector_of_the_width(card: Card) -> None:
    side = card.input.crop_px or card.input.resize_px or 256
    with torch.inference_mode():
        features = built(card).eval()(torch.empty(1, 3, side, side, device="meta"))
    assert features.shape == (1, card.output.width)


def test_at_least_forty_encoders_have_licence_place_and_citation() -> None:
    assert len({name.partition(":")[0] for name in encoders._cards}) >= 40
    for card in BUILT:
        shown = card.weights
        assert shown.url or shown.hub or shown.hint or shown.package, card.name
        assert card.licence.sentence()
        assert card.citation
        assert card.output.prefix_tokens > 0 or card.output.pool not in ("cls", "mean", "cls+mean")


def test_what_cannot_be_built_says_why_and_what_to_do() -> None:
    others = [card for card in encoders._cards.values() if not card.builder]
    assert len(others) >= 8
    for card in others:
        with pytest.raises(WeightsError, match=r"cannot be built by scmil\. .* scmil import"):
            load_encoder(card.name)


def test_a_wrong_number_of_parameters_is_found() -> None:
    from dataclasses import replace

    card = replace(card_of("kaiko-vits16"), parameters=1)
    with pytest.raises(WeightsError, match="has 21665664 parameters, but its card says 1"):
        check_parameters(card, built(card))


@pytest.mark.parametrize("text", WRONG)
def test_a_card_with_one_wrong_field_is_rejected(text: str, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=WRONG[text]):
        read_cards(path)


def test_all_problems_are_listed_at_once(tmp_path: Path) -> None:
    path = tmp_path / "Own.toml"
    path.write_text("widht = 3\n[input]\ntile_px = 0\n[licence]\nname = 3")
    with pytest.raises(ConfigError) as raised:
        read_cards(path)
    text = str(raised.value)
    for part in ("file name 'Own.toml'", "widht", "tile_px", "[licence] name", "summary: missing"):
        assert part in text


def test_a_card_of_the_user_by_file_folder_and_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "own.toml"
    path.write_text(OWN)
    encoder = load_encoder(str(path), random=0, precision="float32")
    assert (encoder.name, encoder.dim) == ("own, random weights of seed 0", 192)
    mean = load_encoder(f"{path}:mean", random=0, precision="float32")
    tiles = torch.zeros(1, 32, 32, 3, dtype=torch.uint8)
    assert mean.name.startswith("own:mean")
    assert not torch.allclose(mean(tiles), encoder(tiles))
    assert mean.details["encoder_parameters_digest"] == encoder.details["encoder_parameters_digest"]
    assert mean.digest != encoder.digest
    with pytest.raises(UnknownNameError, match=r"has no 'own:max'\. It has: own, own:mean"):
        load_encoder(f"{path}:max", random=0)
    for place in (path, tmp_path):
        monkeypatch.setenv("SCMIL_CARDS", str(place))
        assert {"own", "own:mean"} <= {card.name for card in all_cards()}
    monkeypatch.delenv("SCMIL_CARDS")
    point = SimpleNamespace(load=lambda: lambda: tmp_path)
    monkeypatch.setattr(card_module, "entry_points", lambda group: [point])
    assert "own" in {card.name for card in all_cards()}


def test_a_card_cannot_take_the_name_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "uni.toml").write_text(OWN)
    monkeypatch.setenv("SCMIL_CARDS", str(tmp_path))
    with pytest.raises(ConfigError, match=r"there is a card 'uni' already"):
        list(all_cards())
    monkeypatch.setenv("SCMIL_CARDS", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="does not exist"):
        list(all_cards())


def test_a_card_names_no_classes_but_known_ones(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(OWN.replace("dynamic_img_size = true", 'act_layer = "os.system"'))
    with pytest.raises(ConfigError, match=r"act_layer = 'os.system' is not one of SwiGLUPacked"):
        load_encoder(str(path), random=0)


def test_digests_of_earlier_versions_stay_valid() -> None:
    encoder = load_encoder("efficientnet-lite0", precision="float32")
    assert encoder.digest == "c20f044c4119369ec4ce1e6e6d425c87da7b54c95a155946cac3bc1375b4fab7"
    assert {name for name in encoders._cards if card_of(name).digest == "parameters"} == set(
        encoders.FIRST
    )
