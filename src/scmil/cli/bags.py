"""Verbs of bags: import, export, audit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from scmil.cli import app
from scmil.cli.options import Missing, Overwrite, say, say_failed

PANEL = "Bags, whoever made them"

Bags = Annotated[Path, typer.Argument(help="A folder of features: ours, CLAM's, TRIDENT's, … (scmil ls formats).")]
Format = Annotated[str | None, typer.Option("--format", help="Its format, if it is not detected.")]
Key = Annotated[str | None, typer.Option(help="Which encoder, if the folder has several.")]
Json = Annotated[bool, typer.Option("--json", help="For programs.")]
TrustPickle = Annotated[
    bool, typer.Option("--trust-pickle", help="Read a file of pickled arrays (DTFD); nothing but arrays is admitted.")
]
MppOf = Annotated[
    float | None, typer.Option(help="Microns per pixel of the slides, where coordinates are in microns (STAMP).")
]
LabelColumn = Annotated[str | None, typer.Option(help="The column of the labels, if it has an unusual name.")]


@app.command("import", rich_help_panel=PANEL)
def import_(
    folder: Bags,
    out: Annotated[Path, typer.Option(help="Folder of our bags.")],
    format: Format = None,
    key: Key = None,
    dtype: Annotated[str, typer.Option(help="float16 or float32.")] = "float16",
    mpp_of: MppOf = None,
    trust_pickle: TrustPickle = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try those of failures.csv again.")] = False,
    as_json: Json = False,
) -> None:
    """Convert another tool's features into bags of ours. It is not needed: every verb that takes bags takes those too."""
    from scmil.bags.hdf5 import check_dtype, write_bag
    from scmil.bags.formats import open_bags
    from scmil.core.jobs.work import Ledger, for_each, safe_name

    check_dtype(dtype)
    bags = open_bags(folder, format, key=key, trust_pickle=trust_pickle, slide_mpp=mpp_of)
    positions = {id: position for position, id in enumerate(bags.ids)}

    def target(id: str) -> Path:
        return out / f"{safe_name(id)}.h5"

    outcome = for_each(
        bags.ids,
        lambda id: write_bag(bags[positions[id]], target(id), dtype),
        target=target,
        ledger=Ledger(out),
        stage="import",
        retry_failed=retry_failed,
        name=str,
        source=lambda id: folder,
    )
    failures = [failure for failure in Ledger(out).read() if failure.slide in outcome.failed]
    if as_json:
        page = {key: list(getattr(outcome, key)) for key in ("done", "kept", "failed", "taken")}
        say(json.dumps({"out": str(out), **page, "failures": [f._asdict() for f in failures]}, indent=2))
    else:
        say(f"import: {outcome}")
        say_failed({failure.slide: failure.cause for failure in failures})
    if outcome.failed:
        raise typer.Exit(1)


@app.command(rich_help_panel=PANEL)
def export(
    folder: Bags,
    to: Annotated[str, typer.Option(help="The other tool: clam, trident or torchmil.")],
    out: Annotated[Path, typer.Option(help="Folder of its files.")],
    labels: Annotated[Path | None, typer.Option(help="A table of labels, to be written too.")] = None,
    label: LabelColumn = None,
    missing: Missing = None,
    format: Format = None,
    key: Key = None,
    mpp_of: MppOf = None,
    trust_pickle: TrustPickle = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Write bags as another tool reads them. What is there is kept, so the same command goes on where it was stopped."""
    from scmil.bags.formats import export as export_bags
    from scmil.bags.formats import open_bags

    bags = open_bags(
        folder, format, _labels(labels, label, missing), key=key, trust_pickle=trust_pickle, slide_mpp=mpp_of
    )
    result = export_bags(bags, out, to, overwrite=overwrite)
    if as_json:
        say(json.dumps({"out": str(out), **{k: list(v) for k, v in result._asdict().items()}}, indent=2))
        return
    say(f"{len(result.written)} bags written for {to} into {out}, {len(result.kept)} were there")


@app.command("audit", rich_help_panel=PANEL)
def audit_(
    folder: Bags,
    labels: Annotated[
        Path | None, typer.Argument(help="A table of labels: case_id, slide_id, label, or the like.")
    ] = None,
    label: LabelColumn = None,
    missing: Missing = None,
    splits: Annotated[Path | None, typer.Option(help="A split file, or a folder of them, to look for leaks.")] = None,
    format: Format = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Look for what spoils a study before it is trained: mixed encoders, missing labels, leaks, duplicates, NaN.

    Ends with exit code 1 if there is an error among the findings.
    """
    from scmil.bags.audit import audit
    from scmil.bags.formats import open_bags

    table = _labels(labels, label, missing)
    bags = open_bags(folder, format, table, key=key)
    found = audit(bags, table, _splits(splits, bags))
    if as_json:
        say(json.dumps(found.as_json(), indent=2))
    else:
        for line in found.lines():
            say(line)
    if not found.ok:
        raise typer.Exit(1)


def _labels(path: Path | None, label: str | None, missing: str | None) -> Any:
    from scmil.bags.datasets import words_of
    from scmil.bags.labels import read_labels

    return None if path is None else read_labels(path, label=label, missing=words_of(missing))


def _splits(path: Path | None, bags: Any) -> Any:
    if path is None:
        return None
    from scmil.bags.split_files import read_splits

    return read_splits(path, bags.ids).splits  # without patients: a leak is a finding here, and no refusal
