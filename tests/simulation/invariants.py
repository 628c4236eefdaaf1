"""What holds in every simulated federation, at every message, loss of power, and at the end."""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xgboost

from hedgerow.api.federation.v1.exchange_service_pb2 import ExchangeRequest
from hedgerow.boosting.errors import FederationError
from hedgerow.boosting.sums.records import UnmaskingRecord
from hedgerow.boosting.sums.silo import SiloSums
from hedgerow.client_agent.accountant import JobAccount, read_accounts
from hedgerow.client_agent.records import RecordDamaged, Records
from hedgerow.coordinator.server.artefacts import Artefacts
from hedgerow.coordinator.server.storing import JobStoring
from hedgerow.crypto import durable
from hedgerow.services.process.ledgers import LedgerBroken, verify
from hedgerow.services.rpc.jobs import JobClient
from hedgerow.services.wire.job_view import JobState, JobView
from tests.simulation.federation import COORDINATOR, ROUNDS, Federation, SubmittedJob
from tests.simulation.network import UP, Call

LONGEST_SECONDS = 600.0
"""Virtual time within which all has ended once faults have."""


class Oracle:
    """Watches a federation; what it finds is in :attr:`violations`."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.violations: list[str] = []
        self._offers: dict[Call, tuple[Any, int, Any]] = {}
        self._sent: dict[tuple[Any, ...], str] = {}
        self._opened: dict[tuple[Any, ...], tuple[str, ...]] = {}
        self._charged: dict[str, dict[str, set[str]]] = {}
        self._seen: dict[str, JobView] = {}
        self._records: dict[str, dict[tuple[Records, str], list[bytes]]] = {}
        self._files: dict[str, dict[Path, list[bytes]]] = {}
        self._rounds: dict[str, int] = {}
        federation.taps.append(self._message)
        federation.told.append(self._said)
        federation.without_power.append(self._check_kept)
        global _oracle
        _oracle = self

    def violated(self, what: str) -> None:
        """Note that something did not hold."""
        what = what.replace(str(self.federation.folder), ".")
        self.federation.note(f"VIOLATED {what}")
        if what not in self.violations:
            self.violations.append(what)

    # --- at each message ---

    def _message(self, call: Call, way: str, data: bytes) -> None:
        if way != UP or not call.path.endswith("/Exchange"):
            return
        if call not in self._offers:
            key = ExchangeRequest.FromString(data).key
            self._offers[call] = key, key.frames, hashlib.sha256(data)
        else:
            key, left, digest = self._offers[call]
            digest.update(data)
            self._offers[call] = key, left - 1, digest
        key, left, digest = self._offers[call]
        if not left:
            del self._offers[call]
            self._offered(call.client.name, key, digest.hexdigest())

    def _offered(self, name: str, key: Any, digest: str) -> None:
        place = (key.job_id, key.attempt, key.round, key.level, getattr(key, "pass"), key.step)
        what = f"{name}'s {key.step} of round {key.round} in attempt {key.attempt}"
        if key.step == "sum-keys":  # public; a process that restarts has new ones
            pass
        elif self._sent.setdefault((name, *place), digest) != digest:
            self.violated(f"{what} was sent a second time with other bytes")
        disk = self.federation.disks.by_name[name]
        if digest.encode() not in disk.durable(str(disk.folder / "ledger.jsonl")):
            self.violated(f"{what} left before its line of the ledger was on the disk")

    def _said(self, who: str, event: str, fields: dict[str, Any]) -> None:
        if "before its deadline" in str(fields.get("why")) and event == "silo changed":
            self.violated(f"{fields['silo']} was let wait: {fields['why']}")

    # --- at each write, and where the power fails ---

    def stored(self, of: str, what: Any, value: bytes, *, done: bool) -> None:
        """Note that a record or file is to have a value, or has it on the disk by what was said."""
        process = self.federation.world.process
        if process is None or process.name not in self.federation.disks.by_name:
            return
        kept = (self._records if of == "record" else self._files).setdefault(process.name, {})
        kept[what] = [value] if done else [*kept.get(what, [b""]), value]

    def removed(self, path: Path) -> None:
        """Note that a file is to be removed."""
        for files in self._files.values():
            files.pop(path, None)

    def _check_kept(self, name: str) -> None:
        """Check that what was said to be on the disk is: the newest value, or one under way."""
        for (records, key), values in self._records.get(name, {}).items():
            try:
                found = records.read(key) or b""
            except RecordDamaged as error:
                self.violated(f"{name}: {error}")
                continue
            if found not in values:
                self.violated(f"{name} has lost a record of {records.folder.name}")
            values[:] = [found]
        for path, values in self._files.get(name, {}).items():
            found = path.read_bytes() if path.exists() else b""
            if found not in values:
                self.violated(f"{name} has lost the file {path.name}")
            values[:] = [found]

    # --- at each round, opening, charge and look ---

    def training(self, job: str, at: int) -> None:
        """Note that a round has been trained."""
        if at < self._rounds.get(job, 0):
            self.violated(f"round {at} was trained again, its checkpoint was on the disk")

    def checkpoint(self, job: str, at: int) -> None:
        """Note that a round's checkpoint is on the disk."""
        self._rounds[job] = max(at + 1, self._rounds.get(job, 0))

    def unmasked(self, silo: str, job: str, at: Any, sums: Any) -> None:
        """Note that a silo has revealed what opens a sum: its record has the set by now."""
        raw = sums._link.recall(sums._key)
        if not UnmaskingRecord.parse(raw).bound(at) and sums._record.round == at.at.round:
            self.violated(f"{silo} opens {at.key} of round {at.at.round} without a record of it")

    def opened(self, silo: str, job: str, at: Any, present: tuple[str, ...]) -> None:
        """Note that a silo reveals what opens a sum over a set."""
        key = job, at.key, at.at
        before = self._opened.setdefault(key, present)
        if before != present:
            self.violated(
                f"{silo} opens {at.key} of round {at.at.round} over {','.join(present)}, "
                f"after {','.join(before)}"
            )

    def charged(self, name: str, job: str, keys: set[str]) -> None:
        """Note that queries were paid for, and may be answered now."""
        self._charged.setdefault(name, {}).setdefault(job, set()).update(keys)
        self.check_budget(name)

    def check_budget(self, name: str) -> None:
        """Check that what was answered is still counted."""
        disk = self.federation.disks.by_name[name]
        try:
            tables = read_accounts(disk.folder).tables
        except FederationError as error:
            self.violated(f"{name}: {error}")
            return
        for job, keys in self._charged.get(name, {}).items():
            known = {key for jobs in tables.values() for key in jobs[job].entries if job in jobs}
            if not keys <= known:
                self.violated(f"{name} has forgotten {len(keys - known)} answers of {job}")

    def looked(self, view: JobView) -> None:
        """Note what an operator was told of a job."""
        before = self._seen.get(view.job_id)
        if before is not None:
            if before.ended and (before.state, before.silos) != (view.state, view.silos):
                self.violated(f"a job that had ended {before.state} became {view.state}")
            if [r.silos for r in view.rounds][: len(before.rounds)] != [
                r.silos for r in before.rounds
            ]:
                self.violated(f"rounds {before.rounds} became {view.rounds}")
        self._seen[view.job_id] = view

    # --- at the end ---

    def check_end(self) -> None:
        """Check what the federation has become."""
        for defect in self.federation.world.defects:
            self.violated(defect)
        for job in self.federation.jobs:
            self._check_job(job)
        for name in self.federation.names:
            if not self.federation.processes[name].alive:
                self.violated(f"{name} does not run")
            if name != COORDINATOR:
                self._check_agent(name)

    def _check_job(self, job: SubmittedJob) -> None:
        if job.view is None or not job.view.ended:
            self.violated(f"{job.name} has not ended: {job.view and job.view.detail}")
            return
        view = job.view
        rounds = [r.round for r in view.rounds]
        if rounds != list(range(len(rounds))):
            self.violated(f"{job.name} has rounds {rounds}")
        if view.state is JobState.SUCCEEDED:
            least = 1 if job.name == "dp_tree" else ROUNDS[job.name]  # noise may end its tree early
            if not least <= len(rounds) <= ROUNDS[job.name]:
                self.violated(f"{job.name} has ended with rounds {rounds}")
            if "model.ubj" not in job.files:
                self.violated(f"{job.name} has no model")
        elif view.state is not JobState.CANCELLED or not job.cancelled:
            self.violated(f"{job.name} {view.state}: {view.detail}")

    def _check_agent(self, name: str) -> None:
        ledger = self.federation.folder / name / "ledger.jsonl"
        self.check_budget(name)
        try:
            held = verify(ledger)
        except LedgerBroken as error:
            self.violated(f"{name}: {error}")
            return
        for job in self.federation.jobs:
            if job.view is not None and job.job_id:
                self._check_left(name, job)
                up = job.view.bytes_of(name.removeprefix("agent-"))[0]
                if up > held.sent(job.job_id):
                    self.violated(f"{name} has sent {held.sent(job.job_id)} bytes by its ledger, "
                                  f"the coordinator has received {up}")  # fmt: skip

    def _check_left(self, name: str, job: SubmittedJob) -> None:
        """Check what a job that has ended leaves in a silo: its model, and no secrets."""
        folder = self.federation.folder / name / "jobs" / job.job_id
        if (folder / "memory" / "sessions").exists():
            self.violated(f"{name} has still secrets of {job.name}, which has ended")
        assert job.view is not None
        took_part = job.view.rounds and all(
            name.removeprefix("agent-") in one.silos for one in job.view.rounds
        )
        if job.view.state is JobState.SUCCEEDED and took_part:
            own = folder / "model.ubj"
            if not own.exists() or own.read_bytes() != job.files.get("model.ubj"):
                self.violated(f"{name} does not keep the model of {job.name}")


