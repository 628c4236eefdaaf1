"""Worker processes for loops that hold the interpreter's lock.

gmpy2 multiplies without letting other threads run, so a machine without the C kernels needs
processes to use its cores. A worker is a fresh interpreter that reads jobs from a pipe: nothing is
forked (forking a process with gRPC threads deadlocks), and the caller's main module is not imported
again, so scripts need no guard. All threads share the workers. Of n workers, the k-th job of a call
is always worker (k mod n)'s, which finds there what it kept for the one before; where a worker is
lost, what it had to do is asked for once more.

Workers are this process's own children and see the same secrets; the pipes carry moduli of the
private key. They end with the parent: idle ones at once, as the pipe does, others within a second.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor
from functools import partial
from typing import TypeVar, cast

from hedgerow.crypto.allocator import return_freed_memory
from hedgerow.crypto.threads import run_all

_R = TypeVar("_R")

_LOST = (OSError, EOFError, pickle.UnpicklingError)
"""What speaking with a worker that has ended raises."""


class _Worker:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, function: Callable[..., _R], job: tuple[object, ...]) -> _R:
        with self._lock:
            for _ in range(2):
                process = self._process = self._process or _start()
                try:
                    fine, found = _asked(process, function, job)
                    break
                except BaseException as error:
                    # An answer that nobody has read would be taken for the next job's.
                    self._process = None
                    process.kill()
                    process.communicate()
                    if not isinstance(error, _LOST):
                        raise
            else:
                raise BrokenExecutor("a worker process ended before it answered, twice")
        if not fine:
            raise cast("Exception", found)
        return cast("_R", found)

    def forget(self) -> None:
        """After a fork, detach from the parent's worker by closing the inherited pipes."""
        with open(os.devnull, "r+b") as nothing:
            for pipe in (self._process.stdin, self._process.stdout) if self._process else ():
                assert pipe is not None
                os.dup2(nothing.fileno(), pipe.fileno(), inheritable=False)


def _start() -> subprocess.Popen[bytes]:
    path = [entry for entry in sys.path if isinstance(entry, str)]
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
        f"import sys; sys.path[:] = {path!r}; from {__name__} import serve; serve({os.getpid()})"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def _asked(
    pipes: subprocess.Popen[bytes], function: Callable[..., object], job: tuple[object, ...]
) -> tuple[bool, object]:
    assert pipes.stdin is not None
    assert pipes.stdout is not None
    pipes.stdin.write(pickle.dumps((function, job), pickle.HIGHEST_PROTOCOL))
    pipes.stdin.flush()
    return cast("tuple[bool, object]", pickle.load(pipes.stdout))  # noqa: S301


_workers: dict[int, _Worker] = {}


def _begin() -> None:
    for worker in _workers.values():
        worker.forget()
    _workers.clear()


os.register_at_fork(after_in_child=_begin)


def run_in_processes(
    function: Callable[..., _R], jobs: Sequence[tuple[object, ...]], workers: int
) -> list[_R]:
    """Return ``function(*job)`` of every job, on as many worker processes as ``workers``.

    A job may run twice: if its worker ends, it runs once more.

    Raises
    ------
    BrokenExecutor
        A worker ended before it answered, twice.
    RuntimeError
        Names what a job raised, where that cannot be pickled.
    """

    def of_worker(k: int) -> list[_R]:
        worker = _workers.setdefault(k, _Worker())
        return [worker.run(function, job) for job in jobs[k::workers]]

    parts = run_all([partial(of_worker, k) for k in range(min(workers, len(jobs)))], workers)
    return [parts[k % workers][k // workers] for k in range(len(jobs))]


def serve(parent: int) -> None:
    """Do what ``parent`` asks for, to the end of its pipe."""
    begin_worker(parent)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a job prints is no answer
    while True:
        try:
            function, job = pickle.load(sys.stdin.buffer)  # noqa: S301
        except (EOFError, pickle.UnpicklingError):
            return
        answer = _answer(function, job)
        del function, job
        try:
            answers.write(answer)
            answers.flush()
        except BrokenPipeError:
            os._exit(1)  # the parent has ended
        del answer


def _answer(function: Callable[..., object], job: tuple[object, ...]) -> bytes:
    try:
        return pickle.dumps((True, function(*job)), pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # all that a job raises, its caller is to raise
        try:
            answer = pickle.dumps((False, error))
            pickle.loads(answer)  # noqa: S301
        except Exception:  # an error of a class that pickle cannot make again
            return pickle.dumps((False, RuntimeError(repr(error))))
        return answer


def begin_worker(parent: int) -> None:
    """Set up a worker process, which ends with ``parent``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    return_freed_memory()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)
