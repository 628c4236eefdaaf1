"""A job as its operator signed it: a coordinator can drop or delay it, never make or repeat one.

The statement has a nonce of the operator's, and the job's identifier is that nonce. So a
silo that keeps the identifiers of accepted jobs recognises a repeated one. It keeps them until the
statement expires, and refuses the job from then on.

A job of scripts has no operator: each of its silos signs the same statement, which names all of
them, with a random number of each. Its nonce is made of the statement, so that nobody chooses it.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from hedgerow.api.federation.v1 import job_pb2
from hedgerow.boosting.errors import InvalidJob, OfferRejected, SignatureInvalid
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.job import MOST_APPROVERS, Approvals
from hedgerow.services.identity.certificates import Role, subject_of
from hedgerow.services.identity.peers import PEOPLE, FileIdentity, signer_at
from hedgerow.services.wire.bounds import check_request
from hedgerow.services.wire.records import message_of, value_of

FILE = "signed-job.binpb"
"""Of a run folder: the job as it was signed, with its approvals, a serialised SignedJob."""
LABEL = b"hedgerow/job/v1\0"
PREFLIGHT_LABEL = b"hedgerow/preflight/v1\0"
"""What is signed before the statement of a job that is only to be checked: nobody can start it."""
JOINT_LABEL = b"hedgerow/joint-job/v1\0"
"""What each of its silos signs of a job before its own name and the statement's digest."""
APPROVAL_LABEL = b"hedgerow/job-approval/v1\0"
"""What each approver of a job signs before the statement's digest."""
ITS_SILOS = "all its silos"
"""Stands for the operator of a job that its silos have signed; no certificate has such a name."""
PREFLIGHT_DAYS = 10 / 1440
NONCE_BYTES = 16
VIEW_VERSION = 1
DEFAULT_DAYS = 7.0
"""How long a job may start, and start again, where its operator does not say."""
MAX_DAYS = 30.0
LEAST_SITES, MOST_SITES = 2, 1500
"""Sites of a job of scripts: a silo alone could have any number of jobs; a message has a limit."""
SIGNERS = (Role.OPERATOR, Role.ADMIN)
READERS = PEOPLE


@dataclass(frozen=True, slots=True)
class SiteSignature:
    """A silo's signature of a job that all its silos sign, and its certificate (PEM)."""

    signature: bytes
    certificate: bytes


@dataclass(frozen=True, slots=True)
class SignedSite:
    """A silo whose script runs a job with the others', and the random bytes of this run of it."""

    silo: str
    nonce: bytes


@dataclass(frozen=True, slots=True)
class JobApproval:
    """An approver's signature of an operator's job, and its certificate (PEM)."""

    signature: bytes
    certificate: bytes

    @property
    def approver(self) -> str:
        """The name in the certificate; raises IdentityUnusable where it has none."""
        return subject_of(self.certificate).name


@dataclass(frozen=True, slots=True)
class SignedJob:
    """A statement, as bytes, with its operator's signature and certificate (PEM), or its sites'.

    Approvals are added to it later, and are not of what the digest covers.
    """

    statement: bytes
    signature: bytes
    certificate: bytes
    sites: tuple[SiteSignature, ...] = ()
    approvals: tuple[JobApproval, ...] = ()

    @property
    def approved(self) -> tuple[str, ...]:
        """Who has approved it, where the approvals have been checked."""
        return tuple(sorted(one.approver for one in self.approvals))

    def approved_by(self, approval: JobApproval) -> SignedJob:
        """Return the job with one approval more, in place of an earlier one of the same person."""
        name = approval.approver
        others = (one for one in self.approvals if one.approver != name)
        return replace(self, approvals=(*others, approval))

    @property
    def digest(self) -> bytes:
        """SHA-256 of the statement: it identifies the job, its nonce included."""
        return sha256(self.statement).digest()

    @property
    def spec(self) -> bytes:
        """The serialised JobSpec of a statement that has been checked."""
        return job_pb2.JobStatement.FromString(self.statement).spec

    @property
    def silos(self) -> tuple[str, ...]:
        """The sites of a statement that has been checked."""
        found = job_pb2.JobStatement.FromString(self.statement).sites
        return tuple(site.silo for site in found)

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
    sites: tuple[SignedSite, ...] = ()
    """Who signs it, in the order of their ranks; none where an operator does."""
    turn: int = 0
    """Number of the job among those of these sites, from one."""

    @property
    def job_id(self) -> str:
        """The job's identifier: the nonce in letters, digits, ``-`` and ``_``."""
        return base64.urlsafe_b64encode(self.nonce).decode().rstrip("=")

    def serialise(self) -> bytes:
        """Return the message, serialised: what is signed."""
        return message_of(self, job_pb2.JobStatement()).SerializeToString(deterministic=True)

    @property
    def silos(self) -> tuple[str, ...]:
        """Names of its sites, in the order of their ranks."""
        return tuple(site.silo for site in self.sites)

    @property
    def of_sites(self) -> JobStatement:
        """The statement with the nonce that one of its sites has."""
        message = replace(self, nonce=b"").serialise()
        nonce = sha256(b"hedgerow/joint-nonce/v1\0" + message).digest()[:NONCE_BYTES]
        # An identifier that began with a dash would be read as an option.
        return replace(self, nonce=bytes((nonce[0] & 0x7F,)) + nonce[1:])


