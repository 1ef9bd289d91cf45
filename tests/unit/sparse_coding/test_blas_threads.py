"""One thread for small products."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from scmil.sparse_coding import kernel_numpy
from scmil.sparse_coding.blas_threads import OneThread, blas_libraries
from scmil.sparse_coding.layer import SparseCoding


class Library:
    """Records the numbers of threads that are set."""

    def __init__(self, threads: int) -> None:
        self.threads, self.calls = threads, list[int]()

    def get_num_threads(self) -> int:
        return self.threads

    def set_num_threads(self, threads: int) -> None:
        self.threads = threads
        self.calls.append(threads)


def test_the_number_of_before_is_restored_also_after_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    libraries = (Library(4), Library(1))
    monkeypatch.setattr("scmil.sparse_coding.blas_threads.blas_libraries", lambda: libraries)

    def fail() -> None:
        with OneThread():
            assert [library.threads for library in libraries] == [1, 1]
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert [library.threads for library in libraries] == [4, 1]
    assert libraries[1].calls == []  # one thread is not set again


@pytest.mark.skipif(not blas_libraries(), reason="NumPy's library has no setting for threads")
def test_products_of_a_small_bag_use_one_thread_in_both_directions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = [library.get_num_threads() for library in blas_libraries()]
    for library in blas_libraries():
        library.set_num_threads(2)
    seen = set[int]()
    dot = np.dot

    def watched(*args, **options):  # type: ignore[no-untyped-def]
        seen.update(library.get_num_threads() for library in blas_libraries())
        return dot(*args, **options)

    monkeypatch.setattr(kernel_numpy, "dot", watched)
    try:
        layer, x = SparseCoding(166), torch.randn(5, 166)
        with torch.no_grad():
            layer(x)
        codes = layer(x)
        assert seen == {1}
        seen.clear()
        codes.sum().backward()
        assert seen == {1}
        assert {library.get_num_threads() for library in blas_libraries()} == {2}
    finally:
        for library, threads in zip(blas_libraries(), before, strict=True):
            library.set_num_threads(threads)
