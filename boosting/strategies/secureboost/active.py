"""The active party's half: labels, key, structures and leaf values."""

from __future__ import annotations

import csv
import io
import json
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.engine.binning import bin_features
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
from hedgerow.boosting.engine.start import start_score, weight_exponent
from hedgerow.boosting.errors import DataError
from hedgerow.boosting.ports import Artefact
from hedgerow.boosting.strategies.secureboost.active_tree import ActiveTree, Gradients, layered
from hedgerow.boosting.strategies.secureboost.choice import PurityGuard
from hedgerow.boosting.strategies.secureboost.courier import size_class
from hedgerow.boosting.strategies.secureboost.eini import FRACTION_BITS, ask
from hedgerow.boosting.strategies.secureboost.gradient_layout import layout_of_gradients
from hedgerow.boosting.strategies.secureboost.model import ActivePart, Skeleton
from hedgerow.boosting.strategies.secureboost.party import PART, Half, Rows, held_back
from hedgerow.boosting.strategies.secureboost.plain_vault import said
from hedgerow.boosting.strategies.secureboost.routing import (
    margins,
    n_exchanges,
    route,
    router_of_active,
)
from hedgerow.boosting.strategies.secureboost.steps import (
    END,
    GRADIENTS,
    IDENTIFIERS,
    LEAVES,
    MARGINS,
    SCORES,
    meet,
)
from hedgerow.boosting.streams import Purpose, generator
from hedgerow.crypto.cipher_roles import Scheme
from hedgerow.crypto.errors import PackingRefused
from hedgerow.crypto.fixed_point import OutOfRange

PREDICTIONS = "predictions.csv"
"""File of a prediction job's result, at the active party."""


