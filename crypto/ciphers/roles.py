"""The three roles that a scheme of encrypted gradients has, in any scheme.

A :class:`KeyOwner` has the private key: it encrypts gradients and reads answers. A :class:`PeerKey`
is another party's public key. :class:`HeldRows` are a tree's row ciphertexts beside this party's
bins; they answer with sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from hedgerow.crypto.ciphers.key_files import AnyPrivateKey
from hedgerow.crypto.ciphers.packing import PairLayout
from hedgerow.crypto.ciphers.sparse_bins import SparseBins
from hedgerow.crypto.errors import CiphertextRejected, HistogramRefused

Scheme = Literal["paillier", "elgamal"]
DenseBins = NDArray[np.uint8] | NDArray[np.uint16]
Bins = DenseBins | SparseBins
"""Bin of every row and feature: of shape (n_rows, n_features), or the rows that are not usual."""
Ciphertexts = NDArray[np.uint8]
"""Of shape (n, ciphertext_bytes), C order: one little-endian ciphertext a row."""
Buffer = bytes | memoryview | Ciphertexts
"""Ciphertexts of one width, end to end."""
PairSums = tuple[NDArray[np.generic], NDArray[np.generic]]


class KeyOwner(Protocol):
    """The private key of a session."""

    @property
    def scheme(self) -> Scheme:
        """Which scheme."""
        ...

    @property
    def private_key(self) -> AnyPrivateKey:
        """The key itself."""
        ...

    def public_bytes(self) -> bytes:
        """Return the public key as it travels."""
        ...

    def encrypt_gradients(
        self, layout: PairLayout, grad: NDArray[np.float64], hess: NDArray[np.float64]
    ) -> tuple[Ciphertexts, ...]:
        """Return one ciphertext a row, in parts where the classes need several."""
        ...

    def read(self, layout: PairLayout, answer: Sequence[Buffer], n_bins: int) -> PairSums:
        """Return the sums of an answer, each of shape (n_bins, n_classes)."""
        ...

    def encrypt_integers(self, values: Sequence[int]) -> Ciphertexts:
        """Return ciphertexts of signed integers."""
        ...

    def decrypt_integers(self, values: Buffer) -> list[int]:
        """Return signed integers."""
        ...


class HeldRows(Protocol):
    """A tree's row ciphertexts and this party's bins of the same rows."""

    def answer(
        self,
        nodes: Sequence[NDArray[np.integer]],
        *,
        cumulative: bool,
        missing: Sequence[bool] | None,
        order: NDArray[np.integer] | None,
        n_added: int = 1,
    ) -> tuple[Ciphertexts, ...]:
        """Return the nodes' sums as they leave the party: re-randomised, one array a part.

        With ``n_added`` as many answers, of different rows, may be added up before they leave.
        """
        ...


class PeerKey(Protocol):
    """Another party's public key."""

    @property
    def key_id(self) -> bytes:
        """What tells keys apart."""
        ...

    def hold(
        self, layout: PairLayout, rows: Sequence[Buffer], bins: Bins, n_bins: Sequence[int]
    ) -> HeldRows:
        """Check row ciphertexts and take them."""
        ...

    def sum_selected(
        self, values: Buffer, index: NDArray[np.uint32], start: NDArray[np.int64]
    ) -> Ciphertexts:
        """Return re-randomised sums of ``values[index[k]]`` over start[s] ≤ k < start[s + 1]."""
        ...


def ciphertext_rows(data: Buffer, width: int) -> Ciphertexts:
    """Return ciphertexts of ``width`` bytes as an array, one a row.

    Raises
    ------
    CiphertextRejected
        The length is no multiple of the width.
    """
    flat = data.reshape(-1) if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    if len(flat) % width:
        raise CiphertextRejected(f"expected {width} bytes a ciphertext, received {len(flat)} bytes")
    return flat.reshape(-1, width)


def check_parts(parts: Sequence[Buffer], expected: int, what: str) -> None:
    """Refuse another number of parts; ``what`` names their whole."""
    if len(parts) != expected:
        raise HistogramRefused(f"expected {what} in {expected} parts, received {len(parts)}")


def check_selection(n: int, index: NDArray[np.uint32], start: NDArray[np.int64]) -> None:
    """Refuse an index of other than ``n`` ciphertexts, or starts that fall."""
    if len(start) < 1 or (np.diff(start) < 0).any() or start[0] < 0 or start[-1] > len(index):
        raise HistogramRefused("expected starts that rise within the index")
    if len(index) and int(index.max()) >= n:
        raise HistogramRefused(f"expected an index below {n}")
