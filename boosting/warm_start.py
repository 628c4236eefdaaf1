"""Jobs that go on from an earlier run's model: one mechanism around both halves of a strategy.

The operator signs the model's digest, and that of the schema it was trained on, into the job, so
that all parties start from the same bytes or not at all. A silo takes the model that it has kept
of that run; one that has kept none asks the coordinator, and refuses other bytes.

| step | RPC | when | silo offers | silo receives |
|---|---|---|---|---|
| ``starting`` | ExchangeTrees | before all others, if it lacks the model | – | the model |

Of FedGA it is the earlier run's structures that are signed for, and only the coordinator, which
breeds, starts from them: silos score them as they score any, and what follows is as without.

Any other strategy sees margins that begin at the model's predictions, and its base score as the
job's. All it stores and exchanges is of new trees only: rounds, limits and early stopping count
from zero. The result is the old trees with the new ones behind them; a silo checks both parts.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import numpy as np

from hedgerow.boosting.allowances import StepQuota
from hedgerow.boosting.engine.objective import objective_of
from hedgerow.boosting.engine.start import Score
from hedgerow.boosting.errors import InvalidJob, ModelRejected
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
from hedgerow.boosting.ports import Artefact
from hedgerow.boosting.sums.allowances import has_sums
from hedgerow.boosting.sums.costs import SMALL
from hedgerow.boosting.sums.groups import groups_of_job, told_groups
from hedgerow.boosting.trees.agreed import fingerprints
from hedgerow.boosting.trees.decision_tree import MODEL_FILE
from hedgerow.boosting.trees.ensemble import Ensemble, blank
from hedgerow.boosting.trees.limits import TreeLimits, step_groups
from hedgerow.boosting.trees.loading import load
from hedgerow.crypto.vault.interface import LEAST_SILOS

if TYPE_CHECKING:
    from hedgerow.boosting.dataset import Schema
    from hedgerow.boosting.job import WarmStart
    from hedgerow.boosting.ports import (
        CoordinatorStart,
        JobParameters,
        ModelCheck,
        RoundResult,
        SiloStart,
    )
    from hedgerow.boosting.trees.samples import SampledTrees
    from hedgerow.boosting.work import Forecast
    from hedgerow.crypto.vault.interface import Vault

PROVENANCE = "provenance.json"

_SOME_SCORE = 0.5
"""Stands for the model's base score in forecasts: no silo is asked for one."""

STRUCTURES_REVEAL = (
    " The job goes on from the structures of an earlier run: all that take part see some of them, "
    "also who was not in the run."
)
"""The same of a strategy that starts from structures."""

REVEALS = (
    " The job goes on from the model of an earlier run: all that take part have that model, also "
    "who was not in the run. Its author chose where gradients begin: under a model made for "
    "the purpose all rows but a few would have none, and a sum over all silos would tell labels. "
    "Unless its policy says otherwise, a silo goes on only from a model that it has itself checked "
    "and kept at the end of a run of the same strategy."
)
"""What a warm start adds to what each party learns."""


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A silo has not kept the model from which the job starts."""


@dataclass(frozen=True, slots=True)
class StartingModel:
    """That model, as a file of stock XGBoost."""

    model: Bytes1


@dataclass(frozen=True, slots=True)
class KnownStart:
    """What is known of a starting model before the job: its size, and silos that have kept it."""

    n_bytes: int
    kept_by: frozenset[str] = frozenset()


STARTING = Step(
    "starting", Call.TREES, StartRequest, StartingModel,
    "that it has not kept the model from which the job starts", Discloses.NOTHING,
)  # fmt: skip


def check(job: JobParameters) -> None:
    """Raise :class:`InvalidJob` where a job cannot go on from an earlier model."""
    if job.warm_start is None:
        return
    why = job.strategy.starts_anew
    if why:
        raise InvalidJob(f"[warm_start]: a job of {job.strategy.name} starts from nothing: {why}")
    job.warm_start.check()
    if job.warm_start.rounds_before and not from_model(job):
        raise InvalidJob(
            f"[warm_start] rounds_before: expected 0 for {job.strategy.name}, which draws again, "
            f"received {job.warm_start.rounds_before}"
        )


def from_model(job: JobParameters) -> bool:
    """Return whether a job goes on from a model, from which silos start, too."""
    return job.warm_start is not None and job.strategy.starts_with == MODEL_FILE


def check_bytes(job: JobParameters, schema: Schema, raw: bytes, sender: str) -> WarmStart:
    """Return a job's start; raises :class:`ModelRejected` for other bytes, or another schema."""
    told = job.warm_start
    assert told is not None
    found = hashlib.sha256(raw).hexdigest()
    if found != told.model:
        what = f"one with {found[:12]}…" if raw else "none"
        raise ModelRejected(
            f"{sender}: expected the model of run {told.run} with SHA-256 {told.model[:12]}…, from "
            f"which the signed job starts, received {what}"
        )
    if schema.digest != told.schema:
        raise ModelRejected(
            f"[warm_start]: run {told.run} had other columns, categories or classes than the silos "
            "of this job have together; the model's positions would mean others"
        )
    return told


