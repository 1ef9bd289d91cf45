"""The command predict."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from scmil.cli import app
from scmil.cli.options import (
    TRAINING,
    Device,
    Format,
    Json,
    Key,
    Model,
    Overwrite,
    device_of,
)
from scmil.cli.output import say, say_failed, say_json
from scmil.cli.progress import ProgressBars, progress_bars
from scmil.core.text import printable


@app.command("predict", rich_help_panel=TRAINING)
def predict_(
    model: Model,
    bags: Annotated[
        list[Path],
        typer.Argument(
            help="Folder of bags, a table of bags, or slides. Slides are tiled and encoded first."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Output table.")] = Path("predictions.csv"),
    work: Annotated[
        Path | None,
        typer.Option(
            help="Folder in which the tiles and bags of slides are kept.",
            show_default="a temporary folder",
        ),
    ] = None,
    patients: Annotated[
        Path | None,
        typer.Option(
            help="Table with the patient of each slide, such as a table of labels: columns "
            "slide_id and case_id. For a model of joined patients, and the column case_id.",
            show_default=False,
        ),
    ] = None,
    key: Key = None,
    format_name: Format = None,
    preset: Annotated[
        str, typer.Option(help="Tissue detection preset for slides (scmil ls presets).")
    ] = "default",
    mpp_of: Annotated[
        float | None,
        typer.Option(help="Microns per pixel of slides whose files do not specify it."),
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="File with the weights of the encoder for slides.")
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            help="Name of the encoder the model was trained with. Allows its weights to be "
            "downloaded; without it only local weights are used."
        ),
    ] = None,
    device: Device = "auto",
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Apply a trained model to new bags or slides.

    Example: `scmil predict model/ new_bags/ --out predictions.csv`

    Bags whose encoder, tile size or resolution differs from that of the model are rejected. Bags
    and slides that cannot be read are listed in failures.csv next to the output table, and skipped.
    A model that was trained with --patient joined predicts all slides of a patient as one bag, if
    the patients are known: from --patients, or from TCGA barcodes.
    """
    from scmil import studies as study
    from scmil.core.jobs.failure_log import FailureLog

    selected = device_of(device)
    study.load_trained_model(model)
    study.outputs_of(out, overwrite)
    rows: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    models, notes = 1, list[str]()
    with tempfile.TemporaryDirectory() as temporary, progress_bars(as_json) as bars:
        if study.are_slides(bags):
            opened, failed = study.encode_for(
                model,
                bags,
                work or Path(temporary),
                preset=preset,
                mpp_of=mpp_of,
                weights=weights,
                encoder=encoder,
                device=selected,
                progress=bars.callback,
            )
            for name, cause in failed.items():
                FailureLog(out.parent).add(name, "predict", cause)
        else:
            opened = study.open_bags_to_predict(bags, key=key, format_name=format_name)
        if opened is not None:
            if patients is not None:
                opened = study.patients_from_table(opened, patients)
            predicted = study.predict_folder(
                model,
                opened,
                out,
                device=selected,
                overwrite=overwrite,
                progress=_count_bags(bars, len(opened)),
            )
            rows, failed = predicted.rows, {**failed, **predicted.failed}
            models, notes = predicted.models, list(predicted.notes)
    if as_json:
        found = {"out": str(out), "predictions": rows, "failed": failed, "models": models}
        say_json({**found, "notes": notes})
    else:
        for note in notes:
            say(note, err=True)
        _print_predictions(rows, out)
        if models > 1:
            say(f"p_: mean of {models} models of an ensemble; sd_: their standard deviation")
        say_failed(failed)
    if failed:
        raise typer.Exit(1)


# ------------------------------------------------------------------------------------------ helpers


def _count_bags(bars: ProgressBars, total: int) -> Any:
    """Return a callback that counts predicted bags."""
    return lambda done: bars.update("predicting", done, total)


def _print_predictions(rows: list[dict[str, Any]], out: Path) -> None:
    """Print the first predictions with their probabilities."""
    for row in rows[:10]:
        probabilities = ", ".join(
            f"{name[2:]} {float(value):.3f}" for name, value in row.items() if name.startswith("p_")
        )
        say(printable(f"{row['slide_id']}: {row['y_pred']} ({probabilities})"))
    say(f"{len(rows)} predictions in {out}" if rows else "no predictions were made")
