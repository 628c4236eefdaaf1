"""The release of a job's model: who may, states that an audit of its files is within the limits.

An approver's statement is an in-toto statement in a DSSE envelope, as those of silos about a run
are, and has the whole audit in it. A run has one a line. Silos that trained have the model already:
what a release opens is the coordinator's door.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hedgerow.boosting.errors import DataError, FederationError, SignatureInvalid
from hedgerow.boosting.job import Approvals, ReleaseAudit
from hedgerow.boosting.ports import Identity
from hedgerow.services.wire.provenance import (
    Envelope,
    pre_authentication,
    read_statement,
    statement_payload,
)

FILE = "release.intoto.jsonl"
"""Of a run folder: the envelopes of all approvers that have signed, a line each."""
AUDIT = "audit.json"
"""Name of the audit among the files of a statement."""
PREDICATE = "urn:hedgerow:release:v1"
MOST_BYTES = 1 << 20
"""Longest envelope."""

SignerOf = Callable[[bytes, bytes, bytes, str], str]
"""From certificate, message, signature, and whose it should be, to who has signed."""


@dataclass(frozen=True, slots=True)
class ReleaseStatement:
    """What an approver states: the model may leave, by this audit."""

    approver: str
    job: str
    job_digest: str
    """SHA-256 of the signed statement of the job, in hex."""
    files: dict[str, str]
    """SHA-256 in hex of each file of the result, and of the audit."""
    audit: str
    """Text of ``audit.json``."""

    def payload(self) -> bytes:
        """Return the in-toto statement, the same bytes wherever it is written."""
        own = {
            "approver": self.approver,
            "job": self.job,
            "job_digest": self.job_digest,
            "audit": self.audit,
        }
        return statement_payload(PREDICATE, self.files, own)

    @classmethod
    def read(cls, payload: bytes) -> ReleaseStatement:
        """Return a statement; raises DataError where it is none of these."""
        found = read_statement(cls, PREDICATE, payload, "release: expected an approver's statement")
        try:
            audit = found.audit.encode()
        except UnicodeEncodeError as error:
            raise DataError("release: expected an audit of characters") from error
        if found.files.get(AUDIT) != hashlib.sha256(audit).hexdigest():
            raise DataError("release: the statement's audit is not the one that it names")
        return found

    def check(
        self, rules: ReleaseAudit, job: str, job_digest: str, files: Mapping[str, str]
    ) -> None:
        """Check that it releases these files, by its audit and a job's limits.

        Parameters
        ----------
        files : mapping
            SHA-256 in hex of each file of the result.

        Raises
        ------
        DataError
            Names what differs, or the limit that does not hold.
        """
        by = f"the release by {self.approver}"
        if (self.job, self.job_digest) != (job, job_digest):
            raise DataError(f"{by}: expected one of job {job}, received one of {self.job[:80]}")
        if different := sorted(
            name for name, digest in files.items() if self.files.get(name) != digest
        ):
            raise DataError(f"{by}: {different[0]} is not the file that was audited")
        try:
            document = json.loads(self.audit)
            found = {str(one["name"]): one["found"] for one in document["limits"]}
            passed, audited = document["passed"], document["model_sha256"]
            wrong = [
                f"{name} {limit:g} does not hold: "
                + ("not measured" if found.get(name) is None else f"{float(found[name]):.3f}")
                for name, limit in rules.limits
                if not _holds(name, found, limit)
            ]
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise DataError(f"{by}: expected an audit.json of `hedgerow audit`") from error
        if audited not in files.values():
            raise DataError(f"{by}: the audit is of another model")
        if wrong:
            raise DataError(f"{by}: {wrong[0]}")
        if passed is not True:
            raise DataError(f"{by}: the audit has not passed")


def _holds(name: str, found: Mapping[str, Any], limit: float) -> bool:
    value = found.get(name)
    if value is None:
        return False
    return bool(value <= limit if name.endswith("_max") else value >= limit)


def signed_release(statement: ReleaseStatement, identity: Identity) -> bytes:
    """Return the envelope of a statement under an approver's key."""
    payload = statement.payload()
    return Envelope(
        payload, identity.sign(pre_authentication(payload)), identity.certificate
    ).line()


def open_release(line: bytes, signer_of: SignerOf) -> ReleaseStatement:
    """Return the statement of an envelope, by whom it says.

    Raises
    ------
    DataError, SignatureInvalid
        It is no envelope of a release, or somebody else has signed it.
    """
    if len(line) > MOST_BYTES:
        raise DataError(f"release: expected at most {MOST_BYTES} bytes, received {len(line)}")
    envelope = Envelope.read(line)
    statement = ReleaseStatement.read(envelope.payload)
    whose = f"approver {statement.approver[:80]}"
    name = signer_of(envelope.certificate, envelope.signed, envelope.signature, whose)
    if name != statement.approver:
        raise SignatureInvalid(f"expected a certificate of {whose}, received one of {name}")
    return statement


def released_by(
    lines: Iterable[bytes],
    signer_of: SignerOf,
    rules: ReleaseAudit,
    job: tuple[str, str],
    files: Mapping[str, str],
) -> tuple[dict[str, ReleaseStatement], list[str]]:
    """Return the statements that release a job's files, by approver, and why others do not.

    Parameters
    ----------
    job : tuple of str
        Its identifier and digest.
    """
    good: dict[str, ReleaseStatement] = {}
    wrong = []
    for line in lines:
        try:
            statement = open_release(line, signer_of)
            if statement.approver not in rules.approvals.approvers:
                raise DataError(f"{statement.approver} is no approver of the job's [audit]")
            statement.check(rules, *job, files)
        except FederationError as error:
            wrong.append(str(error))
        else:
            good[statement.approver] = statement
    return good, wrong


def held_back(job_id: str, asked: Approvals, released: Collection[str]) -> str:
    """Return why a job's model is not handed out, and what would release it."""
    return (
        f"the model of job {job_id} is not released: {asked.described(released)}. One of them "
        "downloads it, audits it and runs `hedgerow approve RUN --release`"
    )