class ActiveHalf(Half):
    """Trains, and says at every exchange which step comes next."""

    def run(self) -> Artefact:
        """Take part until the job ends."""
        strategy, start = self.strategy, self.start
        record = self.recalled()
        if record.get("final"):
            return self._kept(ActivePart.load(record["part"].encode()))
        if strategy.predict_from:
            return self._predict()
        earlier = None if record or not strategy.warm_start else self._earlier()
        digest = bytes.fromhex(earlier.digest) if earlier else b""
        opening = self._opening(start.first_round)
        routed = earlier is not None and n_exchanges(earlier.trees) > 0
        key = self._new_key()
        met = meet(self.courier, start, strategy.active, key, IDENTIFIERS.name, digest)
        rows = self.align(met.with_test, MARGINS.name if routed else opening)
        self._prepare(rows)
        if record:
            self._restore(record)
        elif earlier is not None:
            self._go_on_from(earlier, rows, opening)
        for r in range(start.first_round, strategy.rounds):
            if self._round(r):
                break
            self.courier.begin_round(r + 1)
        return self._kept(self.part)

    def _kept(self, part: ActivePart) -> Artefact:
        return Artefact({PART: part.dump()}, PART)

    def _new_key(self) -> bytes:
        """Return the public key of this job; nothing where nothing is encrypted."""
        scheme: Scheme = "elgamal" if self.strategy.encryption == "elgamal" else "paillier"
        return self.cipher.create_cipher_key(self.session, self.strategy.key_bits, scheme)

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

    def _go_on_from(self, earlier: ActivePart, rows: Rows, then: str) -> None:
        """Begin with an earlier model's trees (warm start)."""
        if earlier.objective != self.job.objective or earlier.n_outputs != self.part.n_outputs:
            raise DataError(
                f"the model was trained for {earlier.objective}, the job is for "
                f"{self.job.objective}"
            )
        self._route(earlier, earlier.trees, rows.raw, then)
        self.part.trees = earlier.trees
        self.part.base_margin = earlier.base_margin
        self.first_round = 1 + max((tree.round for tree in earlier.trees), default=-1)

    def _route(
        self, part: ActivePart, trees: list[Skeleton], X: NDArray[np.float32], then: str
    ) -> None:
        router = router_of_active(part, len(trees), X)
        route(self.courier, router, trees, then)
        self.margins = margins(router, trees, part.base_margin, part.n_outputs)

    def _predict(self) -> Artefact:
        """Score the parties' tables with an earlier model."""
        part = self._earlier()
        trees = part.used_trees
        hidden = self.strategy.inference == "eini" and bool(trees)
        first = MARGINS.name if n_exchanges(trees) else SCORES.name
        key = self._new_key() if hidden else b""
        digest = bytes.fromhex(part.digest)
        meet(self.courier, self.start, self.strategy.active, key, IDENTIFIERS.name, digest)
        rows = self.align(False, LEAVES.name if hidden else first)
        if hidden:
            router = router_of_active(part, len(trees), rows.train.X)
            self.margins = ask(
                self.courier, self.cipher, self.session, router, trees, self.parties[1:],
                part.base_margin, part.n_outputs, FRACTION_BITS[self.strategy.encryption],
                SCORES.name,
            )  # fmt: skip
        else:
            self._route(part, trees, rows.train.X, SCORES.name)
        scores = {}
        if rows.train.y is not None:
            names = self.job.metrics or metrics.defaults(self.job.task)
            found = metrics.evaluate(
                names, rows.train.y, self.margins.astype(np.float64), objective=part.objective
            )
            scores = {f"test.{name}": value for name, value in found.items()}
        self.courier.send(SCORES, then=END, numbers=scores)
        assert rows.train.ids is not None
        table = predictions(part, rows.train.ids, rows.rows, self.margins)
        return Artefact({PREDICTIONS: table}, PREDICTIONS)

    def _opening(self, round: int) -> str:
        """Return the first step of a round."""
        return GRADIENTS.name if self.strategy.turn(round, self.parties).passive else SCORES.name

    def _prepare(self, rows: Rows) -> None:
        strategy, job = self.strategy, self.job
        train = rows.train
        schema = train.schema
        self.objective: Objective = objective_of(job.objective, schema.task, job.booster)
        self.objective.check_labels(train.labels, schema.n_classes)
        self.n_train = train.n_samples
        self.train, self.test = train, rows.test
        self.valid = held_back(strategy.validation, job.seed, self.n_train)
        self.fit = np.setdiff1d(np.arange(self.n_train, dtype=np.int32), self.valid)
        self.weight = None if train.weight is None else train.weight[self.fit]
        self.y = train.labels[self.fit]
        base = start_score(self.objective, job.booster, self.y, self.weight)
        margin = self.objective.margin_of(base)
        self.cuts = local_cuts(train.take(self.fit.astype(np.intp)), job.booster.max_bin)
        self.binned = bin_features(rows.values(self.cuts), self.cuts, self.start.n_threads)
        self.margins = np.full((self.binned.n_samples, schema.n_outputs), margin, np.float32)
        self.parameters = TreeParameters.of(job.booster, schema.n_features)
        self.sampler = strategy.sampler(job.booster)
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
            alignment=rows.report,
        )
        self.first_round = 0
        self._best, self._best_value, self._stale = 0, math.nan, 0
        self.names = job.metrics or metrics.defaults(job.task)

    def _restore(self, record: dict[str, str]) -> None:
        self.part = ActivePart.load(record["part"].encode())
        flat = np.frombuffer(bytes.fromhex(record["margins"]), "<f4")
        if flat.size != self.margins.size:
            raise DataError(
                f"{self.margins.shape[0]} rows are common to all parties now, another number was "
                "when the job began: a table has changed"
            )
        self.margins = flat.reshape(self.margins.shape).astype(np.float32)
        best = json.loads(record["best"])
        self._best, self._stale = int(best[0]), int(best[2])
        self._best_value = math.nan if best[1] is None else float(best[1])

    def _round(self, r: int) -> bool:
        """Train and score a round; return whether it was the last."""
        strategy = self.strategy
        turn = strategy.turn(r, self.parties)
        g, h = self.objective.gradients(self.margins[self.fit], self.y, self.weight)
        drawn = self.sampler.draw(g, h, generator(self.job.seed, 0, r, Purpose.SAMPLING))
        sample = Sample(self.fit[drawn.rows], drawn.weight)
        n_outputs = self.margins.shape[1]
        groups = [[c] for c in range(n_outputs)]
        if strategy.multi_output:
            groups = [list(range(n_outputs))]
        parameters = self.parameters
        if strategy.mode == "layered" and turn.passive:
            parameters = layered(parameters, strategy.host_depth, strategy.guest_depth)
        trees: list[Skeleton] = []
        for t, group in enumerate(groups):
            columns = None
            if parameters.samples_columns:
                rng = generator(self.job.seed, 0, r * len(groups) + t, Purpose.COLUMNS)
                columns = ColumnSampler(self.train.schema.n_features, parameters, rng)
            tree = ActiveTree(
                self.courier, self.cipher, self.session, self.parties, turn, self.binned, self.cuts,
                parameters, columns, PurityGuard(strategy.max_purity), self.start.n_threads,
                strategy.max_split_nodes,
            )  # fmt: skip
            then = SCORES.name if t == len(groups) - 1 else GRADIENTS.name
            gradients = self._gradients(g[:, group], h[:, group], drawn, sample)
            trees.append(tree.grow(sample, gradients, group, self.first_round + r, then))
            for leaf in tree.leaves:
                rows = tree.partition.rows(leaf)
                self.margins[rows[:, None], group] += tree.values[leaf]
        self.part.trees += trees
        return self._close(r)

    def _gradients(
        self, g: NDArray[np.float32], h: NDArray[np.float32], drawn: Sample, sample: Sample
    ) -> Gradients:
        n_outputs = g.shape[1]
        max_weight = 2.0 ** weight_exponent(len(self.y), self.weight)
        bound = static_bound(self.objective, self.sampler, self.margins.shape[1], max_weight)
        g, h = np.ascontiguousarray(g), np.ascontiguousarray(h)
        try:
            if bound is None:
                bound = bound_of_exponents(*exponents(g, h, drawn))
            n_rows = size_class(len(self.fit))
            layout = layout_of_gradients(
                self.strategy.encryption, n_rows, bound, n_outputs, self.strategy.fraction_bits
            )
            quantiser = Quantiser.fitting(len(self.fit), bound)
            fine = quantiser.lossless(g, h, drawn)
            weight = np.float32(1.0) if drawn.weight is None else drawn.weight[:, None]
            grad = (g[drawn.rows] * weight).astype(np.float64)
            hess = (h[drawn.rows] * weight).astype(np.float64)
            stored = layout.quantise(grad, hess)
        except (OutOfRange, PackingRefused) as error:
            raise DataError(f"gradients: {said(error)}") from error
        searched = np.zeros((len(self.margins), 2 * n_outputs), np.int64)
        exact = np.zeros_like(searched)
        exact[sample.rows] = fine[drawn.rows]
        searched[sample.rows, 0::2], searched[sample.rows, 1::2] = stored
        labels = None
        if self.train.schema.task is Task.BINARY and self.strategy.max_purity < 1:
            labels = np.zeros((len(self.margins), 2))
            w = np.ones(len(drawn.rows)) if drawn.weight is None else drawn.weight.astype(float)
            labels[sample.rows, 0] = w
            labels[sample.rows, 1] = w * self.y[drawn.rows]
        return Gradients(layout, grad, hess, searched, exact, quantiser.scale, labels)

    def _close(self, r: int) -> bool:
        """Score the round, make it durable, and tell the others."""
        strategy = self.strategy
        found = {f"train.{k}": v for k, v in self._scores(self.fit, self.train).items()}
        if len(self.valid):
            scores = self._scores(self.valid, self.train)
            found |= {f"valid.{k}": v for k, v in scores.items()}
            value = scores[self.names[0]]
            if metrics.better(self.names[0], value, self._best_value):
                self._best, self._best_value, self._stale = r, value, 0
            else:
                self._stale += 1
        else:
            self._best = r
        if self.test is not None:
            at = np.arange(self.n_train, len(self.margins))
            found |= {f"test.{k}": v for k, v in self._scores(at, self.test).items()}
        patience = strategy.early_stopping_rounds
        final = r == strategy.rounds - 1 or bool(patience and self._stale >= patience)
        best = [self._best, None if math.isnan(self._best_value) else self._best_value, self._stale]
        self.part.best_round = self.first_round + (self._best if patience else r)
        self.remember(
            r,
            {
                "part": self.part.dump().decode(),
                "margins": self.margins.astype("<f4").tobytes().hex(),
                "best": json.dumps(best),
                "final": final,
            },
        )
        about: dict[str, NDArray[Any]] = {
            "digest": np.frombuffer(bytes.fromhex(self.part.digest), np.uint8),
            "trees": np.array([len(self.part.trees), len(self.part.used_trees)], np.int64),
        }
        self.courier.send(
            SCORES,
            boxes=dict.fromkeys(self.parties[1:], about),
            then=END if final else self._opening(r + 1),
            numbers={**found, "best_round": float(self._best)},
        )
        return final

    def _scores(self, rows: NDArray[np.integer], table: Dataset) -> dict[str, float]:
        labels = table.labels[rows - (0 if table is self.train else self.n_train)]
        return metrics.evaluate(
            self.names, labels, self.margins[rows].astype(np.float64), objective=self.job.objective
        )


