"""What is wrong with the data, before a model is trained on it: every bag is read once, one at a time.

An error makes results wrong, a warning may, a note is worth knowing. Each finding says what to do about it.
"""

from __future__ import annotations

import hashlib
import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scmil.bags.bag import Bag, BagSet
from scmil.errors import SplitError
from scmil.core.extras import need
from scmil.bags.labels import Labels, other_normalisation, slide_id
from scmil.bags.splits import Split, check_split

SEVERITIES = ("error", "warning", "note")
FEW = 3  # slide names in a line of the terminal
IMBALANCE = 3.0  # the largest class over the smallest
OUTLIER = 10.0  # times more or fewer instances than the median bag
STRONG_ASSOCIATION = 0.5  # Cramér's V
SIGNIFICANT = 0.05
HALF_RANGE = (1e-3, 6e4)  # largest features between these keep their differences in 16 bits
# What has to be the same in all bags, what it is called, how bad it is if it is not, and what to do.
SAME_EVERYWHERE = (
    ("encoder", "encoders", "error", "Encode all slides with one encoder."),
    ("encoder_digest", "weights of the encoder", "error", "Encode all slides with the same weights."),
    ("size_px", "tile sizes in pixels", "error", "Tile and encode all slides with one tile size."),
    ("mpp", "resolutions of tiles (mpp)", "error", "Tile and encode all slides at one resolution."),
    ("overlap_px", "overlaps of tiles", "note", "Bags of overlapping tiles are larger; tile all slides alike."),
)
# What may stand for the class, and lets a model be right for the wrong reason.
CONFOUNDERS = ("vendor", "scanner", "slide_mpp", "objective", "encoder", "dim")


@dataclass(frozen=True)
class Finding:
    """One thing that was found: how bad, a code for programs, the slides, a sentence, what to do."""

    severity: str
    code: str
    sentence: str
    remedy: str
    slides: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.code}: {self.sentence}{f' ({few(self.slides)})' if self.slides else ''}. {self.remedy}"


