from __future__ import annotations

import json
import math
import re
import time
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from synthetic_run import EVIL, write_run

from scmil.stats import significance
from scmil.errors import DataError, OptionError, ScmilError
from scmil.stats.metrics import decide
from scmil.report import comparisons_for_terminal, read_run, rows_for_terminal, verdict, write_report
from scmil.report.comparisons import across_datasets, compare_arms, protocol_worth
from scmil.report.html.markup import change, element, latex, markdown
from scmil.report.page import write_page
from scmil.report.html.plots import looks
from scmil.report.run_files import Arm, Key
from scmil.report.tables import WARNING, main_table
from scmil.report.markdown_latex import write_latex, write_markdown


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def page(run: Path) -> str:
    [path] = write_report(run, ["html"])
    return path.read_text(encoding="utf-8")


def small_run(folder: Path, **options: object) -> Path:
    return write_run(folder, **{"bags": 20, "repeats": 2, "folds": 5, "failed": (), **options})  # type: ignore[arg-type]


def test_all_formats_are_written_and_nothing_else_is_left_behind(tmp_path: Path) -> None:
    before = set(small_run(tmp_path).iterdir())
    written = write_report(tmp_path)
    assert [path.name for path in written] == ["report.html", "report.md", "report.tex"]
    assert set(tmp_path.iterdir()) - before == set(written)


def test_an_unknown_format_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"unknown report format 'pdf'\. Known: html, md, tex"):
        write_report(tmp_path, ["pdf"])


def test_a_run_says_what_is_finished_failed_and_missing(tmp_path: Path) -> None:
    run = read_run(small_run(tmp_path, failed=[(EVIL, "fox")], missing=[("ABMIL + SC", "fox")]))
    assert len(run.finished) == 4
    assert run.failed == {"fox--arm-2": "ValueError: no <b>luck</b>"}
    assert [cell.name for cell in run.missing] == ["fox--arm-1"]
    assert verdict(run).startswith("Half-finished: 4 of 6 cells have results. 1 failed.")
    assert "half-finished: 4 of 6 cells" in write_page(run, [])


def test_honest_protocols_come_first(run: Path) -> None:
    assert read_run(run).protocols == ["last", "nested", "test-tuned"]
    assert read_run(run).honest == ["last", "nested"]


def test_a_cell_that_was_repaired_is_not_failed(tmp_path: Path) -> None:
    small_run(tmp_path)
    (tmp_path / "cells" / "fox--arm-0" / "failed.json").write_text('{"error": "earlier"}')
    assert read_run(tmp_path).failed == {}


def test_the_best_honest_number_is_bold_and_no_tuned_one(run: Path) -> None:
    read = read_run(run)
    for protocol in read.protocols:
        best = [entry.mean for row in main_table(read, protocol) for entry in row.entries[:1] if entry and entry.best]
        every = [row.entries[0].mean for row in main_table(read, protocol) if row.entries[0]]
        assert best == ([] if protocol == "test-tuned" else [max(every)])
    brier = [row.entries[0] for row in main_table(read, "last", "brier") if row.entries[0]]
    assert [entry.best for entry in brier] == [entry.mean == min(e.mean for e in brier) for entry in brier]


def test_a_mean_over_data_sets_needs_all_of_them(run: Path) -> None:
    rows = {row.arm: row for row in main_table(read_run(run), "last")}
    assert rows[EVIL].mean is None
    entries = [entry for entry in rows["ABMIL + SC"].entries if entry]
    assert rows["ABMIL + SC"].mean is not None
    assert rows["ABMIL + SC"].mean.mean == pytest.approx((entries[0].mean + entries[1].mean) / 2)
    assert math.isnan(rows["ABMIL + SC"].mean.published)  # fox is not published


