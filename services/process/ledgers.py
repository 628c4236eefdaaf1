"""A silo's record of what left it, as a file: its format, and what is found when it was altered.

One JSON object a line. ``chain`` is the SHA-256 of the previous line's chain and this line's other
fields, so that a deleted, changed or reordered line is found. The head, a small file beside the
ledger, has the number of lines and the last chain value, so that lines cut off the end are found
too. While an agent has the ledger open, spaces after the last line are room for the next ones.

The chain has no key: who can rewrite both files can make up a whole new ledger. What such a
ledger cannot do is to agree with the byte counts of the coordinator's record, or with a head that
was noted elsewhere; ``hedgerow ledger verify`` checks both.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hedgerow.boosting.checks import read_as
from hedgerow.boosting.errors import FOREIGN, DataError, FederationError

FIRST = "0" * 64
"""Chain value before the first line."""
HEAD_BYTES = 20 + 1 + 64 + 1
"""Size of the head: a count of 20 digits, a space, a chain value, a newline."""
ROOM = b" \0"
"""Bytes after the last line that stand for room; zeros are what a power cut may leave of it."""
DATA_PLANE = "Exchange"
"""Calls whose names begin so carry a job's payloads; the others are the control plane."""


PREVIOUS = "hedgerow.previous"
"""Field of a line that begins a new chain, or goes on with that of another file: the chain value
before it. A silo's ledger has none."""


class LedgerBroken(FederationError):
    """A line of the ledger is missing, changed or out of order; names the line."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One payload that left the silo, or several requests of one control call together."""

    time: float
    """Seconds since 1970."""
    silo: str
    peer: str
    """Who received it."""
    job: str
    """Empty for control calls that are of no job."""
    round: int
    level: int
    passing: int
    """``round``, ``level`` and ``passing``: -1 in control calls."""
    step: str
    call: str
    kind: str
    bytes: int
    """Protobuf bytes of all its frames."""
    sha256: str
    """Hex digest of the frames, concatenated."""
    reveals: str
    """What the payload reveals to its reader, in the strategy's own words."""
    count: int = 1
    """Payloads in this line; not in the file where it is 1."""
    discloses: str = ""
    """The class of what it tells (:class:`~hedgerow.boosting.exchange.Discloses`); empty in lines
    from before there were classes."""

    @property
    def is_control(self) -> bool:
        """Whether it is of the control plane and not of a strategy's exchanges."""
        return not self.call.startswith(DATA_PLANE)


def chain_of(previous: str, fields: dict[str, Any]) -> str:
    """Return the chain value of a line with these fields, after a line with another."""
    return _chain(previous, _canonical(fields))


def line_of(previous: str, fields: dict[str, Any]) -> tuple[str, bytes]:
    """Return the chain value of a line with these fields, and the line."""
    text = _canonical(fields)
    chain = _chain(previous, text)
    return chain, f'{text[:-1]},"chain":"{chain}"}}\n'.encode()


def _canonical(fields: dict[str, Any]) -> str:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))


def _chain(previous: str, text: str) -> str:
    return hashlib.sha256(f"{previous}\n{text}".encode()).hexdigest()


def head_of(path: Path) -> Path:
    """Return the path of a ledger's head."""
    return path.with_suffix(".head")


def checked(path: Path) -> Iterator[tuple[Entry, str]]:
    """Yield entries with their chain values, verifying chain and head on the way."""
    for number, (fields, last) in enumerate(linked(path), 1):
        try:
            entry: Entry = read_as(Entry, fields)
        except DataError as error:
            raise LedgerBroken(f"{path} line {number}: not a line of a ledger") from error
        yield entry, last


