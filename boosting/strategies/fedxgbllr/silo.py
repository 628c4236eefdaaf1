"""The silo half of FedXGBllr."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.engine.summaries import QuantileSummaries, summarise
from hedgerow.boosting.errors import ModelRejected, OfferRejected, PlacePassed
from hedgerow.boosting.exchange import ExchangeKey, Silo, SiloChannel
from hedgerow.boosting.metric_sums import SummedMetrics
from hedgerow.boosting.payloads import checked
from hedgerow.boosting.ports import ModelCheck, SiloStart
from hedgerow.boosting.rounds.scores import SiloScores, add_scores, masks_scores, values_of
from hedgerow.boosting.strategies.fedxgbllr.agreement import (
    AgreedTerms,
    validation_metrics,
)
from hedgerow.boosting.strategies.fedxgbllr.combiners import Combiner, RowCombiner, TrainingRows
from hedgerow.boosting.strategies.fedxgbllr.leaf_values import LeafOrdinals
from hedgerow.boosting.strategies.fedxgbllr.network import HeadCombiner
from hedgerow.boosting.strategies.fedxgbllr.row_sums import RowBounds, own_bounds
from hedgerow.boosting.strategies.fedxgbllr.stacked_model import MODEL, StackedModel
from hedgerow.boosting.strategies.fedxgbllr.steps import (
    BASE,
    CUTS,
    RATES,
    SCORES,
    SUMS,
    SYNC,
    TREES,
    TURN,
    WEIGHTS,
    EnsembleOffer,
    MetricSums,
    NextPoints,
    PackedEnsemble,
    PointChoice,
    ProgressQuery,
    RateSums,
    RoundVector,
)
from hedgerow.boosting.strategies.fedxgbllr.uploads import cut_columns, encode_trees, uncut
from hedgerow.boosting.streams import Purpose, generator, xgboost_seed
from hedgerow.boosting.sums.exact import exact_parts
from hedgerow.boosting.sums.floats import FloatSum, add_securely
from hedgerow.boosting.sums.label_mean import mean_parameters
from hedgerow.boosting.sums.maximum import add_maximum
from hedgerow.boosting.sums.silo import SiloSums
from hedgerow.boosting.sums.view import state_digest
from hedgerow.boosting.trees.agreed import fingerprints
from hedgerow.boosting.trees.ensemble import Tree
from hedgerow.boosting.trees.local import (
    booster_parameters,
    constrained,
    grow,
    matrix,
    roster_index,
    split_rows,
)

if TYPE_CHECKING:
    from hedgerow.boosting.strategies.fedxgbllr.parameters import FedXGBllr
    from hedgerow.crypto.vault.interface import Vault

_POINTS_A_CUT = 4  # points of a quantile summary for each shared cut


def participate(
    parameters: FedXGBllr, link: SiloChannel, vault: Vault | None, start: SiloStart
) -> ModelCheck:
    """Run the silo half to its end; returns how it knows the model."""
    half = _StackingSilo(parameters, link, vault, start)
    half.run()
    return half.check_model


class _StackingSilo:
    """A silo's run: grow trees, receive all silos', then a round at a time."""

    def __init__(
        self, parameters: FedXGBllr, link: SiloChannel, vault: Vault | None, start: SiloStart
    ) -> None:
        self.parameters, self.link, self.start = parameters, link, start
        self.job, self.number = start.job, roster_index(start.silo, start.silos)
        rng = generator(start.draws, self.number, 0, Purpose.NETWORK_SPLIT)
        rows, held = split_rows(start.dataset.n_samples, parameters.held_out, rng)
        self.train: Dataset = start.dataset.take(rows) if len(held) else start.dataset
        self.valid: Dataset = start.dataset.take(held)
        self.terms = AgreedTerms.start(parameters, self.job, start.schema, len(start.silos))
        self.knows_labels = not parameters.needs_label_sums(self.job)
        self.knows_cuts = not parameters.shared_cuts
        self.sums = SiloSums.of(link, vault, start, self.terms.sums)
        self.labels = self.sums
        self.scores: SiloScores[MetricSums, PointChoice] | None = None
        masks = not parameters.secure and masks_scores(len(start.silos))
        if masks and parameters.needs_label_sums(self.job):
            least = mean_parameters(self.job.min_silos, secure=True)
            self.labels = SiloSums.of(link, vault, start, least)
        if masks and parameters.held_out:
            self.scores = SiloScores(link, vault, start, SCORES, 1)
        self.upload: PackedEnsemble | None = None
        self.combiner: Combiner
        self.rows: TrainingRows
        self.valid_leaves: LeafOrdinals
        self.learnt: bytes
        self.candidates: NDArray[Any]
        self.points: list[NDArray[Any]] = []
        self.trees: list[bytes] = []
        self.choice = 0
        self.round = 0
        self.answered = 0
        self.trained: tuple[int, NDArray[Any]] | None = None
        self.final = False
        self.n_syncs = 0

    def run(self) -> None:
        """Take part until the job ends; a silo that was left out synchronises and continues."""
        behind = self.start.first_round > 0
        while not self.final:
            try:
                if behind:
                    self._synchronise()
                    behind = False
                elif self.round == 0:
                    self._grow()
                else:
                    self._take_round()
            except PlacePassed:
                self.link.check()
                behind = True
                if 0 < self.round <= self.answered:  # it would ask for the state without end
                    with suppress(PlacePassed):
                        self.link.exchange(TURN, ExchangeKey(self.round), ProgressQuery())

    def _synchronise(self) -> None:
        progress = self.link.exchange(SYNC, ExchangeKey(0, 0, self.n_syncs), ProgressQuery())
        self.n_syncs += 1
        if progress.labels is not None:
            self.terms = self.terms.with_labels(progress.labels)
            self.knows_labels = self.knows_cuts = True
        if progress.cuts is not None:
            self.terms = self.terms.with_cuts(progress.cuts)
        state = progress.state
        self.round = 0 if state is None else state.round
        if state is not None:
            self._learn_trees(state.ensembles.ensembles)
            known = self.combiner.initial().candidates[0]
            self._take(self.combiner.read_points(state.points, known))
            if state.best is not None:  # of a round that this silo may not have seen
                self.points.extend(self.combiner.read_points(state.best, known))
            self.choice, self.final = state.choice, state.final

    # round 0

    def _grow(self) -> None:
        at = ExchangeKey(0)
        if not self.knows_labels:
            self._agree_on_labels(at)
        if not self.knows_cuts:
            self._agree_on_cuts(at)
        if self.upload is None and self.train.n_samples:
            self.upload = encode_trees(self._trees(), self.terms.form)
        others = self.link.exchange(TREES, at, EnsembleOffer(self.train.n_samples, self.upload))
        own = {} if self.upload is None else {self.start.silo: self.upload}
        self._learn_trees({**others.ensembles, **own})
        self._take(self.combiner.initial().candidates)
        self.round = 1
        self.final = self.parameters.n_rounds == 0

    def _agree_on_labels(self, at: ExchangeKey) -> None:
        self.labels.setup(at)
        y = self.train.labels
        w = np.ones(len(y)) if self.train.weight is None else self.train.weight
        parts = exact_parts(w, w * y, w * (y * y))
        state = state_digest(self.start.schema)
        self.terms = self.terms.with_labels(self.labels.sum(BASE, at, parts, state=state))
        self.knows_labels = True

    def _agree_on_cuts(self, at: ExchangeKey) -> None:
        size = _POINTS_A_CUT * self.parameters.shared_cuts
        points = [
            summarise(self.train.X[:, j], size)
            for j, feature in enumerate(self.start.schema.features)
            if not feature.is_categorical
        ]
        offer = QuantileSummaries.of(points)
        self.terms = self.terms.with_cuts(self.link.exchange(CUTS, at, offer))
        self.knows_cuts = True

    def _trees(self) -> list[Tree]:
        start, cuts, job = self.start, self.terms.cuts, self.terms.job
        X = self.train.X if cuts is None else cut_columns(self.train.X, cuts, start.schema)
        table = replace(self.train, features=X, y=self.terms.targets(self.train))
        n_outputs = start.schema.n_outputs
        parameters = {
            **booster_parameters(
                constrained(job.booster, start.schema),
                job.objective,
                n_outputs,
                start.n_threads,
                start.device,
            ),
            "base_score": 0.5 if self.job.task is Task.BINARY else 0.0,
            "seed": xgboost_seed(start.draws, self.number, 0, Purpose.SILO_TREES),
        }
        if cuts is not None:
            parameters["max_bin"] = max(2, *(len(of_feature) for of_feature in cuts))
        if start.trainer is None:
            rows = matrix(table, start.n_threads)
            trees = grow(parameters, rows, self.terms.n_steps, self.link.check)
        else:
            margins = np.zeros((table.n_samples, n_outputs), np.float32)  # both base scores'
            trees = start.trainer(table, margins, parameters, self.terms.n_steps)
            self.link.check()
        return trees if cuts is None else uncut(trees, cuts, start.schema)

    def _learn_trees(self, ensembles: Mapping[Silo, PackedEnsemble]) -> None:
        """Take in all silos' trees; of its own, what it has sent."""
        trees = [self.terms.decode(ensembles[silo], silo) for silo in sorted(ensembles)]
        self.combiner, every = self.terms.combine(trees)
        self.trees = fingerprints(every)
        leaves = LeafOrdinals.of(every, self.train.X)
        self.rows = TrainingRows(leaves, self.terms.targets(self.train), self.train.weight)
        self.valid_leaves = LeafOrdinals.of(every, self.valid.X)
        terms = self.terms
        self.learnt = state_digest(
            self.start.schema, terms.center, terms.scale, terms.cuts, ensembles
        )

    @property
    def _state(self) -> bytes:
        """Digest of what this silo's part of a round follows from beside its rows."""
        return state_digest(self.learnt, self.candidates, self.choice)

    def _take(self, candidates: NDArray[Any]) -> None:
        """Go on from other points, of which one may be the result."""
        self.candidates = candidates
        self.points.extend(candidates)

    def check_model(self, files: Mapping[str, bytes]) -> None:
        """Raise :class:`ModelRejected` unless a result is of a point that all silos were given.

        Which one was best the coordinator knows: it may be of any round.
        """
        model, terms = StackedModel.load(files), self.terms
        same = (
            fingerprints(model.ensemble.trees) == self.trees
            and np.allclose([model.center, model.scale], [terms.center, terms.scale], rtol=1e-6)
            and any(
                point.size == model.point.size
                and np.allclose(point.ravel(), model.point.ravel(), rtol=1e-5, atol=1e-7)
                for point in self.points
            )
            and files.get(MODEL) == model.stock()
        )
        if not same:
            raise ModelRejected("the result is not the model that this silo has helped to train")

    # rounds 1 to R

    def _take_round(self) -> None:
        at, known = ExchangeKey(self.round), self.candidates[0]
        kind = WEIGHTS if self.parameters.is_network else SUMS
        if self.round <= self.answered:
            # Still the round before, or a coordinator that asks a round again from other points.
            raise PlacePassed(f"round {self.round} was answered before")
        if self.parameters.secure and isinstance(self.combiner, RowCombiner):
            reply = self._add_rows(at, self.combiner)
        else:
            reply = self._add_vector(kind, at, known)
        self.answered = self.round
        self._take(self.combiner.read_points(reply.points, known))
        self.final = reply.final
        if self.parameters.held_out:
            self._score(ExchangeKey(self.round, 1))
        if self.final and isinstance(self.combiner, HeadCombiner):
            self._offer_rates(ExchangeKey(self.round, 2), self.combiner)
        self.round += 1

    def _add_vector(
        self, kind: FloatSum[RoundVector, NextPoints], at: ExchangeKey, known: NDArray[Any]
    ) -> NextPoints:
        if self.trained is None or self.trained[0] != self.round:
            rng = generator(self.start.draws, self.number, self.round, Purpose.NETWORK_TRAINING)
            vector = self.combiner.local(
                self.candidates, self.rows, self.round, self.choice, rng, self.link.check
            )
            self.trained = (self.round, vector)
        # A round that is asked again, as its answer was late, gets the same vector.
        vector = self.trained[1]
        self.sums.setup(at)
        if self.parameters.secure:
            return add_securely(self.sums, kind, at, vector, self._state)
        rng = generator(self.start.draws, self.number, self.round, Purpose.NETWORK_ROUNDING)
        offer = self.combiner.write(vector, self.round, known, rng)
        return self.link.exchange(kind.plain, at, offer)

    def _add_rows(self, at: ExchangeKey, combiner: RowCombiner) -> NextPoints:
        """Add exact sums over this silo's rows."""
        job, rows = self.job, self.rows
        self.sums.setup(at)
        own = own_bounds(job, rows.y, rows.weight)
        found = add_maximum(self.sums, at, own, state=self._state, steps=SUMS.bound)
        self.link.check()
        bounds = RowBounds.of(job, len(self.start.silos), found)
        parts = combiner.row_sums(self.candidates, rows, self.round, bounds)
        state = state_digest(self._state, *found)
        return self.sums.sum(SUMS.secure, at, parts.view(np.uint64), state=state)

    def _score(self, at: ExchangeKey) -> None:
        names = validation_metrics(self.job)
        points = list(self.candidates)
        if self.round == 1:  # beside its results the mean that it started from
            points.insert(0, self.combiner.initial().solution)
        margins = [
            self.terms.margins(self.combiner.margins(point, self.valid_leaves)) for point in points
        ]

        def of_point(summed: SummedMetrics, k: int) -> NDArray[np.uint64]:
            return summed.parts(
                self.valid.labels,
                margins[k],
                objective=self.job.objective,
                weight=self.valid.weight,
                center=self.terms.center,
            )

        def parts(summed: SummedMetrics) -> NDArray[np.uint64]:
            return np.concatenate([of_point(summed, k) for k in range(len(points))])

        if self.parameters.secure:
            reply = add_scores(self.sums, SCORES, at, names, parts, self.start, self._state)
        elif self.scores is not None:
            reply = self.scores.add(at, names, parts, self._state)
        else:
            told = [
                values_of(names, partial(of_point, k=k), self.start) for k in range(len(points))
            ]
            reply = self.link.exchange(SCORES.plain, at, MetricSums(np.concatenate(told)))
        choice = reply.choice
        if choice >= len(self.candidates):
            raise OfferRejected(
                f"choice: expected a number below {len(self.candidates)}, received {choice}"
            )
        if len(self.candidates) > 1:
            self.choice = choice
        if reply.best is not None:
            self.candidates = checked("best", reply.best, self.candidates[0].shape)[None]
        elif not reply.keeps_all:
            self.candidates = self.candidates[choice : choice + 1]
        self.final = reply.final

    def _offer_rates(self, at: ExchangeKey, combiner: HeadCombiner) -> None:
        point = self.candidates[0]
        active = combiner.active(point, self.rows.leaves)
        if self.parameters.secure:
            self.sums.sum(RATES.secure, at, active.astype(np.uint64), state=self._state)
        else:
            n = int(active[-1])
            sums = (n * combiner.rates(point, active).reshape(-1)).astype(np.float32)
            self.link.exchange(RATES.plain, at, RateSums(sums, n))
