"""EC-ElGamal in the roles of :mod:`hedgerow.crypto.ciphers.roles`; a ciphertext holds one class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow.crypto.arithmetic.curve_kernels import (
    MOST_VALUE_BITS,
    ROW_BYTES,
    CurveRows,
    CurveSums,
)
from hedgerow.crypto.arithmetic.engine import Engine
from hedgerow.crypto.ciphers import elgamal
from hedgerow.crypto.ciphers.bin_sums import plan_bin_sums, plan_sparse_sums
from hedgerow.crypto.ciphers.ciphertext_histogram import check_bins, check_rows, running_sums
from hedgerow.crypto.ciphers.packing import PairLayout
from hedgerow.crypto.ciphers.roles import (
    Bins,
    Buffer,
    Ciphertexts,
    HeldRows,
    PairSums,
    Scheme,
    check_parts,
    check_selection,
    ciphertext_rows,
)
from hedgerow.crypto.ciphers.sparse_bins import SparseBins, usual_is_sent
from hedgerow.crypto.errors import HistogramRefused, PlaintextOutOfRange


def value_range(layout: PairLayout) -> elgamal.ValueRange:
    """Return the range proof of a layout.

    Raises
    ------
    RangeRefused
        Precision bits + log2 rows are above 40.
    """
    return elgamal.ValueRange(layout.value_bits, layout.n_rows)


class ElGamalOwner:
    """See :class:`KeyOwner`."""

    scheme: Scheme = "elgamal"

    def __init__(self, private_key: elgamal.ElGamalPrivateKey, engine: Engine | None) -> None:
        self.private_key = private_key
        self._kernel = (engine or Engine()).curve()
        self._public_key = private_key.public_key()

    def public_bytes(self) -> bytes:
        return elgamal.PUBLIC_MAGIC + self._public_key.to_bytes()

    def encrypt_gradients(
        self, layout: PairLayout, grad: NDArray[np.float64], hess: NDArray[np.float64]
    ) -> tuple[Ciphertexts, ...]:
        public = elgamal.ElGamalOperations(self._public_key, value_range(layout), self._kernel)
        stored = layout.quantise(grad, hess)
        columns = [np.ascontiguousarray(values.T) for values in stored]
        return tuple(_rows(public.encrypt(g, h)) for g, h in zip(*columns, strict=True))

    def read(self, layout: PairLayout, answer: Sequence[Buffer], n_bins: int) -> PairSums:
        check_parts(answer, layout.n_classes, "an answer")
        parts = [_bytes(part) for part in answer]
        for part in parts:
            if len(part) != n_bins * ROW_BYTES:
                raise HistogramRefused(
                    f"expected {n_bins} ciphertexts for {n_bins} bins, "
                    f"received {len(part) // ROW_BYTES}"
                )
        holder = elgamal.ElGamalDecryption(self.private_key, value_range(layout), self._kernel)
        values = holder.decrypt(b"".join(parts))
        pairs = values.reshape(layout.n_classes, n_bins, 2)
        grad, hess = pairs[:, :, 0].T.copy(), pairs[:, :, 1].T.copy()
        if len(grad) and (
            np.abs(grad).max() > layout.n_rows * layout.largest_grad
            or hess.min() < 0
            or hess.max() > layout.n_rows * layout.largest_hess
        ):
            raise PlaintextOutOfRange("a decrypted sum is above what its rows can give, or below")
        return grad, hess

    def encrypt_integers(self, values: Sequence[int]) -> Ciphertexts:
        """Encrypt integers, which stay within ±2^40, as their sums do."""
        largest = max((abs(int(v)) for v in values), default=0)
        bits = (max(largest, 1) - 1).bit_length()
        limits = elgamal.ValueRange(bits, max(1, len(values)))
        public = elgamal.ElGamalOperations(self._public_key, limits, self._kernel)
        numbers = np.array([int(v) for v in values], np.int64)
        return _rows(public.encrypt(numbers, np.zeros_like(numbers)))

    def decrypt_integers(self, values: Buffer) -> list[int]:
        limit = elgamal.ValueRange(MOST_VALUE_BITS, 1)
        holder = elgamal.ElGamalDecryption(self.private_key, limit, self._kernel)
        return [int(v) for v in holder.decrypt(_bytes(values))[:, 0]]


class ElGamalPeer:
    """See :class:`PeerKey`."""

    def __init__(self, public_key: elgamal.ElGamalPublicKey, engine: Engine | None) -> None:
        self.key_id = public_key.to_bytes()
        self._public_key = public_key
        self._kernel = (engine or Engine()).curve()

    def hold(
        self, layout: PairLayout, rows: Sequence[Buffer], bins: Bins, n_bins: Sequence[int]
    ) -> HeldRows:
        check_parts(rows, layout.n_classes, f"a row of {layout.n_classes} classes")
        public = elgamal.ElGamalOperations(self._public_key, value_range(layout), self._kernel)
        parts = [_bytes(part) for part in rows]
        for part in parts:
            if len(part) != len(bins) * ROW_BYTES:
                raise HistogramRefused(
                    f"expected {len(bins)} row ciphertexts, received {len(part) // ROW_BYTES}"
                )
        check_bins(bins, n_bins)
        loaded = [public.load(part) for part in parts]
        return _ElGamalRows(public, loaded, bins, tuple(int(n) for n in n_bins))

    def sum_selected(
        self, values: Buffer, index: NDArray[np.uint32], start: NDArray[np.int64]
    ) -> Ciphertexts:
        points = _bytes(values)
        check_selection(len(points) // ROW_BYTES, index, start)
        limits = elgamal.ValueRange(0, max(1, len(points) // ROW_BYTES))
        public = elgamal.ElGamalOperations(self._public_key, limits, self._kernel)
        return _rows(public.rerandomise(public.load(points).sum_segments(index, start)))


@dataclass(frozen=True, slots=True)
class _ElGamalRows:
    public: elgamal.ElGamalOperations
    parts: list[CurveRows]
    bins: Bins
    n_bins: tuple[int, ...]

    def answer(
        self,
        nodes: Sequence[NDArray[np.integer]],
        *,
        cumulative: bool,
        missing: Sequence[bool] | None,
        order: NDArray[np.integer] | None,
        n_added: int = 1,
    ) -> tuple[Ciphertexts, ...]:
        widest = max(self.n_bins, default=0)
        kept = np.flatnonzero(np.arange(widest) < np.asarray(self.n_bins)[:, None])
        plans = []
        for rows in nodes:
            members = check_rows(rows, len(self.bins)).astype(np.int64)
            if isinstance(self.bins, SparseBins):
                wanted = usual_is_sent(self.bins, missing if cumulative else None)
                plans.append(plan_sparse_sums(self.bins, widest, members, wanted))
            else:
                plans.append(plan_bin_sums(self.bins, widest, members))
        answers = []
        for part in self.parts:
            sums = _nothing(part)
            for plan in plans:
                sums = sums.append(_chosen(elgamal.sum_bins(part, plan), kept))
            if cumulative:
                sums = _running(sums, self.n_bins, len(nodes), missing)
            if order is not None:
                if len(order) and (order.min() < 0 or order.max() >= len(sums)):
                    raise HistogramRefused(f"expected bin numbers below {len(sums)}")
                sums = _chosen(sums, order)
            answers.append(_rows(self.public.rerandomise(sums)))
        return tuple(answers)


def _nothing(rows: CurveRows) -> CurveSums:
    return rows.sum_segments(np.empty(0, np.uint32), np.zeros(1, np.int64))


def _chosen(sums: CurveSums, order: NDArray[np.integer]) -> CurveSums:
    return sums.combine(order.astype(np.int64), np.arange(len(order) + 1, dtype=np.int64))


def _running(
    sums: CurveSums, n_bins: Sequence[int], n_nodes: int, missing: Sequence[bool] | None
) -> CurveSums:
    """Return ``cumulate`` of :mod:`.ciphertext_histogram` for every node, in doubling steps."""
    source, chains, _ = running_sums(n_bins, missing)
    n_out, n_in = len(source), sum(n_bins)
    sums = _chosen(sums, (source + n_in * np.arange(n_nodes)[:, None]).ravel())
    place = np.zeros(n_out, np.int64)  # in the sum's chain
    longest = max((len(chain) for chain in chains), default=0)
    steps = [1 << k for k in range(max(0, longest - 1).bit_length())]
    before = np.zeros((len(steps), n_out), np.int64)  # what is 1, 2, 4, ... places earlier
    for chain in chains:
        place[chain] = np.arange(len(chain))
        for k, step in enumerate(steps):
            before[k, chain[step:]] = chain[:-step] if step < len(chain) else chain[:0]
    for step, earlier in zip(steps, before, strict=True):
        adds = place >= step
        pairs = np.stack([np.arange(n_out), earlier], axis=1)
        lengths = np.tile(1 + adds, n_nodes)
        index = np.concatenate(
            [
                (pairs + n_out * node)[np.stack([np.ones_like(adds), adds], axis=1)]
                for node in range(n_nodes)
            ]
            or [np.empty(0, np.int64)]
        )
        sums = sums.combine(index, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
    return sums


def _rows(data: bytes) -> Ciphertexts:
    return np.frombuffer(data, np.uint8).reshape(-1, ROW_BYTES)


def _bytes(data: Buffer) -> bytes:
    return ciphertext_rows(data, ROW_BYTES).tobytes()