def linked(path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the fields of lines with their chain values, verifying chain and head on the way."""
    count, chain = read_head(path) or (0, FIRST)
    number, last = 0, FIRST
    for number, (fields, last) in enumerate(_lines(path), 1):
        if number == count and last != chain:
            raise LedgerBroken(f"{path} line {number}: not the line that the head names")
        yield fields, last
    if number < count:
        raise LedgerBroken(
            f"{path}: lines are missing at the end: the head counts {count}, there are {number}"
        )


def head_line(count: int, chain: str) -> bytes:
    """Return what the head of `count` lines holds."""
    return f"{count:020d} {chain}\n".encode()


def read_head(path: Path) -> tuple[int, str] | None:
    """Return the number of lines and the chain value in a ledger's head, if it has one.

    Raises
    ------
    LedgerBroken
        The head is no head.
    """
    try:
        data = head_of(path).read_bytes()
    except FileNotFoundError:
        return None
    if not data.strip(b"\0"):  # a power cut before anything of it was on disk
        return None
    try:
        count, chain = data.decode("ascii").split()
        if len(data) != HEAD_BYTES or len(chain) != len(FIRST):
            raise ValueError(len(data))
        return int(count), chain
    except ValueError as error:
        raise LedgerBroken(f"{head_of(path)} is no head of a ledger") from error


def _lines(path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    last = FIRST
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip(ROOM) and not line.endswith(b"\n"):
                return  # room: nothing follows, for it has no newline
            try:
                fields = json.loads(line)
                chain = fields.pop("chain")
            except FOREIGN as error:
                raise LedgerBroken(f"{path} line {number}: not a line of a ledger") from error
            before = fields.get(PREVIOUS, last)
            # Of a stream each process begins one; the first line of a file may go on.
            if chain != chain_of(before if before == FIRST or number == 1 else last, fields):
                raise LedgerBroken(
                    f"{path} line {number}: the chain does not hold; a line before or at this "
                    "place was changed, removed or moved"
                )
            last = chain
            yield fields, chain


def read(path: Path) -> Iterator[Entry]:
    """Yield the entries of a ledger, verifying the chain and the head on the way.

    Raises
    ------
    LedgerBroken
        At the first line that does not fit, or at the end when lines are missing there.
    """
    for entry, _ in checked(path):
        yield entry


@dataclass(frozen=True, slots=True)
class VerifiedLedger:
    """A ledger that holds."""

    path: Path
    entries: tuple[Entry, ...]
    head: str
    """Chain value of the last line; note it elsewhere to prove later that nothing was cut."""

    @property
    def silos(self) -> tuple[str, ...]:
        """Names of the silos in its lines."""
        return tuple(sorted({entry.silo for entry in self.entries}))

    def sent(self, job: str) -> int:
        """Return the data-plane bytes that left for a job: what ``bytes_up`` of a report counts."""
        return sum(e.bytes for e in self.entries if e.job == job and not e.is_control)

    def control(self, job: str) -> int:
        """Return the bytes that left in control calls for a job."""
        return sum(e.bytes for e in self.entries if e.job == job and e.is_control)


def verify(path: Path, *, silo: str = "", head: str = "") -> VerifiedLedger:
    """Read a whole ledger and return it if it holds.

    Parameters
    ----------
    silo : str
        Whose ledger it should be; empty for anybody's.
    head : str
        Chain value that must be in it: one that was noted earlier; empty for none.

    Raises
    ------
    LedgerBroken
        A line was changed, removed or moved, or it is another silo's ledger.
    """
    entries: list[Entry] = []
    last, met = FIRST, not head or head == FIRST
    for entry, last in checked(path):
        if silo and entry.silo != silo:
            raise LedgerBroken(
                f"{path} line {len(entries) + 1}: of silo {entry.silo}, not of {silo}"
            )
        entries.append(entry)
        met = met or last == head
    if not met:
        raise LedgerBroken(f"{path}: no line has the chain value {head[:16]}… that was noted")
    return VerifiedLedger(path, tuple(entries), last)


@dataclass(frozen=True, slots=True)
class Total:
    """Payloads of one kind that left for one job."""

    job: str
    step: str
    call: str
    kind: str
    peer: str
    payloads: int
    bytes: int
    first_time: float
    last_time: float
    reveals: str
    discloses: str


def totals(entries: Iterable[Entry]) -> tuple[Total, ...]:
    """Return what left by job and kind of payload, in the order of the first of each."""
    groups: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        key = (entry.job, entry.step, entry.call, entry.kind, entry.peer, entry.reveals)
        groups.setdefault(key, []).append(entry)
    return tuple(
        Total(
            job=group[0].job,
            step=group[0].step,
            call=group[0].call,
            kind=group[0].kind,
            peer=group[0].peer,
            payloads=sum(entry.count for entry in group),
            bytes=sum(entry.bytes for entry in group),
            first_time=min(entry.time for entry in group),
            last_time=max(entry.time for entry in group),
            reveals=group[0].reveals,
            discloses=group[0].discloses,
        )
        for group in groups.values()
    )


def copy(source: Path, target: Path) -> None:
    """Copy the lines of a ledger, without the room after them; the copy has no head."""
    data = source.read_bytes()
    target.write_bytes(data[: data.rfind(b"\n") + 1])
