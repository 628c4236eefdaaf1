"""Ciphertext sums of a vertical job's passive party on the Dask cluster of its organisation.

Each worker holds the row ciphertexts and the bins of some rows and sums them as the silo's vault
would; the vault adds the workers' answers under fresh randomness. Workers need the active party's
public key only. No private key and no label is ever with them, and nothing leaves the silo but what
the vault has re-randomised. Sums of integers do not depend on the parts, so the model is that of
one process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from hedgerow.client_agent.dask_cluster import DaskCluster
from hedgerow.client_agent.dask_parts import RowParts, scatter, submit
from hedgerow.crypto.arithmetic.engine import Engine
from hedgerow.crypto.ciphers.bin_groups import SummedBins, check_groups
from hedgerow.crypto.ciphers.ciphertext_histogram import check_rows
from hedgerow.crypto.ciphers.packing import PairLayout
from hedgerow.crypto.ciphers.roles import Bins, Buffer, Ciphertexts, HeldRows, PeerKey
from hedgerow.crypto.ciphers.schemes import peer_of
from hedgerow.crypto.ciphers.sparse_bins import SparseBins
from hedgerow.crypto.errors import HistogramRefused, NothingHeld

if TYPE_CHECKING:
    import distributed

    from hedgerow.crypto.vault.interface import Vault

Nodes = Sequence[NDArray[np.integer]]


class DaskCiphers:
    """A vault whose row ciphertexts are held and summed on a cluster; all else is the vault's.

    Parameters
    ----------
    insecure_test_keys : bool
        As in :class:`~hedgerow.crypto.vault.local_ciphers.LocalCipherVault`.
    """

    def __init__(
        self,
        cluster: DaskCluster,
        vault: Vault,
        n_parts: int | None = None,
        insecure_test_keys: bool = False,
    ) -> None:
        self._cluster = cluster
        self._vault = vault
        self._n_parts = n_parts
        self._insecure = insecure_test_keys
        self._trees: dict[str, _Tree] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._vault, name)

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
        """Send a tree's row ciphertexts and bins to the workers; they refuse what a vault would."""
        self._trees.pop(session, None)
        n = len(bins)
        if n == 0:
            raise HistogramRefused("expected rows")
        if any(len(part) % n for part in rows):
            raise HistogramRefused(f"expected ciphertexts of {n} rows")
        each = [
            np.frombuffer(part, np.uint8).reshape(n, -1) if isinstance(part, bytes | memoryview)
            else part.reshape(n, -1)
            for part in rows
        ]  # fmt: skip
        peer = public_key, self._insecure
        given = _Given(peer, layout, tuple(each), bins, tuple(int(b) for b in n_bins))
        tree = _Tree(self._cluster, given, least_rows, self._n_parts)
        for _ in tree.each(_checked):
            pass
        self._trees[session] = tree

    def sum_bins(
        self,
        session: str,
        nodes: Nodes,
        *,
        cumulative: bool = False,
        missing: Sequence[bool] | None = None,
        order: NDArray[np.integer] | None = None,
    ) -> tuple[Ciphertexts, ...]:
        """Return the sums of nodes, as a :class:`~hedgerow.crypto.vault.interface.CipherVault`."""
        tree = self._trees.get(session)
        if tree is None:
            raise NothingHeld(f"no row ciphertexts of session {session} are held here")
        given = tree.given
        chosen = [check_rows(rows, len(given.bins)) for rows in nodes]
        if tree.least_rows > 1:
            groups = SummedBins(given.bins, given.n_bins, cumulative, missing)
            check_groups(groups, chosen, order, tree.least_rows)
        n_added = len(tree.spans)

        def of_part(p: int) -> tuple[object, ...]:
            span = tree.spans[p]
            own = []
            for rows in chosen:
                a, b = np.searchsorted(rows, [span.start, span.stop])
                own.append(rows[a:b] - np.uint32(span.start))
            return own, cumulative, missing, order, n_added

        answers = [answer for _, answer in tree.each(_answer, of_part)]
        return tuple(self._added(given.peer[0], parts) for parts in zip(*answers, strict=True))

    def forget_session(self, session: str) -> None:
        """Erase what is held for a session, here and in the vault."""
        for name in [*self._trees]:
            if name == session or name.startswith(f"{session}/"):
                del self._trees[name]
        self._vault.forget_session(session)

    def _added(self, public_key: bytes, answers: Sequence[Ciphertexts]) -> Ciphertexts:
        """Return the workers' answers added up, re-randomised by the vault."""
        n, n_answers = len(answers[0]), len(answers)
        index = np.arange(n * n_answers, dtype=np.uint32).reshape(n_answers, n).T.reshape(-1)
        start = np.arange(0, n * n_answers + 1, n_answers, dtype=np.int64)
        values = np.concatenate(answers)
        return self._vault.sum_selected(public_key, values, index, start)


@dataclass(frozen=True, slots=True)
class _Given:
    """What a tree's sums are of."""

    peer: tuple[bytes, bool]
    """The public key, and whether it may be of any size."""
    layout: PairLayout
    rows: tuple[Ciphertexts, ...]
    """Tuple of ndarray of shape (n_rows, n_bytes), uint8. Ciphertexts, one array a part."""
    bins: Bins
    n_bins: tuple[int, ...]

    def part(self, span: slice) -> _Given:
        """Return what is of some rows."""
        rows = tuple(np.ascontiguousarray(part[span]) for part in self.rows)
        return _Given(self.peer, self.layout, rows, self.bins[span], self.n_bins)


class _Tree(RowParts):
    """A tree's row ciphertexts on the workers."""

    def __init__(
        self, cluster: DaskCluster, given: _Given, least_rows: int, n_parts: int | None
    ) -> None:
        super().__init__(cluster, len(given.bins), n_parts)
        self.given, self.least_rows = given, least_rows

    def bound(
        self, client: distributed.Client, workers: Mapping[str, int], chosen: Mapping[int, str]
    ) -> dict[int, distributed.Future]:
        """Send each worker the ciphertexts of its rows."""
        return {
            p: submit(
                client,
                worker,
                _Held,
                scatter(client, self.given.part(self.spans[p]), worker),
                workers[worker],
            )
            for p, worker in chosen.items()
        }


# --- on a worker ---


class _Held:
    """A worker's part of the rows, checked and decoded when it is first used."""

    def __init__(self, given: _Given, n_threads: int) -> None:
        self._given, self._n_threads = given, n_threads
        self._held: HeldRows | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _Held, (self._given, self._n_threads)

    @property
    def rows(self) -> HeldRows:
        if self._held is None:
            own = self._given
            peer = _peer(*own.peer, self._n_threads)
            rows = [np.array(part) for part in own.rows]
            bins = own.bins if isinstance(own.bins, SparseBins) else np.array(own.bins)
            self._held = peer.hold(own.layout, rows, cast("Bins", bins), own.n_bins)
        return self._held


@lru_cache(maxsize=2)
def _peer(public_key: bytes, insecure: bool, n_threads: int) -> PeerKey:
    return peer_of(public_key, Engine(workers=n_threads), insecure_test_key=insecure)


def _checked(part: _Held) -> None:
    assert part.rows is not None


def _answer(
    part: _Held,
    nodes: Nodes,
    cumulative: bool,
    missing: Sequence[bool] | None,
    order: NDArray[np.integer] | None,
    n_added: int,
) -> tuple[Ciphertexts, ...]:
    return part.rows.answer(
        nodes, cumulative=cumulative, missing=missing, order=order, n_added=n_added
    )
