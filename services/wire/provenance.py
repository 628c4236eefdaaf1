"""What a silo states of a run that it took part in: an in-toto statement in a DSSE envelope.

Each silo states by itself, with its own key, which files the run has made, for which signed job,
with whom, and the end of its own ledger: nobody composes a statement in another's name. A run has
the silos' envelopes one a line, as ``*.intoto.jsonl`` has them elsewhere.

References
----------
in-toto Attestation Framework, Statement v1. DSSE, protocol v1.0.2 (secure-systems-lab).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from hedgerow.boosting.checks import read_as
from hedgerow.boosting.errors import DataError, ModelRejected
from hedgerow.boosting.ports import Identity
from hedgerow.services.wire.results import check_file_names

FILE = "provenance.intoto.jsonl"
"""Of a run folder: the envelopes of all silos that have signed, a line each."""
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "urn:hedgerow:run:v1"
PAYLOAD = "application/vnd.in-toto+json"
MOST_BYTES = 1 << 16
"""Longest envelope."""


@dataclass(frozen=True, slots=True)
class RunStatement:
    """What one silo states; all digests are SHA-256 in hex."""

    silo: str
    job: str
    job_digest: str
    """Of the signed statement of the job."""
    spec_digest: str
    """Of the job's specification, which ``job.toml`` is the text of."""
    operator: str
    """Name in the certificate that signed the job, or that its silos did."""
    silos: tuple[str, ...]
    """Who took part in the last attempt, sorted."""
    files: dict[str, str]
    """Digest of each file of the result."""
    ledger: str
    """Chain value of the last line of the silo's ledger."""
    versions: dict[str, str]
    """Of what ran in the silo."""

    def payload(self) -> bytes:
        """Return the in-toto statement, the same bytes wherever it is written."""
        own = {
            "silo": self.silo,
            "job": self.job,
            "job_digest": self.job_digest,
            "spec_digest": self.spec_digest,
            "operator": self.operator,
            "silos": list(self.silos),
            "ledger": self.ledger,
            "versions": dict(sorted(self.versions.items())),
        }
        return statement_payload(PREDICATE, self.files, own)

    @classmethod
    def read(cls, payload: bytes) -> RunStatement:
        """Return a statement; raises DataError where it is none of these."""
        expected = "provenance: expected a statement of a silo about a run"
        return read_statement(cls, PREDICATE, payload, expected)


class _Statement(Protocol):
    """What files somebody states something about; a dataclass of what is stated."""

    @property
    def files(self) -> dict[str, str]:
        """SHA-256 in hex of each file."""

    def payload(self) -> bytes:
        """Return the in-toto statement."""


Statement = TypeVar("Statement", bound=_Statement)


def statement_payload(kind: str, files: Mapping[str, str], own: Mapping[str, Any]) -> bytes:
    """Return an in-toto statement of a predicate's type and fields about files, by digest."""
    subject = [
        {"name": name, "digest": {"sha256": digest}} for name, digest in sorted(files.items())
    ]
    found = {"_type": STATEMENT, "subject": subject, "predicateType": kind, "predicate": own}
    return json.dumps(found, separators=(",", ":")).encode()


def read_statement(cls: type[Statement], kind: str, payload: bytes, expected: str) -> Statement:
    """Return a statement of a predicate's type.

    Parameters
    ----------
    expected : str
        What to say of anything else.

    Raises
    ------
    DataError
    """
    try:
        found = json.loads(payload)
        own, subject = found["predicate"], found["subject"]
        files = {one["name"]: one["digest"]["sha256"] for one in subject}
        if found["_type"] != STATEMENT or found["predicateType"] != kind:
            raise ValueError("another type")
        statement: Statement = read_as(cls, {**own, "files": files})
    except (ValueError, KeyError, TypeError, DataError, RecursionError) as error:
        raise DataError(expected) from error
    try:  # they are looked for in a folder
        check_file_names(statement.files, expected.partition(":")[0])
    except ModelRejected as error:
        raise DataError(str(error)) from error
    if statement.payload() != payload:  # every byte of it is checked
        raise DataError(f"{expected.partition(':')[0]}: a statement has more than one of these has")
    return statement


@dataclass(frozen=True, slots=True)
class Envelope:
    """A statement's bytes with a silo's signature over them."""

    payload: bytes
    signature: bytes
    certificate: bytes

    @property
    def signed(self) -> bytes:
        """What is signed: the pre-authentication encoding of DSSE."""
        return pre_authentication(self.payload)

    def line(self) -> bytes:
        """Return the envelope as a line of JSON."""
        key = hashlib.sha256(self.certificate).hexdigest()
        own = {"keyid": key, "sig": _text(self.signature), "cert": self.certificate.decode()}
        found = {"payloadType": PAYLOAD, "payload": _text(self.payload), "signatures": [own]}
        return json.dumps(found, separators=(",", ":")).encode()

    @classmethod
    def read(cls, line: bytes) -> Envelope:
        """Return an envelope; raises DataError for anything else."""
        try:
            found = json.loads(line)
            (own,) = found["signatures"]
            envelope = cls(_bytes(found["payload"]), _bytes(own["sig"]), own["cert"].encode())
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataError("provenance: expected an envelope with one signature") from error
        if envelope.line() != line:
            raise DataError("provenance: an envelope has more, or other text, than one of these")
        return envelope


def pre_authentication(payload: bytes) -> bytes:
    """Return what DSSE signs of an in-toto payload."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD), PAYLOAD.encode(), len(payload), payload)


def signed(statement: RunStatement, identity: Identity) -> bytes:
    """Return the envelope of a statement under a silo's key."""
    payload = statement.payload()
    signature = identity.sign(pre_authentication(payload))
    return Envelope(payload, signature, identity.certificate).line()


def stated_by(line: bytes) -> str:
    """Return the silo that an envelope is of, its signature unread; raises DataError."""
    return RunStatement.read(Envelope.read(line).payload).silo


def digests(files: Mapping[str, bytes]) -> dict[str, str]:
    """Return the digest of each file."""
    return {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())}


def lines(envelopes: Sequence[bytes]) -> bytes:
    """Return envelopes as :data:`FILE` has them."""
    return b"".join(line + b"\n" for line in envelopes)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("no base64") from error
