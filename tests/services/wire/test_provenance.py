"""A silo's statement of a run, and what a coordinator keeps of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hedgerow.boosting.errors import DataError
from hedgerow.boosting.exchange import Silo
from hedgerow.coordinator.server.artefacts import Artefacts
from hedgerow.coordinator.server.results import keep_signatures, provenance
from hedgerow.services.wire.provenance import Envelope, RunStatement, pre_authentication, stated_by
from hedgerow.services.wire.results import Outcome, ResultSignature

STATED = RunStatement(
    "s0", "job", "0" * 64, "1" * 64, "operator", ("s0", "s1"), {"model.ubj": "2" * 64}, "3" * 64,
    {"hedgerow": "1"},
)  # fmt: skip
ENVELOPE = Envelope(STATED.payload(), b"signature", b"certificate")


def test_a_statement_is_read_as_it_was_written() -> None:
    assert RunStatement.read(STATED.payload()) == STATED
    assert Envelope.read(ENVELOPE.line()) == ENVELOPE
    assert stated_by(ENVELOPE.line()) == "s0"
    found = json.loads(STATED.payload())
    assert found["_type"] == "https://in-toto.io/Statement/v1"
    assert found["subject"] == [{"name": "model.ubj", "digest": {"sha256": "2" * 64}}]


def test_what_is_signed_is_the_encoding_of_dsse() -> None:
    """The form of its specification: lengths in decimal, one space between."""
    assert pre_authentication(b"hello") == b"DSSEv1 28 application/vnd.in-toto+json 5 hello"


@pytest.mark.parametrize(
    "line",
    [b"", b"{}", b"[]", b"null", ENVELOPE.line() + b" ", ENVELOPE.line()[:-1],
     ENVELOPE.line().replace(b"payloadType", b"payloadKind"), b"[" * 100_000],
)  # fmt: skip
def test_another_line_is_refused(line: bytes) -> None:
    with pytest.raises(DataError, match="provenance: "):
        Envelope.read(line)


def test_a_statement_with_other_bytes_of_the_same_meaning_is_refused() -> None:
    loose = json.dumps(json.loads(STATED.payload())).encode()
    with pytest.raises(DataError, match="more than one of these has"):
        RunStatement.read(loose)
    for payload in (b"{}", b"1", STATED.payload().replace(b"urn:hedgerow:run:v1", b"urn:x")):
        with pytest.raises(DataError, match="expected a statement"):
            RunStatement.read(payload)


@pytest.mark.parametrize("name", [1, None, 0.5, True, ["model.ubj"]])
def test_a_statement_names_files_by_text(name: object) -> None:
    odd = json.loads(STATED.payload())
    odd["subject"][0]["name"] = name
    payload = json.dumps(odd, separators=(",", ":")).encode()
    with pytest.raises(DataError, match="expected a statement"):
        RunStatement.read(payload)


@pytest.mark.parametrize("name", ["../model.ubj", "/etc/hostname", "a\0b.ubj", "x", "\ud800.ubj"])
def test_a_statement_names_no_file_elsewhere(name: str) -> None:
    with pytest.raises(DataError, match="expected files with a name and a suffix"):
        RunStatement.read(replace(STATED, files={name: "2" * 64}).payload())


def test_a_coordinator_keeps_what_a_silo_states_of_itself_alone(tmp_path: Path) -> None:
    artefacts = Artefacts(str(tmp_path))
    own = ResultSignature("s0", bytes(32), b"signature", b"certificate", ENVELOPE.line())
    others = {
        "s1": ENVELOPE.line(),  # of another silo
        "s2": b"two\nlines",
        "s3": b"",
        "s4": Envelope(replace(STATED, silo="s4").payload(), b"s" * 70_000, b"c").line(),
    }
    outcomes = {Silo("s0"): Outcome(result=own)} | {
        Silo(silo): Outcome(result=replace(own, silo=silo, provenance=line))
        for silo, line in others.items()
    }
    keep_signatures(artefacts, "job", outcomes)
    assert provenance(artefacts, "job") == ENVELOPE.line() + b"\n"