def predictions(
    part: ActivePart,
    ids: NDArray[np.object_],
    rows: NDArray[np.int64],
    margins: NDArray[np.float32],
) -> bytes:
    """Return a CSV table: ``_id``, ``prediction`` and, for classes, their probabilities.

    Parameters
    ----------
    ids : ndarray of shape (n_rows,), object
    rows : ndarray of shape (n_rows,), int64
        Where they were in the party's table: the order of the result.
    """
    values = metrics.link(part.objective, margins.astype(np.float64))
    names = ["_id", "prediction"]
    if part.task == Task.REGRESSION.value:
        columns: list[list[Any]] = [values.reshape(-1).tolist()]
    elif part.task == Task.BINARY.value:
        flat = values.reshape(-1)
        columns = [_labels((flat >= 0.5).astype(int), part.classes), flat.tolist()]
        names.append("probability")
    else:
        columns = [_labels(values.argmax(axis=1), part.classes), *values.T.tolist()]
        labels = part.classes or [str(k) for k in range(values.shape[1])]
        names += [f"probability_{label}" for label in labels]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    for k in np.argsort(rows, kind="stable"):
        writer.writerow([ids[k], *(column[k] for column in columns)])
    return out.getvalue().encode()


def _labels(codes: NDArray[np.integer], classes: list[str]) -> list[Any]:
    return [classes[code] for code in codes] if classes else codes.tolist()