@dataclass(frozen=True, slots=True)
class OpenedJob:
    """A signed job that has been checked.

    ``operator`` is the name in the signer's certificate, or :data:`ITS_SILOS`.
    """

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


def sign_as_site(statement: bytes, identity: FileIdentity) -> SiteSignature:
    """Return the signature of the identity's silo under a statement with sites."""
    signed = identity.sign(site_message(statement, identity.subject.name))
    return SiteSignature(signed, identity.certificate)


def site_message(statement: bytes, silo: str) -> bytes:
    """Return what a silo signs of a statement with sites."""
    return JOINT_LABEL + silo.encode() + b"\0" + sha256(statement).digest()


def approve_job(signed: SignedJob, identity: FileIdentity) -> JobApproval:
    """Return the approval of a job by the identity's holder, who has read it."""
    return JobApproval(identity.sign(_approval_message(signed)), identity.certificate)


def _approval_message(signed: SignedJob) -> bytes:
    # With who submitted it: another operator can sign the same statement.
    return APPROVAL_LABEL + signed.digest + sha256(signed.certificate).digest()


def check_approval(
    signed: SignedJob,
    approval: JobApproval,
    approver: Callable[[bytes, bytes, bytes, str], str],
) -> str:
    """Return who has approved a job by an approval; raises SignatureInvalid where nobody has.

    Parameters
    ----------
    approver : callable
        :meth:`~hedgerow.services.identity.peers.FileIdentity.approver` of who checks.
    """
    message, whose = _approval_message(signed), "an approver of the job"
    return approver(approval.certificate, message, approval.signature, whose)


def check_approvals(opened: OpenedJob, asked: Approvals, identity: FileIdentity) -> None:
    """Check that enough of a job's approvers have signed it, as a silo does.

    The operator's own approval does not count, nor does one whose certificate has ended or is
    revoked.

    Raises
    ------
    SignatureInvalid
        They have not; says who has, and what is wrong with the others.
    """
    if not asked.approvers:
        return
    signed, names, wrong = opened.signed, set[str](), ""
    for approval in signed.approvals[:MOST_APPROVERS]:
        try:
            names.add(check_approval(signed, approval, identity.approver))
        except SignatureInvalid as error:
            wrong = f"; {error}"
    counted = asked.without(opened.operator)
    if counted.missing(names):
        raise SignatureInvalid(
            f"job {opened.statement.job_id} is not approved: {counted.described(names)}{wrong}"
        )


def read_signed(data: bytes, roots: bytes) -> tuple[SignedJob, str, tuple[str, ...]]:
    """Return the job of :data:`FILE`, who has signed it and who has approved it; long after, too.

    Parameters
    ----------
    roots : bytes
        The federation's CA certificates, PEM.

    Raises
    ------
    SignatureInvalid, InvalidJob
        A signature is not of this job, or not of whom it should be.
    """
    try:
        signed = SignedJob.parse(data)
    except (DecodeError, OfferRejected) as error:
        raise InvalidJob("expected a SignedJob") from error
    statement = read_statement(signed.statement, "the signed job")

    def verify(silo: Silo, certificate: bytes, message: bytes, signature: bytes) -> None:
        given = (certificate, message, signature, f"silo {silo}")
        signer_at(*given, (Role.SILO,), roots, name=silo)

    operator = ITS_SILOS
    if statement.silos:
        _check_sites(signed, statement, verify, LABEL)
    else:
        given = (signed.certificate, LABEL + signed.statement, signed.signature)
        operator = signer_at(*given, "the job's operator", SIGNERS, roots).name
    names = set()
    for approval in signed.approvals:
        given = (approval.certificate, _approval_message(signed), approval.signature)
        names.add(signer_at(*given, "an approver of the job", PEOPLE, roots).name)
    return signed, operator, tuple(sorted(names))


