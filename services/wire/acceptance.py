"""What a silo answers to a job, and to a question about one: records, and how they are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hedgerow.api.federation.v1.federation_service_pb2 import WorkKind
from hedgerow.boosting.dataset import Schema
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.exchange import Call, Silo
from hedgerow.boosting.work import LEAST_RATE, MOST_RATE, Rates, Work
from hedgerow.services.wire.bounds import cut
from hedgerow.services.wire.job_view import CHECKS, PreflightCheck, SentPayloads
from hedgerow.services.wire.records import value_of

MAX_ROWS = 1 << 48
"""Most rows that a silo may report."""
MAX_RATES = 32
"""Most kinds of work that it may announce a rate of."""
MOST_COLUMNS, MAX_COLUMN = 500, 128
"""Most names of columns that it may tell operators, and their longest, characters."""
MAX_SENT = 1 << 62
"""Most payloads, and bytes, that it may report to have sent for a job."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What a silo brings to a job, with its signature over the job's digest."""

    schema: Schema
    n_samples: int
    job_digest: bytes
    signature: bytes
    certificate: bytes
    min_silos: int = 0
    sums_version: int = 0


@dataclass(frozen=True, slots=True)
class Declined:
    """A silo takes no part in a job, and why."""

    reason: str


Answer = Acceptance | Declined


@dataclass(frozen=True, slots=True)
class PreflightAnswer:
    """What a silo would answer to a job; ``schema`` is None where it would not take part."""

    job_id: str
    checks: tuple[PreflightCheck, ...]
    schema: Schema | None = None
    n_samples: int = 0


def accept_message(job_id: str, job_digest: bytes) -> bytes:
    """Return what a silo signs when it accepts a job: it binds the exact job."""
    return b"hedgerow/accept/v1\0" + job_id.encode() + b"\0" + job_digest


def read_answer(silo: Silo, request: Any) -> Answer:
    """Return a silo's answer; its numbers size what the coordinator plans and stores.

    Raises
    ------
    OfferRejected
        There is no answer, or a number in it that no silo can have; names the silo.
    """
    given = request.WhichOneof("answer")
    if given is None:
        raise OfferRejected(f"{silo}: expected an answer, received none")
    if given == "declined":
        return Declined(request.declined)
    check_rows(silo, request.accepted.n_samples)
    try:
        return value_of(Acceptance, request.accepted)
    except OfferRejected as error:
        raise OfferRejected(f"{silo}: {error}") from error


def read_preflight_answer(silo: Silo, answer: Any) -> PreflightAnswer:
    """Return a silo's answer to a preflight.

    Raises
    ------
    OfferRejected
        Its checks are not those that there are, or it has a schema or a number of rows that no
        table can have; names the silo.
    """
    check_rows(silo, answer.n_samples)
    try:
        found = value_of(PreflightAnswer, answer)
    except OfferRejected as error:
        raise OfferRejected(f"{silo}: {error}") from error
    names = [check.name for check in found.checks]
    if names != [name for name in CHECKS if name in names]:
        raise OfferRejected(f"{silo}: expected checks of {', '.join(CHECKS)}, once and in order")
    return found


def read_sent(silo: Silo, request: Any) -> tuple[SentPayloads, ...]:
    """Return what a silo says that it sent, under its certificate's name, not the message's.

    Raises
    ------
    OfferRejected
        Payloads of no kind of exchange, or numbers that no silo has.
    """
    known = {call.value for call in Call}
    for one in request.sent:
        if one.method not in known:
            raise OfferRejected(f"{silo}: payloads of {cut(one.method, 40)!r}, no kind of exchange")
        if max(one.payloads, one.bytes) > MAX_SENT:
            raise OfferRejected(f"{silo}: more than {MAX_SENT} payloads or bytes sent")
    found = {one.method: SentPayloads(silo, one.method, one.payloads, one.bytes)
             for one in request.sent}  # fmt: skip
    return tuple(found.values())


def put_rates(rates: Rates, field: Any) -> None:
    """Write rates into a repeated field."""
    for kind, rate in rates.items():
        field.add(kind=f"WORK_KIND_{kind.name}", per_second=rate)


def read_rates(silo: Silo, field: Any) -> Rates:
    """Return the rates that a silo announces; kinds that are not known here are left out.

    Raises
    ------
    OfferRejected
        More rates than there may be, or one that no machine has; names the silo.
    """
    if len(field) > MAX_RATES:
        raise OfferRejected(f"{silo}: {len(field)} rates, at most {MAX_RATES} are accepted")
    for one in field:
        if not LEAST_RATE <= one.per_second <= MOST_RATE:
            raise OfferRejected(
                f"{silo}: expected rates from {LEAST_RATE:g} to {MOST_RATE:g} a second, received "
                f"{one.per_second:g}"
            )
    known = {WorkKind.Value(f"WORK_KIND_{kind.name}"): kind for kind in Work}
    return {known[one.kind]: one.per_second for one in field if one.kind in known}


def is_column(name: str) -> bool:
    """Return whether operators may be told a column's name: a short one of one line."""
    return len(name) <= MAX_COLUMN and name.isprintable()


def check_columns(silo: Silo, given: Sequence[str]) -> None:
    """Raise :class:`OfferRejected` for names of columns that no agent tells."""
    if len(given) > MOST_COLUMNS or not all(map(is_column, given)):
        raise OfferRejected(
            f"{silo}: columns: expected at most {MOST_COLUMNS} names of a line of {MAX_COLUMN} "
            f"characters, received {len(given)}, the longest of {max(map(len, given))}"
        )


def check_rows(silo: Silo, given: int) -> None:
    """Raise :class:`OfferRejected` for a number of rows that no silo has."""
    if given > MAX_ROWS:
        raise OfferRejected(f"{silo}: {given} rows, at most {MAX_ROWS} are accepted")
