"""A job's result on its way to the silos, and a silo's signature over it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import zstandard

from hedgerow.boosting.errors import LimitReached, ModelRejected
from hedgerow.boosting.exchange import Silo
from hedgerow.services.wire.acceptance import read_sent
from hedgerow.services.wire.job_view import SentPayloads
from hedgerow.services.wire.records import message_of, value_of

PIECE_BYTES = 1 << 20
"""Most bytes of a file in one message."""
MESSAGE_BYTES = 512
"""What a message takes beside its bytes, at least."""
MAX_RESULT_BYTES = 1 << 30
"""Longest result that an agent takes, as it travels and unfolded."""
_FILE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}(\.[A-Za-z0-9]{1,16}){1,2}")


def check_file_names(names: Iterable[str], sender: str) -> None:
    """Check that files of a result stay in the folder that they are written to.

    A name has letters, digits, dashes and a suffix: no path, and no folder of a silo's records.

    Raises
    ------
    ModelRejected
        One is another name; names the sender, and not the name, which may be anything.
    """
    if not all(_FILE_NAME.fullmatch(name) for name in names):
        raise ModelRejected(f"{sender}: expected files with a name and a suffix, without a path")


@dataclass(frozen=True, slots=True)
class ResultSignature:
    """A silo's signature: the result is the model that it has helped to train."""

    silo: str
    digest: bytes
    signature: bytes
    certificate: bytes
    provenance: bytes = b""
    """What the silo states of the run (:mod:`~hedgerow.services.wire.provenance`); the coordinator
    keeps it for the operator, and sends it to no other silo."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a silo's half of a job ended."""

    error: str = ""
    """What went wrong, without any data; empty where nothing did."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """Of the finished model on the silo's own test rows, by metric."""
    result: ResultSignature | None = None
    sent: tuple[SentPayloads, ...] = ()
    """What its ledger has of the job, by kind of exchange."""


@dataclass(frozen=True)
class JobResult:
    """A job's result: its files by name, what silos have signed of it, and :func:`packed` files."""

    files: Mapping[str, bytes]
    signatures: tuple[ResultSignature, ...] = ()
    packed: Mapping[str, bytes] | None = field(default=None, compare=False)

    @property
    def digest(self) -> bytes:
        """SHA-256 of the names and digests of the files, in order."""
        whole = hashlib.sha256(b"hedgerow/result-files/v1\0")
        for name, data in sorted(self.files.items()):
            whole.update(name.encode() + b"\0" + hashlib.sha256(data).digest())
        return whole.digest()


def packed(files: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """Return files compressed."""
    return {name: zstandard.compress(data) for name, data in files.items()}


def outcome_message(outcome: Outcome, request: Any) -> None:
    """Put an outcome into a request of ReportOutcome."""
    request.error = outcome.error
    for name, value in outcome.scores.items():
        request.scores.add(metric=name, value=value)
    if outcome.result is not None:
        message_of(outcome.result, request.result)
    for one in outcome.sent:
        message_of(one, request.sent.add())


def read_outcome(silo: Silo, request: Any) -> Outcome:
    """Return the outcome that a silo reports.

    Raises
    ------
    OfferRejected
        It says that it sent what no silo can send.
    """
    scores = {score.metric: score.value for score in request.scores}
    signed = value_of(ResultSignature, request.result) if request.HasField("result") else None
    return Outcome(request.error, scores, signed, read_sent(silo, request))


def result_message(job_id: str, job_digest: bytes, digest: bytes) -> bytes:
    """Return what a silo signs when it has checked a result."""
    return b"hedgerow/result/v1\0" + job_id.encode() + b"\0" + job_digest + digest


def pieces(
    response: type[Any], files: Mapping[str, bytes], packed: Mapping[str, bytes] | None = None
) -> Iterator[Any]:
    """Yield files as messages of at most 1 MiB; the first of each has the file's name.

    Parameters
    ----------
    packed : Mapping, optional
        The files compressed, to be sent instead.
    """
    for name, data in (files if packed is None else packed).items():
        for start in range(0, max(len(data), 1), PIECE_BYTES):
            message = response(data=data[start : start + PIECE_BYTES])
            if start == 0:
                message.artefact = name
                if packed is not None:
                    message.unfolded_bytes = len(files[name])
            yield message


def read_result(responses: Iterable[Any]) -> JobResult | None:
    """Return the result of a stream of FetchResult; None where there is none yet.

    Raises
    ------
    LimitReached
        It is longer than any model.
    ModelRejected
        A file's name is none.
    """
    signatures: tuple[ResultSignature, ...] = ()
    files: dict[str, list[bytes]] = {}
    unfolded: dict[str, int] = {}
    name, moved, n_unfolded = "", 0, 0
    for response in responses:
        if response.signatures:
            signatures = tuple(value_of(ResultSignature, one) for one in response.signatures)
        name = response.artefact or name
        moved += response.ByteSize() + MESSAGE_BYTES
        if response.HasField("unfolded_bytes"):
            unfolded[name] = response.unfolded_bytes
            n_unfolded += response.unfolded_bytes
        if max(moved, n_unfolded) > MAX_RESULT_BYTES:
            raise LimitReached(f"a result: expected at most {MAX_RESULT_BYTES} bytes")
        if name:
            check_file_names((name,), "the coordinator's result")
            files.setdefault(name, []).append(response.data)
    if not files:
        return None
    whole = {name: b"".join(parts) for name, parts in files.items()}
    for name, n_bytes in unfolded.items():
        whole[name] = _unfolded(whole.get(name, b""), n_bytes)
    return JobResult(whole, signatures)


def _unfolded(data: bytes, n_bytes: int) -> bytes:
    try:
        # The frame says its length, which is what is allocated.
        if zstandard.frame_content_size(data) == n_bytes:
            return zstandard.decompress(data)
    except zstandard.ZstdError as error:
        raise ModelRejected("the coordinator's result: a file cannot be decompressed") from error
    raise ModelRejected("the coordinator's result: a file does not have the announced length")
