"""The audit trail: chained over processes and rotations, and refused where it cannot be written."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs

from hedgerow.coordinator.operator.commands.audit_log import audit_log
from hedgerow.services.process import trail
from hedgerow.services.process.ledgers import FIRST, LedgerBroken, head_of
from hedgerow.services.process.trail import ACTIONS, Actor, Trail, TrailUnwritable

ANN = Actor("ann", "operator", "10.0.0.7")


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def filled(path: Path) -> Trail:
    made = Trail(str(path), "coordinator", lambda: 1e9)
    for job in ("one", "two", "three"):
        with made.action("job-cancel", ANN, job=job):
            pass
    return made


def verified(*paths: Path, head: str = "") -> tuple[int, str]:
    found = CliRunner().invoke(audit_log, ["verify", *map(str, paths), "--head", head])
    return found.exit_code, found.output


def test_an_action_is_on_record_before_it_is_done_and_when_it_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    kept = Trail(str(path), "coordinator", lambda: 1e9)
    with kept.action("job-cancel", ANN, job="j"):
        begun = lines_of(path)[-1]
    with pytest.raises(ValueError, match="lost"), kept.action("job-cancel", ANN, job="k"):
        raise ValueError("lost: 0.25")
    opened, first, second, _, failed = lines_of(path)
    assert first == begun
    assert opened["event.action"] == "trail-opened"
    assert first["@timestamp"] == "2001-09-09T01:46:40.000Z"
    assert (first["user.name"], first["user.roles"]) == ("ann", ["operator"])
    assert (first["source.ip"], first["hedgerow.job"]) == ("10.0.0.7", "j")
    assert (first["event.outcome"], second["event.outcome"]) == ("unknown", "success")
    assert first["event.id"] == second["event.id"] != failed["event.id"]
    assert (failed["event.outcome"], failed["error.type"]) == ("failure", "ValueError")
    assert "0.25" not in path.read_text()  # what an error says may be of a table


@pytest.mark.parametrize("number", range(7))
@pytest.mark.parametrize("tampering", ["change", "remove", "swap"])
def test_the_line_that_was_tampered_with_is_named(
    tmp_path: Path, number: int, tampering: str
) -> None:
    path = tmp_path / "audit.jsonl"
    filled(path).close()
    assert verified(path)[0] == 0
    lines = path.read_bytes().splitlines(keepends=True)
    if tampering == "change":
        lines[number] = lines[number].replace(b'"hedgerow"', b'"Hedgerow"')
    elif tampering == "remove":
        del lines[number]
    else:
        other = (number + 1) % len(lines)
        lines[number], lines[other] = lines[other], lines[number]
    path.write_bytes(b"".join(lines))
    code, said = verified(path)
    assert code == 1
    last = number == 6 and tampering == "remove"
    named = min(number + 1, 1 if tampering == "swap" and number == 6 else 7)
    assert ("lines are missing at the end" if last else f"line {named}:") in said
    with pytest.raises(LedgerBroken):
        Trail(str(path), "coordinator").write("job-cancel", ANN, "success")


def test_two_processes_write_one_chain(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    one, two = Trail(str(path), "coordinator"), Trail(str(path), "console")
    for writer in (one, two, one, one, two):
        writer.write("job-cancel", ANN, "success")
    assert trail.verify([path]).lines == 6


def test_a_trail_goes_on_with_a_rotated_one(tmp_path: Path) -> None:
    path, old = tmp_path / "audit.jsonl", tmp_path / "audit.jsonl.1"
    writer = filled(path)
    path.rename(old)
    writer.write("job-cancel", ANN, "success")
    assert verified(old, path)[0] == 0
    code, said = verified(path)
    assert code == 0
    assert "goes on with another file" in said
    lines = old.read_bytes().splitlines(keepends=True)
    old.write_bytes(b"".join(lines[:-1]))  # it has no head any more: the next file knows its end
    assert "does not go on with" in verified(old, path)[1]


def test_what_a_crash_left_of_a_line_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    filled(path).close()
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"@timestamp":"20')
    Trail(str(path), "coordinator").write("job-cancel", ANN, "success")
    assert path.read_bytes().startswith(whole)
    assert trail.verify([path]).lines == 8


def test_a_head_that_a_power_cut_left_behind_is_no_tampering(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    writer = filled(path)
    behind = head_of(path).read_bytes()
    writer.write("job-cancel", ANN, "success")
    head_of(path).write_bytes(behind)
    Trail(str(path), "coordinator").write("job-cancel", ANN, "success")
    assert trail.verify([path]).lines == 9


@pytest.fixture
def full_disk() -> Iterator[Any]:
    """A limit of a file's size: the kernel cuts a write short there, as where a disk is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_nothing_is_done_that_a_full_disk_does_not_let_be_written(
    tmp_path: Path, full_disk: Any
) -> None:
    path = tmp_path / "audit.jsonl"
    writer = filled(path)
    before = path.read_bytes()
    done = []
    full_disk(len(before) + 20)
    with pytest.raises(TrailUnwritable, match="nothing was done"), writer.action("job-cancel", ANN):
        done.append(1)
    assert not done
    full_disk(len(before) + 700)  # room for the first line of an action and not for the second
    with capture_logs() as logged, writer.action("job-cancel", ANN, job="j"):
        done.append(1)
    full_disk(resource.RLIM_INFINITY)
    assert done
    assert [line["event"] for line in logged] == ["audit trail not written"]
    assert path.read_bytes().startswith(before)
    writer.write("job-cancel", ANN, "success")
    assert trail.verify([path]).lines == 9


