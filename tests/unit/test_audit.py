from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from scmil.bags.audit import Audit, Finding, audit, cramers_v, fingerprint
from scmil.bags.hdf5 import read_bag, write_bag
from scmil.bags.bag import Bag, BagSet
from scmil.bags.labels import Labels, read_labels
from scmil.bags.splits import Split


def content(seed: int, n: int = 6, dim: int = 4) -> torch.Tensor:
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed))


def clean(n: int = 8, change: Callable[[int], dict[str, Any]] = lambda i: {}) -> list[Bag]:
    """Bags with which nothing is wrong, of two classes in turn, but for what `change` says of the i-th."""
    return [Bag(**dict(id=f"s{i}", features=content(i), label=i % 2, patient=f"p{i}") | change(i)) for i in range(n)]


def codes(found: Audit) -> dict[str, tuple[str, ...]]:
    return {finding.code: finding.slides for finding in found.findings}


def only(found: Audit) -> Finding:
    [finding] = found.findings
    return finding


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    provenance = {"encoder": "resnet18", "size_px": 256, "mpp": 0.5, "vendor": "aperio", "slide_mpp": 0.25}
    splits = [[Split(tuple(range(4)), (4, 5), (6, 7))]]
    found = audit(BagSet(clean(change=lambda i: {"provenance": provenance})), None, splits)
    assert found.findings == ()
    assert found.ok
    assert found.lines()[-1] == "nothing is wrong"


def test_what_is_counted() -> None:
    bags = clean(4, lambda i: {"features": content(i, n=i + 1), "patient": None if i == 0 else "p"})
    counts = audit(BagSet(bags, classes=["normal", "tumor"])).counts
    assert counts == {
        "bags": 4, "unreadable": 0, "instances": 10, "smallest": 1, "median": 2.5, "largest": 4, "dims": {"4": 4},
        "classes": {"normal": 2, "tumor": 2}, "without_label": 0, "patients": 2,
    }  # fmt: skip


def test_every_bag_is_read_once_and_one_at_a_time() -> None:
    bags, read, told = clean(), [], []

    def load(id: str) -> Bag:
        read.append(id)
        return bags[int(id[1:])]

    lazy = BagSet.lazy([bag.id for bag in bags], load, [bag.label for bag in bags], [bag.patient for bag in bags])
    audit(lazy, progress=lambda done, total: told.append((done, total)))
    assert read == [bag.id for bag in bags]
    assert told == [(i, 8) for i in range(1, 9)]


# ------------------------------------------------------------------------------------------------------------ features


def test_a_bag_that_cannot_be_read_is_found_and_the_others_are_looked_at(tmp_path: Path) -> None:
    for bag in clean(4, lambda i: {"features": torch.full((2, 4), torch.nan) if i == 3 else content(i)}):
        write_bag(bag, tmp_path / f"{bag.id}.h5")
    (tmp_path / "s1.h5").write_bytes(b"this is no HDF5")
    ids = [f"s{i}" for i in range(4)]
    found = audit(BagSet.lazy(ids, lambda id: read_bag(tmp_path / f"{id}.h5", int(id[1]) % 2), [0, 1, 0, 1]))
    assert codes(found) == {"unreadable": ("s1",), "not-finite": ("s3",)}
    assert "cannot be read as HDF5" in found.findings[0].sentence
    assert (found.counts["unreadable"], found.counts["bags"], found.ok) == (1, 4, False)


def test_any_error_of_a_reader_is_one_bags_finding() -> None:
    def load(id: str) -> Bag:
        raise MemoryError if id == "s0" else KeyError("features")

    found = audit(BagSet.lazy(["s0", "s1"], load))
    sentences = [finding.sentence for finding in found.findings if finding.code == "unreadable"]
    assert sentences == ["a bag cannot be read: MemoryError", "a bag cannot be read: 'features'"]


