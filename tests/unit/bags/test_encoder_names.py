"""The same name is not the same feature: what names of other tools mean."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from scmil.bags.audit import audit
from scmil.bags.bag import Bag, BagSet
from scmil.bags.encoder_names import (
    find_equivalent,
    identity_of,
    read_table,
    shares_only_the_name,
    statement_of,
)
from scmil.bags.formats import open_bags
from scmil.bags.provenance import check_same_provenance, required_provenance
from scmil.cli import app
from scmil.encoding.encoders import card_of
from scmil.errors import ShapeError

# Name of a tool, and the card with the same numbers; None: no card has them.
KNOWN = [
    ("trident", "virchow2", "virchow2"),
    ("stamp", "virchow2", "virchow2:cls"),
    ("eva", "paige_virchow2", "virchow2:cls"),
    ("slide2vec", "midnight", "midnight-12k"),
    ("trident", "midnight12k", "midnight-12k:cls"),
    ("slide2vec", "h0-mini", "h0-mini"),
    ("trident", "h0-mini", "h0-mini:cls"),
    ("stamp", "musk", "musk"),
    ("trident", "musk", "musk:one-scale"),
    ("lazyslide", "musk", None),
    ("trident", "conch_v1", "conch"),
    ("lazyslide", "conch", "conch:projected"),
    ("conch", "conch_ViT-B-16", None),
    ("trident", "conch_v15", "conch-v1.5"),
    ("lazyslide", "titan", "conch-v1.5:bicubic"),
    ("stamp", "gigapath", "gigapath"),
    ("lazyslide", "gigapath", "gigapath:whole-tile"),
    ("trident", "hoptimus0", "h-optimus-0:bilinear"),
    ("slide2vec", "h-optimus-0", "h-optimus-0"),
    ("eva", "lunit_vits8", "lunit-vits8"),
    ("trident", "lunit-vits8", None),
    ("stamp", "ctranspath", "ctranspath"),
    ("trident", "ctranspath", "chief-ctranspath"),
    ("slideflow", "slideflow.model.extractors.virchow.VirchowFeatures", "virchow"),
    ("stamp", "mahmood-uni2-1a2b3c4d", "uni2-h"),
    ("stamp", "virchow_full", "virchow"),
    ("trident", "virchow2-cls", "virchow2:cls"),
    ("lazyslide", "quiltnet-b32", "quiltnet-b-32"),
]


@pytest.mark.parametrize(("tool", "encoder", "card"), KNOWN)
def test_names_of_other_tools(tool: str, encoder: str, card: str | None) -> None:
    found = find_equivalent(tool, encoder)
    assert found is not None
    assert (found.card if found.same else None) == card


def test_every_card_of_the_table_exists_with_the_width_of_its_row() -> None:
    assert len(read_table()) > 70
    for entry in read_table():
        assert card_of(entry.card).output.width > 0
        assert entry.same or entry.note


def bag(encoder: str, tool: str | None = None, dim: int = 4, **more: object) -> Bag:
    known = {"encoder": encoder, "format": tool, **more}
    provenance = {key: value for key, value in known.items() if value is not None}
    return Bag("slide", torch.randn(3, dim), provenance=provenance)


def test_a_model_rejects_features_that_only_share_the_name() -> None:
    trained = {"dim": 4, **required_provenance(bag("ctranspath", "scmil", encoder_digest="a"))}
    check_same_provenance(trained, bag("ctranspath", "scmil", encoder_digest="a"))
    check_same_provenance(trained, bag("ctranspath", "stamp"))  # the same weights
    with pytest.raises(ShapeError) as raised:
        check_same_provenance(trained, bag("ctranspath", "trident"))
    text = str(raised.value)
    assert "features of 'chief-ctranspath' instead of 'ctranspath'" in text
    assert "TRIDENT loads the weights of CHIEF under the name ctranspath" in text
    assert "scmil encode SLIDES --encoder ctranspath" in text


def test_a_model_on_features_of_another_tool_knows_which_they_are() -> None:
    trained = {"dim": 4, **required_provenance(bag("ctranspath", "trident"))}
    assert trained["encoder_tool"] == "trident"
    check_same_provenance(trained, bag("ctranspath", "trident"))
    check_same_provenance(trained, bag("chief-ctranspath", "scmil", encoder_digest="a"))
    with pytest.raises(ShapeError, match=r"--encoder chief-ctranspath"):
        check_same_provenance(trained, bag("ctranspath", "scmil", encoder_digest="a"))
    with pytest.raises(ShapeError, match="features of 'uni' instead of 'chief-ctranspath'"):
        check_same_provenance(trained, bag("uni_v1", "trident"))


def test_names_that_the_table_does_not_have_are_compared_as_before() -> None:
    trained = {"dim": 4, **required_provenance(bag("mine", "arrays"))}
    assert "encoder_tool" not in trained
    check_same_provenance(trained, bag("mine", "clam"))
    with pytest.raises(ShapeError, match="encoder 'other' instead of 'mine'"):
        check_same_provenance(trained, bag("other", "arrays"))
    # A model of an earlier version, which did not record the tool.
    check_same_provenance({"dim": 4, "encoder": "uni_v1"}, bag("uni_v1", "trident"))
    assert identity_of({}) is None
    assert statement_of({"encoder": "uni", "encoder_digest": "a", "format": "trident"}) is None


def trident(folder: Path, encoder: str) -> Path:
    place = folder / "20x_256px_0px_overlap" / f"features_{encoder}"
    place.mkdir(parents=True)
    for slide in "ab":
        with h5py.File(place / f"{slide}.h5", "w") as file:
            file["features"] = np.random.default_rng(ord(slide)).normal(size=(3, 4)).astype("f4")
            file["features"].attrs["encoder"] = encoder
            file["coords"] = np.array([[0, 0], [256, 0], [0, 256]])
            file["coords"].attrs.update(patch_size=256, patch_size_level0=256)
    return folder


def test_audit_states_what_the_features_are(tmp_path: Path) -> None:
    found = audit(open_bags(trident(tmp_path / "one", "ctranspath")))
    [finding] = [f for f in found.findings if f.code == "encoder-name"]
    assert (finding.severity, finding.slides) == ("warning", ("a", "b"))
    assert "gives the features of 'chief-ctranspath' here, not of 'ctranspath'" in finding.sentence
    found = audit(open_bags(trident(tmp_path / "two", "uni_v1")))
    [finding] = [f for f in found.findings if f.code == "encoder-name"]
    assert finding.severity == "note"
    assert "gives the features of 'uni' here" in finding.sentence


def test_audit_finds_the_default_resolution_of_stamp() -> None:
    bags = [bag("mahmood-conch", "stamp", mpp=256 / 224), bag("mahmood-conch", "stamp", mpp=0.5)]
    bags = [Bag(name, each.features, provenance=each.provenance) for name, each in zip("ab", bags)]
    [finding] = [f for f in audit(BagSet(bags)).findings if f.code == "resolution"]
    assert finding.slides == ("a",)


def test_import_states_it_and_keeps_the_tool(tmp_path: Path) -> None:
    folder = trident(tmp_path / "theirs", "ctranspath")
    done = CliRunner().invoke(app, ["import", str(folder), "--out", str(tmp_path / "ours")])
    assert done.exit_code == 0
    assert "note: TRIDENT 'ctranspath' gives the features of 'chief-ctranspath'" in done.stderr
    imported = open_bags(tmp_path / "ours")[0]
    assert imported.provenance["encoder_tool"] == "trident"
    assert identity_of(imported.provenance) == "chief-ctranspath"
    assert shares_only_the_name(imported.provenance)
