"""The start of an attempt: which silos are asked, who has accepted, and what they agree on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from hedgerow.boosting import warm_start
from hedgerow.boosting.dataset import Schema, class_weights, fits, merge
from hedgerow.boosting.errors import (
    FederationError,
    QuorumLost,
    SchemaMismatch,
    StaleAttempt,
    Unauthorised,
)
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.ports import JobParameters
from hedgerow.boosting.sums.allowances import has_sums
from hedgerow.boosting.sums.groups import (
    LEAST_ROWS,
    Groups,
    OpenedSets,
    encode_sets,
    groups_of_job,
    parse_sets,
    waited_for,
)
from hedgerow.boosting.sums.steps import SUMS_VERSION
from hedgerow.coordinator.server.artefacts import Artefacts
from hedgerow.coordinator.server.barrier import Barrier
from hedgerow.coordinator.server.environment import JobEnvironment
from hedgerow.coordinator.server.journal import JobJournal
from hedgerow.coordinator.server.store import JobRecord
from hedgerow.coordinator.server.waiting import ANSWERS, SILOS, Waiting, by_reason, clock_of
from hedgerow.services.rpc.errors import Damaged
from hedgerow.services.rpc.federation import Agreement, Registration
from hedgerow.services.wire import schema as schema_wire
from hedgerow.services.wire.acceptance import Acceptance, accept_message
from hedgerow.services.wire.job_view import JobSilo, SiloState
from hedgerow.services.wire.results import Outcome

SETTLE_SECONDS = 1.5
"""A job without a list of silos starts when no new silo has registered for this long."""
RETURN_SECONDS = 30.0
"""How long a later attempt waits for the others of an earlier one once it has enough silos."""
MOST_LOST_ATTEMPTS = 1000
"""Silos cannot make the numbers of attempts grow faster."""
AGREED_SCHEMA = "schema.json"
"""File of a job with the schema on which its silos agreed."""
_GROUPS = "sums/groups"


@dataclass(slots=True)
class JobAttempt:
    """An attempt of a job, while silos accept it and while it runs."""

    number: int
    candidates: set[Silo]
    """Silos that are asked; empty while a job without a list waits for its first silos."""
    first_round: int
    """Round at which it begins, or continues after the rounds it has finished."""
    accepted: dict[Silo, Acceptance] = field(default_factory=dict)
    declined: dict[Silo, str] = field(default_factory=dict)
    agreement: Agreement | None = None
    failure: FederationError | None = None
    hub: Barrier | None = None
    exchanging: set[Silo] = field(default_factory=set)
    """Silos that have opened an exchange since they accepted."""
    assigned: set[Silo] = field(default_factory=set)
    """Silos that have been asked."""
    outcomes: dict[Silo, Outcome] = field(default_factory=dict)
    """Silos whose half has ended; empty text for success."""
    ended: bool = False
    now: Callable[[], float] = time.time
    """Seconds since 1970."""
    notes: dict[Silo, str] = field(default_factory=dict)
    """Of each silo that takes no part now: what it last did, as a verb with its reason."""
    barred: set[Silo] = field(default_factory=set)
    """Silos whose answer was refused or whose half failed: they wait for nobody's question."""
    lost_number: int = 0
    """The newest attempt that a silo holds and the database has lost; 0 where it has lost none."""
    groups: Groups = ()
    """Over whose unions sums are, once an earlier attempt had them."""
    opened: float = field(init=False)
    _agreed: frozenset[Silo] = frozenset()

    def __post_init__(self) -> None:
        self.opened = self.now()

    def agree(self, agreement: Agreement) -> None:
        """Note what the silos that have accepted agreed on."""
        self.agreement, self._agreed = agreement, frozenset(agreement.silos)

    def asks(self, silo: Silo) -> bool:
        """Whether a silo may take part."""
        return silo in (self.candidates if self.agreement is None else self._agreed)

    def held_before(self, silo: Silo, attempts: Iterable[int]) -> None:
        """Note which attempts of the job a silo holds; none may be newer than this one.

        One that this process has not assigned was stored and is lost: the database is older than
        the silo's memory, which would never answer to the same number again.
        """
        known = self.number if silo in self.assigned else self.number - 1
        newest = max(attempts, default=0)
        if known < newest <= self.number + MOST_LOST_ATTEMPTS and self.agreement is None:
            self.lost_number = max(newest, self.lost_number)
            self.note(silo, f"holds attempt {newest}, which the database does not have")

    @property
    def answered(self) -> set[Silo]:
        """Silos that have accepted or declined."""
        return self.accepted.keys() | self.declined.keys()

    @property
    def settled(self) -> bool:
        """Whether silos that have accepted need not wait any more."""
        return self.agreement is not None or self.failure is not None or self.ended

    def note(self, silo: Silo, what: str) -> None:
        """Note why a silo takes no part now; the reason that is known first stays."""
        if silo not in self.notes:
            self.notes[silo] = f"{what} at {clock_of(self.now())}"

    def bar(self, silo: Silo, what: str) -> None:
        """Note that a silo has said, or the coordinator found, why it takes no part."""
        self.notes.pop(silo, None)
        self.note(silo, what)
        self.barred.add(silo)

    def admit(self, silo: Silo, acceptance: Acceptance) -> None:
        """Take a silo in."""
        self.notes.pop(silo, None)
        self.barred.discard(silo)
        self.accepted[silo] = acceptance

    @property
    def with_rows(self) -> tuple[Silo, ...]:
        """Silos that have accepted and have rows."""
        return tuple(silo for silo, own in self.accepted.items() if own.n_samples)

    def usable(self, job: JobParameters) -> tuple[Silo, ...]:
        """Silos that have accepted, have rows and, where there are groups, are in whole ones."""
        if job.max_close_sums:
            return self.with_rows
        whole = OpenedSets(self.groups).usable(self.accepted)
        return tuple(silo for silo in self.with_rows if silo in whole)

    @property
    def least_silos(self) -> int:
        """The largest number of silos that the policy of one of them asks for in a sum."""
        return max((own.min_silos for own in self.accepted.values()), default=0)

    def absences(self) -> dict[Silo, str]:
        """Return, of each silo that is asked and takes no part now, what it did and when."""
        there = self.accepted.keys() if self.hub is None else set(self.hub.silos)
        asked = self.candidates if self.agreement is None else self.agreement.silos
        silent = f"has not answered since {clock_of(self.opened)}"
        order = [*self.declined, *sorted(set(asked) - self.declined.keys())]
        return {silo: self.notes.get(silo, silent) for silo in order if silo not in there}

    def unnamed(self, error: str) -> list[str]:
        """Return why silos take no part, of those whose reason an error does not have."""
        known = {s: why for s, why in self.absences().items() if f"{s} (" not in error}
        told = [f"{s}{':' if ', ' in s else ''} {why}" for s, why in by_reason(known)]
        return [what for what in told if what not in error]

    @property
    def waiting(self) -> Waiting | None:
        """What the attempt waits for: answers of its silos, or offers of a step."""
        if self.hub is not None:
            return self.hub.waiting
        if self.settled:
            return None
        silos = tuple(sorted(self.candidates - self.answered))
        if self.candidates and not silos:
            return None
        why = "; ".join(f"{s} {self.notes[s]}" for s in silos if s in self.notes)
        return Waiting(ANSWERS if silos else SILOS, self.opened, silos, why)

    def drop(self, silo: Silo, reason: str) -> None:
        """Take a silo out of the exchanges, while there are any."""
        if self.hub is not None and not self.ended:
            self.hub.drop(silo, reason)

    def fail(self, silo: Silo, reason: str) -> None:
        """Take a silo out whose half has failed."""
        self.bar(silo, f"failed ({reason})")
        if self.agreement is None:
            self.accepted.pop(silo, None)
        self.drop(silo, reason)

    def end(self, error: FederationError) -> None:
        """End the attempt; open exchanges raise ``error``."""
        if not self.ended:
            self.ended = True
            if self.hub is not None:
                self.hub.end(error)

    def decline(self, silo: Silo, reason: str) -> None:
        """Take a silo out that declines."""
        self.declined[silo] = reason
        self.note(silo, f"declined ({reason})")
        if self.agreement is None:
            self.accepted.pop(silo, None)
        else:
            self.drop(silo, "it has declined")

    def lose(self, silo: Silo, reason: str) -> None:
        """Take a silo out whose lease has ended; not one whose half has ended well before."""
        if silo in self.outcomes and not self.outcomes[silo].error:
            return
        if self.asks(silo):
            self.note(silo, f"was lost ({reason})")
        if self.agreement is None:
            self.accepted.pop(silo, None)
        self.drop(silo, reason)

    def agreed(self, silo: Silo) -> Agreement:
        """Return the agreement of a silo that has accepted.

        Raises
        ------
        Unauthorised
            It has declined meanwhile.
        FederationError
            The attempt has failed or ended.
        """
        if silo in self.declined:  # its agent has restarted meanwhile
            raise Unauthorised(f"{silo} has declined this job")
        if self.failure is not None:
            raise self.failure
        if self.agreement is None:
            raise StaleAttempt("this attempt has ended")
        return replace(self.agreement, first_round=self.first_round)


