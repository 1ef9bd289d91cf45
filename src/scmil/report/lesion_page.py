"""The HTML page of `scmil locate`: FROC and metrics of tiles of all scores, side by side."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from scmil.report.html.markup import Markup, change, element, format_number, join
from scmil.report.html.tables import number_cell, row_header, table, text_cell
from scmil.report.page import pairs, whole_page

Page = Mapping[str, Any]
RATES = {0.25: "1/4", 0.5: "1/2"}
NOTE = (
    "FROC score: mean sensitivity at 1/4, 1/2, 1, 2, 4 and 8 false positives per slide, as in "
    "CAMELYON16. AUC and average precision are over the tiles of all slides; “within slides” is "
    "the mean AUC over the slides that have both kinds of tiles, which does not depend on whether "
    "a score is comparable between slides. Small numbers are 95 % intervals by bootstrap over "
    "slides, or patients where they are known."
)
DIFFERENCE_NOTE = (
    "Intervals of differences are those of the same resamples for both scores. The slides are the "
    "same, the model is one: the intervals do not include the variation between trainings."
)


def lesion_page(page: Page, picture: str | None) -> str:
    """The page as HTML, from the contents of `result.json` and the picture of the FROC curves."""
    scores = [page, *page["compared"]]
    title = f"Localisation of lesions by {page['model']}"
    sections = {
        "Scores": join(
            element("p", NOTE, class_="note"),
            _score_table(scores),
            _difference_table(page) if page["compared"] else None,
        ),
        "FROC curve": join(_image(picture), _sensitivity_table(scores)) if picture else None,
        "Slides": _slide_table(page),
        "Settings": _settings_of_rule(page),
    }
    return whole_page(
        title,
        element(
            "header", element("h1", title), element("p", _describe_slides(page), class_="about")
        ),
        element("p", " ".join(map(summarise_score, scores)), class_="verdict"),
        *(element("p", words, class_="warn") for words in page["warnings"]),
        *(element("section", element("h2", name), body) for name, body in sections.items() if body),
        element("footer", "Written by scmil. For research use only. Not a medical device."),
    )


def summarise_score(found: Page) -> str:
    """The result of a score as a sentence, with the difference from the first score.

    >>> tiles = {"auc": 0.5, "auc_interval": [0.25, 0.75]}
    >>> print(summarise_score({"rule": {"score": "ratio"}, "froc": None, "tiles": tiles}))
    ratio: AUC of tiles 0.500 (0.250 to 0.750).
    """
    words = []
    if froc := found["froc"]:
        words.append(f"FROC score {_value_with_limits(froc['score'], froc['interval'])}")
    tiles = found["tiles"]
    words.append(f"AUC of tiles {_value_with_limits(tiles['auc'], tiles['auc_interval'])}")
    return f"{found['rule']['score']}: {', '.join(words)}."


def _image(picture: str) -> Markup:
    """The picture as an image, whose size and fonts do not depend on the style of the page."""
    data = base64.b64encode(picture.encode()).decode()
    words = "FROC curves: sensitivity by false positives per slide"
    return element("img", src=f"data:image/svg+xml;base64,{data}", alt=words, width=640)


def _describe_slides(page: Page) -> str:
    which = "not used in training" if page["part"] == "unseen" else f"split: {page['part']}"
    words = f"{page['slides']} slides ({which})"
    if page["patients"]:
        words += f" of {page['patients']} patients"
    words += f", {page['slides_with_lesions']} with lesions."
    if page["froc"]:
        words += f" {page['froc']['lesions']} lesions count for FROC"
        words += f", {page['froc']['isolated']} isolated tumour cells do not."
    tiles = page["tiles"]
    return f"{words} {tiles['tumour_tiles']} of {tiles['tiles']} tiles are tumour."


def _value_with_limits(value: float | None, interval: Sequence[float | None]) -> str:
    return f"{format_number(value)} ({_interval_limits(interval)})"


def _interval_limits(interval: Sequence[float | None]) -> str:
    return " to ".join(map(format_number, interval))


def _estimate(value: float | None, interval: Sequence[float | None]) -> Markup:
    return number_cell(
        join(format_number(value), element("small", _interval_limits(interval))), value
    )


def _score_table(scores: Sequence[Page]) -> Markup:
    rows = []
    for found in scores:
        froc, tiles = found["froc"], found["tiles"]
        rows.append(
            [
                row_header(found["rule"]["score"]),
                _estimate(froc["score"], froc["interval"]) if froc else number_cell("–"),
                _estimate(tiles["auc"], tiles["auc_interval"]),
                number_cell(format_number(tiles["slide_auc"]), tiles["slide_auc"]),
                _estimate(tiles["ap"], tiles["ap_interval"]),
                _estimate(tiles["dice"], tiles["dice_interval"]),
            ]
        )
    columns = [
        "FROC score",
        "AUC of tiles",
        "AUC within slides",
        "Average precision",
        "Dice, best threshold",
    ]
    return table("Metrics of every score", ["Score"], columns, rows)


def _difference_table(page: Page) -> Markup:
    first = page["rule"]["score"]
    rows = []
    for found in page["compared"]:
        cells = []
        for name in ("froc", "auc", "ap"):
            one = found["difference"][name]
            limits = element("small", " to ".join(map(change, one["interval"]))) if one else None
            cells.append(
                number_cell(join(change(one["value"]), limits), one["value"])
                if one
                else number_cell("–")
            )
        rows.append([row_header(found["rule"]["score"], f"minus {first}"), *cells])
    return join(
        element("h3", f"Differences from {first}"),
        element("p", DIFFERENCE_NOTE, class_="note"),
        table(
            f"Differences from {first}",
            ["Score"],
            ["FROC score", "AUC of tiles", "Average precision"],
            rows,
        ),
    )


def _sensitivity_table(scores: Sequence[Page]) -> Markup:
    known = [found for found in scores if found["froc"]]
    rates = [point["false_positives"] for point in known[0]["froc"]["points"]]
    rows = [
        [
            row_header(found["rule"]["score"]),
            *(
                _estimate(point["sensitivity"], point["interval"])
                for point in found["froc"]["points"]
            ),
        ]
        for found in known
    ]
    columns = [RATES.get(rate, f"{rate:g}") for rate in rates]
    return table("Sensitivity by false positives per slide", ["Score"], columns, rows)


def _slide_table(page: Page) -> Markup:
    rows = [
        [
            row_header(slide_id),
            text_cell(one["truth"]),
            *(
                number_cell(str(one[name]), one[name])
                for name in ("lesions", "hit", "detections", "tiles", "tumour_tiles")
            ),
        ]
        for slide_id, one in page["each"].items()
    ]
    columns = ["Lesions", "Lesions detected", "Detections", "Tiles", "Tumour tiles"]
    words = f"Detections are those of the score {page['rule']['score']}, at any threshold."
    return join(
        element("p", words, class_="note"), table("Slides", ["Slide", "Truth"], columns, rows)
    )


def _settings_of_rule(page: Page) -> Markup:
    names = ("model_sha256", "part", "mpp", "class", "tile_share", "draws", "seed")
    skipped = {f"left out: {name}": cause for name, cause in page["left_out"].items()}
    failed = {f"failed: {name}": cause for name, cause in page["failed"].items()}
    return join(
        pairs("Detection rule", page["rule"]),
        pairs("Evaluation", {name: page[name] for name in names}),
        pairs("Slides without a result", skipped | failed) if skipped or failed else None,
    )
