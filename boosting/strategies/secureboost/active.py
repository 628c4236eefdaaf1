"""The active party: it has the labels, the key, the structures and the leaf values."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Columns, Task, relabelled
from hedgerow.boosting.engine.cuts import local_cuts
from hedgerow.boosting.engine.grower import ColumnSampler
from hedgerow.boosting.engine.objective import Objective, objective_of
from hedgerow.boosting.engine.quantising import (
    Quantiser,
    bound_of_exponents,
    exponents,
    static_bound,
)
from hedgerow.boosting.engine.sampling import Sample
from hedgerow.boosting.engine.splitting import TreeParameters
from hedgerow.boosting.engine.start import margins_of, start_score, weight_exponent
from hedgerow.boosting.errors import DataError
from hedgerow.boosting.own_scores import OWN_SCORES, Scores, kept_scores
from hedgerow.boosting.ports import Artefact
from hedgerow.boosting.rounds.best import BestRound
from hedgerow.boosting.selection import FILE
from hedgerow.boosting.strategies.secureboost import platt
from hedgerow.boosting.strategies.secureboost.active_tree import ActiveTree, Gradients
from hedgerow.boosting.strategies.secureboost.choice import PurityGuard
from hedgerow.boosting.strategies.secureboost.divisions import leaf_order, leaves_only
from hedgerow.boosting.strategies.secureboost.eini import FRACTION_BITS, ask
from hedgerow.boosting.strategies.secureboost.gradient_layout import layout_of_tree
from hedgerow.boosting.strategies.secureboost.information import LabelClasses
from hedgerow.boosting.strategies.secureboost.interactions import Interactions
from hedgerow.boosting.strategies.secureboost.meeting import LEAVES, meet
from hedgerow.boosting.strategies.secureboost.model import ActivePart, TreeStructure
from hedgerow.boosting.strategies.secureboost.party import PART, AlignedRows, Party, held_back
from hedgerow.boosting.strategies.secureboost.predictions import PREDICTIONS, predictions
from hedgerow.boosting.strategies.secureboost.refusals import public_text
from hedgerow.boosting.strategies.secureboost.routing import (
    margins,
    n_exchanges,
    route,
    router_of_active,
)
from hedgerow.boosting.strategies.secureboost.steps import (
    SCORES,
    ModelState,
    RowSet,
    StepName,
    TableScore,
)
from hedgerow.boosting.streams import Purpose, generator
from hedgerow.crypto.ciphers.roles import Scheme
from hedgerow.crypto.errors import PackingRefused
from hedgerow.crypto.masking.fixed_point import OutOfRange


class ActiveParty(Party):
    """Trains, and names the next step at every exchange."""

    def run(self) -> Artefact:
        """Take part until the job ends."""
        parameters, start = self.parameters, self.start
        self._told: list[Scores] = []
        record = self.recalled()
        if record.get("final"):
            self._told = list(record.get("scores", ()))
            return self._kept(ActivePart.load(record["part"].encode()))
        if parameters.predict_from:
            return self._predict()
        earlier = None if record or not parameters.warm_start else self._earlier()
        known = ActivePart.load(record["part"].encode()) if record else None
        if known is not None:
            self.use_columns(known.features, known.categories)
        digest = bytes.fromhex(earlier.digest) if earlier else b""
        opening = self._opening(start.first_round)
        routed = earlier is not None and n_exchanges(earlier.trees) > 0
        key = self._new_key()
        met = meet(self.courier, start, parameters.active, key, StepName.IDENTIFIERS, digest)
        if parameters.leaves_only:
            met.need(LEAVES)
        rows = self.align(met.with_test, StepName.MARGINS if routed else opening)
        self._prepare(rows)
        if parameters.information:
            return self._inform()
        if known is not None:
            self._restore(known, record)
        elif earlier is not None:
            self._go_on_from(earlier, rows, opening)
        for r in range(start.first_round, parameters.rounds):
            if self._round(r):
                break
            self.courier.begin_round(r + 1)
        return self._kept(self.part)

    def _kept(self, part: ActivePart) -> Artefact:
        return Artefact({PART: part.dump(), OWN_SCORES: kept_scores(self._told)}, PART)

    def _new_key(self) -> bytes:
        """Return the public key of this job; nothing where nothing is encrypted."""
        scheme: Scheme = "elgamal" if self.parameters.encryption == "elgamal" else "paillier"
        return self.cipher.create_cipher_key(self.session, self.parameters.key_bits, scheme)

    def _earlier(self) -> ActivePart:
        """Return the part that this job starts from, with the table's columns in its order."""
        part = ActivePart.load(self.earlier_part())
        if tuple(part.parties) != self.parties:
            raise DataError(
                f"the model was made by {', '.join(part.parties)}, "
                f"this job has {', '.join(self.parties)}"
            )
        self.use_columns(part.features, part.categories)
        return part

    def _go_on_from(self, earlier: ActivePart, rows: AlignedRows, then: StepName) -> None:
        """Begin with an earlier model's trees (warm start)."""
        self.check_categories(earlier)
        if earlier.objective != self.job.objective or earlier.n_outputs != self.part.n_outputs:
            raise DataError(
                f"the model was trained for {earlier.objective}, the job is for "
                f"{self.job.objective}"
            )
        if earlier.base_margins != self.part.base_margins:
            raise DataError(
                f"base margins: the model was trained from {earlier.base_margins or 'none'}, the "
                f"job has {self.part.base_margins or 'none'}"
            )
        self._route(earlier, earlier.trees, rows.raw, rows.base_margin, then)
        self.part.trees = earlier.trees
        self.part.base_margin = earlier.base_margin
        self.first_round = _next_round(earlier)

    def _route(
        self,
        part: ActivePart,
        trees: list[TreeStructure],
        X: Columns,
        brought: NDArray[np.float32] | None,
        then: StepName,
    ) -> None:
        start = part.start(X.n_samples, brought)
        router = router_of_active(part, len(trees), X)
        route(self.courier, router, trees, then)
        self.margins = margins(router, trees, start)

    def _predict(self) -> Artefact:
        """Score the parties' tables with an earlier model."""
        part = self._earlier()
        trees = part.used_trees
        hidden = self.parameters.inference == "eini" and bool(trees)
        first = StepName.MARGINS if n_exchanges(trees) else StepName.SCORES
        key = self._new_key() if hidden else b""
        digest = bytes.fromhex(part.digest)
        met = meet(
            self.courier, self.start, self.parameters.active, key, StepName.IDENTIFIERS, digest
        )
        if hidden and any(len(tree.groups) > 1 for tree in trees):
            met.need("inference = eini for trees with vector leaves (multi_output)")
        rows = self.align(False, StepName.LEAVES if hidden else first)
        if hidden:
            router = router_of_active(part, len(trees), rows.raw)
            begin = part.start(router.n_rows, rows.base_margin)
            bits = FRACTION_BITS[self.parameters.encryption]
            self.margins = ask(
                self.courier, self.cipher, self.session, router, part, begin, bits, StepName.SCORES
            )
        else:
            self._route(part, trees, rows.raw, rows.base_margin, StepName.SCORES)
        kept: dict[str, bytes] = {}
        scores: tuple[TableScore, ...] = ()
        if rows.train.y is not None:
            names = self.job.metrics or metrics.defaults(self.job.task)
            own = rows.train.schema
            agreed = replace(own, classes=tuple(part.classes), n_classes=part.n_outputs)
            labels = relabelled(rows.train, agreed, f"the table of {self.parties[0]}")
            found = metrics.evaluate(
                names,
                np.asarray(labels, np.float64),
                self.margins.astype(np.float64),
                objective=part.objective,
                weight=rows.train.weight,
            )
            kept[OWN_SCORES] = kept_scores([{RowSet.TEST.value: found}])
            scores = self._leaving({RowSet.TEST: found})
        self.courier.send(SCORES, then=StepName.END, scores=scores)
        assert rows.train.ids is not None
        table = predictions(part, rows.train.ids, rows.rows, self.margins)
        return Artefact({PREDICTIONS: table, **kept}, PREDICTIONS)

    def _inform(self) -> Artefact:
        """Return how far the label's classes differ over the bins of each column."""
        classes, outputs = LabelClasses.of(self.y, self.train.schema), self.margins.shape[1]
        bound = static_bound(self.objective, self.sampler, outputs, 1.0) or (1.0, 1.0)
        # An output counts one class: the second one, or of several each.
        counted = np.arange(len(classes.names))[-outputs:]
        g = np.where(classes.codes[:, None] == counted, np.float32(bound[0]), np.float32(0))
        h = np.full_like(g, bound[1])
        every, rows = Sample(np.arange(len(g), dtype=np.int32)), Sample(self.fit)
        gradients = self._gradients(g, h, every, rows)
        tree = ActiveTree(
            self.setup, self.parameters.turn(0, self.parties), self.tree_parameters, None,
            PurityGuard(1.0, 1.0),
        )  # fmt: skip
        sums = tree.columns_of_others(rows, gradients, StepName.SCORES)
        # Each row of a class has the same integers, so counts are exact.
        units = np.abs(gradients.searched).max(axis=0, initial=1)
        told = classes.own_columns(self.setup, self.fit, self.part)
        for party, columns in sums.items():
            told += [
                classes.column_of_other(f"{party}: column {k + 1}", own // units)
                for k, own in enumerate(columns)
            ]
        self.courier.send(SCORES, then=StepName.END)
        file = classes.file(self.job, self.parameters.least_rows, told)
        return Artefact({FILE: file}, FILE)

    def _opening(self, round: int) -> StepName:
        """Return the first step of a round."""
        shared = self.parameters.turn(round, self.parties).passive
        return StepName.GRADIENTS if shared else StepName.SCORES

    def _prepare(self, rows: AlignedRows) -> None:
        parameters, job = self.parameters, self.job
        train = rows.train
        schema = train.schema
        self.objective: Objective = objective_of(job.objective, schema.task, job.booster)
        self.objective.check_labels(train.labels, schema.n_classes)
        if schema.n_outputs != parameters.n_outputs(job):
            raise DataError(
                f"classes: expected {parameters.n_outputs(job)} by the job, "
                f"the label has {schema.n_outputs}"
            )
        self.n_train = train.n_samples
        self.train = train
        held = held_back(parameters.validation, job.seed, self.n_train)
        self.fit = np.setdiff1d(np.arange(self.n_train, dtype=np.int32), held)
        self._note_scored(rows, held)
        self.weight = None if train.weight is None else train.weight[self.fit]
        self.y = train.labels[self.fit]
        margin = 0.0
        if not parameters.base_margin:
            base = start_score(self.objective, job.booster, self.y, self.weight)
            margin = float(margins_of(self.objective, base)[0])
        fitted = train.take(self.fit.astype(np.intp))
        cuts = local_cuts(fitted, job.booster.max_bin, parameters.binning_error)
        self.setup = self.tree_setup(rows, cuts)
        n_rows = self.setup.binned.n_samples
        self.tree_parameters = replace(
            TreeParameters.of(job.booster, schema.n_features), monotone=self.monotone(schema)
        )
        self.groups = self.groups_of(schema)
        self.constrained = {
            party: (bool(parameters.monotone(party)), tuple(parameters.groups(party)))
            for party in self.parties[1:]
            if parameters.monotone(party) or parameters.groups(party)
        }
        self.sampler = parameters.sampler(job.booster)
        self.part = ActivePart(
            party=self.parties[0],
            parties=list(self.parties),
            model=self.start.job_id,
            objective=job.objective,
            model_objective=self.objective.model_name,
            task=schema.task.value,
            n_outputs=schema.n_outputs,
            base_margin=margin,
            features=list(schema.names),
            categories=rows.categories,
            label=job.label,
            classes=list(schema.classes),
            numbered=schema.numbered,
            base_margins=list(parameters.base_margin),
            alignment=rows.report,
        )
        self.margins = self.part.start(n_rows, rows.base_margin)
        self.first_round = 0
        self._best = BestRound()
        self.names = job.metrics or metrics.defaults(job.task)

    def _note_scored(self, rows: AlignedRows, held: NDArray[np.int32]) -> None:
        """Note which rows each round is scored on, with their labels and weights."""
        self.scored: dict[RowSet, NDArray[np.integer]] = {RowSet.TRAIN: self.fit}
        if len(held):
            self.scored[RowSet.VALID] = held
        first = self.n_train
        for kind, table in rows.scored:
            if table.y is None:
                raise DataError(
                    f"rows of the {kind.value} table of {self.parties[0]} have no label"
                )
            self.scored[kind] = np.arange(first, first + table.n_samples)
            first += table.n_samples
        schema = rows.train.schema
        owner = f"a table of {self.parties[0]}"
        self.labels = np.concatenate(
            [np.asarray(relabelled(t, schema, owner), np.float64) for t in rows.tables]
        )
        weights = [table.weight for table in rows.tables]
        self.weights = None
        if any(own is not None for own in weights):
            self.weights = np.concatenate(
                [
                    np.ones(table.n_samples, np.float32) if own is None else own
                    for own, table in zip(weights, rows.tables, strict=True)
                ]
            )

    def _restore(self, part: ActivePart, record: dict[str, Any]) -> None:
        self.part = part
        self.first_round = _next_round(part) - self.start.first_round
        self._told = list(record.get("scores", ()))
        flat = np.frombuffer(bytes.fromhex(record["margins"]), "<f4")
        if flat.size != self.margins.size:
            raise DataError(
                f"{self.margins.shape[0]} rows are common to all parties now, another number was "
                "when the job began: a table has changed"
            )
        self.margins = flat.reshape(self.margins.shape).astype(np.float32)
        best = json.loads(record["best"])
        scored = best[1] is not None
        self._best.best_round = int(best[0]) if scored or not best[2] else -1
        self._best.best_score = float(best[1]) if scored else math.nan

    def _round(self, r: int) -> bool:
        """Train and score a round; return whether it was the last."""
        parameters = self.parameters
        turn = parameters.turn(r, self.parties)
        g, h = self.objective.gradients(self.margins[self.fit], self.y, self.weight)
        drawn = self.sampler.draw(g, h, generator(self.start.draws, 0, r, Purpose.SAMPLING))
        sample = Sample(self.fit[drawn.rows], drawn.weight)
        n_outputs = self.margins.shape[1]
        groups = [[c] for c in range(n_outputs)]
        if parameters.multi_output:
            groups = [list(range(n_outputs))]
        tree_parameters = self.tree_parameters
        if parameters.mode == "layered" and turn.passive:
            both = parameters.host_depth + parameters.guest_depth
            tree_parameters = replace(tree_parameters, max_depth=both)
        trees: list[TreeStructure] = []
        for t, group in enumerate(groups):
            columns = None
            if tree_parameters.samples_columns:
                rng = generator(self.job.seed, 0, r * len(groups) + t, Purpose.COLUMNS)
                columns = ColumnSampler(self.train.schema.n_features, tree_parameters, rng)
            guard = PurityGuard(parameters.max_purity, self.objective.positive_scale)
            interactions = Interactions(self.groups) if len(self.groups) else None
            tree = ActiveTree(
                self.setup, turn, tree_parameters, columns, guard, self.constrained, interactions
            )
            then = StepName.SCORES if t == len(groups) - 1 else StepName.GRADIENTS
            gradients = self._gradients(g[:, group], h[:, group], drawn, sample)
            grown = tree.grow(sample, gradients, group, self.first_round + r, then)
            if parameters.leaves_only:
                grown = leaves_only(grown, leaf_order(tree.partition))
            trees.append(grown)
            for leaf in tree.leaves:
                rows = tree.partition.rows(leaf)
                self.margins[rows[:, None], group] += tree.values[leaf]
        self.part.trees += trees
        return self._close(r)

    def _gradients(
        self, g: NDArray[np.float32], h: NDArray[np.float32], drawn: Sample, sample: Sample
    ) -> Gradients:
        n_outputs = g.shape[1]
        weighed = weight_exponent(len(self.y), self.weight)
        bound = static_bound(self.objective, self.sampler, self.margins.shape[1], 2.0**weighed)
        g, h = np.ascontiguousarray(g), np.ascontiguousarray(h)
        if not (np.isfinite(g[drawn.rows]).all() and np.isfinite(h[drawn.rows]).all()):
            raise DataError("gradients: expected finite ones of all rows")
        try:
            powers = (weighed, weighed) if bound else exponents(g, h, drawn)
            bound = bound or bound_of_exponents(*powers)
            layout = layout_of_tree(self.parameters, self.job, len(self.fit), powers)
            quantiser = Quantiser.fitting(len(self.fit), bound)
            fine = quantiser.lossless(g, h, drawn)
            weight = np.float32(1.0) if drawn.weight is None else drawn.weight[:, None]
            grad = (g[drawn.rows] * weight).astype(np.float64)
            hess = (h[drawn.rows] * weight).astype(np.float64)
            stored = layout.quantise(grad, hess)
        except (OutOfRange, PackingRefused) as error:
            raise DataError(f"gradients: {public_text(error)}") from error
        searched = np.zeros((len(self.margins), 2 * n_outputs), np.int64)
        exact = np.zeros_like(searched)
        exact[sample.rows] = fine[drawn.rows]
        searched[sample.rows, 0::2], searched[sample.rows, 1::2] = stored
        labels = None
        if self.train.schema.task is Task.BINARY and self.parameters.max_purity < 1:
            labels = np.zeros((len(self.margins), 2))
            y = self.y[drawn.rows]
            w = np.where(y == 1, self.objective.positive_scale, 1.0)
            for weights in (drawn.weight, None if self.weight is None else self.weight[drawn.rows]):
                w = w if weights is None else w * weights
            labels[sample.rows, 0], labels[sample.rows, 1] = w, w * y
        return Gradients(layout, grad, hess, searched, exact, quantiser.scale, labels)

    def _close(self, r: int) -> bool:
        """Score the round, make it durable, and report it."""
        parameters = self.parameters
        found = {kind: self._evaluated(rows) for kind, rows in self.scored.items()}
        self._told.append({kind.value: own for kind, own in found.items()})
        if RowSet.VALID in found:
            self._best.note(self.names[0], r, found[RowSet.VALID][self.names[0]])
        else:
            self._best.best_round = r
        patience, score = parameters.early_stopping_rounds, self._best.best_score
        final = r == parameters.rounds - 1 or self._best.ends(r, patience)
        best_round = max(self._best.best_round, 0)
        best = [best_round, None if math.isnan(score) else score, r - self._best.best_round]
        kept = best_round if patience else r
        self.part.best_round = self.first_round + kept
        if parameters.calibrate:
            if kept == r and RowSet.VALID in found:
                self.part.calibration = self._calibration()
            if final and self.part.calibration:
                self.part.calibrate()
        self.remember(
            r,
            {
                "part": self.part.dump().decode(),
                "margins": self.margins.astype("<f4").tobytes().hex(),
                "best": json.dumps(best),
                "scores": self._told,
                "final": final,
            },
        )
        state = ModelState(
            bytes.fromhex(self.part.digest), len(self.part.trees), len(self.part.used_trees)
        )
        self.courier.send(
            SCORES,
            boxes=dict.fromkeys(self.parties[1:], state),
            then=StepName.END if final else self._opening(r + 1),
            scores=self._leaving(found),
            best_round=kept,
        )
        return final

    def _leaving(self, found: Mapping[RowSet, Mapping[str, float]]) -> tuple[TableScore, ...]:
        """Return what the coordinator is told of scores: nothing unless the policy says so."""
        if not self.start.limits.tells_scores:
            return ()
        return tuple(
            TableScore(kind, name, metrics.rounded(value))
            for kind, own in found.items()
            for name, value in own.items()
        )

    def _calibration(self) -> list[float]:
        """Return scale and shift of the margins that fit the validation rows."""
        rows = self.scored[RowSet.VALID]
        weight = None if self.weights is None else self.weights[rows]
        return list(platt.fit(self.margins[rows], self.labels[rows], weight))

    def _evaluated(self, rows: NDArray[np.integer]) -> dict[str, float]:
        return metrics.evaluate(
            self.names,
            self.labels[rows],
            self.margins[rows].astype(np.float64),
            objective=self.job.objective,
            weight=None if self.weights is None else self.weights[rows],
        )


def _next_round(part: ActivePart) -> int:
    return 1 + max((tree.round for tree in part.trees), default=-1)
