"""Whether a run folder is what its silos have signed, without a network."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hedgerow.boosting.errors import DataError, FederationError
from hedgerow.boosting.job import Approvals, ReleaseAudit
from hedgerow.coordinator.operator import run_folder
from hedgerow.services.identity.certificates import Role
from hedgerow.services.identity.peers import PEOPLE, signer_at
from hedgerow.services.process import ledgers
from hedgerow.services.process.terminal import utc
from hedgerow.services.wire import job as job_wire
from hedgerow.services.wire import job_file, release, signed_job
from hedgerow.services.wire.provenance import FILE, Envelope, RunStatement
from hedgerow.services.wire.signed_job import SignedJob

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
        # The model is read from the file that the report names: it must be one that is signed.
        artefacts = {*map(str, report["artefacts"]), str(report.get("model", ""))} - {""}
        told = {"job": str(report["job"]), "job_digest": str(report["job_digest"])}
        spec = job_file.load(folder / "job.toml")
        asked = job_wire.decode(spec)
        least, allowed = asked.least_silos, set(asked.silos)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{folder}: expected a run folder, with its report.json") from error
    told["spec_digest"] = hashlib.sha256(spec).hexdigest()
    job = _job_of(folder, roots)
    operator = "" if isinstance(job, VerifiedPart) else job[1]
    found, statements = [*_released(folder, artefacts, told, spec, roots, operator)], {}
    try:
        text = (folder / FILE).read_bytes()
    except OSError:
        why = "no silo has signed: silos sign at a coordinator's end"
        return [VerifiedPart(FILE, "missing", why), *found]
    for number, line in enumerate(text.splitlines(), 1):
        try:
            statement, said = _signed(line, roots)
        except FederationError as error:
            found.append(VerifiedPart(f"{FILE} line {number}", "wrong", str(error)))
            continue
        name = f"signature of {statement.silo}"
        strangers = sorted(set(statement.silos) - allowed) if allowed else []
        why = f"the job does not have silo {strangers[0]}" if strangers else ""
        if statement.silo in statements or statement.silo not in statement.silos:
            why = "there are two" if statement.silo in statements else "it says it took no part"
        if why:
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
    found += _signed_job(job, told, spec, {one.operator for one in statements.values()})
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
    # A certificate that has ended since was valid when it signed, or nobody would have taken it.
    signed = (envelope.certificate, envelope.signed, envelope.signature)
    whose = f"silo {statement.silo}"
    subject = signer_at(*signed, whose, (Role.SILO,), roots, name=statement.silo)
    ended = subject.not_after < time.time()
    with_whom = f"with {', '.join(statement.silos)}, for {statement.operator}; "
    about = with_whom + f"certificate {hashlib.sha256(envelope.certificate).hexdigest()[:16]}"
    return statement, about + (f", which ended on {utc(subject.not_after)}" if ended else "")


def _job_of(folder: Path, roots: bytes) -> tuple[SignedJob, str, tuple[str, ...]] | VerifiedPart:
    """Return a run folder's job, who has signed and who approved it; or what is wrong with it."""
    raw = _bytes_of(folder / signed_job.FILE)
    if not raw:
        return VerifiedPart(signed_job.FILE, "missing", "the job as its operator has signed it")
    try:
        return signed_job.read_signed(raw, roots)
    except FederationError as error:
        return VerifiedPart(signed_job.FILE, "wrong", str(error))


def _released(
    folder: Path,
    artefacts: set[str],
    told: Mapping[str, str],
    spec: bytes,
    roots: bytes,
    operator: str,
) -> Iterator[VerifiedPart]:
    """Compare the folder with what the approvers of its release have signed."""
    rules = job_wire.decode(spec).audit
    text = _bytes_of(folder / release.FILE)
    if rules is None and not text:
        return

    def signer(certificate: bytes, message: bytes, signature: bytes, whose: str) -> str:
        return signer_at(certificate, message, signature, whose, PEOPLE, roots).name

    asked = (rules or ReleaseAudit(Approvals())).without(operator)
    files = {name: hashlib.sha256(_bytes_of(folder / name)).hexdigest() for name in artefacts}
    good, wrong = release.released_by(
        text.splitlines(), signer, asked, (told["job"], told["job_digest"]), files
    )
    for why in wrong:
        yield VerifiedPart(release.FILE, "wrong", why)
    for name, one in sorted(good.items()):
        digest = one.files[release.AUDIT]
        limits = ", ".join(f"{key} {value:g}" for key, value in asked.limits) or "no limits"
        yield VerifiedPart(f"audit of {name}", "right", f"SHA-256 {digest}; within {limits}")
    if asked.approvals.missing(good):
        yield VerifiedPart(release.FILE, "missing", asked.approvals.described(good))


def _signed_job(
    job: tuple[SignedJob, str, tuple[str, ...]] | VerifiedPart,
    told: Mapping[str, str],
    spec: bytes,
    operators: set[str],
) -> Iterator[VerifiedPart]:
    """Say who has signed the job, and approved it."""
    if isinstance(job, VerifiedPart):
        yield job
        return
    signed, operator, approved = job
    if signed.digest.hex() != told["job_digest"] or operators - {operator}:
        why = f"it is another job, of {operator}, than the one that the silos have signed"
        yield VerifiedPart(signed_job.FILE, "wrong", why)
        return
    statement = signed_job.read_statement(signed.statement, f"the job of {operator}")
    own = (statement.job_id, hashlib.sha256(statement.spec).hexdigest())
    if own != (told["job"], told["spec_digest"]):
        why = f"{operator} has signed another job.toml, or identifier"
        yield VerifiedPart(signed_job.FILE, "wrong", why)
        return
    yield VerifiedPart("signature of the job", "right", f"by {operator}")
    asked = job_wire.decode(spec).approvals.without(operator)
    for name in approved:
        state = "right" if name in asked.approvers else "wrong"
        yield VerifiedPart(f"approval of {name}", state, "" if state == "right" else "not asked")
    if asked.missing(approved):
        yield VerifiedPart("approvals", "missing", asked.described(approved))


def _bytes_of(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


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
