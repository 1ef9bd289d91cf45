"""The command import-model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scmil.cli import app
from scmil.cli.options import TRAINING, Json, Overwrite
from scmil.cli.output import say, say_json
from scmil.core.limits import parse_toml
from scmil.errors import OptionError


@app.command("import-model", rich_help_panel=TRAINING)
def import_model_(
    file: Annotated[
        Path,
        typer.Argument(help="Checkpoint of the authors: .pth, .pt, .ckpt or .safetensors."),
    ],
    aggregator: Annotated[
        str,
        typer.Option(
            "--as",
            help="Aggregator: mean, max, mi-net-instance, mi-net, mi-net-ds, mi-net-rc, abmil, "
            "abmil-gated, dsmil, transmil, dtfd-maxmin, dtfd-afs, ilra, clam-sb, clam-mb, acmil, "
            "attrimil, dgr-mil, transformer, rrt, wikg, s4mil or patch-gcn.",
        ),
    ],
    encoder: Annotated[
        str, typer.Option(help="Name of the encoder whose features the model was trained on.")
    ],
    out: Annotated[Path, typer.Option(help="Output folder of the model.")] = Path("model"),
    classes: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Comma-separated names of the classes, in the order of the outputs. A model with "
            "one score has two classes, negative first.",
            show_default="0,1,...",
        ),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(
            help="Width and height of the tiles in pixels, compared with those of the bags.",
            show_default="not compared",
        ),
    ] = None,
    mpp: Annotated[
        float | None,
        typer.Option(
            help="Microns per pixel of the tiles, compared with those of the bags.",
            show_default="not compared",
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Probability above which the second of two classes is predicted.",
            show_default="0.5; with one sigmoid per class, the most likely class",
        ),
    ] = None,
    scaling: Annotated[
        Path | None,
        typer.Option(
            help="JSON file with the lists mean and deviation, one number per feature, to "
            "standardise the features.",
            show_default="features are not scaled",
        ),
    ] = None,
    groups: Annotated[
        int, typer.Option(min=1, help="DTFD: number of groups into which a bag is divided.")
    ] = 4,
    pooling: Annotated[str, typer.Option(help="MI-Net: max, mean or lse (log-sum-exp).")] = "max",
    sc_layers: Annotated[
        int, typer.Option(min=1, help="SC-MIL: number of iterations of the sparse coding layer.")
    ] = 5,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Option of the aggregator that cannot be derived from the tensors, such as "
            "heads=4. May be repeated.",
            show_default="the authors' defaults",
        ),
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Turn published weights of an aggregator into a model folder.

    Example: `scmil import-model c16.pth --as dsmil --encoder simclr --classes normal,tumor`

    Every tensor of the file must match one of the model; missing and unexpected tensors are
    reported. No code in the file is run. The folder can be used with predict, heatmap, locate, pca
    and view.
    """
    from scmil.models.official_weights import Choices
    from scmil.studies.import_model import ImportSettings, import_model

    names = None if classes is None else [name.strip() for name in classes.split(",")]
    imported = import_model(
        file,
        aggregator,
        out,
        ImportSettings(encoder, names, size, mpp, threshold, scaling),
        choices=Choices(groups, pooling, sc_layers, _parse_options(option or [])),
        overwrite=overwrite,
    )
    study = imported.study
    if as_json:
        say_json(
            {
                "out": str(imported.out),
                "aggregator": aggregator,
                "layout": study["imported"]["layout"],
                "classes": study["classes"],
                "output": imported.output,
                "threshold": study["threshold"],
                "contract": study["contract"],
                "sha256": study["imported"]["sha256"],
                "tensors": imported.tensors,
            }
        )
        return
    say(f"{len(imported.tensors)} tensors in the layout of {study['imported']['layout']}")
    say(
        f"{study['contract']['dim']}-dimensional features of {encoder}; classes "
        f"{', '.join(study['classes'])}; probabilities by {imported.output}"
    )
    say(f"Model in {imported.out}. Next: scmil predict {imported.out} BAGS")


def _parse_options(texts: list[str]) -> dict[str, object]:
    """Options from texts NAME=VALUE: numbers, true and false as in TOML, otherwise text."""
    options: dict[str, object] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise OptionError(f"--option {text!r}: expected NAME=VALUE, such as heads=4.")
        try:
            options[name] = parse_toml(f"value = {value}")["value"]
        except ValueError:
            options[name] = value
    return options
