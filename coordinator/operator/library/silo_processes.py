"""Silos of a federation in memory: what one computes from, and worker processes that share them.

One interpreter runs one thread at a time, so hundreds of silos are dealt to processes. Each silo's
half and the codecs run there; the barrier, and all that says who is away, stays in the parent,
where the silo's own thread hands its exchanges on.
"""

from __future__ import annotations

import math
import os
import pickle
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from multiprocessing.connection import Connection
from operator import is_
from queue import SimpleQueue
from typing import Any, NamedTuple

from hedgerow.boosting import warm_start
from hedgerow.boosting.allowances import EVERY_CLASS, QuotaChannel, disclosed
from hedgerow.boosting.budget import BudgetLedger
from hedgerow.boosting.dataset import Dataset, Schema
from hedgerow.boosting.errors import FederationError
from hedgerow.boosting.exchange import Discloses, ExchangeKey, Silo, SiloChannel, Step
from hedgerow.boosting.ports import Artefact, JobParameters, SiloStart
from hedgerow.coordinator.operator.library.jobs import Job
from hedgerow.crypto.arithmetic.worker_processes import begin_worker
from hedgerow.crypto.vault.local_vault import LocalVault
from hedgerow.services.identity.certificates import IdentityPaths
from hedgerow.services.identity.peers import FileIdentity
from hedgerow.services.rpc.in_memory import MemoryLink, SiloEnd
from hedgerow.services.wire import BoxCodec

JOB_ID = "in-memory"
SHARED_FROM = 100
"""Silos from which processes share them: to start one costs as much as a few hundred rounds."""

_UNSIGNED = {Discloses.NOTHING, Discloses.SCHEMA, Discloses.SCORES, Discloses.TREES}


@dataclass(frozen=True)
class SiloWork:
    """What silos compute from, in a form that travels to a process."""

    spec: bytes
    """Serialised ``JobSpec``."""
    silos: tuple[Silo, ...]
    """The roster."""
    schema: Schema
    """Of a horizontal job's tables."""
    tables: Mapping[Silo, Dataset]
    tests: Mapping[Silo, Dataset]
    """``tables`` and ``tests``: by silo: rows, and evaluation rows where there are some."""
    identities: Mapping[Silo, IdentityPaths]
    """By silo, what it signs with; empty where nobody signs."""
    timed: bool = False
    """Whether CPU seconds count."""

    @cached_property
    def job(self) -> JobParameters:
        """The job."""
        return Job.from_spec(self.spec).parameters

    @property
    def signed(self) -> bool:
        """Whether silos send anything that they sign."""
        job = self.job
        allowed = warm_start.allowances(job, self.schema, len(self.silos))
        return job.vertical or not disclosed(allowed).keys() <= _UNSIGNED

    def only(self, silos: Sequence[Silo]) -> SiloWork:
        """Return the part of some silos."""
        return replace(
            self,
            tables={silo: self.tables[silo] for silo in silos},
            tests={silo: own for silo, own in self.tests.items() if silo in silos},
            identities={silo: own for silo, own in self.identities.items() if silo in silos},
        )

    def participate(self, silo: Silo, link: SiloChannel) -> Artefact | None:
        """Run a silo's half."""
        job = self.job
        table = self.tables[silo]
        schema = table.schema if job.vertical else self.schema
        kept = job.parameters.safeguards(job)
        limit = math.inf if kept.epsilon is None else kept.epsilon
        paths = self.identities.get(silo)
        start = SiloStart(
            job=job, job_id=JOB_ID, attempt=1, silo=silo, silos=self.silos, schema=schema,
            dataset=table, test=self.tests.get(silo), codec=BoxCodec(),
            identity=None if paths is None else FileIdentity(paths),
            accountant=BudgetLedger(limit, delta=kept.delta),
            draws=job.seed,
        )  # fmt: skip
        allowances = warm_start.allowances(job, schema, len(self.silos))
        guarded = QuotaChannel(link, allowances, EVERY_CLASS)
        own = warm_start.participate(guarded, LocalVault(), start)
        return own if isinstance(own, Artefact) else None


class _Asked(NamedTuple):
    """A silo's offer: its frames, and the CPU seconds since its last reply.

    Names of classes are all that pickle looks up: a pickled data class costs more than its frames.
    """

    step: bytes
    at: tuple[int, int, int]
    frames: list[bytes]
    spent: float

    @classmethod
    def of(cls, step: Step[Any, Any], at: ExchangeKey, frames: list[bytes], spent: float) -> _Asked:
        """Return what :meth:`carried` makes an exchange of again."""
        return cls(_packed(step), (at.round, at.level, at.passing), frames, spent)

    def carried(self, link: MemoryLink) -> list[bytes]:
        """Hand the offer on; return the reply's frames."""
        return link.carry(_step(self.step), ExchangeKey(*self.at), None, self.frames, self.spent)[1]


@lru_cache(maxsize=64)
def _packed(step: Step[Any, Any]) -> bytes:
    return pickle.dumps(step, pickle.HIGHEST_PROTOCOL)


