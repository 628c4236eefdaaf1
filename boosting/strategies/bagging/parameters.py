"""Bagging of boosted trees (FLeXGBoost): every silo adds its own trees to one model each round."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Schema, Task
from hedgerow.boosting.errors import InvalidJob, PlacePassed
from hedgerow.boosting.exchange import Hub, Link, Place, Silo
from hedgerow.boosting.ports import (
    Artefact,
    CoordinatorStart,
    Forecast,
    RoundResult,
    Safeguards,
    SiloStart,
)
from hedgerow.boosting.strategies.bagging.halves import (
    SCORES,
    SYNC,
    TREES,
    CoordinatorHalf,
    History,
    SiloHalf,
)
from hedgerow.boosting.strategies.bagging.participation import LR_MODES
from hedgerow.boosting.strategies.bagging.steps import TreeLog
from hedgerow.boosting.trees.ensemble import blank
from hedgerow.boosting.trees.limits import TreeLimits, step_groups
from hedgerow.boosting.trees.local import first_line

if TYPE_CHECKING:
    from hedgerow.boosting.ports import JobParameters
    from hedgerow.crypto.vault import Vault

OBJECTIVES: dict[Task, tuple[str, ...]] = {
    Task.BINARY: ("binary:logistic", "binary:logitraw"),
    Task.MULTICLASS: ("multi:softprob", "multi:softmax"),
    Task.REGRESSION: (
        "reg:squarederror",
        "reg:pseudohubererror",
        "reg:absoluteerror",
        "reg:squaredlogerror",
        "reg:logistic",
        "reg:gamma",
        "reg:tweedie",
        "count:poisson",
    ),
}
"""Objectives of XGBoost that silos can share; the others need a statistic of all labels a step."""


@dataclass(frozen=True, slots=True)
class Bagging:
    """Federated bagging of boosted trees: FLeXGBoost's tree and tree plus, and cyclic boosting.

    In each round every participant trains ``trees_per_round`` boosting steps of stock XGBoost on
    its own rows, starting from the margins of the common model. The coordinator checks the trees
    and appends them in the order of the silos' names; everyone is sent those of the others.

    | step | RPC | when | silo offers | silo gets |
    |---|---|---|---|---|
    | ``sync`` | ExchangeTrees | start, restart, left out | rounds it holds | what it missed |
    | ``sum-*`` | ExchangeSums and its kind | before round 0 of a regression | label sums | totals |
    | ``trees`` | ExchangeTrees | each round | its new trees | the others' new trees |
    | ``scores`` | ExchangeScores | each round, if asked | sums over its rows | stop or go on |

    A round's trees are a pure function of the job's seed, the round, the silo and the model before
    it; so a round that is repeated after a restart gives the same bytes. A silo that is lost is
    left out while ``min_silos`` remain; when it comes back it catches up and looks on until the
    round is over. Silos without rows only look on.

    Parameters
    ----------
    rounds : int
        Federated rounds; FLeXGBoost's ``num_rounds``.
    trees_per_round : int
        Boosting steps of a silo in a round; FLeXGBoost's ``num-local-round``. 1 is "tree", more is
        "tree plus".
    lr_mode : str
        Learning rate of silo k among the participants P. All of them fit the same residual, so
        their rates add up to the round's step. ``plain``: ``eta``; ``uniform``: ``eta / |P|``;
        ``rows``: ``eta n_k / sum n`` (FLeXGBoost's ``normalized_lr``); ``gain``: ``eta G_k / sum
        G`` with the total split gain G of the silo's new trees, applied after training;
        ``total``: as ``rows`` with ``eta_total``. Where a participant is lost before it offers,
        the trees of the others are scaled to the rates that hold without it.
    eta_total : float or None
        The round's step under ``total``.
    silos_per_round : int
        Participants drawn for a round from the job's seed (``num_clients_per_round`` of
        ``pool_size``); 0 for all.
    scrub : str
        ``none``, or ``stats``: gains, covers and weights are zeroed before trees leave the silo;
        predictions stay, importance by gain and SHAP values are lost.
    mode : str
        ``bagging``, or ``cyclic``: one silo after the other takes part.
    validation : float
        Share of each silo's rows held back for the score that selects the best round.
    early_stopping_rounds : int
        Rounds without a better validation score before training ends; 0 for never. The result
        is then the model of the best round.
    evaluate : str
        Whether silos score their own rows too: ``silos``, ``none``, or ``auto``: where the
        coordinator has no test rows.
    secure_mean : bool
        Whether the mean label of a regression is summed securely; needs three silos.
    leaf_bound : float
        Largest leaf value over the learning rate in a classification; silos keep to it and an
        upload that does not is refused. 0 for no bound.

    References
    ----------
    FLeXGBoost (OctaiPipe). ``[booster]`` has XGBoost's defaults, where the source uses
    ``max_depth`` 8 and ``eta`` 0.1 or 0.015. The source says that its normalised rate learns
    faster; at equal ``eta`` it is the smaller step, so compare modes at equal total step.
    """

    rounds: int = 50
    trees_per_round: int = 1
    lr_mode: str = "rows"
    eta_total: float | None = None
    silos_per_round: int = 0
    scrub: str = "none"
    mode: str = "bagging"
    validation: float = 0.0
    early_stopping_rounds: int = 0
    evaluate: str = "auto"
    secure_mean: bool = True
    leaf_bound: float = 10.0

    name: ClassVar[str] = "bagging"
    reveals: ClassVar[str] = (
        "The coordinator and every silo learn all trees: thresholds are values that occur in the "
        "silo that made them, leaf values and (unless scrubbed) covers and gains are statistics "
        "of small groups of its rows. The coordinator learns row counts, and where silos are "
        "evaluated their loss sums and score counts by class. The mean label of a regression is "
        "summed securely among three silos or more; otherwise the coordinator learns each silo's "
        "label sum. There is no differential privacy; k colluding parties learn no more than one."
    )

    # --- coordinator half ---

    async def coordinate(self, hub: Hub, start: CoordinatorStart) -> AsyncIterator[RoundResult]:
        """Run the coordinator half; see the class for the protocol."""
        half = CoordinatorHalf(self, hub, start)
        hub.serve(SYNC, half.catch_up)
        await half.begin()
        while not half.over:
            yield await half.play()

    # --- silo half ---

    def participate(self, link: Link, vault: Vault | None, start: SiloStart) -> Artefact | None:
        """Run the silo half; see the class for the protocol."""
        silo = SiloHalf(self, link, vault, start)
        standing = silo.catch_up(first_round=-1)
        while standing.scored or standing.round < self.rounds:
            resume_at = standing.round
            try:
                if standing.scored:
                    scores = silo.scores(standing.scored)
                    verdict = link.exchange(SCORES, Place(standing.version - 1), scores)
                    standing = replace(standing, scored=())
                    if verdict.stop:
                        break
                else:
                    resume_at += 1
                    offer = silo.train(standing)
                    standing = silo.hold(link.exchange(TREES, Place(standing.round), offer))
            except PlacePassed:
                standing = silo.catch_up(first_round=resume_at)
        return None

    # --- results and checks ---

    def artefact(self, job: JobParameters, schema: Schema, checkpoint: bytes) -> Artefact:
        """Return the stock XGBoost model (of the best round where rounds are selected)."""
        log, about = TreeLog.decode(checkpoint)
        history = History.of(about)
        n_rounds = log.version
        if self.early_stopping_rounds and history.best_round >= 0:
            n_rounds = history.best_round + 1
        start = blank(schema, job.objective, job.booster, history.base_score)
        ensemble = log.ensemble(start, n_rounds)
        blocks = [
            {"round": b.round, "silo": b.silo, "steps": b.steps, "factor": b.factor}
            for b in log.blocks
            if b.round < n_rounds
        ]
        provenance = {"trees": ensemble.version, "digest": log.digest.hex(), "blocks": blocks}
        return Artefact(
            {
                "model.ubj": ensemble.save(),
                "provenance.json": json.dumps(provenance, indent=1).encode(),
            },
            "model.ubj",
        )

    def forecast(
        self, job: JobParameters, schema: Schema, n_samples: Mapping[Silo, int]
    ) -> Forecast:
        """Return rounds and bytes of one silo.

        How many leaves a tree of depth D has on n rows, and in how many bytes its thresholds
        pack, is the data's: the forecast takes ``2^D / (1 + c * 2^D / n)`` leaves with c = 30
        (7 for regression, 200 for multi-class) of 12.5 bytes (7.5 scrubbed), the middle of seven
        public sets, on which between half and twice of that was measured.
        """
        silos = max(1, sum(1 for n in n_samples.values() if n > 0))
        rows = max(1.0, sum(n_samples.values()) / silos)
        full = 2.0 ** (job.booster.max_depth or 12)
        if job.booster.max_leaves:
            full = min(full, float(job.booster.max_leaves))
        rows_of_leaf = {Task.BINARY: 30.0, Task.REGRESSION: 7.0, Task.MULTICLASS: 200.0}[job.task]
        leaves = full / (1.0 + rows_of_leaf * full / rows)
        steps = self.trees_per_round * schema.n_outputs * job.booster.num_parallel_tree
        tree_bytes = steps * leaves * (12.5 if self.scrub == "none" else 7.5) + 10.0
        taking_part = 1 if self.mode == "cyclic" else min(silos, self.silos_per_round or silos)
        share = taking_part / silos
        up = self.rounds * (share * tree_bytes + 50)
        down = self.rounds * (taking_part - share) * (tree_bytes + 40) + self.rounds * 90
        forecast = {"ExchangeTrees": (self.rounds + 1, int(up), int(down))}
        if job.task is Task.REGRESSION and silos >= 3:  # the mean label, summed securely
            forecast["ExchangeKeys"] = (1, 900, 870 * silos)
            forecast["ExchangeShares"] = (1, 60 * silos, 50 * silos)
            forecast["ExchangeSums"] = (2, 390, 115 * silos)
        silos_score = self.evaluate == "silos" or (self.evaluate == "auto" and not job.has_test)
        if self.validation > 0 or silos_score:
            names = job.metrics or metrics.defaults(job.task)
            values = metrics.width(names, schema.n_outputs)
            parts = [self.validation] * (self.validation > 0)
            parts += [1.0 - self.validation] * silos_score
            scores = sum(_score_bytes(values, rows * part) for part in parts) + 50
            forecast["ExchangeScores"] = (self.rounds, int(self.rounds * scores), 4 * self.rounds)
        bound = int(self.rounds * steps * 2 * full * 16)
        return Forecast(
            self.rounds,
            forecast,
            self.reveals,
            (
                "how large trees get is the data's: expect from half to twice of ExchangeTrees",
                f"full trees would be at most {bound} bytes up from a silo",
            ),
        )

    @property
    def n_results(self) -> int:
        """Rounds that are reported, at most."""
        return self.rounds

    @property
    def n_steps(self) -> int:
        """Boosting steps of one silo, for a model trained alone that is to be compared."""
        return self.rounds * self.trees_per_round

    def safeguards(self, job: JobParameters) -> Safeguards:
        """Return what a silo's policy asks about."""
        return Safeguards(job.booster.max_depth)

    def validate(self, job: JobParameters) -> None:
        """Raise :class:`InvalidJob` naming the parameter, what was expected and what came."""
        _within("rounds", self.rounds, 1, 100_000)
        _within("trees_per_round", self.trees_per_round, 1, 1_000)
        _within("silos_per_round", self.silos_per_round, 0, 1_000_000)
        _within("early_stopping_rounds", self.early_stopping_rounds, 0, self.rounds)
        _within("validation", self.validation, 0.0, 0.5)
        _within("leaf_bound", self.leaf_bound, 0.0, math.inf)
        _within("booster.eta", job.booster.eta, 1e-6, 1.0)
        _within("booster.num_parallel_tree", job.booster.num_parallel_tree, 1, 1_000)
        _one_of("lr_mode", self.lr_mode, LR_MODES)
        _one_of("scrub", self.scrub, ("none", "stats"))
        _one_of("mode", self.mode, ("bagging", "cyclic"))
        _one_of("evaluate", self.evaluate, ("auto", "none", "silos"))
        _one_of("booster.tree_method", job.booster.tree_method, ("hist", "approx", "exact"))
        if self.lr_mode == "total":
            if self.eta_total is None:
                raise InvalidJob("bagging.eta_total: lr_mode total needs it")
            _within("eta_total", self.eta_total, 1e-6, math.inf)
        elif self.eta_total is not None:
            raise InvalidJob(f"bagging.eta_total: belongs to lr_mode total, not {self.lr_mode}")
        if self.early_stopping_rounds and self.validation == 0.0:
            raise InvalidJob("bagging.validation: early stopping needs rows held back, came 0")
        if job.task is Task.MULTICLASS and job.classes == 2:
            raise InvalidJob("task: expected binary for two classes, came multiclass")
        if job.objective not in OBJECTIVES[job.task]:
            raise InvalidJob(
                f"booster.objective: expected one of {', '.join(OBJECTIVES[job.task])} for a "
                f"{job.task.value} job, came {job.objective}"
            )
        metrics.check(job.metrics, job.task)

    def validate_for(self, job: JobParameters, schema: Schema) -> None:
        """Raise :class:`InvalidJob` where the parameters do not suit the silos' tables."""
        if job.booster.tree_method == "exact" and "c" in schema.feature_types:
            raise InvalidJob("booster.tree_method: exact takes no categorical features")
        n_constraints = len(job.booster.monotone_constraints)
        if n_constraints not in (0, schema.n_features):
            raise InvalidJob(
                f"booster.monotone_constraints: expected {schema.n_features}, came {n_constraints}"
            )
        try:
            blank(schema, job.objective, job.booster, 0.5)
        except ValueError as error:  # XGBoost's own errors are ValueErrors
            raise InvalidJob(f"booster: {first_line(error)}") from error

    # --- what both halves compute ---

    def step(self, job: JobParameters) -> float:
        """Return the learning rate that ``lr_mode`` shares out."""
        return job.booster.eta if self.eta_total is None else self.eta_total

    def limits(self, job: JobParameters, schema: Schema, n_steps: int, eta: float) -> TreeLimits:
        """Return what a silo's trees must keep to."""
        bounded = self.leaf_bound > 0 and job.task is not Task.REGRESSION
        booster = job.booster
        return TreeLimits(
            groups=step_groups(n_steps, schema.n_outputs, booster.num_parallel_tree),
            n_categories=tuple(len(feature.categories or ()) for feature in schema.features),
            max_depth=booster.max_depth,
            max_nodes=0 if booster.tree_method == "exact" else max(0, 2 * booster.max_leaves - 1),
            leaf_bound=self.leaf_bound * eta if bounded else math.inf,
        )


def _score_bytes(n_values: int, n_rows: float) -> float:
    """Return the bytes of sums of scores: counts of ``n_rows`` rows in ``n_values`` bins.

    Most scores of trees coincide, so more rows fill few more bins.
    """
    mean = n_rows / n_values
    bits = 1.0 + mean if mean <= 1.0 else 2.0 + 0.2 * math.log2(mean)
    return 16.0 + n_values * bits / 8.0


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        prefix = "" if name.startswith("booster.") else "bagging."
        raise InvalidJob(f"{prefix}{name}: expected {low} to {high}, came {value}")


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        prefix = "" if name.startswith("booster.") else "bagging."
        raise InvalidJob(f"{prefix}{name}: expected one of {', '.join(known)}, came {value!r}")
