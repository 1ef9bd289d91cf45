"""scmil encoder, scmil ls encoders, and the tiles that scmil encode takes from a card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_card import TINY_CARD
from typer.testing import CliRunner, Result

from scmil.bags.hdf5 import read_bag
from scmil.cli import app
from scmil.encoding.encoder_tiles import choose_tile
from scmil.encoding.encoders import Encoder, card_of, check, load_encoder
from scmil.errors import OptionError, UnknownNameError, WeightsError

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("shapely")
OWN = f"""{TINY_CARD}hint = "Ask us"
[licence]
name = "MIT"
commercial = true
"""


def scmil(*words: object, code: int = 0) -> Result:
    done = CliRunner().invoke(app, list(map(str, words)))
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done


def page_of(*words: object) -> Any:
    return json.loads(scmil(*words, "--json").stdout)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.toml"
    path.write_text(OWN)
    return path


def test_the_page_of_an_encoder_says_what_a_user_has_to_know() -> None:
    text = " ".join(scmil("encoder", "uni2-h").stdout.split())
    for words in (
        "1536 numbers per tile: the class token",
        "256 px at 0.5 microns per pixel, resized to 224 px (bilinear)",
        "681 million parameters, 2.7 GB",
        "gated: request access on that page, then log in with: hf auth login",
        "CC-BY-NC-ND 4.0: no commercial use; models trained on the features fall under it too",
        "no; downloaded on first use, once you have access and are logged in. Without internet",
        "TRIDENT uni_v2 is the same",
        "scmil encode SLIDES --out WORK --encoder uni2-h",
    ):
        assert words in text
    text = " ".join(scmil("encoder", "virchow2").stdout.split())
    assert "at 0.5 microns per pixel (also 0.25, 1, 2)" in text
    assert "virchow2:cls" in text
    assert "resized to 256 px (bicubic), cropped to 224 px" in " ".join(
        scmil("encoder", "gigapath").stdout.split()
    )
    assert "scmil import" in scmil("encoder", "musk").stdout
    assert "no; downloaded on first use. Without" in " ".join(
        scmil("encoder", "kaiko-vits16").stdout.split()
    )
    text = " ".join(scmil("encoder", "ctranspath").stdout.split())
    assert "downloaded on first use" not in text
    for name in ("prost40m", "pathorchestra", "quiltnet-b-16-pmb"):
        assert "Not certain:" in " ".join(scmil("encoder", name).stdout.split())


def test_in_a_narrow_terminal_an_address_is_wrapped_and_not_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = "".join(scmil("encoder", "kaiko-vits16").stdout.split())
    assert f"from{card_of('kaiko-vits16').weights.url}(sha256" in text


def test_the_page_as_json() -> None:
    page = page_of("encoder", "virchow2:cls")
    assert (page["output"]["width"], page["weights"]["hub"]) == (1280, "paige-ai/Virchow2")
    assert {"stamp", "trident"} <= {entry["tool"] for entry in page["other_tools"]}
    assert page["licence"]["sentence"]


def test_wrong_words_are_rejected() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'uni2-h'"):
        scmil("encoder", "uni2h")
    with pytest.raises(OptionError, match="expected one name, or 'check' and one name"):
        scmil("encoder", "uni", "conch")
    with pytest.raises(OptionError, match="need: scmil encoder check uni"):
        scmil("encoder", "uni", "--random", 0)


def test_check_builds_loads_and_measures(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "SECONDS", 0.0)
    page = page_of("encoder", "check", own, "--random", 0, "--device", "cpu")
    assert page["parameters"] == page["expected_parameters"] == 93840
    assert (page["width"], len(page["features_digest"]), page["device"]) == (48, 64, "cpu")
    assert page["tiles_per_second"] > 0
    assert page["megabytes"] > 10
    again = page_of("encoder", "check", own, "--random", 0, "--device", "cpu")
    assert again["features_digest"] == page["features_digest"]
    assert (
        "93840 parameters, as on its card" in scmil("encoder", "check", own, "--random", 0).stdout
    )
    with pytest.raises(WeightsError, match=r"own\.pth is not on this computer"):
        scmil("encoder", "check", own, "--offline")


def test_ls_lists_width_resolution_licence_and_access() -> None:
    rows = {row["name"]: row for row in page_of("ls", "encoders")}
    assert len({name.partition(":")[0] for name in rows}) >= 40
    uni = rows["uni2-h"]
    assert (uni["dim"], uni["tile"], uni["gated"]) == ("1536", "256 px at 0.5 µm", True)
    assert (uni["licence"], uni["weights"]) == ("CC-BY-NC-ND 4.0", "by request")
    assert rows["virchow2"]["tile"] == "224 px at 0.5, 0.25, 1, 2 µm"
    assert rows["kaiko-vits16"]["weights"] in ("download", "by hand")
    assert rows["musk"]["weights"] == "by request"
    assert rows["phaet"]["weights"] == "not available"


def slide(folder: Path) -> Path:
    folder.mkdir()
    Image.new("RGB", (600, 400), (200, 80, 160)).save(folder / "pink.png")
    return folder


@pytest.mark.slow
def test_encode_takes_the_tiles_of_the_card(own: Path, tmp_path: Path) -> None:
    slides, work = slide(tmp_path / "slides"), tmp_path / "work"
    common = ("--mpp-of", 0.5, "--preset", "biopsy", "--random", 0, "--precision", "float32")
    done = scmil("encode", slides, "--out", work, "--encoder", own, *common)
    assert "warning" not in done.stderr
    [path] = (work / "bags").glob("*/pink.h5")
    provenance = read_bag(path).provenance
    assert (provenance["size_px"], provenance["mpp"]) == (64, 1.0)
    assert provenance["encoder_card"] == "own, version 1"
    assert len(provenance["encoder_parameters_digest"]) == 64
    # Another encoder in the same folder takes the tiles that are there, and says so.
    done = scmil("encode", slides, "--out", work, "--encoder", "kaiko-vits16", *common)
    assert "expects tiles of 256 px, but the tiles have 64 px" in done.stderr
    assert "expects 0.5 µm per pixel, but the tiles have 1" in done.stderr


def test_options_of_the_user_come_before_the_card(own: Path, tmp_path: Path) -> None:
    slides = slide(tmp_path / "slides")
    done = scmil(
        "encode", slides, "--out", tmp_path / "work", "--encoder", own, "--mpp-of", 0.5,
        "--preset", "biopsy", "--random", 0, "--size", 32, "--mpp", 0.5,
    )  # fmt: skip
    assert "expects 1 µm per pixel, but the tiles have 0.5" in done.stderr
    [path] = (tmp_path / "work" / "bags").glob("*/pink.h5")
    assert read_bag(path).provenance["size_px"] == 32


def test_an_encoder_without_a_card_does_not_change_the_tiles(tmp_path: Path) -> None:
    from torch import nn

    plain = Encoder("plain", 3, nn.Identity(), "", "", size_px=96, mpp=2.0)
    assert choose_tile(plain, tmp_path) == (256, 0.5)
    assert choose_tile(load_encoder("kimianet", random=0, precision="float32"), tmp_path) == (
        1000,
        0.5,
    )
    assert choose_tile(load_encoder("resnet18", random=0, precision="float32"), tmp_path) == (
        256,
        0.5,
    )