@pytest.mark.parametrize(
    ("features", "severity", "code"),
    [
        (torch.zeros(0, 4), "error", "empty"),
        (torch.tensor([[0.0, 1, 2, 3], [0, 1, torch.inf, 3]]), "error", "not-finite"),
        (torch.tensor([[0.0, 1, 2, torch.nan]]), "error", "not-finite"),
        (torch.ones(5, 4), "warning", "constant-bag"),
    ],
)
def test_features_that_no_model_can_use_are_found(features: torch.Tensor, severity: str, code: str) -> None:
    finding = only(audit(BagSet(clean(change=lambda i: {"features": features} if i == 3 else {}))))
    assert (finding.severity, finding.code, finding.slides) == (severity, code, ("s3",))


def test_a_bag_of_one_instance_is_not_constant() -> None:
    assert audit(BagSet(clean(change=lambda i: {"features": content(i, n=1)}))).findings == ()


def test_a_feature_that_is_the_same_everywhere_is_noted() -> None:
    def dead(i: int) -> dict[str, Any]:
        features = content(i)
        features[:, 1] = 7.0
        features[:, 2] = i  # constant in each bag, not in all
        return {"features": features}

    finding = only(audit(BagSet(clean(change=dead))))
    assert (finding.severity, finding.sentence) == ("note", "1 of 4 features have one value in all bags")


@pytest.mark.parametrize("n", [61, 1])
def test_bags_of_unusual_size_are_noted(n: int) -> None:
    bags = clean(change=lambda i: {"features": content(i, n=n if i == 2 else 6 if n > 6 else 11)})
    finding = only(audit(BagSet(bags)))
    assert (finding.severity, finding.code, finding.slides) == ("note", "size", ("s2",))


# ---------------------------------------------------------------------------------------------------------- provenance


@pytest.mark.parametrize(
    ("key", "one", "other"),
    [("encoder", "resnet18", "uni"), ("encoder_digest", "ab", "cd"), ("size_px", 256, 224), ("mpp", 0.5, 0.25)],
)
def test_bags_that_were_made_differently_are_found(key: str, one: object, other: object) -> None:
    finding = only(audit(BagSet(clean(change=lambda i: {"provenance": {key: other if i in (2, 5) else one}}))))
    assert (finding.severity, finding.code, finding.slides) == ("error", f"mixed-{key}", ("s2", "s5"))
    assert f"{one} in 6, {other} in 2" in finding.sentence


def test_bags_of_different_dimensions_are_found() -> None:
    found = audit(BagSet(clean(change=lambda i: {"features": content(i, dim=5)} if i == 0 else {})))
    assert codes(found) == {"mixed-dim": ("s0",)}
    assert found.counts["dims"] == {"4": 7, "5": 1}


def test_what_is_not_known_is_not_a_mixture() -> None:
    assert audit(BagSet(clean(change=lambda i: {"provenance": {"encoder": "uni"} if i else {}}))).findings == ()


def test_a_warning_may_be_a_text_alone() -> None:
    found = audit(BagSet(clean(change=lambda i: {"provenance": {"warnings": "implausible mpp"} if i == 0 else {}})))
    assert codes(found) == {"provenance": ("s0",)}


def test_warnings_of_the_makers_are_passed_on_once_with_all_slides() -> None:
    text = "tiles of 224 px, but 'uni' expects 256 px."
    found = audit(BagSet(clean(change=lambda i: {"provenance": {"warnings": [text] if i < 3 else []}})))
    assert str(only(found)) == f"provenance: {text[:-1]} (s0, s1, s2). It was noticed when the bag was made."
    assert only(found).severity == "warning"


# ----------------------------------------------------------------------------------------------------- labels, patients


def test_bags_without_labels_and_labels_without_bags_are_found() -> None:
    labels = Labels(("s0", "s1", "s9", "s8"), ("b", "a", "a", None), ("a", "b"), (None,) * 4)
    found = audit(BagSet([Bag("s0.svs", content(0)), Bag("s1", content(1)), Bag("s2", content(2))]), labels)
    assert codes(found) == {"no-label": ("s2",), "no-bag": ("s9",)}
    assert found.counts["classes"] == {"a": 1, "b": 1}


