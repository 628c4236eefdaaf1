"""Curve25519 arithmetic in batches: the pure-Python kernel, the native one, and the choice."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Protocol

from crypto import curve25519


class PsiKernel(Protocol):
    """What private set intersection needs of a kernel; all kernels give identical bytes."""

    @property
    def name(self) -> str:
        """Name of the kernel, for reports."""
        ...

    def map_to_curve(self, uniform: bytes) -> bytes:
        """Map 48 uniform bytes an element to u-coordinates, 32 bytes an element."""
        ...

    def multiply(self, points: bytes, scalar: bytes) -> bytes:
        """Multiply u-coordinates by one clamped scalar; `InvalidPoint` for a zero product."""
        ...


class PythonCurve:
    """Curve arithmetic with gmpy2 and the `cryptography` package.

    Parameters
    ----------
    executor : Executor, optional
        A *process* pool over whose workers batches are cut: this kernel holds the GIL.
    n_workers : int
        Parts that a batch is cut into.
    """

    name = "python"

    def __init__(self, executor: Executor | None = None, n_workers: int = 1) -> None:
        self._executor, self._n_workers = executor, n_workers

    def map_to_curve(self, uniform: bytes) -> bytes:
        """See :func:`crypto.curve25519.map_to_curve`."""
        return curve25519.map_to_curve(uniform)

    def multiply(self, points: bytes, scalar: bytes) -> bytes:
        """See :func:`crypto.curve25519.multiply_u`."""
        return curve25519.multiply_u(points, scalar)


def default_kernel() -> PsiKernel:
    """Give the fastest kernel that this machine has."""
    return PythonCurve()
