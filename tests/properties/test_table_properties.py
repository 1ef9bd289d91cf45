"""Whatever bags are written, the same bags are read."""

from __future__ import annotations

import csv
import io

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from scmil.bags.datasets.table import Table, read_csv
from scmil.bags.datasets.table_files import read_npz, read_svm

names = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Z"]), min_size=1, max_size=5
)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    bags, n, p = len(sizes), sum(sizes), draw(st.integers(1, 4))
    finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
    features = draw(arrays(np.float32, (n, p), elements=finite))
    # Bags are numbered in order of appearance, but their instances may be mixed.
    bag = np.concatenate(
        [np.arange(bags), draw(st.permutations(np.repeat(np.arange(bags), np.array(sizes) - 1)))]
    )
    ids = draw(st.lists(names, min_size=bags, max_size=bags, unique=True))
    labels = draw(st.lists(st.integers(0, 3), min_size=bags, max_size=bags))
    patients = draw(st.lists(st.none() | names, min_size=bags, max_size=bags))
    return Table(features, bag.astype(np.intp), labels, ids, patients)


def same(read: Table, written: Table, patients: bool = True) -> None:
    actual, expected = read.bags(), written.bags()
    assert (actual.ids, actual.labels, actual.classes) == (
        expected.ids,
        expected.labels,
        expected.classes,
    )
    assert not patients or actual.patients == expected.patients
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(a.features, b.features)


def rows(table: Table) -> list[tuple[int, list[float]]]:
    return list(zip(table.bag.tolist(), table.features.tolist(), strict=True))


@settings(deadline=None, max_examples=60)
@given(tables())
def test_csv(table: Table) -> None:
    assert table.ids is not None
    assert table.patients is not None
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["label", "bag", *(f"x{i}" for i in range(table.features.shape[1])), "patient"])
    for bag, values in rows(table):
        writer.writerow(
            [table.labels[bag], table.ids[bag], *map(repr, values), table.patients[bag]]
        )
    same(read_csv(text.getvalue().encode()), table)


@settings(deadline=None, max_examples=60)
@given(tables())
def test_npz(table: Table) -> None:
    patients = [patient or "" for patient in table.patients or []]
    file = io.BytesIO()
    np.savez(
        file,
        X=table.features,
        bag=table.bag,
        y=np.array(table.labels),
        ids=table.ids,
        patients=patients,
    )
    same(read_npz(file.getvalue()), table)


@settings(deadline=None, max_examples=60)
@given(tables())
def test_svm(table: Table) -> None:
    assert table.ids is not None
    table = Table(
        table.features, table.bag, table.labels, [f"bag{i}" for i in range(len(table.labels))]
    )
    p = table.features.shape[1]
    lines = []
    for number, (bag, values) in enumerate(rows(table)):
        # A sparse file leaves zeros out; the last feature is written, as it says how many there
        # are.
        cells = [f"{i}:{value!r}" for i, value in enumerate(values, start=1) if value or i == p]
        lines.append(f"{number}:bag{bag}:{table.labels[bag]} {' '.join(cells)}")
    same(read_svm("\n".join(lines).encode()), table, patients=False)
