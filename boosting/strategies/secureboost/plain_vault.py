"""Gradients without encryption, for tests and measurements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.crypto.ciphers.packing import PairLayout
from hedgerow.crypto.ciphers.roles import Bins, Buffer, Ciphertexts, Scheme, ciphertext_rows
from hedgerow.crypto.ciphers.sparse_bins import SparseBins
from hedgerow.crypto.errors import HistogramRefused
from hedgerow.crypto.vault.local_ciphers import LocalCipherVault


class PlainVault(LocalCipherVault):
    """No encryption: gradients travel readable. For tests and measurements only."""

    def create_cipher_key(
        self, session: str, key_bits: int = 2048, scheme: Scheme = "paillier"
    ) -> bytes:
        """Return no key."""
        return b""

    def encrypt_gradients(
        self,
        session: str,
        layout: PairLayout,
        grad: NDArray[np.float64],
        hess: NDArray[np.float64],
    ) -> tuple[Ciphertexts, ...]:
        """Return the rows' integers."""
        g, h = layout.quantise(grad, hess)
        return (_as_bytes(np.concatenate([g, h], axis=1)),)

    def hold_rows(
        self,
        session: str,
        public_key: bytes,
        layout: PairLayout,
        rows: Sequence[Buffer],
        bins: Bins,
        n_bins: Sequence[int],
        least_rows: int = 1,
    ) -> None:
        """Take the rows' integers and this party's bins of them."""
        self._values = _integers(rows, layout)
        if len(self._values) != len(bins):
            raise HistogramRefused(f"expected {len(bins)} rows, received {len(self._values)}")
        self._bins, self._n_bins = bins, tuple(n_bins)

    def sum_bins(
        self,
        session: str,
        nodes: Sequence[NDArray[np.integer]],
        *,
        cumulative: bool = False,
        missing: Sequence[bool] | None = None,
        order: NDArray[np.integer] | None = None,
    ) -> tuple[Ciphertexts, ...]:
        """Return running sums of nodes."""
        assert cumulative
        assert missing is not None
        blocks: list[NDArray[Any]] = []
        for rows in nodes:
            for j, bins in enumerate(self._sums(rows)):
                present = bins[:-1] if missing[j] else bins
                blocks.append(np.cumsum(present, axis=0))
                if missing[j]:
                    blocks.append(np.cumsum(present[::-1], axis=0)[::-1][1:])
        return (_as_bytes(np.concatenate(blocks)[order]),)

    def _sums(self, rows: NDArray[np.integer]) -> Iterator[NDArray[np.int64]]:
        """Yield a node's sums by bin, feature by feature."""
        own = self._values[rows]
        if isinstance(self._bins, SparseBins):
            index, counts = self._bins.of_node(rows)
            running = np.zeros((len(index) + 1, own.shape[1]), np.int64)
            np.cumsum(self._values[index], axis=0, out=running[1:])
            sums = np.diff(running[np.concatenate([[0], np.cumsum(counts)])], axis=0)
            for bins, usual in zip(
                np.split(sums, self._bins.first[1:-1]), self._bins.usual, strict=True
            ):
                bins[usual] = own.sum(axis=0) - bins.sum(axis=0)
                yield bins
            return
        for j, n in enumerate(self._n_bins):
            bins = np.zeros((n, own.shape[1]), np.int64)
            np.add.at(bins, self._bins[rows, j], own)
            yield bins

    def decrypt_histograms(
        self, session: str, layout: PairLayout, answer: Sequence[Buffer], n_bins: int
    ) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        """Return grad and hess sums, each of shape (n_bins, n_classes)."""
        values = _integers(answer, layout)
        if len(values) != n_bins:
            raise HistogramRefused(f"expected {n_bins} sums, received {len(values)}")
        return values[:, : layout.n_classes], values[:, layout.n_classes :]


def _as_bytes(values: NDArray[np.int64]) -> Ciphertexts:
    return np.ascontiguousarray(values, dtype="<i8").view(np.uint8)


def _integers(parts: Sequence[Buffer], layout: PairLayout) -> NDArray[np.int64]:
    if len(parts) != 1:
        raise HistogramRefused(f"expected one part, received {len(parts)}")
    return ciphertext_rows(parts[0], 16 * layout.n_classes).view("<i8")
