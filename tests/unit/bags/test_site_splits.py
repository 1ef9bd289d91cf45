"""All slides of a site, and so of its patients, are in one test split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scmil.bags.site_splits import join_groups, read_sites, site_folds, site_holdout
from scmil.errors import DataError, SplitError


def cohort(sites: int = 9, slides: int = 180, seed: int = 0) -> tuple[list[int], list[str]]:
    """Classes with other shares at each site, and sites of other sizes."""
    generator = np.random.default_rng(seed)
    site = generator.choice(sites, size=slides, p=generator.dirichlet(np.full(sites, 3.0)))
    labels = generator.random(slides) < generator.uniform(0.2, 0.8, sites)[site]
    return labels.astype(int).tolist(), [f"site{s}" for s in site]


def test_no_site_is_in_training_and_test() -> None:
    labels, sites = cohort()
    for folds in site_folds(labels, 4, 2, 0, sites):
        assert sorted(i for split in folds for i in split.test) == list(range(180))
        for split in folds:
            assert not {sites[i] for i in split.train} & {sites[i] for i in split.test}
            assert {labels[i] for i in split.test} == {0, 1}


def test_folds_have_similar_numbers_of_each_class() -> None:
    labels, sites = cohort(sites=15)
    [folds] = site_folds(labels, 3, 1, 0, sites)
    for c in (0, 1):
        counts = [sum(labels[i] == c for i in split.test) for split in folds]
        assert max(counts) - min(counts) <= 0.15 * labels.count(c)


def test_repeats_have_other_folds_and_a_seed_gives_the_same() -> None:
    labels, sites = cohort()
    first, second = site_folds(labels, 3, 2, 0, sites)
    assert first != second
    assert site_folds(labels, 3, 2, 0, sites) == [first, second]


def test_the_test_split_has_about_its_share() -> None:
    labels, sites = cohort(sites=15)
    split = site_holdout(labels, 0.3, 0, sites)
    assert 0.22 < len(split.test) / 180 < 0.38
    assert not {sites[i] for i in split.train} & {sites[i] for i in split.test}


def test_sites_that_share_a_patient_are_one_group() -> None:
    sites = ["a", "b", "c", "d", "b"]
    patients = ["p1", "p1", "p2", "p3", "p2"]
    assert join_groups(sites, patients) == ["a", "a", "a", "d", "a"]
    assert join_groups(sites, None) == sites


@pytest.mark.parametrize(
    ("labels", "sites", "message"),
    [
        ([0, 1, 0, 1], ["a", "a", "b", "b"], "2 sites for 3 splits, and a site cannot be divided"),
        ([0, 0, 1, 1, 0], ["a", "a", "b", "b", "c"], "no division of 3 sites into 3 splits"),
        ([0, None, 1], ["a", "b", "c"], "some bags have no label"),
    ],
)
def test_too_few_sites_are_rejected(
    labels: list[int | None], sites: list[str], message: str
) -> None:
    with pytest.raises(SplitError, match=message):
        site_folds(labels, 3, 1, 0, sites)


def test_an_impossible_share_is_rejected() -> None:
    with pytest.raises(SplitError, match=r"test = 1\.5"):
        site_holdout([0, 1], 1.5, 0, ["a", "b"])


def test_a_bag_without_a_site_is_named(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("slide_id,label,site\ns1,x,A\ns2,y,\n")
    assert read_sites(path, "site", ["s1.h5"]) == ["A"]
    with pytest.raises(DataError, match=r"1 of 2 bags have no site in the column 'site' \(s2\)"):
        read_sites(path, "site", ["s1", "s2"])
