"""Paillier in the roles of :mod:`hedgerow.crypto.ciphers.roles`.

A ciphertext of a row holds the pairs of as many classes as fit; an answer packs 10 to 22 bins into
a ciphertext.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hedgerow.crypto.arithmetic.engine import Engine
from hedgerow.crypto.ciphers.ciphertext_histogram import (
    CiphertextHistograms,
    cumulate,
    pack_answer,
    read_answer,
)
from hedgerow.crypto.ciphers.obfuscators import KeyHolderObfuscators, UniformObfuscators
from hedgerow.crypto.ciphers.packing import PairLayout, classes_per_ciphertext
from hedgerow.crypto.ciphers.paillier import KeyHolder, PublicOperations
from hedgerow.crypto.ciphers.paillier_keys import PrivateKey, PublicKey
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
from hedgerow.crypto.errors import HistogramRefused


class PaillierOwner:
    """See :class:`KeyOwner`."""

    scheme: Scheme = "paillier"

    def __init__(self, private_key: PrivateKey, engine: Engine | None) -> None:
        self.private_key = private_key
        self._certified = private_key.certified_bytes()
        self._holder = KeyHolder(private_key, engine)
        self._obfuscators = KeyHolderObfuscators(private_key, engine)

    def public_bytes(self) -> bytes:
        return self._certified

    def encrypt_gradients(
        self, layout: PairLayout, grad: NDArray[np.float64], hess: NDArray[np.float64]
    ) -> tuple[Ciphertexts, ...]:
        q_grad, q_hess = layout.quantise(grad, hess)
        parts = []
        at = 0
        for part in _part_layouts(layout, self.private_key.public_key.bits):
            columns = slice(at, at + part.n_classes)
            plaintexts = part.pack(q_grad[:, columns], q_hess[:, columns])
            parts.append(self._holder.encrypt(plaintexts, self._obfuscators))
            at += part.n_classes
        return tuple(parts)

    def read(self, layout: PairLayout, answer: Sequence[Buffer], n_bins: int) -> PairSums:
        layouts = _part_layouts(layout, self.private_key.public_key.bits)
        check_parts(answer, len(layouts), "an answer")
        read = [
            read_answer(self._holder, _rows(self._holder.public, part), n_bins, part_layout)
            for part, part_layout in zip(answer, layouts, strict=True)
        ]
        grad, hess = (np.concatenate(sums, axis=1) for sums in zip(*read, strict=True))
        return grad, hess

    def encrypt_integers(self, values: Sequence[int]) -> Ciphertexts:
        return self._holder.encrypt([int(v) for v in values], self._obfuscators)

    def decrypt_integers(self, values: Buffer) -> list[int]:
        return self._holder.decrypt(_rows(self._holder.public, values))


class PaillierPeer:
    """See :class:`PeerKey`."""

    def __init__(self, public_key: PublicKey, engine: Engine | None) -> None:
        self.key_id = public_key.key_id
        self._public = PublicOperations(public_key, engine)
        self._obfuscators = UniformObfuscators(public_key, engine)

    def hold(
        self, layout: PairLayout, rows: Sequence[Buffer], bins: Bins, n_bins: Sequence[int]
    ) -> HeldRows:
        layouts = _part_layouts(layout, self._public.public_key.bits)
        check_parts(rows, len(layouts), f"a row of {layout.n_classes} classes")
        if len(bins) > layout.n_rows:
            raise HistogramRefused(f"expected at most {layout.n_rows} rows, received {len(bins)}")
        histograms = [
            CiphertextHistograms(self._public, _rows(self._public, part), bins, n_bins)
            for part in rows
        ]
        return _PaillierRows(layouts, histograms, self._public, self._obfuscators)

    def sum_selected(
        self, values: Buffer, index: NDArray[np.uint32], start: NDArray[np.int64]
    ) -> Ciphertexts:
        vector = _rows(self._public, values)
        check_selection(len(vector), index, start)
        loaded = self._public.load(vector)
        sums = self._public.modulus.segment_products(loaded, index, start)
        return self._public.rerandomise(sums, self._obfuscators)


@dataclass(frozen=True, slots=True)
class _PaillierRows:
    layouts: list[PairLayout]
    histograms: list[CiphertextHistograms]
    public: PublicOperations
    obfuscators: UniformObfuscators

    def answer(
        self,
        nodes: Sequence[NDArray[np.integer]],
        *,
        cumulative: bool,
        missing: Sequence[bool] | None,
        order: NDArray[np.integer] | None,
        n_added: int = 1,
    ) -> tuple[Ciphertexts, ...]:
        answers = []
        for layout, histograms in zip(self.layouts, self.histograms, strict=True):
            unsent = missing if cumulative else None
            sums = [histograms.sums(rows, missing=unsent) for rows in nodes]
            if cumulative and sums:
                sums = [cumulate(self.public, sums, missing)]
            answers.append(pack_answer(self.public, sums, layout, self.obfuscators, order, n_added))
        return tuple(answers)


def _part_layouts(layout: PairLayout, key_bits: int) -> list[PairLayout]:
    return [replace(layout, n_classes=n) for n in classes_per_ciphertext(layout, key_bits)]


def _rows(public: PublicOperations, data: Buffer) -> Ciphertexts:
    return ciphertext_rows(data, public.public_key.ciphertext_bytes)
