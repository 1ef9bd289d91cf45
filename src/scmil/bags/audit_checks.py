"""The checks of the audit."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from scmil.bags.audit_facts import BagFacts, CohortLabels, FeatureRange
from scmil.bags.labels import Labels
from scmil.bags.provenance import REQUIREMENTS, comparable
from scmil.bags.slide_ids import other_normalisation, slide_id
from scmil.bags.splits import Split, check_split
from scmil.core.extras import import_extra
from scmil.core.text import first_names
from scmil.errors import SplitError
from scmil.stats.groups import group_positions

MOST_VALUES = 4  # of a property that a finding lists
IMBALANCE = 3.0  # the largest class over the smallest
OUTLIER = 10.0  # times more or fewer instances than the median bag
STRONG_ASSOCIATION = 0.5  # Cramér's V
SIGNIFICANT = 0.05
# Properties that a model may learn instead of the disease, if they go with the class.
CONFOUNDERS = ("vendor", "scanner", "slide_mpp", "objective", "encoder", "dim")


@dataclass(frozen=True)
class Finding:
    """A problem: its severity, a code for programs, a sentence, a remedy, and the slides."""

    severity: str
    code: str
    sentence: str
    remedy: str
    slides: tuple[str, ...] = ()

    def __str__(self) -> str:
        slides = f" ({first_names(self.slides)})" if self.slides else ""
        return f"{self.code}: {self.sentence}{slides}. {self.remedy}"


def without_bag(labels: Labels, ids: Iterable[str]) -> tuple[str, ...]:
    """Return the slides of a table that have a label but no bag."""
    here = set(map(slide_id, ids))
    return tuple(
        bag_id
        for bag_id, name in zip(labels.ids, labels.names)
        if name is not None and bag_id not in here
    )


def find_bad_features(facts: Sequence[BagFacts], span: FeatureRange) -> Iterator[Finding]:
    """Find empty bags, NaN or infinite features, and features that are constant."""
    if empty := _ids(facts, lambda fact: fact.instances == 0):
        yield Finding(
            "error",
            "empty",
            f"{_bags(empty)} without instances",
            "Leave them out: no tissue was found.",
            empty,
        )
    if broken := _ids(facts, lambda fact: fact.broken > 0):
        remedy = "Encode these slides again; half precision overflows with some encoders."
        yield Finding(
            "error", "not-finite", f"{_bags(broken)} with NaN or infinity", remedy, broken
        )
    if constant := _ids(facts, lambda fact: fact.constant):
        remedy = "Check the tiles: blank slides and encoders without weights cause this."
        yield Finding(
            "warning",
            "constant-bag",
            f"{_bags(constant)} in which all instances are equal",
            remedy,
            constant,
        )
    for dim, (low, high) in span.of_dim.items():
        dead = int((low == high).sum())
        if dead and len(facts) > 1:
            sentence = f"{dead} of {dim} features have one value in all bags"
            yield Finding(
                "note",
                "constant-feature",
                sentence,
                "They carry no information; a smaller encoder may suffice.",
            )


def find_mixtures(facts: Sequence[BagFacts]) -> Iterator[Finding]:
    """Find bags that were encoded in different ways, and warnings in their provenance."""
    yield from _find_mixed(
        "dim", "dimensions", "error", "Encode all slides with one encoder.", facts
    )
    for each in REQUIREMENTS:
        if each.severity is not None:
            yield from _find_mixed(each.key, each.noun, each.severity, each.remedy, facts)
    warnings: dict[str, list[str]] = {}
    for fact in facts:
        for text in _texts(fact.provenance.get("warnings")):
            warnings.setdefault(text.rstrip("."), []).append(fact.id)
    for text, slides in warnings.items():
        yield Finding(
            "warning",
            "provenance",
            text,
            "It was recorded when the bag was encoded.",
            tuple(slides),
        )


def _find_mixed(
    key: str, noun: str, severity: str, remedy: str, facts: Sequence[BagFacts]
) -> Iterator[Finding]:
    """Find bags with different values of a property."""
    groups: dict[Hashable, list[str]] = {}
    for fact in facts:
        groups.setdefault(_value(fact, key), []).append(fact.id)
    groups.pop(None, None)  # unknown values are not compared
    if len(groups) > 1:
        ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
        sizes = ", ".join(
            f"{_shorten_value(value)} in {len(slides)}" for value, slides in ordered[:MOST_VALUES]
        )
        rest = tuple(bag_id for _, slides in ordered[1:] for bag_id in slides)
        yield Finding(
            severity, f"mixed-{key}", f"{len(groups)} different {noun}: {sizes}", remedy, rest
        )


def find_odd_sizes(facts: Sequence[BagFacts]) -> Iterator[Finding]:
    """Find bags that are much larger or smaller than the median bag."""
    sizes = [fact.instances for fact in facts if fact.instances]
    middle = median(sizes or [0])
    odd = _ids(
        facts, lambda f: f.instances > OUTLIER * middle or 0 < f.instances < middle / OUTLIER
    )
    if odd:
        sentence = (
            f"{_bags(odd)} with {OUTLIER:g} times more or fewer instances than the median of "
            f"{middle:g}"
        )
        yield Finding("note", "size", sentence, "Check their tissue masks.", odd)


def find_label_problems(cohort: CohortLabels, labels: Labels | None) -> Iterator[Finding]:
    """Find missing labels, missing bags, ambiguous names, and class imbalance."""
    if without := tuple(bag_id for bag_id, label in cohort.label.items() if label is None):
        remedy = "Label them, or leave them out of training."
        yield Finding("warning", "no-label", f"{_bags(without)} without a label", remedy, without)
    if labels is not None:
        yield from _find_table_problems(cohort, labels)
    yield from _find_equal_names(cohort.ids)
    counts = cohort.counts()
    present = {name: n for name, n in counts.items() if n}
    if absent := [name for name, n in counts.items() if not n]:
        sentence = f"no bag is of class {first_names(absent)}"
        remedy = "A model cannot learn it: add bags, or remove the class."
        yield Finding("warning", "absent-class", sentence, remedy)
    if present and max(present.values()) >= IMBALANCE * min(present.values()):
        sizes = ", ".join(f"{name} {n}" for name, n in present.items())
        remedy = "Evaluate by AUC or balanced accuracy, and stratify the splits."
        yield Finding("note", "imbalance", f"classes of different size: {sizes}", remedy)


def _find_table_problems(cohort: CohortLabels, labels: Labels) -> Iterator[Finding]:
    """Find slides of the table without a bag, and names that are spelled in several ways."""
    if lost := without_bag(labels, cohort.ids):
        sentence = f"labelled slides without a bag: {len(lost)} of {len(labels)}"
        remedy = "Encode these slides, or check that file names and ids agree."
        yield Finding("warning", "no-bag", sentence, remedy, lost)
    for name, variants in labels.spellings.items():
        sentence = f"{', '.join(map(repr, variants))} are read as one class, {name!r}"
        remedy = "Use one spelling; give different classes different names."
        yield Finding("warning", "spelling", sentence, remedy)
    if pairs := other_normalisation(cohort.ids, labels.ids):
        sentence = (
            f"{_bags(tuple(pairs))} without a label only because the name is in another Unicode "
            "normalisation"
        )
        remedy = f"Rename the files, or correct the table: {', '.join(map(ascii, pairs.values()))}."
        yield Finding("error", "normalisation", sentence, remedy, tuple(map(ascii, pairs)))


def _find_equal_names(ids: Iterable[str]) -> Iterator[Finding]:
    """Find bags whose names look the same."""
    normal: dict[str, list[str]] = {}
    for bag_id in ids:
        normal.setdefault(unicodedata.normalize("NFC", bag_id), []).append(bag_id)
    for same in (names for names in normal.values() if len(names) > 1):
        sentence = f"{len(same)} bags whose names differ only in their Unicode normalisation"
        remedy = "They look the same but are different slides: rename one, or remove one."
        yield Finding("warning", "normalisation", sentence, remedy, tuple(map(ascii, same)))


def find_patient_problems(cohort: CohortLabels) -> Iterator[Finding]:
    """Find patients whose slides have different labels."""
    slides: dict[str, list[str]] = {}
    for bag_id, patient in cohort.patient.items():
        if patient is not None and cohort.label[bag_id] is not None:
            slides.setdefault(patient, []).append(bag_id)
    mixed = {
        patient: ids
        for patient, ids in slides.items()
        if len({cohort.label[bag_id] for bag_id in ids}) > 1
    }
    if mixed:
        sentence = (
            f"patients with slides of several classes ({len(mixed)}): {first_names(list(mixed))}"
        )
        remedy = "Correct if slides are classified; to classify patients, each needs one class."
        yield Finding(
            "warning",
            "patient-labels",
            sentence,
            remedy,
            tuple(bag_id for ids in mixed.values() for bag_id in ids),
        )


def find_split_problems(
    cohort: CohortLabels, splits: Sequence[Sequence[Split]]
) -> Iterator[Finding]:
    """Find invalid splits, and patients in two subsets of a split."""
    problems: dict[str, None] = {}
    # By patient: where it was first found in two subsets, and the slides.
    leaks: dict[str, tuple[str, list[str]]] = {}
    for fold, split in _folds(splits):
        try:
            check_split(split, cohort.ids)
        except SplitError as error:
            problems[f"{fold}: {str(error).rstrip('.')}"] = None
            continue
        for (one, first), (other, second) in combinations(split._asdict().items(), 2):
            sides = [_ids_by_patient(cohort, subset) for subset in (first, second)]
            for patient in sides[0].keys() & sides[1].keys():
                slides = sides[0][patient] + sides[1][patient]
                leaks.setdefault(patient, (f"{patient} in {one} and {other} of {fold}", slides))
    for problem in problems:
        yield Finding("error", "split", problem, "Make the splits again.")
    if leaks:
        places = [place for place, _ in leaks.values()]
        slides = [bag_id for _, ids in leaks.values() for bag_id in ids]
        sentence = f"patients in two subsets of a split ({len(leaks)}): {first_names(places)}"
        yield Finding(
            "error",
            "leak",
            sentence,
            "Split by patient: groups = the patient of every bag.",
            tuple(slides),
        )


def _ids_by_patient(cohort: CohortLabels, subset: Sequence[int]) -> dict[str, list[str]]:
    """Return the bags of each known patient."""
    ids = [cohort.ids[i] for i in subset]
    groups = group_positions(cohort.patient[bag_id] for bag_id in ids)
    return {
        patient: [ids[i] for i in positions]
        for patient, positions in groups.items()
        if isinstance(patient, str)
    }


def find_duplicates(
    cohort: CohortLabels, facts: Sequence[BagFacts], splits: Sequence[Sequence[Split]]
) -> Iterator[Finding]:
    """Find bags with the same content."""
    groups: dict[bytes, list[BagFacts]] = {}
    for fact in facts:
        if fact.instances and not fact.constant:  # constant bags are reported as such
            groups.setdefault(fact.content[1], []).append(fact)
    twice = [group for group in groups.values() if len(group) > 1]
    subsets = [_subset_of_bags(cohort, split) for _, split in _folds(splits)] if twice else []
    for group in twice:
        slides = tuple(fact.id for fact in group)
        sentence = f"{len(group)} bags have the same content"
        if len({fact.content[0] for fact in group}) > 1:
            sentence += ", in another order of rows"
        contradictory = len({cohort.label[bag_id] for bag_id in slides} - {None}) > 1
        leaking = any(len({of.get(bag_id) for bag_id in slides} - {None}) > 1 for of in subsets)
        sentence += ", but different labels" * contradictory
        sentence += ", and are in two subsets of a split" * leaking
        severity = "error" if contradictory or leaking else "warning"
        yield Finding(
            severity,
            "duplicate",
            sentence,
            "Keep one of them: one slide has several names.",
            slides,
        )


def find_confounders(cohort: CohortLabels, facts: Sequence[BagFacts]) -> Iterator[Finding]:
    """Find properties of slides, such as the scanner, that predict the class."""
    for key in CONFOUNDERS:
        pairs = [(cohort.label[fact.id], _value(fact, key)) for fact in facts]
        known = [
            (cohort.classes[label], value)
            for label, value in pairs
            if label is not None and value is not None
        ]
        association, p = cramers_v(known)
        if association >= STRONG_ASSOCIATION and p < SIGNIFICANT:
            shares = []
            for name in cohort.classes:
                values = Counter(value for label, value in known if label == name)
                for value, n in values.most_common(1):
                    shares.append(f"{name} has {_shorten_value(value)} in {n} of {values.total()}")
            sentence = f"the class is associated with {key}: {', '.join(shares)}"
            remedy = (
                f"A model may learn the {key} instead of the disease: evaluate within each group."
            )
            yield Finding("warning", f"confounded-{key}", sentence, remedy)


def cramers_v(pairs: Iterable[tuple[Hashable, Hashable]]) -> tuple[float, float]:
    """Return Cramér's V of two properties, from 0 to 1, and the p-value of the chi-squared test.

    >>> association, p = cramers_v([("a", 1)] * 5 + [("b", 2)] * 5)
    >>> round(association, 3), round(p, 4)
    (1.0, 0.0016)
    >>> cramers_v([("a", 1), ("b", 1)])
    (0.0, 1.0)
    """
    counts = Counter(pairs)
    rows, columns = Counter[Hashable](), Counter[Hashable]()
    for (row, column), n in counts.items():
        rows[row] += n
        columns[column] += n
    fewer = min(len(rows), len(columns)) - 1
    if fewer < 1:
        return 0.0, 1.0
    total = counts.total()
    expected = {
        (row, column): rows[row] * columns[column] / total for row in rows for column in columns
    }
    statistic = sum((counts[cell] - value) ** 2 / value for cell, value in expected.items())
    freedom = (len(rows) - 1) * (len(columns) - 1)
    return math.sqrt(statistic / total / fewer), float(
        import_extra("scipy.stats", "statistics").chi2.sf(statistic, freedom)
    )


def _folds(splits: Sequence[Sequence[Split]]) -> Iterator[tuple[str, Split]]:
    """Yield all splits with their fold and repeat as text."""
    for repeat, folds in enumerate(splits):
        for fold, split in enumerate(folds):
            yield f"fold {fold}" + (f" of repeat {repeat}" if len(splits) > 1 else ""), split


def _subset_of_bags(cohort: CohortLabels, split: Split) -> dict[str, str]:
    """Return the subset of a split that contains each bag; invalid positions are left out."""
    valid = range(len(cohort.ids))
    return {
        cohort.ids[i]: name
        for name, subset in split._asdict().items()
        for i in subset
        if i in valid
    }


def _value(fact: BagFacts, key: str) -> Hashable:
    """Return a property of a bag for comparison."""
    return comparable(fact.dim if key == "dim" else fact.provenance.get(key))


def _shorten_value(value: Hashable) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"{text[:12]}…"


def _texts(warnings: object) -> list[str]:
    if isinstance(warnings, str):
        return [warnings]
    return [str(text) for text in warnings] if isinstance(warnings, (list, tuple)) else []


def _ids(facts: Sequence[BagFacts], holds: Callable[[BagFacts], bool]) -> tuple[str, ...]:
    return tuple(fact.id for fact in facts if holds(fact))


def _bags(ids: Sequence[str]) -> str:
    return f"{len(ids)} bag{'s' * (len(ids) > 1)}"
