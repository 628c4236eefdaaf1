"""The cores of this process, and threads that share a batch among them."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

_T = TypeVar("_T")


def usable_cores() -> int:
    """Return how many cores this process may use: by affinity, and by its container's quota."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no such file, or "max"
        return cores


@functools.cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="crypto")


os.register_at_fork(after_in_child=_pool.cache_clear)  # a forked process has none of the threads


def run_all(parts: Sequence[Callable[[], _T]], workers: int) -> list[_T]:
    """Return what each of ``parts`` returns, on as many threads as ``workers``."""
    if workers == 1 or len(parts) == 1:
        return [part() for part in parts]
    return [future.result() for future in [_pool(workers).submit(part) for part in parts]]


def aside(work: Callable[[], _T]) -> Future[_T]:
    """Have short ``work`` done meanwhile, after other such work; it may wait for :func:`run_all`.

    The process ends after it, so cancel what is not wanted any more.
    """
    return _pool(1).submit(work)