_oracle: Oracle | None = None


def install() -> None:
    """Let what opens sums, charges budgets and looks at jobs tell the oracle."""

    def noted(owner: Any, name: str, note: Callable[..., None], *, before: bool = False) -> None:
        @functools.wraps(getattr(owner, name))
        def told(self: Any, *args: Any, **options: Any) -> Any:
            if before and _oracle is not None:
                note(self, *args, **options)
            found = told.__wrapped__(self, *args, **options)
            if not before and _oracle is not None:
                note(self, found, *args, **options)
            return found

        setattr(owner, name, told)

    def unmasking(sums: Any, steps: Any, ticket: Any, place: Any, agreed: Any, *_: Any) -> None:
        assert _oracle is not None
        if place.of_rows:
            _oracle.opened(sums._silo, ticket.session.partition("/")[0], place, agreed)

    def charged(account: JobAccount, _: None, entries: Any) -> None:
        assert _oracle is not None
        process = _oracle.federation.world.process
        assert process is not None
        _oracle.charged(process.name, account.job_id, set(entries))

    def looked(client: JobClient, view: JobView, *_: Any) -> None:
        assert _oracle is not None
        _oracle.looked(view)

    def unmasked(sums: Any, _: Any, steps: Any, ticket: Any, place: Any, *__: Any) -> None:
        assert _oracle is not None
        if place.of_rows:
            _oracle.unmasked(sums._silo, ticket.session.partition("/")[0], place, sums)

    def of_record(done: bool) -> Callable[..., None]:
        def record(records: Records, *args: Any) -> None:
            assert _oracle is not None
            name, value = args[-2:]
            _oracle.stored("record", (Records(records.folder, records.counters, records.key), name),
                           value, done=done)  # fmt: skip

        return record

    def saving(storing: JobStoring, done: Any, result: Any) -> None:
        assert _oracle is not None
        _oracle.training(storing._job_id, done.round)

    def checkpoint(_: Artefacts, __: None, job: str, at: int, data: bytes) -> None:
        assert _oracle is not None
        _oracle.checkpoint(job, at)

    noted(SiloSums, "_unmask", unmasking, before=True)
    noted(SiloSums, "_unmask", unmasked)
    noted(Records, "write", of_record(False), before=True)
    noted(Records, "write", of_record(True))
    noted(JobStoring, "save_round", saving, before=True)
    noted(Artefacts, "write_checkpoint", checkpoint)
    _note_files()
    noted(JobAccount, "charge", charged)
    noted(JobClient, "get", looked)


