"""Faults that once were there, or might be, put back one at a time: seeds must find each.

A fault is a change of a function's source, with what a run says that finds it. Runs that do are in
``recorded.jsonl``; faults without one are those that seeds have not found yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.claims.changed import Change


@dataclass(frozen=True)
class Fault:
    """A change of the product."""

    change: Change
    says: str
    """Words of a violation that it leads to."""
    from_history: str = ""
    """The commit that mended it, where it was in the product."""

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """Let the product have the fault in this block."""
        owner, name = self.change.owner
        own = owner.__dict__[name] if isinstance(owner, type) else getattr(owner, name)
        setattr(owner, name, self.change.function())
        try:
            yield
        finally:
            setattr(owner, name, own)


FAULTS = {
    "groups are held against the silos of a later attempt": Fault(
        Change(
            "client_agent.attempt:Attempt._groups",
            "memory = self._parts.state.memory(self.key.job_id)\n",
            "memory = self._parts.state.memory(self.key.job_id)\n"
            "    check_groups(job, groups, agreement.silos, self._parts.silo)\n",
        ),
        "groups have silos twice",
    ),
    "rows are counted on without a silo that was counted": Fault(
        Change(
            "boosting.sums.coordinator:CoordinatorSums._check_complete",
            "if ask.complete and",
            "if False and",
        ),
        "that grow with the values",
    ),
    "a line of the ledger is not synced": Fault(
        Change("client_agent.ledger:DurableLines.__init__", " | os.O_DSYNC", ""),
        "left before its line of the ledger was on the disk",
    ),
    "the ledger is written after the offer": Fault(
        Change(
            "client_agent.ledger:SiloLedger.record",
            "self._append(\n",
            "(lambda *_: None)(\n",
        ),
        "left before its line of the ledger was on the disk",
    ),
    "a torn last line of the ledger is kept": Fault(
        Change("client_agent.ledger:_mend", "end == len(lines) and", "False and"),
        "line",
        from_history="b1081feb",
    ),
    "files are renamed before they are synced": Fault(
        Change("crypto.durable:write_durably", "    os.fsync(descriptor)\n", ""),
        "FAILED",
    ),
    "records are not synced": Fault(
        Change("client_agent.records:Records.write", "os.fdatasync(descriptor)", "pass"),
        "",
    ),
    "a crash leaves the account's copy behind, and a second one too": Fault(
        Change("client_agent.accountant:TableAccount._loaded", "if found.turn:", "if False:"),
        "privacy accountant",
        from_history="35854b78",
    ),
    "the account is written after the answer": Fault(
        Change(
            "client_agent.accountant:TableAccount.charge",
            "self._write(following, _FILES)",
            "pass",
        ),
        "has forgotten",
    ),
    "the record of opened sets is in memory only": Fault(
        Change(
            "boosting.sums.silo:SiloSums._remember",
            "self._link.remember(self._key, self._record.encode())",
            "pass",
        ),
        "opens",
    ),
    "a restarted coordinator repeats the last round": Fault(
        Change(
            "coordinator.server.storing:JobStoring.rounds_done",
            "return done",
            "return max(done - 1, 0)",
        ),
        "",
    ),
    "a checkpoint is not of the round that it says": Fault(
        Change(
            "coordinator.server.storing:JobStoring.start",
            "self._job_id, first - 1)",
            "self._job_id, max(first - 2, 0))",
        ),
        "the model of",
    ),
    "a lost lease is never noticed": Fault(
        Change("client_agent.lease:Lease._run", "self._lease = None", "pass"),
        "has not ended",
    ),
}
