"""The part of the vault that encrypts: a vertical job's private key, and the sums under it.

The active party's vault makes the key, encrypts gradients and reads answers. A passive party's
vault holds a tree's row ciphertexts beside the party's bins, and answers with packed, re-randomised
sums. Ciphertexts come in as bytes, end to end, and go out as uint8 arrays, one ciphertext a row.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hedgerow.crypto.cipher_elgamal import curve_kernel_of
from hedgerow.crypto.cipher_roles import (
    Bins,
    Buffer,
    Ciphertexts,
    HeldRows,
    KeyOwner,
    PeerKey,
    Scheme,
)
from hedgerow.crypto.cipher_schemes import new_owner, owner_of, peer_of
from hedgerow.crypto.errors import KeyRejected, NothingHeld
from hedgerow.crypto.key_files import KeyFolder
from hedgerow.crypto.modular import Engine
from hedgerow.crypto.packing import PairLayout
from hedgerow.crypto.psi import LocalBlinder

MOST_IDLE_PEERS = 4
"""Keys of others that are kept without rows of theirs; each may have a table of 36 MB or more."""


class CipherVault(Protocol):
    """What the halves of a vertical protocol ask of their silo's vault."""

    def create_cipher_key(
        self, session: str, key_bits: int = 2048, scheme: Scheme = "paillier"
    ) -> bytes:
        """Return the session's public key, made on the first call and kept.

        The key's scheme decides what all other calls of the session do; their shapes are the same.
        See :mod:`hedgerow.crypto.cipher_schemes`.

        Parameters
        ----------
        session
            Names the job.
        key_bits
            Of a Paillier modulus; EC-ElGamal has one size.
        scheme
            ``paillier``, or ``elgamal`` for quantised gradients.

        Raises
        ------
        KeyRejected
            A size other than 2048, 3072 or 4096 bits, or the session's key is of another scheme.
        """
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
            Part k holds classes as :func:`~hedgerow.crypto.packing.classes_per_ciphertext` tells.

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
        rows: Sequence[Buffer],
        bins: NDArray[np.uint8] | NDArray[np.uint16],
        n_bins: Sequence[int],
    ) -> None:
        """Take a tree's row ciphertexts (all parts) and this party's bins of the same rows.

        They replace those of the tree before, which are let go first, even where these are refused.

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
            :func:`~hedgerow.crypto.ciphertext_histogram.cumulate`.
        order
            Numbers of the sums to send and their order, counted over nodes, features and sums; all
            when left out.
        """
        ...

    def decrypt_histograms(
        self, session: str, layout: PairLayout, answer: Sequence[Buffer], n_bins: int
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
        values: Buffer,
        index: NDArray[np.uint32],
        start: NDArray[np.int64],
    ) -> Ciphertexts:
        """Return re-randomised sums of ``values[index[k]]`` over start[s] ≤ k < start[s + 1]."""
        ...

    def decrypt_integers(self, session: str, values: Buffer) -> list[int]:
        """Return the signed integers of ciphertexts under the session's own key."""
        ...

    def blind_identifiers(self, session: str, ids: Sequence[bytes]) -> bytes:
        """Hash ids to the curve and raise them to the session's secret, made on the first call.

        Returns
        -------
        bytes
            32 bytes an id, in order. :class:`hedgerow.crypto.psi.PsiParty` uses it through
            :class:`hedgerow.crypto.psi.VaultBlinder`.
        """
        ...

    def blind_points(self, session: str, points: bytes) -> bytes:
        """Raise points, 32 bytes each, to the session's secret.

        Raises
        ------
        InvalidPoint
            A point of small order, or bytes that are no whole points.
        """
        ...

    def forget_session(self, session: str) -> None:
        """Erase all secrets of a session."""
        ...