class CohortFormation:
    """Decides when the silos of an attempt are together.

    Parameters
    ----------
    now : float
        Time on the clock of the other methods' ``now``, seconds.
    """

    def __init__(self, job: JobParameters, attempt: JobAttempt, now: float) -> None:
        self._job = job
        self._attempt = attempt
        self._began = now
        self._enough = math.inf
        self._alive: frozenset[Silo] = frozenset()
        self._allowed: frozenset[Silo] = frozenset()
        self._unable: frozenset[Silo] = frozenset()
        self._named = bool(attempt.candidates)
        self._seen: set[Silo] = set()
        self._settled = now + SETTLE_SECONDS

    def look(
        self,
        registered: Mapping[Silo, Registration],
        now: float,
        allowed: frozenset[Silo] = frozenset(),
    ) -> bool:
        """Ask silos that hold a lease, where the job has no list; return whether any is new.

        Parameters
        ----------
        allowed : frozenset of Silo
            Roster of the federation; empty where every silo with a certificate may register.
        """
        self._alive, self._allowed = frozenset(registered), allowed
        if self._named:
            return False
        strategy = self._job.strategy.name
        alive = {
            silo
            for silo, one in registered.items()
            if not one.strategies or strategy in one.strategies
        }
        self._unable = self._alive - alive
        if alive - self._seen:
            self._seen |= alive
            self._settled = now + SETTLE_SECONDS
        candidates = self._attempt.candidates
        # With whom a silo computes is part of what it agrees to: no silo is asked before the
        # first ones are together.
        together = len(alive) >= self._job.least_silos and now > self._settled
        if not alive - candidates or not (candidates or together):
            return False
        candidates |= alive
        return True

    def over(self, now: float) -> bool:
        """Whether there is nothing more to wait for: all have answered, or time is up.

        Where silos have declined and too few are left that may still accept, it is over when all
        that are alive have answered. A silo that is alive and has not said why it takes no part,
        as one that was frozen until now, has as much time again. The time of a later attempt that
        enough have accepted counts from then, and is :data:`RETURN_SECONDS` at most.
        """
        attempt = self._attempt
        coming = (attempt.candidates & self._alive) - attempt.answered - attempt.barred
        began, patience = self._began, self._job.start_timeout_seconds
        enough = attempt.number > 1 and len(attempt.usable(self._job)) >= self._needed
        self._enough = min(self._enough, now) if enough else math.inf
        if enough:
            began, patience = self._enough, min(patience, RETURN_SECONDS)
        if now > began + patience or self._hopeless:
            return now > began + 2.0 * patience or not coming
        if not attempt.answered >= attempt.candidates:
            return False
        if self._named or (attempt.declined and not attempt.accepted):
            return True
        return len(attempt.with_rows) >= self._job.least_silos and now > self._settled

    @property
    def _hopeless(self) -> bool:
        """Whether no silo that may still accept can make up for those that have declined."""
        attempt = self._attempt
        who = attempt.candidates if self._named else self._allowed
        if not attempt.declined or not who:
            return False
        lost = attempt.declined.keys() | (attempt.accepted.keys() - set(attempt.with_rows))
        return len(who - lost) < self._needed

    @property
    def _needed(self) -> int:
        least = self._attempt.least_silos if self._attempt.groups else 0
        return max(self._job.least_silos, least)

    def check_quorum(self) -> None:
        """Raise where too few silos have accepted; names the others.

        Raises
        ------
        QuorumLost
            Silos that took part before have not come back: they may do so for another attempt.
        SchemaMismatch
            No other attempt would have more.
        """
        attempt, needed = self._attempt, self._needed
        if len(attempt.usable(self._job)) >= needed:
            return
        # Who has not had its time is not to blame.
        absences = {
            silo: why
            for silo, why in attempt.absences().items()
            if not self._hopeless or silo in attempt.notes
        }
        reasons = [f"{silo} {why}" for silo, why in absences.items()]
        empty = attempt.accepted.keys() - set(attempt.with_rows)
        reasons += [f"{silo} has no rows" for silo in sorted(empty)]
        waits = waited_for(attempt.groups, attempt.accepted)
        reasons += [f"{', '.join(own)} wait for {s} of their group" for s, own in waits.items()]
        if waits:
            reasons.append("the job and all policies may allow sums without it by max_close_sums")
        if not self._hopeless:
            waited, unable = self._seen - attempt.candidates, self._unable
            away = self._allowed - self._alive - self._seen if not self._named else ()
            reasons += [f"{silo} waited for others" for silo in sorted(waited)]
            name = self._job.strategy.name
            reasons += [f"{silo} does not take part in {name} jobs" for silo in sorted(unable)]
            reasons += [f"{silo} is not registered" for silo in sorted(away)]
        gone = QuorumLost if attempt.number > 1 and not self._hopeless else SchemaMismatch
        said = f" (min_silos = {needed})" if needed == self._job.min_silos > 1 else ""
        raise gone(
            f"the job needs {needed} silo{'s' * (needed > 1)}{said}, {len(attempt.with_rows)} "
            f"accepted; {'; '.join(reasons) or 'none is registered'}"
        )


