"""Actions that change slides, labels, bags and folders between commands.

Each takes the world and its own random numbers, and returns a line for the log.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from commands import noise_like
from tiny import pad_slide
from world import CLASSES, FOLDERS, World, digest, read_rows, replace_file, write_rows

if TYPE_CHECKING:
    from scmil.bags.bag import Bag


def replace_slide(world: World, random: Random) -> str:
    """Replace a slide by one of another patient, with or without the same size and time."""
    folder, number = random.choice(("A", "A", "B")), random.randint(1, 8)
    path = world.home / folder / f"slide_{number:03}.svs"
    source = random.choice(sorted(world.pool.glob("*.svs")))
    same_size, keep_time = random.random() < 0.7, random.random() < 0.5
    content = source.read_bytes()
    replace_file(path, pad_slide(content) if same_size else content, keep_time)
    if random.random() < 0.5:
        shutil.copyfile(source.with_suffix(".geojson"), path.with_suffix(".geojson"))
    how = f"{'same' if same_size else 'another'} size, {'old' if keep_time else 'new'} time"
    return f"{folder}/{path.name} is now slide {source.stem} of the pool ({how})"


def swap_slide_folders(world: World, random: Random) -> str:
    """Swap the names of two folders of slides."""
    _swap(world, *FOLDERS)
    return "A and B change names"


def edit_labels(world: World, random: Random) -> str:
    """Change the labels of two slides, or assign two slides to one patient."""
    path = world.home / random.choice(FOLDERS) / "labels.csv"
    header, *rows = read_rows(path)
    if random.random() < 0.7:
        chosen = [
            random.choice([row for row in rows if row[2] == name] or rows) for name in CLASSES
        ]
        for row in chosen:
            row[2] = CLASSES[1 - CLASSES.index(row[2])]
        change = f"other labels for {' and '.join(row[1] for row in chosen)}"
    else:
        one = random.choice(rows)
        other = random.choice([row for row in rows if row[2] == one[2]])
        other[0] = one[0]
        change = f"{one[1]} and {other[1]} are of one patient"
    replace_file(path, b"", keep_time=False)
    write_rows(path, [header, *rows])
    return f"{path.parent.name}/labels.csv: {change}"


def noise_bags(world: World, random: Random) -> str | None:
    """Replace the features of some bags by noise, written by scmil."""
    from scmil.bags.hdf5 import write_bag

    return _edit_some(
        world,
        random,
        lambda path, seed: write_bag(_noise_like(path, path.stem, seed), path),
        "noise, written by scmil",
    )


def _noise_like(path: Path, bag_id: str, seed: int) -> Bag:
    """A bag of noise with the coordinates and provenance of another.

    It is read without scmil, which rejects an edited file.
    """
    import h5py
    import torch

    from scmil.bags.bag import Bag

    with h5py.File(path, "r") as file:
        features, xy, provenance = (
            file["features"][()],
            file["coords"][()],
            json.loads(file.attrs["provenance"]),
        )
    return Bag(
        bag_id,
        torch.from_numpy(noise_like(features, seed)),
        xy=torch.from_numpy(xy),
        provenance=provenance,
    )


def edit_bags_in_place(world: World, random: Random) -> str | None:
    """Replace the features of some bags by noise with h5py, in place."""
    import h5py

    def edit(path: Path, seed: int) -> None:
        with h5py.File(path, "r+") as file:
            file["features"][...] = noise_like(file["features"][()], seed)

    return _edit_some(world, random, edit, "noise, written in place")


def _edit_some(world: World, random: Random, edit: object, words: str) -> str | None:
    folders = world.bag_folders()
    if not folders:
        return None
    folder = random.choice(folders)
    bags = sorted((world.home / folder).glob("*.h5"))
    chosen = bags if random.random() < 0.4 else random.sample(bags, min(2, len(bags)))
    for path in chosen:
        edit(path, random.randrange(2**32))  # type: ignore[operator]
        slide = world.slide_of(path)
        if slide and slide.is_file():
            world.edited[path] = (digest(path), digest(slide))
    return f"{len(chosen)} bags of {folder}: {words}"


def delete_bags(world: World, random: Random) -> str | None:
    """Delete one bag, or half of them."""
    folders = world.bag_folders()
    if not folders:
        return None
    folder = random.choice(folders)
    bags = sorted((world.home / folder).glob("*.h5"))
    chosen = random.sample(bags, 1 if random.random() < 0.6 else (len(bags) + 1) // 2)
    for path in chosen:
        path.unlink()
    return f"{len(chosen)} bags of {folder} are deleted"


def add_bag(world: World, random: Random) -> str | None:
    """Add a bag of a new slide, usually with a label."""
    from scmil.bags.hdf5 import write_bag

    folders = world.bag_folders()
    if not folders:
        return None
    folder, name = random.choice(folders), f"slide_{random.randint(9, 12):03}"
    like = random.choice(sorted((world.home / folder).glob("*.h5")))
    write_bag(_noise_like(like, name, random.randrange(2**32)), world.home / folder / f"{name}.h5")
    if random.random() < 0.7:
        for place in FOLDERS:
            rows = read_rows(path := world.home / place / "labels.csv")
            if name not in {row[1] for row in rows}:
                write_rows(path, [*rows, (f"patient_{name}", name, random.choice(CLASSES))])
    return f"{folder}/{name}.h5 is new"


def swap_work(world: World, random: Random) -> str:
    """Swap the names of two work folders."""
    _swap(world, "work1", "work2")
    return "work1 and work2 change names"


def _swap(world: World, one: str, other: str) -> None:
    place = world.home / "between"
    first, second = world.home / one, world.home / other
    for source, target in ((first, place), (second, first), (place, second)):
        if source.exists():
            source.rename(target)
    world.edited = {
        world.home
        / path.relative_to(world.home)
        .as_posix()
        .replace(one, "\0")
        .replace(other, one)
        .replace("\0", other): kept
        for path, kept in world.edited.items()
    }


def copy_work(world: World, random: Random) -> str | None:
    """Replace a work folder or a model by its copy: same content, other times and inodes."""
    found = sorted(path for name in ("work*", "model*") for path in world.home.glob(name))
    if not found:
        return None
    folder = random.choice(found)
    copy = world.home / "copy"
    shutil.copytree(folder, copy, copy_function=random.choice((shutil.copyfile, shutil.copy2)))
    shutil.rmtree(folder)
    copy.rename(folder)
    return f"{folder.name} is a copy of itself"


def touch(world: World, random: Random) -> str | None:
    """Give the files of a folder a new modification time."""
    found = [*FOLDERS, *world.bag_folders()]
    folder = random.choice(found)
    for path in sorted((world.home / folder).glob("*")):
        os.utime(path)
    return f"all files of {folder} have a new time"


def remove_output(world: World, random: Random) -> str | None:
    """Delete a folder of results, as messages of scmil suggest."""
    names = (
        "model1",
        "model2",
        "model3",
        "compared",
        "ran",
        "located",
        "kept",
        "maps",
        "work1",
        "work2",
    )
    found = [name for name in names if (world.home / name).exists()]
    if not found:
        return None
    shutil.rmtree(world.home / (name := random.choice(found)))
    world.own = {path: content for path, content in world.own.items() if path.is_file()}
    return f"{name} is deleted"


def own_file(world: World, random: Random) -> str:
    """Write a table of the user where a command writes its own."""
    name = random.choice(
        ("located/detections/mine.csv", "located/froc.csv", "predicted1.csv", "from_slides1.csv")
    )
    path = world.home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine\n1\n")
    world.own[path] = path.read_bytes()
    return f"{name} is a table of the user"
