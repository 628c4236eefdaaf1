"""Sums from which the coordinator decides or, where it is blind, every silo: the silo's end.

The blind coordinator passes masked totals on (:class:`RelayedTotal`). The silos take the group
masks off and all decide the same from the same integers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.errors import SumCorrupt
from hedgerow.boosting.exchange import ExchangeKey
from hedgerow.boosting.strategies.histogram.steps import DecidedSum, RoundEnd, RowCounts
from hedgerow.boosting.sums.coordinator import CoordinatorSums
from hedgerow.boosting.sums.requests import SumOutcome
from hedgerow.boosting.sums.silo import SiloSums
from hedgerow.crypto.masking.fixed_point import reduce_residues, residue_dtype, signed
from hedgerow.crypto.masking.masks import Residues, Ring, word_bits
from hedgerow.crypto.masking.totals import N_LIMBS

Reply = TypeVar("Reply")
Sums = TypeVar("Sums")
Integers = NDArray[np.int64]


def integers(outcome: SumOutcome) -> Integers | None:
    """Return a sum as the coordinator reads it; ``None`` if it was abandoned."""
    return None if outcome.total is None else signed(outcome.total, outcome.ring_bits)


def decided(at: ExchangeKey, decide: Callable[[Sums], Reply], sums: Sums) -> Reply:
    """Return what sums decide; raises :class:`SumCorrupt` with the place of impossible ones."""
    try:
        return decide(sums)
    except SumCorrupt as error:
        raise SumCorrupt(f"round {at.round}, level {at.level}: {error}") from error


def residues_of(own: Integers | Residues, ring_bits: int) -> Residues:
    """Return integers as residues of a ring; they may be overwritten."""
    residues: Residues = own.view(np.uint64).astype(residue_dtype(ring_bits), copy=False)
    reduce_residues(residues, ring_bits)
    return residues


def row_counts(sums: Integers | None) -> RowCounts:
    """Return what all silos are told of a sum of counts."""
    if sums is None:
        raise SumCorrupt("counts of rows: expected a total, received word of an abandoned sum")
    return RowCounts(sums)


async def total_counts(
    sums: CoordinatorSums,
    kind: DecidedSum[RowCounts],
    at: ExchangeKey,
    n_counts: int,
    *,
    whole: bool = False,
    complete: bool = False,
    forgone: bool = False,
) -> tuple[SumOutcome, RowCounts]:
    """Return a sum of counts and what silos are told of it: with their words where they check.

    Inside a tree, with ``whole``, nothing where a silo was lost.
    """
    n_words = N_LIMBS * sums.checks_totals
    n_values = n_words + n_counts
    outcome = await sums.sum(
        kind.decided, at, n_values, whole=whole, complete=complete, forgone=forgone
    )
    if whole and outcome.total is None:
        return outcome, RowCounts(np.empty(0, np.int64))
    return outcome, row_counts(integers(outcome))


class SiloDecisions:
    """Adds a silo's integers to sums and returns what is decided from them.

    Parameters
    ----------
    blind : bool
        Whether the coordinator is.

    Attributes
    ----------
    end : RoundEnd or None
        What a blind coordinator said last of the end of a round.
    """

    def __init__(self, sums: SiloSums, *, blind: bool) -> None:
        self._sums = sums
        self.blind = blind
        self.end: RoundEnd | None = None

    def add(
        self,
        kind: DecidedSum[Reply],
        at: ExchangeKey,
        own: Integers | Residues,
        decide: Callable[[Integers | None], Reply],
        *,
        state: bytes,
        ring: Ring = 64,
        opens_tree: bool = False,
        whole: bool = False,
    ) -> Reply:
        """Add integers to a sum; return the decision.

        Parameters
        ----------
        own : ndarray of shape (n_values,), int64
            May be overwritten; of fields their words.
        decide : callable
            From the sum, or from ``None`` if it was abandoned; called where the coordinator is
            blind.
        state, ring, opens_tree, whole
            As in :meth:`~hedgerow.boosting.sums.silo.SiloSums.sum`.
        """
        ring_bits = word_bits(ring)
        residues = residues_of(own, ring_bits)
        summed = partial(
            self._sums.sum,
            at=at,
            residues=residues,
            state=state,
            ring=ring,
            opens_tree=opens_tree,
            whole=whole,
        )
        if not self.blind:
            return summed(kind.decided)
        relayed = summed(kind.relayed)
        self.end = relayed.end
        if not relayed.present:
            return decided(at, decide, None)
        total = self._sums.opened(relayed.total(ring_bits))
        return decided(at, decide, signed(total.values, ring_bits))

    def counts(
        self,
        kind: DecidedSum[RowCounts],
        at: ExchangeKey,
        own: Integers,
        *,
        state: bytes,
        whole: bool = False,
    ) -> Integers:
        """Add counts to a sum; return the total, which is checked where silos share a key for it.

        ``state`` and ``whole`` are as in :meth:`~hedgerow.boosting.sums.silo.SiloSums.sum`. Inside
        a tree there is no total where a silo was lost: no counts are returned.
        """
        sums = self._sums
        if not sums.checks_totals:
            return self.add(kind, at, own, row_counts, state=state, whole=whole).rows
        sent = np.concatenate([np.zeros(N_LIMBS, np.int64), own]).view(np.uint64)
        told = sums.sum(kind.decided, at, sent, state=state, content=own, totals=own, whole=whole)
        total = told.rows
        if whole and not total.shape[0]:
            return total
        sums.check_totals(at, total[N_LIMBS:], total[:N_LIMBS])
        return total[N_LIMBS:]