def test_what_comes_again_and_again_is_counted(tmp_path: Path) -> None:
    path, clock = tmp_path / "audit.jsonl", [0.0]
    writer = Trail(str(path), "coordinator", clock=lambda: clock[0])
    for _ in range(50):
        writer.enqueue_limited("silo-join", ANN, "success", {})
        clock[0] += 2.0
    writer.close()
    assert [line.get("hedgerow.repeats", 0) for line in lines_of(path)] == [0, 0, 29]


def test_texts_of_others_are_short_and_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    about = {"file.name": "a\n\x1b[2J" + "b" * 10_000}
    Trail(str(path), "coordinator").write("model-download", ANN, "success", about)
    assert lines_of(path)[1]["file.name"].startswith("a\\n\\x1b[2Jbbb")
    assert len(lines_of(path)[1]["file.name"]) == trail.LONGEST


@pytest.mark.process
def test_syslog_gets_one_message_a_line_and_the_action_waits_for_it(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as logger:
        logger.bind(path)
        Trail(f"syslog:{path}", "coordinator").write("job-cancel", ANN, "success")
        got = [logger.recv(1 << 16) for _ in range(2)]
    heads, texts = zip(*(one.split(b": ", 1) for one in got), strict=True)
    assert set(heads) == {f"<110>hedgerow[{os.getpid()}]".encode()}
    collected = tmp_path / "collected"
    collected.write_bytes(b"".join(text + b"\n" for text in texts))
    assert trail.verify([collected]).begins == (f"{collected} line 1",)
    assert lines_of(collected)[0]["hedgerow.previous"] == FIRST
    os.unlink(path)
    with pytest.raises(TrailUnwritable):
        Trail(f"syslog:{path}", "coordinator").write("job-cancel", ANN, "success")


def test_a_stream_that_began_again_is_whole_and_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        Trail("stdout", "serve").write("model-serve", Actor(), "success")
    collected = tmp_path / "collected"
    collected.write_text(capfd.readouterr().out)
    code, said = verified(collected)
    assert code == 0
    assert "began its own chain at" in said
    assert "line 3" in said


def test_every_action_has_a_category_and_a_type_of_ecs() -> None:
    categories = {"api", "authentication", "configuration", "file", "iam", "session"}
    kinds = {
        "access",
        "allowed",
        "change",
        "creation",
        "deletion",
        "denied",
        "end",
        "info",
        "start",
    }
    assert {category for category, _ in ACTIONS.values()} <= categories
    assert {kind for _, kind in ACTIONS.values()} <= kinds
