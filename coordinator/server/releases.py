"""What approvers have signed of jobs and of their models, as the coordinator keeps and checks it.

Silos check approvals of a job themselves. The release of a model is the coordinator's to keep: it
hands the files to nobody but the approvers of the job's ``[audit]`` before enough of them have
signed an audit of these very files.
"""

from __future__ import annotations

import structlog

from hedgerow.boosting.errors import JobStopped, OfferRejected, SignatureInvalid, Unauthorised
from hedgerow.boosting.job import Approvals, ReleaseAudit
from hedgerow.coordinator.server.artefacts import Artefacts
from hedgerow.coordinator.server.store import JobRecord, Store
from hedgerow.services.rpc.errors import NotFound, NotReleased
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire.provenance import lines
from hedgerow.services.wire.release import SignerOf, held_back, open_release
from hedgerow.services.wire.signed_job import JobApproval, SignedJob, check_approval

log = structlog.get_logger()

_RELEASED = "released/"
MOST_CERTIFICATE_BYTES = 16_384
"""Longest chain of certificates of an approval; those of 64 approvers fit a message."""


def approvers_of(record: JobRecord, *, release: bool) -> frozenset[str]:
    """Return who is asked to approve a job or the release of its model, or the release alone."""
    job = job_wire.decode(record.spec)
    audit = Approvals() if job.audit is None else job.audit.without(record.operator).approvals
    return frozenset(audit.approvers if release else (*job.approvals.approvers, *audit.approvers))


class Releases:
    """Approvals and releases of a coordinator's jobs; every method blocks.

    Parameters
    ----------
    approver : callable
        From certificate, message, signature, and whose it should be, to who has signed.
    """

    def __init__(self, store: Store, artefacts: Artefacts, approver: SignerOf) -> None:
        self._store, self._artefacts, self._approver = store, artefacts, approver

    def _record(self, job_id: str) -> JobRecord:
        record = self._store.job(job_id)
        if record is None:
            raise NotFound(f"no job {job_id}")
        return record

    def approve(self, job_id: str, approval: JobApproval, caller: str) -> SignedJob:
        """Add the caller's approval to a job and return the job with it.

        Raises
        ------
        NotFound, JobStopped
            There is no such job under way.
        SignatureInvalid, Unauthorised
            It is not the caller's approval of this job, or the caller is none of its approvers.
        """
        record = self._record(job_id)
        asked = job_wire.decode(record.spec).approvals
        if len(approval.certificate) > MOST_CERTIFICATE_BYTES:  # each assignment has all of them
            raise OfferRejected(
                f"the approval by {caller}: expected a certificate of at most "
                f"{MOST_CERTIFICATE_BYTES} bytes, received {len(approval.certificate)}"
            )
        if caller == record.operator:
            raise Unauthorised(f"{caller} has submitted job {job_id}, which others approve")
        if caller not in asked.approvers:
            named = ", ".join(asked.approvers) or "nobody"
            raise Unauthorised(f"job {job_id} is for {named} to approve, not for {caller}")
        name = check_approval(record.signed, approval, self._approver)
        if name != caller:
            raise SignatureInvalid(f"{name} has signed the approval, not {caller}")
        signed = self._store.approve(job_id, approval)
        if signed is None:
            raise NotFound(f"no job {job_id}")
        missing = asked.without(record.operator).missing(signed.approved)
        log.info("job approved", job=job_id, by=caller, missing=missing)
        return signed

    def release(self, job_id: str, line: bytes, caller: str) -> tuple[str, ...]:
        """Keep the caller's statement about a job's files; return who has signed one.

        Raises
        ------
        NotFound, JobStopped
            There is no such job with a result.
        SignatureInvalid, Unauthorised
            It is not the caller's, or the job's ``[audit]`` does not name the caller.
        DataError
            It is of other files, or a limit of the job does not hold.
        """
        record = self._record(job_id)
        rules = _rules(record)
        named = () if rules is None else rules.approvals.approvers
        if rules is None or caller not in named:
            who = ", ".join(named) or "nobody"
            raise Unauthorised(f"the model of job {job_id} is for {who} to release, not {caller}")
        if not (record.artefacts and record.state.ended):
            raise JobStopped(f"job {job_id} is {record.state.lower()} and has no files to release")
        statement = open_release(line, self._approver)
        if statement.approver != caller:
            raise SignatureInvalid(f"{statement.approver} has signed the release, not {caller}")
        statement.check(rules, job_id, record.signed.digest.hex(), record.artefacts)
        self._artefacts.write_checked(job_id, f"{_RELEASED}{caller}", line)
        return released(self._artefacts, record)


def _rules(record: JobRecord) -> ReleaseAudit | None:
    """Return whose audits release a job's model: nobody releases what they have submitted."""
    rules = job_wire.decode(record.spec).audit
    return None if rules is None else rules.without(record.operator)


def statements(artefacts: Artefacts, job_id: str) -> bytes:
    """Return what approvers have stated of a job's files, an envelope a line."""
    names = [f"{_RELEASED}{name}" for name in _names(artefacts, job_id)]
    return lines([artefacts.read_checked(job_id, name) for name in names])


def _names(artefacts: Artefacts, job_id: str) -> tuple[str, ...]:
    found = artefacts.list(job_id)
    return tuple(sorted(n.removeprefix(_RELEASED) for n in found if n.startswith(_RELEASED)))


def released(artefacts: Artefacts, record: JobRecord) -> tuple[str, ...]:
    """Return who has signed an audit of a job's files, sorted; nobody where none need.

    Each was checked when it came, and the files of a job that has ended do not change.
    """
    held = _rules(record) is not None and record.artefacts
    return _names(artefacts, record.job_id) if held else ()


def check_released(artefacts: Artefacts, record: JobRecord, caller: str) -> None:
    """Raise :class:`NotReleased` where the caller may not have the files of a job yet."""
    rules = _rules(record)
    if rules is None or caller in rules.approvals.approvers:
        return
    by = released(artefacts, record)
    if rules.approvals.missing(by):
        raise NotReleased(held_back(record.job_id, rules.approvals, by))
