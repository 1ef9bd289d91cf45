"""`scmil audit --results`: the results of another tool."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from scmil.cli.output import say, say_json


def audit_other_tool(
    results: Path | None, tables: Sequence[Path], label: str | None, as_json: bool
) -> None:
    """Audit a result folder and print the report; exit with 1 if there are errors."""
    from scmil.bags.audit_results import audit_results
    from scmil.bags.labels import read_labels
    from scmil.errors import OptionError

    if results is None:
        raise OptionError(
            "nothing to audit. Give a folder of bags, or --results FOLDER with the results of "
            "another tool."
        )
    if len(tables) > 1 or any(path.is_dir() for path in tables):
        raise OptionError(
            f"{tables[0]}: with --results no bags are read. Give at most the table of labels: "
            "scmil audit labels.csv --results FOLDER."
        )
    # Classes are compared with those of the predictions, so any word may be one.
    table = read_labels(tables[0], label=label, missing=()) if tables else None
    found = audit_results(results, table)
    if as_json:
        say_json(found.as_json())
    else:
        for line in found.lines():
            say(line)
    if not found.ok:
        raise typer.Exit(1)
