"""Slides and models in the browser: scmil view."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scmil.cli import app
from scmil.cli.options import device_of, progress_bars, say, say_failed

PANEL = "Seeing"


@app.command(rich_help_panel=PANEL)
def view(
    model: Annotated[Path, typer.Argument(help="A model of scmil train, or a folder of one or two models.")],
    slides: Annotated[
        Path | None, typer.Argument(help="The folder of the slides; without it only tiles are shown.")
    ] = None,
    bags: Annotated[Path | None, typer.Option(help="Bags, to score the slides that are not scored yet.")] = None,
    other: Annotated[Path | None, typer.Option("--with", help="A second model, side by side with the first.")] = None,
    annotations: Annotated[
        Path | None,
        typer.Option(help="Outlines that people drew: SLIDE.geojson or SLIDE.xml. [default: beside the slides]"),
    ] = None,
    labels: Annotated[Path | None, typer.Option(help="A table of labels for the bags: slide_id, label.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 0,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
    device: Annotated[
        str, typer.Option(help="For scoring: cpu, cuda, mps; auto takes a GPU if there is one.")
    ] = "auto",
) -> None:
    """Look at slides with what one or two models say of them, in the browser. Stop it with Ctrl+C.

    The page is served to this computer only, under an address with a secret, and reads no other folders than those given.
    Example: scmil view model/ slides/ --bags bags/ --with model_plain/
    """
    from scmil.viz.viewer import Library, serve

    models = _models(model, other)
    scored = None if bags is None else {id for folder in models for id in _score(folder, bags, labels, device)}
    library = Library(models, slides, annotations, scored)
    if library.left_out:
        names = ", ".join(path.name for path in library.left_out[:3])
        say(
            f"{len(library.left_out)} slides are links out of {slides} and are not shown ({names}). "
            "Give the folder that they lead to.",
            err=True,
        )
    serve(library, port, _tell, _no_browser if open_browser else None)


def _models(model: Path, other: Path | None) -> list[Path]:
    from scmil.errors import OptionError
    from scmil.viz.viewer.library import models_of

    found = models_of(model) + (models_of(other) if other else [])
    if len(found) > 2:
        names = ", ".join(str(folder) for folder in found)
        raise OptionError(f"{len(found)} models, and two fit on a screen: {names}. Name one, and another --with.")
    return found


def _score(model: Path, bags: Path, labels: Path | None, device: str) -> tuple[str, ...]:
    """Score what is not scored yet; slides that cannot be scored are shown without scores. The ids of the bags."""
    from scmil.bags.formats import open_bags
    from scmil.bags.labels import read_labels
    from scmil.studies import score_folder

    opened = open_bags(bags, labels=read_labels(labels, missing=()) if labels else None)
    with progress_bars() as progress:
        task = progress.add_task(f"scoring, {model.resolve().name}", total=len(opened))
        scored = score_folder(
            model, opened, device=device_of(device), progress=lambda done: progress.update(task, completed=done)
        )
    say_failed(scored.failed, most=len(scored.failed))
    return opened.ids


def _tell(address: str) -> None:
    say(f"{address}\nOnly this computer can open it. Stop it with Ctrl+C.")


def _no_browser(reason: str) -> None:
    say(f"The browser was not opened: {reason}. Open the address yourself.", err=True)
