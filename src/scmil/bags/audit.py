"""Data quality checks before training; every bag is read once, one at a time.

An error makes results wrong, a warning may make them wrong, a note is information. Each finding
states a remedy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from scmil.bags.audit_checks import (
    Finding,
    find_bad_features,
    find_confounders,
    find_duplicates,
    find_label_problems,
    find_mixtures,
    find_odd_sizes,
    find_patient_problems,
    find_split_problems,
)
from scmil.bags.audit_encoders import find_foreign_encoders
from scmil.bags.audit_facts import BagFacts, CohortLabels, FeatureRange
from scmil.bags.audit_targets import find_target_problems
from scmil.bags.bag import BagSet
from scmil.bags.label_records import Column, columns_json, describe_inferred
from scmil.bags.labels import Labels
from scmil.bags.splits import Split
from scmil.bags.targets import Targets

SEVERITIES = ("error", "warning", "note")


@dataclass(frozen=True)
class Audit:
    """All findings, errors first, and counts of bags, instances, classes and patients."""

    findings: tuple[Finding, ...]
    counts: Mapping[str, Any]
    columns: Mapping[str, Column] = field(default_factory=dict)  # of the label table, by role

    @property
    def ok(self) -> bool:
        """Whether there are no errors; there may be warnings and notes."""
        return all(finding.severity != "error" for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """Return counts, columns and findings as JSON values, with all slides of each finding."""
        return {
            "ok": self.ok,
            "counts": dict(self.counts),
            "columns": columns_json(self.columns),
            "findings": [asdict(finding) for finding in self.findings],
        }

    def lines(self) -> list[str]:
        """Return the lines of a text report: counts, then findings by severity."""
        counts = self.counts
        dims = " and ".join(counts["dims"])
        sizes = f"{counts['smallest']} to {counts['largest']} in a bag, median {counts['median']:g}"
        features = f", {dims}-dimensional features" if dims else ""
        lines = [
            f"{counts['bags']} bags of {counts['patients']} patients{features}",
            f"{counts['instances']} instances: {sizes}" if counts["instances"] else "no instances",
            "classes: "
            + (", ".join(f"{name} {n}" for name, n in counts["classes"].items()) or "none known"),
            *describe_inferred(self.columns),
        ]
        for severity in SEVERITIES:
            findings = [finding for finding in self.findings if finding.severity == severity]
            if findings:
                lines.append(f"{len(findings)} {severity}{'s' * (len(findings) > 1)}")
            lines += [f"  {finding}" for finding in findings]
        return lines if self.findings else [*lines, "no problems found"]


def audit(
    bags: BagSet,
    labels: Labels | None = None,
    splits: Sequence[Sequence[Split]] | None = None,
    *,
    targets: Targets | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Audit:
    """Check bags, labels and splits for problems that would invalidate a result.

    Args:
        bags: The bags.
        labels: Labels and patients; those of the bags if None.
        splits: Repeats of folds, such as `load_splits` returns.
        targets: Times, numbers, grades or several labels, which are checked instead of classes; the
            patients are taken from them.
        progress: Called with the number of bags that were read, and their total.

    Returns:
        The findings and counts. A bag that cannot be read is a finding, not an exception.

    >>> import torch
    >>> from scmil.bags.bag import Bag
    >>> x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> result = audit(BagSet([Bag("a", x, 0), Bag("b", x.flip(0), 1), Bag("c", x + 1, 1)]))
    >>> result.ok, result.findings[0].code, result.findings[0].slides
    (False, 'duplicate', ('a', 'b'))
    """
    cohort = CohortLabels.of(bags, labels)
    if targets is not None:
        cohort = cohort.with_targets(targets)
    facts: list[BagFacts] = []
    span = FeatureRange()
    findings: list[Finding] = []
    for position, bag_id in enumerate(bags.ids):
        try:
            facts.append(BagFacts.of(bags[position], span))
        except Exception as error:  # of any kind: a damaged bag must not stop the audit
            cause = " ".join(str(error).split()) or type(error).__name__
            findings.append(
                Finding(
                    "error",
                    "unreadable",
                    f"a bag cannot be read: {cause}",
                    "Encode or copy it again.",
                    (bag_id,),
                )
            )
        if progress is not None:
            progress(position + 1, len(bags))
    findings += [
        *find_bad_features(facts, span),
        *find_mixtures(facts),
        *find_foreign_encoders(facts),
        *find_odd_sizes(facts),
        *(find_label_problems(cohort, labels) if targets is None else _of_targets(bags, targets)),
        *find_patient_problems(cohort),
        *find_split_problems(cohort, splits or ()),
        *find_duplicates(cohort, facts, splits or ()),
        *find_confounders(cohort, facts),
    ]
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    counts = _make_counts(cohort, facts, len(bags) - len(facts))
    used = targets if targets is not None else labels
    return Audit(tuple(findings), counts, {} if used is None else used.columns)


def _of_targets(bags: BagSet, targets: Targets) -> Iterator[Finding]:
    """The problems of the targets, and the bags that have none."""
    yield from find_target_problems(targets)
    if without := tuple(bag_id for bag_id in bags.ids if bag_id not in targets):
        sentence = f"{len(without)} bags are not in the table of the {targets.task} task"
        yield Finding("warning", "no-value", sentence, "Add them, or leave them out.", without)


def _make_counts(
    cohort: CohortLabels, facts: Sequence[BagFacts], unreadable: int
) -> dict[str, Any]:
    """Return the counts of the report."""
    sizes = [fact.instances for fact in facts] or [0]
    return {
        "bags": len(cohort.ids),
        "unreadable": unreadable,
        "instances": sum(sizes),
        "smallest": min(sizes),
        "median": median(sizes),
        "largest": max(sizes),
        "dims": {str(dim): n for dim, n in sorted(Counter(fact.dim for fact in facts).items())},
        "classes": cohort.counts(),
        "without_label": list(cohort.label.values()).count(None),
        # Each bag without a known patient counts as one.
        "patients": len({patient or (bag_id,) for bag_id, patient in cohort.patient.items()}),
    }
