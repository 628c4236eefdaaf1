"""Whether this silo takes part in a job: what an acceptance and a preflight check, in one place.

A preflight is a question, not a job: it starts nothing, charges nothing, is not kept, and is
answered only to an operator's signature. It tells what accepting or declining the same job would
tell, and stops where that would stop: after the first check that fails, nothing of the table is
looked at any more. Whether the crypto process answers and the disk has room is always reported.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import structlog
from numpy.typing import NDArray

from hedgerow.boosting import warm_start
from hedgerow.boosting.dataset import Dataset, Schema, Task, unnamed
from hedgerow.boosting.engine.objective import objective_of
from hedgerow.boosting.engine.start import margins_of, start_score
from hedgerow.boosting.errors import (
    UNFIT,
    DataError,
    FederationError,
    InvalidJob,
    LabelUnfit,
    PolicyDeclined,
    SchemaMismatch,
)
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.own_scores import LEAST_ROWS
from hedgerow.boosting.ports import Horizontal, JobParameters
from hedgerow.boosting.sums.allowances import has_sums
from hedgerow.boosting.trees.decision_tree import MODEL_FILE
from hedgerow.boosting.trees.local import MarginRows, check_device
from hedgerow.boosting.work import Forecast
from hedgerow.client_agent import results
from hedgerow.client_agent.accepted import check_silos
from hedgerow.client_agent.parts import AgentParts
from hedgerow.client_agent.seen_tables import counts_rows
from hedgerow.client_agent.state import ROOM_BYTES
from hedgerow.services.process.logs import where
from hedgerow.services.rpc.federation import Preflight
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire.acceptance import PreflightAnswer
from hedgerow.services.wire.job_view import CHECKS, CheckState, PreflightCheck
from hedgerow.services.wire.signed_job import ITS_SILOS, PREFLIGHT_LABEL, OpenedJob, open_job

log = structlog.get_logger()

_BENT = (
    "huber", "reg:pseudohubererror", "fair", "log_cosh", "reg:squaredlogerror", "survival:aft",
)  # fmt: skip
"""Losses whose hessians follow from how far a label is from the margin."""
_NEAR = ("huber", "reg:pseudohubererror", "fair", "log_cosh")
"""Of these such whose hessians are largest at the label."""
_BLOCK = 1 << 16
"""Rows that are scored at a time."""
MOST_A_MINUTE = 12
"""Preflights that a silo looks into within a minute: each reads its table."""


def check_operator(parts: AgentParts, opened: OpenedJob) -> None:
    """Check that what an operator asks may read this process' table: not where it is a script's.

    Raises
    ------
    InvalidJob
    """
    if parts.script is not None and opened.operator != ITS_SILOS:
        raise InvalidJob(
            f"silo {parts.silo} is joined by a script: it takes part in jobs that this script "
            f"signs, in none of operator {opened.operator}'s"
        )


def check_validation(parts: AgentParts, job: JobParameters, dataset: Dataset) -> None:
    """Raise :class:`DataError` where rounds cannot be scored on the silo's validation rows.

    Scores are sums over a group of silos; those of a few rows hide no other silo's. Raises
    :class:`PolicyDeclined` where a few rows have changed since an earlier job.
    """
    key, table = f"[{job.strategy.name}] validation_tables", parts.load_validation(job)
    if table is None:
        raise DataError(
            f"{key}: expected a table of validation rows of {parts.silo}, under validation in its "
            "settings; there is none"
        )
    least = max(parts.policy.min_rows, LEAST_ROWS)
    if table.n_samples < least:
        raise DataError(f"{key}: expected at least {least} validation rows of {parts.silo}")
    if missing := sorted(set(dataset.schema.names) - set(table.schema.names)):
        raise DataError(f"{key}: the validation table has no column '{missing[0]}'")
    if counts_rows(job):  # scores of two jobs differ by its rows as sums do by others
        parts.seen.check(job, table)


def _check_added(found: Iterable[tuple[str, NDArray[Any]]], least: int, n_samples: int) -> None:
    """Raise :class:`PolicyDeclined` where few rows are left in the sums of what all rows add."""
    if least < 2:
        return
    for what, added in found:
        if added.any() and _counts_as(added) < min(least, n_samples / 2):
            raise PolicyDeclined(
                f"policy rule min_cell: {what} leaves fewer than {least} rows in the sums: others "
                "weigh nothing beside them"
            )


def _added(job: JobParameters, dataset: Dataset, least: int) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield what rows add to sums, under names.

    A column of weights may leave few of them, or one of base margins: where a loss is flat, or as
    steep as an exponential, all rows but a few add next to nothing. So may a base score, or slope,
    of a loss that bends near the label; in later rounds, too, where a job brings margins there.
    """
    if dataset.weight is not None:
        yield "the column of weights", dataset.weight
    begin, what = dataset.base_margin, "the column of base margins"
    if begin is None and dataset.n_samples and (job.objective in _BENT or job.booster.loss):
        begin = np.tile(_start(job, dataset), (dataset.n_samples, 1))
        what = f"{job.objective} where it begins (base_score, slope)"
    if begin is None:
        return
    first = list(_hessians(job, dataset, begin))
    yield from ((what, h) for h in first)
    if dataset.n_samples and job.objective in _NEAR:
        what = f"{job.objective}, in rounds to which this job can bring it (max_delta_step, slope),"
        for step in _steps(job, dataset, first, begin, least):
            yield from ((what, h) for h in _hessians(job, dataset, begin + step))


