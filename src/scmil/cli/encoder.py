"""The command encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from scmil.cli import app
from scmil.cli.options import INFORMATION, Device, Json, device_of
from scmil.cli.output import say, say_json, shown


@app.command("encoder", rich_help_panel=INFORMATION)
def encoder_(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[check] NAME",
            help="Name of an encoder (scmil ls encoders), or the path of a card, a TOML file that "
            "describes an encoder. With 'check' in front, the encoder is built and tested.",
        ),
    ],
    weights: Annotated[
        Path | None, typer.Option(help="With check: file with the weights of the encoder.")
    ] = None,
    random: Annotated[
        int | None,
        typer.Option(help="With check: use random weights with this seed, to measure the speed."),
    ] = None,
    device: Device = "auto",
    precision: Annotated[
        str, typer.Option(help="With check: float32, bfloat16, or auto, as in scmil encode.")
    ] = "auto",
    offline: Annotated[
        bool, typer.Option("--offline", help="With check: do not download weights.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print the tiles, features, weights and licence of an encoder, or test it on this computer.

    Example: `scmil encoder uni2-h`

    `scmil encoder check NAME --weights FILE` builds the network, compares the number of its
    parameters with the card, loads the weights, encodes a synthetic tile, and prints the digest of
    the features, the speed and the memory use.
    """
    from scmil.encoding.encoders import card_of
    from scmil.errors import OptionError

    checked = len(words) == 2 and words[0] == "check"
    if len(words) != 1 and not checked:
        raise OptionError(
            f"scmil encoder {' '.join(words)}: expected one name, or 'check' and one name."
        )
    if not checked:
        if weights is not None or random is not None:
            raise OptionError(f"--weights and --random need: scmil encoder check {words[0]}")
        _print_card(card_of(words[0]), as_json)
        return
    from scmil.encoding.encoders.check import check_encoder

    result = check_encoder(
        words[1],
        weights,
        offline=offline or None,
        random=random,
        device=device_of(device),
        precision=precision,
    )
    if as_json:
        say_json(result._asdict())
    else:
        _print_check(result)


def _print_card(card: Any, as_json: bool) -> None:
    from scmil.encoding.encoders.card_page import card_json, card_lines

    if as_json:
        say_json(card_json(card))
    else:
        _print_rows([("name", card.name), *card_lines(card)])


def _print_check(result: Any) -> None:
    say(f"{result.name}: {result.parameters} parameters, as on its card")
    _print_rows(
        [
            ("weights", result.weights),
            ("digest", result.digest),
            ("features", f"{result.width} numbers, digest {result.features_digest}"),
            ("", f"norm {result.features_norm:.6g}, first {result.first_features}"),
            ("precision", f"{result.precision}, cosine {result.agreement_with_float32:.6f}"),
            ("speed", f"{result.tiles_per_second:.1f} tiles per second on {result.device}"),
            ("memory", f"{result.megabytes:.0f} MB at most"),
        ]
    )


def _print_rows(rows: list[tuple[str, str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")  # not cut: addresses are copied
    for title, text in rows:
        table.add_row(title, shown(text))
    Console().print(table)
