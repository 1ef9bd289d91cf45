"""The command demo."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scmil.cli import app
from scmil.cli.options import TRAINING, Jobs, Json, Repeats, Seed
from scmil.cli.output import say
from scmil.cli.progress import slide_progress
from scmil.cli.run import run_plan
from scmil.errors import OptionError

if TYPE_CHECKING:
    from scmil.demo.tasks import DemoTask


@app.command(rich_help_panel=TRAINING)
def demo(
    dataset: Annotated[
        str | None,
        typer.Option(
            help="Use this benchmark data set instead of synthetic slides: musk1, elephant, ... "
            "(scmil ls datasets)."
        ),
    ] = None,
    task: Annotated[
        str,
        typer.Option(
            help="What is predicted from the synthetic slides: class, survival, regression, "
            "ordinal or multilabel."
        ),
    ] = "class",
    slides: Annotated[
        int | None,
        typer.Option(
            min=8, help="Number of synthetic slides.", show_default="24, 48 for other tasks"
        ),
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Number of cross-validation folds.",
            show_default="4 for slides, 10 for a data set",
        ),
    ] = None,
    repeats: Repeats = 2,
    epochs: Annotated[
        int, typer.Option(min=1, help="Number of training epochs (only with --dataset).")
    ] = 40,
    seed: Seed = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Output folder.", show_default="a folder in runs/"),
    ] = None,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Run the whole pipeline on synthetic slides, up to a report with heatmaps.

    Takes less than five minutes on two cores. With `--dataset musk1` it compares a model with
    and without sparse coding on a benchmark data set instead, in about two minutes. With `--task
    survival` the slides have survival times that depend on the tissue in a known way. Repeating
    the command reuses existing results.
    """
    from scmil.demo.tasks import demo_task

    chosen = demo_task(task)
    if dataset is None:
        count = slides or (24 if chosen.is_class else 48)
        _run_slide_demo(chosen, count, folds or 4, repeats, seed, out, jobs, as_json)
    elif not chosen.is_class:
        raise OptionError(
            f"--task {task} is for synthetic slides. Omit --dataset, or use scmil run."
        )
    else:
        _run_benchmark_demo(dataset, folds or 10, repeats, epochs, seed, out, jobs, as_json)


def _run_slide_demo(
    task: DemoTask,
    slides: int,
    folds: int,
    repeats: int,
    seed: int,
    out: Path | None,
    jobs: int | None,
    as_json: bool,
) -> None:
    from scmil.demo import slides as stages
    from scmil.studies.plan import make_plan

    def announce(text: str) -> None:
        if not as_json:
            say(text, err=True)

    kind = "slides" if task.is_class else task.name
    folder = out or Path("runs") / f"demo-{kind}-{slides}-{seed}"
    announce(f"1. Generating {slides} synthetic H&E slides, {task.words}, in {folder / 'slides'}")
    labels = stages.make_slides(folder, slides, seed, "none" if task.is_class else "planted")
    announce(
        f"2. Detecting tissue, tiling, encoding with {stages.ENCODER}; images of the tiles: "
        f"{folder / 'work' / 'tiles'}"
    )
    with slide_progress(as_json) as progress:
        progress.start("tile and encode", 2 * slides)
        bags = stages.make_bags(folder, progress.finish_slide)
    announce(
        "3. Cross-validating three methods: ABMIL without sparse coding, with sparse coding, and "
        "with a linear layer instead"
    )
    plan = make_plan(stages.slides_config(bags, labels, folds, repeats, seed, task), "demo")
    run = folder / "run"

    def draw_pictures() -> None:
        announce(
            f"4. Training one model without and one with sparse coding, in {folder / 'models'}"
        )
        models = stages.train_models(folder, bags, labels, seed, task)
        further = ", lesion localisation, PCA, atlas of atoms" if task.is_class else ""
        announce(f"5. Evaluating them on the test slides: heatmaps{further}, report")
        if not (run / "pictures" / "pictures.json").is_file():
            stages.draw_pictures(folder, run, bags, labels, models, seed, task)

    run_plan(plan, run, jobs, None, None, as_json, before_report=draw_pictures)
    with_sc, without_sc = folder / "models" / "sparse_coding", folder / "models" / "plain"
    announce(
        "To see the slides and models in the browser: "
        f"scmil view {with_sc} {folder / 'slides'} --with {without_sc}"
    )


def _run_benchmark_demo(
    dataset: str,
    folds: int,
    repeats: int,
    epochs: int,
    seed: int,
    out: Path | None,
    jobs: int | None,
    as_json: bool,
) -> None:
    from scmil.demo.benchmark import benchmark_config
    from scmil.studies.plan import make_plan

    plan = make_plan(benchmark_config(dataset, folds, repeats, epochs, seed), "demo")
    if not as_json:
        say(f"{plan.title}\n{plan.about}\n{repeats} x {folds} folds, {epochs} epochs.", err=True)
    folder = out or Path("runs") / f"demo-{plan.datasets[0]}-{repeats}x{folds}-{epochs}-{seed}"
    run_plan(plan, folder, jobs, None, None, as_json)
