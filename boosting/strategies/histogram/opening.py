"""What the parties agree on before the first round: rows, start score, cut points; both halves."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.checkpoints import dump_record, load_record
from hedgerow.boosting.dataset import Dataset
from hedgerow.boosting.engine.binning import each_column
from hedgerow.boosting.engine.bisection import (
    Bisector,
    Cells,
    MinBinFilter,
    count_below,
    most_keys,
)
from hedgerow.boosting.engine.cox import TIME_CELLS
from hedgerow.boosting.engine.cuts import Cuts, cuts_from_thresholds, merged_cuts
from hedgerow.boosting.engine.objective import Objective, StartRule
from hedgerow.boosting.engine.sorting import SortedColumn
from hedgerow.boosting.engine.start import Score, median_search, score_of, weight_exponent
from hedgerow.boosting.engine.summaries import QuantileSummaries, summarise, summary_points
from hedgerow.boosting.errors import OfferRejected, QuorumLost, SumCorrupt
from hedgerow.boosting.exchange import CoordinatorEndpoint, ExchangeKey, Receipt, Silo, SiloChannel
from hedgerow.boosting.failure_times import is_event
from hedgerow.boosting.metric_sums import MOST_ROWS
from hedgerow.boosting.ports import Journal, SiloStart
from hedgerow.boosting.strategies.histogram.decided_sums import (
    Integers,
    SiloDecisions,
    decided,
    total_counts,
)
from hedgerow.boosting.strategies.histogram.plan import (
    HistogramPlan,
    Setup,
    cut_points,
    cuts_of,
    given_cuts,
    way_of,
)
from hedgerow.boosting.strategies.histogram.steps import (
    COUNTS,
    CUTS,
    ERRORS,
    MEDIAN,
    PROPOSALS,
    CutPoints,
    DecidedSum,
    LabelCells,
    ProposalCount,
    RelayedTotal,
    RowCounts,
)
from hedgerow.boosting.strategies.histogram.stored import NO_INTERVAL, Interval
from hedgerow.boosting.sums.coordinator import CoordinatorSums
from hedgerow.boosting.sums.maximum import N_PLACES, maxima, maximum_parts
from hedgerow.boosting.sums.silo import SiloSums
from hedgerow.boosting.sums.view import state_digest
from hedgerow.crypto.masking.masks import Residues

_AT = ExchangeKey(0)
_LABELS_AT = ExchangeKey(0, 0, 1)
_POINTS, _LABELS, _MODEL = "histogram/cut-points", "histogram/label-cells", "histogram/errors"
LABEL_CELLS = 1024
"""Cells of labels of a median or quantile at most."""
_SEARCHES = 2
"""Longest searches of a column for which a silo counts rows, in all attempts of a job."""


class CoordinatorOpening:
    """The coordinator half of the opening."""

    def __init__(
        self,
        plan: HistogramPlan,
        hub: CoordinatorEndpoint,
        sums: CoordinatorSums,
        journal: Journal | None = None,
    ) -> None:
        self._plan = plan
        self._journal = journal
        self._hub = hub
        self._sums = sums
        self._blind = plan.parameters.blind_coordinator

    async def agree(self) -> Setup | None:
        """Return what was agreed on; ``None`` if the coordinator is blind."""
        outcome = await self._sums.total(_AT, 1 + N_PLACES, check=self._plan.residues_check)
        assert outcome.total is not None
        n_rows, weight = _rows_and_weight(outcome.total)
        if not self._blind:
            self._plan.check_weight(weight)
            self._plan.parameters.check_rows(n_rows, self._plan.job)
        labels: Cells | None = None
        if self._plan.objective.in_cells:
            search = label_search(self._plan)
            await self._bisect(MEDIAN, search, n_rows)
            (labels,) = search.cells
        base_score = await self._base_score(n_rows, labels)
        cuts = await self._cuts(n_rows)
        if self._blind:
            return None
        assert base_score is not None
        assert cuts is not None
        return Setup(n_rows, weight, base_score, cuts, label_cells(labels))

    async def _base_score(self, n_rows: int, labels: Cells | None) -> Score | None:
        objective = self._plan.objective
        given = self._plan.job.booster.base_score
        if given is not None:
            return given
        if objective.start_rule is StartRule.MEAN:
            check = self._plan.integers_check
            n_values = self._plan.n_start_values
            outcome = await self._sums.total(_LABELS_AT, n_values, check=check)
            assert outcome.total is not None
            if self._blind:
                return None
            return self._plan.start_score(outcome.total)
        if objective.start_rule is StartRule.MEDIAN:
            search = median_search(self._plan.parameters.min_cell)
            await self._bisect(MEDIAN, search, n_rows)
            return search.medians[0]
        if objective.start_rule is StartRule.QUANTILE and labels is not None:
            return start_quantiles(objective, labels)
        return objective.default_base_score

    async def _cuts(self, n_rows: int) -> Cuts | None:
        plan = self._plan
        if plan.parameters.binning == "given":
            return given_cuts(plan.schema, plan.parameters.cut_points)
        if self._blind:
            await self._relay_counts()
            return None
        search: Search = cut_search(plan)
        if plan.parameters.binning == "summary":
            search = min_bin_filter(plan, await self._merge_summaries())
        await self._bisect(COUNTS, search, n_rows)
        return cuts_from_thresholds(plan.schema, search.thresholds)

    async def _merge_summaries(self) -> Cuts:
        plan = self._plan
        summaries = await self._hub.collect(
            CUTS,
            _AT,
            read=lambda silo, offer: offer.read(len(plan.numeric)),
            silos=self._sums.participants,
            quorum=plan.least_silos,
        )
        known = None if self._journal is None else self._journal.recall(_POINTS)
        if known is None:
            cuts = await asyncio.to_thread(
                merged_cuts, plan.schema, list(summaries.values()), plan.job.booster.max_bin
            )
            points = cut_points(cuts)
            if self._journal is not None:
                await asyncio.to_thread(self._journal.remember, _POINTS, dump_record(points))
        else:  # silos take no others for this job, whichever of them are there
            points = load_record(CutPoints, known, "a record of cut points")
            cuts = cuts_of(points, plan.schema)
        self._hub.answer(CUTS, _AT, dict.fromkeys(summaries, points))
        return cuts

    async def interval(self, round_: int) -> Interval:
        """Return what errors of rows held back say, after the last round.

        The sums are inside the tree that the scores before them have opened, so that a silo that is
        lost ends the search, and not the job.
        """
        search, passing = interval_search(self._plan), 0
        while not search.done:
            at, n_keys = ExchangeKey(round_, 0, passing), search.key.shape[0]
            outcome, told = await total_counts(
                self._sums, ERRORS, at, n_keys, whole=True, forgone=True
            )
            if told.rows.shape[0]:
                counts = told.rows[len(told.rows) - n_keys :]
                await asyncio.to_thread(narrow, search, at, counts, MOST_ROWS)
            self._sums.answer(ERRORS.decided, outcome, told)
            if not told.rows.shape[0]:
                return NO_INTERVAL
            passing += 1
        return Interval(search.covering[0], search.n_rows[0])

    async def _bisect(self, kind: DecidedSum[RowCounts], search: Search, n_rows: int) -> None:
        passing = 0
        while not search.done:
            at = ExchangeKey(0, 0, passing)
            n_keys = search.key.shape[0]
            # Without one of the silos that were counted, counts would not grow with the values.
            later = passing > 0
            outcome, counts = await total_counts(self._sums, kind, at, n_keys, complete=later)
            await asyncio.to_thread(
                narrow, search, at, counts.rows[len(counts.rows) - n_keys :], n_rows
            )
            self._sums.answer(kind.decided, outcome, counts)
            passing += 1

    async def _relay_counts(self) -> None:
        """Relay count vectors, whose length the silos propose, until a silo proposes 0."""
        passing = 0
        while n_values := await self._n_proposed(ExchangeKey(0, 0, passing)):
            at = ExchangeKey(0, 0, passing)
            outcome = await self._sums.sum(COUNTS.relayed, at, n_values, complete=passing > 0)
            total = RelayedTotal.of(outcome.total, outcome.ring_bits, outcome.present)
            self._sums.answer(COUNTS.relayed, outcome, total)
            passing += 1

    async def _n_proposed(self, at: ExchangeKey) -> int:
        """Return how many values silos count below next; refuse silos that differ from most."""
        least = self._plan.least_silos
        counts = await self._hub.collect(
            PROPOSALS, at, read=_count, silos=self._sums.participants, quorum=least
        )
        ((most, _),) = Counter(counts.values()).most_common(1)
        differing = [silo for silo, n in counts.items() if n != most]
        for silo in differing:
            reason = f"n: expected {most} values as in most silos, received {counts.pop(silo)}"
            self._hub.reject(PROPOSALS, at, silo, reason)
        if len(counts) < least:
            raise QuorumLost(
                f"step {PROPOSALS.name!r} needs {least} silos, {len(counts)} propose equally many "
                f"values; refused {', '.join(differing)}"
            )
        self._hub.answer(PROPOSALS, at, dict.fromkeys(counts, Receipt()))
        return most


class SiloOpening:
    """The silo half of the opening.

    Parameters
    ----------
    train : Dataset
        The rows that trees are grown on.
    n_largest : int
        Rows of the largest silo; 0 where the bins policy needs none.
    """

    def __init__(
        self,
        plan: HistogramPlan,
        link: SiloChannel,
        sums: SiloSums,
        decisions: SiloDecisions,
        start: SiloStart,
        train: Dataset,
        n_largest: int,
    ) -> None:
        self._plan = plan
        self._link = link
        self._sums = sums
        self._decisions = decisions
        self._n_silos = len(start.silos)
        self._train = train
        tables = [start.dataset, *([] if start.validation is None else [start.validation])]
        self._exponent = max(weight_exponent(one.n_samples, one.weight) for one in tables)
        self._n_largest = n_largest
        self._n_threads = start.n_threads
        self._telling = start.telling
        self._storage = start.storage

    def agree(self) -> Setup:
        """Return what was agreed on."""
        self._telling()
        data = self._train
        # Of validation rows, too, whose metrics are sums of the same step.
        known = np.array([data.n_samples, self._exponent])
        parts = maximum_parts(int(known[1]))
        own = np.append(known[:1].astype(np.uint64), parts)
        state = state_digest(self._plan.schema)
        check = self._plan.residues_check
        total = self._sums.total(_AT, own, state=state, content=known, check=check)
        n_rows, weight = _rows_and_weight(total.values)
        self._plan.check_weight(weight)
        if check is not None and n_rows >> 32:  # of which the check knows no more
            raise OfferRejected(
                f"rows of all silos: expected fewer than 2**32, received {n_rows} from the "
                "coordinator"
            )
        self._plan.parameters.check_rows(n_rows, self._plan.job)
        labels: Cells | None = None
        if self._plan.objective.in_cells:
            search = label_search(self._plan)
            column = SortedColumn.of(self._searched().astype(np.float32))
            self._bisect(MEDIAN, search, [column], ["label"], n_rows)
            (labels,) = search.cells
            self._keep(_LABELS, "cells of labels", state_digest(*labels[:2]))
        base_score = self._base_score(n_rows, labels)
        cuts = self._cuts(n_rows, self._n_largest)
        return Setup(n_rows, weight, base_score, cuts, label_cells(labels))

    def _searched(self) -> NDArray[np.floating]:
        """Return what is divided into cells: the labels, of hazards the times of events."""
        y = self._train.labels
        return y[is_event(y), 0] if self._plan.objective.by_risk_sets else y

    def _base_score(self, n_rows: int, labels: Cells | None) -> Score:
        objective, data = self._plan.objective, self._train
        given = self._plan.job.booster.base_score
        if given is not None:
            return given
        if objective.start_rule is StartRule.MEAN:
            parts = self._plan.start_parts(data)
            state, check = state_digest(self._plan.schema), self._plan.integers_check
            total = self._sums.total(_LABELS_AT, parts, state=state, check=check)
            return self._plan.start_score(total.values)
        if objective.start_rule is StartRule.MEDIAN:
            search = median_search(self._plan.parameters.min_cell)
            column = SortedColumn.of(data.labels.astype(np.float32))
            self._bisect(MEDIAN, search, [column], ["label"], n_rows)
            return search.medians[0]
        if objective.start_rule is StartRule.QUANTILE and labels is not None:
            return start_quantiles(objective, labels)
        return objective.default_base_score

    def _cuts(self, n_rows: int, n_largest: int) -> Cuts:
        plan, data = self._plan, self._train
        if plan.parameters.binning == "given":
            return given_cuts(plan.schema, plan.parameters.cut_points)
        columns = data.columns.readers  # each use of the property makes all of them
        readers = [columns[j] for j in plan.numeric]
        search: Search = cut_search(plan)
        if plan.parameters.binning == "summary":
            n_points = summary_points(
                plan.parameters.bins_policy,
                plan.job.booster.max_bin,
                data.n_samples,
                n_rows,
                n_largest,
                self._n_silos,
                plan.parameters.pax_epsilon,
            )
            summaries = each_column(readers, lambda x, _: summarise(x, n_points), self._n_threads)
            points = self._link.exchange(CUTS, _AT, QuantileSummaries.of(summaries))
            self._keep(_POINTS, "cut points", state_digest(points.sizes, points.values))
            told = cuts_of(points, plan.schema)
            self._telling(way_of(told))
            search = min_bin_filter(plan, told)
        halves = self._storage.array((len(readers), data.n_samples), np.uint16)
        ordered = each_column(readers, lambda x, j: SortedColumn.of(x, halves[j]), self._n_threads)
        names = [plan.schema.features[j].name for j in plan.numeric]
        self._bisect(COUNTS, search, ordered, names, n_rows)
        return cuts_from_thresholds(plan.schema, search.thresholds)

    def _keep(self, key: str, what: str, digest: bytes) -> None:
        """Refuse other cut points, cells of labels or models than in an earlier attempt.

        Sums by both would tell the rows between two near values, which may be few.
        """
        if (self._link.recall(key) or digest) != digest:
            raise OfferRejected(
                f"{what}: expected those of an earlier attempt, received others; if the "
                "coordinator was restored from a backup, or other silos take part, submit the job "
                "again"
            )
        self._link.remember(key, digest)

    def interval(self, errors: NDArray[np.float32], model: bytes, round_: int) -> Interval:
        """Return what errors of rows held back say, after the last round.

        Parameters
        ----------
        model : bytes
            Digest of the model that they are of.
        """
        self._keep(_MODEL, "the model whose errors are counted", model)
        self._telling(self._plan.parameters.way_of_model(self._plan.job, model))
        search, column = interval_search(self._plan), SortedColumn.of(errors)
        if not self._bisect(ERRORS, search, [column], ["error"], MOST_ROWS, round_, model):
            return NO_INTERVAL
        return Interval(search.covering[0], search.n_rows[0])

    def _bisect(
        self,
        kind: DecidedSum[RowCounts],
        search: Search,
        ordered: Sequence[SortedColumn],
        names: Sequence[str],
        n_rows: int,
        round_: int = 0,
        *known: bytes,
    ) -> bool:
        """Count below the values that the search proposes; return whether it has come to its end.

        That of errors ends early where a silo is lost.
        """
        passing, told = 0, np.empty(0, np.int64)
        blind = self._decisions.blind
        while not search.done:
            at = ExchangeKey(round_, 0, passing)
            columns = [names[j] for j in search.column.tolist()]
            asked = state_digest(columns, search.key)
            self._count_keys(kind.decided.name, columns, asked)
            if blind:
                self._link.exchange(PROPOSALS, at, ProposalCount(search.key.shape[0]))
            own = count_below(ordered, search.column, search.key)
            state = state_digest(self._plan.schema, asked, told, *known)
            told = self._decisions.counts(kind, at, own, state=state, whole=kind is ERRORS)
            if not told.shape[0]:
                return False
            narrow(search, at, told, n_rows)
            passing += 1
        if blind:
            self._link.exchange(PROPOSALS, ExchangeKey(0, 0, passing), ProposalCount(0))
        return True

    def _count_keys(self, name: str, columns: list[str], asked: bytes) -> None:
        """Count what is asked of each column, over all attempts; the same again is not counted.

        Totals that are made up steer the search, so an attempt can be made to ask about other keys.
        """
        record = f"histogram/counted/{name}"
        counted = json.loads(self._link.recall(record) or '{"columns": {}, "asked": []}')
        if asked.hex() in counted["asked"]:
            return
        counted["asked"].append(asked.hex())
        booster, parameters = self._plan.job.booster, self._plan.parameters
        most = _SEARCHES * most_keys(booster.max_bin, parameters.binning_error)
        if self._plan.objective.in_cells and name == MEDIAN.decided.name:
            most = _SEARCHES * most_keys(most_cells(self._plan.objective), 0.0)
        for column, n in Counter(columns).items():
            counted["columns"][column] = counted["columns"].get(column, 0) + n
            if counted["columns"][column] > most:
                raise OfferRejected(
                    f"counts: expected at most {most} values of a column over all attempts"
                )
        self._link.remember(record, json.dumps(counted).encode())


# --- what either half decides from counts ---


Search = Bisector | MinBinFilter


def cut_search(plan: HistogramPlan) -> Bisector:
    """Return the search for the thresholds of all numeric features."""
    parameters = plan.parameters
    return Bisector(
        len(plan.numeric),
        plan.job.booster.max_bin,
        parameters.binning_error,
        parameters.min_cell,
    )


def interval_search(plan: HistogramPlan) -> Bisector:
    """Return the search for the half width of an interval, to a thousandth of the rows."""
    return Bisector(1, 2, 1e-3, plan.parameters.min_cell, covers=plan.parameters.interval)


def label_search(plan: HistogramPlan) -> Bisector:
    """Return the search for cells of labels."""
    most = most_cells(plan.objective)
    return Bisector(1, most, min_cell=plan.parameters.min_cell, fine=True)


def most_cells(objective: Objective) -> int:
    """Return how many cells labels are divided into at most."""
    return TIME_CELLS if objective.by_risk_sets else LABEL_CELLS


def label_cells(cells: Cells | None) -> LabelCells | None:
    """Return the cells of labels as they travel."""
    return None if cells is None else LabelCells(cells.thresholds, cells.values)


def start_quantiles(objective: Objective, labels: Cells) -> Score:
    """Return the values in place of the label at the objective's ranks."""
    ends = np.cumsum(labels.rows)
    cells = np.searchsorted(ends, np.array(objective.quantiles) * ends[-1], side="right")
    return score_of(labels.values[np.minimum(cells, len(ends) - 1)].tolist())


def min_bin_filter(plan: HistogramPlan, cuts: Cuts) -> MinBinFilter:
    """Return the check of cut points that the coordinator has merged from summaries.

    No histogram then has a bin of few rows, in which it would read single ones.
    """
    plan.check_bins(cuts)
    inner = [cuts.of(int(j))[:-1] for j in plan.numeric]
    return MinBinFilter(inner, plan.parameters.min_cell)


def narrow(search: Search, at: ExchangeKey, counts: Integers, n_rows: int) -> None:
    """Take counts below the proposed values, of tables with `n_rows` in all."""

    def take(rows: Integers | None) -> None:
        if np.any(counts > n_rows):
            raise SumCorrupt(f"counts: expected at most {n_rows} rows, as many as all silos have")
        search.take(counts)

    decided(at, take, counts)


# --- what is read of sums and offers ---


def _rows_and_weight(total: Residues) -> tuple[int, int]:
    """Return the rows of all silos, and the power of two above the largest row weight."""
    (weight,) = maxima(total[1:])
    return int(total[0]), weight


def _count(silo: Silo, offer: ProposalCount) -> int:
    if offer.n < 0:
        raise OfferRejected(f"n: expected at least 0, received {offer.n}")
    return offer.n
