"""Kernels in C, each beside the Python function that says what it does.

The function runs where no library was built: slower, and equal to the byte, but for the last bit of
exponentials and logarithms, which NumPy and the C library round differently. Libraries are
``NAME.so`` in a package's folder ``native``, with the declarations of their functions in
``NAME.decl``, which the build takes from the sources (``hatch_build.py``).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache, update_wrapper
from pathlib import Path
from typing import Any, NamedTuple

import cffi
import numpy as np
from numpy.typing import NDArray

from hedgerow.crypto.native import sources

_ROOT = Path(__file__).parents[2]
_TYPES = {"u1": "uint8_t", "u2": "uint16_t", "u4": "uint32_t", "u8": "uint64_t", "i4": "int32_t",
          "i8": "int64_t", "f4": "float", "f8": "double", "void": "void"}  # fmt: skip
_NO_MEMORY = -(1 << 63)
_log = logging.getLogger(__name__)
_ffi = cffi.FFI()
_CODES = {np.dtype(name): name for name in _TYPES if name != "void"} | {np.dtype(bool): "u1"}
_ARRAYS = {dtype: _ffi.typeof(f"{_TYPES[code]}[]") for dtype, code in _CODES.items()}
_POINTERS = {dtype: _ffi.typeof(f"{_TYPES[code]} *") for dtype, code in _CODES.items()}
_from_buffer = _ffi.from_buffer
_opened: list[Any] = []  # a library that nobody holds is closed, and its functions with it


class Strided:
    """An array in any order: its kernel takes steps in elements after the shape."""

    __slots__ = ("array",)

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array

    @property
    def dtype(self) -> np.dtype[Any]:
        """The array's type."""
        return self.array.dtype

    def c_arguments(self, write: bool) -> tuple[Any, ...]:
        """Return the address, shape and steps."""
        own = self.array
        if write and not own.flags.writeable:
            raise BufferError("a kernel would write to an array that is read-only")
        address = _ffi.cast(_POINTERS[own.dtype], own.ctypes.data)
        return (address, *own.shape, *(step // own.itemsize for step in own.strides))


class _Declared(NamedTuple):
    """A function of a library: types of its arrays, and which arguments it writes to."""

    function: Any
    arrays: tuple[str, ...]
    written: frozenset[int]


@cache
def functions_of(name: str) -> dict[str, list[_Declared]]:
    """Return the functions of a library by their names without types; none if it was not built."""
    package, file = name.split("/")
    path = _ROOT / package / "native" / f"{file}.so"
    found: dict[str, list[_Declared]] = {}
    if not path.exists():
        _log.warning("kernels of %s run as Python: they were not built", name)
        return found
    sources.check(path)
    library = cffi.FFI()
    library.cdef("".join(f"typedef {c} {code};" for code, c in _TYPES.items() if code != "void"))
    try:
        declared = path.with_suffix(".decl").read_text()
        library.cdef(declared)
        opened = library.dlopen(str(path))
    except OSError as error:  # of another machine, or half there
        _log.warning("kernels of %s run as Python: %s", name, error)
        return found
    _opened.append(opened)
    for function, arguments in re.findall(r"(\w+)\(([^)]*)\);", declared):
        of = [argument.split() for argument in arguments.split(",")]
        pointers = [k for k, words in enumerate(of) if "*" in words[-1]]
        declaration = _Declared(
            getattr(opened, function),
            tuple(of[k][-2] for k in pointers),
            frozenset(k for k in pointers if of[k][0] != "const"),
        )
        bare = re.sub(r"(_[uif][1248])+$", "", function)
        found.setdefault(bare, []).append(declaration)
    return found


class PointerArray:
    """Arrays of one type and shape: a kernel takes their addresses, their number and the shape.

    Parameters
    ----------
    arrays : sequence of ndarray, or ndarray of one dimension more
        Not empty, in C order, only read.
    """

    __slots__ = ("_addresses", "arrays")

    def __init__(self, arrays: Sequence[NDArray[Any]] | NDArray[Any]) -> None:
        self.arrays = arrays
        first = arrays[0]
        if any(
            one.dtype != first.dtype or one.shape != first.shape or not one.flags.c_contiguous
            for one in arrays
        ):
            raise ValueError("expected arrays of one type and shape, in C order")
        self._addresses = np.array([one.ctypes.data for one in arrays], dtype=np.uintp)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The arrays' type."""
        return self.arrays[0].dtype

    def c_arguments(self, write: bool) -> tuple[Any, ...]:
        """Return where the addresses are, their number and the shape."""
        if write:
            raise BufferError("a kernel would write to arrays that it is given to read")
        kind = f"{_TYPES[_CODES[self.dtype]]} **"
        address = _ffi.cast(kind, self._addresses.ctypes.data)
        return (address, len(self._addresses), *self.arrays[0].shape)


def _flat(arguments: tuple[Any, ...]) -> Iterator[Any]:
    for one in arguments:
        if isinstance(one, tuple):
            yield from _flat(one)
        else:
            yield one


def _plain(arguments: tuple[Any, ...]) -> Iterator[Any]:
    for one in arguments:
        yield (
            one.array if type(one) is Strided else one.arrays if type(one) is PointerArray else one
        )


class Kernel:
    """A Python function with a function of C in its place where that was built.

    Attributes
    ----------
    reference : callable
        The Python function.
    """

    def __init__(self, reference: Callable[..., Any], library: str, name: str) -> None:
        update_wrapper(self, reference)
        self.reference = np.errstate(all="ignore")(reference)
        self._library, self._name = library, name
        self._found: dict[tuple[np.dtype[Any], ...], _Declared] = {}

    def __call__(self, *arguments: Any) -> Any:
        """Call it with arrays, numbers, and tuples of these.

        Raises
        ------
        TypeError, ValueError, BufferError
            Arrays of other types or in another order than the kernel takes, or not to be written.
        MemoryError
        """
        functions = functions_of(self._library)
        flat = list(_flat(arguments))
        if self._name not in functions:  # not built, or before this kernel was there
            return self.reference(*_plain(arguments))
        types = tuple(
            [one.dtype for one in flat if isinstance(one, (np.ndarray, Strided, PointerArray))]
        )
        found = self._found.get(types)
        if found is None:
            found = self._found[types] = self._of(functions[self._name], types)
        given: list[Any] = []
        for one in flat:
            if isinstance(one, np.ndarray):
                kind = _ARRAYS[one.dtype]
                given.append(_from_buffer(kind, one, len(given) in found.written))
                given += one.shape
            elif isinstance(one, (Strided, PointerArray)):
                given += one.c_arguments(len(given) in found.written)
            else:
                given.append(one)
        result = found.function(*given)
        if result == _NO_MEMORY:
            raise MemoryError(f"{self._name}: no memory for its buffers")
        return result

    def _of(self, declared: list[_Declared], types: tuple[np.dtype[Any], ...]) -> _Declared:
        codes = tuple(_CODES.get(one, str(one)) for one in types)
        for one in declared:
            if one.arrays == codes:
                return one
        wanted = " or ".join(" ".join(one.arrays) for one in declared)
        raise TypeError(f"{self._name}: expected arrays of {wanted}, received {' '.join(codes)}")


def kernel(library: str, name: str) -> Callable[[Callable[..., Any]], Kernel]:
    """Put a function of C in the place of a Python function of the same arguments.

    Parameters
    ----------
    library : str
        Package and file: ``boosting/tables``.
    name : str
        The function there, without types at its end: ``transpose`` for ``transpose_u1``.
    """
    return lambda reference: Kernel(reference, library, name)