class AgreedJob:
    """Checks silos' acceptances of a job, and brings their schemas together."""

    def __init__(self, record: JobRecord, job: JobParameters, environment: JobEnvironment) -> None:
        self._job_id = record.job_id
        self._digest = record.signed.digest
        self._job = job
        self._environment = environment

    def check(self, silo: Silo, acceptance: Acceptance, agreement: Agreement | None) -> Acceptance:
        """Return a silo's acceptance with what the coordinator may know of its table.

        Parameters
        ----------
        agreement : Agreement or None
            What the others agreed on, where the silo comes later.

        Raises
        ------
        SignatureInvalid
            The silo has not signed this job.
        SchemaMismatch
            It agreed to another job, or its table does not fit the agreement.
        """
        if acceptance.job_digest != self._digest:
            raise SchemaMismatch(f"{silo} agreed to another job than {self._job_id}")
        if agreement is not None and agreement.groups:
            check_version(silo, acceptance)
        message = accept_message(self._job_id, self._digest)
        self._environment.verify(silo, acceptance.certificate, message, acceptance.signature)
        if self._job.vertical:
            return replace(acceptance, schema=nameless(acceptance.schema))
        if agreement is not None:
            fits(silo, acceptance.schema, agreement.schema)
        return acceptance

    def schema(self, accepted: Mapping[Silo, Acceptance], settled_before: bool) -> Schema:
        """Return the schema on which silos agree, after storing it; blocks.

        Parameters
        ----------
        settled_before : bool
            Whether an earlier attempt stored a schema, which does not change any more.

        Raises
        ------
        SchemaMismatch
            The tables do not fit together.
        """
        artefacts = self._environment.artefacts
        schemas = {silo: acceptance.schema for silo, acceptance in accepted.items()}
        if self._job.vertical:
            active = self._job.active
            if active not in schemas:
                raise SchemaMismatch(f"the active party {active!r} did not accept")
            schema = schemas[active]
        elif settled_before:
            agreed = agreed_schema(artefacts, self._job_id)
            schema = schema_wire.load(agreed or b"")
            for silo, own in schemas.items():
                fits(silo, own, schema)
        else:
            empty = {silo for silo, one in accepted.items() if not one.n_samples}
            schema = common_schema(self._job, schemas, empty)
            digest = artefacts.write(self._job_id, AGREED_SCHEMA, schema_wire.dump(schema))
            JobJournal(artefacts, self._job_id).remember("schema", digest.encode())
        present = (
            JobSilo(silo, one.n_samples, SiloState.PRESENT, "" if one.n_samples else "has no rows")
            for silo, one in accepted.items()
        )
        self._environment.store.set_job_silos(self._job_id, present)
        return schema

    def groups(self, attempt: JobAttempt, schema: Schema, roster: tuple[Silo, ...]) -> Groups:
        """Return the groups of the job's sums, made at its first agreement and stored; blocks.

        Raises
        ------
        SchemaMismatch
            The job has secure sums, and a silo is of a release whose sums had no groups.
        """
        job = self._job
        if job.vertical or not has_sums(warm_start.allowances(job, schema, len(roster))):
            return ()
        for silo, one in attempt.accepted.items():
            check_version(silo, one)
        if attempt.groups:
            return attempt.groups
        accepted, late = attempt.accepted, set(roster) - attempt.accepted.keys()
        rows = [silo for silo, own in accepted.items() if own.n_samples >= LEAST_ROWS]
        groups = groups_of_job(job, rows, accepted.keys() - set(rows), late)
        JobJournal(self._environment.artefacts, self._job_id).remember(_GROUPS, encode_sets(groups))
        return groups

    def shown_to(self, silo: Silo, agreement: Agreement) -> Agreement:
        """Return what a silo may know of an agreement."""
        if not self._job.vertical or silo == self._job.active:
            return agreement
        task = Schema((), "", agreement.schema.task, 0)
        return replace(agreement, schema=task)


