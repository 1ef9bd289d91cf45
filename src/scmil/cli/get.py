"""The command get."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from scmil.cli import app
from scmil.cli.options import TRAINING, Json
from scmil.cli.output import say, say_json


@app.command(rich_help_panel=TRAINING)
def get(
    name: Annotated[
        str,
        typer.Argument(
            help="Name of a benchmark data set such as fox or birds-winter-wren (scmil ls "
            "datasets), or of a set of features (scmil ls features)."
        ),
    ],
    url: Annotated[
        str | None,
        typer.Option(
            help="Download from another address. Published checksums are verified in any case.",
            show_default="the public source",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Output folder of the features.", show_default="the cache folder of scmil"
        ),
    ] = None,
    max_size: Annotated[
        float, typer.Option(min=0, help="Reject sets of features larger than this, in GB.")
    ] = 100.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print size and licence of the features, and exit.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Download a benchmark data set or a set of public features, and verify its checksum.

    Example: `scmil get camelyon16-torchmil --out features/ --dry-run`

    For features, their size, licence, encoders and how they were computed are printed first. An
    interrupted download resumes when the command is repeated.
    """
    from scmil.bags.datasets import fetch, names

    if name in names():
        say(f"{name} is ready: {fetch(name, url)}")
        return
    from scmil.bags.datasets.feature_download import GIGABYTE, download_features, list_files
    from scmil.bags.datasets.feature_sets import find_feature_set

    chosen = find_feature_set(name, names())
    listing = list_files(chosen, url)
    page = _describe(chosen, listing, chosen.folder(out))
    if not as_json:
        for title, text in page.items():
            say(f"{title.replace('_', ' ')}: {text}", err=not dry_run)
    if not dry_run:
        place = download_features(chosen, listing, out, int(max_size * GIGABYTE))
        page["ready"] = str(place)
        if not as_json:
            say(f"{name} is ready: {place}")
    if as_json:
        say_json(page)


def _describe(chosen: Any, listing: Any, folder: Path) -> dict[str, Any]:
    known = listing.size and all(file.size is not None for file in listing.files)
    return {
        "name": chosen.name,
        "summary": chosen.summary,
        "source": chosen.source,
        "files": len(listing.files),
        "size": f"{listing.size / 1e9:.3g} GB" if known else "not stated by the server",
        "licence": chosen.licence,
        "encoders": ", ".join(f"{key} = {card}" for key, card in chosen.encoders.items())
        or "not a card of scmil",
        "protocol": chosen.protocol,
        "checksums": "published"
        if all(file.sha256 for file in listing.files)
        else "recorded on the first download",
        "folder": str(folder),
    }
