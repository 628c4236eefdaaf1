"""The choice of a kernel, for residues and for points of the curve.

Four kernels compute the same bytes. ``ifma`` is C on AVX-512 IFMA, eight numbers at a time;
``avx2`` is C on AVX2, four at a time; ``portable`` is C on 64-bit words; ``gmpy2`` needs no
compiler.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Literal

from hedgerow.crypto.arithmetic.curve_kernels import CurveKernel
from hedgerow.crypto.arithmetic.modular import Modulus
from hedgerow.crypto.threads import usable_cores

Kernel = Literal["ifma", "avx2", "portable", "gmpy2"]


@functools.cache
def available_kernels() -> tuple[Kernel, ...]:
    """Return the kernels that run on this machine, fastest first.

    A core of the portable kernel and a core of gmpy2 do about as much, but threads share a tree's
    ciphertexts, which processes must be sent.
    """
    try:
        from hedgerow.crypto.arithmetic import curve_native, modular_native
    except ImportError:
        return ("gmpy2",)
    vectors: tuple[Kernel, ...] = ("ifma", "avx2")
    libraries = (curve_native.LIBRARY, modular_native.LIBRARY)
    found = (path for path in vectors if all(library.runs(path) for library in libraries))
    return (*found, "portable", "gmpy2")


@dataclass(frozen=True, slots=True)
class Engine:
    """Which kernel computes, on how many cores."""

    kernel: Kernel = field(default_factory=lambda: available_kernels()[0])
    """One of :func:`available_kernels`."""
    workers: int = field(default_factory=usable_cores)
    """Threads (C kernels) or processes (gmpy2) that share a large batch."""

    def __post_init__(self) -> None:
        if self.kernel not in available_kernels():
            raise ValueError(
                f"kernel {self.kernel!r} does not run here, expected one of {available_kernels()}"
            )
        if self.workers < 1:
            raise ValueError(f"expected at least one worker, received {self.workers}")

    def modulus(self, value: int) -> Modulus:
        """Return the arithmetic modulo an odd ``value``."""
        if self.kernel == "gmpy2":
            from hedgerow.crypto.arithmetic.modular_gmpy2 import GmpModulus

            return GmpModulus(value, self.workers)
        from hedgerow.crypto.arithmetic.modular_native import NativeModulus

        return NativeModulus(value, self.workers, self.kernel)

    def curve(self) -> CurveKernel:
        """Return the arithmetic of Curve25519."""
        if self.kernel == "gmpy2":
            from hedgerow.crypto.arithmetic.curve_python import PythonCurve

            return PythonCurve(self.workers)
        from hedgerow.crypto.arithmetic.curve_native import NativeCurve

        return NativeCurve(self.kernel, self.workers)
