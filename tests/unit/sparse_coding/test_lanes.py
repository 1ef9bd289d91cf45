"""Blocks of rows on several threads."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from threading import Barrier

import pytest
import torch
from torch import Tensor

from scmil.sparse_coding import kernel_blocks, kernel_direct, kernel_lanes
from scmil.sparse_coding.kernel_blocks import row_blocks
from scmil.sparse_coding.kernel_lanes import Lanes
from scmil.sparse_coding.layer import SparseCoding


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def gradients(layer: SparseCoding, x: Tensor, backward_threads: int | None = None) -> list[Tensor]:
    codes = layer(x)
    if backward_threads is not None:
        torch.set_num_threads(backward_threads)
    return [codes, *torch.autograd.grad(codes.square().sum(), [x, *layer.parameters()])]


@pytest.fixture
def short_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_lanes, "SHORTEST_LANE", 32)  # bags of the tests are small


CASES = [(64, 20, 12), (300, 40, 25), (9000, 12, 30)]  # factored, and Gram with several blocks


@pytest.mark.usefixtures("short_lanes")
@pytest.mark.parametrize(("n", "p", "m"), CASES)
def test_the_number_of_threads_changes_no_more_than_rounding(n: int, p: int, m: int) -> None:
    layer = SparseCoding(p, m, dictionary="random").double()
    x = torch.randn(n, p, dtype=torch.float64, requires_grad=True)
    several = [gradients(layer, x) for _ in range(3)]
    for other in several[1:]:  # which thread takes which lane differs, the numbers do not
        assert all(torch.equal(a, b) for a, b in zip(several[0], other, strict=True))
    for count in (1, 3):
        torch.set_num_threads(count)
        for one, expected in zip(gradients(layer, x), several[0], strict=True):
            torch.testing.assert_close(one, expected)


@pytest.mark.usefixtures("short_lanes")
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (2, 4)])
def test_the_number_of_threads_may_change_before_backward(before: int, after: int) -> None:
    layer = SparseCoding(12, 30, dictionary="random").double()
    x = torch.randn(6000, 12, dtype=torch.float64, requires_grad=True)
    expected = gradients(layer, x)
    torch.set_num_threads(before)
    for one, other in zip(gradients(layer, x, after), expected, strict=True):
        torch.testing.assert_close(one, other)


def test_operations_of_a_lane_have_one_thread_and_the_caller_keeps_its_number() -> None:
    lanes = Lanes.of(torch.zeros(12_000, 8), m=256)
    assert lanes == (4, 2)
    with lanes.one_thread():
        assert lanes.run(lambda lane: torch.get_num_threads()) == [1] * 4
    assert torch.get_num_threads() == 2
    both = Barrier(2)

    def name_of_thread(lane: int) -> str:
        if lane < 2:
            both.wait(10)  # so that each thread has one of them
        return threading.current_thread().name[:11]

    assert set(lanes.run(name_of_thread)) == {threading.current_thread().name, "scmil-lanes"}
    found: list[int] = []
    later = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert found == [2]  # and so do threads that start later


@pytest.mark.parametrize(
    ("n", "m", "threads", "expected"),
    [
        (5, 256, 2, (1, 1)),
        (500, 256, 2, (1, 1)),
        (512, 256, 2, (2, 2)),
        (4096, 256, 2, (4, 2)),
        (2000, 64, 2, (1, 1)),
        (12_000, 256, 1, (1, 1)),
        (12_000, 256, 4, (8, 4)),
    ],
)
def test_a_bag_has_as_many_lanes_as_it_can_fill(
    n: int, m: int, threads: int, expected: tuple[int, int]
) -> None:
    torch.set_num_threads(threads)
    assert Lanes.of(torch.zeros(n, 3), m) == expected


def test_blocks_of_wide_features_are_shorter() -> None:
    codes = torch.empty(12_000, 64)
    assert row_blocks(codes, p=16)[0].stop == 4096
    assert row_blocks(codes, p=512)[0].stop == 2048
    assert row_blocks(codes, p=2048)[0].stop == 1024


def test_lanes_share_all_rows_evenly() -> None:
    blocks = row_blocks(torch.empty(12_000, 256), lanes=4)
    assert len(blocks) == 8
    assert [block.stop for block in blocks[:-1]] == [block.start for block in blocks[1:]]
    assert (blocks[0].start, blocks[-1].stop) == (0, 12_000)
    shares = [Lanes(4, 2).share(lane, 5) for lane in range(4)]
    assert sum(len(range(5)[share]) for share in shares) == 5


@pytest.mark.parametrize("failing", range(2))
def test_an_error_of_a_lane_is_raised_when_no_thread_works_any_more(failing: int) -> None:
    both, ended = Barrier(2), []

    def fail(lane: int) -> None:
        if lane < 2:
            both.wait(10)
        if lane == failing:
            raise ZeroDivisionError(lane)
        time.sleep(0.05)
        ended.append(lane)

    with pytest.raises(ZeroDivisionError):
        Lanes(8, 2).run(fail)
    before = list(ended)
    time.sleep(0.1)
    assert ended == before
    assert Lanes(3, 2).run(lambda lane: lane) == [0, 1, 2]


def test_threads_that_have_not_started_are_not_waited_for() -> None:
    release = threading.Event()
    busy = kernel_lanes._pool(2, os.getpid())[0].submit(release.wait, 10)
    try:
        caller = threading.current_thread().name
        found = Lanes(4, 2).run(lambda lane: threading.current_thread().name)
        assert found == [caller] * 4  # although the other thread is still occupied
        assert not busy.done()
    finally:
        release.set()


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="cores cannot be chosen here")
def test_the_other_threads_leave_the_core_of_the_caller_to_it() -> None:
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("there is one core")
    core = min(allowed)
    try:
        os.sched_setaffinity(0, {core})  # of this thread: where it runs is known
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "sched_getaffinity", lambda thread: allowed)
            Lanes(2, 2).run(lambda lane: lane)
    finally:
        os.sched_setaffinity(0, allowed)
    _, cores = kernel_lanes._pool(2, os.getpid())
    assert [os.sched_getaffinity(thread) for thread in cores.threads] == [allowed - {core}]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="cores cannot be chosen here")
@pytest.mark.parametrize("fails", [False, True])
def test_the_caller_stays_on_its_core_during_a_pass_and_is_free_afterwards(fails: bool) -> None:
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    before, caller = os.sched_getaffinity(0), threading.current_thread()
    if len(before) < 2:
        pytest.skip("there is one core")
    found: list[int] = []

    def look(lane: int) -> None:
        if threading.current_thread() is caller:
            found.append(len(os.sched_getaffinity(0)))
        time.sleep(0.001)
        assert not fails

    with pytest.raises(AssertionError) if fails else nullcontext():
        Lanes(4, 2).run(look)
    assert set(found) == {1}
    assert os.sched_getaffinity(0) == before


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="cores cannot be chosen here")
def test_a_system_that_does_not_bind_threads_to_cores_computes_all_lanes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: int, cores: set[int]) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    assert Lanes(4, 2).run(lambda lane: lane) == [0, 1, 2, 3]


def test_codes_and_the_gradient_of_the_bag_are_in_huge_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(
        kernel_blocks, "advise_huge_pages", lambda address, size: sizes.append(size)
    )
    SparseCoding(40, atoms=64)(torch.randn(4000, 40, requires_grad=True)).sum().backward()
    assert sizes == [4 * 4000 * 64, 4 * 4000 * 40]


def test_another_process_has_threads_of_its_own() -> None:
    here = kernel_lanes._pool(2, 1)
    assert kernel_lanes._pool(2, 2) is not here
    assert kernel_lanes._pool(2, 1) is here


@pytest.mark.parametrize(
    ("n", "p", "m", "onednn", "expected"),
    [
        (3, 512, 256, False, 1),
        (20, 512, 256, False, 2),
        (20, 512, 256, True, 1),
        (400, 512, 256, False, 2),
        (400, 512, 256, True, 2),
        (64, 166, 256, True, 2),
        (100, 166, 256, True, 1),
        (100, 166, 256, False, 2),
        (400, 166, 64, True, 2),
    ],
)
def test_the_operations_of_a_short_forward_pass_are_not_divided(
    n: int, p: int, m: int, onednn: bool, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_direct, "uses_onednn", lambda *_, **__: onednn)
    found: list[int] = []

    def observe(onednn: bool, form: object, gram: bool, x: Tensor, D: Tensor, *_: object) -> Tensor:
        found.append(torch.get_num_threads())
        return x.new_zeros(len(x), D.shape[1])

    monkeypatch.setattr(kernel_direct, "_compute_codes", observe)
    with torch.no_grad():
        SparseCoding(p, m)(torch.randn(n, p))
    assert found == [expected]
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("bounds", [(0.1, 0.9), (0.0, 0.9)], ids=["scaled", "not scaled"])
@pytest.mark.parametrize("n", [20, 3000])
def test_the_gradient_of_normalised_rows_has_no_mean(n: int, bounds: tuple[float, float]) -> None:
    layer = SparseCoding(12, 30, bounds=bounds, dictionary="random").double()
    x = torch.randn(n, 12, dtype=torch.float64, requires_grad=True)
    (g,) = torch.autograd.grad(layer(x).square().sum(), x)
    torch.testing.assert_close(g.mean(-1), torch.zeros(n).double(), rtol=0, atol=1e-12)
