"""The audit reads every bag once and reports counts and findings."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from audit_cases import clean, codes, content

from scmil.bags.audit import Audit, audit
from scmil.bags.bag import Bag, BagSet
from scmil.bags.hdf5 import read_bag, write_bag
from scmil.bags.splits import Split


def test_an_audit_of_valid_bags_has_no_findings() -> None:
    provenance = {
        "encoder": "resnet18",
        "size_px": 256,
        "mpp": 0.5,
        "vendor": "aperio",
        "slide_mpp": 0.25,
    }
    splits = [[Split(tuple(range(4)), (4, 5), (6, 7))]]
    found = audit(BagSet(clean(change=lambda i: {"provenance": provenance})), None, splits)
    assert found.findings == ()
    assert found.ok
    assert found.lines()[-1] == "no problems found"


def test_the_counts_of_an_audit() -> None:
    bags = clean(4, lambda i: {"features": content(i, n=i + 1), "patient": None if i == 0 else "p"})
    counts = audit(BagSet(bags, classes=["normal", "tumor"])).counts
    assert counts == {
        "bags": 4, "unreadable": 0, "instances": 10, "smallest": 1, "median": 2.5, "largest": 4,
        "dims": {"4": 4},
        "classes": {"normal": 2, "tumor": 2}, "without_label": 0, "patients": 2,
    }  # fmt: skip


def test_every_bag_is_read_once_and_one_at_a_time() -> None:
    bags, read, calls = clean(), [], []

    def load(bag_id: str) -> Bag:
        read.append(bag_id)
        return bags[int(bag_id[1:])]

    lazy = BagSet.lazy(
        [bag.id for bag in bags], load, [bag.label for bag in bags], [bag.patient for bag in bags]
    )
    audit(lazy, progress=lambda done, total: calls.append((done, total)))
    assert read == [bag.id for bag in bags]
    assert calls == [(i, 8) for i in range(1, 9)]


def test_a_bag_that_cannot_be_read_is_reported_and_the_others_are_checked(tmp_path: Path) -> None:
    for bag in clean(
        4, lambda i: {"features": torch.full((2, 4), torch.nan) if i == 3 else content(i)}
    ):
        write_bag(bag, tmp_path / f"{bag.id}.h5")
    (tmp_path / "s1.h5").write_bytes(b"this is no HDF5")
    ids = [f"s{i}" for i in range(4)]
    found = audit(
        BagSet.lazy(
            ids,
            lambda bag_id: read_bag(tmp_path / f"{bag_id}.h5", int(bag_id[1]) % 2),
            [0, 1, 0, 1],
        )
    )
    assert codes(found) == {"unreadable": ("s1",), "not-finite": ("s3",)}
    assert "cannot be read as a bag of scmil" in found.findings[0].sentence
    assert (found.counts["unreadable"], found.counts["bags"], found.ok) == (1, 4, False)


def test_any_error_of_a_reader_is_a_finding_for_that_bag() -> None:
    def load(bag_id: str) -> Bag:
        raise MemoryError if bag_id == "s0" else KeyError("features")

    found = audit(BagSet.lazy(["s0", "s1"], load))
    sentences = [finding.sentence for finding in found.findings if finding.code == "unreadable"]
    assert sentences == ["a bag cannot be read: MemoryError", "a bag cannot be read: 'features'"]


def report() -> Audit:
    return audit(
        BagSet(clean(20, lambda i: {"features": torch.zeros(0, 4)} if i > 4 else {"label": None}))
    )


def test_errors_come_first_and_long_lists_are_shortened_in_the_text() -> None:
    lines = report().lines()
    assert lines[0] == "20 bags of 20 patients, 4-dimensional features"
    assert lines[1] == "30 instances: 0 to 6 in a bag, median 0"
    assert lines[3:5] == [
        "1 error",
        "  empty: 15 bags without instances (s5, s6, s7 and 12 more). Leave them out: no tissue "
        "was found.",
    ]
    assert lines[5:] == [
        "1 warning",
        "  no-label: 5 bags without a label (s0, s1, s2 and 2 more). Label them, or leave them out "
        "of training.",
    ]


def test_the_json_output_lists_every_slide() -> None:
    found = json.loads(json.dumps(report().as_json()))
    assert found["ok"] is False
    assert found["findings"][0]["slides"] == [f"s{i}" for i in range(5, 20)]
    assert found["counts"]["without_label"] == 5


def test_a_set_without_bags_can_be_audited() -> None:
    assert audit(BagSet([])).lines()[:2] == ["0 bags of 0 patients", "no instances"]
