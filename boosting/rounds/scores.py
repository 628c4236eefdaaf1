"""Scores of the silos' own rows: among three silos or more, masked sums; else, values of each.

A sum is of the metrics' additive forms, as integers, so that its scores are those of all silos'
rows together, and the same bits however rows are spread (:mod:`hedgerow.boosting.metric_sums`).
Where rows have weights of their own, silos find the largest one first. Without masks the sums of
one silo would show its labels by range of scores: it sends the values of its metrics instead, four
significant digits, and only where its policy names the class ``scores``.
Their mean, weighted by rows, stands for the score of all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting import metrics
from hedgerow.boosting.errors import OfferRejected, QuorumLost
from hedgerow.boosting.exchange import CoordinatorEndpoint, ExchangeKey, Silo, SiloChannel
from hedgerow.boosting.metric_sums import SummedMetrics
from hedgerow.boosting.ports import CoordinatorStart, SiloStart
from hedgerow.boosting.sums.coordinator import CoordinatorSums
from hedgerow.boosting.sums.floats import FloatSum, SecureTotal, exponent_of
from hedgerow.boosting.sums.maximum import add_maximum, total_maximum
from hedgerow.boosting.sums.silo import SiloSums
from hedgerow.boosting.sums.steps import KEYS, SumParameters, SumSteps, repeat
from hedgerow.boosting.sums.view import state_digest
from hedgerow.crypto.vault.interface import LEAST_SILOS, Vault

if TYPE_CHECKING:
    from hedgerow.boosting.ports import JobParameters

Floats = NDArray[np.float64]
Offer = TypeVar("Offer")
Reply = TypeVar("Reply")
Parts = Callable[[SummedMetrics], NDArray[np.uint64]]
"""Makes a silo's parts of the sums, of one table or model after another."""


def masks_scores(n_silos: int) -> bool:
    """Return whether scores are masked sums; decided by the job's roster, not by who is present."""
    return n_silos >= LEAST_SILOS


def finds_weight(job: JobParameters) -> bool:
    """Return whether a sum of scores comes after one of the largest weight of a row."""
    return bool(job.columns.weight)


def score_parameters(job: JobParameters, rounds: int) -> SumParameters:
    """Return how sums of scores are made, for ``rounds`` rounds a setup."""
    bounds = finds_weight(job)
    return SumParameters(
        batch=rounds * (1 + bounds),
        least_silos=max(job.min_silos, LEAST_SILOS),
        checks_totals=bounds,
    )


def add_scores(
    sums: SiloSums,
    kind: FloatSum[Offer, Reply],
    at: ExchangeKey,
    names: Sequence[str],
    parts: Parts,
    start: SiloStart,
    state: bytes,
) -> Reply:
    """Add a silo's parts of the sums of metrics; return the strategy's reply (silo half)."""
    job, weight = start.job, start.dataset.weight
    summed = SummedMetrics(tuple(names), start.schema.n_scored, job.columns.heaviest)
    if finds_weight(job):
        own = exponent_of(np.ones(1) if weight is None else weight)
        (largest,) = add_maximum(sums, at, (own,), state=state, steps=kind.bound)
        summed, state = replace(summed, largest_weight=2.0**largest), state_digest(state, largest)
    return sums.sum(kind.secure, at, parts(summed), state=state)


async def total_scores(
    sums: CoordinatorSums,
    kind: FloatSum[Offer, Reply],
    at: ExchangeKey,
    names: Sequence[str],
    n_parts: int,
    start: CoordinatorStart,
) -> SecureTotal[Reply]:
    """Return the sums of metrics over the participants' rows, part after part."""
    columns = start.job.columns
    summed = SummedMetrics(tuple(names), start.schema.n_scored, columns.heaviest)
    if finds_weight(start.job):
        (largest,), _ = await total_maximum(sums, at, 1, kind.bound)
        summed = replace(summed, largest_weight=2.0**largest)
    outcome = await sums.sum(kind.secure, at, summed.n_residues * n_parts)
    assert outcome.total is not None, "only sums over a fixed set are abandoned"
    totals = [summed.totals(part) for part in outcome.total.reshape(n_parts, -1)]
    return SecureTotal(np.concatenate(totals), outcome, sums, kind.secure)


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
        self._kind, self._rounds, self._start = kind, rounds, start
        parameters = score_parameters(start.job, rounds)
        self._make = partial(SiloSums.of, link, vault, start, parameters)
        self._sums: SiloSums | None = None  # made late: its record has all sums before it
        self._has_keys = False

    def entered_anew(self) -> None:
        """Note that the silo was left out: it takes part again with the next keys."""
        self._has_keys = False

    def add(self, at: ExchangeKey, names: Sequence[str], parts: Parts, state: bytes) -> Reply:
        """Add the metrics' additive forms over this silo's rows; return the strategy's reply."""
        self._sums = self._sums or self._make()
        if not self._has_keys or at.round % self._rounds == 0:
            self._sums.setup(at)
            self._has_keys = True
        return add_scores(self._sums, self._kind, at, names, parts, self._start, state)


class CoordinatorScores(Generic[Offer, Reply]):
    """The coordinator half of the masked sums; ``rounds`` of them are made with the same keys."""

    def __init__(
        self,
        hub: CoordinatorEndpoint,
        start: CoordinatorStart,
        kind: FloatSum[Offer, Reply],
        rounds: int,
    ) -> None:
        self._hub, self._kind, self._rounds, self._start = hub, kind, rounds, start
        self._parameters = score_parameters(start.job, rounds)
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
        self, at: ExchangeKey, silos: tuple[Silo, ...], names: Sequence[str], n_parts: int
    ) -> SecureTotal[Reply] | None:
        """Return the sums over the silos that were asked; None where too few of them are left.

        Those that are left then enter again, and the next sum begins with other keys.
        """
        try:
            if not self._keeps(at.round):
                self._n_drawn = len(await self._sums.setup(at, silos))
            return await total_scores(self._sums, self._kind, at, names, n_parts, self._start)
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


def values_of(names: Sequence[str], parts: Parts, start: SiloStart) -> Floats:
    """Return what a silo tells of its additive forms: the metrics' values, four digits."""
    weight = start.dataset.weight
    largest = 1.0 if weight is None else float(weight.max(initial=0.0))
    summed = SummedMetrics(tuple(names), start.schema.n_scored, largest, start.dataset.n_samples)
    totals = summed.totals(parts(summed))
    found = metrics.combine(names, totals, n_outputs=summed.n_outputs)
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
