"""How gradients are hidden: by keys in the silo's vault, or not at all, for tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.ports import FederationError
from hedgerow.crypto.cipher_schemes import ciphertext_bytes
from hedgerow.crypto.cipher_vault import CipherVault, Scheme
from hedgerow.crypto.errors import HistogramRefused, Refusal
from hedgerow.crypto.packing import PairLayout

Bytes = NDArray[np.uint8]
Bins = NDArray[np.uint8] | NDArray[np.uint16]

Answer = TypeVar("Answer")
PATIENCE_SECONDS = 30.0
"""How long a party waits for its crypto process to come back."""
REFUSED = (Refusal, ValueError, LookupError)
"""What a vault, here or in its own process, raises at what it cannot use."""


def said(error: Exception) -> str:
    """Return what other parties may read of an error: a foreign one is told by its type only."""
    known = isinstance(error, FederationError | Refusal)
    return str(error) if known else type(error).__name__


def is_away(error: FederationError) -> bool:
    """Whether an error says that a process could not be reached.

    The exception is one of ``services``, which this package does not know.
    """
    return type(error).__name__ == "Unreachable"


class VaultForgot(FederationError):
    """The crypto process has started anew since it took a tree's gradients.

    Not the fault of what others sent: the attempt is repeated from the last finished round.
    """


class Cipher(Protocol):
    """What both parties do with a tree's gradients."""

    def encrypt(
        self, layout: PairLayout, grad: NDArray[np.float64], hess: NDArray[np.float64]
    ) -> tuple[Bytes, ...]:
        """Return the rows' ciphertexts, in parts (active party)."""
        ...

    def hold(
        self,
        public_key: bytes,
        layout: PairLayout,
        parts: Sequence[bytes | memoryview],
        bins: Bins,
        n_bins: Sequence[int],
    ) -> None:
        """Take the rows' ciphertexts and this party's bins of them (passive party)."""
        ...

    def sums(
        self,
        nodes: Sequence[NDArray[np.integer]],
        missing: Sequence[bool],
        order: NDArray[np.int64],
    ) -> tuple[Bytes, ...]:
        """Return running sums of nodes, hidden; see :meth:`crypto.cipher_vault.CipherVault`."""
        ...

    def open(
        self, layout: PairLayout, parts: Sequence[bytes], n: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return grad and hess sums, each of shape (n, n_classes) (active party)."""
        ...


class VaultCipher:
    """Paillier or EC-ElGamal with keys in the silo's vault.

    Parameters
    ----------
    session : str
        Under which the vault keeps key and rows.
    insecure : bool
        Read short keys of others, too; the vault decides whether it does.
    pause : callable
        Called between tries while the crypto process is away; may raise to give up.
    """

    def __init__(
        self,
        vault: CipherVault,
        session: str,
        insecure: bool = False,
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        self._vault = vault
        self._session = session
        self._insecure = insecure
        self._pause = pause
        self._key_bytes = b""

    def create_key(self, key_bits: int, scheme: Scheme) -> bytes:
        """Return the public key."""
        self._key_bytes = self._patiently(
            lambda: self._vault.create_cipher_key(self._session, key_bits, scheme)
        )
        return self._key_bytes

    def encrypt(
        self, layout: PairLayout, grad: NDArray[np.float64], hess: NDArray[np.float64]
    ) -> tuple[Bytes, ...]:
        """See :meth:`Cipher.encrypt`."""
        return self._patiently(
            lambda: self._vault.encrypt_gradients(self._session, layout, grad, hess)
        )

    def hold(
        self,
        public_key: bytes,
        layout: PairLayout,
        parts: Sequence[bytes | memoryview],
        bins: Bins,
        n_bins: Sequence[int],
    ) -> None:
        """See :meth:`Cipher.hold`."""
        rows = self._shaped(public_key, parts)
        self._patiently(
            lambda: self._vault.hold_rows(self._session, public_key, layout, rows, bins, n_bins)
        )

    def sums(
        self,
        nodes: Sequence[NDArray[np.integer]],
        missing: Sequence[bool],
        order: NDArray[np.int64],
    ) -> tuple[Bytes, ...]:
        """See :meth:`Cipher.sums`."""
        return self._patiently(
            lambda: self._vault.sum_bins(
                self._session, nodes, cumulative=True, missing=missing, order=order
            )
        )

    def open(
        self, layout: PairLayout, parts: Sequence[bytes], n: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """See :meth:`Cipher.open`."""
        answer = self._shaped(self._key_bytes, parts)
        grad, hess = self._patiently(
            lambda: self._vault.decrypt_histograms(self._session, layout, answer, n)
        )
        return grad.astype(np.int64), hess.astype(np.int64)

    def encrypt_integers(self, values: NDArray[np.int64]) -> Bytes:
        """Return ciphertexts of signed integers (active party)."""
        numbers = values.tolist()
        return self._patiently(lambda: self._vault.encrypt_integers(self._session, numbers))

    def select(
        self,
        public_key: bytes,
        values: bytes,
        index: NDArray[np.uint32],
        start: NDArray[np.int64],
    ) -> Bytes:
        """Return re-randomised sums of ``values[index]`` by segment (passive party)."""
        (rows,) = self._shaped(public_key, (values,))
        return self._patiently(lambda: self._vault.sum_selected(public_key, rows, index, start))

    def open_integers(self, values: bytes) -> NDArray[np.int64]:
        """Return signed integers (active party)."""
        (rows,) = self._shaped(self._key_bytes, (values,))
        found = self._patiently(lambda: self._vault.decrypt_integers(self._session, rows))
        return np.array(found, np.int64)

    def _shaped(self, public_key: bytes, parts: Sequence[bytes | memoryview]) -> list[Bytes]:
        width = ciphertext_bytes(public_key, insecure_test_key=self._insecure)
        return [_rows(part, width) for part in parts]

    def _patiently(self, ask: Callable[[], Answer]) -> Answer:
        """Ask the vault until its process answers, for at most :data:`PATIENCE_SECONDS`."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return ask()
            except FederationError as error:
                if not is_away(error) or time.monotonic() > deadline:
                    raise
            self._pause()
            time.sleep(0.2)


class PlainCipher:
    """No encryption: gradients travel readable. For tests and measurements only."""

    def encrypt(
        self, layout: PairLayout, grad: NDArray[np.float64], hess: NDArray[np.float64]
    ) -> tuple[Bytes, ...]:
        """See :meth:`Cipher.encrypt`."""
        g, h = layout.quantise(grad, hess)
        return (_as_bytes(np.concatenate([g, h], axis=1)),)

    def hold(
        self,
        public_key: bytes,
        layout: PairLayout,
        parts: Sequence[bytes | memoryview],
        bins: Bins,
        n_bins: Sequence[int],
    ) -> None:
        """See :meth:`Cipher.hold`."""
        if len(parts) != 1:
            raise HistogramRefused(f"expected one part, got {len(parts)}")
        self._values = _rows(parts[0], 16 * layout.n_classes).view("<i8")
        if len(self._values) != len(bins):
            raise HistogramRefused(f"expected {len(bins)} rows, got {len(self._values)}")
        self._bins, self._n_bins = bins, tuple(n_bins)

    def sums(
        self,
        nodes: Sequence[NDArray[np.integer]],
        missing: Sequence[bool],
        order: NDArray[np.int64],
    ) -> tuple[Bytes, ...]:
        """See :meth:`Cipher.sums`."""
        blocks: list[NDArray[Any]] = []
        for rows in nodes:
            for j, n in enumerate(self._n_bins):
                bins = np.zeros((n, self._values.shape[1]), np.int64)
                np.add.at(bins, self._bins[rows, j], self._values[rows])
                present = bins[: n - 1] if missing[j] else bins
                blocks.append(np.cumsum(present, axis=0))
                if missing[j]:
                    blocks.append(np.cumsum(present[::-1], axis=0)[::-1][1:])
        return (_as_bytes(np.concatenate(blocks)[order]),)

    def open(
        self, layout: PairLayout, parts: Sequence[bytes], n: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """See :meth:`Cipher.open`."""
        if len(parts) != 1:
            raise HistogramRefused(f"expected one part, got {len(parts)}")
        values = _rows(parts[0], 16 * layout.n_classes).view("<i8")
        if len(values) != n:
            raise HistogramRefused(f"expected {n} sums, got {len(values)}")
        return values[:, : layout.n_classes], values[:, layout.n_classes :]


def _as_bytes(values: NDArray[np.int64]) -> Bytes:
    return np.ascontiguousarray(values, dtype="<i8").view(np.uint8)


def _rows(data: bytes | memoryview, width: int) -> Bytes:
    if len(data) % width:
        raise HistogramRefused(f"expected ciphertexts of {width} bytes, got {len(data)} bytes")
    return np.frombuffer(data, np.uint8).reshape(-1, width)
