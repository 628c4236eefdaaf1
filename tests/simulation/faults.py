"""Faults that once were there, or might be, put back one at a time: seeds must find each.

A fault is changes of functions' sources. Whatever a run says with it is due to it, for without it
runs say nothing. Those that find faults are in ``recorded.jsonl``; faults without one are those
that seeds have not found yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tests.claims.changed import Change


@dataclass(frozen=True)
class Fault:
    """Changes of the product that are one fault."""

    changes: tuple[Change, ...]
    mended: str = ""
    """The commit that mended it, where it was in the product."""

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """Let the product have the fault in this block."""
        with ExitStack() as after:
            for change in self.changes:
                owner, name = change.owner
                changed = change.function()
                while hasattr(getattr(owner, name), "__wrapped__"):  # what the invariants look at
                    owner, name = getattr(owner, name), "__wrapped__"
                own = owner.__dict__[name] if isinstance(owner, type) else getattr(owner, name)
                after.callback(setattr, owner, name, own)
                setattr(owner, name, changed)
            yield


def _fault(where: str, *texts: str, mended: str = "") -> Fault:
    return Fault((Change(where, *texts),), mended)


FAULTS = {
    # --- what a loss of power, a crash and a full disk leave in a silo ---
    "a line of the ledger is not synced": _fault(
        "client_agent.ledger:DurableLines.__init__",
        " | os.O_DSYNC",
        "",
    ),
    "the ledger is written after the offer": _fault(
        "client_agent.ledger:SiloLedger.record",
        "self._append(\n",
        "(lambda *_: None)(\n",
    ),
    "a torn last line of the ledger is kept": _fault(
        "client_agent.ledger:_mend",
        "end == len(lines) and",
        "False and",
        mended="b1081feb",
    ),
    "the ledger's head is ahead of its lines": _fault(
        "client_agent.ledger:SiloLedger._append",
        "    try:\n        self._file.append(line)",
        "    os.pwrite(self._head, ledgers.head_line(self._count + 1, chain), 0)\n"
        "    try:\n        self._file.append(line)",
    ),
    "room for lines is left by a crash": _fault(
        "client_agent.ledger:SiloLedger.__init__", "_mend(path)", "pass"
    ),
    "a restarted agent begins another chain": _fault(
        "client_agent.ledger:SiloLedger.__init__",
        "for entry, self._last in",
        "for entry, _ in",
    ),
    "files are renamed before they are synced": _fault(
        "crypto.durable:write_durably",
        "    os.fsync(descriptor)\n",
        "",
    ),
    "the name of a file is not synced": _fault(
        "crypto.durable:sync_folder",
        "os.fsync(descriptor)",
        "pass",
    ),
    "records are not synced": _fault(
        "client_agent.records:Records.write",
        "os.fdatasync(descriptor)",
        "pass",
    ),
    "the name of a record is not synced": _fault(
        "client_agent.records:Records.write",
        "    if fresh:\n",
        "    if False:\n",
    ),
    "a record has one slot": _fault(
        "client_agent.records:Records.write",
        "slot = self._slot(name, turn)",
        "slot = self._slot(name, 1)",
    ),
    "a crash leaves the account's copy behind, and a second one too": _fault(
        "client_agent.accountant:TableAccount._loaded",
        "if found.turn:",
        "if False:",
        mended="35854b78",
    ),
    "the account is written after the answer": _fault(
        "client_agent.accountant:TableAccount.charge",
        "self._write(following, _FILES)",
        "pass",
    ),
    "a job's charge forgets those before": _fault(
        "client_agent.accountant:TableAccount.charge",
        "dict(jobs[job_id].entries) if job_id in jobs else {}",
        "{}",
    ),
    "the account's copy is not written": _fault(
        "client_agent.accountant:TableAccount.charge",
        "self._write(following, _FILES)",
        "self._write(following, _FILES[:1])",
    ),
    "an agent ends when its disk is full as a job ends": _fault(
        "client_agent.loop:Agent._end_jobs",
        "suppress(StateUnwritable)",
        "suppress()",
        mended="6d899950",
    ),
    "a job is declined permanently where its attempt cannot be counted": _fault(
        "client_agent.attempt:Attempt._run",
        "except (StateUnwritable, JobStopped):",
        "except JobStopped:",
        mended="6d899950",
    ),
    "what a silo keeps is lost where its disk is full": _fault(
        "client_agent.attempt:Attempt._written",
        "time.sleep(ROOM_SECONDS)",
        "return None",
        mended="6d899950",
    ),
    "an attempt is forgotten only where its full disk was reported": _fault(
        "client_agent.loop:Agent._work",
        "except FederationError as failure:\n            log.debug(",
        "except FederationError as failure:\n            full = False\n            log.debug(",
        mended="0f6a7a97",
    ),
    "a full disk ends an agent's lease": _fault(
        "client_agent.lease:Lease._run",
        "except (Unreachable, LedgerFull) as error:",
        "except Unreachable as error:",
    ),
    # --- silos that are lost and come back ---
    "groups are held against the silos of a later attempt": _fault(
        "client_agent.attempt:Attempt._groups",
        "memory = self._parts.state.memory(self.key.job_id)\n",
        "memory = self._parts.state.memory(self.key.job_id)\n"
        "    check_groups(job, groups, agreement.silos, self._parts.silo)\n",
        mended="690bd2ef",
    ),
    "rows are counted on without a silo that was counted": _fault(
        "boosting.sums.coordinator:CoordinatorSums._check_complete",
        "if ask.complete and",
        "if False and",
        mended="690bd2ef",
    ),
    "an agent that has restarted is not taken out": _fault(
        "coordinator.server.runner:JobRun.accept",
        "elif silo in attempt.exchanging:",
        "elif False:",
        mended="a75862a4",
    ),
    "a later attempt waits for 30 s and ends the job": Fault(
        (
            Change(
                "coordinator.server.gathering:CohortFormation.over",
                "    if enough:\n",
                "    if attempt.number > 1:\n        self._enough = began\n",
            ),
            Change(
                "coordinator.server.gathering:CohortFormation.check_quorum",
                "QuorumLost if attempt.number > 1 and not self._hopeless else SchemaMismatch",
                "SchemaMismatch",
            ),
        ),
        "fd2d8ddf",
    ),
    "a lost lease is never noticed": Fault(
        (
            Change("client_agent.lease:Lease._run", "self._lease = None", "pass"),
            Change("client_agent.lease:Lease.lost", "self._lease = None", "pass"),
        ),
    ),
    "an agent that was away never asks for a model": _fault(
        "client_agent.loop:Agent._jobs_ended",
        "ended = set(job_ids) & self._idle()",
        "return",
    ),
    "secrets of a job outlive it": _fault(
        "client_agent.keeper:VaultSessions._end",
        "self._erase(job_id, vault,",
        "sorted(",
    ),
    # --- sums ---
    "the record of opened sets is in memory only": _fault(
        "boosting.sums.silo:SiloSums._remember",
        "self._link.remember(self._key, self._record.encode())",
        "pass",
    ),
    "a restarted coordinator is not told which set a sum is bound to": _fault(
        "boosting.sums.silo:SiloSums._recoverable",
        "bound=self._record.bound(place)",
        "bound=()",
        mended="7fc87b3a",
    ),
    "a begun tree is not durable": _fault(
        "coordinator.server.journal:JobJournal.remember",
        'self._artefacts.write_checked(self._job_id, f"journal/{key}", value)',
        "pass",
        mended="abf007d9",
    ),
    # --- the coordinator's crashes and its store ---
    "jobs of a killed coordinator are not continued": _fault(
        "coordinator.server.jobs:Jobs.start", "store.unfinished_jobs()", "()"
    ),
    "bytes that were stored are counted again": _fault(
        "coordinator.server.traffic:JobTraffic.flush",
        "moved = self.take()",
        "moved = self.new()",
    ),
    "a restarted coordinator repeats the last round": _fault(
        "coordinator.server.storing:JobStoring.rounds_done",
        "return done",
        "return max(done - 1, 0)",
    ),
    "a checkpoint is not of the round that it says": _fault(
        "coordinator.server.storing:JobStoring.start",
        "self._job_id, first - 1)",
        "self._job_id, max(first - 2, 0))",
    ),
    "the sweep over leases ends where the store fails": _fault(
        "coordinator.server.jobs:Jobs._sweep",
        "        self._report()\n",
        "        self._signs_due = 0.0\n        await self._store_signs()\n"
        "        self._report()\n",
        mended="9ad9e929",
    ),
    "a job's end that cannot be stored is given up": _fault(
        "coordinator.server.storing:JobStoring.end",
        "await self.stored(end, for_ever=True)",
        "await asyncio.to_thread(end)",
        mended="a75862a4",
    ),
    "a silo's state that cannot be stored ends its job": _fault(
        "coordinator.server.storing:JobStoring.stored",
        "except StorageFailed as error:",
        "except ZeroDivisionError as error:",
    ),
    "a job has ended before its model is stored": _fault(
        "coordinator.server.runner:JobRun._train",
        "await self._storing.save_result(schema, last, best)\n",
        "pass\n",
        'await self._finish(JobState.SUCCEEDED, "")\n',
        'await self._finish(JobState.SUCCEEDED, "")\n'
        "    await self._storing.save_result(schema, last, best)\n",
    ),
    "checkpoints are removed before the next one is there": _fault(
        "coordinator.server.storing:JobStoring.save_round",
        "        artefacts.write_checkpoint(",
        "        artefacts.prune_checkpoints(self._job_id, ())\n"
        "        artefacts.write_checkpoint(",
    ),
    # --- messages ---
    "an offer is not sent again": _fault(
        "services.rpc.link:GrpcChannel._until_answered",
        "        except Unreachable:\n",
        "        except ZeroDivisionError:\n",
    ),
    "an offer of an earlier attempt is taken": _fault(
        "coordinator.server.runner:JobRun._current",
        "attempt.number != number or ",
        "",
    ),
    "an offer that comes again is another one": _fault(
        "coordinator.server.barrier:Barrier.offer",
        "if previous is not None and previous[0] == key and step not in self._served:",
        "if False:",
    ),
    "a silo that is lost is waited for": _fault(
        "coordinator.server.barrier:Barrier.drop",
        "self._note_change(moved=True)",
        "pass",
    ),
}
