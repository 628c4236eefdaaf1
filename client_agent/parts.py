"""The parts of an agent, which its process wires together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from hedgerow.boosting.dataset import Dataset
from hedgerow.boosting.errors import FederationError
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.ports import JobParameters, LocalTrainer
from hedgerow.boosting.work import Rates
from hedgerow.client_agent.accepted import ReplayGuard
from hedgerow.client_agent.accountant import TableAccount
from hedgerow.client_agent.keeper import VaultSessions
from hedgerow.client_agent.ledger import SiloLedger
from hedgerow.client_agent.memory import MemoryLimit
from hedgerow.client_agent.opened import TableOpenings
from hedgerow.client_agent.policy import Policy
from hedgerow.client_agent.seen_tables import SeenTables
from hedgerow.client_agent.state import StateFolder
from hedgerow.services.identity.peers import FileIdentity
from hedgerow.services.identity.revocation import RevokedCertificates
from hedgerow.services.rpc.federation import Registration
from hedgerow.services.rpc.metering import MeteredChannel
from hedgerow.services.wire.signed_job import OpenedJob


class ScriptTables(Protocol):
    """What a script has handed over for one job."""

    def train(self, job: JobParameters) -> Dataset:
        """Return the rows to train on."""

    def tested(self, job: JobParameters, known: str) -> Dataset | None:
        """Return the test rows, if there are any."""

    def validated(self, job: JobParameters) -> Dataset | None:
        """Return the validation rows, if there are any."""


@dataclass(frozen=True, slots=True)
class AgentParts:
    """The parts of an agent.

    Parameters
    ----------
    channel : callable
        Returns the channel to the coordinator, a fresh one after certificates were renewed.
    identity : callable
        Returns the silo's identity, the new one after certificates were renewed.
    load, load_test, load_validation : callable
        From a job to the silo's table under its own schema, and to its test and validation rows,
        None where it has none; raise DataError. Test rows may be of the table: with the job goes
        the digest of that which it trains on.
    asked_ids : callable
        Counts how many ids a job asks about, with the number of the own ones; see
        :class:`~hedgerow.client_agent.asked_ids.AskedIds`.
    revoked : RevokedCertificates
        Whose signatures do not count any more.
    crypto_answers : callable
        Whether the silo's crypto process answers; None where it is not known, or the agent keeps
        the keys. Asked to wait, it finds out.
    script : callable, optional
        Where a script in this process has the tables: those of a job of scripts that it has signed,
        in place of ``load`` and ``load_test``. None where it may sign it yet; raises InvalidJob of
        any other.
    rates : callable
        How fast the silo's machines are; empty until that is measured, or where it is not to be
        announced.
    """

    silo: Silo
    address: str
    channel: Callable[[], MeteredChannel]
    identity: Callable[[], FileIdentity]
    state: StateFolder
    ledger: SiloLedger
    accepted: ReplayGuard
    policy: Policy
    account: TableAccount
    opened: TableOpenings
    seen: SeenTables
    load: Callable[[JobParameters], Dataset]
    memory: MemoryLimit
    secrets: VaultSessions
    registration: Registration
    revoked: RevokedCertificates
    crypto_answers: Callable[[bool], bool | None] = lambda wait: None
    leave: Callable[[MeteredChannel, FederationError], None] = lambda channel, why: None
    rates: Callable[[], Rates] = dict
    asked_ids: Callable[[str, int, int], None] = lambda job, asked, own: None
    n_threads: int = 1
    load_test: Callable[[JobParameters, str], Dataset | None] = lambda _, known: None
    load_validation: Callable[[JobParameters], Dataset | None] = lambda _: None
    trainer: LocalTrainer | None = None
    device: str = ""
    script: Callable[[OpenedJob], ScriptTables | None] | None = None
