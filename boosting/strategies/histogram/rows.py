"""A silo's rows: binned, with margins, and as the trees of a round divide them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Dataset, Schema, Task
from hedgerow.boosting.engine.binning import MOST_BINS
from hedgerow.boosting.engine.cox import RiskSets, cell_labels, risk_parts
from hedgerow.boosting.engine.cuts import FENCE, Cuts, cuts_from_thresholds, numeric_features
from hedgerow.boosting.engine.grower import GrownTree
from hedgerow.boosting.engine.histogram import Gradients
from hedgerow.boosting.engine.leaf_quantiles import LeafRows
from hedgerow.boosting.engine.nodes import too_light
from hedgerow.boosting.engine.objective import given_pairs
from hedgerow.boosting.engine.quantising import Quantiser
from hedgerow.boosting.engine.sampling import Sample
from hedgerow.boosting.engine.start import margins_of
from hedgerow.boosting.engine.table import GrowingRows, Margins, PartyRows, TreeIntegers, placed
from hedgerow.boosting.errors import InvalidJob, OfferRejected
from hedgerow.boosting.exchange import ExchangeKey
from hedgerow.boosting.intervals import errors
from hedgerow.boosting.metrics import link
from hedgerow.boosting.ports import SiloStart
from hedgerow.boosting.queries import query_starts, rows_of_queries
from hedgerow.boosting.strategies.histogram.decided_sums import SiloDecisions, decided
from hedgerow.boosting.strategies.histogram.mirror import TreeReplica, apply_level
from hedgerow.boosting.strategies.histogram.plan import HistogramPlan, Setup
from hedgerow.boosting.strategies.histogram.round_trees import Integers, RoundShape
from hedgerow.boosting.strategies.histogram.steps import (
    QUANTILES,
    LevelDecision,
    RowsScored,
)
from hedgerow.boosting.streams import Purpose, generator, round_drawn
from hedgerow.boosting.sums.view import state_digest
from hedgerow.boosting.trees.agreed import fingerprints
from hedgerow.boosting.trees.ensemble import Ensemble, Tree
from hedgerow.boosting.trees.local import matrix
from hedgerow.crypto.allocator import release_freed_memory
from hedgerow.crypto.masking.fields import BitFields

Floats = NDArray[np.float32]

_BLOCK_ROWS = 1 << 16


class SiloRows:
    """Training and validation rows of a silo, with their margins.

    Attributes
    ----------
    train : Dataset
    number, draws
        The silo's place in the roster, and what its draws follow from: its random streams.
    digests : list of bytes
        Of what was agreed on before the first round, and with the trees of each round.
    bare : list of bool
        By round, whether its trees are roots alone.
    missing : ndarray of shape (n_features,), bool
        Features of which some training row has no value.
    """

    def __init__(self, plan: HistogramPlan, start: SiloStart) -> None:
        self._plan = plan
        self._n_threads = start.n_threads
        self._storage = start.storage
        self._starting = start.starting
        data = start.dataset
        plan.objective.check_labels(data.labels, start.schema.n_classes)
        if plan.objective.given and data.gradients is None:
            raise InvalidJob(
                "[histogram] gradients: expected a script that computes them, received a table of "
                f"silo {start.silo}"
            )
        self.number, self.draws = start.silos.index(start.silo), start.draws
        rng = generator(start.draws, self.number, 0, Purpose.VALIDATION)
        n_drawn = data.n_samples  # of a ranking whole queries
        if start.schema.task is Task.RANKING:
            n_drawn = len(query_starts(data.labels[:, 1])) - 1
        held = np.zeros(n_drawn, dtype=bool)
        held[rng.permutation(n_drawn)[: int(plan.parameters.validation * n_drawn)]] = True
        if start.schema.task is Task.RANKING:
            held = rows_of_queries(data.labels, held)
        self.train = data.take(np.flatnonzero(~held)) if held.any() else data
        self._valid = data.take(np.flatnonzero(held))
        if plan.parameters.validation_tables:
            assert start.validation is not None, "an agent without one declines the job"
            self._valid = start.validation
            plan.objective.check_labels(self._valid.labels, start.schema.n_classes)

    def begin(self, opening: Setup) -> None:
        """Bin the rows and start their margins."""
        self._opening, self._cuts = opening, opening.cuts
        release_freed_memory()  # of the columns that were sorted
        self.digests = [state_digest(self._plan.schema, opening.terms)]
        self.bare: list[bool] = []
        self.known: list[bytes] = []
        margin = margins_of(self._plan.objective, opening.base_score)
        margin = np.broadcast_to(margin, self._plan.n_outputs) if margin.shape[0] == 1 else margin
        self._metrics = self._plan.metric_sums(opening)
        self.table, self._valid_table = (
            self._placed(data, margin) for data in (self.train, self._valid)
        )
        self._start_margin = float(margin[0])
        if opening.labels is not None and self._plan.objective.by_risk_sets:
            self.table.y = cell_labels(self.train.held_labels, opening.labels.thresholds)
        elif opening.labels is not None:
            self.table.y = opening.labels.of(self.train.held_labels)
        self.missing = self.table.missing

    def _placed(self, data: Dataset, margin: Margins) -> PartyRows:
        """Return rows in bins, with margins at the predictions of the model they start from.

        That model's thresholds need not be cut points, so the rows are in bins of its own before:
        each column is read once for them, and they are gone before the room is needed again.
        """
        n_total = self.train.n_samples + self._valid.n_samples
        room = self._storage.share(data.n_samples, n_total)
        starts: Floats | Margins = margin if data.base_margin is None else data.base_margin
        for model, cuts in (
            [] if self._starting is None else by_own_cuts(self._starting, data.schema)
        ):
            earlier = placed(data, cuts, margin, self._n_threads, room)
            earlier.margins[:] = starts
            self._add_trees(model, cuts, data, earlier)
            starts = earlier.margins
            del earlier
        table = placed(data, self._cuts, margin, self._n_threads, room)
        table.margins[:] = starts
        return table

    @property
    def model(self) -> bytes:
        """Digest of what was agreed on before the first round and of the trees so far."""
        return self.digests[-1]

    def restore(self, ensemble: Ensemble) -> None:
        """Add the trees of earlier rounds to the margins."""
        start = 0
        for end in ensemble.round_ends:
            first, last = (ensemble.steps[n - 1] if n else 0 for n in (start, end))
            self._follow(ensemble.trees[first:last])
            start = end
        for data, table in ((self.train, self.table), (self._valid, self._valid_table)):
            self._add_trees(ensemble, self._cuts, data, table)

    def _add_trees(self, ensemble: Ensemble, cuts: Cuts, data: Dataset, table: PartyRows) -> None:
        """Add trees whose thresholds are cut points to the margins of a table."""
        for rows in _blocks(data.n_samples):
            start = table.margins[rows]
            margins = ensemble.margins(
                matrix(Dataset(data.schema, table.values(cuts, rows)), self._n_threads),
                start=start[:, 0] if start.shape[1] == 1 else start,
                n_threads=self._n_threads,
            )
            table.margins[rows] = margins.reshape(start.shape)

    def risk_parts(self) -> NDArray[np.uint64]:
        """Return this silo's part of the sums over risk sets."""
        assert self._opening.labels is not None
        table = self.table
        return risk_parts(
            table.y.astype(np.float32, copy=False), table.margins, self._opening.labels.n_cells
        )

    def gradients(self, round_: int, risk: RiskSets | None = None) -> Floats:
        """Return g and h of the training rows, interleaved: shape (n_samples, 2 * n_outputs)."""
        table = self.table
        if self._plan.objective.given:
            assert self.train.gradients is not None
            return given_pairs(self.train.gradients, round_, table.margins)
        if risk is not None:
            return risk.pairs(table.margins, table.y.astype(np.float32, copy=False))
        return self._plan.objective.pairs(table.margins, table.y, table.weight)

    def renewed(
        self,
        trees: Sequence[GrownTree],
        decisions: SiloDecisions,
        round_: int,
        state: bytes,
        *,
        cut: bool,
    ) -> list[GrownTree]:
        """Return a round's trees with quantiles of residuals as leaf values, unless they were cut.

        Parameters
        ----------
        state : bytes
            Digest of what the trees follow from, and of the trees.
        """
        if cut:
            return self._plan.renewed(trees, None, self._opening, round_)
        table, passing = self.table, 0
        y = table.y.astype(np.float64)
        plan = self._plan.of_round(round_)
        own = LeafRows(
            (node, y - table.margins[:, k], tree.leaves)
            for t, tree in enumerate(trees)
            for node in [table.nodes_reached(tree)]
            for k in plan.groups(t)
        )
        search = plan.leaf_search(self._opening, trees)
        while search.n_asked:
            at = ExchangeKey(round_, 0, passing)
            asked = state_digest(state, search.asked)
            below = own.below(search)
            told = decisions.counts(QUANTILES, at, below, state=asked, whole=True)
            if not told.shape[0]:  # a silo was lost: with what is known
                break
            decided(at, search.take, told)
            passing += 1
        return plan.renewed(trees, search, self._opening, round_)

    def grown(self, mirrors: Sequence[TreeReplica], values: Floats, round_: int) -> list[GrownTree]:
        """Return a round's trees with the leaf values that the coordinator has sent.

        Parameters
        ----------
        values : ndarray of shape (n_values,), float32
            As in :class:`ClosedTrees`.
        """
        width = self._plan.of_round(round_).width // 2
        ends = np.cumsum([len(mirror.leaves) * width for mirror in mirrors])
        if values.shape[0] != ends[-1] or not np.isfinite(values).all():
            raise OfferRejected(f"leaf values: expected {ends[-1]} finite numbers")
        parts = np.split(values, ends[:-1])
        return [
            mirror.grown(part.reshape(-1, width))
            for mirror, part in zip(mirrors, parts, strict=True)
        ]

    def add(self, grown: Sequence[GrownTree], division: GrowingRows | None, round_: int) -> None:
        """Add a round's trees to the margins.

        Parameters
        ----------
        division : Division or None
            The rows that the trees were grown on, where these are some of this silo's.
        """
        plan = self._plan.of_round(round_)
        trees = [(tree, plan.groups(t)) for t, tree in enumerate(grown)]
        (division or self.table).add(trees)
        if self._valid.n_samples:
            self._valid_table.add(trees)
        self._follow(plan.trees(grown, self._opening))

    def _follow(self, trees: Sequence[Tree]) -> None:
        """Add a round's trees to the digest of the model: structure and leaf values."""
        self.digests.append(state_digest(self.model, *(tree.structure for tree in trees)))
        self.bare.append(all(tree.n_nodes == 1 for tree in trees))
        self.known += fingerprints(trees)

    def metric_sums(self, scored: RowsScored) -> NDArray[np.uint64]:
        """Return this silo's part of the metrics of training rows, validation rows or both."""
        sets = {"train": (self.train, self.table), "valid": (self._valid, self._valid_table)}
        return np.concatenate([self._parts(*sets[name]) for name in scored.sets])

    def errors(self) -> Floats:
        """Return how far labels of the rows held back are from predictions, as float32.

        Of quantiles how far they are outside of the outer ones.
        """
        margin = self._valid_table.margins.astype(np.float64)
        told = link(self._plan.job.objective, margin)
        with np.errstate(over="ignore"):
            found = errors(told, self._valid.held_labels).astype(np.float32)
        return np.where(np.isfinite(found), found, np.finfo(np.float32).max / 2).astype(np.float32)

    def _parts(self, data: Dataset, table: PartyRows) -> NDArray[np.uint64]:
        margins = table.margins[:, 0] if table.margins.shape[1] == 1 else table.margins
        n_rows = max(1, data.n_samples)
        whole = self._metrics.compares or data.schema.task is Task.RANKING
        blocks = _blocks(n_rows, whole=whole)
        parts = [
            self._metrics.parts(
                data.held_labels[rows].astype(np.float64, copy=False),
                margins[rows],
                objective=self._plan.job.objective,
                weight=None if data.weight is None else data.weight[rows],
                center=self._start_margin,
                metric=data.metric,
            )
            for rows in blocks
        ]
        return np.asarray(np.sum(parts, axis=0, dtype=np.uint64))