def check_start(parts: AgentParts, job: JobParameters, schema: Schema, dataset: Dataset) -> None:
    """Raise :class:`PolicyDeclined` where a model from which a job starts leaves few rows.

    It is looked at where the silo has kept it: from others a silo starts whose policy trusts who
    signs the job.
    """
    told, least = job.warm_start, parts.policy.min_cell
    raw = b"" if told is None or least < 2 else parts.state.kept(told.run, MODEL_FILE) or b""
    if not raw or not warm_start.from_model(job) or not dataset.n_samples:
        return
    model = warm_start.opened(job, schema, raw, "this silo's own copy")
    blocks = np.array_split(np.arange(dataset.n_samples), 1 + dataset.n_samples // _BLOCK)
    margins = [MarginRows(dataset.take(rows), model, parts.n_threads).margins for rows in blocks]
    added = _hessians(job, dataset, np.concatenate(margins).reshape(dataset.n_samples, -1))
    what = "the model from which the job starts"
    _check_added(((what, h) for h in added), least, dataset.n_samples)


def _steps(
    job: JobParameters, dataset: Dataset, first: list[NDArray[Any]], begin: Any, least: int
) -> NDArray[np.float32]:
    """Return residuals whose ``least`` nearest are furthest, of shape (at most 8, n_outputs).

    None where margins stay among labels: Newton steps are longer than residuals where margins begin
    outside of most labels, or few of these are within the slope, or as long as the job says.
    """
    y = np.sort(np.asarray(dataset.y, np.float64).reshape(begin.shape) - begin, axis=0)
    n, k = len(y), max(1, min(least, len(y) // 2))
    few = any(h.any() and _counts_as(h) < n / 4 for h in first)
    outside = np.any((y[n // 20] > 0) | (y[-1 - n // 20] < 0))
    if not (few or outside or job.booster.max_delta_step or warm_start.from_model(job)):
        return np.empty((0, y.shape[1]), np.float32)
    spans = np.pad(y[k - 1 :] - y[: n - k + 1], ((k - 1,) * 2, (0, 0)), constant_values=np.inf)
    apart, width = spans, 1
    while width < k:  # the least of each k spans, by twice as many each time
        step = min(width, k - width)
        apart, width = np.minimum(apart[:-step], apart[step:]), width + step
    furthest = np.argsort(-apart, axis=0, kind="stable")[:8]
    return np.take_along_axis(y, furthest, axis=0).astype(np.float32)


def _start(job: JobParameters, dataset: Dataset) -> NDArray[np.float32]:
    """Return where margins begin by the job, or by this silo's labels alone."""
    objective = objective_of(job.objective, job.task, job.booster, in_cells=True)
    assert dataset.y is not None, "a job trains on labels"
    score = start_score(objective, job.booster, np.asarray(dataset.y, np.float64), None)
    return margins_of(objective, score).astype(np.float32)


def _hessians(
    job: JobParameters, dataset: Dataset, margins: NDArray[np.float32]
) -> Iterator[NDArray[np.float32]]:
    """Yield the hessians of an output; of classes regardless of their labels."""
    try:
        objective = objective_of(job.objective, job.task, job.booster, in_cells=True)
    except InvalidJob:  # one that only stock XGBoost has: no sum is of its gradients
        return
    if objective.by_risk_sets:
        yield np.exp(margins[:, 0] - margins[:, 0].max(initial=-np.inf))
        return
    assert dataset.y is not None, "a job trains on labels"
    labels = [dataset.y]
    if job.task.of_classes:
        labels = [np.full_like(dataset.y, k) for k in range(1 + (job.task is Task.BINARY))]
    for y in labels:
        yield from objective.pairs(margins, y, dataset.weight)[:, 1::2].T


def _counts_as(added: NDArray[Any]) -> float:
    """Return how many equal rows ones of these sizes count as (Kish, 1965)."""
    sizes = np.nan_to_num(np.abs(added).astype(np.float64))
    sizes /= sizes.max()
    return float(sizes.sum()) ** 2 / float(np.square(sizes).sum())


def admit(
    parts: AgentParts,
    job: JobParameters,
    job_id: str,
    operator: str,
    silos: tuple[Silo, ...],
    entering: Callable[[str], None] = lambda _: None,
) -> tuple[Dataset, Forecast]:
    """Return the silo's table for a job, and what the job would move.

    Parameters
    ----------
    entering : callable
        Called with the name of each check before it is made.

    Raises
    ------
    FederationError
        The silo takes no part; the first check that failed.
    """
    policy = parts.policy
    job.parameters.validate(job)
    check_silos(job, silos, parts.silo)
    job.check_torch(
        "this silo's agent",
        "run the image hedgerow/agent-torch there (HEDGEROW_AGENT_IMAGE=agent-torch for compose, "
        "silo.agent.image of the chart), install hedgerow[torch]",
    )
    check_device(job.booster.device, "this silo's agent", cluster=parts.trainer is not None)
    entering("policy")
    policy.check_revoked(parts.revoked.age)
    policy.check_asker(job.strategy.name, operator, silos)
    policy.check_approvers(job.approvals, operator)
    policy.check_start(job, partial(results.checked, parts.state))
    entering("columns")
    dataset = parts.load(job)
    if dataset.unlabelled:
        log.info("rows without a label are left out", rows=dataset.unlabelled)
    parts.memory.check(job, dataset)
    if not job.vertical:
        _check_added(_added(job, dataset, policy.min_cell), policy.min_cell, dataset.n_samples)
    if job.validates and not job.vertical:
        check_validation(parts, job, dataset)
    layout = job.strategy.layout
    if isinstance(layout, Horizontal) and job.parameters.safeguards(job).epsilon is not None:
        # Before the schema leaves: a list of categories that the job does not have is not covered.
        layout.validate_for(job.parameters, job, dataset.schema)
    entering("policy")
    # Of no rows and no columns nothing can be planned.
    rows = dict.fromkeys(silos, max(dataset.n_samples, 1))
    schema = replace(dataset.schema, features=dataset.schema.features or unnamed(1))
    forecast = warm_start.forecast(job, schema, rows)
    allowances = tuple(warm_start.allowances(job, schema, len(silos)))
    policy.check(
        job,
        operator=operator,
        silos=silos,
        columns=dataset.sources or dataset.schema.names,
        named=() if job.vertical else dataset.named,  # a party tells nobody its categories
        categories={}
        if job.vertical
        else dict(zip(dataset.schema.names, dataset.schema.n_categories, strict=True)),
        n_samples=dataset.n_samples,
        forecast=forecast,
        allowances=allowances,
    )
    parts.opened.check_told(job, job_id, silos)
    if counts_rows(job):
        parts.seen.check(job, dataset)
    if results.scores_may_leave(policy, job):
        test = parts.load_test(job, dataset.digest)
        if test is not None:
            parts.seen.check(job, test)
    if has_sums(allowances) and parts.state.memory(job_id).recall("groups") is None:
        parts.opened.check(job, job_id, silos)
    return dataset, forecast


class PreflightAnswers:
    """Answers preflights, one at a time and not too many.

    Parameters
    ----------
    now : callable
        Seconds that never go back.
    """

    def __init__(self, parts: AgentParts, now: Callable[[], float] = time.monotonic) -> None:
        self._parts = parts
        self._now = now
        self._lock = threading.Lock()
        self._begun: deque[float] = deque()

    def answer(self, asked: Preflight) -> PreflightAnswer | None:
        """Return the answer to a preflight; None for what no operator has signed."""
        try:
            opened = open_job(asked.job, self._parts.identity(), PREFLIGHT_LABEL)
        except FederationError as refusal:
            log.warning("preflight refused", why=str(refusal))
            return None
        with self._lock:
            found = _Findings()
            with found.of("job"):
                self._count()
            self._examine(opened, asked.silos, found)
        log.info("preflight", operator=opened.operator, fit=found.fit)
        return found.answer(opened.statement.job_id)

    def _count(self) -> None:
        now = self._now()
        while self._begun and now - self._begun[0] >= 60.0:
            self._begun.popleft()
        if len(self._begun) >= MOST_A_MINUTE:
            raise InvalidJob(
                f"this silo answers {MOST_A_MINUTE} preflights a minute; ask again later"
            )
        self._begun.append(now)

    def _examine(self, opened: OpenedJob, silos: tuple[Silo, ...], found: _Findings) -> None:
        parts, n_bytes = self._parts, 0
        if not found.fit:
            return
        job: JobParameters | None = None
        try:
            found.enter("job")
            check_operator(parts, opened)
            job = job_wire.decode_known(opened.statement.spec, parts.policy.check_packages)
            dataset, forecast = admit(
                parts, job, opened.statement.job_id, opened.operator, silos, found.enter
            )
            for name in ("columns", "label"):
                found.passed(name)
            n_bytes = sum(up + down for _, up, down in forecast.steps.values())
            found.enter("rows")
            if not dataset.n_samples:
                raise DataError("it has no rows, so it could only look on")
            found.enter("budget")
            kept = job.parameters.safeguards(job)
            if kept.epsilon is not None:
                parts.account.admit(opened.statement.job_id, kept.epsilon, kept.delta)
            found.enter("")
            found.schema = shown_schema(job, parts.silo, dataset.schema)
            found.n_samples = shown_rows(job, dataset.n_samples)
        except FederationError as refusal:
            of_label = isinstance(refusal, LabelUnfit) and not (job and job.vertical)
            found.fail(shown_refusal(job, refusal)[:500], of_label)
        except Exception as error:  # a table's own fault may be anything; its text holds values
            log.error("preflight failed", kind=type(error).__name__, where=where(error))
            found.fail(f"internal error of the agent: {type(error).__name__}")
        self._surroundings(found, n_bytes)

    def _surroundings(self, found: _Findings, n_bytes: int) -> None:
        """Check what is beside the table: the crypto process and the disk."""
        with found.of("crypto"):
            if self._parts.crypto_answers(True) is False:
                raise FederationError("its crypto process does not answer")
        with found.of("disk"):
            folder = self._parts.state
            if not folder.has_room() or shutil.disk_usage(folder.path).free < n_bytes + ROOM_BYTES:
                raise FederationError(
                    f"its state folder has no room for the {n_bytes:,} bytes of the job"
                )


class _Findings:
    """What the checks of one preflight found so far."""

    def __init__(self) -> None:
        self._found: dict[str, PreflightCheck] = {}
        self._now = ""
        self.schema: Schema | None = None
        self.n_samples = 0

    @property
    def fit(self) -> bool:
        """Whether no check has failed."""
        return all(check.state is not CheckState.FAILED for check in self._found.values())

    def enter(self, name: str) -> None:
        """Begin a check; the one before it has passed."""
        if self._now:
            self.passed(self._now)
        self._now = name

    def passed(self, name: str) -> None:
        """Note that nothing is wrong."""
        self._found.setdefault(name, PreflightCheck(name, CheckState.PASSED))

    def fail(self, why: str, of_label: bool = False) -> None:
        """Note that the check under way has failed."""
        name, self._now = self._now, ""
        if of_label:
            self.passed(name)
            name = "label"
        self._found[name] = PreflightCheck(name, CheckState.FAILED, why)

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Make one check of its own."""
        self.enter(name)
        try:
            yield
        except FederationError as refusal:
            self.fail(str(refusal))
        else:
            self.enter("")

    def answer(self, job_id: str) -> PreflightAnswer:
        """Return all of it; the table's schema only where the silo would take part."""
        checks = tuple(
            self._found.get(name, PreflightCheck(name, CheckState.OMITTED)) for name in CHECKS
        )
        if not self.fit:
            return PreflightAnswer(job_id, checks)
        return PreflightAnswer(job_id, checks, self.schema, self.n_samples)


def shown_schema(job: JobParameters, silo: Silo, schema: Schema) -> Schema:
    """Return the schema that the coordinator may read: of a vertical job none of its names.

    Silos agree on no columns there; the coordinator needs the active party's task and classes.
    """
    if not job.vertical:
        return schema
    return Schema((), "", schema.task, schema.n_classes if job.active == silo else 0)


def shown_refusal(job: JobParameters | None, refusal: FederationError) -> str:
    """Return what the coordinator may read of a refusal: of a vertical job no column's name."""
    if job is None or not job.vertical:
        return str(refusal)
    if isinstance(refusal, DataError | SchemaMismatch):
        return UNFIT
    if str(refusal).startswith("policy rule features:"):
        return "policy rule features: a column of its table may not be used"
    return str(refusal)


def shown_rows(job: JobParameters, n_samples: int) -> int:
    """Return the row count that the coordinator may read: its size class where that suffices."""
    if job.exact_rows:
        return n_samples
    return 1 << max(n_samples - 1, 0).bit_length() if n_samples else 0
