"""The checks of the audit, each with bags that it must report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from audit_cases import clean, codes, content, only

from scmil.bags.audit import audit
from scmil.bags.audit_checks import cramers_v
from scmil.bags.bag import Bag, BagSet
from scmil.bags.labels import Labels, read_labels
from scmil.bags.splits import Split


@pytest.mark.parametrize(
    ("features", "severity", "code"),
    [
        (torch.zeros(0, 4), "error", "empty"),
        (torch.tensor([[0.0, 1, 2, 3], [0, 1, torch.inf, 3]]), "error", "not-finite"),
        (torch.tensor([[0.0, 1, 2, torch.nan]]), "error", "not-finite"),
        (torch.ones(5, 4), "warning", "constant-bag"),
    ],
)
def test_features_that_no_model_can_use_are_found(
    features: torch.Tensor, severity: str, code: str
) -> None:
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
    assert (finding.severity, finding.sentence) == (
        "note",
        "1 of 4 features have one value in all bags",
    )


@pytest.mark.parametrize("n", [61, 1])
def test_bags_of_unusual_size_are_noted(n: int) -> None:
    bags = clean(change=lambda i: {"features": content(i, n=n if i == 2 else 6 if n > 6 else 11)})
    finding = only(audit(BagSet(bags)))
    assert (finding.severity, finding.code, finding.slides) == ("note", "size", ("s2",))


@pytest.mark.parametrize(
    ("key", "one", "other"),
    [
        ("encoder", "resnet18", "uni"),
        ("encoder_digest", "ab", "cd"),
        ("size_px", 256, 224),
        ("mpp", 0.5, 0.25),
    ],
)
def test_bags_encoded_in_different_ways_are_reported(key: str, one: object, other: object) -> None:
    finding = only(
        audit(BagSet(clean(change=lambda i: {"provenance": {key: other if i in (2, 5) else one}})))
    )
    assert (finding.severity, finding.code, finding.slides) == (
        "error",
        f"mixed-{key}",
        ("s2", "s5"),
    )
    assert f"{one} in 6, {other} in 2" in finding.sentence


def test_bags_of_different_dimensions_are_found() -> None:
    found = audit(BagSet(clean(change=lambda i: {"features": content(i, dim=5)} if i == 0 else {})))
    assert codes(found) == {"mixed-dim": ("s0",)}
    assert found.counts["dims"] == {"4": 7, "5": 1}


def test_unknown_provenance_is_not_a_mixture() -> None:
    assert (
        audit(
            BagSet(clean(change=lambda i: {"provenance": {"encoder": "uni"} if i else {}}))
        ).findings
        == ()
    )


def test_a_single_warning_may_be_a_text() -> None:
    found = audit(
        BagSet(
            clean(
                change=lambda i: {"provenance": {"warnings": "implausible mpp"} if i == 0 else {}}
            )
        )
    )
    assert codes(found) == {"provenance": ("s0",)}


def test_each_warning_in_the_provenance_is_reported_once_with_all_slides() -> None:
    text = "tiles of 224 px, but 'uni' expects 256 px."
    found = audit(
        BagSet(clean(change=lambda i: {"provenance": {"warnings": [text] if i < 3 else []}}))
    )
    assert (
        str(only(found))
        == f"provenance: {text[:-1]} (s0, s1, s2). It was recorded when the bag was encoded."
    )
    assert only(found).severity == "warning"


def test_bags_without_labels_and_labels_without_bags_are_found() -> None:
    labels = Labels(("s0", "s1", "s9", "s8"), ("b", "a", "a", None), ("a", "b"), (None,) * 4)
    found = audit(
        BagSet([Bag("s0.svs", content(0)), Bag("s1", content(1)), Bag("s2", content(2))]), labels
    )
    assert codes(found) == {"no-label": ("s2",), "no-bag": ("s9",)}
    assert found.counts["classes"] == {"a": 1, "b": 1}


def test_a_patient_with_two_labels_is_found() -> None:
    finding = only(
        audit(BagSet(clean(change=lambda i: {"patient": "ann" if i in (0, 3, 4) else f"p{i}"})))
    )
    assert (finding.severity, finding.code, finding.slides) == (
        "warning",
        "patient-labels",
        ("s0", "s3", "s4"),
    )


def test_classes_of_different_size_are_noted_and_a_class_without_bags_is_a_warning() -> None:
    bags = BagSet(
        clean(change=lambda i: {"label": int(i < 2)}), classes=["normal", "tumor", "other"]
    )
    found = audit(bags)
    assert [(finding.severity, finding.code) for finding in found.findings] == [
        ("warning", "absent-class"),
        ("note", "imbalance"),
    ]
    assert "normal 6, tumor 2" in found.findings[1].sentence
    assert found.ok


def test_a_patient_in_two_parts_of_a_split_is_an_error() -> None:
    bags = BagSet(clean(change=lambda i: {"patient": "ann" if i in (1, 5) else f"p{i}"}))
    good, leaking = Split((0, 2), (1, 5)), Split((0, 1), (4,), (5,))
    assert audit(bags, None, [[good]]).findings == ()
    finding = only(audit(bags, None, [[good], [good, leaking]]))
    assert (finding.severity, finding.code, finding.slides) == ("error", "leak", ("s1", "s5"))
    assert (
        "patients in two subsets of a split (1): ann in train and valid of fold 1 of repeat 1"
        in finding.sentence
    )


@pytest.mark.parametrize(
    ("split", "problem"),
    [
        (Split((0, 1), (1,)), "fold 0: bag 's1' is in both train and test"),
        (Split((0,), (99,)), "fold 0: test has the position 99, but there are 8 bags"),
        (Split((0,), ()), "fold 0: test is empty"),
    ],
)
def test_a_split_that_does_not_fit_the_bags_is_an_error(split: Split, problem: str) -> None:
    finding = only(audit(BagSet(clean()), None, [[split]]))
    assert (finding.severity, finding.code) == ("error", "split")
    assert problem in finding.sentence


def test_the_same_slide_under_two_names_is_found_also_in_half_precision_and_another_order() -> None:
    copies = {
        2: content(0),
        4: content(0).half().float(),
        6: content(0)[torch.tensor([3, 1, 0, 2, 5, 4])],
    }
    finding = only(
        audit(BagSet(clean(change=lambda i: {"features": copies[i]} if i in copies else {})))
    )
    assert (finding.severity, finding.code, finding.slides) == (
        "warning",
        "duplicate",
        ("s0", "s2", "s4", "s6"),
    )
    assert finding.sentence == "4 bags have the same content, in another order of rows"


def test_a_duplicate_with_another_label_or_in_another_part_is_an_error() -> None:
    other_label = BagSet(clean(change=lambda i: {"features": content(0)} if i == 3 else {}))
    same_label = BagSet(clean(change=lambda i: {"features": content(0)} if i == 4 else {}))
    assert only(audit(other_label)).sentence == "2 bags have the same content, but different labels"
    assert only(audit(same_label)).severity == "warning"
    finding = only(audit(same_label, None, [[Split((0, 1), (4, 5))]]))
    assert (finding.severity, finding.slides) == ("error", ("s0", "s4"))
    assert "are in two subsets of a split" in finding.sentence


@pytest.mark.parametrize(
    ("key", "values"),
    [("slide_mpp", (0.2501, 0.4999)), ("vendor", ("aperio", "hamamatsu")), ("scanner", ("x", "y"))],
)
def test_a_class_that_goes_with_the_scanner_is_a_warning(
    key: str, values: tuple[object, object]
) -> None:
    finding = only(
        audit(
            BagSet(clean(change=lambda i: {"provenance": {key: values[i % 2]}}), classes=["A", "B"])
        )
    )
    assert (finding.severity, finding.code) == ("warning", f"confounded-{key}")
    assert finding.sentence.endswith(
        "in 4 of 4, B has " + ("0.5" if key == "slide_mpp" else str(values[1])) + " in 4 of 4"
    )


@pytest.mark.parametrize("value", [lambda i: i // 2 % 2, lambda i: f"scanner {i}", lambda i: "one"])
def test_scanners_independent_of_the_class_are_not_reported(
    value: Callable[[int], object],
) -> None:
    assert (
        audit(BagSet(clean(change=lambda i: {"provenance": {"scanner": value(i)}}))).findings == ()
    )


def test_the_association_is_that_of_scipy() -> None:
    from scipy.stats import chi2_contingency
    from scipy.stats.contingency import association

    table = [[7, 2, 1], [3, 8, 4]]
    pairs = [
        (row, column) for row in range(2) for column in range(3) for _ in range(table[row][column])
    ]
    expected = association(table, method="cramer"), chi2_contingency(table, correction=False).pvalue
    assert cramers_v(pairs) == pytest.approx(expected)


def test_classes_that_were_spelled_in_several_ways_are_found(tmp_path: Path) -> None:
    bags = clean(6)
    names = ["Tumour", "tumour", "normal", "normal", "normal", "tumour"]
    table = "".join(f"{bag.id},{name}\n" for bag, name in zip(bags, names, strict=True))
    (tmp_path / "labels.csv").write_text("slide,label\n" + table)
    found = only(audit(BagSet(bags), read_labels(tmp_path / "labels.csv")))
    assert (found.severity, found.code) == ("warning", "spelling")
    assert "'Tumour', 'tumour' are read as one class, 'tumour'" in str(found)


def test_names_that_differ_only_in_their_unicode_normalisation_are_found() -> None:
    bags = [*clean(4), Bag("Mu\u0308ller", content(7), 0), Bag("M\u00fcller", content(8), 1)]
    found = only(audit(BagSet(bags)))
    assert (found.severity, found.code) == ("warning", "normalisation")
    assert "'Mu\\u0308ller', 'M\\xfcller'" in str(found)  # as they are, since they look the same
    labels = Labels(
        ("s0", "s1", "s2", "s3", "M\u00fcller"), ("a", "b", "a", "b", "a"), ("a", "b"), (None,) * 5
    )
    codes_found = codes(audit(BagSet(bags[:-1]), labels))
    assert codes_found["normalisation"] == ("'Mu\\u0308ller'",)
