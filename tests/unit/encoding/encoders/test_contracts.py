"""Every card against a table of the published contracts, which was written down apart from them.

The table holds what the authors' code and other tools state about input, output and access. A dash
means that they do not state it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from scmil.encoding import encoders
from scmil.encoding.encoders import card_of
from scmil.encoding.encoders.card import Card

COLOURS: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "half": ((0.5,) * 3, (0.5,) * 3),
    "bioptimus": ((0.707223, 0.578729, 0.703617), (0.211883, 0.230117, 0.177517)),
    "hibou": ((0.7068, 0.5755, 0.722), (0.195, 0.2316, 0.1816)),
    "lunit": ((0.70322989, 0.53606487, 0.66096631), (0.21716536, 0.26081574, 0.20723464)),
    "genbio": ((0.697, 0.575, 0.728), (0.188, 0.240, 0.187)),
    "rudolf": ((0.7072, 0.5787, 0.7036), (0.2119, 0.2301, 0.1775)),
    "lite": ((127 / 255,) * 3, (128 / 255,) * 3),
}
# Tile in px, microns per pixel, resized to, cropped to, interpolation, colours, pooling, width,
# gated, commercial use.
CONTRACTS = """
uni               256  0.5            224  0    bilinear  imagenet   cls         1024  yes  no
uni2-h            256  0.5            224  0    bilinear  imagenet   cls         1536  yes  no
conch             512  0.5            448  0    bicubic   clip       pooler      512   yes  no
conch:projected   512  0.5            448  0    bicubic   clip       projection  512   yes  no
conch-v1.5        512  0.5            448  0    bilinear  imagenet   pooler      768   yes  no
virchow           224  0.5            224  0    bicubic   imagenet   cls+mean    2560  yes  -
virchow:cls       224  0.5            224  0    bicubic   imagenet   cls         1280  yes  -
virchow2          224  0.5,0.25,1,2   224  0    bicubic   imagenet   cls+mean    2560  yes  no
virchow2:cls      224  0.5,0.25,1,2   224  0    bicubic   imagenet   cls         1280  yes  no
gigapath          256  0.5            256  224  bicubic   imagenet   cls         1536  yes  no
h-optimus-0       224  0.5            224  0    bicubic   bioptimus  cls         1536  -    yes
h-optimus-1       224  0.5            224  0    bicubic   bioptimus  cls         1536  yes  no
h0-mini           224  0.5            224  0    -         bioptimus  cls+mean    1536  yes  no
h0-mini:cls       224  0.5            224  0    -         bioptimus  cls         768   yes  no
phikon            224  0.5            224  0    bilinear  imagenet   cls         768   no   no
phikon-v2         224  0.5            224  0    -         imagenet   cls         1024  no   no
ctranspath        -    1              224  0    bilinear  imagenet   network     768   no   no
chief-ctranspath  256  1              224  0    bilinear  imagenet   network     768   -    no
hibou-b           224  0.5            224  0    bicubic   hibou      cls         768   yes  yes
hibou-l           224  0.5            224  0    bicubic   hibou      cls         1024  yes  yes
kaiko-vits16      256  0.5            224  0    -         half       cls         384   no   no
kaiko-vits8       256  0.5            224  0    -         half       cls         384   no   no
kaiko-vitb16      256  0.5            224  0    -         half       cls         768   no   no
kaiko-vitb8       256  0.5            224  0    -         half       cls         768   no   no
kaiko-vitl14      256  0.5            224  0    -         half       cls         1024  no   no
midnight-12k      224  0.5,0.25,1,2   224  0    -         half       cls+mean    3072  -    yes
midnight-12k:cls  224  0.5,0.25,1,2   224  0    -         half       cls         1536  -    yes
openmidnight      224  0.5            224  0    -         imagenet   cls         1536  yes  yes
lunit-vits16      224  0.5            224  0    -         lunit      cls         384   no   no
lunit-vits8       224  0.5            224  0    -         lunit      cls         384   no   no
lunit-rn50-bt     -    -              224  0    -         lunit      network     2048  no   no
lunit-rn50-mocov2 -    -              224  0    -         lunit      network     2048  no   no
lunit-rn50-swav   -    -              224  0    -         lunit      network     2048  no   no
gpfm              512  0.25           224  0    bicubic   imagenet   cls         1024  no   no
musk              384  0.5,0.25,1     384  0    bicubic   half       cls         2048  yes  no
keep              256  0.5            224  0    bicubic   imagenet   projection  768   no   -
mstar             256  0.5            224  0    -         imagenet   cls         1024  yes  -
plip              -    -              224  0    -         clip       projection  512   no   no
quiltnet-b-32     -    -              224  0    bicubic   clip       projection  512   no   yes
quiltnet-b-16     -    -              224  0    bicubic   clip       projection  512   no   yes
quiltnet-b-16-pmb -    -              224  0    bicubic   clip       projection  512   no   yes
retccl            -    1              256  0    -         imagenet   network     2048  no   no
kimianet          1000 0.5            0    0    -         imagenet   network     1024  no   no
resnet50-trunc    256  -              224  0    bilinear  imagenet   network     1024  no   yes
dinov2-vitb14     -    -              224  0    -         imagenet   cls         768   no   yes
genbio-pathfm     224  0.5            224  0    bilinear  genbio     -           4608  no   -
rudolfv-2         224  0.5,0.25,1,2   224  0    bicubic   rudolf     cls+mean    3072  -    -
rudolfv-2-b       224  0.5,0.25,1,2   224  0    bicubic   rudolf     cls+mean    1536  -    -
rudolfv-2-s       224  0.5,0.25,1,2   224  0    bicubic   rudolf     cls+mean    768   -    -
phaet             224  0.5            224  0    -         -          -           1024  -    -
mascaret          224  0.5            224  0    -         -          -           1536  -    -
isight            -    0.5            336  0    bicubic   clip       mean        1024  -    -
prost40m          224  0.5            224  0    -         -          cls         384   no   -
pathorchestra     224  -              224  0    -         -          cls         1024  yes  no
resnet18          256  -              0    0    -         imagenet   network     512   no   yes
swin              256  -              224  0    -         imagenet   network     768   no   yes
efficientnet-lite0 256 -              0    0    -         lite       network     1280  no   yes
"""
KEYS = ["tile", "mpp", "resize", "crop", "interpolation", "colours", "pool", "width"]
KEYS += ["gated", "commercial"]
TABLE = {
    name: dict(zip(KEYS, values, strict=True))
    for name, *values in map(str.split, CONTRACTS.strip().splitlines())
}


def stated(card: Card) -> dict[str, str]:
    """The contract of a card in the words of the table."""
    shown = card.input
    yes_no: dict[bool | None, str] = {True: "yes", False: "no", None: "-"}
    colours = (pytest.approx(shown.mean), pytest.approx(shown.std))
    return {
        "tile": str(shown.tile_px),
        "mpp": ",".join(f"{value:g}" for value in shown.mpp) or "-",
        "resize": str(shown.resize_px),
        "crop": str(shown.crop_px),
        "interpolation": shown.interpolation,
        "colours": next((name for name, pair in COLOURS.items() if colours == pair), "others"),
        "pool": card.output.pool,
        "width": str(card.output.width),
        "gated": yes_no[card.weights.gated],
        "commercial": yes_no[card.licence.commercial],
    }


def differences(card: Card) -> list[str]:
    expected, found = TABLE[card.name], stated(card)
    return [key for key in KEYS if expected[key] not in ("-", found[key])]


def test_every_encoder_is_in_the_table() -> None:
    names = {name.partition(":")[0] for name in encoders._cards}
    assert names == {name for name in TABLE if ":" not in name}


@pytest.mark.parametrize("name", TABLE)
def test_the_contract_of_a_card_is_the_published_one(name: str) -> None:
    assert differences(card_of(name)) == []


CHANGES: dict[str, dict[str, Any]] = {
    "tile": {"input": {"tile_px": 100}},
    "mpp": {"input": {"mpp": (0.6,)}},
    "resize": {"input": {"resize_px": 225}},
    "crop": {"input": {"crop_px": 200}},
    "interpolation": {"input": {"interpolation": "nearest"}},
    "colours": {"input": {"mean": (0.485, 0.456, 0.407)}},
    "pool": {"output": {"pool": "max"}},
    "width": {"output": {"width": 7}},
}


@pytest.mark.parametrize("key", CHANGES)
def test_one_wrong_field_of_a_card_is_found(key: str) -> None:
    for name, expected in TABLE.items():
        card = card_of(name)
        [(part, changed)] = CHANGES[key].items()
        wrong = replace(card, **{part: replace(getattr(card, part), **changed)})
        assert differences(wrong) == ([] if expected[key] == "-" else [key]), name
