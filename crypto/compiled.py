"""Kernels that numba compiles, which is imported when the first of them is called.

Importing numba takes a process as long as all else that it imports at its start; a command that
prints a listing, or an agent that waits for work, calls no kernel.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import update_wrapper
from types import CodeType
from typing import Any, cast

_lock = threading.RLock()


class _Kernel:
    """A function that is compiled when it is first called, with the kernels that it calls."""

    def __init__(self, function: Callable[..., Any], make: Callable[[], Callable[..., Any]]):
        update_wrapper(self, function)
        self._function, self._make = function, make
        self._compiled: Any = None

    def __call__(self, *arguments: Any) -> Any:
        return (self._compiled or self.compiled())(*arguments)

    @property
    def signatures(self) -> list[Any]:
        """Types of arguments for which this process has machine code."""
        return list(self._compiled.signatures) if self._compiled else []

    def compiled(self) -> Any:
        """Return numba's dispatcher, which is what the kernel's module holds from now on."""
        with _lock:
            if self._compiled is None:
                found = self._function.__globals__
                # Numba reads its globals when it compiles: by then there are no kernels of ours.
                for name in _names(self._function.__code__):
                    called = found.get(name)
                    if isinstance(called, _Kernel) and called is not self:
                        found[name] = called.compiled()
                made = self._make()(self._function)
                # Last: whoever finds it by its name calls it without the lock.
                if found.get(self._function.__name__) is self:
                    found[self._function.__name__] = made
                self._compiled = made
            return self._compiled


def _names(code: CodeType) -> Iterator[str]:
    """Yield the global names of a function and of the functions in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function of arrays and numbers at its first call; keep the machine code on disk.

    It runs without the interpreter's lock. What it calls are kernels too, or :func:`intrinsic`.
    """
    return _Kernel(function, _njit)


def compiled_with_infinities(function: Callable[..., Any]) -> Callable[..., Any]:
    """Do as :func:`compiled`; division by zero is NumPy's, not an error."""
    return _Kernel(function, lambda: _njit(error_model="numpy"))


def _njit(**options: str) -> Callable[..., Any]:
    from numba import njit

    return cast("Callable[..., Any]", njit(cache=True, nogil=True, **options))


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return numba's intrinsic of a function, for kernels to call."""

    def make() -> Callable[..., Any]:
        from numba.extending import intrinsic

        return cast("Callable[..., Any]", intrinsic)

    return _Kernel(function, make)
