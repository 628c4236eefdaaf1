"""What follows from a job's parameters and schema; equal at all parties."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting import metrics
from hedgerow.boosting.allowances import COLUMNS
from hedgerow.boosting.dataset import Dataset, Schema
from hedgerow.boosting.engine.bounds import BoundRule, Largest
from hedgerow.boosting.engine.cox import RiskSets, n_risk_values
from hedgerow.boosting.engine.cuts import Cuts, cuts_from_thresholds, numeric_features
from hedgerow.boosting.engine.grower import ColumnSampler, GrownTree
from hedgerow.boosting.engine.leaf_quantiles import LeafQuantiles, gradient_unit
from hedgerow.boosting.engine.objective import Objective
from hedgerow.boosting.engine.quantising import Quantiser
from hedgerow.boosting.engine.sampling import ThresholdSearch
from hedgerow.boosting.engine.splitting import Scale, TreeParameters
from hedgerow.boosting.engine.start import Score, score_of
from hedgerow.boosting.engine.summaries import increasing_columns
from hedgerow.boosting.errors import DataError, InvalidJob, ModelRejected, OfferRejected, SumCorrupt
from hedgerow.boosting.metric_sums import MOST_ROWS, SummedMetrics
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.rounds import base_score
from hedgerow.boosting.strategies.histogram.cohorts import Cohort, cohort, drawn_from
from hedgerow.boosting.strategies.histogram.parameters import Histogram
from hedgerow.boosting.strategies.histogram.round_trees import RoundShape
from hedgerow.boosting.strategies.histogram.steps import (
    CutPoints,
    LabelCells,
    OpeningTerms,
    RowsScored,
)
from hedgerow.boosting.streams import Purpose, generator, round_drawn
from hedgerow.boosting.sums.exact import label_parts, mean_labels, n_label_values
from hedgerow.boosting.sums.steps import SumParameters
from hedgerow.boosting.sums.view import state_digest
from hedgerow.boosting.trees.ensemble import Ensemble, Tree, blank
from hedgerow.boosting.trees.limits import TreeLimits, step_groups
from hedgerow.boosting.trees.loading import load
from hedgerow.boosting.trees.local import constrained
from hedgerow.crypto.masking.fixed_point import log2_ceil
from hedgerow.crypto.masking.totals import Check, ResiduesCheck, TotalsCheck

_LEAST_SHARE = 1e-6


@dataclass(frozen=True, slots=True)
class Setup:
    """What all parties know before the first round, with the cut points as bins."""

    n_rows: int
    weight_exponent: int
    base_score: Score
    """``n_rows``, ``weight_exponent`` and ``base_score``: as in :class:`OpeningTerms`."""
    cuts: Cuts
    labels: LabelCells | None = None
    """As in :class:`OpeningTerms`."""

    @classmethod
    def of(cls, terms: OpeningTerms, schema: Schema, n_outputs: int = 1) -> Setup:
        """Read what another party sent; raises OfferRejected for what is unsound."""
        cuts = cuts_of(terms.cuts, schema)
        score = score_of((terms.base_score, *terms.more_scores))
        score = base_score.checked(score, schema, n_outputs)
        return cls(terms.n_rows, terms.weight_exponent, score, cuts, terms.labels)

    def check_labels(self, objective: Objective) -> Setup:
        """Return the setup; raises OfferRejected for cells of labels that the job has not."""
        if (self.labels is not None) != objective.in_cells:
            raise OfferRejected(
                "label cells: expected some with an objective of a median, quantile or hazard alone"
            )
        return self

    @property
    def terms(self) -> OpeningTerms:
        """The terms as they travel."""
        cuts = cut_points(self.cuts)
        first, *more = np.atleast_1d(self.base_score).tolist()
        return OpeningTerms(
            self.n_rows, self.weight_exponent, first, cuts, tuple(more), self.labels
        )


def cut_points(cuts: Cuts) -> CutPoints:
    """Return the inner thresholds of numeric features as they travel."""
    inner = [cuts.of(int(j))[:-1] for j in np.flatnonzero(~cuts.categorical)]
    sizes = np.array([column.shape[0] for column in inner], np.int64)
    return CutPoints(sizes, np.concatenate([np.empty(0, np.float32), *inner]))


def way_of(cuts: Cuts) -> tuple[str, str]:
    """Return how columns are divided by cut points that a coordinator has merged."""
    points = cut_points(cuts)
    return f"{COLUMNS} by summaries", f"cut points {state_digest(points).hex()[:16]}"


def cuts_of(points: CutPoints, schema: Schema) -> Cuts:
    """Return the cuts of thresholds that another party sent; raises OfferRejected."""
    n_numeric = len(numeric_features(schema))
    return cuts_from_thresholds(schema, increasing_columns(points.sizes, points.values, n_numeric))


def given_cuts(schema: Schema, cut_points: tuple[str, ...]) -> Cuts:
    """Return the cuts of a job's ``cut_points``: ``"feature: 0.5 1.5"`` for each numeric feature.

    Raises
    ------
    InvalidJob
        An unknown or missing feature, or values that are no increasing numbers.
    """
    known: dict[str, NDArray[np.float32]] = {}
    for text in cut_points:
        name, _, numbers = text.rpartition(":")
        try:
            known[name.strip()] = np.array([float(n) for n in numbers.split()], np.float32)
        except ValueError as error:
            raise InvalidJob(
                f"[histogram] cut_points: expected numbers for {name!r}, received {numbers!r}"
            ) from error
    names = [schema.features[j].name for j in numeric_features(schema)]
    for missing in sorted(set(names) - set(known)):
        raise InvalidJob(f"[histogram] cut_points: expected some for feature {missing!r}")
    for unknown in sorted(set(known) - {feature.name for feature in schema.features}):
        raise InvalidJob(f"[histogram] cut_points: there is no feature {unknown!r}")
    try:
        return cuts_from_thresholds(schema, [known[name] for name in names])
    except DataError as error:
        raise InvalidJob(f"[histogram] cut_points: {error}") from error


@dataclass(frozen=True, slots=True)
class HistogramPlan:
    """A job of this strategy over a schema, and what follows from them."""

    parameters: Histogram
    job: JobParameters
    schema: Schema
    objective: Objective
    tree: TreeParameters

    @classmethod
    def of(cls, parameters: Histogram, job: JobParameters, schema: Schema) -> HistogramPlan:
        """Check a job against the schema and work out what follows."""
        booster = constrained(parameters.booster_of(job), schema)
        objective = parameters.objective_of(job, booster)
        if parameters.base_margin and len(parameters.base_margin) != schema.n_outputs:
            raise InvalidJob(
                f"[histogram] base_margin: expected {schema.n_outputs} columns, one an output, "
                f"received {len(parameters.base_margin)}"
            )
        if len(parameters.feature_weights) not in (0, schema.n_features):
            raise InvalidJob(
                f"[histogram] feature_weights: expected {schema.n_features}, one a feature, "
                f"received {len(parameters.feature_weights)}"
            )
        tree = TreeParameters.of(booster, schema.n_features)
        return cls(parameters, job, schema, objective, tree)

    @property
    def n_start_values(self) -> int:
        """Residues of the sum that the base score is of, where that is of means of labels."""
        classes = self.parameters.class_start
        return n_label_values(self.schema.n_classes if classes else len(self.schema.labels))

    def start_parts(self, data: Dataset) -> NDArray[np.uint64]:
        """Return a silo's part of that sum."""
        values = self.objective.start_values(data.labels)
        if self.parameters.class_start:
            values = (values[:, None] == np.arange(self.schema.n_classes)).astype(np.float64)
        return label_parts(values, data.weight)

    def start_score(self, total: NDArray[np.uint64]) -> Score:
        """Return the base score from the sum; of classes it sums to 0, as XGBoost's."""
        means = mean_labels(total)
        if not self.parameters.class_start:
            return score_of(map(self.objective.start_of, means))
        logs = np.log(np.maximum(means, _LEAST_SHARE))
        return score_of((logs - logs.mean()).astype(np.float32).tolist())

    @property
    def least_silos(self) -> int:
        """Fewest silos that a step may be over."""
        return self.parameters.sum_parameters(self.job).least_silos

    def cohort(self, round_: int) -> Cohort:
        """Return the silos that the sums of a round are over; empty for all."""
        count = self.parameters.silos_per_round
        if not count:
            return ()
        job = self.job
        return cohort(drawn_from(job), count, job.seed, round_drawn(job, round_), job.group_size)

    @property
    def round_parameters(self) -> SumParameters:
        """How the sums of a round are made, where each round has its own cohort and keys."""
        return replace(self.parameters.sum_parameters(self.job), batch=1)

    @property
    def checks_totals(self) -> bool:
        """Whether silos check node totals, and derive leaf values from these themselves."""
        return self.parameters.checks_totals

    @property
    def integers_check(self) -> type[Check] | None:
        """How silos check sums of integers that every silo receives."""
        return TotalsCheck if self.checks_totals else None

    @property
    def residues_check(self) -> type[Check] | None:
        """How silos check sums of random residues, of which the largest number is read."""
        return ResiduesCheck if self.checks_totals else None

    def check_weight(self, exponent: int) -> None:
        """Raise :class:`SumCorrupt` for a largest row weight that the job's rows cannot have."""
        most = log2_ceil(self.job.columns.heaviest)
        if exponent > most:
            raise SumCorrupt(
                f"largest row weight: expected at most 2^{most} by [columns] of the job, received "
                f"2^{exponent}: a silo or the coordinator has made it up"
            )

    @property
    def scorable(self) -> tuple[RowsScored, ...]:
        """Rows that silos may be asked to score each round; the last one where nobody else can."""
        if self.parameters.blind_coordinator:
            return (RowsScored.NONE,)
        if self.parameters.validation_tables:
            return (RowsScored.BOTH,)
        if self.parameters.validation:
            return (RowsScored.VALID,)
        return (RowsScored.NONE, RowsScored.TRAIN)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Metrics that rounds are scored by."""
        booster, task = self.job.booster, self.schema.task
        named = metrics.of_job(
            self.job.metrics, task, booster.failure_times, self.job.objective, booster.quantiles
        )
        return named or metrics.defaults(task)

    def metric_sums(self, opening: Setup) -> SummedMetrics:
        """Return how metrics of the silos' rows are summed."""
        # Training rows are this share of all rows of a silo, or more.
        n_rows = math.ceil(opening.n_rows / (1 - self.parameters.validation))
        if self.parameters.validation_tables:
            n_rows = MOST_ROWS  # nobody says how many these have
        weight = 2.0**opening.weight_exponent
        return SummedMetrics(self.metric_names, self.schema.n_scored, weight, n_rows)

    @property
    def n_outputs(self) -> int:
        """Margins a row: one a class, label or quantile."""
        return max(self.schema.n_outputs, len(self.objective.quantiles))

    def of_round(self, round_: int) -> HistogramPlan:
        """Return the plan of a round, whose outputs may have trees of their own."""
        if round_ not in self.parameters.one_output_rounds:
            return self
        return replace(self, parameters=replace(self.parameters, multi_output=False))

    @property
    def n_trees(self) -> int:
        """Trees that are grown side by side in a round."""
        of_outputs = 1 if self.parameters.multi_output else self.n_outputs
        return of_outputs * self.parallel

    @property
    def parallel(self) -> int:
        """Trees of a round that are grown on the same gradients."""
        return self.job.booster.num_parallel_tree

    @property
    def draws_by_tree(self) -> bool:
        """Whether each tree of a round has rows of its own, as those of a random forest have."""
        return self.parallel > 1 and self.parameters.sampler.method != "none"

    @property
    def width(self) -> int:
        """Numbers a bin."""
        return 2 * self.n_outputs if self.parameters.multi_output else 2

    @property
    def numeric(self) -> list[int]:
        """Indices of numeric features."""
        return numeric_features(self.schema)

    def groups(self, tree: int) -> list[int]:
        """Return the outputs that a tree of a round adds to."""
        outputs = range(self.n_outputs)
        return [*outputs] if self.parameters.multi_output else [tree // self.parallel]

    def part(self, tree: int) -> slice:
        """Return the columns of the gradients that a tree is grown on, before rows are drawn."""
        first = tree // self.parallel * self.width
        return slice(first, first + self.width)

    def shape(self, opening: Setup, round_: int) -> RoundShape:
        """Return the shape of a round's trees, with their column samples."""
        eta = self.parameters.etas[round_] if self.parameters.etas else self.tree.eta
        return RoundShape(
            opening.cuts,
            replace(self.tree, eta=float(np.float32(eta) / np.float32(self.parallel))),
            self.width,
            self._columns(round_),
            self.parameters.filled_bins,
            self.parameters.max_split_nodes,
            self.checks_totals,
        )

    def leaf_search(self, opening: Setup, trees: Sequence[GrownTree]) -> LeafQuantiles:
        """Return the search for a round's leaf values where these are quantiles of residuals."""
        assert opening.labels is not None
        ranks = self.objective.quantiles
        alphas = [
            ranks[k] for t, tree in enumerate(trees) for k in self.groups(t) for _ in tree.leaves
        ]
        return LeafQuantiles(opening.labels.values, alphas, self.parameters.min_cell)

    def renewed(
        self,
        trees: Sequence[GrownTree],
        search: LeafQuantiles | None,
        opening: Setup,
        round_: int,
    ) -> list[GrownTree]:
        """Return a round's trees with the quantiles that were found as leaf values.

        Where a silo was lost before any was, leaves are a step down the gradient: were they zeros,
        the scores of the round before would be summed again, over another set.
        """
        assert opening.labels is not None
        eta = self.shape(opening, round_).parameters.eta
        if search is None or not search.begun:
            unit = np.float32(gradient_unit(opening.labels.values))
            return [replace(tree, value=tree.value * unit) for tree in trees]
        found, values, at = [], search.values, 0
        for tree in trees:
            value = np.zeros_like(tree.value)
            own, at = values[at : at + value[tree.leaves].size], at + value[tree.leaves].size
            value[tree.leaves] = eta * own.reshape(value.shape[1], -1).T
            found.append(replace(tree, value=value))
        return found

    def _columns(self, round_: int) -> tuple[ColumnSampler | None, ...]:
        if not self.tree.samples_columns:
            return (None,) * self.n_trees
        mixed = self.parameters.one_output_rounds
        most = self.n_outputs * self.parallel if mixed else self.n_trees
        first = round_drawn(self.job, round_) * most
        return tuple(
            ColumnSampler(
                self.schema.n_features,
                self.tree,
                generator(self.job.seed, 0, first + t, Purpose.COLUMNS),
                self.parameters.feature_weights,
            )
            for t in range(self.n_trees)
        )

    # numbers of a round

    @property
    def bounds(self) -> BoundRule:
        """Where bounds of gradients come from."""
        parameters = self.parameters
        return BoundRule(
            self.objective,
            parameters.sampler,
            self.n_outputs,
            bool(parameters.coarse_bits),
            parameters.shares_threshold,
        )

    def row_bound(
        self, opening: Setup, largest: Largest | None, risk: RiskSets | None = None
    ) -> tuple[float, float]:
        """Return bounds of the gradients of a round's rows."""
        if risk is not None:
            return risk.bound
        return self.bounds.of_rows(2.0**opening.weight_exponent, largest)

    def n_risk_values(self, opening: Setup) -> int:
        """Return the length of the sum over risk sets."""
        assert opening.labels is not None
        return n_risk_values(opening.labels.n_cells)

    def threshold_search(self, opening: Setup, bound: tuple[float, float]) -> ThresholdSearch:
        """Return the search for a round's MVS threshold; no gradient is above ``bound``."""
        g, h = bound
        lam = self.parameters.mvs_lambda
        largest = math.sqrt(self.n_outputs * (g * g + lam * h * h)) * (1 + 1e-6)
        return ThresholdSearch(opening.n_rows, self.parameters.sampling_rate, largest)

    def quantiser(self, opening: Setup, bound: tuple[float, float]) -> Quantiser:
        """Return a round's quantisation."""
        return self.numbers(opening.n_rows, bound)

    def numbers(self, n_rows: int, bound: tuple[float, float]) -> Quantiser:
        """Return how gradients of `n` rows, and none above ``bound``, become integers."""
        return Quantiser.fitting(
            n_rows,
            bound,
            ring_bits=self.parameters.ring_bits,
            coarse_bits=self.parameters.coarse_bits,
            fraction_bits=self.parameters.fraction_bits,
        )

    def scales(self, quantiser: Quantiser) -> tuple[Scale, Scale | None]:
        """Return the unit of histogram sums, and that of leaf sums where these are apart."""
        if self.parameters.coarse_bits:
            return quantiser.coarse_scale, quantiser.scale
        return quantiser.scale, None

    @property
    def blind_ring(self) -> int:
        """Ring of histogram sums with a blind coordinator, of which nothing tells the values."""
        return 64 if self.parameters.coarse_bits else self.parameters.ring_bits

    def check_bins(self, cuts: Cuts) -> None:
        """Raise :class:`OfferRejected` for more bins of a feature than the job says."""
        most = self.most_bins
        if np.any(cuts.n_bins > most):
            feature = int(np.flatnonzero(cuts.n_bins > most)[0])
            raise OfferRejected(
                f"cut points: expected at most {most[feature]} bins of feature {feature}, received "
                f"{cuts.n_bins[feature]}"
            )

    # lengths that reveal nothing of the trees

    @property
    def n_levels(self) -> int:
        """Sums that the largest possible trees take."""
        p = self.tree
        return max(1, p.max_leaves - 1) if p.loss_guided else p.max_depth

    def n_padded(self, round_: int, level: int) -> int:
        """Length of a level's vector that depends neither on open nodes nor on cut points."""
        n_bins = self.most_bins
        total = sum(
            int((n_bins if columns is None else n_bins[columns.of_tree]).sum())
            for columns in self._columns(round_)
        )
        if level == 0:
            return self.width * (self.n_trees + total)
        p = self.tree
        nodes = 1 if p.loss_guided else 1 << (level - 1)
        if p.max_leaves:
            nodes = max(1, min(nodes, p.max_leaves - 1))
        return self.width * nodes * total

    @property
    def n_padded_leaves(self) -> int:
        """Length of the vector of leaf sums of the largest possible trees."""
        p = self.tree
        most = p.max_leaves or 1 << p.max_depth
        if p.max_depth:
            most = min(most, 1 << p.max_depth)
        return self.n_trees * self.width * most

    @property
    def most_bins(self) -> NDArray[np.int64]:
        """Largest possible number of bins of each feature."""
        if self.parameters.binning == "given":
            return given_cuts(self.schema, self.parameters.cut_points).n_bins
        most = self.job.booster.max_bin
        features = self.schema.features
        return np.array(
            [most if f.categories is None else max(1, len(f.categories)) for f in features]
        )

    # the model

    def blank(self, opening: Setup) -> Ensemble:
        """Return the ensemble that a job starts from."""
        return blank(self.schema, self.objective.model_name, self.job.booster, opening.base_score)

    def read_model(self, raw: bytes, opening: Setup, sender: str) -> Ensemble:
        """Return the job's model after some rounds, as another party or a file has it.

        Raises
        ------
        ModelRejected
            No sound model, or one that this job cannot have made; names the sender.
        """
        booster = self.job.booster
        limits = TreeLimits(
            step_groups(1, self.n_outputs, self.parallel),
            self.schema.n_categories,
            booster.max_depth,
            max(0, 2 * booster.max_leaves - 1),
        )
        found = load(raw, blank=self.blank(opening), limits=limits, sender=sender)
        n_rounds = len(found.steps)
        if n_rounds > self.parameters.rounds or found.round_ends != (*range(1, n_rounds + 1),):
            raise ModelRejected(f"{sender}: expected at most {self.parameters.rounds} rounds")
        return found

    def trees(self, grown: Sequence[GrownTree], opening: Setup) -> list[Tree]:
        """Return a round's trees as the model has them."""
        trees: list[Tree] = []
        for t, tree in enumerate(grown):
            trees.extend(tree.trees(opening.cuts, self.groups(t)))
        return sorted(trees, key=attrgetter("group"))