def _blocks(n_samples: int, *, whole: bool = False) -> Iterator[slice]:
    """Yield rows that are worked on at a time, so that what that takes does not grow with them.

    With ``whole`` they are all rows at once: a query is not to be divided.
    """
    n_rows = n_samples if whole else _BLOCK_ROWS
    for first in range(0, n_samples, n_rows):
        yield slice(first, first + n_rows)


def by_own_cuts(
    model: Ensemble, schema: Schema, most_bins: int = MOST_BINS
) -> list[tuple[Ensemble, Cuts]]:
    """Return a model's trees in order with their thresholds as cut points.

    In parts where a feature has more of them than bins can have.
    """
    nodes = [np.flatnonzero(~tree.is_leaf) for tree in model.trees]
    pairs = list(zip(model.trees, nodes, strict=True))
    feature = np.concatenate([np.empty(0, np.int32), *(tree.feature[own] for tree, own in pairs)])
    threshold = np.concatenate([np.empty(0, "f4"), *(tree.threshold[own] for tree, own in pairs)])
    order = np.argsort(feature, kind="stable")
    ends = np.searchsorted(feature[order], np.arange(schema.n_features + 1))
    found = (threshold[order[ends[j] : ends[j + 1]]] for j in numeric_features(schema))
    of = [np.unique(own[np.abs(own) < FENCE]) for own in found]  # others part no rows
    if model.version < 2 or max((len(own) for own in of), default=0) < most_bins:
        return [(model, cuts_from_thresholds(schema, of))]
    half = model.version // 2
    parts = (
        replace(model, trees=trees, steps=(len(trees),), round_ends=())
        for trees in (model.trees[:half], model.trees[half:])
    )
    return [one for part in parts for one in by_own_cuts(part, schema, most_bins)]


