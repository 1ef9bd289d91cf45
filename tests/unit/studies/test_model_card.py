"""The model card."""

from __future__ import annotations

import json
from pathlib import Path

from study_cases import QUICK, cohort

from scmil import studies
from scmil.bags.bag import BagSet
from scmil.bags.formats import export_bags


def test_class_names_are_escaped_in_the_model_card(tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)>[x](http://evil.example)|`a`"
    bags = cohort(24, 2)
    named = BagSet([bags[i] for i in range(24)], [evil, "b\n# heading"])
    export_bags(named, tmp_path / "bags", "clam")
    data = studies.open_data(tmp_path / "bags", tmp_path / "bags" / "labels.csv")
    studies.train(data, tmp_path / "model", **QUICK)
    text = (tmp_path / "model" / "MODEL_CARD.md").read_text()
    assert evil not in text
    assert "<img" not in text
    assert "](http://" not in text
    assert "\n# heading" not in text
    assert r"&lt;img src=x onerror=alert\(1\)&gt;\[x\]\(http\://evil.example\)\|\`a\`" in text


def test_the_licence_of_the_encoder_is_in_the_card_and_the_report(model_copy: Path) -> None:
    licence = json.loads((model_copy / "study.json").read_text())["encoder_licence"]
    assert (licence["encoder"], licence["licence"]) == ("uni", "CC-BY-NC-ND 4.0")  # TRIDENT: uni_v1
    for name in ("MODEL_CARD.md", "report.html"):
        text = (model_copy / name).read_text()
        assert "models trained on the features fall under it too" in text
    assert "Licence of the encoder" in (model_copy / "report.html").read_text()
