"""Preflights: whether the silos that are there would take part in a job, before it is a job.

An operator signs the question, agents that wait for work get it, and each answers as it would
answer the job. A question is not stored, and lives until its answers are there or its time is over.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from hedgerow.boosting.errors import FederationError, LimitReached, SchemaMismatch, SignatureInvalid
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.ports import Horizontal, JobParameters
from hedgerow.boosting.unusual import named_categories, unusual_columns
from hedgerow.coordinator.server.environment import JobEnvironment
from hedgerow.coordinator.server.gathering import common_schema
from hedgerow.coordinator.server.plans import plan_of
from hedgerow.coordinator.server.roster import SiloRegistry
from hedgerow.services.rpc.federation import Preflight
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire.acceptance import PreflightAnswer
from hedgerow.services.wire.bounds import MAX_REASON, cut
from hedgerow.services.wire.job_view import PreflightState, PreflightView, SiloPreflight
from hedgerow.services.wire.signed_job import PREFLIGHT_LABEL, SignedJob

PATIENCE_SECONDS = 20.0
"""How long silos have to answer."""
MOST_A_MINUTE = 12
"""Preflights of all operators: a silo answers as many."""
WINDOW_SECONDS = 65.0
"""In how long they are asked: some reach a silo later than others."""
MOST_AT_ONCE = 8
"""Preflights under way, of all operators."""


@dataclass(slots=True)
class _Asked:
    """A preflight under way; ``told`` are the silos that have been given it."""

    question: Preflight
    told: set[Silo] = field(default_factory=set)
    answers: dict[Silo, PreflightAnswer] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Preflights:
    """The preflights of a coordinator.

    Parameters
    ----------
    now : callable
        Seconds that never go back.
    wake : callable
        Wakes the agents that wait for work.
    """

    def __init__(
        self,
        environment: JobEnvironment,
        roster: SiloRegistry,
        now: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        self._environment = environment
        self._roster = roster
        self._now = now
        self._wake = wake
        self._asked: dict[str, _Asked] = {}
        self._times: deque[float] = deque()

    async def ask(self, signed: SignedJob, operator: str, known: Collection[str]) -> PreflightView:
        """Ask the silos of a job; return what they said within :data:`PATIENCE_SECONDS`.

        Parameters
        ----------
        known : collection of str
            Silos of the federation, there or away.

        Raises
        ------
        SignatureInvalid, InvalidJob
        LimitReached
            Too much is asked, now or in this minute; says in how many seconds to ask again.
        """
        opened = self._environment.open_job(signed, PREFLIGHT_LABEL)
        if opened.operator != operator:
            raise SignatureInvalid(f"operator {opened.operator} signed the preflight")
        job = job_wire.decode(opened.statement.spec)
        job.parameters.validate(job)
        job.check_tables()
        self._count()
        start = await self._environment.known_start(job, operator)
        here, away = self._cohort(job, known)
        enough = bool(job.silos) or len(here) >= job.least_silos
        silos = tuple(sorted(here | away if job.silos or not enough else here))
        asked = _Asked(Preflight(signed, silos))
        if self._asked.setdefault(opened.statement.job_id, asked) is not asked:
            raise LimitReached("this preflight is under way")
        try:
            self._wake()
            await self._answered(asked, here)
        finally:
            del self._asked[opened.statement.job_id]
        found = tuple(_seen(silo, silo in away, asked) for silo in sorted(here | away))
        # Silos' schemas are compared in a thread: they may be large, and say anything.
        refusal, notes = await asyncio.to_thread(_verdict, job, found, asked.answers)
        registered = dict(self._roster.alive)
        for silo, answer in asked.answers.items():
            if silo in registered and answer.schema is not None:
                # Of a vertical job no silo tells its columns.
                n = 0 if job.vertical else len(answer.schema.features) + 1
                registered[silo] = replace(
                    registered[silo], row_count_class=answer.n_samples, n_columns=n
                )
        plan = plan_of(job, registered, self._roster.rates, start)
        plan = replace(plan, notes=(*plan.notes, *(cut(note, MAX_REASON) for note in notes)))
        return PreflightView(found, cut(refusal, MAX_REASON), plan)

    async def _answered(self, asked: _Asked, here: set[Silo]) -> None:
        """Wait until all silos that are there have answered, or the time is over."""
        deadline = self._now() + PATIENCE_SECONDS
        while (here & self._roster.alive.keys()) - asked.answers.keys() and (
            remaining := deadline - self._now()
        ) > 0.0:
            asked.changed.clear()
            with suppress(TimeoutError):  # a lease may end meanwhile
                async with asyncio.timeout(min(remaining, 0.5)):
                    await asked.changed.wait()

    def question(self, silo: Silo) -> Preflight | None:
        """Return what a silo is to be asked, once."""
        for one in self._asked.values():
            if silo in one.question.silos and silo not in one.told:
                one.told.add(silo)
                return one.question
        return None

    def answer(self, silo: Silo, answer: PreflightAnswer) -> None:
        """Take the answer of a silo that was asked; nobody waits for any other."""
        one = self._asked.get(answer.job_id)
        if one is not None and silo in one.told:
            one.answers.setdefault(silo, answer)
            one.changed.set()

    def _count(self) -> None:
        now, times = self._now(), self._times
        while times and now - times[0] >= WINDOW_SECONDS:
            times.popleft()
        if len(times) >= MOST_A_MINUTE:
            left = f"{max(WINDOW_SECONDS - (now - times[0]), 1.0):.0f}"
            raise LimitReached(
                f"silos answer {MOST_A_MINUTE} preflights a minute; the next one is possible in "
                f"{left} s",
                seconds=left,
            )
        if len(self._asked) >= MOST_AT_ONCE:
            raise LimitReached(
                f"{MOST_AT_ONCE} preflights are under way; ask again in a second", seconds="1"
            )
        times.append(now)

    def _cohort(self, job: JobParameters, known: Collection[str]) -> tuple[set[Silo], set[Silo]]:
        """Return the silos that a job would ask: those that are there, and those that are away."""
        alive, name = self._roster.alive, job.strategy.name
        if job.silos:
            asked = set(map(Silo, job.silos))
            return asked & alive.keys(), asked - alive.keys()
        here = {s for s, one in alive.items() if not one.strategies or name in one.strategies}
        return here, set(map(Silo, known)) - alive.keys()


def _seen(silo: Silo, away: bool, asked: _Asked) -> SiloPreflight:
    if silo in asked.answers:
        return SiloPreflight(silo, PreflightState.ANSWERED, asked.answers[silo].checks)
    return SiloPreflight(silo, PreflightState.AWAY if away else PreflightState.SILENT)


def _verdict(
    job: JobParameters,
    found: tuple[SiloPreflight, ...],
    answers: Mapping[Silo, PreflightAnswer],
) -> tuple[str, list[str]]:
    """Return why a job cannot run, even once absent silos return, and what is odd about tables."""
    able = [one.silo for one in found if one.fit or one.state is not PreflightState.ANSWERED]
    schemas = {Silo(one.silo): answers[Silo(one.silo)].schema for one in found if one.fit}
    told = {silo: schema for silo, schema in schemas.items() if schema is not None}
    try:
        if len(found) < job.least_silos:
            names = ", ".join(one.silo for one in found) or "none"
            raise SchemaMismatch(
                f"the job needs {job.least_silos} silos, the federation has {len(found)} that it "
                f"could ask ({names}): more must join, or min_silos be lower"
            )
        if len(able) < job.least_silos:
            failed = [f"{one.silo} cannot take part" for one in found if one.silo not in able]
            raise SchemaMismatch(
                f"the job needs {job.least_silos} silos, {len(able)} of the federation's could "
                "run it" + "".join(f"; {why}" for why in failed)
            )
        if job.active is not None and job.active not in able:
            raise SchemaMismatch(f"the active party {job.active} cannot take part")
        layout = job.strategy.layout
        if isinstance(layout, Horizontal) and told:
            schema = common_schema(job, told)
            layout.validate_for(job.parameters, job, schema)
            rows = sum(answers[silo].n_samples for silo in told)
            return "", [*unusual_columns(schema, rows), *named_categories(schema)]
    except FederationError as error:
        return str(error), []
    return "", []
