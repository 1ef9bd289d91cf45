"""Outcomes of synthetic patients depend on their tissue in a known way, or not at all."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from synthetic_slides import level, resolution

from scmil.bags.target_tables import TargetColumns, read_targets
from scmil.errors import OptionError
from scmil.slides.synthetic import SyntheticSlide, draw_patients, oracle_concordance, paint_cohort
from scmil.slides.synthetic.outcomes import COLUMNS, MOST_FRACTION, Patient, PlantedTissue
from scmil.slides.synthetic.scanners import SCANNERS
from scmil.slides.synthetic.slide import SlideOptions, generate_slide
from scmil.stats.concordance import concordance

SMALL = dict(size=(1000, 1000), mpp=2.0)


def draw(n: int, seed: int = 0, outcomes: str = "planted") -> list[Patient]:
    return draw_patients([i % 2 == 0 for i in range(n)], seed, outcomes)


def times_of(patients: Sequence[Patient]) -> tuple[list[float], list[bool]]:
    return [p.months for p in patients], [p.event for p in patients]


@pytest.mark.parametrize("seed", range(6))
def test_a_small_cohort_has_the_signal_and_a_random_one_has_not(seed: int) -> None:
    planted, random = draw(24, seed), draw(24, seed, "random")
    assert oracle_concordance(planted) > 0.78
    assert abs(oracle_concordance(random) - 0.5) < 0.25
    assert [p.tissue for p in random] == [p.tissue for p in planted]
    assert sorted(p.months for p in random) == sorted(p.months for p in planted)
    assert 0.4 < np.mean([p.event for p in planted]) < 0.9


def test_random_outcomes_have_no_signal_on_average() -> None:
    found = [oracle_concordance(draw(24, seed, "random")) for seed in range(60)]
    assert np.mean(found) == pytest.approx(0.5, abs=0.04)


def test_the_effects_on_the_hazard_are_those_that_are_documented() -> None:
    """The maximum of Cox's partial likelihood lies at 20 per unit of fraction and at -1.5."""
    torch = pytest.importorskip("torch")
    from scmil.models.target_losses import cox_loss

    patients = draw(600)
    months, events = (torch.tensor(each) for each in times_of(patients))
    x = torch.tensor([[p.tissue.fraction, p.tissue.inflammation] for p in patients]).double()
    weights = torch.zeros(2, dtype=torch.double, requires_grad=True)
    scale = torch.tensor([20.0, 1.0])
    optimiser = torch.optim.LBFGS([weights], line_search_fn="strong_wolfe")

    def closure() -> float:
        optimiser.zero_grad()
        loss = cox_loss(x @ (weights * scale), months.double(), events)
        loss.backward()
        return float(loss.detach())

    optimiser.step(closure)
    fraction, inflammation = (weights * scale).tolist()
    assert fraction == pytest.approx(20, rel=0.15)
    assert inflammation == pytest.approx(-1.5, abs=0.3)


def test_labels_are_those_of_the_tissue_and_some_are_missing() -> None:
    patients = draw(24)
    tumours = [p for p in patients if p.tissue.fraction]
    assert len(tumours) == 12
    assert {p.tissue.grade for p in patients} == {0, 1, 2, 3}
    assert all(p.tissue.grade == 0 and not p.tissue.necrosis for p in patients[1::2])
    assert sum(p.tissue.necrosis for p in tumours) == 6
    assert sum(p.tissue.inflammation for p in patients) == 12
    assert max(p.tissue.fraction for p in patients) > 0.9 * MOST_FRACTION
    assert [sum(p.unknown == name for p in patients) for name in ("inflammation", "necrosis")] == [
        4,
        4,
    ]
    assert PlantedTissue(0.3, inflammation=True).log_hazard == pytest.approx(4.5)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return paint_cohort(
        tmp_path_factory.mktemp("cohort"),
        slides=3,
        seed=4,
        outcomes="planted",
        scanner="b",
        **SMALL,
    )


