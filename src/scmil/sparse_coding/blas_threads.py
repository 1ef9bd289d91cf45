"""One thread for NumPy's matrix products on small bags.

OpenBLAS divides a product of more than 262 144 multiply-adds among its threads. That is a few
microseconds of arithmetic; waking and joining the threads takes longer, and milliseconds if another
process uses the other core. On a bag of 5 x 166 it took ten times as long as the layer itself.
"""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def blas_libraries() -> tuple[Any, ...]:
    """The loaded libraries of matrix products whose number of threads can be set."""
    import numpy  # noqa: F401  (its library has to be loaded before it is looked up)
    from threadpoolctl import ThreadpoolController

    return tuple(ThreadpoolController().select(user_api="blas").lib_controllers)


class OneThread:
    """Context manager: NumPy's products use one thread, and afterwards as many as before.

    It takes 4 microseconds. If several Python threads are inside at the same time, a product may
    use more than one thread, but the number is restored: only who has changed it restores it.

    >>> with OneThread():
    ...     {library.get_num_threads() for library in blas_libraries()} <= {1}
    True
    """

    def __enter__(self) -> None:
        self._before = [
            (library, threads)
            for library in blas_libraries()
            if (threads := library.get_num_threads()) != 1
        ]
        for library, _ in self._before:
            library.set_num_threads(1)

    def __exit__(self, *error: object) -> None:
        for library, threads in self._before:
            library.set_num_threads(threads)
