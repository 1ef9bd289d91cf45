"""What the patients of a synthetic cohort have in their tissue, and the outcomes that follow.

The tumour fraction of the tissue and inflammation determine the hazard:

    log hazard = 20 * tumour fraction - 1.5 if there is inflammation

Times follow a Weibull distribution of shape 2 with this hazard ratio, and a median of 40 months
without tumour and inflammation. Follow-up ends between 12 and 96 months, independently of the
tissue. The tumour fraction, the grade (0 without tumour, 1 to 3 by thirds of the fraction),
inflammation and necrosis are those of the tissue, without an error.

Quantities are drawn in strata, one for each patient, so that a small cohort has nearly the
distribution of a large one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scmil.errors import OptionError
from scmil.stats.concordance import concordance

# Classes only; outcomes of the tissue; outcomes of other patients, which the tissue does not tell.
OUTCOMES = ("none", "planted", "random")
LEAST_FRACTION, MOST_FRACTION = 0.05, 0.30
GRADES = 3  # of tumours, beside 0
TUMOUR_EFFECT, INFLAMMATION_EFFECT = 20.0, -1.5  # on the log hazard
SHAPE, MEDIAN_MONTHS = 2.0, 40.0
FOLLOW_UP_MONTHS = (12.0, 96.0)
UNKNOWN = 1 / 6  # of the patients, for each of two labels
COLUMNS = (
    "os_months",
    "os_event",
    "tumour_fraction",
    "grade",
    "inflammation",
    "necrosis",
    "sex",
    "scanner",
    "true_log_hazard",
)


@dataclass(frozen=True)
class PlantedTissue:
    """What the slides of a patient show.

    Attributes:
        fraction: The fraction of the tissue that is tumour; 0 without tumour.
        inflammation: Whether there is a dense infiltrate of lymphocytes.
        necrosis: Whether the tumours have a necrotic centre.
    """

    fraction: float
    inflammation: bool = False
    necrosis: bool = False

    @property
    def log_hazard(self) -> float:
        """The logarithm of the hazard, relative to no tumour and no inflammation.

        >>> PlantedTissue(0.1).log_hazard, PlantedTissue(0.1, inflammation=True).log_hazard
        (2.0, 0.5)
        """
        return TUMOUR_EFFECT * self.fraction + INFLAMMATION_EFFECT * self.inflammation

    @property
    def grade(self) -> int:
        """0 without tumour, 1 to 3 by the fraction.

        >>> [PlantedTissue(fraction).grade for fraction in (0.0, 0.05, 0.2, 0.3)]
        [0, 1, 2, 3]
        """
        if not self.fraction:
            return 0
        share = (self.fraction - LEAST_FRACTION) / (MOST_FRACTION - LEAST_FRACTION)
        return 1 + min(GRADES - 1, int(share * GRADES))


@dataclass(frozen=True)
class Patient:
    """The tissue of a patient, and what the table says.

    Attributes:
        tissue: What the slides show.
        recorded: The tissue that the outcomes follow; that of another patient if they are random.
        months: Time to death or to the end of the follow-up.
        event: Whether it is death.
        unknown: The label that is missing: "inflammation" or "necrosis"; None if both are known.
        sex: "f" or "m", independent of everything else.
    """

    tissue: PlantedTissue
    recorded: PlantedTissue
    months: float
    event: bool
    unknown: str | None
    sex: str

    def cells(self, scanner: str) -> tuple[str | float | int, ...]:
        """The cells of `COLUMNS`."""
        labels = {"inflammation": self.recorded.inflammation, "necrosis": self.recorded.necrosis}
        return (
            f"{self.months:.2f}",
            int(self.event),
            f"{self.recorded.fraction:.4f}",
            self.recorded.grade,
            *("" if name == self.unknown else int(found) for name, found in labels.items()),
            self.sex,
            scanner,
            f"{self.tissue.log_hazard:.4f}",
        )


def draw_patients(has_tumour: Sequence[bool], seed: int, outcomes: str) -> list[Patient]:
    """Draw tissue and outcomes of patients with and without tumour.

    Args:
        has_tumour: Whether each patient has a tumour.
        seed: Determines everything.
        outcomes: "planted", or "random" for those of other patients.

    Returns:
        The patients. With "random", the tissue is the same as with "planted".

    >>> one, two = draw_patients([True, False], seed=0, outcomes="planted")
    >>> one.tissue.fraction > 0.05, two.tissue.fraction, two.tissue == two.recorded
    (True, 0.0, True)
    """
    generator = np.random.default_rng([seed, 52])
    tumour = np.array(has_tumour, dtype=bool)
    n = len(tumour)
    fraction = np.zeros(n)
    drawn = _strata(generator, int(tumour.sum()))
    fraction[tumour] = LEAST_FRACTION + (MOST_FRACTION - LEAST_FRACTION) * drawn
    inflammation, necrosis = np.zeros(n, bool), np.zeros(n, bool)
    for group in (tumour, ~tumour):
        inflammation[group] = _strata(generator, int(group.sum())) < 0.5
    necrosis[tumour] = _strata(generator, int(tumour.sum())) < 0.5
    tissue = [
        PlantedTissue(round(float(f), 4), bool(i), bool(d))
        for f, i, d in zip(fraction, inflammation, necrosis, strict=True)
    ]
    log_hazard = np.array([each.log_hazard for each in tissue])
    waited = -np.log1p(-_strata(generator, n)) / np.log(2)  # median 1
    death = MEDIAN_MONTHS * (waited * np.exp(-log_hazard)) ** (1 / SHAPE)
    first, last = FOLLOW_UP_MONTHS
    end = first + (last - first) * _strata(generator, n)
    months, events = np.maximum(np.minimum(death, end), 0.01), death <= end
    hidden, sexes = _strata(generator, n), _strata(generator, n)
    unknown = [
        "inflammation" if u < UNKNOWN else "necrosis" if u < 2 * UNKNOWN else None for u in hidden
    ]
    order = generator.permutation(n) if outcomes == "random" else np.arange(n)
    return [
        Patient(
            tissue[position],
            tissue[source],
            float(months[source]),
            bool(events[source]),
            unknown[source],
            "f" if sexes[position] < 0.5 else "m",
        )
        for position, source in enumerate(order.tolist())
    ]


def oracle_concordance(patients: Sequence[Patient]) -> float:
    """The concordance of the true log hazard, which no model exceeds except by chance.

    Args:
        patients: The patients of `draw_patients`.

    Returns:
        Harrell's concordance; about 0.5 for random outcomes.

    >>> tumour = [True, False] * 500
    >>> kinds = [draw_patients(tumour, 0, outcomes) for outcomes in ("planted", "random")]
    >>> [round(oracle_concordance(patients), 1) for patients in kinds]
    [0.9, 0.5]
    """
    months, events = [p.months for p in patients], [p.event for p in patients]
    return concordance(months, events, [p.tissue.log_hazard for p in patients])


def check_outcomes(outcomes: str) -> None:
    """Raise OptionError for an unknown kind of outcomes."""
    if outcomes not in OUTCOMES:
        raise OptionError(f"outcomes = {outcomes!r}; expected one of {', '.join(OUTCOMES)}.")


def _strata(generator: np.random.Generator, n: int) -> NDArray[np.float64]:
    """Numbers from 0 to 1 in random order, one in each of n equal parts."""
    return (generator.permutation(n) + generator.random(n)) / max(1, n)