def opened(job: JobParameters, schema: Schema, raw: bytes, sender: str) -> Ensemble:
    """Return the model from which a job starts, under the job's own header.

    Parameters
    ----------
    raw : bytes
        The model, from any party or file.

    Raises
    ------
    ModelRejected
        Another model than the signed job names, no sound one, or one that the job cannot go on
        from: another objective, other columns, categories or classes.
    """
    told = check_bytes(job, schema, raw, sender)
    booster = job.booster
    limits = TreeLimits(
        step_groups(1, schema.n_outputs, max(1, booster.num_parallel_tree)), schema.n_categories
    )
    model = load(raw, limits=limits, sender=sender)
    if told.rounds_before > n_rounds(model):
        raise ModelRejected(
            f"[warm_start] rounds_before: expected at most {n_rounds(model)}, which the model of "
            f"run {told.run} has, received {told.rounds_before}"
        )
    if told.rounds_before:
        model = _first_rounds(model, told.rounds_before)
    begins = blank(schema, _objective(job), booster, _base_score(job, model))
    if model.about != begins.about:
        raise ModelRejected(
            f"[warm_start]: expected a model of {_told(begins)}, received one of {_told(model)}"
        )
    return replace(model, header=begins.header)


def n_rounds(model: Ensemble) -> int:
    """Return how many rounds a model has; one that does not say is of one round."""
    return len(_round_ends(model))


def _first_rounds(model: Ensemble, n: int) -> Ensemble:
    ends = _round_ends(model)[:n]
    steps = model.steps[: ends[-1]]
    trees = model.trees[: steps[-1]]
    return replace(model, trees=trees, steps=steps, round_ends=ends)


def _round_ends(model: Ensemble) -> tuple[int, ...]:
    n_steps = len(model.steps)
    return model.round_ends or (n_steps,)[: bool(n_steps)]


def _objective(job: JobParameters) -> str:
    try:
        return objective_of(job.objective, job.task, job.booster).model_name
    except InvalidJob:  # one that only stock XGBoost has
        return job.objective


def _told(model: Ensemble) -> str:
    about = model.about
    times = about.failure_times.suffix
    return (
        f"objective {about.objective}{times} with {about.n_features} features, "
        f"{about.n_outputs} outputs and num_parallel_tree {about.num_parallel_tree}"
    )


def _base_score(job: JobParameters, model: Ensemble) -> Score:
    """Return the model's base score, which is then that of all rounds to come."""
    scores = model.about.base_score
    if len(set(scores)) != 1 and len(scores) not in (len(job.labels), model.about.n_outputs):
        raise ModelRejected("[warm_start]: expected one base score of all outputs, received others")
    given = job.booster.base_score
    for score in scores:
        if given is not None and np.float32(given) != np.float32(score):
            raise ModelRejected(
                f"[booster] base_score: expected {score:g}, which the starting model has, or none; "
                f"received {given:g}"
            )
    return scores if len(set(scores)) > 1 else scores[0]


