"""Worker processes for loops that hold the interpreter's lock.

gmpy2 multiplies without letting other threads run, so a machine without the C kernels needs
processes to use its cores. A worker is a fresh interpreter that runs this module and answers calls
on its pipes, which carry numbers, bytes and arrays, and no pickles. Nothing is forked (forking a
process with gRPC threads deadlocks), and the caller's main module is not imported again, so scripts
need no guard.

Workers are this process's own children and see the same secrets; the pipes carry moduli of the
private key. They end when their standard input closes, at the latest with the parent.
"""

from __future__ import annotations

import atexit
import builtins
import functools
import importlib
import json
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BufferedIOBase
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import numpy as np

import hedgerow
from hedgerow.crypto.allocator import return_freed_memory

_R = TypeVar("_R")
_LENGTH = struct.Struct("<Q")
_PACKAGE = "hedgerow.crypto."


class WorkerLost(RuntimeError):
    """A worker process ended before it answered."""


# --- what goes through a pipe: a description in JSON, then the bytes of each value ---


def _described(value: object) -> tuple[list[Any], bytes | memoryview]:
    """Return what a value is, and its bytes."""
    if isinstance(value, np.ndarray):
        flat = np.ascontiguousarray(value)
        return ["array", flat.dtype.str, list(flat.shape)], flat.reshape(-1).view(np.uint8).data
    if isinstance(value, bytes | bytearray | memoryview):
        return ["bytes"], memoryview(value)
    if isinstance(value, list | tuple):
        numbers = [int(v) for v in value]
        width = max((v.bit_length() for v in numbers), default=0) // 8 + 1
        data = b"".join([v.to_bytes(width, "little", signed=True) for v in numbers])
        return ["integers", width], data
    number = int(cast("int", value))
    return ["integer"], number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)


def _value(kind: Sequence[Any], data: bytearray) -> Any:
    """Return the value of :func:`_described`; integers come as a list."""
    if kind[0] == "array":
        return np.frombuffer(data, kind[1]).reshape(kind[2])
    if kind[0] == "bytes":
        return bytes(data)
    if kind[0] == "integer":
        return int.from_bytes(data, "little", signed=True)
    width, raw = kind[1], bytes(data)
    steps = range(0, len(raw), width)
    return [int.from_bytes(raw[i : i + width], "little", signed=True) for i in steps]


def _send(pipe: IO[bytes], about: object, values: Sequence[object]) -> None:
    described = [_described(value) for value in values]
    head = json.dumps([about, [kind for kind, _ in described]]).encode()
    for part in (head, *(data for _, data in described)):
        pipe.write(_LENGTH.pack(len(part)))
        pipe.write(part)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> tuple[Any, list[Any]]:
    about, kinds = json.loads(_part(pipe))
    return about, [_value(kind, _part(pipe)) for kind in kinds]


def _part(pipe: IO[bytes]) -> bytearray:
    (n_bytes,) = _LENGTH.unpack(_exactly(pipe, _LENGTH.size))
    return _exactly(pipe, n_bytes)


def _exactly(pipe: IO[bytes], n_bytes: int) -> bytearray:
    data = bytearray(n_bytes)
    left = memoryview(data)
    while left:
        n = cast("BufferedIOBase", pipe).readinto(left)
        if not n:
            raise EOFError
        left = left[n:]
    return data


def _name(thing: Callable[..., Any]) -> list[str]:
    return [thing.__module__, thing.__qualname__]


def _function(module: str, name: str) -> Callable[..., Any]:
    if not module.startswith(_PACKAGE):
        raise ValueError(f"{module} is not of this package")
    return cast("Callable[..., Any]", getattr(importlib.import_module(module), name))


def _exception(module: str, name: str, text: str) -> Exception:
    """Return what a worker raised: of this package or built in, with its text."""
    try:
        kind = getattr(builtins, name) if module == "builtins" else _function(module, name)
        if isinstance(kind, type) and issubclass(kind, Exception):
            return kind(text)
    except (AttributeError, ImportError, TypeError, ValueError):
        pass  # of another package, or made of more than a text
    return RuntimeError(f"{module}.{name}: {text}")


class _Worker:
    def __init__(self) -> None:
        root = str(Path(hedgerow.__file__).resolve().parents[1])
        code = (
            f"import sys; sys.path.insert(0, {root!r}); "
            "import hedgerow.crypto.worker_processes as w; "
        )
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
                _send(self._process.stdin, _name(function), arguments)
                failure, answer = _receive(self._process.stdout)
            except (EOFError, BrokenPipeError) as error:
                raise WorkerLost(
                    f"worker process {self._process.pid} ended with {self._process.wait()}"
                ) from error
        if failure is not None:
            module, name = failure
            raise _exception(module, name, answer[0].decode())
        return cast("_R", answer[0])

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
        """Return ``function(*job)`` of every job, job i on worker i modulo their number.

        Parameters
        ----------
        function
            Of a module of this package; gives integers (a list), bytes or an array.
        jobs
            Arguments: integers, sequences of them, bytes, arrays.
        """
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
        failure: list[str] | None = None
        try:
            answer: Sequence[object] = [_function(*function)(*arguments)]
        except Exception as error:
            failure, answer = _name(type(error)), [str(error).encode()]
        _send(answers, failure, answer)
