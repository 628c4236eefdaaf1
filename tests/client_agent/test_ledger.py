"""The silo's ledger: what left is on disk first, and whatever is done to the record is found."""

from __future__ import annotations

import hashlib
import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.boosting.errors import PolicyDeclined
from hedgerow.boosting.exchange import Call, Discloses, ExchangeKey, Step
from hedgerow.client_agent.ledger import ROOM_BYTES, SETTLE_SECONDS, LedgerFull, SiloLedger
from hedgerow.services.process.ledgers import (
    Entry,
    LedgerBroken,
    copy,
    head_of,
    read,
    totals,
    verify,
)
from hedgerow.services.rpc.control_calls import TELLING


@dataclass(frozen=True)
class Words:
    """A payload."""


STEP = Step("trees", Call.TREES, Words, Words, "trees that fit this silo's rows", Discloses.TREES)


def opened(path: Path, silo: str = "north", max_bytes: int | None = None) -> SiloLedger:
    return SiloLedger(path, silo, "coordinator", lambda: 1_700_000_000.25, max_bytes)


def write(ledger: SiloLedger, *sizes: int, job: str = "job-1") -> None:
    for number, size in enumerate(sizes):
        ledger.record(
            job_id=job,
            step=STEP,
            at=ExchangeKey(number, 1, 2),
            kind="Words",
            frames=[b"k", b"x" * (size - 1)],
        )


def filled(path: Path, n: int = 6, silo: str = "north") -> Path:
    ledger = opened(path, silo)
    write(ledger, *range(10, 10 + n))
    ledger.close()
    return path


def written(path: Path) -> bytes:
    """What a ledger holds, without the room after its lines."""
    return path.read_bytes().rstrip(b" ")


