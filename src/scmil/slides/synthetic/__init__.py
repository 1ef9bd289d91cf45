"""Synthetic H&E slides with known tumours, generated from a seed, for tests and demos."""

from scmil.slides.synthetic.cohort import paint_cohort
from scmil.slides.synthetic.outcomes import draw_patients, oracle_concordance
from scmil.slides.synthetic.slide import SyntheticSlide, paint

__all__ = ["SyntheticSlide", "draw_patients", "oracle_concordance", "paint", "paint_cohort"]
