"""The verb demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scmil.cli import app
from scmil.cli.learning import PANEL, run_plan
from scmil.cli.options import say


@app.command(rich_help_panel=PANEL)
def demo(
    dataset: Annotated[
        str | None, typer.Option(help="A benchmark instead of painted slides: musk1, elephant, … (scmil ls datasets).")
    ] = None,
    slides: Annotated[int, typer.Option(min=8, help="Slides to paint.")] = 24,
    folds: Annotated[int | None, typer.Option(min=2, help="Folds of the cross-validation. [default: 4; 10]")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="How often the folds are dealt anew.")] = 2,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs a model, for a benchmark.")] = 40,
    seed: Annotated[int, typer.Option(min=0, help="Of the slides, folds, initial weights and the order of bags.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder of the results; default: one below runs/.")] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Arms to train at the same time; default: one a core.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show the whole way, from painted slides to a report with heatmaps: under five minutes on two cores.

    Or, with --dataset musk1, compare a model with and without sparse coding on a real benchmark: two minutes.
    A second start finds what the first has made.
    """
    if dataset is None:
        _slides(slides, folds or 4, repeats, seed, out, jobs, as_json)
    else:
        _benchmark(dataset, folds or 10, repeats, epochs, seed, out, jobs, as_json)


def _slides(
    slides: int, folds: int, repeats: int, seed: int, out: Path | None, jobs: int | None, as_json: bool
) -> None:
    from scmil.demo import slides as stages
    from scmil.cli.slides import slide_bars
    from scmil.studies.plan import make_plan

    def tell(words: str) -> None:
        if not as_json:
            say(words, err=True)

    folder = out or Path("runs") / f"demo-slides-{slides}-{seed}"
    tell(f"1. Painting {slides} slides that look like H&E, half of them with a tumour, into {folder / 'slides'}")
    labels = stages.make_slides(folder, slides, seed)
    tell(f"2. Finding tissue, laying tiles, encoding them with {stages.ENCODER}: look at {folder / 'work' / 'tiles'}")
    with slide_bars(as_json) as bars:
        bars.total("tile and encode", 2 * slides)
        bags = stages.make_bags(folder, bars.slide)
    tell("3. Training without sparse coding, with it, and with a plain layer in its place, by cross-validation")
    plan = make_plan(stages.document(bags, labels, folds, repeats, seed), "demo")
    run = folder / "run"

    def look() -> None:
        tell(f"4. Training a model without and one with sparse coding to keep, in {folder / 'models'}")
        models = stages.train_models(folder, bags, labels, seed)
        tell(
            "5. Looking at slides that they did not see: heatmaps, lesions found, PCA, the atlas of atoms; then the report"
        )
        if not (run / "pictures" / "pictures.json").is_file():
            stages.look(folder, run, bags, labels, models, seed)

    run_plan(plan, run, jobs, None, None, as_json, before_report=look)
    kept = folder / "models" / "sparse_coding"
    beside = folder / "models" / "plain"
    tell(f"Look around in the slides: scmil view {kept} {folder / 'slides'} --with {beside}")


def _benchmark(
    dataset: str, folds: int, repeats: int, epochs: int, seed: int, out: Path | None, jobs: int | None, as_json: bool
) -> None:
    from scmil.demo.benchmark import document
    from scmil.studies.plan import make_plan

    plan = make_plan(document(dataset, folds, repeats, epochs, seed), "demo")
    if not as_json:
        say(f"{plan.title}\n{plan.about}\n{repeats} x {folds} folds, {epochs} epochs.", err=True)
    folder = out or Path("runs") / f"demo-{plan.datasets[0]}-{repeats}x{folds}-{epochs}-{seed}"
    run_plan(plan, folder, jobs, None, None, as_json)