def _going_on(job: JobParameters, starting: Ensemble) -> JobParameters:
    """Return the job with the base score of its starting model."""
    # That of each label, where these differ: no job file says so.
    score = cast("float", _base_score(job, starting))
    return replace(job, booster=replace(job.booster, base_score=score))


# --- the two halves ---


async def coordinate(
    hub: CoordinatorEndpoint, start: CoordinatorStart
) -> AsyncIterator[RoundResult]:
    """Run the coordinator half of a job's strategy, from the starting model where there is one."""
    job, raw = start.job, start.starting_model
    if job.warm_start is not None and not from_model(job):
        check_bytes(job, start.schema, raw, "the stored structures")
    elif job.warm_start is not None:
        starting = await asyncio.to_thread(opened, job, start.schema, raw, "the stored model")
        reply = StartingModel(np.frombuffer(raw, np.uint8))

        def answer(silo: Silo, at: ExchangeKey, offer: StartRequest) -> StartingModel:
            return reply

        hub.serve(STARTING, answer)
        start = replace(start, job=_going_on(job, starting), starting=starting)
    halves = job.strategy.coordinate(job.parameters, hub, start)
    try:
        async for result in halves:
            yield result
    finally:
        await cast("AsyncGenerator[RoundResult]", halves).aclose()


def participate(
    link: SiloChannel, vault: Vault | None, start: SiloStart
) -> Artefact | ModelCheck | None:
    """Run the silo half of a job's strategy, from the starting model where there is one."""
    job = start.job
    if job.warm_start is None or not from_model(job):
        return job.strategy.participate(job.parameters, link, vault, start)
    raw = link.recall(f"kept:{job.warm_start.run}/{MODEL_FILE}") or b""
    sender = "this silo's own copy"
    if hashlib.sha256(raw).hexdigest() != job.warm_start.model:
        sender = "the coordinator"
        raw = link.exchange(STARTING, ExchangeKey(0), StartRequest()).model.tobytes()
    starting = opened(job, start.schema, raw, sender)
    start = replace(start, job=_going_on(job, starting), starting=starting)
    own = job.strategy.participate(job.parameters, link, vault, start)
    if own is None or isinstance(own, Artefact):
        return own
    return _whole_check(own, starting)


def _whole_check(check_new: ModelCheck, starting: Ensemble) -> ModelCheck:
    """Return how a silo knows a model that begins with the starting one."""
    n_trees, n_steps, known = starting.version, len(starting.steps), fingerprints(starting.trees)

    def check_all(files: Mapping[str, bytes]) -> None:
        whole = load(files.get(MODEL_FILE, b""), blank=starting, sender="the coordinator's result")
        if fingerprints(whole.trees[:n_trees]) != known or whole.steps[:n_steps] != starting.steps:
            raise ModelRejected(
                f"{MODEL_FILE} does not begin with the model from which the job starts"
            )
        new = replace(
            whole,
            trees=whole.trees[n_trees:],
            steps=tuple(end - n_trees for end in whole.steps[n_steps:]),
            round_ends=(),
        )
        check_new({**files, MODEL_FILE: new.save()})

    return check_all


# --- around them ---