@dataclass(slots=True)
class _Tree:
    rows: HeldRows
    peer: PeerKey


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
        self._owned: dict[str, KeyOwner] = {}
        self._peers: dict[bytes, PeerKey] = {}
        self._trees: dict[str, _Tree] = {}
        self._blinders: dict[str, LocalBlinder] = {}
        self._lock = threading.RLock()

    def create_cipher_key(
        self, session: str, key_bits: int = 2048, scheme: Scheme = "paillier"
    ) -> bytes:
        """See :meth:`CipherVault.create_cipher_key`."""
        with self._lock:
            owner = self._owned.get(session) or self._restored(session)
            if owner is None:
                insecure = self._insecure_test_keys
                owner = new_owner(scheme, key_bits, self._engine, insecure_test_key=insecure)
                if self._key_folder is not None:
                    self._key_folder.save(session, owner.private_key)
                self._owned[session] = owner
            if owner.scheme != scheme:
                raise KeyRejected(f"this session has a key of {owner.scheme}, not of {scheme}")
            return owner.public_bytes()

    def encrypt_gradients(
        self,
        session: str,
        layout: PairLayout,
        grad: NDArray[np.float64],
        hess: NDArray[np.float64],
    ) -> tuple[Ciphertexts, ...]:
        """See :meth:`CipherVault.encrypt_gradients`."""
        return self._owner(session).encrypt_gradients(layout, grad, hess)

    def hold_rows(
        self,
        session: str,
        public_key: bytes,
        layout: PairLayout,
        rows: Sequence[Buffer],
        bins: Bins,
        n_bins: Sequence[int],
    ) -> None:
        """See :meth:`CipherVault.hold_rows`."""
        peer = self._peer(public_key)
        with self._lock:  # never two trees' rows at a time
            self._trees.pop(session, None)
        held = peer.hold(layout, rows, bins, n_bins)
        with self._lock:
            self._trees[session] = _Tree(held, peer)

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
        return tree.rows.answer(nodes, cumulative=cumulative, missing=missing, order=order)

    def decrypt_histograms(
        self, session: str, layout: PairLayout, answer: Sequence[Buffer], n_bins: int
    ) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        """See :meth:`CipherVault.decrypt_histograms`."""
        return self._owner(session).read(layout, answer, n_bins)

    def encrypt_integers(self, session: str, values: Sequence[int]) -> Ciphertexts:
        """See :meth:`CipherVault.encrypt_integers`."""
        return self._owner(session).encrypt_integers(values)

    def sum_selected(
        self,
        public_key: bytes,
        values: Buffer,
        index: NDArray[np.uint32],
        start: NDArray[np.int64],
    ) -> Ciphertexts:
        """See :meth:`CipherVault.sum_selected`."""
        return self._peer(public_key).sum_selected(values, index, start)

    def decrypt_integers(self, session: str, values: Buffer) -> list[int]:
        """See :meth:`CipherVault.decrypt_integers`."""
        return self._owner(session).decrypt_integers(values)

    def blind_identifiers(self, session: str, ids: Sequence[bytes]) -> bytes:
        """See :meth:`CipherVault.blind_identifiers`."""
        return self._blinder(session).blind_identifiers(ids)

    def blind_points(self, session: str, points: bytes) -> bytes:
        """See :meth:`CipherVault.blind_points`."""
        return self._blinder(session).blind_points(points)

    def forget_session(self, session: str) -> None:
        """See :meth:`CipherVault.forget_session`; also erases the sealed key."""
        with self._lock:
            self._owned.pop(session, None)
            tree = self._trees.pop(session, None)
            still_used = {t.peer.key_id for t in self._trees.values()}
            if tree is not None and tree.peer.key_id not in still_used:
                self._peers.pop(tree.peer.key_id, None)
            blinder = self._blinders.pop(session, None)
            if blinder is not None:
                blinder.close()
            if self._key_folder is not None:
                self._key_folder.erase(session)

    def _restored(self, session: str) -> KeyOwner | None:
        if self._key_folder is None:
            return None
        key = self._key_folder.load(session, insecure_test_key=self._insecure_test_keys)
        if key is None:
            return None
        self._owned[session] = owner_of(key, self._engine)
        return self._owned[session]

    def _owner(self, session: str) -> KeyOwner:
        with self._lock:
            owner = self._owned.get(session) or self._restored(session)
        if owner is None:
            raise NothingHeld(f"no private key of session {session} is held here")
        return owner

    def _peer(self, public_key: bytes) -> PeerKey:
        peer = peer_of(public_key, self._engine, insecure_test_key=self._insecure_test_keys)
        with self._lock:
            kept = self._peers.pop(peer.key_id, peer)
            self._peers[peer.key_id] = kept
            used = {tree.peer.key_id for tree in self._trees.values()}
            idle = [key_id for key_id in self._peers if key_id not in used]
            for key_id in idle[:-MOST_IDLE_PEERS]:
                del self._peers[key_id]
            return kept

    def _blinder(self, session: str) -> LocalBlinder:
        with self._lock:
            if session not in self._blinders:
                self._blinders[session] = LocalBlinder(
                    session.encode(), curve_kernel_of(self._engine)
                )
            return self._blinders[session]
