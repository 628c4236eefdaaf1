"""Worker processes for loops that hold the interpreter's lock.

gmpy2 multiplies without letting other threads run, so a machine without the C kernels needs
processes to use its cores. A worker is a fresh interpreter that runs this module and answers
pickled calls on its pipes: nothing is forked (forking a process with gRPC threads deadlocks), and
the caller's main module is not imported again, so scripts need no guard.

Workers are this process's own children and see the same secrets; the pipes carry moduli of the
private key. They end when their standard input closes, at the latest with the parent.
"""

from __future__ import annotations

import atexit
import functools
import pickle
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import RawIOBase
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from crypto.allocator import return_freed_memory

_R = TypeVar("_R")
_LENGTH = struct.Struct("<Q")


class WorkerLost(RuntimeError):
    """A worker process ended before it answered."""


def _send(pipe: IO[bytes], value: object) -> None:
    """Write a value; arrays go as they lie in memory, after the rest."""
    arrays: list[pickle.PickleBuffer] = []
    data = pickle.dumps(value, protocol=5, buffer_callback=arrays.append)
    parts: list[bytes | memoryview] = [data, *(array.raw() for array in arrays)]
    pipe.write(_LENGTH.pack(len(parts)))
    for part in parts:
        pipe.write(_LENGTH.pack(len(part)))
        pipe.write(part)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> tuple[Any, Any]:
    (n_parts,) = _LENGTH.unpack(_exactly(pipe, _LENGTH.size))
    data, *arrays = (
        _exactly(pipe, *_LENGTH.unpack(_exactly(pipe, _LENGTH.size))) for _ in range(n_parts)
    )
    first, second = pickle.loads(data, buffers=arrays)  # noqa: S301 - our own child or parent
    return first, second


def _exactly(pipe: IO[bytes], n_bytes: int) -> bytearray:
    data = bytearray(n_bytes)
    left = memoryview(data)
    while left:
        n = cast("RawIOBase", pipe).readinto(left)
        if not n:
            raise EOFError
        left = left[n:]
    return data


class _Worker:
    def __init__(self) -> None:
        root = str(Path(__file__).resolve().parents[1])
        code = f"import sys; sys.path.insert(0, {root!r}); import crypto.worker_processes as w; "
        self._process = subprocess.Popen(
            [sys.executable, "-c", code + "w.serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._lock = threading.Lock()

    def call(self, function: Callable[..., _R], arguments: tuple[object, ...]) -> _R:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            try:
                _send(self._process.stdin, (function, arguments))
                done, value = _receive(self._process.stdout)
            except (EOFError, BrokenPipeError) as error:
                raise WorkerLost(
                    f"worker process {self._process.pid} ended with {self._process.wait()}"
                ) from error
        if not done:
            assert isinstance(value, Exception)
            raise value
        return cast("_R", value)

    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()


class WorkerPool:
    """A fixed number of worker processes."""

    def __init__(self, n_workers: int) -> None:
        self._workers = [_Worker() for _ in range(n_workers)]
        self._threads = ThreadPoolExecutor(n_workers, thread_name_prefix="worker-process")
        self._lock = threading.Lock()

    def run(self, function: Callable[..., _R], jobs: Sequence[tuple[object, ...]]) -> list[_R]:
        """Return ``function(*job)`` of every job, job i on worker i modulo their number."""
        with self._lock:
            self._workers = [w if w.alive() else _Worker() for w in self._workers]
            workers = list(self._workers)
        futures = [
            self._threads.submit(workers[i % len(workers)].call, function, job)
            for i, job in enumerate(jobs)
        ]
        return [future.result() for future in futures]

    def close(self) -> None:
        """End the workers."""
        self._threads.shutdown()
        for worker in self._workers:
            worker.close()


@functools.cache
def pool(n_workers: int) -> WorkerPool:
    """Return this process's pool of ``n_workers``, started at its first use."""
    workers = WorkerPool(n_workers)
    atexit.register(workers.close)
    return workers


def serve() -> None:
    """Answer calls on standard input until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    return_freed_memory()
    calls, answers = sys.stdin.buffer, sys.stdout.buffer
    while True:
        try:
            function, arguments = _receive(calls)
        except EOFError:
            return
        try:
            answer = (True, function(*arguments))
        except Exception as error:
            answer = (False, error)
        _send(answers, answer)
