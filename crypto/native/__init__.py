"""Optional compiled kernels, each with a pure-Python twin of identical output.

A C file here becomes a library of plain functions. They check nothing: the caller has
checked that every array has the type, the length and the order that the function reads and writes.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

from hedgerow.crypto.native import sources


class KernelLibrary:
    """The functions of a kernel's library; other Python threads run during a call.

    Raises
    ------
    ImportError
        It was not built here.
    """

    def __init__(self, name: str) -> None:
        found = [path for folder in __path__ if (path := Path(folder, f"{name}.so")).exists()]
        if not found:
            raise ImportError(f"the C kernels of {name} were not built")
        self.path = found[0]
        sources.check(self.path)
        self._library = ctypes.CDLL(str(self.path))

    def has(self, name: str) -> bool:
        """Return whether it has a function; one built from older sources may not."""
        return hasattr(self._library, name)

    def runs(self, path: str) -> bool:
        """Return whether it has a path of vector instructions, and this CPU what it needs."""
        return self.has(f"has_{path}") and bool(self.call(f"has_{path}"))

    def call(self, name: str, *arguments: Any, result: Any = ctypes.c_int64) -> Any:
        """Call a function with whole numbers, pointers, bytes and arrays; arrays in C order."""
        function = getattr(self._library, name)
        function.restype = result
        return function(*map(_argument, arguments))


def _argument(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        if not value.flags.c_contiguous:
            raise ValueError("the kernels read and write arrays in C order")
        return ctypes.c_void_p(value.ctypes.data)
    return ctypes.c_int64(value) if isinstance(value, int) else value