def test_the_difference_is_ours_minus_the_published_one(run: Path, page: str) -> None:
    entry = main_table(read_run(run), "last")[1].entries[0]
    assert entry is not None
    assert entry.published == 0.969
    shown = f"{entry.mean - 0.969:+.3f}".replace("-", "−")
    assert f'<span class="published">0.969 <span class="down">{shown}</span></span>' in page


def test_comparisons_are_those_of_the_files(run: Path) -> None:
    read = read_run(run)
    a, b = (Key(arm, "musk1", "last") for arm in ("ABMIL + SC", "ABMIL | a_b"))
    each = next(c for c in compare_arms(read) if (c.arm, c.dataset, c.protocol) == a)
    gains = np.array([read.folds[a][place] - read.folds[b][place] for place in read.folds[a]])
    assert each.accuracy.delta == pytest.approx(gains.mean())
    assert each.accuracy.p == pytest.approx(significance.corrected_t(gains, test_share=0.1))
    tested = read.predictions[a]
    hits = decide(tested.probabilities) == tested.labels
    assert hits.mean() == pytest.approx(read.results[a].metrics["accuracy"].mean)  # ten folds of six bags each
    scores = [
        [read.predictions[key].probabilities[read.predictions[key].bags == str(bag), 1].mean() for bag in range(60)]
        for key in (a, b)
    ]
    assert each.auc == pytest.approx(significance.delong(np.arange(60) % 2, *scores))
    assert each.published == pytest.approx(0.069)


def test_the_order_of_lines_does_not_matter(tmp_path: Path) -> None:
    before = compare_arms(read_run(small_run(tmp_path)))
    path = tmp_path / "cells" / "musk1--arm-1" / "predictions.csv"
    header, *lines = path.read_text().splitlines()
    path.write_text("\n".join([header, *reversed(lines)]) + "\n")
    assert compare_arms(read_run(tmp_path)) == before


def test_bags_are_decided_by_the_threshold_of_their_fold(tmp_path: Path) -> None:
    """With a threshold of 1 both arms call every bag negative, so no bag tells them apart."""
    small_run(tmp_path, arms=(("A", None), ("B", "A")), datasets=["d"], protocols=["nested"], published={})
    [before] = compare_arms(read_run(tmp_path))
    for path in tmp_path.glob("cells/*/predictions.csv"):
        path.write_text(path.read_text().replace(",0.52,", ",1,"))
    [after] = compare_arms(read_run(tmp_path))
    assert before.interval != (0, 0)
    assert after.interval == (0, 0)


def test_holm_corrects_over_data_sets(run: Path) -> None:
    pair = [c for c in compare_arms(read_run(run)) if (c.arm, c.protocol) == ("ABMIL + SC", "last")]
    raw = [each.accuracy.signed_rank.p for each in pair]
    assert len(raw) == 2
    assert [each.holm_p for each in pair] == pytest.approx(significance.holm(raw).tolist())


def test_arms_that_were_tested_on_other_bags_are_not_compared(tmp_path: Path) -> None:
    small_run(tmp_path)
    path = tmp_path / "cells" / "musk1--arm-1" / "predictions.csv"
    path.write_text(re.sub(r"^(\w+,\d+,\d+),7,", r"\1,other,", path.read_text(), flags=re.M))
    with pytest.raises(DataError, match=r"'ABMIL \+ SC' and 'ABMIL \| a_b' were not tested on the same folds and bags"):
        write_report(tmp_path)


def test_five_data_sets_are_tested_together_and_fewer_are_not(tmp_path: Path) -> None:
    arms, datasets = (("A", None), ("B", "A")), ["a", "bb", "ccc", "dddd", "eeeee"]
    small_run(tmp_path, arms=arms, datasets=datasets, skill={"A": 1.5, "B": 5.0}, protocols=["last"], published={})
    compared = compare_arms(read_run(tmp_path))
    [together] = across_datasets(compared)
    assert together.p == together.smallest_p == 0.0625
    assert "p = 0.06 (the smallest p that 5 data sets can give is 0.0625)" in together.sentence()
    [fewer] = across_datasets(compared[:4])
    assert math.isnan(fewer.p)
    assert "too few data sets" in fewer.sentence()


