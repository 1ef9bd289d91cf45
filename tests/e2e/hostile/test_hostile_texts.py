"""XML and TOML files can neither read other files nor request absurd numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from scmil.errors import ConfigError, DataError
from scmil.studies.plan import read_plan

ENTITIES = {
    "of a file": '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><ASAP_Annotations>&x;</ASAP_Annotations>',
    "of each other": '<!DOCTYPE a [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]>'
    "<ASAP_Annotations>&b;</ASAP_Annotations>",
    "of a server": '<!DOCTYPE a SYSTEM "http://127.0.0.1:1/x.dtd"><ASAP_Annotations/>',
}


@pytest.mark.parametrize("content", ENTITIES.values(), ids=list(ENTITIES))
def test_entities_of_xml_are_not_read(tmp_path: Path, content: str) -> None:
    pytest.importorskip("defusedxml")
    from scmil.slides.annotations.asap import read_asap

    (tmp_path / "slide.xml").write_text(f'<?xml version="1.0"?>{content}')
    with pytest.raises(DataError, match=r"slide\.xml declares a document type or entities"):
        read_asap(tmp_path / "slide.xml")


@pytest.mark.parametrize("encoding", ["no-such-code", "utf-7", "hex"])
def test_xml_in_an_unknown_encoding_is_rejected(tmp_path: Path, encoding: str) -> None:
    pytest.importorskip("defusedxml")
    from scmil.slides.annotations.asap import read_asap

    (tmp_path / "slide.xml").write_text(
        f'<?xml version="1.0" encoding="{encoding}"?><ASAP_Annotations/>'
    )
    with pytest.raises(DataError, match=r"slide\.xml is not XML"):
        read_asap(tmp_path / "slide.xml")


def test_a_plan_with_an_integer_beyond_64_bits_is_rejected(tmp_path: Path) -> None:
    """Found by the fuzz campaign."""
    (tmp_path / "plan.toml").write_text(
        f"[data]\ndataset = 'musk1'\n[model]\nsparse_coding = {{ atoms = {10**30} }}\n"
    )
    with pytest.raises(ConfigError, match=r"plan\.toml.*atoms: an integer has more than 64 bits"):
        read_plan(tmp_path / "plan.toml")