@lru_cache(maxsize=64)
def _step(data: bytes) -> Step[Any, Any]:
    found: Step[Any, Any] = pickle.loads(data)  # noqa: S301 - of our own process
    return found


@dataclass(frozen=True, slots=True)
class _Ended:
    """The end of a silo's half: what stays there, or why it failed."""

    kept: Artefact | None = None
    error: BaseException | None = None


class SiloProcesses:
    """Worker processes, each with its part of the silos."""

    def __init__(self, work: SiloWork, n_processes: int) -> None:
        self._inboxes: dict[Silo, SimpleQueue[_Asked | _Ended]] = {
            s: SimpleQueue() for s in work.silos
        }
        self._ends: dict[Silo, _End] = {}
        self._processes = []
        from loky.backend import get_context

        context = get_context("loky")  # a fresh interpreter that imports no main module again
        for k in range(n_processes):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, os.getpid()), daemon=True)
            process.start()
            theirs.close()
            end, silos = _End(ours), work.silos[k::n_processes]
            end.send(work.only(silos))
            self._ends |= dict.fromkeys(silos, end)
            self._processes.append(process)
            threading.Thread(target=self._read, args=(ours, silos), daemon=True).start()

    def participate(self, link: MemoryLink) -> Artefact | None:
        """Run a silo's half in its process; called in the silo's thread of this one."""
        end, inbox = self._ends[link.silo], self._inboxes[link.silo]
        end.send((link.silo, None))
        while True:
            found = inbox.get()
            if isinstance(found, _Ended):
                if found.error is not None:
                    raise found.error
                return found.kept
            answer: list[bytes] | BaseException
            try:
                answer = found.carried(link)
            except BaseException as error:  # SiloAway too: it comes back when the half has ended
                answer = error
            end.answer(link.silo, answer)

    def close(self) -> None:
        """End the processes."""
        for end in set(self._ends.values()):
            end.connection.close()
        for process in self._processes:
            process.terminate()
            process.join()

    def _read(self, connection: Connection[Any, Any], silos: Sequence[Silo]) -> None:
        try:
            while True:
                silo, message = connection.recv()
                self._inboxes[silo].put(message)
        except (EOFError, OSError):
            for silo in silos:
                ended = FederationError("the worker process of this silo has ended")
                self._inboxes[silo].put(_Ended(error=ended))


class _End:
    """A process' end of a pipe, for many threads."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self.connection = connection
        self._lock = threading.Lock()
        self._shared: list[bytes] = []  # what the last long reply had after its key

    def send(self, message: Any) -> None:
        with self._lock:  # a message at a time, or those that wait would all be in memory
            self.connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def answer(self, silo: Silo, answer: list[bytes] | BaseException) -> None:
        """Send a reply's frames; those after its key once where many silos have the same."""
        if isinstance(answer, BaseException) or len(answer) < 2:
            self.send((silo, answer))
            return
        with self._lock:
            again = len(answer) == len(self._shared) + 1 and all(map(is_, answer[1:], self._shared))
            self._shared = answer[1:]
            message = silo, answer[:1], None if again else self._shared
            self.connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))


class _ProcessLink(SiloEnd):
    """A silo's link in a worker process: the parent's thread of the silo hands offers on."""

    def __init__(
        self, silo: Silo, slots: threading.BoundedSemaphore, end: _End, timed: bool
    ) -> None:
        super().__init__(silo, JOB_ID, slots)
        self.end, self.timed = end, timed
        self.answers: SimpleQueue[list[bytes] | BaseException] = SimpleQueue()

    def carry(
        self, step: Step[Any, Any], at: ExchangeKey, offer: Any, frames: list[bytes], spent: float
    ) -> tuple[Any, list[bytes]]:
        """Send an offer's frames to the parent and wait for those of the reply."""
        self.end.send((self.silo, _Asked.of(step, at, frames, spent)))
        answer = self.answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return None, answer

    def check(self) -> None:
        """Do nothing: exchanges raise JobStopped."""


def _serve(connection: Connection[Any, Any], parent: int) -> None:
    """Run halves of silos, one at a time, until the parent closes the pipe."""
    begin_worker(parent)
    end, slots = _End(connection), threading.BoundedSemaphore(1)
    try:
        work: SiloWork = connection.recv()
        links = {silo: _ProcessLink(silo, slots, end, work.timed) for silo in work.tables}
        shared: list[bytes] = []
        while True:
            silo, answer, *rest = connection.recv()
            if rest:
                shared = shared if rest[0] is None else rest[0]
                answer += shared
            if answer is not None:
                links[silo].answers.put(answer)
                continue
            threading.Thread(target=_participate, args=(work, links[silo]), daemon=True).start()
    except (EOFError, OSError):
        return


def _participate(work: SiloWork, link: _ProcessLink) -> None:
    with link.slots:
        link.began = time.thread_time()
        try:
            ended = _Ended(work.participate(link.silo, link))
        except BaseException as error:
            ended = _Ended(error=error)
    try:
        link.end.send((link.silo, ended))
    except (pickle.PicklingError, TypeError, AttributeError):
        text = f"{type(ended.error).__name__}: {ended.error}"
        link.end.send((link.silo, _Ended(error=FederationError(text))))
