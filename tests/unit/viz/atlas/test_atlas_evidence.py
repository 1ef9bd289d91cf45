"""The contributions of atoms to the logits, per slide and over a cohort."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from atlas_case import random_slides

from scmil import Bag, build_model
from scmil.models.tile_scores import Scores, score_bag
from scmil.viz.atlas.atom import SIGNS, Atom, Contribution
from scmil.viz.atlas.counts import build_atlas
from scmil.viz.atlas.evidence import evidence_table
from scmil.viz.atlas.make import _atom_record, _atom_table
from scmil.viz.atlas.page import atlas_page

CLASSES = ("normal", "tumour")


def scored_slides(count: int = 6, aggregator: str = "abmil") -> dict[str, Scores]:
    model = build_model(16, 2, aggregator, sparse_coding={"atoms": 8}, embed=[16], seed=0)
    found = {}
    for i in range(count):
        features = torch.randn(7, 16, generator=torch.Generator().manual_seed(i))
        xy = 100 * torch.arange(14).reshape(7, 2)
        scores = score_bag(model, Bag(f"s{i}", features, label=i % 2, xy=xy), CLASSES)
        found[scores.id] = replace(scores, patient=f"p{i // 2}")
    return found


def test_contributions_are_means_over_patients_with_intervals() -> None:
    slides = scored_slides()
    atlas = build_atlas(slides)
    assert atlas.evidence is not None
    assert (atlas.evidence.patients, len(atlas.evidence.slides)) == (3, 6)
    parts = [slide.evidence.atoms for slide in slides.values()]  # type: ignore[union-attr]
    by_patient = np.array(parts).reshape(3, 2, 16, 2).mean(1)  # type: ignore[arg-type]
    assert atlas.evidence.mean == pytest.approx(by_patient.mean(0))
    for atom in atlas.ranked:
        side = atom.atom + 8 * SIGNS.index(atom.sign)
        for place, name in enumerate(CLASSES):
            mean, low, high = atom.evidence[name]
            assert mean == pytest.approx(by_patient[:, side, place].mean(), abs=1e-6)
            assert low is not None
            assert high is not None
            lowest, highest = by_patient[:, side, place].min(), by_patient[:, side, place].max()
            assert lowest - 1e-6 <= low <= mean <= high <= highest + 1e-6
            other = by_patient[:, (side + 8) % 16, place].mean()
            assert atom.evidence_opposite[name] == pytest.approx(other, abs=1e-6)


def test_the_rows_of_every_slide_sum_to_its_logits() -> None:
    slides = scored_slides(2)
    atlas = build_atlas(slides)
    assert atlas.evidence is not None
    rows = list(
        csv.DictReader(io.StringIO(evidence_table(atlas.evidence, CLASSES, SIGNS).decode()))
    )
    assert len(rows) == 4
    for row in rows:
        atoms = sum(float(value) for name, value in row.items() if name.startswith("atom_"))
        assert float(row["constant"]) + atoms == pytest.approx(float(row["logit"]), abs=1e-5)
        own = slides[row["slide"]].evidence
        assert own is not None
        assert float(row["logit"]) == pytest.approx(own.logits[CLASSES.index(row["class"])])


def test_the_page_and_the_tables_show_the_contributions() -> None:
    atlas = build_atlas(scored_slides())
    page = atlas_page(atlas, {}, "m")
    assert "Contributions of atoms to the logits" in page
    assert "computed exactly" in page
    assert "Means over 3 patients (6 slides)" in page
    record = _atom_record(atlas.ranked[0], {})
    assert set(record["evidence"]) == set(CLASSES)
    json.dumps(record)
    [header, first, *_] = csv.reader(io.StringIO(_atom_table([record], CLASSES).decode()))
    column = header.index("evidence_tumour_low")
    assert float(first[column]) == record["evidence"]["tumour"][1]


def test_the_most_decisive_atoms_come_first() -> None:
    atlas = build_atlas(scored_slides())
    assert atlas.evidence is not None
    means = [abs(each.mean) for _, each in atlas.decisive("tumour", 5)]
    assert means == sorted(means, reverse=True)
    assert means[0] == pytest.approx(np.abs(atlas.evidence.mean[:, 1]).max(), abs=1e-6)


def test_without_evidence_the_atlas_is_as_before() -> None:
    atlas = build_atlas(random_slides(6))
    assert atlas.evidence is None
    assert atlas.decisive("tumour", 5) == []
    assert "Contributions of atoms" not in atlas_page(atlas, {}, "m")
    assert "contributes" not in atlas.atoms[0].sentence


def test_one_patient_has_no_interval() -> None:
    atlas = build_atlas(scored_slides(1))
    assert atlas.ranked[0].evidence["tumour"].low is None
    assert "one patient" in atlas_page(atlas, {}, "m")


def test_the_sentence_names_the_class_with_the_largest_contribution() -> None:
    evidence = {"normal": Contribution(0.1), "tumour": Contribution(-0.5, -0.61, -0.4)}
    sentence = Atom(3, used=0.5, evidence=evidence).sentence
    assert "it contributes −0.5 (95 % interval −0.61 to −0.4) to the logit of tumour" in sentence
