"""The paper's further tables: the average change with its test, and the cost of the layer beside
the printed one.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from synthetic_run import write_run

from scmil import SparseCoding, count_parameters
from scmil.report import read_run
from scmil.report.paper_tables import (
    average_changes,
    average_sentences,
    html_section,
    layer_costs,
    markdown_section,
    published_areas,
)
from scmil.stats.significance import wilcoxon
from scmil.studies.plan import read_plan

EXPERIMENTS = Path(__file__).parents[3] / "experiments"
MODELS = [f"model {i}" for i in range(5)]
ARMS: list[tuple[str, str | None]] = [(name, None) for name in MODELS]
ARMS += [(f"{name} + SC", name) for name in MODELS]


def run_with(
    folder: Path,
    sparse: object = True,
    methods: list[tuple[str, str | None]] = ARMS,
    **published: float,
) -> Path:
    """A drawn run in which every method that is compared with another has sparse coding."""
    skill = {name: 1.0 + 0.1 * i for i, (name, _) in enumerate(methods)}
    write_run(
        folder,
        methods,
        ["wsi"],
        skill=skill,
        failed=(),
        protocols=("nested",),
        published={},
        bags=40,
        repeats=1,
    )
    plan = json.loads((folder / "experiment.json").read_text())
    against = dict(methods)
    for cell in plan["cells"]:
        embed = {"widths": [484]}
        cell["settings"] = {
            "model": {"sparse_coding": sparse if against[cell["arm"]] else False, "embed": embed}
        }
    plan["published"] = [
        {
            "arm": method,
            "dataset": column,
            "accuracy": value + (0.02 if other and column.startswith("wsi") else 0),
        }
        for method, other in methods
        for column, value in published.items()
    ]
    (folder / "experiment.json").write_text(json.dumps(plan))
    return folder


def test_the_average_is_over_the_models_and_tested_by_wilcoxon(tmp_path: Path) -> None:
    run = read_run(run_with(tmp_path, wsi=0.8, wsi_auc=0.9))
    accuracy, auc = average_changes(run)
    changes = [
        run.results[f"{name} + SC", "wsi", "nested"].metrics["accuracy"].mean
        - run.results[name, "wsi", "nested"].metrics["accuracy"].mean
        for name in MODELS
    ]
    assert (accuracy.metric, auc.metric, accuracy.pairs) == ("accuracy", "auc", 5)
    assert accuracy.delta == pytest.approx(sum(changes) / 5)
    assert accuracy.p == wilcoxon(changes, [0.0] * 5).p
    assert (accuracy.published, auc.published, auc.published_p) == (
        pytest.approx(0.02),
        pytest.approx(0.02),
        0.0625,
    )


def test_controls_without_sparse_coding_are_not_averaged(tmp_path: Path) -> None:
    assert average_changes(read_run(run_with(tmp_path, sparse=False))) == []


def test_a_method_with_another_aggregator_than_its_reference_is_not_averaged(
    tmp_path: Path,
) -> None:
    plan = json.loads((run_with(tmp_path) / "experiment.json").read_text())
    for cell in plan["cells"]:
        cell["settings"]["model"]["aggregator"] = (
            "abmil" if cell["settings"]["model"]["sparse_coding"] else "ilra"
        )
    (tmp_path / "experiment.json").write_text(json.dumps(plan))
    assert average_changes(read_run(tmp_path)) == []


def test_published_aucs_are_shown_beside_ours(tmp_path: Path) -> None:
    run = read_run(run_with(tmp_path, wsi_auc=0.9))
    areas = published_areas(run)
    assert [(area.method, area.published) for area in areas if area.method in MODELS] == [
        (name, 0.9) for name in MODELS
    ]
    assert all(area.ours == run.results[area[:3]].metrics["auc"].mean for area in areas)
    assert f"| model 0 | wsi | nested | {areas[0].ours:.3f} | 0.900 |" in markdown_section(run)
    assert "published" in (html_section(run) or "")


def test_few_models_have_an_average_and_no_test(tmp_path: Path) -> None:
    methods: list[tuple[str, str | None]] = [
        ("a", None),
        ("b", None),
        ("a + SC", "a"),
        ("b + SC", "b"),
    ]
    run = read_run(run_with(tmp_path, methods=methods))
    assert math.isnan(average_changes(run)[0].p)
    assert "too few models for a test" in average_sentences(run)[0]


@pytest.mark.filterwarnings("ignore::scmil.bags.datasets.cohorts.CohortWarning")
@pytest.mark.parametrize(
    ("file", "dataset", "accuracy", "auc"),
    [
        ("table1_camelyon16", "camelyon16", 1.75, 2.33),
        ("table1_tcga_nsclc", "tcga-nsclc", 1.89, 1.05),
    ],
)
def test_our_copy_of_table_1_gives_the_printed_averages(
    file: str, dataset: str, accuracy: float, auc: float, tmp_path: Path
) -> None:
    plan = read_plan(EXPERIMENTS / f"{file}.toml", only="none")
    printed = {(row["arm"], row["dataset"]): row["accuracy"] for row in plan.published}
    for column, expected in ((dataset, accuracy), (f"{dataset}_auc", auc)):
        changes = [
            printed[method, column] - printed[against, column]
            for method, against in plan.arms
            if against
        ]
        assert len(changes) == 15
        assert 100 * sum(changes) / 15 == pytest.approx(expected, abs=0.006)
        assert wilcoxon(changes, [0.0] * 15).p < 0.05


def test_costs_are_shown_beside_the_published_ones(tmp_path: Path) -> None:
    methods: list[tuple[str, str | None]] = [("plain", None), ("sc", "plain")]
    run = read_run(
        run_with(tmp_path, {"atoms": 64}, methods, parameters=94040.0, multiply_adds=18.59e6)
    )
    [cost] = layer_costs(run)
    assert (cost.method, cost.atoms, cost.layers, cost.published_parameters) == ("sc", 64, 5, 94040)
    assert cost.parameters == count_parameters(SparseCoding(484, atoms=64)) == 97_043
    assert round(cost.multiply_adds / 1e6, 2) == 18.59
    assert "| sc | 64 | 5 | 97.04 K | 94.04 K | 18.59 M | 18.59 M |" in markdown_section(run)
    assert "97.04 K" in (html_section(run) or "")


def test_a_run_with_neither_has_no_such_section(tmp_path: Path) -> None:
    run = read_run(run_with(tmp_path, sparse=False))
    assert (markdown_section(run), html_section(run), layer_costs(run), published_areas(run)) == (
        "",
        None,
        [],
        [],
    )
