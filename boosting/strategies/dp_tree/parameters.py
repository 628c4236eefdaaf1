"""A differentially private decision tree: one tree for all silos, grown from noisy sums."""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Schema, Task
from hedgerow.boosting.errors import InvalidJob, OfferRejected
from hedgerow.boosting.exchange import Call, Hub, Link, Place, Receipt, Silo, Step
from hedgerow.boosting.ports import (
    Artefact,
    CoordinatorStart,
    Forecast,
    RoundResult,
    Safeguards,
    SiloStart,
)
from hedgerow.boosting.strategies.dp_tree.bins import CELLS, STAGES, count_cells, descend, edges_of
from hedgerow.boosting.strategies.dp_tree.bins import start as start_descent
from hedgerow.boosting.strategies.dp_tree.budget import (
    BudgetLedger,
    Spending,
    noisy,
    portion,
    replayable,
)
from hedgerow.boosting.strategies.dp_tree.noisy_tree import (
    QUERIES,
    Sprout,
    best_by_candidates,
    best_by_histogram,
    bin_counts,
    close,
    count_bins,
    count_candidates,
    count_classes,
    cuts_of,
    extend,
    nodes_of,
    sprout,
    to_bins,
)
from hedgerow.boosting.sums.coordinator import CoordinatorSums
from hedgerow.boosting.sums.silo import SiloSums
from hedgerow.boosting.sums.steps import SumParameters, sum_steps
from hedgerow.boosting.trees.decision_tree import DecisionTree
from hedgerow.boosting.trees.genetics import MAX_DEPTH
from hedgerow.boosting.trees.personal import OBJECTIVES, tree_files
from hedgerow.crypto.key_agreement import encode_fields
from hedgerow.crypto.noise import discrete_laplace_variance

if TYPE_CHECKING:
    from hedgerow.boosting.ports import JobParameters
    from hedgerow.crypto.vault import Vault

Ints = NDArray[np.int64]

LARGEST_SCALE = 90_000
"""Of the noise of one count; the sampler's tables end there."""

BINNINGS = ("private", "quantile")

_SUM_UP, _SUM_DOWN = 216, 270
"""Bytes of a sum beside counts, signatures and what each further silo adds; measured."""

_KEY, _BOX = 880, 1062
"""Bytes of a silo's signed key, and of its sealed shares for another; measured."""


@dataclass(frozen=True, slots=True, eq=False)
class GrowthState:
    """The tree so far, or the bin edges so far: all that the next query depends on.

    Parameters
    ----------
    stage : int
        Stage of the bin edges; :data:`~strategies.dp_tree.bins.STAGES` when they are settled.
    level : int
        Tree level whose counts are due.
    intervals : tuple of tuple of int
        For each feature the intervals whose cells are to be counted; empty once settled.
    tree : Sprout
        Without nodes while edges are not settled.
    """

    stage: int
    level: int
    intervals: tuple[tuple[int, ...], ...]
    tree: Sprout

    @property
    def digest(self) -> bytes:
        """SHA-256 of everything above: names a query with all that it depends on."""
        tree = self.tree
        numbers = [self.stage, self.level]
        numbers += [n for own in self.intervals for n in (len(own), *own)]
        numbers += [len(own) for own in tree.edges] + [len(tree.feature)]
        arrays = (*tree.edges, tree.feature, tree.left, tree.right, tree.goes_left)
        body = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
        return hashlib.sha256(encode_fields(*numbers, body)).digest()