def drawn_by_tree(
    plan: HistogramPlan, pairs: Floats, rng: np.random.Generator, threshold: float | None
) -> tuple[Floats, Sample]:
    """Return gradients of each tree of a round, weighted and 0 in rows that are not drawn for it.

    Parameters
    ----------
    pairs : ndarray of shape (n_samples, 2 * n_outputs), float32

    Returns
    -------
    ndarray of shape (n_samples, n_trees * width), float32
    Sample
        All rows.
    """
    found = np.zeros((pairs.shape[0], plan.n_trees * plan.width), np.float32)
    for t in range(plan.n_trees):
        sample = plan.parameters.sampler.draw(pairs[:, 0::2], pairs[:, 1::2], rng, threshold)
        own = pairs[sample.rows, plan.part(t)]
        if sample.weight is not None:
            own = own * sample.weight[:, None]
        found[sample.rows, t * plan.width : (t + 1) * plan.width] = own
    return found, Sample(np.arange(pairs.shape[0], dtype=np.int32))


class PackedLevel(NamedTuple):
    """Words of a level's vector, their fields, and whether a width may turn out too narrow."""

    words: NDArray[np.uint64]
    fields: BitFields
    guessed: bool


class DividedRows:
    """A silo's sampled rows in the trees of a round: sums go out, splits come in.

    Parameters
    ----------
    pairs : ndarray of shape (n_samples, 2 * n_outputs), float32
        Gradients, interleaved; the kept rows' are multiplied by their weights. Of
        :func:`drawn_by_tree` those of each tree.
    """

    def __init__(
        self,
        plan: HistogramPlan,
        rows: SiloRows,
        shape: RoundShape,
        pairs: Floats,
        sample: Sample,
        quantiser: Quantiser,
        round_: int,
    ) -> None:
        quantiser.weigh(pairs, sample)
        searched: Gradients = pairs
        if plan.parameters.coarse_bits:
            drawn = round_drawn(plan.job, round_)
            rng = generator(rows.draws, rows.number, drawn, Purpose.ROUNDING)
            searched = quantiser.coarse(pairs[:, 0::2], pairs[:, 1::2], Sample(sample.rows), rng)
        self._shape = shape
        self._scale, self._leaf_scale = plan.scales(quantiser)
        self._missing = rows.missing
        self._round = round_
        self._leaf_sums: list[Integers | None] = [None] * plan.n_trees
        self.mirrors = [shape.mirror() for _ in range(plan.n_trees)]
        wide = range(0, plan.n_trees * plan.width, plan.width)
        parts = [slice(at, at + plan.width) if plan.draws_by_tree else plan.part(t)
                 for t, at in enumerate(wide)]  # fmt: skip
        own = [
            TreeIntegers(
                layout,
                cast("Gradients", np.ascontiguousarray(searched[:, part])),
                np.ascontiguousarray(pairs[:, part]) if searched is not pairs else None,
                quantiser.units,
            )
            for part, layout in zip(parts, shape.layouts, strict=True)
        ]
        self.division = rows.table.divide(sample.rows, own)

    def level(self, level: int) -> Integers:
        """Return this silo's part of a level's vector: the requested nodes' histograms.

        The first level has the totals of each tree before its root's histogram.
        """
        return self.division.sums([mirror.request for mirror in self.mirrors], totals=level == 0)

    def packed(self, own: Integers, level: int, n_silos: int, passing: int) -> PackedLevel:
        """Return a level's vector as it travels in a sum over at most ``n_silos`` silos."""
        rings = self._shape.rings(self.mirrors, self._scale, first=level == 0, passing=passing)
        return PackedLevel(rings.pack(own, self._missing, n_silos), rings.fields, rings.guessed)

    def leaves(self) -> Integers:
        """Return this silo's part of the lossless leaf sums."""
        return self.division.node_sums([mirror.leaves for mirror in self.mirrors], exact=True)

    def totals(self, own: Integers, level: int) -> Integers:
        """Return this silo's part of the sums of the requested nodes, from :meth:`level`."""
        width, at = self._shape.width, 0
        requests = [mirror.request for mirror in self.mirrors]
        found: list[Integers] = []
        for request, layout in zip(requests, self._shape.layouts, strict=True):
            if level == 0:
                found.append(own[at : at + width])
                at += width * (1 + layout.n_bins)
                continue
            size = len(request) * layout.n_bins * width
            n_bins = np.diff(layout.offsets)
            n_bins[self._missing[layout.features]] = MOST_BINS + 1
            least = int(n_bins.min())
            if request and least > MOST_BINS:  # rows without a value are in no bin
                return self.division.node_sums(requests, exact=False)
            if request:
                first = layout.offsets[n_bins.argmin()]
                histograms = own[at : at + size].reshape(len(request), layout.n_bins, width)
                bins = histograms[:, first : first + least].transpose(0, 2, 1).copy()
                found.append(bins.sum(axis=2).reshape(-1))
            at += size
        return np.concatenate(found)

    def last_totals(self) -> tuple[Integers, Integers]:
        """Return this silo's part of the last sum: nodes in no sum yet, and renewed leaves."""
        nodes = [sorted(mirror.unsummed) for mirror in self.mirrors]
        renewed = np.empty(0, np.int64) if self._leaf_scale is None else self.leaves()
        return self.division.node_sums(nodes, exact=False), renewed

    def take(self, nodes: Sequence[Sequence[int]], sums: Integers, level: int) -> Integers:
        """Keep checked sums of some nodes of each tree; return the others that follow.

        Raises
        ------
        OfferRejected
            A node with less weight than a division may leave; names the coordinator.
        """
        width, at = self._shape.width, 0
        for t, (mirror, own) in enumerate(zip(self.mirrors, nodes, strict=True)):
            size = len(own) * width
            found = mirror.take(own, sums[at : at + size].reshape(-1, width))
            at += size
            light = too_light(found, self._shape.parameters, self._scale)
            if light.any() and 0 not in own:
                raise OfferRejected(
                    f"round {self._round}, level {level}: the coordinator has divided a node of "
                    f"tree {t} into one with less weight than min_child_weight, "
                    f"{self._shape.parameters.min_child_weight:g}"
                )
        return sums[at:]

    def take_leaves(self, sums: Integers) -> None:
        """Keep the checked lossless sums of all leaves, where leaf values are renewed."""
        if self._leaf_scale is None:
            return
        sizes = [len(mirror.leaves) * self._shape.width for mirror in self.mirrors]
        parts = np.split(sums, np.cumsum(sizes)[:-1])
        self._leaf_sums = [part.reshape(-1, self._shape.width) for part in parts]

    def cut(self) -> None:
        """Take back divisions whose children's sums nobody has checked; see the mirrors."""
        for mirror in self.mirrors:
            mirror.cut()

    def derived(self) -> list[GrownTree]:
        """Return the trees with what follows from the checked sums."""
        return [
            mirror.derived(self._shape.parameters, self._scale, sums, self._leaf_scale)
            for mirror, sums in zip(self.mirrors, self._leaf_sums, strict=True)
        ]

    def divide(self, decision: LevelDecision) -> None:
        """Move the rows by a level's splits; raises OfferRejected for splits that do not fit."""
        self.division.split(apply_level(self.mirrors, decision.trees))

    def forget(self) -> None:
        """Free row-sized arrays even if references to this object remain.

        An error on the way keeps the frames that it passed until the next garbage collection.
        """
        del self.division

    @property
    def state(self) -> tuple[object, ...]:
        """What the next sums of the trees follow from."""
        return tuple(mirror.state for mirror in self.mirrors)

    @property
    def done(self) -> bool:
        """Whether no further histogram is requested."""
        return not any(mirror.request for mirror in self.mirrors)
