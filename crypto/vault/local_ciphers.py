"""The part of a vault in this process that encrypts: a vertical job's key, and sums under it.

The active party's vault makes the key, encrypts gradients and reads answers. A passive party's
vault holds a tree's row ciphertexts beside the party's bins, and answers with packed, re-randomised
sums.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow.crypto.arithmetic.engine import Engine
from hedgerow.crypto.ciphers.bin_groups import SummedBins, check_groups
from hedgerow.crypto.ciphers.key_files import KeyFolder
from hedgerow.crypto.ciphers.packing import PairLayout
from hedgerow.crypto.ciphers.roles import (
    Bins,
    Buffer,
    Ciphertexts,
    HeldRows,
    KeyOwner,
    PeerKey,
    Scheme,
)
from hedgerow.crypto.ciphers.schemes import new_owner, owner_of, peer_of
from hedgerow.crypto.errors import KeyRejected, NothingHeld
from hedgerow.crypto.vault.blinding import LocalBlinder

MOST_IDLE_PEERS = 4
"""Keys of others that are kept without rows of theirs; each may have a table of 36 MB or more."""


@dataclass(slots=True)
class _Tree:
    rows: HeldRows
    public_key: bytes
    bins: Bins
    n_bins: tuple[int, ...]
    least_rows: int


class LocalCipherVault:
    """A cipher vault within the process.

    Parameters
    ----------
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
        return self._owner(session).encrypt_gradients(layout, grad, hess)

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
        peer = self._peer(public_key)
        with self._lock:  # never two trees' rows at a time
            self._trees.pop(session, None)
        held = peer.hold(layout, rows, bins, n_bins)
        with self._lock:
            self._trees[session] = _Tree(held, public_key, bins, tuple(n_bins), least_rows)

    def sum_bins(
        self,
        session: str,
        nodes: Sequence[NDArray[np.integer]],
        *,
        cumulative: bool = False,
        missing: Sequence[bool] | None = None,
        order: NDArray[np.integer] | None = None,
    ) -> tuple[Ciphertexts, ...]:
        with self._lock:
            tree = self._trees.get(session)
        if tree is None:
            raise NothingHeld(f"no row ciphertexts of session {session} are held here")
        if tree.least_rows > 1:
            groups = SummedBins(tree.bins, tree.n_bins, cumulative, missing)
            check_groups(groups, nodes, order, tree.least_rows)
        return tree.rows.answer(nodes, cumulative=cumulative, missing=missing, order=order)

    def decrypt_histograms(
        self, session: str, layout: PairLayout, answer: Sequence[Buffer], n_bins: int
    ) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        return self._owner(session).read(layout, answer, n_bins)

    def encrypt_integers(self, session: str, values: Sequence[int]) -> Ciphertexts:
        return self._owner(session).encrypt_integers(values)

    def sum_selected(
        self,
        public_key: bytes,
        values: Buffer,
        index: NDArray[np.uint32],
        start: NDArray[np.int64],
    ) -> Ciphertexts:
        return self._peer(public_key).sum_selected(values, index, start)

    def decrypt_integers(self, session: str, values: Buffer) -> list[int]:
        return self._owner(session).decrypt_integers(values)

    def blind_identifiers(self, session: str, ids: Sequence[bytes]) -> bytes:
        return self._blinder(session).blind_identifiers(ids)

    def blind_points(self, session: str, points: bytes) -> bytes:
        return self._blinder(session).blind_points(points)

    def forget_session(self, session: str) -> None:
        with self._lock:
            held = {*self._owned, *self._trees, *self._blinders}
            for name in {session, *within(session, held)}:
                self._forget(name)

    def _forget(self, session: str) -> None:
        self._owned.pop(session, None)
        tree = self._trees.pop(session, None)
        still_used = {t.public_key for t in self._trees.values()}
        if tree is not None and tree.public_key not in still_used:
            self._peers.pop(tree.public_key, None)
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
        with self._lock:
            peer = self._peers.get(public_key)
        if peer is None:  # once a key: its proof takes eight exponentiations
            peer = peer_of(public_key, self._engine, insecure_test_key=self._insecure_test_keys)
        with self._lock:
            kept = self._peers.pop(public_key, peer)
            self._peers[public_key] = kept
            used = {tree.public_key for tree in self._trees.values()}
            idle = [key for key in self._peers if key not in used]
            for key in idle[:-MOST_IDLE_PEERS]:
                del self._peers[key]
            return kept

    def _blinder(self, session: str) -> LocalBlinder:
        with self._lock:
            if session not in self._blinders:
                self._blinders[session] = LocalBlinder(
                    session.encode(), (self._engine or Engine()).curve()
                )
            return self._blinders[session]


def within(session: str, names: Iterable[str]) -> list[str]:
    """Return a session and those whose names continue it after a slash."""
    return [name for name in names if name == session or name.startswith(f"{session}/")]