def test_every_task_finds_its_columns(table: Path) -> None:
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert list(rows[0]) == ["case_id", "slide_id", "label", *COLUMNS]
    survival = read_targets(table, "survival")
    assert (survival.target.time, survival.target.event) == ("os_months", "os_event")
    assert survival.patients == ("b_patient_001", "b_patient_002", "b_patient_003")
    number = read_targets(table, "regression", TargetColumns(label=["tumour_fraction"]))
    grade = read_targets(table, "ordinal", TargetColumns(label=["grade"]))
    labels = read_targets(table, "multilabel", TargetColumns(label=["inflammation", "necrosis"]))
    for targets in (survival, number, grade, labels):
        assert len(targets.known) == 3  # no slide lacks both labels
    tumour = [row["label"] == "tumour" for row in rows]
    assert [float(v) > 0 for v in number.values] == tumour
    times, events = survival.array(survival.ids).T
    hazard = [float(row["true_log_hazard"]) for row in rows]
    patients = draw_patients(tumour, 4, "planted")
    assert concordance(times, events, hazard) == oracle_concordance(patients)


@pytest.mark.slow
def test_slides_of_two_hospitals_differ_in_colour_resolution_and_names(
    table: Path, tmp_path: Path
) -> None:
    other = paint_cohort(tmp_path, slides=3, seed=4, outcomes="planted", **SMALL)
    slides = [tmp_path / "slide_001.svs", table.parent / "b_slide_001.svs"]
    assert other.read_text().splitlines()[1].split(",")[-2] == "a"
    glass = [np.median(level(path, 0)[:40, :40], axis=(0, 1)) for path in slides]
    assert glass[0] == pytest.approx([243, 242, 244], abs=3)
    assert glass[1] == pytest.approx([231, 232, 229], abs=4)
    mean = [level(path, 0)[300:700, 300:700].mean(axis=(0, 1)) for path in slides]
    assert np.abs(mean[0] - mean[1]).max() > 15


@pytest.mark.slow
def test_a_scanner_has_its_own_resolution(tmp_path: Path) -> None:
    for name in SCANNERS:
        paint_cohort(tmp_path / name, slides=1, size=(1000, 1000), scanner=name)
    assert resolution(tmp_path / "a" / "slide_001.svs") == 0.5
    assert resolution(tmp_path / "b" / "b_slide_001.svs") == pytest.approx(0.46)


def one_slide(folder: Path, **options: object) -> SyntheticSlide:
    chosen = SlideOptions(size=(1000, 1000), mpp=1.0, seed=2, folds=0, quality=95, **options)  # type: ignore[arg-type]
    name = "-".join(map(str, options)) or "plain"
    return generate_slide(folder / f"{name}.svs", chosen, Path.write_bytes)  # type: ignore[arg-type]


@pytest.mark.slow
def test_inflammation_and_necrosis_change_what_they_cover(tmp_path: Path) -> None:
    plain, inflamed, necrotic = (
        level(one_slide(tmp_path, tumour=1, tumour_area=0.2, **more).path, 0)
        for more in ({}, {"inflammation": True}, {"necrosis": True})
    )
    changed = [np.abs(plain - other).max(axis=2) > 30 for other in (inflamed, necrotic)]
    tissue = (plain.mean(axis=2) < 225).mean()
    assert 0.1 < changed[0].mean() / tissue < 0.5
    assert 0.02 < changed[1].mean() / tissue < 0.2 * 0.45
    # Necrosis is pink: nuclei are dark and blue.
    assert necrotic[changed[1]].mean() > plain[changed[1]].mean() + 10


def test_slides_without_the_new_options_keep_their_digest() -> None:
    """The digest is in the file: with another one, existing slides were generated again."""
    assert SlideOptions().digest() == "6a6e4b628b2628d2"
    assert SlideOptions(necrosis=True).digest() != SlideOptions().digest()
    assert SlideOptions(scanner="b").digest() != SlideOptions().digest()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(outcomes="survival"), "outcomes = 'survival'; expected one of none, planted, random"),
        (dict(scanner="c"), "scanner = 'c'; expected one of a, b"),
    ],
)
def test_unknown_outcomes_and_scanners_are_rejected(
    tmp_path: Path, options: dict[str, str], words: str
) -> None:
    with pytest.raises(OptionError, match=words):
        paint_cohort(tmp_path, **options)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
