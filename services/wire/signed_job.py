"""A job as its operator signed it: a coordinator can drop or delay it, never make or repeat one.

The statement has a nonce of the operator's, and the job's identifier is that nonce. So a
silo that keeps the identifiers of accepted jobs recognises a repeated one. It keeps them until the
statement expires, and refuses the job from then on.
"""

from __future__ import annotations

import base64
import secrets
from dataclasses import dataclass
from hashlib import sha256

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from hedgerow.api.federation.v1 import job_pb2
from hedgerow.boosting.errors import InvalidJob, OfferRejected
from hedgerow.services.identity.certificates import Role
from hedgerow.services.identity.peers import FileIdentity
from hedgerow.services.wire.bounds import check_request
from hedgerow.services.wire.records import message_of, value_of

LABEL = b"hedgerow/job/v1\0"
PREFLIGHT_LABEL = b"hedgerow/preflight/v1\0"
"""What is signed before the statement of a job that is only to be checked: nobody can start it."""
PREFLIGHT_DAYS = 10 / 1440
NONCE_BYTES = 16
VIEW_VERSION = 1
DEFAULT_DAYS = 7.0
"""How long a job may start, and start again, where its operator does not say."""
MAX_DAYS = 30.0
SIGNERS = (Role.OPERATOR, Role.ADMIN)
READERS = (*SIGNERS, Role.VIEWER)


@dataclass(frozen=True, slots=True)
class SignedJob:
    """A statement of an operator, as bytes, with the signature and its certificate (PEM)."""

    statement: bytes
    signature: bytes
    certificate: bytes

    @property
    def digest(self) -> bytes:
        """SHA-256 of the statement: it identifies the job, its nonce included."""
        return sha256(self.statement).digest()

    @property
    def spec(self) -> bytes:
        """The serialised JobSpec of a statement that has been checked."""
        return job_pb2.JobStatement.FromString(self.statement).spec

    @classmethod
    def parse(cls, data: bytes) -> SignedJob:
        """Return the signed job of a serialised message."""
        return value_of(cls, job_pb2.SignedJob.FromString(data))

    def serialise(self) -> bytes:
        """Return the message, serialised; :meth:`parse` gives the same back."""
        return message_of(self, job_pb2.SignedJob()).SerializeToString(deterministic=True)


@dataclass(frozen=True, slots=True)
class JobStatement:
    """What an operator signs."""

    federation: str
    nonce: bytes
    """Bytes of length 16. One nonce is one job, over any number of attempts."""
    spec: bytes
    """A serialised JobSpec."""
    not_after: float
    """Seconds since 1970."""
    view_version: int

    @property
    def job_id(self) -> str:
        """The job's identifier: the nonce in letters, digits, ``-`` and ``_``."""
        return base64.urlsafe_b64encode(self.nonce).decode().rstrip("=")

    def serialise(self) -> bytes:
        """Return the message, serialised: what is signed."""
        return message_of(self, job_pb2.JobStatement()).SerializeToString(deterministic=True)


@dataclass(frozen=True, slots=True)
class OpenedJob:
    """A signed job that has been checked; ``operator`` is the name in the signer's certificate."""

    signed: SignedJob
    statement: JobStatement
    operator: str


def sign_job(
    spec: bytes, identity: FileIdentity, days: float = DEFAULT_DAYS, label: bytes = LABEL
) -> SignedJob:
    """Return a new job of the identity's holder.

    Parameters
    ----------
    days : float
        For how long attempts of the job may begin; the signer's certificate may end earlier.
    label : bytes
        What the signature is for: a job, or a preflight.

    Raises
    ------
    InvalidJob
        ``days`` is out of range.
    """
    if not 0.0 < days <= MAX_DAYS:
        raise InvalidJob(f"a job may start within at most {MAX_DAYS:g} days; {days:g} were given")
    nonce = secrets.token_bytes(NONCE_BYTES)
    while nonce[0] >> 2 == 62:  # an identifier that began with a dash would be read as an option
        nonce = secrets.token_bytes(NONCE_BYTES)
    not_after = int(min(identity.now() + days * 86400.0, identity.subject.not_after))
    content = JobStatement(identity.subject.federation, nonce, spec, not_after, VIEW_VERSION)
    statement = content.serialise()
    return SignedJob(statement, identity.sign(label + statement), identity.certificate)


def open_job(signed: SignedJob, identity: FileIdentity, label: bytes = LABEL) -> OpenedJob:
    """Check a signed job, or a preflight, as a party of the federation, by its own clock.

    Raises
    ------
    SignatureInvalid
        No operator or admin of the federation has signed it.
    InvalidJob
        Its statement is malformed, of another federation or version, or has expired.
    OfferRejected
        Its job file is too large.
    """
    signer = identity.signer_of(
        signed.certificate,
        label + signed.statement,
        signed.signature,
        "the job's operator",
        SIGNERS,
    )
    try:
        message = job_pb2.JobStatement.FromString(signed.statement)
        statement = value_of(JobStatement, message)
        spec = job_pb2.JobSpec.FromString(statement.spec)
    except (DecodeError, OfferRejected, ValueError) as error:
        raise InvalidJob(f"the statement of operator {signer.name} is no JobStatement") from error
    check_request(spec, len(statement.spec))
    if len(statement.nonce) != NONCE_BYTES or len(UnknownFieldSet(message)):
        raise InvalidJob(
            f"the statement of operator {signer.name}: expected a nonce of {NONCE_BYTES} bytes and "
            f"no field that this version does not know, received {len(statement.nonce)} bytes"
        )
    if statement.view_version != VIEW_VERSION:
        raise InvalidJob(
            f"job {statement.job_id} has view version {statement.view_version}; this version "
            f"knows {VIEW_VERSION}"
        )
    if statement.federation != identity.subject.federation:
        raise InvalidJob(
            f"job {statement.job_id} is for federation {statement.federation}, not for "
            f"{identity.subject.federation}"
        )
    if identity.now() > statement.not_after:
        raise InvalidJob(f"job {statement.job_id} of operator {signer.name} has expired")
    return OpenedJob(signed, statement, signer.name)
