"""The silo half of histogram boosting; the protocol is told in ``histogram``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Dataset
from hedgerow.boosting.engine.bisection import Bisector, count_below
from hedgerow.boosting.engine.cuts import Cuts
from hedgerow.boosting.engine.histogram import build_histograms, node_sums
from hedgerow.boosting.engine.objective import StartRule
from hedgerow.boosting.engine.partition import RowPartition
from hedgerow.boosting.engine.quantising import (
    Quantiser,
    bound_of_exponents,
    exponents,
)
from hedgerow.boosting.engine.sampling import Sample, mvs_scores
from hedgerow.boosting.engine.start import median_search, weight_exponent
from hedgerow.boosting.engine.summaries import summarise, summary_points
from hedgerow.boosting.engine.table import Table
from hedgerow.boosting.errors import JobStopped, OfferRejected, PlacePassed
from hedgerow.boosting.exchange import Place
from hedgerow.boosting.ports import Artefact
from hedgerow.boosting.strategies.histogram.growth import Growth, Mirror, read_splits
from hedgerow.boosting.strategies.histogram.state import (
    Agreed,
    Plan,
    as_bytes,
    given_cuts,
    pack,
    read_cuts,
    unpack,
)
from hedgerow.boosting.strategies.histogram.steps import (
    BOUNDS,
    COUNTS,
    CUTS,
    ENTER,
    HISTOGRAMS,
    LEAVES,
    MEDIAN,
    OPENING,
    PROPOSALS,
    SCORED_ON_VALID,
    SCORES,
    SYNC,
    THRESHOLDS,
    Decide,
    Integers,
    blank_ensemble,
    cuts_of,
    decide_counts,
    decide_level,
    decide_threshold,
    leaf_values,
    matrix_of,
    metric_names,
    read_total,
    trees_of_round,
    write_summaries,
)
from hedgerow.boosting.streams import Purpose, generator
from hedgerow.boosting.sums.exact import label_parts, mean_label
from hedgerow.boosting.sums.floats import add_securely
from hedgerow.boosting.sums.silo import SiloSums
from hedgerow.boosting.sums.steps import SumSteps
from hedgerow.boosting.tensors import Tensors
from hedgerow.boosting.trees.ensemble import Ensemble, load
from hedgerow.crypto.fixed_point import reduce_residues, residue_dtype, signed

if TYPE_CHECKING:
    from hedgerow.boosting.exchange import Link
    from hedgerow.boosting.ports import SiloStart
    from hedgerow.boosting.strategies.histogram.parameters import Histogram
    from hedgerow.crypto.vault import Vault


Floats = NDArray[np.float32]


def participate(
    strategy: Histogram, link: Link, vault: Vault | None, start: SiloStart
) -> Artefact | None:
    """Take part until the job is over; a silo that was left out enters again."""
    half = _SiloHalf(strategy, link, vault, start)
    while True:
        try:
            if not half.enter():
                return half.artefact()
            while not half.final:
                half.take_round()
            return half.artefact()
        except PlacePassed:
            link.check()


@dataclass(slots=True)
class _SiloHalf:
    strategy: Histogram
    link: Link
    vault: Vault | None
    start: SiloStart
    plan: Plan = field(init=False)
    sums: SiloSums = field(init=False)
    train: Dataset = field(init=False)
    valid: Dataset = field(init=False)
    number: int = field(init=False)
    agreed: Agreed | None = field(init=False, default=None)
    table: Table = field(init=False)
    valid_table: Table = field(init=False)
    ensemble: Ensemble | None = field(init=False, default=None)
    evaluate: int = field(init=False, default=0)
    n_known: int = field(init=False, default=0)
    n_syncs: int = field(init=False, default=0)
    round: int = field(init=False, default=0)
    final: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        start = self.start
        self.plan = Plan.of(self.strategy, start.job, start.schema)
        self.number = start.silos.index(start.silo)
        self.plan.objective.check_labels(start.dataset.labels, start.schema.n_classes)
        n = start.dataset.n_samples
        rng = generator(start.job.seed, self.number, 0, Purpose.VALIDATION)
        held = np.zeros(n, dtype=bool)
        held[rng.permutation(n)[: int(self.strategy.validation * n)]] = True
        self.train = start.dataset.take(np.flatnonzero(~held))
        self.valid = start.dataset.take(np.flatnonzero(held))
        self.sums = SiloSums(
            self.link,
            self.vault,
            start.identity,
            silo=start.silo,
            roster=start.silos,
            job_id=start.job_id,
            attempt=start.attempt,
            parameters=self.strategy.sum_parameters(start.job),
        )

    @property
    def blind(self) -> bool:
        """Whether sums are for the silos' eyes only."""
        return self.strategy.blind_coordinator

    # entering: at the start, and again after this silo was left out

    def enter(self) -> bool:
        """Wait for the round at which this silo may enter; False when the job is over."""
        told = self.link.exchange(SYNC, Place(0, 0, self.n_syncs), Tensors())
        self.n_syncs += 1
        target = int(told.get("round", "<i8", (1,))[0])
        if target < 0:
            return False
        if self.blind and self.agreed is None and target > 0:
            self._recall(target)
        at = Place(target)
        offer = Tensors({"known": np.array([self.n_known], np.int64)})
        told = self.link.exchange(ENTER, at, offer)
        self.evaluate = int(told.get("evaluate", "<i8", (1,))[0])
        if told.has("model"):
            self._restore(told)
        target = int(told.get("round", "<i8", (1,))[0])
        if target < 0:
            return False
        at = Place(target)
        self.round = target
        self.sums.setup(at)
        if self.agreed is None:
            self._open(at)
        elif self.n_known != target:
            raise JobStopped("this silo has no copy of the trees that it has missed")
        return True

    def _restore(self, told: Tensors) -> None:
        ensemble = load(told.get("model", "|u1", (None,)).tobytes())
        self._begin(Agreed.read(told))
        self.n_known = len(ensemble.round_ends)
        if self.blind:
            self.ensemble = ensemble
        for data, table in ((self.train, self.table), (self.valid, self.valid_table)):
            if data.n_samples:
                margins = ensemble.margins(matrix_of(data), n_threads=self.start.n_threads)
                table.margins[:] = margins.reshape(table.margins.shape)

    def _begin(self, agreed: Agreed) -> None:
        self.agreed = agreed
        margin = self.plan.objective.margin_of(agreed.base_score)
        n_threads = self.start.n_threads
        self.table = Table.of(self.train, agreed.cuts, margin, n_threads)
        self.valid_table = Table.of(self.valid, agreed.cuts, margin, n_threads)
        self.n_known = 0
        if self.blind:
            self.ensemble = blank_ensemble(self.plan, agreed)

    def _recall(self, round_: int) -> None:
        kept = self.link.recall(f"histogram/{round_ % 2}")
        told = unpack(kept) if kept is not None else Tensors()
        if kept is None or int(told.get("round", "<i8", (1,))[0]) != round_:
            raise JobStopped("this silo has no copy of the trees, and nobody else can give it one")
        self._restore(told)

    def _remember(self) -> None:
        """Keep the model of a blind job: it is nowhere but in silos."""
        assert self.ensemble is not None
        assert self.agreed is not None
        state: dict[str, NDArray[Any]] = {
            "round": np.array([self.round], np.int64),
            "model": as_bytes(self.ensemble.save()),
            **self.agreed.arrays(),
        }
        self.link.remember(f"histogram/{self.round % 2}", pack(state))

    # the opening: rows, start score, cut points

    def _open(self, at: Place) -> None:
        plan, data = self.plan, self.train
        own = np.array([weight_exponent(data.n_samples, data.weight)], np.int64)
        told = self.link.exchange(OPENING, at, Tensors({"exponents": own}))
        (largest_weight,) = told.get("exponents", "<i8", (1,)).tolist()
        n_largest = int(told.get("largest", "<i8", (1,))[0]) if told.has("largest") else 0
        n_rows = int(self._total(at, np.array([data.n_samples]))[0])
        base_score = plan.job.booster.base_score
        rule = plan.objective.start_rule
        if base_score is None and rule is StartRule.MEAN:
            parts = label_parts(data.labels, data.weight)
            total = self.sums.total(Place(at.round, 0, 1), parts)
            base_score = plan.objective.start_of(mean_label(total.values))
        elif base_score is None and rule is StartRule.MEDIAN:
            column = np.sort(data.labels.astype(np.float32))
            search = median_search()
            told = self._bisect(MEDIAN, at, search, [column])
            base_score = told.number("median")
        elif base_score is None:
            base_score = plan.objective.default_base_score
        cuts = self._agree_on_cuts(at, n_rows, n_largest)
        self._begin(Agreed(n_rows, largest_weight, base_score, cuts))

    def _total(self, at: Place, own: Integers) -> Integers:
        residues = own.astype(np.int64).view(np.uint64)
        return signed(self.sums.total(at, residues).values, 64)

    def _agree_on_cuts(self, at: Place, n_rows: int, n_largest: int) -> Cuts:
        strategy, plan = self.strategy, self.plan
        columns = [self.train.X[:, j] for j in plan.numeric]
        if strategy.binning == "given":
            return given_cuts(plan.schema, strategy.cut_points)
        if strategy.binning == "summary":
            n_points = summary_points(
                strategy.bins_policy,
                plan.job.booster.max_bin,
                self.train.n_samples,
                n_rows,
                n_largest,
                len(self.start.silos),
            )
            summaries = [summarise(c, n_points, self.train.weight) for c in columns]
            told = self.link.exchange(CUTS, at, Tensors(write_summaries(summaries)))
            return read_cuts(told)
        ordered = [np.sort(c[~np.isnan(c)]) for c in columns]
        search = Bisector(len(columns), plan.job.booster.max_bin, strategy.binning_error)
        told = self._bisect(COUNTS, at, search, ordered)
        if self.blind:
            return cuts_of(plan, search)
        return read_cuts(told)

    def _bisect(
        self,
        kind: SumSteps[Tensors],
        at: Place,
        search: Bisector,
        ordered: list[NDArray[np.float32]],
    ) -> Tensors:
        """Count below proposed values until there are none; return the last reply."""
        told = Tensors()
        column, key, passing = search.column, search.key, 0
        while column.shape[0]:
            place = Place(at.round, 0, passing)
            if self.blind:
                size = Tensors({"size": np.array([column.shape[0]], np.int64)})
                self.link.exchange(PROPOSALS, place, size)
            own = count_below(ordered, column, key)
            told = self._add(kind, place, own, 64, lambda sums: decide_counts(search, sums))
            column = told.get("column", "<i8", (None,))
            key = told.get("key", "<i8", (None,))
            if np.any(column < 0) or np.any(column >= len(ordered)) or column.shape != key.shape:
                raise OfferRejected("proposals: a column that does not exist")
            passing += 1
        if self.blind:
            nothing = Tensors({"size": np.zeros(1, np.int64)})
            self.link.exchange(PROPOSALS, Place(at.round, 0, passing), nothing)
        return told

    def _add(
        self,
        kind: SumSteps[Tensors],
        at: Place,
        own: Integers,
        ring_bits: int,
        decide: Decide,
        *,
        whole: bool = False,
    ) -> Tensors:
        """Add integers to a sum; return what was decided from it, at the coordinator or here."""
        residues = own.view(np.uint64).astype(residue_dtype(ring_bits), copy=False)
        reduce_residues(residues, ring_bits)
        told = self.sums.sum(kind, at, residues, ring_bits=ring_bits, whole=whole)
        if not self.blind:
            return told
        total = read_total(told, ring_bits)
        sums = signed(self.sums.opened(total).values, ring_bits) if total.present else None
        return Tensors({**decide(sums), **told.arrays})

    # a round

    def take_round(self) -> None:
        """Grow a round's trees with the other silos and add them to the margins."""
        plan, agreed, table, r = self.plan, self.agreed, self.table, self.round
        assert agreed is not None
        g, h = plan.objective.gradients(table.margins, table.y, table.weight)
        threshold = self._threshold(g, h) if self.strategy.shares_threshold else None
        rng = generator(plan.job.seed, self.number, r, Purpose.SAMPLING)
        sample = self.strategy.sampler.draw(g, h, rng, threshold)
        bound = plan.static_bound(agreed)
        if bound is None:
            bound = self._bounds(Place(r, 0, 0 if threshold is None else 1), g, h, sample)
        quantiser = plan.quantiser(agreed, bound)
        exact = quantiser.lossless(g, h, sample)
        searched = exact
        if self.strategy.coarse_bits:
            rng = generator(plan.job.seed, self.number, r, Purpose.ROUNDING)
            searched = quantiser.coarse(g, h, sample, rng)
        trees = [
            _SiloTree(
                RowPartition(sample.rows),
                Mirror(agreed.cuts.n_bins),
                np.ascontiguousarray(searched[:, plan.part(t)]),
                np.ascontiguousarray(exact[:, plan.part(t)]) if searched is not exact else None,
            )
            for t in range(plan.n_trees)
        ]
        growth, told = self._grow(trees, quantiser)
        if not told.has("values"):
            told = self._renew(trees, growth, quantiser)
        self._add_trees(trees, told, growth)
        self.round += 1
        self.n_known += 1
        if self.blind:
            self._remember()
        self._close(told)

    def _bounds(self, at: Place, g: Floats, h: Floats, sample: Sample) -> tuple[float, float]:
        """Agree on bounds of the kept rows' weighted gradients."""
        own = np.array(exponents(g, h, sample), np.int64)
        told = self.link.exchange(BOUNDS, at, Tensors({"exponents": own}))
        return bound_of_exponents(*told.get("exponents", "<i8", (2,)).tolist())

    def _threshold(self, g: Floats, h: Floats) -> float:
        """Find the sampling threshold of all silos' rows together."""
        assert self.agreed is not None
        everyone = Sample(np.arange(g.shape[0], dtype=np.int32))
        bound = self._bounds(Place(self.round), g, h, everyone)
        search = self.plan.threshold_search(self.agreed, bound)
        scores = mvs_scores(g, h, self.strategy.mvs_lambda)
        for passing in range(search.N_PASSES):
            place = Place(self.round, 0, passing)
            own = search.own(scores)
            told = self._add(THRESHOLDS, place, own, 64, lambda s: decide_threshold(search, s))
            search.accept(*told.get("threshold", "<f8", (3,)).tolist())
        return search.mu

    def _grow(self, trees: list[_SiloTree], quantiser: Quantiser) -> tuple[Growth, Tensors]:
        agreed, n_threads = self.agreed, self.start.n_threads
        assert agreed is not None
        coarse = bool(self.strategy.coarse_bits)
        shape = self.plan.shape(agreed.cuts, self.round)
        layouts = shape.layouts
        scale = quantiser.coarse_scale if coarse else quantiser.scale
        growth = Growth(shape, scale, n_threads)
        ring_bits = self.plan.search_ring(None if self.blind else agreed)
        requests: list[tuple[int, ...]] = [(0,)] * len(trees)
        decided, level = Tensors(), 0
        while True:
            parts = []
            for tree, layout, request in zip(trees, layouts, requests, strict=True):
                if level == 0:
                    parts.append(node_sums(tree.partition, [0], tree.searched).reshape(-1))
                parts.append(
                    build_histograms(
                        self.table.binned, tree.partition, request, tree.searched, layout, n_threads
                    ).reshape(-1)
                )
            own = np.concatenate(parts)
            if self.blind:
                n_padded = self.plan.n_padded(self.round, level)
                own = np.pad(own, (0, n_padded - own.shape[0]))

            def decide(sums: Integers | None) -> dict[str, NDArray[Any]]:
                if growth.done and sums is not None:
                    return {}  # a level that only hides how deep the trees are
                return decide_level(growth, sums, coarse)

            place = Place(self.round, level)
            told = self._add(HISTOGRAMS, place, own, ring_bits, decide, whole=level > 0)
            if told.has("splits"):
                splits, requests = read_splits(told, len(trees))
                for tree, split in zip(trees, splits, strict=True):
                    tree.mirror.apply(split)
                    tree.partition.split_by_bins(self.table.binned, split)
                decided = told
            level += 1
            if self.blind and level < self.plan.n_levels and not told.has("abandoned"):
                continue
            if bool(decided.get("done", "|u1", (1,))[0]):
                return growth, Tensors({**decided.arrays, **told.arrays})

    def _renew(self, trees: list[_SiloTree], growth: Growth, quantiser: Quantiser) -> Tensors:
        own = np.concatenate(
            [
                node_sums(tree.partition, tree.mirror.leaves, tree.exact).reshape(-1)
                for tree in trees
                if tree.exact is not None
            ]
        )
        if self.blind:
            own = np.pad(own, (0, self.plan.n_padded_leaves - own.shape[0]))
        return self._add(
            LEAVES,
            Place(self.round),
            own,
            self.strategy.ring_bits,
            lambda sums: leaf_values(growth, sums, None if sums is None else quantiser),
            whole=True,
        )

    def _add_trees(self, trees: list[_SiloTree], told: Tensors, growth: Growth) -> None:
        plan, agreed = self.plan, self.agreed
        assert agreed is not None
        n_leaves = [len(tree.mirror.leaves) * plan.width // 2 for tree in trees]
        values = told.get("values", "<f4", (sum(n_leaves),))
        ends = np.cumsum(n_leaves)
        for t, tree in enumerate(trees):
            part = values[ends[t] - n_leaves[t] : ends[t]].reshape(-1, plan.width // 2)
            grown = tree.mirror.grown(part)
            self.table.add_tree(grown, tree.partition, plan.groups(t))
            if self.valid.n_samples:
                self.valid_table.add_tree(grown, None, plan.groups(t))
        if self.ensemble is not None:
            self.ensemble = self.ensemble.extend(trees_of_round(plan, growth, agreed), n_steps=1)

    def _close(self, told: Tensors) -> None:
        """Score the round where that is wanted; go on, stop, or agree on fresh keys."""
        at = Place(self.round - 1)
        if self.evaluate:
            data, table = self.train, self.table
            if self.evaluate == SCORED_ON_VALID:
                data, table = self.valid, self.valid_table
            assert self.agreed is not None
            vector = metrics.sums(
                metric_names(self.plan),
                data.labels,
                _flat(table.margins),
                objective=self.plan.job.objective,
                weight=data.weight,
                center=self.plan.objective.margin_of(self.agreed.base_score),
            )
            told = add_securely(self.link, self.sums, SCORES, at, vector)
        self.final = bool(told.get("final", "|u1", (1,))[0])
        if not self.final and bool(told.get("setup", "|u1", (1,))[0]):
            place = Place(self.round)
            known = Tensors({"known": np.array([self.n_known], np.int64)})
            self.link.exchange(ENTER, place, known)
            self.sums.setup(place)

    def artefact(self) -> Artefact | None:
        """Return the model, where it stays in the silo."""
        if self.ensemble is None:
            return None
        return Artefact({"model.ubj": self.ensemble.save()}, "model.ubj")


@dataclass(slots=True)
class _SiloTree:
    """A tree that is being grown: its rows, its copy, its integers."""

    partition: RowPartition
    mirror: Mirror
    searched: Integers
    exact: Integers | None


def _flat(margins: NDArray[np.float32]) -> NDArray[np.float32]:
    return margins[:, 0] if margins.shape[1] == 1 else margins
