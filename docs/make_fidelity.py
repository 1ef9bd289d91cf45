"""The tables of docs/fidelity.md, from the result of benchmarks/fidelity.py.   python
docs/make_fidelity.py

What stands between `<!-- made: NAME -->` and `<!-- end -->` is written here; a test checks that the
page agrees with the result.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE / "fidelity.md"
RESULTS = HERE.parent / "benchmarks" / "results" / "fidelity.json"
LAYER = "sparse coding, released"


def filled(page: str) -> str:
    """The page with its tables written again."""
    result = json.loads(RESULTS.read_text())
    made = {
        "differences": differences(result["files"]),
        "summary": summary(result),
    }
    parts = r"(<!-- made: ([\w -]+) -->\n).*?(<!-- end -->)"
    return re.sub(
        parts, lambda match: f"{match[1]}\n{made[match[2]]}\n\n{match[3]}", page, flags=re.S
    )


def differences(files: dict[str, Any]) -> str:
    """A row for each aggregator and repository: the largest differences of its files."""
    from scmil.models import aggregators

    lines = [
        "| aggregator | compared with | files, bags | outputs and losses | gradients |",
        "|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in files.values():
        source = f"`{one['repository']}` {one['commit']}"
        groups.setdefault((one["aggregator"], source), []).append(one)
    order = [*aggregators.names(), LAYER]
    for (name, source), group in sorted(groups.items(), key=lambda item: order.index(item[0][0])):
        worst = {key: max(one[key] for one in group) for key in ("outputs", "gradients")}
        counts = f"{len(group)}, {sum(one['bags'] for one in group)}"
        shown = name if name == LAYER else f"`{name}`"
        lines.append(
            f"| {shown} | {source} | {counts} | {worst['outputs']:.1e} | {worst['gradients']:.1e} |"
        )
    return "\n".join(lines)


def summary(result: dict[str, Any]) -> str:
    """The largest differences of all files."""
    files = result["files"].values()
    outputs, gradients = (max(one[key] for one in files) for key in ("outputs", "gradients"))
    return (
        f"Over {len(files)} files and {sum(one['bags'] for one in files)} bags the largest "
        f"difference is {outputs:.1e} for outputs and losses, and {gradients:.1e} for gradients "
        f"(torch {result['torch']}, {result['machine']})."
    )


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