@dataclass(frozen=True)
class Audit:
    """All findings, the worst first, and what was counted."""

    findings: tuple[Finding, ...]
    counts: Mapping[str, Any]

    @property
    def ok(self) -> bool:
        """Whether there is no error; warnings and notes may be there."""
        return all(finding.severity != "error" for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """All of it for programs, as `json.dumps` takes it; every slide is named."""
        return {"ok": self.ok, "counts": dict(self.counts), "findings": [asdict(finding) for finding in self.findings]}

    def lines(self) -> list[str]:
        """All of it for people: counts, then findings by severity."""
        counts = self.counts
        dims = " and ".join(counts["dims"])
        sizes = f"{counts['smallest']} to {counts['largest']} in a bag, median {counts['median']:g}"
        lines = [
            f"{counts['bags']} bags of {counts['patients']} patients{f', {dims}-dimensional features' if dims else ''}",
            f"{counts['instances']} instances: {sizes}" if counts["instances"] else "no instances",
            "classes: " + (", ".join(f"{name} {n}" for name, n in counts["classes"].items()) or "none known"),
        ]
        for severity in SEVERITIES:
            found = [finding for finding in self.findings if finding.severity == severity]
            lines += [f"{len(found)} {severity}{'s' * (len(found) > 1)}"] * bool(found)
            lines += [f"  {finding}" for finding in found]
        return lines if self.findings else [*lines, "nothing is wrong"]


def audit(
    bags: BagSet,
    labels: Labels | None = None,
    splits: Sequence[Sequence[Split]] | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Audit:
    """Look through all bags, their labels and splits for what would spoil a result.

    Labels and patients are those of `labels`, or of the bags themselves. `splits` are repeats of folds, as `load_splits`
    gives them. `progress` is told how many bags of how many are read.

    >>> same = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> found = audit(BagSet([Bag("a", same, 0), Bag("b", same.flip(0), 1), Bag("c", same + 1, 1)]))
    >>> found.ok, found.findings[0].code, found.findings[0].slides
    (False, 'duplicate', ('a', 'b'))
    """
    cohort = _Cohort.of(bags, labels)
    facts: list[_Facts] = []
    span = _Span()
    findings: list[Finding] = []
    for position, id in enumerate(bags.ids):
        try:
            facts.append(_Facts.of(bags[position], span))
        except Exception as error:  # whatever a damaged file raises: one bag must not end the audit of the others
            cause = " ".join(str(error).split()) or type(error).__name__
            findings.append(Finding("error", "unreadable", f"a bag cannot be read: {cause}", "Make it again.", (id,)))
        if progress is not None:
            progress(position + 1, len(bags))
    findings += [
        *_features(facts, span),
        *_mixtures(facts),
        *_sizes(facts),
        *_labels(cohort, labels),
        *_patients(cohort),
        *_splits(cohort, splits or ()),
        *_duplicates(cohort, facts, splits or ()),
        *_confounders(cohort, facts),
    ]
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    return Audit(tuple(findings), _counts(cohort, facts, len(bags) - len(facts)))


# ---------------------------------------------------------------------------------------------------- what is looked at


class _Facts(NamedTuple):
    """What is kept of a bag when its features are gone."""

    id: str
    instances: int
    dim: int
    broken: int  # instances with NaN or infinity
    constant: bool
    content: tuple[bytes, bytes]  # as it is, and whatever the order of its rows
    provenance: Mapping[str, Any]

    @classmethod
    def of(cls, bag: Bag, span: _Span) -> _Facts:
        features = bag.features.detach().cpu()
        broken = int((~torch.isfinite(features)).any(1).sum())
        constant = len(features) > 1 and bool((features == features[0]).all())
        if len(features) and not broken:
            span.add(features)
        n, p = features.shape
        return cls(bag.id, n, p, broken, constant, fingerprint(features), bag.provenance)


@dataclass
class _Span:
    """The smallest and the largest value of every feature, over the bags of each dimension."""

    of_dim: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def add(self, features: Tensor) -> None:
        low, high = features.amin(0), features.amax(0)
        before = self.of_dim.get(features.shape[1], (low, high))
        self.of_dim[features.shape[1]] = torch.minimum(before[0], low), torch.maximum(before[1], high)


@dataclass(frozen=True)
class _Cohort:
    """The class and the patient of each bag, whoever knows them."""

    ids: tuple[str, ...]
    label: dict[str, int | None]
    patient: dict[str, str | None]
    classes: tuple[str, ...]

    @classmethod
    def of(cls, bags: BagSet, labels: Labels | None) -> _Cohort:
        if labels is None:
            known = dict(zip(bags.ids, zip(bags.labels, bags.patients, strict=True), strict=True))
        else:
            known = {id: labels.of(id) for id in bags.ids}
        label, patient = {id: pair[0] for id, pair in known.items()}, {id: pair[1] for id, pair in known.items()}
        return cls(bags.ids, label, patient, bags.classes if labels is None else labels.classes)

    def counts(self) -> dict[str, int]:
        met = Counter(self.label.values())
        return {name: met[number] for number, name in enumerate(self.classes)}


def fingerprint(features: Tensor) -> tuple[bytes, bytes]:
    """Two digests of a bag's content, rounded to 16 bits: of its rows in their order, and in any order.

    >>> one, other = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[3.0, 4.0], [1.0, 2.0]])
    >>> [first == second for first, second in zip(fingerprint(one), fingerprint(other))]
    [False, True]
    """
    largest = float(features.abs().max()) if features.numel() else 0.0
    rounded = features.half() if HALF_RANGE[0] < largest < HALF_RANGE[1] else features
    rows = [hashlib.blake2b(row, digest_size=16).digest() for row in (rounded + 0.0).contiguous().numpy()]
    shape = str(tuple(features.shape)).encode()
    return hashlib.sha256(shape + b"".join(rows)).digest(), hashlib.sha256(shape + b"".join(sorted(rows))).digest()


def without_bag(labels: Labels, ids: Iterable[str]) -> tuple[str, ...]:
    """The slides of a table that have a label and no bag."""
    here = set(map(slide_id, ids))
    return tuple(id for id, name in zip(labels.ids, labels.names) if name is not None and id not in here)


def few(slides: Sequence[str]) -> str:
    """Some names of many.

    >>> few(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    return ", ".join(slides[:FEW]) + (f" and {len(slides) - FEW} more" if len(slides) > FEW else "")


def _counts(cohort: _Cohort, facts: Sequence[_Facts], unreadable: int) -> dict[str, Any]:
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
        "patients": len({patient or (id,) for id, patient in cohort.patient.items()}),  # unknown ones count each
    }


# -------------------------------------------------------------------------------------------------------------- checks


def _features(facts: Sequence[_Facts], span: _Span) -> Iterator[Finding]:
    if empty := _ids(facts, lambda fact: fact.instances == 0):
        yield Finding(
            "error", "empty", f"{_bags(empty)} without instances", "Leave them out: no tissue was found.", empty
        )
    if broken := _ids(facts, lambda fact: fact.broken > 0):
        remedy = "Encode these slides again; half precision overflows with some encoders."
        yield Finding("error", "not-finite", f"{_bags(broken)} with NaN or infinity", remedy, broken)
    if constant := _ids(facts, lambda fact: fact.constant):
        remedy = "Look at the tiles: blank slides and encoders without weights give this."
        yield Finding(
            "warning", "constant-bag", f"{_bags(constant)} in which all instances are equal", remedy, constant
        )
    for dim, (low, high) in span.of_dim.items():
        dead = int((low == high).sum())
        if dead and len(facts) > 1:
            sentence = f"{dead} of {dim} features have one value in all bags"
            yield Finding("note", "constant-feature", sentence, "They tell nothing; a smaller encoder may do.")


def _mixtures(facts: Sequence[_Facts]) -> Iterator[Finding]:
    yield from _mixed("dim", "dimensions", "error", "Encode all slides with one encoder.", facts)
    for key, what, severity, remedy in SAME_EVERYWHERE:
        yield from _mixed(key, what, severity, remedy, facts)
    said: dict[str, list[str]] = {}
    for fact in facts:
        for text in _texts(fact.provenance.get("warnings")):
            said.setdefault(text.rstrip("."), []).append(fact.id)
    for text, slides in said.items():
        yield Finding("warning", "provenance", text, "It was noticed when the bag was made.", tuple(slides))


def _mixed(key: str, what: str, severity: str, remedy: str, facts: Sequence[_Facts]) -> Iterator[Finding]:
    groups: dict[Hashable, list[str]] = {}
    for fact in facts:
        groups.setdefault(_value(fact, key), []).append(fact.id)
    groups.pop(None, None)  # not known: cannot be compared
    if len(groups) > 1:
        ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
        sizes = ", ".join(f"{_short(value)} in {len(slides)}" for value, slides in ordered[: FEW + 1])
        rest = tuple(id for _, slides in ordered[1:] for id in slides)
        yield Finding(severity, f"mixed-{key}", f"{len(groups)} different {what}: {sizes}", remedy, rest)


def _sizes(facts: Sequence[_Facts]) -> Iterator[Finding]:
    sizes = [fact.instances for fact in facts if fact.instances]
    middle = median(sizes or [0])
    odd = _ids(facts, lambda f: f.instances > OUTLIER * middle or 0 < f.instances < middle / OUTLIER)
    if odd:
        sentence = f"{_bags(odd)} with {OUTLIER:g} times more or fewer instances than the median of {middle:g}"
        yield Finding("note", "size", sentence, "Look at their tissue masks.", odd)


def _labels(cohort: _Cohort, labels: Labels | None) -> Iterator[Finding]:
    if without := tuple(id for id, label in cohort.label.items() if label is None):
        remedy = "Label them, or leave them out of training."
        yield Finding("warning", "no-label", f"{_bags(without)} without a label", remedy, without)
    if labels is not None:
        if lost := without_bag(labels, cohort.ids):
            remedy = "Encode these slides, or check that file names and ids agree."
            yield Finding(
                "warning", "no-bag", f"labelled slides without a bag: {len(lost)} of {len(labels)}", remedy, lost
            )
        for name, those in labels.spellings.items():
            sentence = f"{', '.join(map(repr, those))} are taken for one class, {name!r}"
            remedy = "Write a class in one way; if these are different classes, give them different names."
            yield Finding("warning", "spelling", sentence, remedy)
        if pairs := other_normalisation(cohort.ids, labels.ids):
            sentence = (
                f"{_bags(tuple(pairs))} without a label only because the name is in another Unicode normalisation"
            )
            remedy = f"Rename the files, or correct the table: {', '.join(map(ascii, pairs.values()))}."
            yield Finding("error", "normalisation", sentence, remedy, tuple(map(ascii, pairs)))
    normal: dict[str, list[str]] = {}
    for id in cohort.ids:
        normal.setdefault(unicodedata.normalize("NFC", id), []).append(id)
    for same in (ids for ids in normal.values() if len(ids) > 1):
        sentence = f"{len(same)} bags whose names differ only in their Unicode normalisation"
        remedy = "They look the same and are different slides to every program: rename one, or keep one."
        yield Finding("warning", "normalisation", sentence, remedy, tuple(map(ascii, same)))
    counts = cohort.counts()
    present = {name: n for name, n in counts.items() if n}
    if absent := [name for name, n in counts.items() if not n]:
        yield Finding("warning", "absent-class", f"no bag is of class {few(absent)}", "No model can learn it.")
    if present and max(present.values()) >= IMBALANCE * min(present.values()):
        sizes = ", ".join(f"{name} {n}" for name, n in present.items())
        remedy = "Judge by AUC or balanced accuracy, and stratify the splits."
        yield Finding("note", "imbalance", f"classes of different size: {sizes}", remedy)


def _patients(cohort: _Cohort) -> Iterator[Finding]:
    slides: dict[str, list[str]] = {}
    for id, patient in cohort.patient.items():
        if patient is not None and cohort.label[id] is not None:
            slides.setdefault(patient, []).append(id)
    torn = {patient: ids for patient, ids in slides.items() if len({cohort.label[id] for id in ids}) > 1}
    if torn:
        sentence = f"patients with slides of several classes ({len(torn)}): {few(list(torn))}"
        remedy = "Right if slides are judged one by one; a judgement of patients needs one class each."
        yield Finding("warning", "patient-labels", sentence, remedy, tuple(id for ids in torn.values() for id in ids))


def _splits(cohort: _Cohort, splits: Sequence[Sequence[Split]]) -> Iterator[Finding]:
    problems: dict[str, None] = {}
    leaks: dict[str, tuple[str, list[str]]] = {}  # patient: where it was first seen in two parts, and the slides
    for fold, split in _folds(splits):
        try:
            check_split(split, cohort.ids)
        except SplitError as error:
            problems[f"{fold}: {str(error).rstrip('.')}"] = None
            continue
        for (one, first), (other, second) in combinations(split._asdict().items(), 2):
            sides = [_by_patient(cohort, part) for part in (first, second)]
            for patient in sides[0].keys() & sides[1].keys():
                slides = sides[0][patient] + sides[1][patient]
                leaks.setdefault(patient, (f"{patient} in {one} and {other} of {fold}", slides))
    for problem in problems:
        yield Finding("error", "split", problem, "Split again.")
    if leaks:
        wheres, slides = [where for where, _ in leaks.values()], [id for _, ids in leaks.values() for id in ids]
        sentence = f"patients in two parts of a split ({len(leaks)}): {few(wheres)}"
        yield Finding("error", "leak", sentence, "Split by patient: groups = the patient of every bag.", tuple(slides))


def _by_patient(cohort: _Cohort, part: Sequence[int]) -> dict[str, list[str]]:
    slides: dict[str, list[str]] = {}
    for id in (cohort.ids[i] for i in part):
        if (patient := cohort.patient[id]) is not None:
            slides.setdefault(patient, []).append(id)
    return slides


def _duplicates(cohort: _Cohort, facts: Sequence[_Facts], splits: Sequence[Sequence[Split]]) -> Iterator[Finding]:
    groups: dict[bytes, list[_Facts]] = {}
    for fact in facts:
        if fact.instances and not fact.constant:  # constant bags are reported as such
            groups.setdefault(fact.content[1], []).append(fact)
    twice = [group for group in groups.values() if len(group) > 1]
    parts = [_parts(cohort, split) for _, split in _folds(splits)] if twice else []
    for group in twice:
        slides = tuple(fact.id for fact in group)
        sentence = f"{len(group)} bags have the same content"
        if len({fact.content[0] for fact in group}) > 1:
            sentence += ", in another order of rows"
        torn = len({cohort.label[id] for id in slides} - {None}) > 1
        apart = any(len({part.get(id) for id in slides} - {None}) > 1 for part in parts)
        sentence += ", but different labels" * torn + ", and are in two parts of a split" * apart
        severity = "error" if torn or apart else "warning"
        yield Finding(severity, "duplicate", sentence, "Keep one: the same slide has two names.", slides)


def _confounders(cohort: _Cohort, facts: Sequence[_Facts]) -> Iterator[Finding]:
    """Whether the class can be told from how a slide was made."""
    for key in CONFOUNDERS:
        pairs = [(cohort.label[fact.id], _value(fact, key)) for fact in facts]
        known = [(cohort.classes[label], value) for label, value in pairs if label is not None and value is not None]
        association, p = cramers_v(known)
        if association >= STRONG_ASSOCIATION and p < SIGNIFICANT:
            shares = []
            for name in cohort.classes:
                values = Counter(value for label, value in known if label == name)
                for value, n in values.most_common(1):
                    shares.append(f"{name} has {_short(value)} in {n} of {values.total()}")
            sentence = f"the class goes with {key}: {', '.join(shares)}"
            remedy = "A model may learn how slides were made, not the disease: test within each group."
            yield Finding("warning", f"confounded-{key}", sentence, remedy)


def cramers_v(pairs: Iterable[tuple[Hashable, Hashable]]) -> tuple[float, float]:
    """How strongly two properties go together, from 0 to 1, and the p-value of Pearson's chi-squared test.

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
    expected = {(row, column): rows[row] * columns[column] / total for row in rows for column in columns}
    statistic = sum((counts[cell] - value) ** 2 / value for cell, value in expected.items())
    freedom = (len(rows) - 1) * (len(columns) - 1)
    return math.sqrt(statistic / total / fewer), float(need("scipy.stats", "statistics").chi2.sf(statistic, freedom))


def _folds(splits: Sequence[Sequence[Split]]) -> Iterator[tuple[str, Split]]:
    for repeat, folds in enumerate(splits):
        for fold, split in enumerate(folds):
            yield f"fold {fold}" + (f" of repeat {repeat}" if len(splits) > 1 else ""), split


def _parts(cohort: _Cohort, split: Split) -> dict[str, str]:
    """In which part of a split each bag is; what is not there cannot be in two."""
    there = range(len(cohort.ids))
    return {cohort.ids[i]: name for name, part in split._asdict().items() for i in part if i in there}


def _value(fact: _Facts, key: str) -> Hashable:
    """A property of a bag for comparison; lengths that agree to two digits are the same scanner's."""
    value = fact.dim if key == "dim" else fact.provenance.get(key)
    if isinstance(value, float):
        return float(f"{value:.2g}")
    return value if value is None or isinstance(value, (int, str)) else str(value)


def _short(value: Hashable) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"{text[:12]}…"


def _texts(warnings: object) -> list[str]:
    if isinstance(warnings, str):
        return [warnings]
    return [str(text) for text in warnings] if isinstance(warnings, (list, tuple)) else []


def _ids(facts: Sequence[_Facts], holds: Callable[[_Facts], bool]) -> tuple[str, ...]:
    return tuple(fact.id for fact in facts if holds(fact))


def _bags(ids: Sequence[str]) -> str:
    return f"{len(ids)} bag{'s' * (len(ids) > 1)}"