def artefact(job: JobParameters, schema: Schema, checkpoint: bytes, starting: bytes) -> Artefact:
    """Return a job's result: the trees of its starting model, then those of its own rounds.

    Parameters
    ----------
    starting : bytes
        The starting model as it was given; empty where the job starts without one.
    """
    made = job.strategy.artefact(job.parameters, job, schema, checkpoint)
    if job.warm_start is None or not from_model(job):
        return made
    first = opened(job, schema, starting, "the stored model")
    new = load(made.files[made.model], blank=first)
    n_trees, n_steps = first.version, len(first.steps)
    whole = replace(
        new,
        trees=first.trees + new.trees,
        steps=first.steps + tuple(n_trees + end for end in new.steps),
        round_ends=_round_ends(first) + tuple(n_steps + end for end in new.round_ends),
    )
    files = {**made.files, made.model: whole.save()}
    if PROVENANCE in files:
        before = {"run": job.warm_start.run, "sha256": job.warm_start.model, "trees": n_trees}
        told = json.loads(files[PROVENANCE]) | {"trees": whole.version, "starts_from": before}
        files[PROVENANCE] = json.dumps(told, indent=1).encode()
    return Artefact(files, made.model)


def reveals(job: JobParameters) -> str:
    """Return what each party of a job learns beyond the result."""
    return job.strategy.reveals + _started(job)


def _started(job: JobParameters) -> str:
    return "" if job.warm_start is None else REVEALS if from_model(job) else STRUCTURES_REVEAL


def forecast(
    job: JobParameters,
    schema: Schema,
    n_samples: Mapping[Silo, int],
    sizes: SampledTrees | None = None,
) -> Forecast:
    """Return the forecast of one silo of a job, without the starting model's own bytes."""
    more = {} if sizes is None else {"sizes": sizes}
    if job.warm_start is None:
        return job.strategy.forecast(job.parameters, job, schema, n_samples, **more)
    if not from_model(job):
        found = job.strategy.forecast(job.parameters, job, schema, n_samples, **more)
        note = f"the search begins with structures of run {job.warm_start.run}"
        return replace(found, reveals=reveals(job), notes=(*found.notes, note))
    agreed = replace(job, booster=replace(job.booster, base_score=_SOME_SCORE))
    found = job.strategy.forecast(job.parameters, agreed, schema, n_samples, **more)
    note = (
        f"the job goes on from the model of run {job.warm_start.run}; a silo that has not kept it "
        "receives it once an attempt, which is not in these bytes"
    )
    return replace(found, reveals=reveals(job), notes=(*found.notes, note))


def forecasts(
    job: JobParameters,
    schema: Schema,
    n_samples: Mapping[Silo, int],
    start: KnownStart | None,
    sizes: SampledTrees | None = None,
) -> dict[str, Forecast]:
    """Return the forecast of each silo of a job, with the bytes of the model that it lacks.

    Parameters
    ----------
    n_samples : Mapping
        Rows by silo; without any, the forecast is of "each silo".
    start : KnownStart or None
        The starting model; None where there is none, or nothing is known of it.
    sizes : SampledTrees, optional
        Of trees that were grown from the tables.
    """
    every = forecast(job, schema, n_samples, sizes)
    names = job.silos or tuple(n_samples)
    if len(names) >= LEAST_SILOS and has_sums(allowances(job, schema, len(names))):
        told = told_groups(groups_of_job(job, names))
        every = replace(every, notes=(told, *every.notes))
    found = dict.fromkeys(map(str, n_samples or ("each silo",)), every)
    if start is None or job.warm_start is None or not from_model(job):
        return found
    note = (
        f"the job goes on from the model of run {job.warm_start.run}; its {start.n_bytes:,} bytes "
        "are in ExchangeTrees of each silo that is taken to lack it, once"
    )
    every = replace(every, notes=(*every.notes[:-1], note))
    n, up, down = every.steps.get(STARTING.call.value, (0, 0, 0))
    moved = {STARTING.call.value: (n + 1, up + SMALL, down + start.n_bytes + SMALL)}
    lacking = replace(every, steps=dict(sorted({**every.steps, **moved}.items())))
    return {silo: every if silo in start.kept_by else lacking for silo in found}


def allowances(job: JobParameters, schema: Schema, n_silos: int) -> tuple[StepQuota, ...]:
    """Return where each step of a job may happen."""
    found = job.strategy.allowances(job.parameters, job, schema, n_silos)
    return (*found, StepQuota(STARTING, 1)) if from_model(job) else found