@contextmanager
def disk_full_at(n_bytes: int) -> Iterator[None]:
    """The kernel lets no file of this process grow beyond ``n_bytes``."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_line_says_what_left_when_to_whom_and_what_it_tells(tmp_path: Path) -> None:
    entry = next(read(filled(tmp_path / "ledger.jsonl", 1)))
    assert entry == Entry(
        time=1_700_000_000.25,
        silo="north",
        peer="coordinator",
        job="job-1",
        round=0,
        level=1,
        passing=2,
        step="trees",
        call="ExchangeTrees",
        kind="Words",
        bytes=10,
        sha256=hashlib.sha256(b"k" + b"x" * 9).hexdigest(),
        reveals="trees that fit this silo's rows",
        discloses="trees",
    )


def test_a_line_is_on_disk_when_record_returns(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = opened(path)
    for n in range(1, 4):
        write(ledger, 20)
        on_disk = written(path)
        assert len(on_disk.splitlines()) == n
        assert on_disk.endswith(b"\n")
    ledger.close()


@given(data=st.data(), n=st.integers(2, 6))
@settings(max_examples=60)
def test_any_deleted_changed_or_moved_line_is_found(
    data: st.DataObject, n: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = filled(tmp_path_factory.mktemp("l") / "ledger.jsonl", n)
    lines = path.read_bytes().splitlines(keepends=True)
    at = data.draw(st.integers(0, n - 1), "line")
    damage = data.draw(st.sampled_from(["delete", "change", "swap", "repeat"]), "damage")
    if damage == "delete":
        del lines[at]
    elif damage == "repeat":
        lines.insert(at, lines[at])
    elif damage == "swap":
        other = data.draw(st.integers(0, n - 1).filter(lambda k: k != at), "with")
        lines[at], lines[other] = lines[other], lines[at]
    else:
        fields = json.loads(lines[at])
        key = data.draw(st.sampled_from(sorted(fields)), "field")
        fields[key] = fields[key] + 1 if isinstance(fields[key], int | float) else "other"
        lines[at] = json.dumps(fields, separators=(",", ":")).encode() + b"\n"
    path.write_bytes(b"".join(lines))
    with pytest.raises(LedgerBroken):
        verify(path)
    with pytest.raises(LedgerBroken):
        opened(path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda lines: lines[:3] + lines[4:], "line 4: the chain does not hold"),
        (lambda lines: lines[:-2], "missing at the end: the head counts 6, there are 4"),
        (lambda lines: [], "missing at the end: the head counts 6, there are 0"),
        (lambda lines: [*lines[:2], b"\xff\xfe{}\n", *lines[2:]], "line 3: not a line of a ledger"),
        (lambda lines: [*lines[:2], b"[1]\n", *lines[2:]], "line 3: not a line of a ledger"),
        (lambda lines: [*lines, b"{}\n"], "line 7: not a line of a ledger"),
    ],
)
def test_the_damaged_line_is_named(tmp_path: Path, damage: object, message: str) -> None:
    path = filled(tmp_path / "ledger.jsonl")
    path.write_bytes(b"".join(damage(path.read_bytes().splitlines(keepends=True))))  # type: ignore[operator]
    with pytest.raises(LedgerBroken, match=message):
        verify(path)


def test_a_ledger_made_up_anew_does_not_have_the_head_that_was_noted(tmp_path: Path) -> None:
    noted = verify(filled(tmp_path / "ledger.jsonl", 4)).head
    grown = opened(tmp_path / "ledger.jsonl")
    write(grown, 50, 51)
    grown.close()
    assert len(verify(tmp_path / "ledger.jsonl", head=noted).entries) == 6
    other = filled(tmp_path / "other.jsonl", 3)
    assert len(verify(other).entries) == 3
    with pytest.raises(LedgerBroken, match="no line has the chain value"):
        verify(other, head=noted)


def test_a_ledger_replaced_together_with_its_head_is_told_by_the_chain_value(
    tmp_path: Path,
) -> None:
    path, other = filled(tmp_path / "a.jsonl", 4), filled(tmp_path / "b.jsonl", 5, "south")
    head_of(path).write_bytes(head_of(other).read_bytes().replace(b"5 ", b"4 "))
    with pytest.raises(LedgerBroken, match="line 4: not the line that the head names"):
        verify(path)


@pytest.mark.parametrize("text", [b"nonsense\n", b"12 " + b"0" * 64 + b"\n", b"\xff" * 86])
def test_a_head_that_is_none_is_refused(tmp_path: Path, text: bytes) -> None:
    path = filled(tmp_path / "ledger.jsonl")
    head_of(path).write_bytes(text)
    with pytest.raises(LedgerBroken, match="no head of a ledger"):
        verify(path)


def test_a_ledger_that_was_removed_beside_its_head_is_noticed(tmp_path: Path) -> None:
    filled(tmp_path / "ledger.jsonl").unlink()
    with pytest.raises(LedgerBroken, match=r"is missing, but its head is there"):
        opened(tmp_path / "ledger.jsonl")


def test_an_agent_does_not_write_into_another_silos_ledger(tmp_path: Path) -> None:
    path = filled(tmp_path / "ledger.jsonl", silo="south")
    with pytest.raises(LedgerBroken, match="is the ledger of south, not of north"):
        opened(path, "north")
    with pytest.raises(LedgerBroken, match="line 1: of silo south, not of north"):
        verify(path, silo="north")


def test_a_line_cut_by_a_dying_process_is_dropped_and_the_chain_goes_on(tmp_path: Path) -> None:
    path = filled(tmp_path / "ledger.jsonl", 3)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"time":17000')
    again = opened(path)
    write(again, 99)
    again.close()
    assert path.read_bytes().startswith(whole)
    assert [entry.bytes for entry in verify(path).entries] == [10, 11, 12, 99]


def test_a_head_behind_the_ledger_after_a_power_cut_is_no_damage(tmp_path: Path) -> None:
    path = filled(tmp_path / "ledger.jsonl", 3)
    old = head_of(path).read_bytes()
    more = opened(path)
    write(more, 30, 31)
    more.close()
    for remains in (old, b"", b"\0" * 86):
        head_of(path).write_bytes(remains)
        assert len(verify(path).entries) == 5
        opened(path).close()
        assert int(head_of(path).read_bytes()[:20]) == 5


@pytest.mark.parametrize("fits", [100, ROOM_BYTES])
def test_a_full_disk_stops_the_sending_and_not_the_record(tmp_path: Path, fits: int) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = opened(path)
    write(ledger, 10, 11)
    whole = written(path)
    with disk_full_at(len(whole) + fits), pytest.raises(LedgerFull) as refused:
        write(ledger, *[12] * (ROOM_BYTES // 200))
    assert "ledger of north cannot be written" in str(refused.value)
    assert "nothing was sent" in str(refused.value)
    recorded = len(verify(path).entries)
    assert (recorded == 2) == (fits == 100)
    write(ledger, 13)  # there is room again
    assert len(verify(path).entries) == recorded + 1
    ledger.close()
    assert [entry.bytes for entry in verify(path).entries] == [10, 11, *[12] * (recorded - 2), 13]
    assert path.read_bytes() == written(path)


def test_a_ledger_that_cannot_be_written_at_all_sends_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = opened(path)
    with disk_full_at(0), pytest.raises(LedgerFull):
        write(ledger, 10)
    assert written(path) == b""
    assert verify(path).entries == ()
    ledger.close()


def test_a_ledger_that_was_closed_lets_nothing_be_sent(tmp_path: Path) -> None:
    path = filled(tmp_path / "ledger.jsonl", 2)
    ledger = opened(path)
    ledger.close()
    whole = path.read_bytes()
    with (tmp_path / "another").open("wb") as other:  # it may get the number of the closed file
        with pytest.raises(LedgerFull, match="nothing was sent"):
            write(ledger, 10)
        assert os.fstat(other.fileno()).st_size == 0
    assert path.read_bytes() == whole


def test_lines_beyond_the_room_made_ahead_hold_and_are_read_while_the_ledger_is_open(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = opened(path)
    sizes = range(10, 10 + 2 * ROOM_BYTES // 400)
    write(ledger, *sizes)
    assert path.stat().st_size > ROOM_BYTES
    assert [entry.bytes for entry in verify(path).entries] == list(sizes)
    copy(path, tmp_path / "copy.jsonl")
    ledger.close()
    assert (tmp_path / "copy.jsonl").read_bytes() == path.read_bytes() == written(path)
    again = opened(path)
    write(again, 5)
    again.close()
    assert [entry.bytes for entry in verify(path).entries] == [*sizes, 5]


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=40)
def test_whatever_a_power_cut_leaves_of_the_last_line_the_others_hold_and_it_goes_on(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("l") / "ledger.jsonl"
    ledger = opened(path)
    write(ledger, 10, 11)
    head, before = head_of(path).read_bytes(), len(written(path))
    write(ledger, 12)
    ledger.close()
    line = bytearray(path.read_bytes())[before:]
    kept = data.draw(st.lists(st.booleans(), min_size=3, max_size=3), "parts of it on disk")
    empty = data.draw(st.sampled_from([b" ", b"\0"]), "what the disk had there")
    cuts = st.lists(st.integers(1, len(line) // 2 - 1), min_size=2, max_size=2, unique=True)
    edges = [0, *sorted(2 * k for k in data.draw(cuts, "where they meet")), len(line)]
    for k, (start, stop) in enumerate(pairwise(edges)):
        if not kept[k]:
            line[start:stop] = empty * (stop - start)
    path.write_bytes(path.read_bytes()[:before] + line + b" " * 1000)
    head_of(path).write_bytes(head)
    again = opened(path)
    write(again, 13)
    again.close()
    expected = [10, 11, 12, 13] if all(kept) else [10, 11, 13]
    assert [entry.bytes for entry in verify(path).entries] == expected


def test_a_last_line_that_a_power_cut_left_as_other_json_is_dropped(tmp_path: Path) -> None:
    path = filled(tmp_path / "ledger.jsonl", 2)
    head, whole = head_of(path).read_bytes(), path.read_bytes()
    more = opened(path)
    write(more, 12)
    more.close()
    line = path.read_bytes()[len(whole) :]
    start, stop = line.index(b"oordinator"), line.index(b"fit this")
    torn = line[:start] + b" " * (stop - start) + line[stop:]
    assert "chain" in json.loads(torn)
    path.write_bytes(whole + torn)
    head_of(path).write_bytes(head)
    opened(path).close()
    assert path.read_bytes() == whole


def test_a_damaged_last_line_that_the_head_counts_is_no_crash(tmp_path: Path) -> None:
    path = filled(tmp_path / "ledger.jsonl", 3)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"x" + lines[2][1:]]))
    with pytest.raises(LedgerBroken, match="line 3: not a line of a ledger"):
        opened(path)


# --- the control plane ---


def calls(ledger: SiloLedger, *given: tuple[str, str, bytes]) -> None:
    for method, job, request in given:
        ledger.record_call(method, request, job, method in TELLING)


def test_a_call_that_tells_of_the_data_has_a_line_of_its_own_at_once(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = opened(path, max_bytes=5)
    calls(ledger, ("RegisterSilo", "", b"who"), ("AcceptAssignment", "job-1", b"columns"))
    first, second = read(path)
    assert (first.call, first.job, first.bytes, first.round) == ("RegisterSilo", "", 3, -1)
    assert (second.kind, second.job, second.bytes) == ("AcceptAssignmentRequest", "job-1", 7)
    assert second.sha256 == hashlib.sha256(b"columns").hexdigest()
    assert "columns' names" in second.reveals
    assert first.is_control
    with disk_full_at(0), pytest.raises(LedgerFull):
        calls(ledger, ("AcceptAssignment", "job-1", b"more"))
    ledger.close()
    found = verify(path)
    assert (found.sent("job-1"), found.control("job-1")) == (0, 7)


def test_calls_that_keep_the_connection_up_share_a_line_and_none_of_their_bytes_is_lost(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = opened(path)
    calls(ledger, *[("RenewLease", "job-1", b"alive")] * 7, ("RenewLease", "", b"idle"))
    calls(ledger, ("FetchResult", "job-1", b"done"))
    assert list(read(path)) == []
    ledger.settle("job-1")
    told = {(e.job, e.call): (e.count, e.bytes) for e in read(path)}
    assert told == {("job-1", "RenewLease"): (7, 35), ("job-1", "FetchResult"): (1, 4)}
    assert next(read(path)).sha256 == hashlib.sha256(b"alive" * 7).hexdigest()
    calls(ledger, ("ReleaseLease", "", b"bye"))
    ledger.close()
    assert sum(entry.bytes for entry in read(path)) == 35 + 4 + 4 + 3
    assert {t.step: t.payloads for t in totals(read(path)) if not t.job} == {
        "RenewLease": 1,
        "ReleaseLease": 1,
    }


def test_counted_calls_get_their_line_every_hour_and_a_full_disk_loses_none(
    tmp_path: Path,
) -> None:
    clock = [0.0]
    path = tmp_path / "ledger.jsonl"
    ledger = SiloLedger(path, "north", "coordinator", lambda: 1.7e9, clock=lambda: clock[0])
    calls(ledger, ("RenewLease", "", b"alive"))
    with disk_full_at(0):
        ledger.settle()
        clock[0] = SETTLE_SECONDS
        calls(ledger, ("RenewLease", "", b"alive"))
    assert list(read(path)) == []
    clock[0] = 2 * SETTLE_SECONDS
    calls(ledger, ("RenewLease", "", b"alive"))
    assert [(entry.count, entry.bytes) for entry in read(path)] == [(3, 15)]
    ledger.close()


def test_what_every_control_call_tells_is_written(tmp_path: Path) -> None:
    from hedgerow.api.federation.v1 import federation_service_pb2
    from hedgerow.services.rpc.control_calls import REVEALS

    service = federation_service_pb2.DESCRIPTOR.services_by_name["FederationService"]
    assert set(REVEALS) == {method.name for method in service.methods}


def test_the_policys_bytes_bind_while_the_job_runs_and_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = opened(path, max_bytes=100)
    write(ledger, 40, 40)
    with pytest.raises(PolicyDeclined, match="max_bytes: 121 bytes would have left"):
        write(ledger, 41)
    write(ledger, 20)
    write(ledger, 90, job="job-2")
    ledger.close()
    again = opened(path, max_bytes=100)
    assert [(one.method, one.payloads, one.bytes) for one in again.sent("job-1")] == [
        ("ExchangeTrees", 3, 100)
    ]
    with pytest.raises(PolicyDeclined, match="max_bytes"):
        write(again, 1, job="job-1")
    again.close()
    assert sum(entry.bytes for entry in verify(path).entries) == 190


def test_totals_are_by_job_and_kind(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "ledger.jsonl")
    write(ledger, 10, 20)
    write(ledger, 30, job="job-2")
    ledger.close()
    found = totals(read(tmp_path / "ledger.jsonl"))
    assert [(t.job, t.step, t.payloads, t.bytes) for t in found] == [
        ("job-1", "trees", 2, 30),
        ("job-2", "trees", 1, 30),
    ]


def test_the_files_are_for_their_owner_only(tmp_path: Path) -> None:
    path = filled(tmp_path / "ledger.jsonl")
    assert all(os.stat(p).st_mode & 0o077 == 0 for p in (path, head_of(path)))
