"""Reports with many methods: a matrix of reference methods and layers."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic_run import write_run

from scmil.report import read_run
from scmil.report.comparisons import compare_methods
from scmil.report.layer_matrix import (
    FEWEST_METHODS,
    WITHOUT,
    final_losses,
    layer_effects,
    layer_matrix,
    matrix_rows,
)
from scmil.report.markdown_latex import write_latex, write_markdown
from scmil.report.page import write_page
from scmil.report.run import Key, Run

NAMES = [f"net-{number}" for number in range(8)]
LAYERS = ("SC", "linear", "rrt")
BASELINE = "logistic regression"


def methods_of(names: list[str]) -> list[tuple[str, str | None]]:
    rows: list[tuple[str, str | None]] = []
    for name in names:
        rows += [(name, None), *((f"{name} + {layer}", name) for layer in LAYERS)]
    return [*rows, (BASELINE, None)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    skill = {f"{name} + SC": 4.0 for name in NAMES} | {f"{name} + rrt": 0.2 for name in NAMES}
    folder = write_run(
        tmp_path_factory.mktemp("many"),
        methods_of(NAMES),
        ["fox"],
        skill={**dict.fromkeys(NAMES, 1.6), **skill},
        failed=[("net-3 + rrt", "fox")],
        protocols=["last"],
        published={},
        repeats=1,
        folds=5,
    )
    return read_run(folder)


def test_a_row_is_an_aggregator_and_a_column_a_layer(run: Run) -> None:
    matrix = layer_matrix(run)
    assert matrix is not None
    assert matrix.rows == tuple(NAMES)
    assert matrix.columns == (WITHOUT, *LAYERS)
    assert matrix.methods["net-2", "linear"] == "net-2 + linear"
    assert matrix.others == (BASELINE,)
    rows = {row.method: row for row in matrix_rows(run, matrix, "fox", "last")}
    assert list(rows) == [*NAMES, "mean of 7", BASELINE]
    entry = rows["net-2"].entries[1]
    assert entry is not None
    expected = run.results[Key("net-2 + SC", "fox", "last")].metrics["accuracy"].mean
    assert entry.mean == expected
    assert entry.best  # far apart, so the best of its row
    assert rows["net-3"].entries[3] is None
    assert rows[BASELINE].entries[1:] == (None, None, None)


def test_layers_are_compared_over_all_aggregators(run: Run) -> None:
    matrix = layer_matrix(run)
    assert matrix is not None
    effects = layer_effects(run, matrix, compare_methods(run), "fox", "last")
    places = [(effect.layer, effect.against) for effect in effects]
    assert places == [
        *((layer, WITHOUT) for layer in LAYERS),
        ("SC", "linear"),
        ("SC", "rrt"),
    ]
    coded, _, rrt, against_linear, _ = effects
    assert (coded.pairs, coded.better, coded.worse) == (8, 8, 0)
    assert coded.gains == sum(
        each.accuracy.p < 0.05 for each in compare_methods(run) if each.method.endswith("SC")
    )
    assert (rrt.pairs, rrt.worse) == (7, 7)  # one run failed
    assert against_linear.gains is None
    assert len(final_losses(run, matrix, "fox")) == 4 * len(NAMES) - 1


def test_the_page_has_one_row_for_each_aggregator(run: Run) -> None:
    page = write_page(run, compare_methods(run))
    results = page.split('<section id="results">')[1].split("</section>")[0]
    table = results.split("<table>")[1].split("</table>")[0]
    assert table.split("<tbody>")[1].split("</tbody>")[0].count("<tr>") == len(NAMES)
    assert table.split("<tfoot>")[1].count("<tr>") == 2  # mean and baseline
    assert results.count("<circle") == 4 * len(NAMES) - 1 + 4  # with the legend
    assert 'id="folds"' not in page
    differences = page.split('<section id="differences">')[1].split("</section>")[0]
    assert differences.index("<details>") < differences.index("<svg")


def test_markdown_and_latex_have_the_matrix(run: Run) -> None:
    text = write_markdown(run, compare_methods(run))
    assert "| Method | without | SC | linear | rrt |" in text
    assert text.count("| net-2 |") == 3  # accuracy, AUC, loss
    assert "net-2 + SC" not in text.split("## Results")[1]
    assert "Method & without & SC & linear & rrt" in write_latex(run)


def test_a_small_run_has_one_row_for_each_method(tmp_path: Path) -> None:
    few = methods_of(NAMES[:5])
    assert len(few) < FEWEST_METHODS
    write_run(tmp_path, few, ["fox"], failed=[], protocols=["last"], published={}, folds=2)
    run = read_run(tmp_path)
    assert layer_matrix(run) is None
    assert "| net-2 + SC |" in write_markdown(run, compare_methods(run))


def test_many_methods_that_form_no_matrix_have_one_row_each(tmp_path: Path) -> None:
    names: list[tuple[str, str | None]] = [(f"net-{i}", None) for i in range(FEWEST_METHODS)]
    write_run(tmp_path, names, ["fox"], failed=[], protocols=["last"], published={}, folds=2)
    assert layer_matrix(read_run(tmp_path)) is None
