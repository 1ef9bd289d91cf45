"""The page of `scmil locate`."""

from __future__ import annotations

import base64
from typing import Any

from scmil.report.lesion_page import lesion_page

TILES = {
    "tiles": 10,
    "tumour_tiles": 3,
    "auc": 0.75,
    "auc_interval": [0.5, 1.0],
    "slide_auc": 0.625,
    "ap": 0.5,
    "ap_interval": [None, None],
    "dice": 0.4,
    "dice_interval": [0.1, 0.9],
}
POINT = {"false_positives": 0.25, "sensitivity": 0.8125, "interval": [0.1, 0.9]}
FROC = {"score": 0.8125, "interval": [0.25, 1.0], "lesions": 4, "isolated": 1, "points": [POINT]}


def a_page(**changed: Any) -> dict[str, Any]:
    page: dict[str, Any] = {
        "model": "model",
        "model_sha256": "00",
        "part": "unseen",
        "mpp": None,
        "class": None,
        "tile_share": 0.5,
        "draws": 10,
        "seed": 0,
        "rule": {"score": "evidence", "kind": "peaks"},
        "slides": 2,
        "slides_with_lesions": 1,
        "patients": None,
        "froc": FROC,
        "tiles": TILES,
        "warnings": [],
        "each": {},
        "compared": [],
        "left_out": {},
        "failed": {},
    }
    return {**page, **changed}


def test_every_score_and_its_difference_is_on_the_page() -> None:
    other = {
        "rule": {"score": "attention"},
        "froc": {**FROC, "score": 0.375},
        "tiles": {**TILES, "auc": 0.5625},
        "difference": {
            "froc": {"value": -0.4375, "interval": [-0.5, 0.25]},
            "auc": {"value": -0.1875, "interval": [None, None]},
            "ap": {"value": None, "interval": [None, None]},
        },
    }
    html = lesion_page(a_page(compared=[other]), "<svg></svg>")
    for words in ("evidence: FROC score 0.812", "attention: FROC score 0.375", "0.562"):
        assert words in html
    assert "\N{MINUS SIGN}0.438" in html
    assert "+0.250" in html
    assert base64.b64encode(b"<svg></svg>").decode() in html
    assert "Differences from evidence" in html
    assert "Differences" not in lesion_page(a_page(), "<svg></svg>")


def test_without_lesions_the_page_has_the_tiles_alone() -> None:
    html = lesion_page(a_page(froc=None, warnings=["No FROC: no lesion"]), None)
    assert "No FROC: no lesion" in html
    assert "FROC curve" not in html
    assert "AUC of tiles 0.750 (0.500 to 1.000)" in html


def test_names_on_the_page_are_escaped() -> None:
    name = "<script>alert(1)</script>"
    slide = {"truth": name, "lesions": 1, "hit": 1, "detections": 2, "tiles": 3, "tumour_tiles": 1}
    page = a_page(
        model=name,
        each={name: slide},
        left_out={name: name},
        warnings=[name],
        rule={"score": f"evidence:{name}", "kind": "peaks"},
    )
    html = lesion_page(page, None)
    assert name not in html
    assert "&lt;script&gt;" in html
