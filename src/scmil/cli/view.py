"""The command view."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scmil.cli import app
from scmil.cli.options import VISUALISATION, Annotations, Device, device_of
from scmil.cli.output import say, say_failed
from scmil.cli.progress import progress_bars


@app.command(rich_help_panel=VISUALISATION)
def view(
    model: Annotated[
        Path,
        typer.Argument(
            help="Model folder written by scmil train, or a folder of one or two model folders."
        ),
    ],
    slides: Annotated[
        Path | None,
        typer.Argument(help="Folder of the slides. Without it only tiles are shown."),
    ] = None,
    bags: Annotated[
        Path | None, typer.Option(help="Folder of bags, to score slides that have no scores yet.")
    ] = None,
    other: Annotated[
        Path | None, typer.Option("--with", help="Second model, shown next to the first.")
    ] = None,
    also: Annotated[
        list[Path] | None,
        typer.Option(
            help="Model folder of another fold or seed, or a folder of such folders. May be "
            "repeated. The spread of every score over the first model and these is a further layer."
        ),
    ] = None,
    annotations: Annotations = None,
    labels: Annotated[
        Path | None,
        typer.Option(help="Table of labels for the bags, with the columns slide_id and label."),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="TCP port; 0 selects a free one.")
    ] = 0,
    open_browser: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in the browser.")
    ] = True,
    device: Device = "auto",
) -> None:
    """Show slides and the scores of one or two models in the browser.

    Example: `scmil view model/ slides/ --bags bags/ --with model_plain/`

    The server accepts connections from this computer only, at an address that contains a secret
    token, and reads only the folders given. Stop it with Ctrl+C.
    """
    from scmil.viz.model_folders import find_models
    from scmil.viz.viewer import Library, serve

    models = _find_models(model, other)
    others = [each for folder in also or [] for each in find_models(folder)]
    scored = None
    if bags is not None:
        scored = {
            bag_id
            for folder in (*models, *others)
            for bag_id in _score_bags(folder, bags, labels, device)
        }
    library = Library(models, slides, annotations, scored, others)
    if library.left_out:
        names = ", ".join(path.name for path in library.left_out[:3])
        say(
            f"{len(library.left_out)} slides are symbolic links to files outside {slides} and are "
            f"not shown ({names}). Specify the folder that contains the files.",
            err=True,
        )
    serve(library, port, _print_address, _print_browser_error if open_browser else None)


def _find_models(model: Path, other: Path | None) -> list[Path]:
    """Return the folders of the one or two models to show."""
    from scmil.errors import OptionError
    from scmil.viz.model_folders import find_models

    folders = find_models(model) + (find_models(other) if other else [])
    if len(folders) > 2:
        names = ", ".join(str(folder) for folder in folders)
        raise OptionError(
            f"{len(folders)} models were given, but at most two can be shown: {names}. "
            "Specify one, and the second using --with."
        )
    return folders


def _score_bags(model: Path, bags: Path, labels: Path | None, device: str) -> tuple[str, ...]:
    """Score the bags that have no scores yet and return the ids of all bags.

    Slides that cannot be scored are shown without scores.
    """
    from scmil.bags.formats import open_bags
    from scmil.bags.labels import read_labels
    from scmil.studies import score_folder

    opened = open_bags(bags, labels=read_labels(labels, missing=()) if labels else None)
    description = f"scoring, {model.resolve().name}"
    with progress_bars(quiet=False) as bars:
        scored = score_folder(
            model,
            opened,
            device=device_of(device),
            progress=lambda done: bars.update(description, done, len(opened)),
        )
    say_failed(scored.failed, most=len(scored.failed))
    return opened.ids


def _print_address(address: str) -> None:
    say(f"{address}\nThe page can be opened on this computer only. Stop the server with Ctrl+C.")


def _print_browser_error(reason: str) -> None:
    say(f"The browser could not be opened: {reason}. Open the address manually.", err=True)
