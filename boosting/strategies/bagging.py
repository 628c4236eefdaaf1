"""Bagging of boosted trees (FLeXGBoost): every silo adds its own trees to one model each round."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from boosting import metrics
from boosting.dataset import Schema, Task
from boosting.ensemble import Ensemble, Tree, blank
from boosting.participation import LR_MODES, factors, participants, rates
from boosting.ports import (
    Artefact,
    Call,
    CoordinatorStart,
    FederationError,
    Forecast,
    Hub,
    InvalidJob,
    Link,
    OfferRejected,
    Place,
    PlacePassed,
    QuorumLost,
    RoundResult,
    Silo,
    SiloStart,
    Step,
)
from boosting.silo_rows import (
    SPLIT,
    TRAIN,
    ScoredRows,
    booster_parameters,
    roster_index,
    split_rows,
    stream_seed,
)
from boosting.tree_exchanges import (
    CatchUp,
    ScoreSums,
    Standing,
    TreeBlock,
    TreeLog,
    TreeOffer,
    Verdict,
    extend_digest,
    extended,
)
from boosting.tree_packing import Shrinkage, pack, unpack
from boosting.uploads import TreeLimits, step_groups, validate_upload

if TYPE_CHECKING:
    from boosting.job import JobParameters
    from crypto.vault import Vault

SYNC = Step("sync", Call.TREES, CatchUp, Standing, "how many rounds of the model it holds")
TREES = Step(
    "trees",
    Call.TREES,
    TreeOffer,
    Standing,
    "to all silos: new trees, whose thresholds are values of its rows and whose leaves are "
    "statistics of small groups of them",
)
SCORES = Step(
    "scores",
    Call.SCORES,
    ScoreSums,
    Verdict,
    "to the coordinator: sums of losses and counts of scores over its rows, by class",
)

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

_POSITIVE = ("reg:gamma", "reg:tweedie", "count:poisson")


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
    FLeXGBoost (Octaipipe, 2023); ALGORITHMS §2. Prokhorenkova-style defaults are not used:
    ``[booster]`` has XGBoost's own, where the source sets ``max_depth`` 8 and ``eta`` 0.1.
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
        round = _Coordinator(self, hub, start)
        hub.serve(SYNC, round.catch_up)
        await round.begin()
        while not round.over:
            yield await round.play()

    # --- silo half ---

    def participate(self, link: Link, vault: Vault | None, start: SiloStart) -> Artefact | None:
        """Run the silo half; see the class for the protocol."""
        silo = _Silo(self, link, vault, start)
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
        history = _History.of(about)
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
        provenance = {"trees": ensemble.version, "sha256": log.digest.hex(), "blocks": blocks}
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

        Trees of n rows and depth D are taken to have ``2^D / (1 + 45 * 2^D / n)`` leaves of 9.5
        bytes (4.7 scrubbed), as measured on a9a; XGBoost may stop earlier or later.
        """
        silos = max(1, sum(1 for n in n_samples.values() if n > 0))
        rows = max(1.0, sum(n_samples.values()) / silos)
        full = 2.0 ** (job.booster.max_depth or 12)
        if job.booster.max_leaves:
            full = min(full, float(job.booster.max_leaves))
        leaves = full / (1.0 + 45.0 * full / rows)
        steps = self.trees_per_round * schema.n_outputs * job.booster.num_parallel_tree
        tree_bytes = steps * leaves * (9.5 if self.scrub == "none" else 4.7) + 40.0
        taking_part = 1 if self.mode == "cyclic" else min(silos, self.silos_per_round or silos)
        share = taking_part / silos
        up = self.rounds * (share * tree_bytes + 40)
        down = self.rounds * (taking_part - share) * (tree_bytes + 40) + self.rounds * 90
        forecast = {"ExchangeTrees": (2 * self.rounds + 2, int(up), int(down))}
        if self.validation > 0 or self.evaluate == "silos":
            names = job.metrics or metrics.defaults(job.task)
            values = metrics.width(names, schema.n_outputs)
            n_sets = int(self.validation > 0) + int(self.evaluate != "none")
            scores = self.rounds * n_sets * (values // 4 + 60)
            forecast["ExchangeScores"] = (2 * self.rounds, scores, 40 * self.rounds)
        bound = int(self.rounds * steps * 2 * full * 16)
        return Forecast(
            self.rounds,
            forecast,
            self.reveals,
            (f"full trees would be at most {bound} bytes up from a silo",),
        )

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

    # --- what both halves compute ---

    def step(self, job: JobParameters) -> float:
        """Return the learning rate that ``lr_mode`` shares out."""
        return job.booster.eta if self.eta_total is None else self.eta_total

    def limits(self, job: JobParameters, schema: Schema, n_steps: int, eta: float) -> TreeLimits:
        """Return what a silo's trees must keep to."""
        parallel = job.booster.num_parallel_tree
        bounded = self.leaf_bound > 0 and job.task is not Task.REGRESSION
        return TreeLimits(
            groups=step_groups(n_steps, schema.n_outputs, parallel),
            n_categories=tuple(len(feature.categories or ()) for feature in schema.features),
            max_depth=job.booster.max_depth,
            leaf_bound=self.leaf_bound * eta if bounded else math.inf,
        )


@dataclass(frozen=True, slots=True)
class _History:
    """What a checkpoint keeps beside the trees."""

    base_score: float
    best_round: int = -1
    best_score: float = math.nan

    @classmethod
    def of(cls, about: Mapping[str, object]) -> _History:
        return cls(**about)  # type: ignore[arg-type]


class _Coordinator:
    """The coordinator half's state within an attempt."""

    def __init__(self, strategy: Bagging, hub: Hub, start: CoordinatorStart) -> None:
        self.strategy, self.hub, self.start = strategy, hub, start
        self.job, self.schema = start.job, start.schema
        self.names = self.job.metrics or metrics.defaults(self.job.task)
        self.log = TreeLog()
        self.history = _History(_fixed_base_score(self.job))
        if start.checkpoint is not None:
            self.log, about = TreeLog.decode(start.checkpoint)
            self.history = _History.of(about)
        self.rows = dict(start.n_samples)
        self.synced: set[Silo] = set(hub.silos)
        self.asked: frozenset[Silo] = frozenset()  # whose scores are awaited
        self.stopped = False
        self.rates: dict[Silo, float] = {}
        self.blank: Ensemble | None = None
        self.test: ScoredRows | None = None
        without_test = start.test is None and strategy.evaluate == "auto"
        self.scored: tuple[str, ...] = ()
        if strategy.evaluate == "silos" or without_test:
            self.scored += ("train",)
        if strategy.validation > 0:
            self.scored += ("valid",)
        self._plan(hub.silos)

    @property
    def over(self) -> bool:
        """Whether there is no further round."""
        return self.stopped or self.log.version >= self.strategy.rounds

    async def begin(self) -> None:
        """Agree on the base score and load the test rows."""
        if math.isnan(self.history.base_score):
            from boosting.label_mean import label_mean

            mean = await label_mean(self.hub, self.start, secure=self._secure)
            self.history = replace(self.history, base_score=_start_of(self.job, mean))
        await asyncio.to_thread(self._load)

    async def play(self) -> RoundResult:
        """Play one round."""
        at = Place(self.log.version)
        expected = tuple(silo for silo in self.hub.silos if silo in self.synced)
        quorum = self.job.min_silos
        offers = await self.hub.collect(TREES, at, silos=expected, quorum=quorum)
        trees, faults = await asyncio.to_thread(self._checked, offers)
        for silo, reason in faults.items():
            self.hub.reject(TREES, at, silo, reason)
        there = [silo for silo in offers if silo not in faults]
        if len(there) < quorum:
            raise QuorumLost(
                f"round {at.round} needs {quorum} silos; refused: "
                + "; ".join(f"{silo}: {reason}" for silo, reason in faults.items())
            )
        scale = factors(
            self.strategy.lr_mode,
            self.rates,
            self.strategy.step(self.job),
            {silo: self.rows[silo] for silo in trees},
            {silo: offers[silo].gain for silo in trees},
        )
        blocks = [
            TreeBlock(silo, at.round, offers[silo].steps, scale[silo], offers[silo].data)
            for silo in sorted(trees)
        ]
        self.log.end_round(blocks)
        self.synced.update(there)
        self._plan(there)
        self.asked = frozenset(there) if self.scored else frozenset()
        replies = {silo: self._standing(silo, offers[silo].version) for silo in there}
        self.hub.answer(TREES, at, replies)
        scores = await asyncio.to_thread(self._test_scores, blocks, trees)
        if self.scored:
            scores |= await self._silo_scores(at, there)
        return RoundResult(
            round=at.round,
            checkpoint=self.log.encode(
                {
                    "base_score": self.history.base_score,
                    "best_round": self.history.best_round,
                    "best_score": self.history.best_score,
                }
            ),
            metrics=scores,
            silos=tuple(sorted(trees)),
            final=self.over,
            best_round=self.history.best_round if self.strategy.validation else at.round,
        )

    def catch_up(self, silo: Silo, at: Place, offer: CatchUp) -> Standing:
        """Answer a silo that starts, restarts or was left out."""
        self.synced.add(silo)
        self.rows[silo] = offer.n_samples
        standing = self._standing(silo, offer.version, restarted=True)
        if offer.first_round <= standing.round:
            return standing
        return replace(standing, round=offer.first_round, eta=0.0)

    @property
    def _secure(self) -> bool:
        return _secure_mean(self.strategy, self.start.silos)

    def _standing(self, silo: Silo, version: int, restarted: bool = False) -> Standing:
        return Standing(
            round=self.log.version,
            eta=self.rates.get(silo, 0.0),
            base_score=self.history.base_score,
            version=self.log.version,
            digest=self.log.digest,
            blocks=self.log.since(version, None if restarted else silo),
            scored=self.scored if silo in self.asked else (),
        )

    def _plan(self, present: tuple[Silo, ...] | list[Silo]) -> None:
        """Settle who takes part in the next round, and with which learning rates."""
        drawn = participants(
            {silo: self.rows.get(silo, 0) for silo in present},
            self.log.version,
            seed=self.job.seed,
            count=self.strategy.silos_per_round,
            cyclic=self.strategy.mode == "cyclic",
        )
        step = self.strategy.step(self.job)
        self.rates = rates(self.strategy.lr_mode, step, {s: self.rows[s] for s in drawn})

    def _checked(
        self, offers: Mapping[Silo, TreeOffer]
    ) -> tuple[dict[Silo, list[Tree]], dict[Silo, str]]:
        """Return the trees of sound offers that have some, and what is wrong with the others."""
        trees: dict[Silo, list[Tree]] = {}
        faults: dict[Silo, str] = {}
        for silo, offer in offers.items():
            try:
                if offer.steps == 0 and not offer.data:
                    continue
                if silo not in self.rates:
                    raise OfferRejected(f"{silo} offers trees in a round that it has no part in")
                if offer.version != self.log.version:
                    raise OfferRejected("trees that were trained on another model")
                if offer.steps != self.strategy.trees_per_round:
                    raise OfferRejected(
                        f"expected {self.strategy.trees_per_round} steps, {offer.steps} came"
                    )
                if not (math.isfinite(offer.gain) and offer.gain >= 0):
                    raise OfferRejected("a total gain that is no number from zero up")
                mine = unpack(offer.data)
                limits = self.strategy.limits(self.job, self.schema, offer.steps, self.rates[silo])
                validate_upload(mine, limits)
                trees[silo] = mine
            except OfferRejected as error:
                faults[silo] = str(error)
        return trees, faults

    def _load(self) -> None:
        self.blank = blank(
            self.schema, self.job.objective, self.job.booster, self.history.base_score
        )
        if self.start.test is not None and self.start.test.n_samples:
            self.test = ScoredRows(self.start.test, self.blank, 1)
            self.test.add(self.log.ensemble(self.blank))

    def _test_scores(
        self, blocks: list[TreeBlock], trees: Mapping[Silo, list[Tree]]
    ) -> dict[str, dict[str, float]]:
        if self.test is None:
            return {}
        assert self.blank is not None
        new = [tree.scaled(block.factor) for block in blocks for tree in trees[block.silo]]
        steps = sum(block.steps for block in blocks)
        self.test.add(self.blank.extend(new, n_steps=steps))
        rows = self.test.dataset
        return {
            "test": metrics.evaluate(
                self.names,
                rows.labels,
                self.test.margins,
                objective=self.job.objective,
                weight=rows.weight,
            )
        }

    async def _silo_scores(self, at: Place, silos: list[Silo]) -> dict[str, dict[str, float]]:
        """Collect the silos' score sums, and decide whether to stop."""
        offers = await self.hub.collect(
            SCORES, at, silos=tuple(silos), quorum=min(len(silos), self.job.min_silos)
        )
        self.asked = frozenset()
        outputs = self.schema.n_outputs
        size = metrics.width(self.names, outputs)
        scores = {}
        for part in ("train", "valid"):
            found = [getattr(offer, part) for offer in offers.values()]
            found = [sums for sums in found if sums.shape == (size,)]
            if found:
                scores[part] = metrics.combine(self.names, sum(found), n_outputs=outputs)
        if "valid" in scores:
            value = scores["valid"][self.names[0]]
            if metrics.better(self.names[0], value, self.history.best_score):
                self.history = replace(self.history, best_round=at.round, best_score=value)
            patience = self.strategy.early_stopping_rounds
            self.stopped = 0 < patience <= at.round - self.history.best_round
        self.hub.answer(SCORES, at, dict.fromkeys(offers, Verdict(self.stopped)))
        return scores


class _Silo:
    """The silo half's state within an attempt: rows with their margins, nothing of the trees."""

    def __init__(
        self, strategy: Bagging, link: Link, vault: Vault | None, start: SiloStart
    ) -> None:
        self.strategy, self.link, self.vault, self.start = strategy, link, vault, start
        self.job, self.schema = start.job, start.schema
        self.names = self.job.metrics or metrics.defaults(self.job.task)
        self.index = roster_index(start.silo, start.silos)
        self.parameters = booster_parameters(self.job, self.schema.n_outputs, start.n_threads)
        self.version = 0
        self.digest = TreeLog().digest
        self.base_score = math.nan
        self.offered = TreeOffer(0, 0, 0.0, b"")
        self.blank: Ensemble | None = None
        self.parts: dict[str, ScoredRows] = {}

    def catch_up(self, first_round: int) -> Standing:
        """Synchronise; agree on the base score first where that is still to do."""
        at = Place(max(first_round, 0))
        request = CatchUp(self.version, first_round, self.start.dataset.n_samples)
        standing = self.hold(self.link.exchange(SYNC, at, request))
        if first_round >= 0 or not math.isnan(standing.base_score):
            return standing
        from boosting.label_mean import offered_mean

        try:
            secure = _secure_mean(self.strategy, self.start.silos)
            mean = offered_mean(self.link, self.vault, self.start, secure=secure)
        except PlacePassed:
            return self.catch_up(first_round=0)
        self._begin(_start_of(self.job, mean))
        return standing

    def train(self, standing: Standing) -> TreeOffer:
        """Return this silo's trees for a round; none where it only looks on."""
        self.link.check()
        empty = TreeOffer(self.version, 0, 0.0, b"")
        if standing.eta <= 0 or self.version != standing.round or not self.parts:
            self.offered = empty
            return empty
        rows = self.parts["train"]
        if rows.dataset.n_samples == 0:
            self.offered = empty
            return empty
        seed = stream_seed(self.job.seed, self.index, standing.round, TRAIN)
        parameters = self.parameters | {"eta": standing.eta, "seed": seed}
        n_steps = self.strategy.trees_per_round
        trees = rows.train(parameters, n_steps, check=self.link.check)
        gain = sum(tree.total_gain for tree in trees)
        if self.strategy.scrub == "stats":
            trees = [tree.scrubbed() for tree in trees]
        limits = self.strategy.limits(self.job, self.schema, n_steps, standing.eta)
        trees = [tree.clipped(limits.leaf_bound) for tree in trees]
        booster = self.job.booster
        eta = standing.eta / booster.num_parallel_tree
        data = pack(trees, Shrinkage(eta, booster.lambda_, booster.alpha))
        self.offered = TreeOffer(self.version, n_steps, gain, data)
        return self.offered

    def hold(self, standing: Standing) -> Standing:
        """Take in what the others added; the silo's own trees are not sent back to it."""
        if not math.isnan(standing.base_score):
            self._begin(standing.base_score)
        blocks = []
        digest = self.digest
        for block in standing.blocks:
            own = block.silo == self.start.silo and not block.data and block.steps
            blocks.append(replace(block, data=self.offered.data) if own else block)
            digest = extend_digest(digest, blocks[-1])
        if digest != standing.digest:
            raise FederationError(
                f"the model of {self.start.silo} after {standing.version} rounds differs from "
                "the coordinator's"
            )
        if blocks:
            assert self.blank is not None, "there are no trees before the base score"
            trees = self.blank
            for block in blocks:
                limits = self.strategy.limits(self.job, self.schema, block.steps, math.inf)
                validate_upload(unpack(block.data, stats=False), limits)
                trees = extended(trees, [block], stats=False)
            for rows in self.parts.values():
                rows.add(trees)
        self.version, self.digest = standing.version, digest
        return standing

    def scores(self, parts: tuple[str, ...]) -> ScoreSums:
        """Return the metrics of this silo's rows in their additive form."""
        sums = {part: np.zeros(0) for part in ("train", "valid")}
        for part in parts:
            rows = self.parts.get(part)
            if rows is None or rows.dataset.n_samples == 0:
                continue
            assert self.blank is not None
            sums[part] = metrics.sums(
                self.names,
                rows.dataset.labels,
                rows.margins,
                objective=self.job.objective,
                weight=rows.dataset.weight,
                center=float(self.blank.base_margins(1).reshape(-1)[0]),
            )
        return ScoreSums(sums["train"], sums["valid"])

    def _begin(self, base_score: float) -> None:
        """Load the rows, once the base score is known."""
        if self.blank is not None:
            return
        self.blank = blank(self.schema, self.job.objective, self.job.booster, base_score)
        dataset = self.start.dataset
        threads = self.start.n_threads
        seed = stream_seed(self.job.seed, self.index, 0, SPLIT)
        share = self.strategy.validation
        if share == 0.0:
            self.parts = {"train": ScoredRows(dataset, self.blank, threads)}
            return
        kept, held = split_rows(dataset.n_samples, share, np.random.default_rng(seed))
        self.parts = {
            "train": ScoredRows(dataset.take(kept), self.blank, threads),
            "valid": ScoredRows(dataset.take(held), self.blank, threads),
        }


def _fixed_base_score(job: JobParameters) -> float:
    """Return the base score that needs no agreement, or NaN: see ALGORITHMS §2.4."""
    if job.booster.base_score is not None:
        return job.booster.base_score
    return {Task.BINARY: 0.5, Task.MULTICLASS: 0.0, Task.REGRESSION: math.nan}[job.task]


def _start_of(job: JobParameters, mean: float) -> float:
    """Return the base score of a regression from the mean label."""
    if job.objective in _POSITIVE and not mean > 0.0:
        raise FederationError(f"{job.objective} needs labels with a positive mean")
    return mean


def _secure_mean(strategy: Bagging, roster: tuple[Silo, ...]) -> bool:
    return strategy.secure_mean and len(roster) >= 3


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        prefix = "" if name.startswith("booster.") else "bagging."
        raise InvalidJob(f"{prefix}{name}: expected {low} to {high}, came {value}")


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        prefix = "" if name.startswith("booster.") else "bagging."
        raise InvalidJob(f"{prefix}{name}: expected one of {', '.join(known)}, came {value!r}")