def test_a_patient_with_two_labels_is_found() -> None:
    finding = only(audit(BagSet(clean(change=lambda i: {"patient": "ann" if i in (0, 3, 4) else f"p{i}"}))))
    assert (finding.severity, finding.code, finding.slides) == ("warning", "patient-labels", ("s0", "s3", "s4"))


def test_classes_of_different_size_are_noted_and_a_class_without_bags_is_a_warning() -> None:
    bags = BagSet(clean(change=lambda i: {"label": int(i < 2)}), classes=["normal", "tumor", "other"])
    found = audit(bags)
    assert [(finding.severity, finding.code) for finding in found.findings] == [
        ("warning", "absent-class"),
        ("note", "imbalance"),
    ]
    assert "normal 6, tumor 2" in found.findings[1].sentence
    assert found.ok


# -------------------------------------------------------------------------------------------------------------- splits


def test_a_patient_in_two_parts_of_a_split_is_an_error() -> None:
    bags = BagSet(clean(change=lambda i: {"patient": "ann" if i in (1, 5) else f"p{i}"}))
    good, leaking = Split((0, 2), (1, 5)), Split((0, 1), (4,), (5,))
    assert audit(bags, None, [[good]]).findings == ()
    finding = only(audit(bags, None, [[good], [good, leaking]]))
    assert (finding.severity, finding.code, finding.slides) == ("error", "leak", ("s1", "s5"))
    assert "patients in two parts of a split (1): ann in train and valid of fold 1 of repeat 1" in finding.sentence


@pytest.mark.parametrize(
    ("split", "said"),
    [
        (Split((0, 1), (1,)), "fold 0: bag 's1' is in both train and test"),
        (Split((0,), (99,)), "fold 0: test has the position 99, but there are 8 bags"),
        (Split((0,), ()), "fold 0: test is empty"),
    ],
)
def test_a_split_that_does_not_fit_the_bags_is_an_error(split: Split, said: str) -> None:
    finding = only(audit(BagSet(clean()), None, [[split]]))
    assert (finding.severity, finding.code) == ("error", "split")
    assert said in finding.sentence


# ---------------------------------------------------------------------------------------------------------- duplicates


def test_the_same_slide_under_two_names_is_found_also_in_half_precision_and_another_order() -> None:
    copies = {2: content(0), 4: content(0).half().float(), 6: content(0)[torch.tensor([3, 1, 0, 2, 5, 4])]}
    finding = only(audit(BagSet(clean(change=lambda i: {"features": copies[i]} if i in copies else {}))))
    assert (finding.severity, finding.code, finding.slides) == ("warning", "duplicate", ("s0", "s2", "s4", "s6"))
    assert finding.sentence == "4 bags have the same content, in another order of rows"


def test_a_duplicate_with_another_label_or_in_another_part_is_an_error() -> None:
    other_label = BagSet(clean(change=lambda i: {"features": content(0)} if i == 3 else {}))
    same_label = BagSet(clean(change=lambda i: {"features": content(0)} if i == 4 else {}))
    assert only(audit(other_label)).sentence == "2 bags have the same content, but different labels"
    assert only(audit(same_label)).severity == "warning"
    finding = only(audit(same_label, None, [[Split((0, 1), (4, 5))]]))
    assert (finding.severity, finding.slides) == ("error", ("s0", "s4"))
    assert "are in two parts of a split" in finding.sentence


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_different_content_has_different_fingerprints_at_any_scale(scale: float) -> None:
    one = content(0) * scale
    other = one.clone()
    other[0, 0] *= 1.01
    assert fingerprint(one)[1] != fingerprint(other)[1]
    assert fingerprint(one) == fingerprint(one.clone())


def test_a_row_that_is_there_twice_counts() -> None:
    a, b = content(0, n=1), content(1, n=1)
    assert fingerprint(torch.cat([a, a, b]))[1] != fingerprint(torch.cat([a, b, b]))[1]


# --------------------------------------------------------------------------------------------------------- confounding


