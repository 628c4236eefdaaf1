"""Batches of curve arithmetic; :mod:`hedgerow.crypto.arithmetic.engine` chooses the kernel.

Values cross a kernel's boundary as bytes; what it keeps between two calls (rows, sums) is opaque.
A ciphertext row is three ristretto255 encodings, 96 bytes.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

ROW_BYTES = 96
SCALAR_BYTES = 32
MOST_VALUE_BITS = 40
"""Plaintexts and their sums lie within ±2^40."""


class CurveSums(Protocol):
    """CurveSums of ciphertext rows, not yet encoded."""

    def __len__(self) -> int:
        """Count the sums."""
        ...

    def combine(self, index: NDArray[np.int64], starts: NDArray[np.int64]) -> CurveSums:
        """Give sum s over ``index[starts[s]:starts[s + 1]]``; ~i is minus sum i."""
        ...

    def append(self, others: CurveSums) -> CurveSums:
        """Give these sums followed by others of the same kernel."""
        ...

    def encode(self) -> bytes:
        """Encode the sums as they are: 96 bytes each, canonical, *not* re-randomised."""
        ...


class CurveRows(Protocol):
    """Decoded, validated ciphertext rows."""

    def __len__(self) -> int:
        """Count the rows."""
        ...

    def sum_segments(self, index: NDArray[np.uint32], starts: NDArray[np.int64]) -> CurveSums:
        """Give sum s of the rows ``index[starts[s]:starts[s + 1]]``; of none, zero's encryption."""
        ...


class Encryptor(Protocol):
    """Encryption under one public key, with its tables."""

    def encrypt(self, scalars: bytes, g: NDArray[np.int64], h: NDArray[np.int64]) -> bytes:
        """Encrypt rows; 32 secret uniform bytes a row, of which 252 bits count."""
        ...

    def rerandomise(self, sums: CurveSums, scalars: bytes) -> bytes:
        """Add fresh encryptions of zero and encode; 32 secret uniform bytes a sum."""
        ...


class Decryptor(Protocol):
    """Decryption under one private key, with the table of logarithms."""

    def decrypt(self, ciphertexts: bytes) -> NDArray[np.int64]:
        """Give (n, 2) values; ``NOT_FOUND`` where one lies outside of the range.

        Raises `InvalidPoint` with the first bad row.
        """
        ...


class CurveKernel(Protocol):
    """Arithmetic for private set intersection and EC-ElGamal."""

    def map_to_curve(self, uniform: bytes) -> bytes:
        """Map 48 uniform bytes an element to u-coordinates, 32 bytes an element."""
        ...

    def multiply(self, points: bytes, scalar: bytes) -> bytes:
        """Multiply u-coordinates by one clamped scalar; `InvalidPoint` for a zero product."""
        ...

    def load(self, ciphertexts: bytes) -> CurveRows:
        """Decode and validate ciphertext rows; `InvalidPoint` with the first bad one."""
        ...

    def masker(self, p1: bytes, p2: bytes) -> Encryptor:
        """Build the tables of a public key."""
        ...

    def opener(self, x1: int, x2: int, limit: int) -> Decryptor:
        """Build what decrypting values within ±limit takes."""
        ...


NOT_FOUND = int(np.iinfo(np.int64).min)