def agreed_groups(artefacts: Artefacts, job_id: str) -> Groups:
    """Return the groups that a job's silos were dealt to; none before, or without secure sums."""
    return tuple(parse_sets(JobJournal(artefacts, job_id).recall(_GROUPS)))


def check_version(silo: Silo, acceptance: Acceptance) -> None:
    """Raise :class:`SchemaMismatch` where a silo cannot take part in this release's sums."""
    if acceptance.sums_version != SUMS_VERSION:
        raise SchemaMismatch(
            f"{silo}: expected version {SUMS_VERSION} of secure sums, received "
            f"{acceptance.sums_version}: its agent and the coordinator are of different releases; "
            "jobs with secure sums need the same one"
        )


def agreed_schema(artefacts: Artefacts, job_id: str) -> bytes | None:
    """Return the schema on which a job's silos agreed, as it was stored; blocks.

    Raises
    ------
    Damaged
        The file is another than the one that was stored.
    """
    digest = JobJournal(artefacts, job_id).recall("schema")  # an older version stored none
    if not artefacts.exists(job_id, AGREED_SCHEMA):
        if digest is not None:
            raise Damaged(f"{AGREED_SCHEMA} of job {job_id} is missing")
        return None
    return artefacts.read(job_id, AGREED_SCHEMA, (digest or b"").decode())


def common_schema(
    job: JobParameters, schemas: Mapping[Silo, Schema], empty: Collection[Silo] = ()
) -> Schema:
    """Return the schema of all silos of a horizontal job.

    Raises
    ------
    SchemaMismatch
        The tables do not fit together.
    """
    own = {str(silo): schema for silo, schema in schemas.items()}
    schema = merge(own, set(map(str, empty)), job.columns.positive)
    class_weights(schema, job.columns.class_weight)
    orders = {own.names for own in schemas.values()}
    if job.booster.monotone_constraints and len(orders) > 1:
        raise SchemaMismatch(
            "the silos have their columns in different orders: with monotone_constraints "
            "the job needs 'features', whose order they follow"
        )
    schema_wire.check_size(schemas, schema)
    return schema


def nameless(schema: Schema) -> Schema:
    """Return what the coordinator may know of a party's table: the task and how many classes."""
    return Schema((), "", schema.task, schema.n_classes)
