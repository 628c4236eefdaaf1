"""Scores of the silos' own rows: among three silos or more, masked sums; else, values of each.

A sum is of the metrics' additive forms, so that its scores are those of all silos' rows together.
Without masks the sums of one silo would show its labels by range of scores: it sends the values of
its metrics instead, four significant digits, and only where its policy names the class ``scores``.
Their mean, weighted by rows, stands for the score of all rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting import metrics
from hedgerow.boosting.errors import OfferRejected, QuorumLost
from hedgerow.boosting.exchange import CoordinatorEndpoint, ExchangeKey, Silo, SiloChannel
from hedgerow.boosting.ports import CoordinatorStart, SiloStart
from hedgerow.boosting.sums.coordinator import CoordinatorSums
from hedgerow.boosting.sums.floats import FloatSum, SecureTotal, add_securely, total_securely
from hedgerow.boosting.sums.silo import SiloSums
from hedgerow.boosting.sums.steps import KEYS, SumParameters, SumSteps, repeat
from hedgerow.crypto.vault import LEAST_SILOS, Vault

Floats = NDArray[np.float64]
Offer = TypeVar("Offer")
Reply = TypeVar("Reply")


def masks_scores(n_silos: int) -> bool:
    """Return whether scores are masked sums; decided by the job's roster, not by who is present."""
    return n_silos >= LEAST_SILOS


def score_parameters(min_silos: int, rounds: int) -> SumParameters:
    """Return how sums of scores are made, with those of bounds, for ``rounds`` rounds a setup."""
    return SumParameters(batch=2 * rounds, least_silos=max(min_silos, LEAST_SILOS))


class SiloScores(Generic[Offer, Reply]):
    """The silo half of the masked sums; ``rounds`` of them are made with the same keys."""

    def __init__(
        self,
        link: SiloChannel,
        vault: Vault | None,
        start: SiloStart,
        kind: FloatSum[Offer, Reply],
        rounds: int,
    ) -> None:
        self._kind, self._rounds = kind, rounds
        parameters = score_parameters(start.job.min_silos, rounds)
        self._make = partial(SiloSums.of, link, vault, start, parameters)
        self._sums: SiloSums | None = None  # made late: its record has all sums before it
        self._has_keys = False

    def entered_anew(self) -> None:
        """Note that the silo was left out: it takes part again with the next keys."""
        self._has_keys = False

    def add(self, at: ExchangeKey, vector: Floats, state: bytes) -> Reply:
        """Add the metrics' additive forms over this silo's rows; return the strategy's reply."""
        self._sums = self._sums or self._make()
        if not self._has_keys or at.round % self._rounds == 0:
            self._sums.setup(at)
            self._has_keys = True
        return add_securely(self._sums, self._kind, at, vector, state)


class CoordinatorScores(Generic[Offer, Reply]):
    """The coordinator half of the masked sums; ``rounds`` of them are made with the same keys."""

    def __init__(
        self,
        hub: CoordinatorEndpoint,
        start: CoordinatorStart,
        kind: FloatSum[Offer, Reply],
        rounds: int,
    ) -> None:
        self._hub, self._kind, self._rounds = hub, kind, rounds
        self._parameters = score_parameters(start.job.min_silos, rounds)
        self._sums = CoordinatorSums.of(hub, start, self._parameters)
        self._n_silos, self._n_drawn = len(start.silos), 0
        hub.serve(kind.plain, _refused)

    def asked(self, round_: int, silos: tuple[Silo, ...]) -> tuple[Silo, ...]:
        """Return the silos of a round whose rows are scored: of whole groups, enough of them."""
        least = self._parameters.least_silos
        if self._keeps(round_):
            now, then, members = self._hub.left, self._sums.left, self._sums.participants
            silos = tuple(s for s in silos if s in members and now[s] == then[s])
            least = self._parameters.least_of(self._n_drawn)
        silos = self._sums.usable(silos)
        return silos if len(silos) >= least else ()

    async def total(
        self, at: ExchangeKey, silos: tuple[Silo, ...], n_values: int
    ) -> SecureTotal[Reply] | None:
        """Return the sum over the silos that were asked; None where too few of them are left.

        Those that are left then enter again, and the next sum begins with other keys.
        """
        try:
            if not self._keeps(at.round):
                self._n_drawn = len(await self._sums.setup(at, silos))
            return await total_securely(self._sums, self._kind, at, n_values)
        except QuorumLost:
            await self._release(at)
            self._n_drawn = 0
            return None

    def _keeps(self, round_: int) -> bool:
        """Return whether a round's sum is made with the keys of those before it."""
        return self._n_drawn > 0 and round_ % self._rounds > 0

    async def _release(self, at: ExchangeKey) -> None:
        """Close all places of a sum that is not to be."""
        repeats = [repeat(at, passing) for passing in range(2 * self._n_silos + 2)]
        await self._hub.collect(KEYS, at, silos=(), quorum=0)
        await self._close(self._kind.bound, at, repeats)
        await self._close(self._kind.secure, at, repeats)

    async def _close(
        self, kind: SumSteps[Any], at: ExchangeKey, repeats: Sequence[ExchangeKey]
    ) -> None:
        for step in (kind.shares, kind.masked, kind.unmask):
            await self._hub.collect(step, at, silos=(), quorum=0)
        for again in repeats:
            await self._hub.collect(kind.agree, again, silos=(), quorum=0)
            await self._hub.collect(kind.seeds, again, silos=(), quorum=0)


def _refused(silo: Silo, at: ExchangeKey, offer: object) -> Any:
    raise OfferRejected(
        f"scores of {silo} in clear: expected a masked vector, as of every silo among three or "
        "more; an older agent sends none: upgrade it"
    )


def values_of(names: Sequence[str], sums: Floats, n_outputs: int) -> Floats:
    """Return what a silo tells of its additive forms: the metrics' values, four digits."""
    found = metrics.combine(names, sums, n_outputs=n_outputs)
    return np.array([metrics.rounded(found[name]) for name in names])


def mean_of_values(
    names: Sequence[str], values: Mapping[Silo, Floats], n_rows: Mapping[Silo, int]
) -> dict[str, float]:
    """Return the mean of silos' values, weighted by their rows; a silo without a value is left out.

    Parameters
    ----------
    values : mapping of Silo to ndarray of shape (len(names),)
    """
    each = np.array([values[silo] for silo in values]).reshape(-1, len(names))
    rows = np.array([[float(n_rows.get(silo, 0))] for silo in values]).reshape(-1, 1)
    weight = np.where(np.isnan(each), 0.0, rows)
    with np.errstate(invalid="ignore"):
        means = (weight * np.nan_to_num(each)).sum(axis=0) / weight.sum(axis=0)
    return dict(zip(names, means.tolist(), strict=True))
