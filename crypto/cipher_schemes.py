"""Paillier and EC-ElGamal behind one shape, so that a vertical protocol can use either.

Each scheme has three roles. A :class:`KeyOwner` has the private key: it encrypts gradients and
reads answers. A :class:`PeerKey` is another party's public key, with what re-randomising under it
takes. :class:`HeldRows` are a tree's row ciphertexts beside this party's bins; they answer with
sums. Ciphertexts are uint8 arrays, one a row.

========== =================== ================== ==============================================
scheme     bytes a row         bytes a bin        for
========== =================== ================== ==============================================
paillier   512 (2048 bits)     512 over 10 to 22  exact sums of full-precision gradients
elgamal    96 for each class   96 for each class  quantised gradients: precision bits + log2
                                                  rows at most 40; several times as fast
========== =================== ================== ==============================================

A public key begins with its scheme's four letters, so nobody has to be told which it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from hedgerow.crypto import elgamal, paillier
from hedgerow.crypto.bin_sums import plan_bin_sums
from hedgerow.crypto.ciphertext_histogram import (
    CiphertextHistograms,
    check_bins,
    check_rows,
    cumulate,
    pack_answer,
    read_answer,
    running_sums,
)
from hedgerow.crypto.curve_kernels import (
    MOST_VALUE_BITS,
    ROW_BYTES,
    CurveKernel,
    KernelName,
    Rows,
    Sums,
    curve_kernel,
)
from hedgerow.crypto.errors import (
    CiphertextRejected,
    HistogramRefused,
    PlaintextOutOfRange,
)
from hedgerow.crypto.modular import Engine
from hedgerow.crypto.obfuscators import KeyHolderObfuscators, UniformObfuscators
from hedgerow.crypto.packing import PairLayout, classes_per_ciphertext
from hedgerow.crypto.paillier import CiphertextVector

Scheme = Literal["paillier", "elgamal"]
Bins = NDArray[np.uint8] | NDArray[np.uint16]
Ciphertexts = NDArray[np.uint8]
"""Of shape (n, ciphertext_bytes)."""
PairSums = tuple[NDArray[np.generic], NDArray[np.generic]]


class KeyOwner(Protocol):
    """The private key of a session."""

    @property
    def scheme(self) -> Scheme:
        """Which scheme."""
        ...

    @property
    def private_key(self) -> paillier.PrivateKey | elgamal.PrivateKey:
        """The key itself."""
        ...

    def public_bytes(self) -> bytes:
        """Return the public key as it travels."""
        ...

    def prepare(self, n: int) -> None:
        """Make what ``n`` encryptions need ahead, where that saves time."""
        ...

    def encrypt_gradients(
        self, layout: PairLayout, grad: NDArray[np.float64], hess: NDArray[np.float64]
    ) -> tuple[Ciphertexts, ...]:
        """Return one ciphertext a row, in parts where the classes need several."""
        ...

    def read(self, layout: PairLayout, answer: Sequence[Ciphertexts], n_bins: int) -> PairSums:
        """Return the sums of an answer, each of shape (n_bins, n_classes)."""
        ...

    def encrypt_integers(self, values: Sequence[int]) -> Ciphertexts:
        """Return ciphertexts of signed integers."""
        ...

    def decrypt_integers(self, values: Ciphertexts) -> list[int]:
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
    ) -> tuple[Ciphertexts, ...]:
        """Return the nodes' sums as they leave the party: re-randomised, one array a part."""
        ...


class PeerKey(Protocol):
    """Another party's public key."""

    @property
    def key_id(self) -> bytes:
        """What tells keys apart."""
        ...

    def prepare(self, n: int) -> None:
        """Make what re-randomising ``n`` ciphertexts needs ahead, where that saves time."""
        ...

    def hold(
        self, layout: PairLayout, rows: Sequence[Ciphertexts], bins: Bins, n_bins: Sequence[int]
    ) -> HeldRows:
        """Check row ciphertexts and take them."""
        ...

    def sum_selected(
        self, values: Ciphertexts, index: NDArray[np.uint32], start: NDArray[np.int64]
    ) -> Ciphertexts:
        """Return re-randomised sums of ``values[index[k]]`` over start[s] ≤ k < start[s + 1]."""
        ...


# --- Paillier -------------------------------------------------------------------------------


