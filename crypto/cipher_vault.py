"""The part of the vault that encrypts: a vertical job's private key, and the sums under it.

The active party's vault makes the key, encrypts gradients and reads answers. A passive party's
vault holds a tree's row ciphertexts beside the party's bins, and answers with packed, re-randomised
sums. Ciphertexts cross this boundary as uint8 arrays, one little-endian ciphertext a row.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from crypto.ciphertext_histogram import (
    CiphertextHistograms,
    HistogramRefused,
    cumulate,
    pack_answer,
    read_answer,
)
from crypto.key_files import KeyFolder
from crypto.modular import Engine
from crypto.obfuscators import KeyHolderObfuscators, UniformObfuscators
from crypto.packing import PairLayout, classes_per_ciphertext
from crypto.paillier import (
    CiphertextVector,
    KeyHolder,
    PublicKey,
    PublicOperations,
    generate_private_key,
)

Ciphertexts = NDArray[np.uint8]
"""Of shape (n, ciphertext_bytes)."""


class NothingHeld(LookupError):
    """The vault has no key, or no rows, of this session; after a restart they are sent again."""


class CipherVault(Protocol):
    """What the halves of a vertical protocol ask of their silo's vault."""

    def create_cipher_key(self, session: str, key_bits: int = 2048) -> bytes:
        """Return the session's public key, made on the first call and kept.

        Raises
        ------
        KeyRejected
            A size other than 2048, 3072 or 4096 bits.
        """
        ...

    def prepare_encryption(self, session: str, n: int) -> None:
        """Make obfuscators for ``n`` ciphertexts ahead, in either role, while others work."""
        ...

    def encrypt_gradients(
        self,
        session: str,
        layout: PairLayout,
        grad: NDArray[np.float64],
        hess: NDArray[np.float64],
    ) -> tuple[Ciphertexts, ...]:
        """Return one ciphertext a row, or several where its classes need them.

        Parameters
        ----------
        session
            Of a key made here.
        layout
            For the pairs of all classes.
        grad, hess
            Of shape (n_rows, n_classes), float64.

        Returns
        -------
        tuple of Ciphertexts
            Part k holds classes as :func:`~crypto.packing.classes_per_ciphertext` tells.

        Raises
        ------
        PackingRefused
            A value is not finite or not within the layout's bounds.
        NothingHeld
            No key.
        """
        ...

    def hold_rows(
        self,
        session: str,
        public_key: bytes,
        layout: PairLayout,
        rows: Sequence[Ciphertexts],
        bins: NDArray[np.uint8] | NDArray[np.uint16],
        n_bins: Sequence[int],
    ) -> None:
        """Take a tree's row ciphertexts (all parts) and this party's bins of the same rows.

        They replace those of the tree before.

        Raises
        ------
        CiphertextRejected, HistogramRefused, KeyRejected
            What came does not fit together.
        """
        ...

    def sum_bins(
        self,
        session: str,
        nodes: Sequence[NDArray[np.integer]],
        *,
        cumulative: bool = False,
        missing: Sequence[bool] | None = None,
        order: NDArray[np.integer] | None = None,
    ) -> tuple[Ciphertexts, ...]:
        """Return the packed, re-randomised bins of nodes, one array a part.

        Parameters
        ----------
        session
            With rows held.
        nodes
            Strictly ascending row numbers of each node.
        cumulative
            Running sums over each feature's bins.
        missing
            Features whose last bin holds missing values, for running sums in both directions; see
            :func:`~crypto.ciphertext_histogram.cumulate`.
        order
            Numbers of the sums to send and their order, counted over nodes, features and sums; all
            when left out.
        """
        ...

    def decrypt_histograms(
        self, session: str, layout: PairLayout, answer: Sequence[Ciphertexts], n_bins: int
    ) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        """Return grad and hess sums of :meth:`sum_bins`, exact, of shape (n_bins, n_classes).

        Units of 2^-s; ``layout.to_float`` gives the gradients' own. int64, or objects of Python's
        int where sums are wider.

        Raises
        ------
        HistogramRefused, CiphertextRejected, PlaintextOutOfRange
            The answer is not one of ``n_bins`` bins under this key and layout.
        NothingHeld
            No key.
        """
        ...

    def encrypt_integers(self, session: str, values: Sequence[int]) -> Ciphertexts:
        """Return ciphertexts of signed integers under the session's own key."""
        ...

    def sum_selected(
        self,
        public_key: bytes,
        values: Ciphertexts,
        index: NDArray[np.uint32],
        start: NDArray[np.int64],
    ) -> Ciphertexts:
        """Return re-randomised sums of ``values[index[k]]`` over start[s] ≤ k < start[s + 1]."""
        ...

    def decrypt_integers(self, session: str, values: Ciphertexts) -> list[int]:
        """Return the signed integers of ciphertexts under the session's own key."""
        ...

    def forget_session(self, session: str) -> None:
        """Erase all secrets of a session."""
        ...


