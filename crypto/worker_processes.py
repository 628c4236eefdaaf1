"""Worker processes for loops that hold the interpreter's lock.

gmpy2 multiplies without letting other threads run, so a machine without the C kernels needs
processes to use its cores. loky starts a worker as a fresh interpreter: nothing is forked (forking
a process with gRPC threads deadlocks), and the caller's main module is not imported again, so
scripts need no guard. All threads share the workers; where one is lost, or their number changes,
loky starts them all anew, and what they had to do is asked for once more.

Workers are this process's own children and see the same secrets; the pipes carry moduli of the
private key. They end with the parent.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeVar, cast

from hedgerow.crypto.allocator import return_freed_memory

_R = TypeVar("_R")
_asking = ThreadPoolExecutor(1, "workers")
"""The one thread that asks loky, which would start workers anew for every thread that does."""


def _begin() -> None:
    global _asking
    _asking = ThreadPoolExecutor(1, "workers")


os.register_at_fork(after_in_child=_begin)  # a forked process has neither the thread nor workers


def run_in_processes(
    function: Callable[..., _R], jobs: Sequence[tuple[object, ...]], workers: int
) -> list[_R]:
    """Return ``function(*job)`` of every job, on as many worker processes as ``workers``.

    A job may run twice: if a worker ends, which may be another thread's doing, all run once more.

    Raises
    ------
    loky.process_executor.BrokenProcessPool
        A worker ended before it answered, twice.
    """
    from loky.process_executor import BrokenProcessPool, ShutdownExecutorError

    lost: Exception | None = None
    for _ in range(2):
        pool = _asking.submit(_workers, workers).result()
        try:
            return [future.result() for future in [pool.submit(function, *job) for job in jobs]]
        except (BrokenProcessPool, ShutdownExecutorError) as error:
            lost = error
    raise BrokenProcessPool("a worker process ended before it answered, twice") from lost


def _workers(n: int) -> Executor:
    from loky import get_reusable_executor

    parent = os.getpid()
    found = get_reusable_executor(n, timeout=None, initializer=begin_worker, initargs=(parent,))
    return cast("Executor", found)


def begin_worker(parent: int) -> None:
    """Set up a worker process, which ends with ``parent``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    return_freed_memory()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)