class PaillierOwner:
    """See :class:`KeyOwner`."""

    scheme: Scheme = "paillier"

    def __init__(self, private_key: paillier.PrivateKey, engine: Engine | None) -> None:
        self.private_key = private_key
        self._holder = paillier.KeyHolder(private_key, engine)
        self._obfuscators = KeyHolderObfuscators(private_key, engine)

    def public_bytes(self) -> bytes:
        """See :meth:`KeyOwner.public_bytes`."""
        return self.private_key.public_key.to_bytes()

    def prepare(self, n: int) -> None:
        """See :meth:`KeyOwner.prepare`."""
        self._obfuscators.prepare(n)

    def encrypt_gradients(
        self, layout: PairLayout, grad: NDArray[np.float64], hess: NDArray[np.float64]
    ) -> tuple[Ciphertexts, ...]:
        """See :meth:`KeyOwner.encrypt_gradients`."""
        q_grad, q_hess = layout.quantise(grad, hess)
        parts = []
        at = 0
        for part in _part_layouts(layout, self.private_key.public_key.bits):
            columns = slice(at, at + part.n_classes)
            plaintexts = part.pack(q_grad[:, columns], q_hess[:, columns])
            parts.append(self._holder.encrypt(plaintexts, self._obfuscators).data)
            at += part.n_classes
        return tuple(parts)

    def read(self, layout: PairLayout, answer: Sequence[Ciphertexts], n_bins: int) -> PairSums:
        """See :meth:`KeyOwner.read`."""
        layouts = _part_layouts(layout, self.private_key.public_key.bits)
        _check_parts(answer, len(layouts), "an answer")
        read = [
            read_answer(self._holder, self._vector(part), n_bins, part_layout)
            for part, part_layout in zip(answer, layouts, strict=True)
        ]
        grad, hess = (np.concatenate(sums, axis=1) for sums in zip(*read, strict=True))
        return grad, hess

    def encrypt_integers(self, values: Sequence[int]) -> Ciphertexts:
        """See :meth:`KeyOwner.encrypt_integers`."""
        return self._holder.encrypt([int(v) for v in values], self._obfuscators).data

    def decrypt_integers(self, values: Ciphertexts) -> list[int]:
        """See :meth:`KeyOwner.decrypt_integers`."""
        return self._holder.decrypt(self._vector(values))

    def _vector(self, data: Ciphertexts) -> CiphertextVector:
        return CiphertextVector(self._holder.public.key_id, data)


class PaillierPeer:
    """See :class:`PeerKey`."""

    def __init__(self, public_key: paillier.PublicKey, engine: Engine | None) -> None:
        self.key_id = public_key.key_id
        self._public = paillier.PublicOperations(public_key, engine)
        self._obfuscators = UniformObfuscators(public_key, engine)

    def prepare(self, n: int) -> None:
        """See :meth:`PeerKey.prepare`."""
        self._obfuscators.prepare(n)

    def hold(
        self, layout: PairLayout, rows: Sequence[Ciphertexts], bins: Bins, n_bins: Sequence[int]
    ) -> HeldRows:
        """See :meth:`PeerKey.hold`."""
        layouts = _part_layouts(layout, self._public.public_key.bits)
        _check_parts(rows, len(layouts), f"a row of {layout.n_classes} classes")
        histograms = [
            CiphertextHistograms(self._public, CiphertextVector(self.key_id, part), bins, n_bins)
            for part in rows
        ]
        return _PaillierRows(layouts, histograms, self._public, self._obfuscators)

    def sum_selected(
        self, values: Ciphertexts, index: NDArray[np.uint32], start: NDArray[np.int64]
    ) -> Ciphertexts:
        """See :meth:`PeerKey.sum_selected`."""
        _check_selection(len(values), index, start)
        loaded = self._public.load(CiphertextVector(self.key_id, values))
        sums = self._public.modulus.segment_products(loaded, index, start)
        return self._public.rerandomise(sums, self._obfuscators).data


@dataclass(frozen=True, slots=True)
class _PaillierRows:
    layouts: list[PairLayout]
    histograms: list[CiphertextHistograms]
    public: paillier.PublicOperations
    obfuscators: UniformObfuscators

    def answer(
        self,
        nodes: Sequence[NDArray[np.integer]],
        *,
        cumulative: bool,
        missing: Sequence[bool] | None,
        order: NDArray[np.integer] | None,
    ) -> tuple[Ciphertexts, ...]:
        """See :meth:`HeldRows.answer`."""
        answers = []
        for layout, histograms in zip(self.layouts, self.histograms, strict=True):
            sums = [histograms.sums(rows) for rows in nodes]
            if cumulative:
                sums = [cumulate(self.public, node, missing) for node in sums]
            answers.append(pack_answer(self.public, sums, layout, self.obfuscators, order).data)
        return tuple(answers)


def _part_layouts(layout: PairLayout, key_bits: int) -> list[PairLayout]:
    return [replace(layout, n_classes=n) for n in classes_per_ciphertext(layout, key_bits)]