@dataclass(slots=True)
class _Tree:
    layouts: list[PairLayout]
    histograms: list[CiphertextHistograms]
    public: PublicOperations


@dataclass(slots=True)
class _Owned:
    holder: KeyHolder
    obfuscators: KeyHolderObfuscators


@dataclass(slots=True)
class _Foreign:
    public: PublicOperations
    obfuscators: UniformObfuscators


class LocalCipherVault:
    """A cipher vault within the process.

    Parameters
    ----------
    engine
        Kernel and cores; the machine's best on all of its cores when left out.
    key_folder
        Keeps private keys, sealed, across restarts; without it they live in memory only.
    insecure_test_keys
        Accept keys of any size. For tests of this package only.
    """

    def __init__(
        self,
        engine: Engine | None = None,
        key_folder: KeyFolder | None = None,
        insecure_test_keys: bool = False,
    ) -> None:
        self._engine = engine
        self._key_folder = key_folder
        self._insecure_test_keys = insecure_test_keys
        self._owned: dict[str, _Owned] = {}
        self._foreign: dict[bytes, _Foreign] = {}
        self._trees: dict[str, _Tree] = {}
        self._lock = threading.RLock()

    def create_cipher_key(self, session: str, key_bits: int = 2048) -> bytes:
        """See :meth:`CipherVault.create_cipher_key`."""
        with self._lock:
            if session not in self._owned and not self._restored(session):
                key = generate_private_key(key_bits, insecure_test_key=self._insecure_test_keys)
                if self._key_folder is not None:
                    self._key_folder.save(session, key)
                self._own(session, KeyHolder(key, self._engine))
            return self._owned[session].holder.public.public_key.to_bytes()

    def prepare_encryption(self, session: str, n: int) -> None:
        """See :meth:`CipherVault.prepare_encryption`."""
        with self._lock:
            tree = self._trees.get(session)
            answering = None if tree is None else self._foreign[tree.public.key_id].obfuscators
        if answering is not None:
            answering.prepare(n)
        else:
            self._owner(session).obfuscators.prepare(n)

    def encrypt_gradients(
        self,
        session: str,
        layout: PairLayout,
        grad: NDArray[np.float64],
        hess: NDArray[np.float64],
    ) -> tuple[Ciphertexts, ...]:
        """See :meth:`CipherVault.encrypt_gradients`."""
        owned = self._owner(session)
        q_grad, q_hess = layout.quantise(grad, hess)
        parts = []
        at = 0
        for part in _part_layouts(layout, owned.holder.public.public_key.bits):
            columns = slice(at, at + part.n_classes)
            plaintexts = part.pack(q_grad[:, columns], q_hess[:, columns])
            parts.append(owned.holder.encrypt(plaintexts, owned.obfuscators).data)
            at += part.n_classes
        return tuple(parts)

    def hold_rows(
        self,
        session: str,
        public_key: bytes,
        layout: PairLayout,
        rows: Sequence[Ciphertexts],
        bins: NDArray[np.uint8] | NDArray[np.uint16],
        n_bins: Sequence[int],
    ) -> None:
        """See :meth:`CipherVault.hold_rows`."""
        public = self._foreign_key(public_key).public
        layouts = _part_layouts(layout, public.public_key.bits)
        if len(rows) != len(layouts):
            raise HistogramRefused(
                f"expected {len(layouts)} ciphertexts a row for {layout.n_classes} classes, "
                f"got {len(rows)}"
            )
        histograms = [
            CiphertextHistograms(public, CiphertextVector(public.key_id, part), bins, n_bins)
            for part in rows
        ]
        with self._lock:
            self._trees[session] = _Tree(layouts, histograms, public)

    def sum_bins(
        self,
        session: str,
        nodes: Sequence[NDArray[np.integer]],
        *,
        cumulative: bool = False,
        missing: Sequence[bool] | None = None,
        order: NDArray[np.integer] | None = None,
    ) -> tuple[Ciphertexts, ...]:
        """See :meth:`CipherVault.sum_bins`."""
        with self._lock:
            tree = self._trees.get(session)
            if tree is None:
                raise NothingHeld(f"no row ciphertexts of session {session} are held here")
            obfuscators = self._foreign[tree.public.key_id].obfuscators
        answers = []
        for layout, histograms in zip(tree.layouts, tree.histograms, strict=True):
            sums = [histograms.sums(rows) for rows in nodes]
            if cumulative:
                sums = [cumulate(tree.public, node, missing) for node in sums]
            answers.append(pack_answer(tree.public, sums, layout, obfuscators, order).data)
        return tuple(answers)

    def decrypt_histograms(
        self, session: str, layout: PairLayout, answer: Sequence[Ciphertexts], n_bins: int
    ) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        """See :meth:`CipherVault.decrypt_histograms`."""
        holder = self._owner(session).holder
        layouts = _part_layouts(layout, holder.public.public_key.bits)
        if len(answer) != len(layouts):
            raise HistogramRefused(f"expected an answer of {len(layouts)} parts, got {len(answer)}")
        read = [
            read_answer(holder, CiphertextVector(holder.public.key_id, part), n_bins, part_layout)
            for part, part_layout in zip(answer, layouts, strict=True)
        ]
        grad, hess = (np.concatenate(sums, axis=1) for sums in zip(*read, strict=True))
        return grad, hess

    def encrypt_integers(self, session: str, values: Sequence[int]) -> Ciphertexts:
        """See :meth:`CipherVault.encrypt_integers`."""
        owned = self._owner(session)
        return owned.holder.encrypt([int(v) for v in values], owned.obfuscators).data

    def sum_selected(
        self,
        public_key: bytes,
        values: Ciphertexts,
        index: NDArray[np.uint32],
        start: NDArray[np.int64],
    ) -> Ciphertexts:
        """See :meth:`CipherVault.sum_selected`."""
        foreign = self._foreign_key(public_key)
        if len(start) < 1 or (np.diff(start) < 0).any() or start[0] < 0 or start[-1] > len(index):
            raise HistogramRefused("expected starts that rise within the index")
        if len(index) and int(index.max()) >= len(values):
            raise HistogramRefused(f"expected an index below {len(values)}")
        public = foreign.public
        loaded = public.load(CiphertextVector(public.key_id, values))
        sums = public.modulus.segment_products(loaded, index, start)
        return public.rerandomise(sums, foreign.obfuscators).data

    def decrypt_integers(self, session: str, values: Ciphertexts) -> list[int]:
        """See :meth:`CipherVault.decrypt_integers`."""
        holder = self._owner(session).holder
        return holder.decrypt(CiphertextVector(holder.public.key_id, values))

    def forget_session(self, session: str) -> None:
        """See :meth:`CipherVault.forget_session`; also erases the sealed key."""
        with self._lock:
            self._owned.pop(session, None)
            tree = self._trees.pop(session, None)
            still_used = {t.public.key_id for t in self._trees.values()}
            if tree is not None and tree.public.key_id not in still_used:
                self._foreign.pop(tree.public.key_id, None)
            if self._key_folder is not None:
                self._key_folder.erase(session)

    def _own(self, session: str, holder: KeyHolder) -> None:
        obfuscators = KeyHolderObfuscators(holder.private_key, self._engine)
        self._owned[session] = _Owned(holder, obfuscators)

    def _restored(self, session: str) -> bool:
        if self._key_folder is None:
            return False
        key = self._key_folder.load(session, insecure_test_key=self._insecure_test_keys)
        if key is None:
            return False
        self._own(session, KeyHolder(key, self._engine))
        return True

    def _owner(self, session: str) -> _Owned:
        with self._lock:
            if session not in self._owned and not self._restored(session):
                raise NothingHeld(f"no private key of session {session} is held here")
            return self._owned[session]

    def _foreign_key(self, data: bytes) -> _Foreign:
        key = PublicKey.from_bytes(data, insecure_test_key=self._insecure_test_keys)
        with self._lock:
            if key.key_id not in self._foreign:
                self._foreign[key.key_id] = _Foreign(
                    PublicOperations(key, self._engine), UniformObfuscators(key, self._engine)
                )
            return self._foreign[key.key_id]


def _part_layouts(layout: PairLayout, key_bits: int) -> list[PairLayout]:
    return [replace(layout, n_classes=n) for n in classes_per_ciphertext(layout, key_bits)]