def _note_files() -> None:
    """Let what writes and removes whole files tell the oracle."""
    write, unlink = durable.write_atomically, Path.unlink

    def written(path: Path, data: bytes, *args: Any, **options: Any) -> None:
        noted = _oracle is not None and "turns" not in path.parts  # counters: written in place, too
        if noted:
            _oracle.stored("file", path, data, done=False)  # type: ignore[union-attr]
        write(path, data, *args, **options)
        if noted:
            _oracle.stored("file", path, data, done=True)  # type: ignore[union-attr]

    def removed(path: Path, missing_ok: bool = False) -> None:
        if _oracle is not None:
            _oracle.removed(path)
        unlink(path, missing_ok)

    for module in list(sys.modules.values()):
        if getattr(module, "write_atomically", None) is write:
            module.write_atomically = written  # type: ignore[attr-defined]
    Path.unlink = removed  # type: ignore[method-assign]


def model_of(job: SubmittedJob) -> str:
    """Return the digest of a job's model; of its trees, where it may lack covers."""
    data = job.files.get("model.ubj", b"")
    if data and job.name == "bagging":
        trees = xgboost.Booster(model_file=bytearray(data)).get_dump(dump_format="json")
        data = "\n".join(trees).encode()
    return hashlib.sha256(data).hexdigest()[:16]


def files_of(folder: Path) -> str:
    """Return the digest of all files of a folder, whose names and bytes are the run's."""
    found = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        if file.is_file() and not file.name.startswith("state.db"):
            found.update(str(file.relative_to(folder)).encode() + b"\0" + file.read_bytes())
    return found.hexdigest()