# --- EC-ElGamal -----------------------------------------------------------------------------


def value_range(layout: PairLayout) -> elgamal.ValueRange:
    """Return the range proof of a layout.

    Raises
    ------
    RangeRefused
        Precision bits + log2 rows are above 40.
    """
    largest = max(layout.largest_grad, layout.largest_hess)
    return elgamal.ValueRange((largest - 1).bit_length(), layout.n_rows)


def curve_kernel_of(engine: Engine | None) -> CurveKernel:
    """Return the curve kernel that goes with an engine."""
    if engine is None:
        return curve_kernel()
    names: dict[str, KernelName] = {"ifma": "ifma", "portable": "portable", "gmpy2": "python"}
    return curve_kernel(names[engine.kernel], engine.workers)


class ElGamalOwner:
    """See :class:`KeyOwner`; a part holds one class."""

    scheme: Scheme = "elgamal"

    def __init__(self, private_key: elgamal.PrivateKey, engine: Engine | None) -> None:
        self.private_key = private_key
        self._kernel = curve_kernel_of(engine)
        self._public_key = private_key.public_key()

    def public_bytes(self) -> bytes:
        """See :meth:`KeyOwner.public_bytes`."""
        return elgamal.PUBLIC_MAGIC + self._public_key.to_bytes()

    def prepare(self, n: int) -> None:
        """See :meth:`KeyOwner.prepare`; nothing is worth making ahead."""

    def encrypt_gradients(
        self, layout: PairLayout, grad: NDArray[np.float64], hess: NDArray[np.float64]
    ) -> tuple[Ciphertexts, ...]:
        """See :meth:`KeyOwner.encrypt_gradients`."""
        public = elgamal.PublicOperations(self._public_key, value_range(layout), self._kernel)
        stored = layout.quantise(grad, hess)
        columns = [np.ascontiguousarray(values.T) for values in stored]
        return tuple(_rows(public.encrypt(g, h)) for g, h in zip(*columns, strict=True))

    def read(self, layout: PairLayout, answer: Sequence[Ciphertexts], n_bins: int) -> PairSums:
        """See :meth:`KeyOwner.read`."""
        _check_parts(answer, layout.n_classes, "an answer")
        for part in answer:
            if len(part) != n_bins:
                raise HistogramRefused(
                    f"expected {n_bins} ciphertexts for {n_bins} bins, got {len(part)}"
                )
        holder = elgamal.KeyHolder(self.private_key, value_range(layout), self._kernel)
        values = holder.decrypt(b"".join(_bytes(part) for part in answer))
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
        """See :meth:`KeyOwner.encrypt_integers`; they and their sums stay within ±2^40."""
        largest = max((abs(int(v)) for v in values), default=0)
        bits = (max(largest, 1) - 1).bit_length()
        limits = elgamal.ValueRange(bits, max(1, len(values)))
        public = elgamal.PublicOperations(self._public_key, limits, self._kernel)
        numbers = np.array([int(v) for v in values], np.int64)
        return _rows(public.encrypt(numbers, np.zeros_like(numbers)))

    def decrypt_integers(self, values: Ciphertexts) -> list[int]:
        """See :meth:`KeyOwner.decrypt_integers`."""
        limit = elgamal.ValueRange(MOST_VALUE_BITS, 1)
        holder = elgamal.KeyHolder(self.private_key, limit, self._kernel)
        return [int(v) for v in holder.decrypt(_bytes(values))[:, 0]]


class ElGamalPeer:
    """See :class:`PeerKey`."""

    def __init__(self, public_key: elgamal.PublicKey, engine: Engine | None) -> None:
        self.key_id = public_key.to_bytes()
        self._public_key = public_key
        self._kernel = curve_kernel_of(engine)

    def prepare(self, n: int) -> None:
        """See :meth:`PeerKey.prepare`; nothing is worth making ahead."""

    def hold(
        self, layout: PairLayout, rows: Sequence[Ciphertexts], bins: Bins, n_bins: Sequence[int]
    ) -> HeldRows:
        """See :meth:`PeerKey.hold`."""
        _check_parts(rows, layout.n_classes, f"a row of {layout.n_classes} classes")
        public = elgamal.PublicOperations(self._public_key, value_range(layout), self._kernel)
        for part in rows:
            if len(part) != len(bins):
                raise HistogramRefused(f"expected {len(bins)} row ciphertexts, got {len(part)}")
        check_bins(bins, n_bins)
        loaded = [public.load(_bytes(part)) for part in rows]
        return _ElGamalRows(public, loaded, bins, tuple(int(n) for n in n_bins))

    def sum_selected(
        self, values: Ciphertexts, index: NDArray[np.uint32], start: NDArray[np.int64]
    ) -> Ciphertexts:
        """See :meth:`PeerKey.sum_selected`."""
        _check_selection(len(values), index, start)
        limits = elgamal.ValueRange(0, max(1, len(values)))
        public = elgamal.PublicOperations(self._public_key, limits, self._kernel)
        return _rows(public.rerandomise(public.load(_bytes(values)).sum_segments(index, start)))


