"""Kernels: machine code made ahead of time, by numba at the first call, or plain Python.

``HEDGEROW_KERNELS`` is a folder of machine code that ``deploy/images/kernels.py`` has made; images
have one, and no numba. Code is taken if it was made from these sources for this Python, and only
for arguments of the types that it was compiled for. Without it numba compiles, which is imported
when the first kernel is called: importing it takes a process as long as all else that it imports.
Without numba a kernel is a Python function: slow, and alike but for the last bits of floats and for
what becomes infinite in machine code, which may raise ``OverflowError``.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache, update_wrapper
from importlib import import_module
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import FunctionType
from typing import Any, cast

import numpy as np

MODULE = "hedgerow_kernels"
LEVELS = {
    "x86_64": {"x86-64-v4": "X86_V4", "x86-64-v3": "X86_V3", "x86-64": ""},
    "aarch64": {"generic": ""},
}
"""LLVM's names of the CPUs that there is code for, best first, and NumPy's of what they can do."""
ROOMS = ("boosting", "crypto")
"""Where kernels are, and all that is compiled into them."""
_NUMBERS = {bool: "bool", int: "int64", float: "float64"}
_C, _F, _ALIGNED, _WRITEABLE = 0x1, 0x2, 0x100, 0x400  # NumPy's flags of an array
_lock = threading.RLock()
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)
_log = logging.getLogger(__name__)


class _Kernel:
    """A function that has machine code for some types of arguments."""

    def __init__(
        self,
        function: Callable[..., Any],
        make: Callable[[], Callable[..., Any]],
        plain: Callable[..., Any] | None = None,
    ):
        update_wrapper(self, function)
        self._function, self._make, self._plain = cast("FunctionType", function), make, plain
        self._numba: Any = None
        self._found: dict[tuple[Any, ...], Callable[..., Any]] = {}

    def __call__(self, *arguments: Any) -> Any:
        if self._numba is not None:
            return self._numba(*arguments)
        key = _key(arguments)
        found = self._found.get(key)
        if found is None:
            with _lock:
                found = self._found[key] = self._find(arguments)
        return found(*arguments)

    @property
    def name(self) -> str:
        """Where the kernel is found."""
        return f"{self._function.__module__}.{self._function.__name__}"

    def _find(self, arguments: tuple[Any, ...]) -> Callable[..., Any]:
        types = tuple(types_of(arguments))
        of_types = [
            (wanted, code) for wanted, code in library().get(self.name, ()) if fits(types, wanted)
        ]
        if of_types:
            return next((code for wanted, code in of_types if wanted == types), of_types[0][1])
        try:
            return cast("Callable[..., Any]", self.compiled())
        except ModuleNotFoundError:
            _log.warning("%s runs as Python: no code for %s", self.name, " ".join(types))
            return self.plain()

    def compiled(self) -> Any:
        """Return numba's dispatcher, which calls those of other kernels."""
        with _lock:
            if self._numba is None:
                decorate = self._make()
                own = self._with(lambda kernel: kernel.compiled())
                self._numba = own.__globals__[own.__name__] = decorate(own)
            return self._numba

    def plain(self) -> Callable[..., Any]:
        """Return the function as Python runs it; numbers overflow and divide as compiled ones."""
        with _lock:
            if self._plain is None:
                own = self._with(lambda kernel: kernel.plain())
                self._plain = own.__globals__[own.__name__] = np.errstate(all="ignore")(own)
            return self._plain

    def _with(self, of: Callable[[_Kernel], Any]) -> FunctionType:
        """Return a copy of the function whose globals have what ``of`` returns for kernels."""
        function = self._function
        kernels = {
            name: of(found)
            for name in function.__code__.co_names
            if isinstance(found := function.__globals__.get(name), _Kernel) and found is not self
        }
        own = FunctionType(
            function.__code__,
            {**function.__globals__, **kernels},
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        return cast("FunctionType", update_wrapper(own, function))


def _key(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what differs between arguments of other types, fast."""
    return tuple(
        [
            (kind, one.dtype, one.ndim, one.flags.num & (_C | _F | _ALIGNED | _WRITEABLE))
            if (kind := type(one)) is np.ndarray
            else kind
            if kind in _NUMBERS
            else _key_of(one)
            for one in arguments
        ]
    )


def _key_of(one: Any) -> Any:
    if isinstance(one, np.ndarray):
        return (type(one), *_key((one.view(np.ndarray),)))
    return (type(one), _key(one)) if isinstance(one, tuple) else type(one)


def opening_of(kind: type) -> str:
    """Return the word before the types of a tuple's elements."""
    return "tuple(" if kind is tuple else f"{kind.__module__}.{kind.__qualname__}("


def types_of(arguments: tuple[Any, ...]) -> Iterator[str]:
    """Yield the types of arguments: ``int64``, ``const:float32[2C]``, ``tuple(``, …, ``)``."""
    for one in arguments:
        if isinstance(one, tuple):
            yield opening_of(type(one))
            yield from types_of(one)
            yield ")"
        elif isinstance(one, np.ndarray) and not isinstance(one, np.ma.MaskedArray):
            flags = one.flags.num
            layout = "C" if flags & _C else "F" if flags & _F else "A"
            usual = one.dtype.isnative and flags & _ALIGNED
            text = f"{one.dtype.name if usual else '?'}[{one.ndim}{layout}]"
            yield text if flags & _WRITEABLE else f"const:{text}"
        elif isinstance(one, np.generic):
            yield one.dtype.name
        else:
            yield _NUMBERS.get(type(one), f"?{type(one).__name__}")


def fits(types: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    """Whether code takes arguments of these types: it may want an array to read, in any order."""
    return len(types) == len(wanted) and all(map(_fits, types, wanted))


def _fits(given: str, wanted: str) -> bool:
    # Nothing behind this looks again: code that is given other types ends the process.
    bare, read = given.removeprefix("const:"), wanted.removeprefix("const:")
    if given != bare and wanted == read:
        return False
    return read == bare or (bare.endswith("]") and read == f"{bare[:-2]}A]")


def digest() -> str:
    """Return the digest of the sources, and of what compiled code depends on beside them."""
    root = Path(__file__).parents[1]
    told = hashlib.sha256(
        f"{sys.implementation.cache_tag} {platform.machine()} {np.__version__}".encode()
    )
    for path in sorted(path for room in ROOMS for path in (root / room).rglob("*.py")):
        told.update(f"\n{path.relative_to(root)} {path.stat().st_size}\n".encode())
        told.update(path.read_bytes())
    return told.hexdigest()


@cache
def library() -> dict[str, list[tuple[tuple[str, ...], Callable[..., Any]]]]:
    """Return the code of each kernel, by its name, with the types that it is for."""
    found: dict[str, list[tuple[tuple[str, ...], Callable[..., Any]]]] = {}
    if not (name := os.environ.get("HEDGEROW_KERNELS")):
        return found
    try:
        table = json.loads(Path(name, "kernels.json").read_text())
        if table["digest"] != digest():
            raise ValueError("made from other sources")
        path = str(Path(name, f"{_level()}.so"))
        if table["libraries"][_level()] != hashlib.sha256(Path(path).read_bytes()).hexdigest():
            raise ValueError(f"{path} is not the library that its table is of")
        loader = ExtensionFileLoader(MODULE, path)
        spec = spec_from_file_location(MODULE, path, loader=loader)
        assert spec is not None
        module = module_from_spec(spec)
        loader.exec_module(module)
        for k, line in enumerate(table["kernels"]):
            kernel, *types = line.split()
            found.setdefault(kernel, []).append((tuple(types), getattr(module, f"k{k}")))
    except (OSError, ImportError, ValueError, KeyError, TypeError, AttributeError) as error:
        _log.warning("compiled kernels in %s are not used: %s", name, error)
        found.clear()
    return found


def _level() -> str:
    """Return the best of what this CPU has."""
    able = getattr(import_module("numpy._core._multiarray_umath"), "__cpu_features__", {})
    levels = LEVELS[platform.machine()]
    return next(level for level, name in levels.items() if not name or able.get(name))


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function of arrays and numbers, here at its first call; keep numba's code on disk.

    It runs without the interpreter's lock. What it calls are kernels too, or :func:`intrinsic`.
    """
    return _Kernel(function, _njit)


def compiled_with_infinities(function: Callable[..., Any]) -> Callable[..., Any]:
    """Do as :func:`compiled`; division by zero is NumPy's, not an error."""
    return _Kernel(function, lambda: _njit(error_model="numpy"))


def _njit(**options: str) -> Callable[..., Any]:
    from numba import njit

    return cast("Callable[..., Any]", njit(cache=True, nogil=True, **options))


def intrinsic(plain: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return numba's intrinsic of a function, for kernels to call; ``plain`` does it in Python."""

    def make() -> Callable[..., Any]:
        from numba.extending import intrinsic

        return cast("Callable[..., Any]", intrinsic)

    return lambda function: _Kernel(function, make, plain)
