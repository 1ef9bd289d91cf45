"""Encode on several devices of one computer: one process per device, each with its shard."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import Empty
from typing import TYPE_CHECKING, Any

from scmil.core.jobs.processes import manager, process_pool
from scmil.core.jobs.resume import JobOutcome
from scmil.core.jobs.shards import Shard
from scmil.encoding.dispatch import Dispatch, Job, OnSlide, merge_outcomes
from scmil.errors import MissingExtraError, OptionError

if TYPE_CHECKING:
    from queue import Queue

WAIT_S = 0.1


def parse_devices(text: str) -> list[str]:
    """The devices that a user names: `all` GPUs, or a list such as `cuda:0,cuda:2`.

    >>> parse_devices("cuda:0, cuda:2")
    ['cuda:0', 'cuda:2']
    """
    import torch

    if text != "all":
        devices = [name.strip() for name in text.split(",") if name.strip()]
        if not devices:
            raise OptionError(
                f"--devices {text!r}: expected 'all', or names such as cuda:0,cuda:1."
            )
        return devices
    count = torch.cuda.device_count()
    if not count:
        raise OptionError(
            "--devices all: torch finds no GPU on this computer. Leave the option away to encode "
            "on the processor, or see scmil doctor."
        )
    return [f"cuda:{number}" for number in range(count)]


def dispatch_to_devices(devices: Sequence[str]) -> Dispatch:
    """A function for `encode_slides` that runs the job on these devices."""
    return partial(_run_on_devices, devices=tuple(devices))


def _run_on_devices(job: Job, on_slide: OnSlide | None, devices: tuple[str, ...]) -> JobOutcome:
    total = len(devices)
    with (
        tempfile.TemporaryDirectory() as folder,
        manager() as shared,
        process_pool(total) as pool,
    ):
        # The encoder is written once and read by each process: shared tensors would need a file
        # descriptor each, and there may be more of them than a process may have.
        path = Path(folder) / "job"
        path.write_bytes(pickle.dumps(job))
        states: Any = shared.Queue()
        futures: list[Future[JobOutcome]] = []
        for number, device in enumerate(devices, start=1):
            shard, threads = Shard(number, total), _threads(device, total)
            futures.append(pool.submit(_run_shard, path, device, shard, states, threads))
        while not all(future.done() for future in futures):
            _report(states, on_slide, WAIT_S)
        _report(states, on_slide, 0)
        return merge_outcomes([future.result() for future in futures])


def _run_shard(
    path: Path, device: str, shard: Shard, states: Queue[tuple[str, str]], threads: int | None
) -> JobOutcome:
    """Run the slides of one device in this process."""
    from scmil.encoding.encoders.torchvision_models import torchvision

    with suppress(MissingExtraError):
        torchvision()  # before a network that is made of it is unpacked
    if threads:
        import torch

        torch.set_num_threads(threads)
    job: Job = pickle.loads(path.read_bytes())  # written by the process that started this one
    stage: Any = replace(job.stage, device=device)  # type: ignore[type-var]
    part = Job(stage, shard.of(job.sources))
    return part.run(lambda name, state: states.put((name, state)))


def _report(states: Queue[tuple[str, str]], on_slide: OnSlide | None, wait_s: float) -> None:
    """Report the slides that are done; wait for the first one."""
    try:
        while True:
            name, state = states.get(block=bool(wait_s), timeout=wait_s or None)
            if on_slide:
                on_slide(name, state)
    except Empty:
        return


def _threads(device: str, processes: int) -> int | None:
    """Processes on the processor share its cores."""
    return max(1, (os.cpu_count() or 1) // processes) if device == "cpu" else None
