"""Verbs of pixels: info, tile, encode, paint."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from scmil.cli import app
from scmil.cli.options import (On, Overwrite, ShardOf, TaskCpus, TaskGpus, cluster_of, device_of, progress_bars, say, say_failed, shown)
from scmil.core.files import printable

PANEL = "From slides to bags"

Slides = Annotated[Path, typer.Argument(help="A folder of slides, at any depth, or one slide.")]
Json = Annotated[bool, typer.Option("--json", help="For programs.")]
MppOf = Annotated[
    str | None,
    typer.Option(
        help="Microns per pixel of the slides at full size, where the files do not say them or are wrong: a number for "
        "all, or a table with the columns slide and mpp."
    ),
]
SizePx = Annotated[int, typer.Option("--size", min=1, help="Width of a tile in pixels.")]
Mpp = Annotated[float | None, typer.Option(help="Microns per pixel of the tiles, exactly. [default: 0.5]")]
Mag = Annotated[float | None, typer.Option(help="The same as a magnification: --mag 20 is --mpp 0.5.")]
Overlap = Annotated[int, typer.Option(min=0, help="Pixels by which neighbours overlap.")]
MinTissue = Annotated[float, typer.Option(min=0, max=1, help="The part of a tile that has to be tissue.")]
Preset = Annotated[str, typer.Option(help="How tissue is found: default, biopsy, resection, tcga or otsu.")]
Pen = Annotated[bool, typer.Option("--pen/--no-pen", help="Leave marker ink out.")]
ASKED_AT_TILING = ("size", "mpp", "mag", "overlap", "min_tissue", "preset", "pen", "mpp_of", "out")
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Try the slides of failures.csv again.")]


@app.command(rich_help_panel=PANEL)
def info(slide: Annotated[Path, typer.Argument(help="A slide.")], mpp_of: MppOf = None, as_json: Json = False) -> None:
    """Say what a slide is: format, size, microns per pixel, levels, and what is doubtful about it."""
    from scmil.slides import describe, open_slide

    given = _number(mpp_of)
    if mpp_of is not None and given is None:
        from scmil.encoding.cohort import read_mpp
        from scmil.bags.labels import slide_id

        given = read_mpp(mpp_of).get(slide_id(slide.name))
    with open_slide(slide, mpp=given) as opened:
        facts = describe(opened)
    if as_json:
        say(json.dumps(facts, indent=2))
        return
    _print_facts(facts)


@app.command("tile", rich_help_panel=PANEL)
def tile_(
    slides: Slides,
    out: Annotated[Path, typer.Option(help="Folder of the results.")],
    size: SizePx = 256,
    mpp: Mpp = None,
    mag: Mag = None,
    overlap: Overlap = 0,
    min_tissue: MinTissue = 0.1,
    rule: Annotated[str, typer.Option(help="fraction, or CLAM's four_pt.")] = "fraction",
    preset: Preset = "default",
    pen: Pen = True,
    mpp_of: MppOf = None,
    jobs: Annotated[int, typer.Option("--workers", min=1, help="Slides at the same time.")] = 1,
    shard: ShardOf = None,
    on: On = None,
    task_cpus: TaskCpus = 1,
    task_gpus: TaskGpus = 0,
    retry_failed: RetryFailed = False,
    as_json: Json = False,
) -> None:
    """Find tissue and lay tiles over it. Look at OUT/tiles/*.jpg; edit OUT/tissue/*.geojson in QuPath and start again.

    Slides that fail are written to OUT/failures.csv, and the others go on. The same command goes on where it was stopped.
    """
    from scmil.encoding.cohort import TileSettings
    from scmil.core.jobs.shards import parse_shard

    part, cluster = parse_shard(shard), cluster_of(on, task_cpus, task_gpus)
    settings = TileSettings(size, _mpp(mpp, mag), overlap, min_tissue, rule, preset, None, pen)
    with _dealt(cluster) as deal:
        how = {"jobs": jobs, "shard": part, "deal": deal, "retry_failed": retry_failed}
        outcome = _tile(slides, out, settings, mpp_of, as_json, **how)
    _finish({"tile": outcome}, out, as_json)


@app.command("encode", rich_help_panel=PANEL)
def encode_(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="A folder that scmil tile wrote, or slides, which are tiled first.")],
    encoder: Annotated[str, typer.Option(help="scmil ls encoders; or timm:NAME for any model of timm.")] = "resnet18",
    weights: Annotated[Path | None, typer.Option(help="A file of weights for the encoder.")] = None,
    random: Annotated[int | None, typer.Option(help="Random weights of this seed: for trying things out.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the results, if slides are given.")] = None,
    two_scales: Annotated[
        bool,
        typer.Option("--two-scales", help="Beside each tile the features of the tile four times as wide around it."),
    ] = False,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Tiles at a time through the encoder. [default: 8, on a GPU 64]")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Threads that read tiles ahead.")] = 1,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps; auto takes a GPU if there is one.")] = "auto",
    precision: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto",
    dtype: Annotated[str, typer.Option(help="Of the features in the files: float16 or float32.")] = "float16",
    offline: Annotated[bool, typer.Option("--offline", help="Download nothing; say which file is missing.")] = False,
    size: SizePx = 256,
    mpp: Mpp = None,
    mag: Mag = None,
    overlap: Overlap = 0,
    min_tissue: MinTissue = 0.1,
    preset: Preset = "default",
    pen: Pen = True,
    mpp_of: MppOf = None,
    shard: ShardOf = None,
    on: On = None,
    task_cpus: TaskCpus = 1,
    task_gpus: TaskGpus = 0,
    retry_failed: RetryFailed = False,
    as_json: Json = False,
) -> None:
    """Encode tiles into bags, one HDF5 file a slide. Stop it at any time: the same command goes on where it stopped.

    Several processes, also of several computers with the same disk, may work on one folder: each slide is done once.
    """
    from scmil.encoding.cohort import TileSettings, encode_slides, find_cohort, read_settings, tiled_slides
    from scmil.encoding.encoders import check_contract, load_encoder
    from scmil.errors import OptionError
    from scmil.core.jobs.shards import parse_shard

    part, cluster = parse_shard(shard), cluster_of(on, task_cpus, task_gpus)
    is_work = (folder / "slides.csv").is_file()
    if is_work and (late := [name for name in ASKED_AT_TILING if _was_typed(context, name)]):
        options = ", ".join(f"--{name.replace('_', '-')}" for name in late)
        raise OptionError(
            f"{options}: {folder} is tiled already. Tile the slides into another folder with it, then encode that."
        )
    work = folder if is_work else out
    if work is None:
        raise OptionError(f"{folder} has slides, and is no folder of scmil tile: name one for the results with --out.")
    if cluster and device.startswith("cuda") and not task_gpus:
        raise OptionError(f"--device {device} on a cluster: say how many GPUs a slide takes, --task-gpus 1.")
    # For a cluster it stays as it is, and is brought to a device there.
    place, digits = ("cpu", "float32") if cluster else (device_of(device), precision)
    network = load_encoder(encoder, weights, offline=offline or None, random=random, device=place, precision=digits)
    outcomes, only = {}, None
    with _dealt(cluster) as deal:
        how: dict[str, Any] = {"shard": part, "deal": deal, "retry_failed": retry_failed}
        if not is_work:
            settings = TileSettings(size, _mpp(mpp, mag), overlap, min_tissue, "fraction", preset, None, pen)
            outcomes["tile"] = _tile(folder, work, settings, mpp_of, as_json, **how)
            rejected = set(outcomes["tile"].failed)  # the work folder may have tiles of other slides of these names
            only = [source.id for source in find_cohort(folder) if source.id not in rejected]
        tiles = read_settings(work)
        for warning in check_contract(network, tiles.size_px, tiles.mpp):
            say(f"warning: {warning}", err=True)
        with slide_bars(as_json) as bars:
            bars.total("encode", len(tiled_slides(work, only, part)))
            outcomes["encode"] = encode_slides(
                work,
                network,
                only=only,
                scales=2 if two_scales else 1,
                dtype=dtype,
                batch=batch,
                workers=workers,
                device=device,
                precision=precision,
                on_slide=bars.slide,
                on_tiles=bars.tiles,
                **how,
            )
    _finish(outcomes, work, as_json)


@app.command(rich_help_panel=PANEL)
def paint(
    out: Annotated[Path, typer.Option(help="Folder of the slides and of labels.csv.")],
    slides: Annotated[int, typer.Option(min=1, help="How many.")] = 8,
    side: Annotated[int, typer.Option(min=1000, max=100_000, help="Width and height in pixels.")] = 6000,
    mpp: Annotated[float, typer.Option(help="Microns per pixel.")] = 0.5,
    seed: Annotated[int, typer.Option(min=0, help="The same seed paints the same slides.")] = 0,
    overwrite: Overwrite = False,
) -> None:
    """Paint slides that look like H&E, half of them with tumour, with annotations and labels: to try things out."""
    from scmil.slides.synthetic import paint_cohort

    labels = paint_cohort(
        out, slides=slides, size=(side, side), mpp=mpp, seed=seed, annotations=True, overwrite=overwrite
    )
    say(f"{slides} slides and {labels}")


# ------------------------------------------------------------------------------------------------------------- helpers


@contextmanager
def _dealt(cluster: Any) -> Iterator[Any]:
    """How slides are dealt out: to a cluster that is joined once for all stages, or, with None, not at all."""
    if cluster is None:
        yield None
        return
    from scmil.studies.cluster import slides_on

    with cluster.joined():
        yield slides_on(cluster)


def _tile(slides: Path, out: Path, settings: Any, mpp_of: str | None, as_json: bool, **how: Any) -> Any:
    from scmil.encoding.cohort import find_cohort, tile_slides

    given = _number(mpp_of)
    sources = find_cohort(slides, mpp_of if given is None else given)
    with slide_bars(as_json) as bars:
        bars.total("tile", len(how["shard"].of(sources)))
        return tile_slides(sources, out, settings, on_slide=bars.slide, **how)


def _was_typed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _finish(outcomes: dict[str, Any], work: Path, as_json: bool) -> None:
    """Say what became of the slides; some that failed make the command fail."""
    from scmil.core.jobs.work import Ledger

    failures = Ledger(work).read()
    failed = sorted({name for outcome in outcomes.values() for name in outcome.failed})
    if as_json:
        page: dict[str, Any] = {
            stage: {key: list(getattr(outcome, key)) for key in ("done", "kept", "failed", "taken")}
            for stage, outcome in outcomes.items()
        }
        say(json.dumps({"out": str(work), **page, "failures": [f._asdict() for f in failures]}, indent=2))
    else:
        for stage, outcome in outcomes.items():
            say(f"{stage}: {outcome}")
        say_failed({f"{f.slide} ({f.stage})": f.cause for f in failures if f.slide in failed})
        if failed:
            say(f"{len(failed)} slides failed; causes: {work / 'failures.csv'}; again: --retry-failed", err=True)
    if failed:
        raise typer.Exit(1)


class _Bars:
    """Progress over slides and within one; silent where nobody looks."""

    def __init__(self, progress: Any = None) -> None:
        self.progress, self.all, self.one = progress, None, None

    def total(self, verb: str, slides: int) -> None:
        if self.progress:
            self.all = self.progress.add_task(f"{verb}, slides", total=slides)

    def slide(self, name: str, state: str) -> None:
        if not self.progress:
            if state != "kept" and not sys.stderr.isatty():
                say(printable(f"{state}: {name}"), err=True)
            return
        if self.one is not None:
            self.progress.remove_task(self.one)
            self.one = None
        if self.all is not None:
            self.progress.advance(self.all)

    def tiles(self, name: str, done: int, total: int) -> None:
        if self.progress:
            if self.one is None:
                self.one = self.progress.add_task(f"  {name}, tiles", total=total)
            self.progress.update(self.one, completed=done)


@contextmanager
def slide_bars(quiet: bool) -> Iterator[_Bars]:
    """Bars over slides and their tiles, or silence."""
    if quiet or not sys.stderr.isatty():
        yield _Bars()
        return
    from rich.console import Console

    with progress_bars(console=Console(stderr=True)) as progress:
        yield _Bars(progress)


def _mpp(mpp: float | None, mag: float | None) -> float:
    from scmil.errors import OptionError

    if mpp is not None and mag is not None:
        raise OptionError(f"--mpp {mpp:g} and --mag {mag:g} say the same thing: give one of them.")
    if mag is not None and mag <= 0:
        raise OptionError(f"--mag {mag:g}: a magnification such as 20 is needed.")
    return mpp if mpp is not None else 10 / mag if mag is not None else 0.5


def _number(text: str | None) -> float | None:
    """A number, or None if the text is the name of a file or nothing."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _print_facts(facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console, table = Console(), Table(box=None, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    for key, value in facts.items():
        if key != "warnings" and value not in (None, [], {}, ()):
            table.add_row(key.replace("_", " "), shown(_said(value)))
    console.print(table)
    for warning in facts.get("warnings", ()):
        console.print(f"[bold yellow]warning:[/] {shown(warning)}")


def _said(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{key}: {_said(part)}" for key, part in value.items())
    if isinstance(value, (list, tuple)):
        simple = all(isinstance(part, (int, float, str)) for part in value)
        return (", " if simple else "\n").join(
            _said(part) if not isinstance(part, dict) else _inline(part) for part in value
        )
    return f"{value:g}" if isinstance(value, float) else str(value)


def _inline(part: dict[str, Any]) -> str:
    return ", ".join(f"{key} {_said(value)}" for key, value in part.items())