@pytest.mark.parametrize(
    ("key", "values"), [("slide_mpp", (0.2501, 0.4999)), ("vendor", ("aperio", "hamamatsu")), ("scanner", ("x", "y"))]
)
def test_a_class_that_goes_with_the_scanner_is_a_warning(key: str, values: tuple[object, object]) -> None:
    finding = only(audit(BagSet(clean(change=lambda i: {"provenance": {key: values[i % 2]}}), classes=["A", "B"])))
    assert (finding.severity, finding.code) == ("warning", f"confounded-{key}")
    assert finding.sentence.endswith(
        "in 4 of 4, B has " + ("0.5" if key == "slide_mpp" else str(values[1])) + " in 4 of 4"
    )


@pytest.mark.parametrize("value", [lambda i: i // 2 % 2, lambda i: f"scanner {i}", lambda i: "one"])
def test_scanners_that_tell_nothing_of_the_class_are_no_finding(value: Callable[[int], object]) -> None:
    assert audit(BagSet(clean(change=lambda i: {"provenance": {"scanner": value(i)}}))).findings == ()


def test_the_association_is_that_of_scipy() -> None:
    from scipy.stats import chi2_contingency
    from scipy.stats.contingency import association

    table = [[7, 2, 1], [3, 8, 4]]
    pairs = [(row, column) for row in range(2) for column in range(3) for _ in range(table[row][column])]
    expected = association(table, method="cramer"), chi2_contingency(table, correction=False).pvalue
    assert cramers_v(pairs) == pytest.approx(expected)


# ---------------------------------------------------------------------------------------------------------- the report


def report() -> Audit:
    return audit(BagSet(clean(20, lambda i: {"features": torch.zeros(0, 4)} if i > 4 else {"label": None})))


def test_the_worst_is_first_and_long_lists_are_cut_for_people() -> None:
    lines = report().lines()
    assert lines[0] == "20 bags of 20 patients, 4-dimensional features"
    assert lines[1] == "30 instances: 0 to 6 in a bag, median 0"
    assert lines[3:5] == [
        "1 error",
        "  empty: 15 bags without instances (s5, s6, s7 and 12 more). Leave them out: no tissue was found.",
    ]
    assert lines[5:] == [
        "1 warning",
        "  no-label: 5 bags without a label (s0, s1, s2 and 2 more). Label them, or leave them out of training.",
    ]


def test_programs_get_every_slide() -> None:
    found = json.loads(json.dumps(report().as_json()))
    assert found["ok"] is False
    assert found["findings"][0]["slides"] == [f"s{i}" for i in range(5, 20)]
    assert found["counts"]["without_label"] == 5


def test_a_set_without_bags_is_reported_too() -> None:
    assert audit(BagSet([])).lines()[:2] == ["0 bags of 0 patients", "no instances"]


def test_classes_that_were_spelled_in_several_ways_are_found(tmp_path: Path) -> None:
    bags = clean(6)
    names = ["Tumour", "tumour", "normal", "normal", "normal", "tumour"]
    table = "".join(f"{bag.id},{name}\n" for bag, name in zip(bags, names, strict=True))
    (tmp_path / "labels.csv").write_text("slide,label\n" + table)
    found = only(audit(BagSet(bags), read_labels(tmp_path / "labels.csv")))
    assert (found.severity, found.code) == ("warning", "spelling")
    assert "'Tumour', 'tumour' are taken for one class, 'tumour'" in str(found)


def test_names_that_differ_only_in_their_unicode_normalisation_are_found() -> None:
    bags = [*clean(4), Bag("Mu\u0308ller", content(7), 0), Bag("M\u00fcller", content(8), 1)]
    found = only(audit(BagSet(bags)))
    assert (found.severity, found.code) == ("warning", "normalisation")
    assert "'Mu\\u0308ller', 'M\\xfcller'" in str(found)  # as they are, since they look the same
    labels = Labels(("s0", "s1", "s2", "s3", "M\u00fcller"), ("a", "b", "a", "b", "a"), ("a", "b"), (None,) * 5)
    codes_found = codes(audit(BagSet(bags[:-1]), labels))
    assert codes_found["normalisation"] == ("'Mu\\u0308ller'",)
