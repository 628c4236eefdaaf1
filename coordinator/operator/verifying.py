"""Whether a run folder is what its silos have signed, without a network."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from hedgerow.boosting.errors import DataError, FederationError
from hedgerow.coordinator.operator import run_folder
from hedgerow.services.identity.certificates import (
    IdentityUnusable,
    Role,
    Subject,
    public_key_of,
    subject_of,
    verify_chain,
)
from hedgerow.services.process import ledgers
from hedgerow.services.process.terminal import utc
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file
from hedgerow.services.wire.provenance import FILE, Envelope, RunStatement

HEADINGS = ("part", "is", "")


@dataclass(frozen=True, slots=True)
class VerifiedPart:
    """What was found of one part of a run."""

    part: str
    state: str
    """``right``, ``wrong`` or ``missing``."""
    said: str = ""


def findings(
    folder: Path, roots: bytes, ledger_files: Mapping[str, Path] | None = None
) -> list[VerifiedPart]:
    """Compare a run folder with the statements of its silos.

    Parameters
    ----------
    roots : bytes
        The federation's CA certificates, PEM.
    ledger_files : mapping, optional
        Silos' own ledgers, which must have the line that the silo's statement ends with.

    Raises
    ------
    DataError
        It is no run folder.
    """
    try:
        report = run_folder.upgraded(json.loads((folder / "report.json").read_bytes()))
        took_part = {one["name"] for one in report["silos"] if one["state"] == "present"}
        artefacts = set(map(str, report["artefacts"]))
        told = {"job": str(report["job"]), "job_digest": str(report["job_digest"])}
        spec = job_file.load(folder / "job.toml")
        least = job_wire.decode(spec).least_silos
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder}: expected a run folder, with its report.json") from error
    told["spec_digest"] = hashlib.sha256(spec).hexdigest()
    try:
        text = (folder / FILE).read_bytes()
    except OSError:
        return [
            VerifiedPart(FILE, "missing", "no silo has signed: silos sign at a coordinator's end")
        ]
    found, statements = [], {}
    for number, line in enumerate(text.splitlines(), 1):
        try:
            statement, said = _signed(line, roots)
        except FederationError as error:
            found.append(VerifiedPart(f"{FILE} line {number}", "wrong", str(error)))
            continue
        name = f"signature of {statement.silo}"
        if statement.silo in statements or statement.silo not in statement.silos:
            why = "there are two" if statement.silo in statements else "it says it took no part"
            found.append(VerifiedPart(name, "wrong", why))
            continue
        statements[statement.silo] = statement
        found.append(VerifiedPart(name, "right", said))
    named = {silo for one in statements.values() for silo in one.silos}
    found += [
        VerifiedPart(
            f"signature of {silo}", "missing", "it took part, and has not signed the result"
        )
        for silo in sorted((took_part | named) - statements.keys())
    ]
    if len(statements) < max(least, 1):
        why = f"expected {max(least, 1)} silos or more, which the job needs, received"
        found.append(VerifiedPart(FILE, "missing", f"{why} statements of {len(statements)}"))
    for silo, one in sorted(statements.items()):
        found += _compared(folder, artefacts, told, silo, one)
    found += _equal(statements)
    for silo, path in (ledger_files or {}).items():
        found.append(_ledger(silo, path, statements.get(silo)))
    return found


def _signed(line: bytes, roots: bytes) -> tuple[RunStatement, str]:
    """Return a line's statement, once its signature is checked, and what is to be said of it."""
    envelope = Envelope.read(line)
    statement = RunStatement.read(envelope.payload)
    try:
        subject = subject_of(envelope.certificate)
        # One that has ended since was valid when it signed, or nobody would have taken it.
        verify_chain(envelope.certificate, roots, min(time.time(), subject.not_after))
    except IdentityUnusable as error:
        raise DataError(f"the certificate of {statement.silo}: {error}") from error
    _check(envelope, subject, statement.silo)
    ended = subject.not_after < time.time()
    with_whom = f"with {', '.join(statement.silos)}, for {statement.operator}; "
    about = with_whom + f"certificate {hashlib.sha256(envelope.certificate).hexdigest()[:16]}"
    return statement, about + (f", which ended on {utc(subject.not_after)}" if ended else "")


def _check(envelope: Envelope, subject: Subject, silo: str) -> None:
    if subject.role is not Role.SILO or subject.name != silo:
        raise DataError(f"expected a certificate of silo {silo}, received one of {subject.name}")
    public = public_key_of(envelope.certificate)
    try:
        if not isinstance(public, ec.EllipticCurvePublicKey):
            raise InvalidSignature
        public.verify(envelope.signature, envelope.signed, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        raise DataError(f"the signature is not that of silo {silo}") from None


def _compared(
    folder: Path, artefacts: set[str], told: Mapping[str, str], silo: str, one: RunStatement
) -> Iterator[VerifiedPart]:
    """Compare one silo's statement with the folder."""
    for name, digest in sorted(one.files.items()):
        part = f"{name}, by {silo}"
        try:
            own = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        except OSError:
            yield VerifiedPart(part, "missing", "the silo has signed it")
            continue
        yield (
            VerifiedPart(part, "right")
            if own == digest
            else VerifiedPart(
                part, "wrong", f"the silo has signed {digest[:16]}, the file has {own[:16]}"
            )
        )
    unsigned = sorted(artefacts - one.files.keys())
    if unsigned:
        yield VerifiedPart(
            f"{', '.join(unsigned)}, by {silo}", "wrong", "the silo has not signed it"
        )
    for what, key in (
        ("job.toml", "spec_digest"),
        ("the job's identifier", "job"),
        ("the signed job", "job_digest"),
    ):
        said = getattr(one, key)
        if said == told[key]:
            yield VerifiedPart(f"{what}, by {silo}", "right")
        else:
            yield VerifiedPart(f"{what}, by {silo}", "wrong", f"the silo has signed {said[:16]}")


def _equal(statements: Mapping[str, RunStatement]) -> Iterator[VerifiedPart]:
    """Say where silos have signed different things of one run."""
    for what in ("silos", "operator", "job_digest", "files"):
        said = {silo: repr(getattr(one, what)) for silo, one in sorted(statements.items())}
        if len(set(said.values())) > 1:
            first, *others = said
            other = next(silo for silo in others if said[silo] != said[first])
            yield VerifiedPart(what, "wrong", f"{first} and {other} have signed different ones")


def _ledger(silo: str, path: Path, statement: RunStatement | None) -> VerifiedPart:
    """Look in a silo's ledger for the line that its statement ends with."""
    part = f"ledger of {silo}"
    if statement is None:
        return VerifiedPart(part, "wrong", "the silo has signed no statement")
    of_job, seen = 0, False
    try:
        for entry, chain in ledgers.checked(path):
            if entry.silo != silo:
                return VerifiedPart(part, "wrong", f"it is of {entry.silo}")
            if not seen:
                of_job += entry.job == statement.job
                seen = chain == statement.ledger
    except (FederationError, OSError) as error:
        return VerifiedPart(part, "wrong", str(error))
    if not seen:
        return VerifiedPart(
            part, "wrong", "it has not the line that the silo's statement ends with"
        )
    return VerifiedPart(part, "right", f"{of_job} lines of the job until the silo signed")