def open_job(signed: SignedJob, identity: FileIdentity, label: bytes = LABEL) -> OpenedJob:
    """Check a signed job, or a preflight, as a party of the federation, by its own clock.

    Raises
    ------
    SignatureInvalid
        No operator or admin of the federation has signed it, nor all silos that it names.
    InvalidJob
        Its statement is malformed, of another federation or version, or has expired.
    OfferRejected
        Its job file is too large.
    """
    signer = ""
    if not signed.sites:
        signer = identity.signer_of(
            signed.certificate,
            label + signed.statement,
            signed.signature,
            "the job's operator",
            SIGNERS,
        ).name
    whose = f"the statement of operator {signer}" if signer else "the statement of the job's silos"
    statement = read_statement(signed.statement, whose)
    if signer and (statement.sites or statement.turn):
        raise SignatureInvalid(f"job {statement.job_id} names sites, and operator {signer} signed")
    if not signer:
        _check_sites(signed, statement, identity.verify, label)
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
        raise InvalidJob(f"job {statement.job_id} of {whose.partition(' of ')[2]} has expired")
    return OpenedJob(signed, statement, signer or ITS_SILOS)


def read_statement(data: bytes, whose: str) -> JobStatement:
    """Return the statement in bytes that somebody signed; ``whose`` is for errors.

    Raises
    ------
    InvalidJob
        They are no statement that this version knows.
    OfferRejected
        Its job file is too large.
    """
    try:
        message = job_pb2.JobStatement.FromString(data)
        statement = value_of(JobStatement, message)
        spec = job_pb2.JobSpec.FromString(statement.spec)
    except (DecodeError, OfferRejected, ValueError) as error:
        raise InvalidJob(f"{whose} is no JobStatement") from error
    check_request(spec, len(statement.spec))
    if len(statement.nonce) != NONCE_BYTES or len(UnknownFieldSet(message)):
        raise InvalidJob(
            f"{whose}: expected a nonce of {NONCE_BYTES} bytes and no field that this version does "
            f"not know, received {len(statement.nonce)} bytes"
        )
    return statement


def _check_sites(
    signed: SignedJob,
    statement: JobStatement,
    verify: Callable[[Silo, bytes, bytes, bytes], None],
    label: bytes,
) -> None:
    """Check that a job's silos are those that its statement names, and that each has signed it."""
    job_id, silos = statement.job_id, statement.silos
    if label != LABEL or signed.signature or signed.certificate or signed.approvals:
        raise SignatureInvalid(f"job {job_id} of its silos has something else signed beside it")
    if len(signed.sites) != len(silos):
        raise SignatureInvalid(
            f"job {job_id}: expected the signatures of {', '.join(silos)}, received "
            f"{len(signed.sites)}"
        )
    for silo, own in zip(silos, signed.sites, strict=True):
        message = site_message(signed.statement, silo)
        verify(Silo(silo), own.certificate, message, own.signature)
    if len(silos) < LEAST_SITES:
        raise InvalidJob(f"job {job_id}: expected at least {LEAST_SITES} sites, received {silos}")
    spec = job_pb2.JobSpec.FromString(statement.spec)
    if spec.approvers:
        raise InvalidJob(
            f"job {job_id}: expected no approvers of a job that all its silos sign, received "
            f"{', '.join(spec.approvers)[:200]}"
        )
    short = [site.silo for site in statement.sites if len(site.nonce) != NONCE_BYTES]
    if sorted(set(silos)) != list(spec.silos) or len(set(silos)) != len(silos) or short:
        raise InvalidJob(
            f"job {job_id}: expected sites that are its silos, {', '.join(spec.silos)}, each with "
            f"{NONCE_BYTES} bytes, received {', '.join(silos)}"
        )
    if statement.of_sites.nonce != statement.nonce or not statement.turn:
        raise InvalidJob(f"job {job_id}: its nonce is not that of its statement")
