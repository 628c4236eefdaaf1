"""A random forest across silos: each grows trees on bootstrap samples of its own rows.

| step | RPC | when | silo offers | silo receives |
|---|---|---|---|---|
| ``forest`` | ExchangeTrees | each round | its new trees | all trees of the round |

All trees fit the same gradients, those of the base score, so that it does not matter who is there
when. Their mean, a silo's trees weighted by its rows, is the model: a stock XGBoost model.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np

from hedgerow.boosting import metrics
from hedgerow.boosting.allowances import PrivacyProperties, StepQuota
from hedgerow.boosting.checks import Within, check_declared, follows
from hedgerow.boosting.dataset import Schema
from hedgerow.boosting.errors import InvalidJob, OfferRejected, PlacePassed
from hedgerow.boosting.exchange import (
    Call,
    CoordinatorEndpoint,
    Discloses,
    ExchangeKey,
    Silo,
    SiloChannel,
    Step,
)
from hedgerow.boosting.payloads import Bytes1
from hedgerow.boosting.ports import (
    Artefact,
    CoordinatorStart,
    Horizontal,
    JobParameters,
    ModelCheck,
    RoundResult,
    SiloStart,
    Strategy,
)
from hedgerow.boosting.rounds import base_score
from hedgerow.boosting.rounds.coordinator import ScoredTest, stock_artefact
from hedgerow.boosting.rounds.log import History, TreeLog
from hedgerow.boosting.rounds.steps import TreeRound
from hedgerow.boosting.streams import Purpose, generator
from hedgerow.boosting.trees.agreed import check_trees, fingerprints
from hedgerow.boosting.trees.ensemble import Ensemble, Tree, blank
from hedgerow.boosting.trees.limits import TreeLimits, read_upload, step_groups
from hedgerow.boosting.trees.local import MarginRows, booster_parameters, check_fits, roster_index
from hedgerow.boosting.trees.packing import pack
from hedgerow.boosting.work import Forecast
from hedgerow.crypto.vault.interface import Vault

REVEALS = (
    "All parties learn all trees, and which silo made them: thresholds are values that occur in "
    "the silo, leaf values are statistics of small groups of a bootstrap sample of its rows, from "
    "which labels of few rows may follow. Covers and gains stay in the silo. The coordinator "
    "learns row counts, the silos each other's share of all rows. Nothing is masked and nothing "
    "is noised; parties that collude learn no more than one."
)


@dataclass(frozen=True, slots=True)
class RandomForest:
    """The ``[random-forest]`` table of a job.

    Parameters
    ----------
    rounds : int
        Rounds; the model is scored after each.
    trees : int
        Trees of a silo in a round.
    features : float
        Share of the features that each split is chosen among.
    """

    rounds: Annotated[int, Within(1, 10_000)] = 10
    trees: Annotated[int, Within(1, 1_000)] = 10
    features: Annotated[float, Within(0.01, 1.0)] = 0.5

    name: ClassVar[str] = "random-forest"

    @property
    def n_results(self) -> int:
        """Rounds that are reported."""
        return self.rounds

    @property
    def n_steps(self) -> int:
        """Boosting steps of a model to compare with."""
        return self.rounds * self.trees

    def safeguards(self, job: JobParameters) -> PrivacyProperties:
        """Return what a silo's policy asks about."""
        return PrivacyProperties(job.booster.max_depth, bins=job.booster.max_bin, leaf_rows=1)

    def validate(self, job: JobParameters) -> None:
        """Raise InvalidJob naming the parameter, the expected and the received value."""
        check_declared(self.name, self)
        names = ("max_depth", "min_child_weight", "gamma", "lambda_", "max_bin", "base_score")
        follows(self.name, job.booster, names)
        if base_score.fixed(job) is None:
            raise InvalidJob("[booster] base_score: expected one for a regression, received none")
        metrics.check(job.metrics, job.task)

    def validate_for(self, job: JobParameters, schema: Schema) -> None:
        """Raise InvalidJob where XGBoost cannot train on the silos' tables."""
        check_fits(job.booster, job.objective, schema)

    def limits(self, job: JobParameters, schema: Schema) -> TreeLimits:
        """Return what a silo's trees of a round must keep to."""
        groups = step_groups(self.trees, schema.n_outputs, 1)
        return TreeLimits(groups, schema.n_categories, job.booster.max_depth)

    def start(self, job: JobParameters, schema: Schema) -> Ensemble:
        """Return the model without trees."""
        return blank(schema, job.objective, job.booster, base_score.fixed(job) or 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class GrownTrees:
    """A silo's trees of a round, packed; empty from one without rows."""

    trees: Bytes1


@dataclass(frozen=True, slots=True, eq=False)
class WeightedTrees:
    """A silo's trees, and what their leaf values are multiplied by."""

    silo: Silo
    factor: float
    trees: Bytes1


@dataclass(frozen=True, slots=True, eq=False)
class ForestRound:
    """All trees of a round, by silo in sorted order."""

    grown: tuple[WeightedTrees, ...]


FOREST = Step(
    "forest", Call.TREES, GrownTrees, ForestRound,
    "to all silos: trees of bootstrap samples of its rows, without covers", Discloses.TREES,
)  # fmt: skip


def participate(
    parameters: RandomForest, link: SiloChannel, vault: Vault | None, start: SiloStart
) -> ModelCheck | None:
    """Grow trees each round; return how this silo knows the model."""
    begin, rounds = parameters.start(start.job, start.schema), []
    for number in range(start.first_round, parameters.rounds):
        own = GrownTrees(np.frombuffer(grown(parameters, link, start, begin, number), np.uint8))
        try:
            found = link.exchange(FOREST, ExchangeKey(number), own).grown
        except PlacePassed:
            continue
        if len(own.trees) and [g.trees.tobytes() for g in found if g.silo == start.silo] != [
            own.trees.tobytes()
        ]:
            raise OfferRejected("expected this silo's own trees in the round, received others")
        rounds.append(TreeRound.of(parameters.trees, packs(found)))
    if len(rounds) < parameters.rounds:
        return None  # of the rounds before it came, it knows no trees
    known = fingerprints(TreeLog(rounds).ensemble(begin).trees)
    return lambda files: check_trees(files, "model.ubj", begin, known, (len(known),))


def grown(
    parameters: RandomForest, link: SiloChannel, start: SiloStart, begin: Ensemble, number: int
) -> bytes:
    """Return the trees of a round, packed; each has a bootstrap sample of its own."""
    data, job = start.dataset, start.job
    if not data.n_samples:
        return b""
    index = roster_index(start.silo, start.silos)
    rng = generator(start.draws, index, number, Purpose.SAMPLING)
    native = booster_parameters(job.booster, job.objective, start.schema.n_outputs, start.n_threads)
    trees: list[Tree] = []
    for _ in range(parameters.trees):
        link.check()
        drawn = np.bincount(rng.integers(0, data.n_samples, data.n_samples), None, data.n_samples)
        weight = np.ones(data.n_samples) if data.weight is None else data.weight
        sample = replace(data, weight=weight * drawn)
        own = {"eta": 1.0, "colsample_bynode": parameters.features, "seed": rng.integers(1 << 31)}
        trees += MarginRows(sample, begin, start.n_threads).train(native | own, 1)
    return pack([tree.scrubbed() for tree in trees])


def packs(grown: tuple[WeightedTrees, ...]) -> list[tuple[Silo, float, bytes]]:
    """Return the silos of a round, with their factors and packed trees."""
    return [(each.silo, each.factor, each.trees.tobytes()) for each in grown]


async def coordinate(
    parameters: RandomForest, hub: CoordinatorEndpoint, start: CoordinatorStart
) -> AsyncIterator[RoundResult]:
    """Check the silos' trees, weigh them and hand them on, round by round."""
    parameters.validate_for(start.job, start.schema)
    limits = parameters.limits(start.job, start.schema)
    log, history = TreeLog(), History(base_score.fixed(start.job) or 0.0)
    if start.checkpoint is not None:
        log, history = TreeLog.decode(start.checkpoint)

    def read(silo: Silo, offer: GrownTrees) -> tuple[GrownTrees, list[Tree]]:
        sound = len(offer.trees) > 0 or not start.n_samples.get(silo)
        if not sound:
            raise OfferRejected(f"expected {parameters.trees} trees, received none")
        return offer, read_upload(offer.trees.tobytes(), limits) if len(offer.trees) else []

    test = await asyncio.to_thread(ScoredTest, start, log, history.base_score)
    while log.version < parameters.rounds:
        at = ExchangeKey(log.version)
        offers = await hub.collect(FOREST, at, quorum=start.job.min_silos, read=read)
        rows = {silo: start.n_samples.get(silo, 0) for silo, (_, own) in offers.items() if own}
        whole = max(sum(rows.values()), 1) * parameters.rounds * parameters.trees
        weighted = tuple(
            WeightedTrees(silo, rows[silo] / whole, offers[silo][0].trees) for silo in sorted(rows)
        )
        log.add(TreeRound.of(parameters.trees, packs(weighted)))
        hub.answer(FOREST, at, dict.fromkeys(offers, ForestRound(weighted)))
        new = [tree.scaled(each.factor) for each in weighted for tree in offers[each.silo][1]]
        scores = await asyncio.to_thread(test.add, new, parameters.trees * len(weighted))
        yield RoundResult(
            round=at.round,
            checkpoint=log.encode(history),
            metrics=scores,
            silos=tuple(rows),
            final=log.version >= parameters.rounds,
            best_round=at.round,
        )


def artefact(
    parameters: RandomForest, job: JobParameters, schema: Schema, checkpoint: bytes
) -> Artefact:
    """Return the stock XGBoost model, and where each of its trees is from."""
    log, _ = TreeLog.decode(checkpoint)
    return stock_artefact(log, log.ensemble(parameters.start(job, schema)), log.version)


def forecast(
    parameters: RandomForest, job: JobParameters, schema: Schema, n_samples: Mapping[Silo, int]
) -> Forecast:
    """Return rounds and bytes of a silo: full trees where rows are enough, 7.5 bytes a leaf."""
    silos = max(1, len(n_samples))
    leaves = min(2.0 ** (job.booster.max_depth or 12), sum(n_samples.values()) / silos / 4 + 1)
    up = round(parameters.rounds * (parameters.trees * schema.n_outputs * 7.5 * leaves + 60))
    steps = {Call.TREES.value: (parameters.rounds, up, up * silos)}
    note = "the size of trees depends on the data: expect a third to twice of ExchangeTrees"
    return Forecast(parameters.rounds, steps, REVEALS, (note,))


STRATEGY = Strategy(
    parameters=RandomForest,
    layout=Horizontal(validate_for=RandomForest.validate_for),
    reveals=REVEALS,
    coordinate=coordinate,
    participate=participate,
    artefact=artefact,
    forecast=forecast,
    allowances=lambda parameters, job, schema, n_silos: (
        StepQuota(FOREST, parameters.rounds, parameters.rounds),
    ),
    starts_anew="a forest's trees do not depend on earlier ones: train more of them in one job",
)
