"""The commands tile and encode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scmil.cli import app
from scmil.cli.options import (
    SLIDES,
    Device,
    EncoderMpp,
    Json,
    Mpp,
    MppOf,
    On,
    OverrideMpp,
    RetryFailed,
    ShardOf,
    TaskCpus,
    TaskGpus,
    cluster_of,
    device_of,
    parse_number,
)
from scmil.cli.output import say, say_failed, say_json
from scmil.cli.panels import ENCODE_PANELS, TILE_OPTIONS, TILE_PANELS, group_options
from scmil.cli.progress import slide_progress

if TYPE_CHECKING:
    from scmil.encoding.work_folder import Source

Slides = Annotated[
    Path, typer.Argument(help="Folder of slides, searched recursively, or a single slide.")
]
SizePx = Annotated[int, typer.Option("--size", min=1, help="Width and height of a tile in pixels.")]
EncoderSizePx = Annotated[
    int | None,
    typer.Option(
        "--size",
        min=1,
        help="Width and height of a tile in pixels.",
        show_default="that of the encoder, or 256",
    ),
]
Mag = Annotated[
    float | None,
    typer.Option(help="Magnification instead of --mpp: --mag 20 is the same as --mpp 0.5."),
]
Overlap = Annotated[int, typer.Option(min=0, help="Overlap of neighbouring tiles in pixels.")]
MinTissue = Annotated[
    float, typer.Option(min=0, max=1, help="Minimum fraction of tissue in a tile.")
]
Preset = Annotated[
    str,
    typer.Option(
        help="Tissue detection preset: default, biopsy, resection, tcga or otsu (scmil ls presets)."
    ),
]
Pen = Annotated[bool, typer.Option("--pen/--no-pen", help="Exclude marker ink from the tissue.")]
# Options of encode that apply only while slides are tiled.
TILING_OPTIONS = (*TILE_OPTIONS, "out")


@app.command("tile", rich_help_panel=SLIDES)
@group_options(TILE_PANELS)
def tile_(
    slides: Slides,
    out: Annotated[Path, typer.Option(help="Output folder (work folder).")],
    size: SizePx = 256,
    mpp: Mpp = None,
    mag: Mag = None,
    overlap: Overlap = 0,
    min_tissue: MinTissue = 0.1,
    rule: Annotated[
        str,
        typer.Option(
            help="Which tiles are kept: 'fraction' (at least --min-tissue of the tile is tissue) "
            "or 'four_pt' (the rule of CLAM)."
        ),
    ] = "fraction",
    preset: Preset = "default",
    pen: Pen = True,
    mpp_of: MppOf = None,
    override_mpp: OverrideMpp = False,
    jobs: Annotated[
        int, typer.Option("--workers", min=1, help="Number of slides processed in parallel.")
    ] = 1,
    shard: ShardOf = None,
    on: On = None,
    task_cpus: TaskCpus = 1,
    task_gpus: TaskGpus = 0,
    retry_failed: RetryFailed = False,
    as_json: Json = False,
) -> None:
    """Detect tissue and divide it into tiles.

    Example: `scmil tile slides/ --out work/`

    Check the images OUT/tiles/SLIDE.jpg. To correct the tissue, edit OUT/tissue/SLIDE.geojson in
    QuPath and repeat the command. Slides that fail are listed in OUT/failures.csv and skipped. An
    interrupted command resumes when it is repeated.
    """
    from scmil.core.jobs.shards import parse_shard
    from scmil.encoding.cohort import TileSettings

    part, cluster = parse_shard(shard), cluster_of(on, task_cpus, task_gpus)
    settings = TileSettings(
        size, _resolve_mpp(mpp, mag), overlap, min_tissue, rule, preset, None, pen
    )
    sources = _find_sources(slides, mpp_of, override_mpp)
    with _connect(cluster) as dispatch:
        options = {"jobs": jobs, "shard": part, "dispatch": dispatch, "retry_failed": retry_failed}
        outcome = _tile_slides(sources, out, settings, as_json, **options)
    _report_outcomes({"tile": outcome}, out, as_json)


@app.command("encode", rich_help_panel=SLIDES)
@group_options(ENCODE_PANELS)
def encode_(
    context: typer.Context,
    folder: Annotated[
        Path,
        typer.Argument(
            help="Work folder written by scmil tile, or a folder of slides, which are tiled first."
        ),
    ],
    encoder: Annotated[
        str,
        typer.Option(
            help="Name of the encoder (scmil ls encoders), or timm:NAME for any timm model."
        ),
    ] = "resnet18",
    weights: Annotated[
        Path | None, typer.Option(help="File with the weights of the encoder.")
    ] = None,
    random: Annotated[
        int | None,
        typer.Option(help="Use random weights with this seed, for tests without a download."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Output folder (work folder); required for slides.")
    ] = None,
    two_scales: Annotated[
        bool,
        typer.Option(
            "--two-scales",
            help="Concatenate the features of each tile with those of the surrounding tile of four "
            "times the width.",
        ),
    ] = False,
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="Batch size in tiles.", show_default="8, or 64 on a GPU"),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of threads that read tiles in advance.",
            show_default="one per core, at most 8",
        ),
    ] = None,
    device: Device = "auto",
    devices: Annotated[
        str | None,
        typer.Option(
            help="Encode on several devices with one process each: 'all' GPUs, or a list such as "
            "cuda:0,cuda:1."
        ),
    ] = None,
    precision: Annotated[
        str,
        typer.Option(
            help="Precision of the encoder: float32, bfloat16, or auto for the faster one, if its "
            "features agree."
        ),
    ] = "auto",
    dtype: Annotated[
        str, typer.Option(help="Data type of the stored features: float16 or float32.")
    ] = "float16",
    offline: Annotated[
        bool,
        typer.Option("--offline", help="Do not download weights; report the file that is missing."),
    ] = False,
    size: EncoderSizePx = None,
    mpp: EncoderMpp = None,
    mag: Mag = None,
    overlap: Overlap = 0,
    min_tissue: MinTissue = 0.1,
    preset: Preset = "default",
    pen: Pen = True,
    mpp_of: MppOf = None,
    override_mpp: OverrideMpp = False,
    shard: ShardOf = None,
    on: On = None,
    task_cpus: TaskCpus = 1,
    task_gpus: TaskGpus = 0,
    retry_failed: RetryFailed = False,
    as_json: Json = False,
) -> None:
    """Compute the features of all tiles; the result is one HDF5 file (bag) per slide.

    Example: `scmil encode slides/ --out work/ --encoder efficientnet-lite0`

    Slides that fail are listed in failures.csv of the work folder and skipped. An interrupted
    command resumes when it is repeated. Several processes, also on several computers with a
    shared disk, may work on one folder at the same time; each slide is encoded once.
    """
    from scmil.core.jobs.shards import parse_shard
    from scmil.encoding.cohort import EncodeSettings, TileSettings, encode_slides, read_settings
    from scmil.encoding.encoder_tiles import choose_tile
    from scmil.encoding.encoders import load_encoder, tile_warnings

    part, cluster = parse_shard(shard), cluster_of(on, task_cpus, task_gpus)
    is_tiled = (folder / "slides.csv").is_file()
    work = _choose_work_folder(context, folder, out, is_tiled)
    if cluster:
        _check_cluster_device(device, task_gpus)
    several = _parse_devices(devices, device, cluster)
    network = load_encoder(
        encoder,
        weights,
        offline=offline or None,
        random=random,
        # The nodes of a cluster and the processes move the encoder to their own device.
        device="cpu" if cluster or several else device_of(device),
        precision="float32" if cluster or several else precision,
    )
    outcomes, only = {}, None
    with _connect(cluster) as dispatch:
        options: dict[str, Any] = {
            "shard": part,
            "dispatch": dispatch,
            "retry_failed": retry_failed,
        }
        if is_tiled:
            tiles = read_settings(work)
        else:
            given_mpp = None if mpp is None and mag is None else _resolve_mpp(mpp, mag)
            size_px, tile_mpp = choose_tile(network, work, size, given_mpp)
            tiles = TileSettings(
                size_px, tile_mpp, overlap, min_tissue, "fraction", preset, None, pen
            )
            sources = _find_sources(folder, mpp_of, override_mpp)
            outcomes["tile"] = _tile_slides(sources, work, tiles, as_json, **options)
            # The work folder may contain tiles of other slides with the same names.
            rejected = set(outcomes["tile"].failed)
            only = [source.id for source in sources if source.id not in rejected]
        for warning in tile_warnings(network, tiles.size_px, tiles.mpp):
            say(f"warning: {warning}", err=True)
        with slide_progress(as_json) as progress:
            outcomes["encode"] = encode_slides(
                work,
                network,
                EncodeSettings(2 if two_scales else 1, dtype, batch, workers),
                only=only,
                device=device,
                precision=precision,
                on_start=lambda slides: progress.start("encode", slides),
                on_slide=progress.finish_slide,
                on_tiles=progress.update_tiles,
                **{**options, **several},
            )
    _report_outcomes(outcomes, work, as_json)


# ------------------------------------------------------------------------------------------ helpers


@contextmanager
def _connect(cluster: Any) -> Iterator[Any]:
    """Yield a function that dispatches slides to a cluster; None without a cluster.

    The connection is opened once for all stages.
    """
    if cluster is None:
        yield None
        return
    from scmil.studies.cluster import slides_on

    with cluster.connected():
        yield slides_on(cluster)


def _find_sources(slides: Path, mpp_of: str | None, override_mpp: bool) -> list[Source]:
    """List the slides of a folder with the microns per pixel of `--mpp-of`."""
    from scmil.encoding.cohort import find_cohort

    mpp = parse_number(mpp_of)
    return find_cohort(slides, mpp_of if mpp is None else mpp, override_mpp=override_mpp)


def _tile_slides(
    sources: Sequence[Source], out: Path, settings: Any, as_json: bool, **options: Any
) -> Any:
    """Tile slides with progress bars, then print where given and stated resolutions differ."""
    from scmil.encoding.cohort import resolution_notes, tile_slides

    own = options["shard"].of(sources)
    with slide_progress(as_json) as progress:
        progress.start("tile", len(own))
        outcome = tile_slides(sources, out, settings, on_slide=progress.finish_slide, **options)
    for note in resolution_notes(out, own):
        say(note, err=True)
    return outcome


def _choose_work_folder(
    context: typer.Context, folder: Path, out: Path | None, is_tiled: bool
) -> Path:
    """Return the work folder of encode, after checking that the options apply to its input."""
    from scmil.errors import OptionError

    if is_tiled:
        if unused := [name for name in TILING_OPTIONS if _was_typed(context, name)]:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in unused)
            raise OptionError(
                f"{names}: {folder} is tiled already, so these options have no effect. Tile the "
                "slides into another folder with them, then encode that folder."
            )
        return folder
    if out is None:
        raise OptionError(
            f"{folder} contains slides, not tiles. Specify an output directory with --out."
        )
    return out


def _check_cluster_device(device: str, task_gpus: float) -> None:
    from scmil.errors import OptionError

    if device.startswith("cuda") and not task_gpus:
        raise OptionError(
            f"--device {device} on a cluster needs the number of GPUs per slide. Add --task-gpus 1."
        )


def _parse_devices(devices: str | None, device: str, cluster: Any) -> dict[str, Any]:
    """Return the option of encode_slides for several devices; empty without them."""
    from scmil.errors import OptionError

    if devices is None:
        return {}
    if cluster or device != "auto":
        raise OptionError("--devices cannot be combined with --device or --on. Give one of them.")
    from scmil.encoding.devices import dispatch_to_devices, parse_devices

    return {"dispatch": dispatch_to_devices(parse_devices(devices))}


def _was_typed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _report_outcomes(outcomes: dict[str, Any], work: Path, as_json: bool) -> None:
    """Print the number of slides per state; exit with code 1 if any slide failed."""
    from scmil.core.jobs.failure_log import FailureLog

    failures = FailureLog(work).read()
    failed = sorted({name for outcome in outcomes.values() for name in outcome.failed})
    if as_json:
        states = ("done", "kept", "failed", "taken")
        stages = {
            stage: {state: list(getattr(outcome, state)) for state in states}
            for stage, outcome in outcomes.items()
        }
        say_json(
            {"out": str(work), **stages, "failures": [failure._asdict() for failure in failures]}
        )
    else:
        for stage, outcome in outcomes.items():
            say(f"{stage}: {outcome}")
        say_failed({f"{f.slide} ({f.stage})": f.cause for f in failures if f.slide in failed})
        if failed:
            say(
                f"{len(failed)} slides failed; causes: {work / 'failures.csv'}. "
                "To process them again, add --retry-failed.",
                err=True,
            )
    if failed:
        raise typer.Exit(1)


def _resolve_mpp(mpp: float | None, mag: float | None) -> float:
    """Return the resolution of the tiles from --mpp or --mag."""
    from scmil.errors import OptionError

    if mpp is not None and mag is not None:
        raise OptionError(
            f"--mpp {mpp:g} and --mag {mag:g} both set the resolution. Specify only one of them."
        )
    if mag is not None and mag <= 0:
        raise OptionError(f"--mag {mag:g}: expected a positive magnification, such as 20.")
    return mpp if mpp is not None else 10 / mag if mag is not None else 0.5