def test_the_worth_of_the_protocol_is_the_gain_over_the_honest_number(run: Path) -> None:
    row = protocol_worth(read_run(run))[0]
    last, _, tuned = row.accuracies
    assert row.gain == pytest.approx(tuned - last)
    assert row.gain > 0
    assert row.published_gain == pytest.approx(0.9 - last)


def test_the_verdict_sees_a_large_gain_and_doubts_a_small_one(tmp_path: Path) -> None:
    arms = (("A", None), ("B", "A"))
    common = {"arms": arms, "protocols": ["last"], "published": {}, "bags": 60, "repeats": 3, "folds": 10}
    (tmp_path / "large").mkdir()
    (tmp_path / "small").mkdir()
    large = verdict(read_run(small_run(tmp_path / "large", skill={"A": 0.5, "B": 6.0}, **common)))
    small = verdict(read_run(small_run(tmp_path / "small", skill={"A": 1.5, "B": 1.5}, **common)))
    assert "2 of 2 comparisons show a gain and 0 a loss" in large
    assert "2 of these 2 remain after Holm's correction" in large
    assert "none of the 2 comparisons shows a difference" in small


def test_the_verdict_of_a_single_comparison_is_its_sentence(tmp_path: Path) -> None:
    run = read_run(small_run(tmp_path, arms=(("A", None), ("B", "A")), datasets=["d"], published={}))
    first = next(each for each in compare_arms(run) if each.protocol == "last")
    assert first.accuracy.sentence() in verdict(run)


def test_a_run_of_tuned_numbers_alone_is_warned_of_everywhere(tmp_path: Path) -> None:
    small_run(tmp_path, protocols=["test-tuned"])
    assert "none of them says how well a model does on new bags" in verdict(read_run(tmp_path))
    page = write_page(read_run(tmp_path), compare_arms(read_run(tmp_path)))
    folds, differences = (
        page.split(f'<section id="{place}">')[1].split("</section>")[0] for place in ("folds", "differences")
    )
    assert WARNING in folds
    assert WARNING in differences


def test_tuned_numbers_carry_the_warning_and_honest_ones_do_not(run: Path, page: str) -> None:
    for text in (page, write_markdown(read_run(run), []), write_latex(read_run(run))):
        assert text.index("Protocol “nested”") < text.index(WARNING)
    results = page.split('<section id="results">')[1].split("</section>")[0]
    assert results.count(WARNING) == 1
    assert results.index("Protocol “test-tuned”") < results.index(WARNING)
    for place in ("what-the-protocol-is-worth", "comparisons"):
        assert WARNING in page.split(f'<section id="{place}">')[1].split("</section>")[0]