STANDING = Step("standing", Call.SUMS, Receipt, GrowthState, "that the silo is there")
CELL_SUMS = sum_steps(
    "cells", Call.SUMS, Call.SUMS, GrowthState, "rows by interval of each numeric feature"
)
COUNT_SUMS = sum_steps(
    "counts", Call.HISTOGRAMS, Call.HISTOGRAMS, GrowthState,
    "rows by class, of each open node and of each bin or cut in it, with noise",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DPTree:
    """One classification tree under epsilon-differential privacy for every row of every silo.

    The tree grows level by level. Silos count their rows by class in every open node, and by bin
    in every feature of it, add their part of discrete Laplace noise and enter the counts into a
    secure sum: only noisy totals are ever seen. The parts of ``honest`` silos make up the whole
    noise, so all but that many silos may collude with the coordinator. The coordinator picks the
    best Gini gain, makes leaves of nodes that drown in noise, and tells the silos.

    ============  ================  =====================================  ====================
    step          place             a silo offers                          and gets
    ============  ================  =====================================  ====================
    standing      served            nothing                                tree so far
    cells         round 0, 3 times  masked noisy counts by interval        next intervals
    counts        each level        masked noisy counts of the open nodes  splits of the level
    ============  ================  =====================================  ====================

    **Budget.** Rows are added or removed one at a time. Private bin edges spend ``binning_share``
    of epsilon (numeric features only), equally over 3 stages and all features. The rest is spent
    equally on ``depth + 1`` queries of class counts and ``depth`` queries of splits; nodes of one
    level have disjoint rows and are asked together. A split query is divided among the features
    (``query = "histogram"``: all cuts of a feature are read from one histogram) or among all cuts
    (``"candidates"``: counts on both sides of each, as in Truex et al.). Every silo keeps a durable
    ledger and refuses a query that does not fit; a query repeated after a restart gets the same
    noise and costs nothing. Noise is drawn from the operating system's generator.

    Parameters
    ----------
    epsilon : float
        The whole budget; infinite gives the tree without noise. It has no default.
    depth : int, 1 to 10
    bins : int, 2 to 256
        Bins of a numeric feature.
    honest : int
        ``t``: least number of silos whose noise stays secret, and fewest that a sum may be over;
        0 takes all silos of the roster. Only with ``secure``.
    secure : bool
        False shows the coordinator every silo's counts; then each silo adds the whole noise.
    binning : {"private", "quantile"}
        ``"quantile"`` finds bin edges from sums **without noise**: the edges and the counts behind
        them are not covered by epsilon. What the benchmark in FedGA-Tree does.
    binning_share : float in [0.01, 0.9]
    query : {"histogram", "candidates"}

    References
    ----------
    Truex et al., A Hybrid Approach to Privacy-Preserving Federated Learning, AISec 2019.
    FedGA-Tree: Federated Decision Tree using Genetic Algorithm, section IV-A2 (binary form).
    """

    name: ClassVar[str] = "dp_tree"
    reveals: ClassVar[str] = (
        "Coordinator and silos: noisy counts by class in every node, and by bin or cut in every "
        "split query, summed over all silos; with private binning also noisy counts by interval. "
        "All of it together is epsilon-differentially private for adding or removing one row, as "
        "long as at least honest silos keep their noise secret; the tree is derived from it. With "
        "binning = quantile the bin edges are exact statistics of the rows that epsilon does not "
        "cover. With secure = false the coordinator sees each silo's counts, each with the whole "
        "noise. If fewer than honest silos keep their noise secret, the guarantee weakens in "
        "proportion. Differential privacy hides single rows, not what is common to a silo's rows: "
        "with all others but one colluding, that silo's noisy counts are known. Outside of "
        "epsilon, without noise: before the first query the silos agree in the clear on the "
        "schema, so coordinator and silos learn all column names and the union of the silos' "
        "category and class lists (the coordinator each silo's own), and the coordinator each "
        "silo's row count rounded up to a power of two; a category that one row alone has shows "
        "that row."
    )

    epsilon: float
    depth: int = 4
    bins: int = 5
    honest: int = 0
    secure: bool = True
    binning: str = "private"
    binning_share: float = 0.2
    query: str = "histogram"

    @property
    def n_results(self) -> int:
        """Results of a full tree: one a level."""
        return self.depth + 1

    @property
    def n_steps(self) -> int:
        """Boosting steps of one silo, for a model trained alone that is to be compared."""
        return 1

    def validate_cohort(self, n_silos: int) -> None:
        """Raise :class:`InvalidJob` where more honest silos are expected than there are."""
        if self.honest > n_silos:
            raise InvalidJob(
                f"[dp_tree] honest: {self.honest} silos are to make up the noise and {n_silos} are "
                f"given; it could be {n_silos}"
            )

    def safeguards(self, job: JobParameters) -> Safeguards:
        """Return what a silo's policy asks about."""
        covered = math.isfinite(self.epsilon) and self.binning == "private"
        return Safeguards(
            self.depth, self.epsilon, private=covered and self.secure, secure=self.secure
        )

    def validate(self, job: JobParameters) -> None:
        """Raise :class:`InvalidJob` for a parameter out of range."""
        ranges: dict[str, tuple[float, float]] = {
            "epsilon": (1e-3, math.inf),
            "depth": (1, MAX_DEPTH),
            "bins": (2, 256),
            "honest": (0, 100_000),
            "binning_share": (0.01, 0.9),
        }
        for key, (least, most) in ranges.items():
            value = getattr(self, key)
            if not least <= value <= most:
                raise InvalidJob(
                    f"dp_tree.{key}: expected a value from {least:g} to {most:g}, {value:g} came"
                )
        for key, known in (("binning", BINNINGS), ("query", QUERIES)):
            if getattr(self, key) not in known:
                raise InvalidJob(
                    f"dp_tree.{key}: expected one of {', '.join(known)}, "
                    f"{getattr(self, key)!r} came"
                )
        if job.task is Task.REGRESSION:
            raise InvalidJob("task: dp_tree counts classes, a regression has none")
        if job.objective != OBJECTIVES[job.task]:
            raise InvalidJob(
                f"booster.objective: trees of dp_tree are not boosted, expected "
                f"{OBJECTIVES[job.task]}, {job.objective} came"
            )
        metrics.check(job.metrics, job.task)

    async def coordinate(self, hub: Hub, start: CoordinatorStart) -> AsyncIterator[RoundResult]:
        """Run the coordinator half."""
        grower = _Grower(self, hub, start)
        hub.serve(STANDING, grower.standing)
        sums = CoordinatorSums(
            hub, job_id=start.job_id, attempt=start.attempt,
            parameters=self._sum_parameters(start.job, start.silos),
        )  # fmt: skip
        first = grower.growth.level
        grower.members = frozenset(await sums.setup(Place(first)))
        while grower.growth.stage < STAGES:
            stage = grower.growth.stage
            n_values = grower.queries.n_cells(grower.growth)
            outcome = await sums.sum(CELL_SUMS, Place(0, stage), n_values)
            assert outcome.total is not None, "only whole sums are abandoned"
            grower.refine(outcome.total.view(np.int64), len(outcome.present))
            sums.answer(CELL_SUMS, outcome, grower.growth)
        while not grower.done:
            level = grower.growth.level
            n_values = grower.queries.n_counts(grower.growth)
            outcome = await sums.sum(COUNT_SUMS, Place(level), n_values)
            assert outcome.total is not None, "only whole sums are abandoned"
            total = outcome.total.view(np.int64)
            await asyncio.to_thread(grower.grow, total, len(outcome.present))
            sums.answer(COUNT_SUMS, outcome, grower.growth)
            result = await asyncio.to_thread(grower.result, level, outcome.present)
            yield result

    def participate(self, link: Link, vault: Vault | None, start: SiloStart) -> Artefact | None:
        """Run the silo half; the tree is the coordinator's, nothing stays here."""
        queries = _Queries(self, start.schema, len(start.silos))
        counter = _Counter(queries, link, start)
        growth = link.exchange(STANDING, Place(start.first_round), Receipt())
        sums = SiloSums(
            link, vault, start.identity, silo=start.silo, roster=start.silos,
            job_id=start.job_id, attempt=start.attempt,
            parameters=self._sum_parameters(start.job, start.silos),
        )  # fmt: skip
        sums.setup(Place(growth.level))
        while growth.stage < STAGES:
            cells = counter.cells(growth)
            growth = sums.sum(CELL_SUMS, Place(0, growth.stage), cells.view(np.uint64))
        while growth.tree.open_nodes.size:
            counts = counter.counts(growth)
            growth = sums.sum(COUNT_SUMS, Place(growth.level), counts.view(np.uint64))
        return None

    def _sum_parameters(self, job: JobParameters, roster: tuple[Silo, ...]) -> SumParameters:
        least = max(job.min_silos, self.honest_of(len(roster)) if self.secure else 1)
        return SumParameters(secure=self.secure, least_silos=least)

    def honest_of(self, n_silos: int) -> int:
        """Return how many silos' parts make up the whole noise."""
        if not self.secure:
            return 1
        return self.honest or n_silos

    def artefact(self, job: JobParameters, schema: Schema, checkpoint: bytes) -> Artefact:
        """Return the tree in four forms, and the ledger of the budget."""
        arrays = safetensors.numpy.load(checkpoint)
        growth = unpack_growth(arrays)
        tree = close(growth.tree, schema, np.asarray(arrays["content"], dtype=np.float64))
        files = tree_files(tree, job)
        ledger = bytes(np.asarray(arrays["ledger"], dtype=np.uint8))
        return Artefact({**files.files, "epsilon-ledger.json": ledger + b"\n"}, files.model)

    def forecast(
        self, job: JobParameters, schema: Schema, n_samples: Mapping[Silo, int]
    ) -> Forecast:
        """Return the bytes of a full tree: 8 a count, and keys, shares and signatures of the sums.

        Of bin edges it takes what continuous features usually need: one interval at first, then
        two, then one an edge.
        """
        n_silos = max(len(n_samples), 3 if self.secure else 1)
        queries = _Queries(self, schema, n_silos)
        edges = queries.any_edges()
        n_edges = sum(len(own) for own in edges)
        stages = STAGES if queries.numeric else 0
        per_feature = [1, *[min(2, self.bins - 1)] * (STAGES - 2), self.bins - 1][:stages]
        intervals = [len(queries.numeric) * count for count in per_feature]
        signed = (_SUM_UP + 40 * n_silos, _SUM_DOWN + 83 * n_silos) if self.secure else (100, 200)
        cells_up = sum(8 * CELLS * count + signed[0] for count in intervals)
        cells_down = sum(8 * count + signed[1] for count in (*intervals[1:], n_edges)[:stages])
        counts_up, counts_down = 0, 0
        for level in range(self.depth + 1):
            counts_up += 8 * (1 << level) * queries.values_per_node(edges, level) + signed[0]
            nodes = (1 << min(level + 2, self.depth + 1)) - 1
            counts_down += nodes * (12 + max(bin_counts(schema, edges), default=1))
            counts_down += 4 * n_edges + signed[1]
        calls = 2 if self.secure else 1
        steps = {
            Call.HISTOGRAMS.value: (calls * (self.depth + 1), counts_up, counts_down),
            Call.SUMS.value: (calls * stages + 1, cells_up + 35, cells_down + _SUM_DOWN),
        }
        if self.secure:
            boxes = (n_silos - 1) * _BOX
            steps[Call.KEYS.value] = (1, _KEY, _KEY * n_silos)
            steps[Call.SHARES.value] = (1, boxes, boxes)
        return Forecast(
            rounds=self.depth + 1,
            steps=steps,
            reveals=self.reveals,
            notes=(
                f"epsilon {self.epsilon:g} for the whole job, a row being the unit",
                "for a full tree: noise ends it before, and a node that does not split asks less",
            ),
        )


class _Queries:
    """What is asked at each step, at which budget: known to all parties beforehand."""

    def __init__(self, strategy: DPTree, schema: Schema, n_silos: int) -> None:
        self.strategy = strategy
        self.schema = schema
        self.n_silos = n_silos
        self.honest = strategy.honest_of(n_silos)
        self.n_classes = max(2, schema.n_classes)
        self.numeric = [
            at for at, feature in enumerate(schema.features) if not feature.is_categorical
        ]
        private = strategy.binning == "private" and bool(self.numeric)
        share = Fraction(strategy.binning_share) if private else Fraction(0)
        epsilon = strategy.epsilon
        self.stage_epsilon = portion(epsilon, share / STAGES) if private else math.inf
        self.level_epsilon = portion(epsilon, (1 - share) / (2 * strategy.depth + 1))
        self._check_scale()

    def _check_scale(self) -> None:
        """Refuse budgets that leave each count with more noise than can be drawn."""
        sensitivity = self.split_sensitivity(bin_counts(self.schema, self.any_edges()))
        for epsilon, share in (
            (self.level_epsilon, sensitivity), (self.stage_epsilon, len(self.numeric)),
        ):  # fmt: skip
            if not math.isinf(epsilon) and share / epsilon > LARGEST_SCALE:
                raise InvalidJob(
                    f"dp_tree.epsilon: {self.strategy.epsilon:g} leaves a count noise of scale "
                    f"{share / epsilon:.0f}, {LARGEST_SCALE} is the most"
                )

    def any_edges(self) -> tuple[NDArray[np.float32], ...]:
        """Return edges of the right number, for sizes."""
        own = np.arange(self.strategy.bins - 1, dtype=np.float32)
        none = np.empty(0, dtype=np.float32)
        return tuple(none if feature.is_categorical else own for feature in self.schema.features)

    def cell_sensitivity(self, growth: GrowthState) -> int:
        """Return how many counts of a stage one row changes: one a feature that is asked about."""
        return sum(1 for own in growth.intervals if own)

    def split_sensitivity(self, n_bins: list[int]) -> int:
        """Return how many counts of a split query one row changes."""
        if self.strategy.query == "histogram":
            return len(n_bins)
        return max(1, sum(cuts_of(self.schema, n_bins)))

    def values_per_node(self, edges: tuple[NDArray[np.float32], ...], level: int) -> int:
        """Return the counts asked of an open node: by class, and for the split."""
        if level >= self.strategy.depth:
            return self.n_classes
        n_bins = bin_counts(self.schema, edges)
        by_histogram = self.strategy.query == "histogram"
        cells = sum(n_bins) if by_histogram else 2 * sum(cuts_of(self.schema, n_bins))
        return self.n_classes * (1 + cells)

    def n_cells(self, growth: GrowthState) -> int:
        """Return the length of a stage's sum."""
        return CELLS * sum(len(own) for own in growth.intervals)

    def n_counts(self, growth: GrowthState) -> int:
        """Return the length of a level's sum."""
        tree = growth.tree
        return len(tree.open_nodes) * self.values_per_node(tree.edges, growth.level)

    def spendings(self, growth: GrowthState) -> list[Spending]:
        """Return what the query that ``growth`` calls for costs."""
        if growth.stage < STAGES:
            if self.strategy.binning != "private":
                return []
            sensitivity = self.cell_sensitivity(growth)
            what = f"bin edges, stage {growth.stage}"
            return [Spending(what, self.stage_epsilon, sensitivity, self.n_cells(growth))]
        n_open, level = len(growth.tree.open_nodes), growth.level
        what = f"level {level}: class counts of {n_open} nodes"
        found = [Spending(what, self.level_epsilon, 1, n_open * self.n_classes)]
        if level < self.strategy.depth:
            n_bins = bin_counts(self.schema, growth.tree.edges)
            rest = self.n_counts(growth) - n_open * self.n_classes
            what = f"level {level}: splits of {n_open} nodes"
            sensitivity = self.split_sensitivity(n_bins)
            found.append(Spending(what, self.level_epsilon, sensitivity, rest))
        return found

    def deviation(self, epsilon: float, sensitivity: int, n_parts: int) -> float:
        """Return the standard deviation of a summed count's noise."""
        if math.isinf(epsilon):
            return 0.0
        variance = discrete_laplace_variance(
            epsilon, sensitivity=sensitivity, parts=n_parts, honest=self.honest
        )
        return math.sqrt(variance)

    def enter(self, ledger: BudgetLedger, growth: GrowthState) -> None:
        """Spend what a query costs."""
        for number, spending in enumerate(self.spendings(growth)):
            ledger.spend(f"{growth.digest.hex()}/{number}", spending)


class _Counter:
    """A silo's rows and its ledger: answers queries with its part of the noise."""

    def __init__(self, queries: _Queries, link: Link, start: SiloStart) -> None:
        self._queries = queries
        self._link = link
        self._dataset = start.dataset
        self._job_id = start.job_id
        self._labels = start.dataset.labels.astype(np.int64)
        self._bins: NDArray[np.int32] | None = None
        secret, kept = link.recall("dp-noise"), link.recall("dp-ledger")
        if secret is None:
            secret = os.urandom(32)
            link.remember("dp-noise", secret)
        self._secret = secret
        epsilon = queries.strategy.epsilon
        self._ledger = BudgetLedger(epsilon) if kept is None else BudgetLedger.decode(kept)

    def _enter(self, growth: GrowthState) -> None:
        """Make the spending durable before anything is told."""
        self._queries.enter(self._ledger, growth)
        self._link.remember("dp-ledger", self._ledger.encode())

    def _noisy(self, counts: Ints, growth: GrowthState, number: int) -> Ints:
        spending = self._queries.spendings(growth)[number]
        context = encode_fields("dp_tree", self._job_id, growth.digest, number)
        return noisy(
            counts, spending.epsilon, sensitivity=spending.sensitivity,
            honest=self._queries.honest, entropy=replayable(self._secret, context),
        )  # fmt: skip

    def cells(self, growth: GrowthState) -> Ints:
        """Return noisy counts by interval, one vector."""
        _check_growth(growth, self._queries.schema)
        self._enter(growth)
        parts = [
            count_cells(self._dataset.X[:, feature], own, growth.stage).reshape(-1)
            for feature, own in enumerate(growth.intervals)
            if own
        ]
        counts = np.concatenate(parts)
        if self._queries.strategy.binning != "private":
            return counts
        return self._noisy(counts, growth, 0)

    def counts(self, growth: GrowthState) -> Ints:
        """Return noisy class counts of the open nodes and those of their splits, one vector."""
        queries, tree = self._queries, growth.tree
        _check_growth(growth, queries.schema)
        self._enter(growth)
        if self._bins is None:
            self._bins = to_bins(queries.schema, tree.edges, self._dataset.X)
        nodes, Q = nodes_of(tree, self._bins), queries.n_classes
        classes = count_classes(nodes, tree.open_nodes, self._labels, Q)
        vector = self._noisy(classes, growth, 0).reshape(-1)
        if growth.level >= queries.strategy.depth:
            return vector
        n_bins = bin_counts(queries.schema, tree.edges)
        split = count_bins(nodes, tree.open_nodes, self._bins, n_bins, self._labels, Q)
        if queries.strategy.query == "candidates":
            split = count_candidates(split, n_bins)
        return np.concatenate([vector, self._noisy(split, growth, 1).reshape(-1)])


def _check_growth(growth: GrowthState, schema: Schema) -> None:
    """Refuse a tree from the coordinator that does not fit this schema, or counts a row twice."""
    tree, n_nodes = growth.tree, len(growth.tree.feature)
    fits = len(growth.intervals) == len(tree.edges) == schema.n_features
    asked = [bool(own) for own in growth.intervals]
    numeric = [not feature.is_categorical for feature in schema.features]
    # The budget of bin edges pays for one count a numeric feature, and only while edges are due.
    fits &= all(may or not own for own, may in zip(asked, numeric, strict=False))
    fits &= 0 <= growth.stage <= STAGES and any(asked) == (growth.stage < STAGES)
    for own in growth.intervals:
        fits &= list(own) == sorted(set(own))
    if fits and n_nodes:
        most = max(bin_counts(schema, tree.edges), default=1)
        children = np.concatenate([tree.left[tree.feature >= 0], tree.right[tree.feature >= 0]])
        fits = (
            tree.goes_left.shape == (n_nodes, most)
            and int(tree.feature.max()) < schema.n_features
            and len(np.unique(children)) == len(children)
            and bool(((children > 0) & (children < n_nodes)).all())
            and all(bool((np.diff(own) > 0).all()) for own in tree.edges)
        )
    if not fits:
        raise OfferRejected("from the coordinator: a tree that does not fit the schema")


class _Grower:
    """The coordinator's state: bin edges, then the tree."""

    def __init__(self, strategy: DPTree, hub: Hub, start: CoordinatorStart) -> None:
        n_silos = len(start.silos)
        if strategy.honest_of(n_silos) > n_silos:
            raise InvalidJob(f"dp_tree.honest: {strategy.honest} of {n_silos} silos")
        self._strategy = strategy
        self._hub = hub
        self._start = start
        self.queries = _Queries(strategy, start.schema, n_silos)
        self.members: frozenset[Silo] = frozenset()
        self._met: set[Silo] = set()
        self._ledger = BudgetLedger(strategy.epsilon)
        self._content = np.zeros((0, self.queries.n_classes))
        none = tuple(np.empty(0, dtype=np.float32) for _ in start.schema.features)
        self._descents = {feature: start_descent(strategy.bins) for feature in self.queries.numeric}
        if start.checkpoint is not None:
            arrays = safetensors.numpy.load(start.checkpoint)
            self.growth = unpack_growth(arrays)
            self._content = np.asarray(arrays["content"], dtype=np.float64)
            ledger = bytes(np.asarray(arrays["ledger"], dtype=np.uint8))
            self._ledger = BudgetLedger.decode(ledger)
        elif self._descents:
            self.growth = GrowthState(0, 0, self._intervals(), _no_tree(none))
        else:
            nothing: tuple[tuple[int, ...], ...] = ((),) * start.schema.n_features
            self.growth = GrowthState(STAGES, 0, nothing, sprout(start.schema, none))

    @property
    def done(self) -> bool:
        """Whether no node is open."""
        return not self.growth.tree.open_nodes.size

    def standing(self, silo: Silo, at: Place, offer: Receipt) -> GrowthState:
        """Tell a silo the tree so far; one that comes after the silos were settled is too late."""
        if self.members and (silo not in self.members or silo in self._met):
            self._hub.drop(silo, "came while the tree was under way")
            raise OfferRejected("this tree is under way: its silos were settled before")
        self._met.add(silo)
        return self.growth

    def _intervals(self) -> tuple[tuple[int, ...], ...]:
        return tuple(
            self._descents[feature].intervals if feature in self._descents else ()
            for feature in range(self._start.schema.n_features)
        )

    def refine(self, total: Ints, n_parts: int) -> None:
        """Narrow the bin edges down by one stage."""
        queries, stage = self.queries, self.growth.stage
        queries.enter(self._ledger, self.growth)
        sensitivity = queries.cell_sensitivity(self.growth)
        noise = queries.deviation(queries.stage_epsilon, sensitivity, n_parts)
        counts = total.reshape(-1, CELLS)
        at = 0
        for feature, descent in self._descents.items():
            count = len(descent.intervals)
            self._descents[feature] = descend(descent, counts[at : at + count], noise)
            at += count
        if stage + 1 < STAGES:
            self.growth = replace(self.growth, stage=stage + 1, intervals=self._intervals())
            return
        edges = tuple(
            edges_of(self._descents[feature])
            if feature in self._descents
            else np.empty(0, dtype=np.float32)
            for feature in range(self._start.schema.n_features)
        )
        nothing: tuple[tuple[int, ...], ...] = ((),) * len(edges)
        self.growth = GrowthState(STAGES, 0, nothing, sprout(self._start.schema, edges))

    def grow(self, total: Ints, n_parts: int) -> None:
        """Split the open nodes, or make leaves of them."""
        queries, growth, Q = self.queries, self.growth, self.queries.n_classes
        queries.enter(self._ledger, growth)
        n_open = len(growth.tree.open_nodes)
        classes = total[: n_open * Q].reshape(n_open, Q)
        self._content = np.concatenate([self._content, classes.astype(np.float64)])
        splits: dict[int, tuple[int, NDArray[np.bool_]]] = {}
        if growth.level < self._strategy.depth:
            n_bins = bin_counts(self._start.schema, growth.tree.edges)
            rest = total[n_open * Q :].reshape(n_open, -1, Q)
            sensitivity = queries.split_sensitivity(n_bins)
            noise = queries.deviation(queries.level_epsilon, sensitivity, n_parts)
            for at, node in enumerate(growth.tree.open_nodes.tolist()):
                if self._drowns(classes[at], max(n_bins), n_parts):
                    continue
                found = (
                    best_by_histogram(rest[at], n_bins, noise)
                    if self._strategy.query == "histogram"
                    else best_by_candidates(rest[at].reshape(-1, 2, Q), n_bins)
                )
                if found is not None:
                    splits[node] = found
        grown = extend(growth.tree, splits)
        self.growth = GrowthState(STAGES, growth.level + 1, growth.intervals, grown)

    def _drowns(self, classes: Ints, most_bins: int, n_parts: int) -> bool:
        """Tell whether a node has too few rows for its cells to stand out of the noise."""
        rows = float(np.maximum(classes, 0).sum())
        noise = self.queries.deviation(self.queries.level_epsilon, 1, n_parts)
        return rows / (most_bins * self.queries.n_classes) < noise or rows < 2

    def tree(self) -> DecisionTree:
        """Return the tree so far, its open nodes as leaves."""
        return close(self.growth.tree, self._start.schema, self._content)

    def result(self, level: int, silos: tuple[Silo, ...]) -> RoundResult:
        """Return what a level ends with."""
        scores: dict[str, dict[str, float]] = {}
        job, test = self._start.job, self._start.test
        if test is not None:
            names = job.metrics or metrics.defaults(job.task)
            scores["test"] = metrics.evaluate(
                names, test.labels, self.tree().margins(test.X),
                objective=OBJECTIVES[job.task], weight=test.weight,
            )  # fmt: skip
        arrays = pack_growth(self.growth)
        arrays["content"] = self._content
        arrays["ledger"] = np.frombuffer(self._ledger.encode(), dtype=np.uint8)
        return RoundResult(
            level,
            bytes(safetensors.numpy.save(arrays)),
            scores,
            silos,
            final=self.done,
            best_round=level,
        )


def _no_tree(edges: tuple[NDArray[np.float32], ...]) -> Sprout:
    none = np.empty(0, dtype=np.int32)
    return Sprout(edges, none, none, none, np.empty((0, 1), dtype=np.bool_))


def pack_growth(growth: GrowthState) -> dict[str, NDArray[Any]]:
    """Return a growth as named arrays."""
    tree = growth.tree
    intervals = [n for own in growth.intervals for n in own]
    return {
        "state": np.array([growth.stage, growth.level], dtype=np.int64),
        "interval_counts": np.array([len(own) for own in growth.intervals], dtype=np.int32),
        "intervals": np.array(intervals, dtype=np.int64),
        "edge_counts": np.array([len(own) for own in tree.edges], dtype=np.int32),
        "edges": np.concatenate([*tree.edges, np.empty(0, dtype=np.float32)]),
        "feature": tree.feature,
        "left": tree.left,
        "right": tree.right,
        "goes_left": tree.goes_left,
    }


def unpack_growth(arrays: Mapping[str, NDArray[Any]]) -> GrowthState:
    """Return what :func:`pack_growth` packed."""
    stage, level = np.asarray(arrays["state"], dtype=np.int64).tolist()
    interval_ends = np.cumsum(arrays["interval_counts"])[:-1]
    intervals = tuple(
        tuple(own.tolist()) for own in np.split(np.asarray(arrays["intervals"]), interval_ends)
    )
    edges = np.split(
        np.asarray(arrays["edges"], dtype=np.float32), np.cumsum(arrays["edge_counts"])[:-1]
    )
    tree = Sprout(
        tuple(edges),
        np.asarray(arrays["feature"], dtype=np.int32),
        np.asarray(arrays["left"], dtype=np.int32),
        np.asarray(arrays["right"], dtype=np.int32),
        np.asarray(arrays["goes_left"], dtype=np.bool_),
    )
    return GrowthState(stage, level, intervals, tree)
