"""A synthetic slide that several tests read."""

from __future__ import annotations

import pytest

from scmil.slides.synthetic import SyntheticSlide, paint


@pytest.fixture(scope="module")
def slide(tmp_path_factory: pytest.TempPathFactory) -> SyntheticSlide:
    return paint(
        tmp_path_factory.mktemp("slide") / "case.svs",
        size=(2600, 2100),
        seed=3,
        tumour=2,
        annotations=True,
    )