class Tags(HTMLParser):
    """Counts what a browser would see, and that elements close in the order they open."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.attributes += attrs
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_names_cannot_become_markup(page: str) -> None:
    tags = Tags(page)
    assert tags.open == []
    assert tags.counts["script"] == 1
    assert EVIL not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<b>luck</b>" not in page


def test_the_page_needs_no_network_and_no_inline_style_that_its_policy_would_stop(page: str) -> None:
    tags = Tags(page)
    names = {name for name, _ in tags.attributes}
    assert not {name for name in names if name == "style" or name.startswith("on")}
    targets = [value or "" for name, value in tags.attributes if name in ("href", "src")]
    assert all(target.startswith("#") or target == "data:," for target in targets)
    assert "default-src &#x27;none&#x27;" in page
    assert "unsafe" not in page
    assert "url(" not in page


def test_the_page_is_the_same_every_time(run: Path, page: str) -> None:
    assert write_page(read_run(run), compare_arms(read_run(run))) == page


def test_every_fold_is_a_dot(tmp_path: Path) -> None:
    run = read_run(small_run(tmp_path))
    assert write_page(run, []).count('class="dot ') == 6 * 2 * 5


def test_cells_without_a_result_are_named_with_their_cause(page: str) -> None:
    assert "<b>fox--arm-2</b>: ValueError: no &lt;b&gt;luck&lt;/b&gt;" in page


def test_arms_keep_colours_apart_and_large_families_share_one() -> None:
    few = looks([Arm(str(i), None) for i in range(7)])
    assert len(set(few.values())) == 7
    many = looks([Arm(f"{i}{kind}", None if not kind else str(i)) for i in range(6) for kind in ("", " + SC")])
    assert many["3"].colour == many["3 + SC"].colour
    assert len(set(many.values())) == 12


def test_markdown_rows_have_the_cells_of_their_header(run: Path) -> None:
    read = read_run(run)
    text = write_markdown(read, compare_arms(read))
    tables = re.findall(r"(?:^\|.*\|$\n?)+", text, re.M)
    assert len(tables) == 6
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1
    assert "<script" not in text
    assert r"ABMIL \| a\_b" in text


def test_latex_rows_have_the_columns_of_their_table(run: Path) -> None:
    text = write_latex(read_run(run))
    assert text.count(r"\begin{tabular}{lccc}") == text.count(r"\bottomrule") == 3
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {3}
    assert r"\textcolor{gray}{\scriptsize 0.900" in text
    assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")


def test_nothing_that_latex_would_read_stays() -> None:
    assert latex("a\\b{c}$&#%_^~") == (r"a\textbackslash{}b\{c\}\$\&\#\%\_\textasciicircum{}\textasciitilde{}")
    assert latex("[x]") == "{[}x{]}"  # a line's end would take it for its own


def test_nothing_that_markdown_would_read_stays() -> None:
    assert markdown("a|b\n# [c](d) `e` <i>") == r"a\|b \# \[c\](d) \`e\` &lt;i&gt;"


def test_attributes_are_escaped_too() -> None:
    assert element("p", title='"><script>') == '<p title="&quot;&gt;&lt;script&gt;"></p>'


def test_the_terminal_gets_the_same_numbers(run: Path) -> None:
    last, _, tuned = rows_for_terminal(read_run(run))
    assert last.columns == ("", "musk1", "fox", "mean")
    entry = main_table(read_run(run), "last")[0].entries[0]
    assert entry is not None
    assert last.rows[0][1].startswith(f"{entry.mean:.3f} ±{entry.sd:.3f}\n0.900 published (")
    assert (last.note, tuned.note) == ("", WARNING)
    assert last.rows[2][2:] == ("–", "–")


def test_the_terminal_gets_the_comparisons_of_the_honest_protocols(run: Path) -> None:
    table = comparisons_for_terminal(read_run(run))
    assert table is not None
    compared = [each for each in compare_arms(read_run(run)) if each.protocol != "test-tuned"]
    assert len(table.rows) == len(compared) > 0
    assert table.rows[0][:3] == (f"{compared[0].arm}\nagainst {compared[0].against}", "musk1", "last")
    assert table.rows[0][3].startswith(change(compared[0].accuracy.delta))


def test_a_run_without_any_result_yet_has_a_report(tmp_path: Path) -> None:
    small_run(tmp_path)
    for name in ("results.csv", "folds.csv"):
        path = tmp_path / name
        path.write_text(path.read_text().splitlines()[0] + "\n")
    assert len(write_report(tmp_path)) == 3
    assert "0 of 6 cells have results" in (tmp_path / "report.md").read_text()
    assert rows_for_terminal(read_run(tmp_path)) == []
    assert comparisons_for_terminal(read_run(tmp_path)) is None


def test_three_classes_have_no_delong_test(tmp_path: Path) -> None:
    small_run(tmp_path, arms=(("A", None), ("B", "A")), datasets=["d"], protocols=["last"], published={})
    for path in tmp_path.glob("cells/*/predictions.csv"):
        header, *lines = path.read_text().splitlines()
        path.write_text("\n".join([f"{header},p2", *(f"{line},0" for line in lines)]) + "\n")
    [each] = compare_arms(read_run(tmp_path))
    assert each.auc is None
    assert write_report(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("experiment.json", None, "does not exist: a report needs the folder that `scmil run` wrote"),
        ("experiment.json", "{", "experiment.json: not readable as JSON"),
        ("experiment.json", '{"format": "scmil-run-9"}', "format 'scmil-run-9', expected 'scmil-run-1'"),
        ("experiment.json", "[]", "format None, expected"),
        ("experiment.json", '{"format": "scmil-run-1"}', "experiment.json: KeyError 'arms'"),
        ("results.csv", None, "results.csv: the file does not exist. Run `scmil run`"),
        ("results.csv", "cell,dataset\n", "results.csv: without the column 'arm'"),
        ("folds.csv", None, "folds.csv: the file does not exist"),
        ("folds.csv", "cell,dataset,arm,protocol,repeat,fold,accuracy\n", "folds.csv: 0 folds of .*, expected 10"),
        ("folds.csv", "cell,dataset,arm,protocol,repeat,fold,accuracy\na,b\n", "line 2 has 2 fields, expected 7"),
        (
            "folds.csv",
            "dataset,arm,protocol,repeat,fold,accuracy\nd,a,p,0,0,\n",
            "line 2, accuracy: a number is missing",
        ),
        (
            "folds.csv",
            "dataset,arm,protocol,repeat,fold,accuracy\nd,a,p,0,0,x\n",
            "line 2, accuracy: 'x' is not a number",
        ),
        ("folds.csv", "\x00\udcff", "folds.csv: not readable as CSV"),
        ("cells/fox--arm-0/predictions.csv", None, "predictions.csv: the file does not exist"),
        (
            "cells/fox--arm-0/predictions.csv",
            "protocol,repeat,bag,label,threshold,p0,p1\n",
            "0 predictions by .*, expected 40",
        ),
        ("cells/fox--arm-0/history.csv", None, "history.csv: the file does not exist"),
        ("cells/fox--arm-2/failed.json", "{}", "failed.json: not readable as"),
    ],
)
def test_a_missing_or_damaged_file_is_named(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    small_run(tmp_path, failed=[(EVIL, "fox")])
    path = tmp_path / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(DataError, match=message) as error:
        write_report(tmp_path)
    assert str(tmp_path) in str(error.value)
    assert isinstance(error.value, ScmilError)
    assert not list(tmp_path.glob("*report*"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arms": [{"name": "A", "against": "B"}]}, "arm 'A' is compared with 'B', which is not an arm"),
        ({"datasets": ["musk1"]}, "cell 'fox--arm-0' is of an arm or a data set that is not listed"),
        ({"arms": 3}, "experiment.json: TypeError"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    plan = small_run(tmp_path) / "experiment.json"
    plan.write_text(json.dumps({**json.loads(plan.read_text()), **change}))
    with pytest.raises(DataError, match=message):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"cell": "../../secret"}, "cell '../../secret' is not the name of a folder"),
        ({"arm": "ABMIL + SC"}, "two cells have the same arm and the same data set"),
        ({"cell": "renamed"}, "results.csv: line 2: cell 'musk1--arm-0' is not one of experiment.json"),
    ],
)
def test_cells_that_cannot_be_are_refused(tmp_path: Path, cells: dict[str, str], message: str) -> None:
    path = small_run(tmp_path) / "experiment.json"
    plan = json.loads(path.read_text())
    plan["cells"][0] |= cells
    path.write_text(json.dumps(plan))
    with pytest.raises(DataError, match=message):
        read_run(tmp_path)


def test_sixty_cells_are_reported_in_seconds(tmp_path: Path) -> None:
    arms = [(f"arm {i}", None if i % 2 == 0 else f"arm {i - 1}") for i in range(12)]
    small_run(tmp_path, arms=arms, datasets=list("abcde"), bags=100, published={})
    start = time.perf_counter()
    write_report(tmp_path)
    assert time.perf_counter() - start < 10


# ------------------------------------------------------------------------------------------- the control and the baseline

COMPARED = (("A", None), ("A + SC", "A"), ("A + linear", "A"), ("LR", None))
MODELS = {
    "A": {"aggregator": "abmil", "sparse_coding": False, "refine": None},
    "A + SC": {"aggregator": "abmil", "sparse_coding": {"atoms": 9}, "refine": None},
    "A + linear": {"aggregator": "abmil", "sparse_coding": {"atoms": 9}, "refine": "linear"},
    "LR": {"aggregator": "logistic-mean-max", "sparse_coding": False, "refine": None},
}


def said_of(folder: Path, **skill: float) -> str:
    by_arm = dict(zip(MODELS, skill.values(), strict=True))
    write_run(folder, COMPARED, ["ours"], skill=by_arm, failed=(), published={}, bags=120, repeats=2, folds=5)
    plan = json.loads((folder / "experiment.json").read_text())
    for cell in plan["cells"]:
        cell["settings"] = {"model": MODELS[cell["arm"]]}
    (folder / "experiment.json").write_text(json.dumps(plan))
    return verdict(read_run(folder))


def test_a_gain_that_a_plain_layer_brings_too_is_no_gain_of_sparse_coding(tmp_path: Path) -> None:
    said = said_of(tmp_path, plain=0.3, coded=2.5, linear=2.5, logistic=0.1)
    assert "In short: on this data it helps to add a layer, but a plain one does the same as sparse coding." in said
    assert "a plain layer does the same." in said
    assert (
        "a logistic regression on the mean and the maximum of each bag does better than none of the 3 networks" in said
    )


def test_a_gain_over_the_control_is_said(tmp_path: Path) -> None:
    said = said_of(tmp_path, plain=0.2, coded=1.6, linear=0.2, logistic=9.0)
    assert "In short: on this data sparse coding helps, and more than a plain layer in its place." in said
    assert "does better than all 3 networks: AUC " in said


def test_harm_and_nothing_are_told_apart(tmp_path: Path) -> None:
    assert "on this data sparse coding does harm." in said_of(
        tmp_path / "harm", plain=3, coded=0.2, linear=3, logistic=1
    )
    nothing = said_of(tmp_path / "nothing", plain=1.5, coded=1.5, linear=1.5, logistic=1)
    assert "on this data nothing shows that sparse coding helps." in nothing


def test_costs_and_patients_are_shown_where_they_are_known(tmp_path: Path) -> None:
    small_run(tmp_path, datasets=["musk1"])
    assert read_run(tmp_path).by_patient == {}
    (tmp_path / "costs.csv").write_text("cell,multiply_adds,memory_mib\nmusk1--arm-0,1234567,88.5\n")
    header, *lines = (tmp_path / "results.csv").read_text().splitlines()
    patients = [line.replace(",20,", ",10,", 1) + ",patient" for line in lines]
    text = "\n".join([f"{header},level", *(f"{line},slide" for line in lines), *patients])
    (tmp_path / "results.csv").write_text(text + "\n")
    run = read_run(tmp_path)
    assert {result.bags for result in run.results.values()} == {20}
    assert {result.bags for result in run.by_patient.values()} == {10}
    page = write_page(run, [])
    assert "1\N{NARROW NO-BREAK SPACE}234\N{NARROW NO-BREAK SPACE}567" in page
    assert "By patient" in page
    assert "| 1,234,567 | 93 | 88 |" in write_markdown(run, [])