@dataclass(frozen=True, slots=True)
class _ElGamalRows:
    public: elgamal.PublicOperations
    parts: list[Rows]
    bins: Bins
    n_bins: tuple[int, ...]

    def answer(
        self,
        nodes: Sequence[NDArray[np.integer]],
        *,
        cumulative: bool,
        missing: Sequence[bool] | None,
        order: NDArray[np.integer] | None,
    ) -> tuple[Ciphertexts, ...]:
        """See :meth:`HeldRows.answer`."""
        widest = max(self.n_bins, default=0)
        kept = np.flatnonzero(np.arange(widest) < np.asarray(self.n_bins)[:, None])
        plans = []
        for rows in nodes:
            members = check_rows(rows, len(self.bins)).astype(np.int64)
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


def _nothing(rows: Rows) -> Sums:
    return rows.sum_segments(np.empty(0, np.uint32), np.zeros(1, np.int64))


def _chosen(sums: Sums, order: NDArray[np.integer]) -> Sums:
    return sums.combine(order.astype(np.int64), np.arange(len(order) + 1, dtype=np.int64))


def _running(
    sums: Sums, n_bins: Sequence[int], n_nodes: int, missing: Sequence[bool] | None
) -> Sums:
    """Return :func:`~crypto.ciphertext_histogram.cumulate` of every node, in doubling steps."""
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


def _bytes(rows: Ciphertexts) -> bytes:
    if rows.ndim != 2 or rows.shape[1] != ROW_BYTES or rows.dtype != np.uint8:
        raise CiphertextRejected(f"expected {ROW_BYTES} bytes a ciphertext, got {rows.shape}")
    return rows.tobytes()


# --- both -----------------------------------------------------------------------------------


def new_owner(
    scheme: Scheme, key_bits: int, engine: Engine | None, *, insecure_test_key: bool
) -> KeyOwner:
    """Make a private key."""
    if scheme == "elgamal":
        return ElGamalOwner(elgamal.generate_private_key(), engine)
    key = paillier.generate_private_key(key_bits, insecure_test_key=insecure_test_key)
    return PaillierOwner(key, engine)


def owner_of(
    private_key: paillier.PrivateKey | elgamal.PrivateKey, engine: Engine | None
) -> KeyOwner:
    """Return the owner of a key that was kept."""
    if isinstance(private_key, elgamal.PrivateKey):
        return ElGamalOwner(private_key, engine)
    return PaillierOwner(private_key, engine)


def scheme_of(public_key: bytes) -> Scheme:
    """Return the scheme of a public key as it travels."""
    return "elgamal" if public_key.startswith(elgamal.PUBLIC_MAGIC) else "paillier"


def peer_of(public_key: bytes, engine: Engine | None, *, insecure_test_key: bool) -> PeerKey:
    """Read a public key as it travels.

    Raises
    ------
    KeyRejected
        Malformed, or smaller than is safe.
    """
    if scheme_of(public_key) == "elgamal":
        key = elgamal.PublicKey.from_bytes(public_key[len(elgamal.PUBLIC_MAGIC) :])
        return ElGamalPeer(key, engine)
    read = paillier.PublicKey.from_bytes(public_key, insecure_test_key=insecure_test_key)
    return PaillierPeer(read, engine)


def ciphertext_bytes(public_key: bytes, *, insecure_test_key: bool = False) -> int:
    """Return the width of a ciphertext under a public key as it travels."""
    if scheme_of(public_key) == "elgamal":
        return ROW_BYTES
    key = paillier.PublicKey.from_bytes(public_key, insecure_test_key=insecure_test_key)
    return key.ciphertext_bytes


def _check_parts(parts: Sequence[Ciphertexts], expected: int, what: str) -> None:
    if len(parts) != expected:
        raise HistogramRefused(f"expected {what} in {expected} parts, got {len(parts)}")


def _check_selection(n: int, index: NDArray[np.uint32], start: NDArray[np.int64]) -> None:
    if len(start) < 1 or (np.diff(start) < 0).any() or start[0] < 0 or start[-1] > len(index):
        raise HistogramRefused("expected starts that rise within the index")
    if len(index) and int(index.max()) >= n:
        raise HistogramRefused(f"expected an index below {n}")
