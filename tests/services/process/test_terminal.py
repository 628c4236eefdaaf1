"""What others wrote is shown, not obeyed, by an operator's terminal."""

from __future__ import annotations

import json

import click
import pytest
import structlog
from click.testing import CliRunner

from hedgerow.api.federation.v1 import job_pb2
from hedgerow.boosting.errors import FederationError
from hedgerow.coordinator.operator.progress import summary
from hedgerow.services.process import logs
from hedgerow.services.process.terminal import command, listing, tell
from hedgerow.services.wire.texts import spell_out

EVIL = "north\x1b[2J\x1b]0;you\x07\r\nsecond\tline \u202e\x9b1A"
ONE_LINE = "north\\x1b[2J\\x1b]0;you\\x07\\r\\nsecond\\tline \\u202e\\x9b1A"
SHOWN = "north\\x1b[2J\\x1b]0;you\\x07\\r\nsecond\tline \\u202e\\x9b1A"


@command()
@click.argument("how")
def said(how: str) -> None:
    if how == "error":
        raise FederationError(EVIL)
    if how == "table":
        listing(("silo",), [(EVIL,)])
    else:
        tell({"name": EVIL}, EVIL)


@pytest.mark.parametrize("how", ["error", "table", "text"])
def test_control_characters_are_spelled_out(how: str) -> None:
    printed = CliRunner().invoke(said, [how], color=True).output
    assert (SHOWN if how == "text" else ONE_LINE) in printed
    whole = CliRunner().invoke(said, ["text", "--json"], color=True).output
    assert json.loads(whole) == {"name": EVIL}


def test_a_silos_detail_is_spelled_out_in_the_closing_lines() -> None:
    silo = {"name": "north", "state": "LOST", "detail": EVIL}
    one = {"round": 0, "metrics": {}}
    moved = {"up": 1, "down": 1, "control": {"up": 0, "down": 0}}
    report = {"strategy": "bagging", "state": "FAILED", "seconds": 1.0, "best_round": 0,
              "rounds": [one], "bytes": moved, "silos": [silo]}  # fmt: skip
    assert ONE_LINE in list(summary(report))[-1]


def test_a_log_s_fields_forge_no_line(capfd: pytest.CaptureFixture[str]) -> None:
    for json_lines in (False, True):
        logs.configure(json=json_lines, level="info")
        structlog.get_logger().info("declined", why=EVIL)
        (line,) = capfd.readouterr().err.splitlines()
        assert line.isprintable()
        assert "second" in line


def test_texts_of_a_view_are_spelled_out_but_not_the_job_s_own() -> None:
    job = job_pb2.Job(detail=EVIL, artefacts=[EVIL, "model.ubj"], spec={"features": ["a\nb"]})
    job.silos.add(name="north", detail=EVIL)
    spell_out(job, but=("spec",))
    assert [job.detail, *job.artefacts] == [ONE_LINE, ONE_LINE, "model.ubj"]
    assert job.silos[0].detail == ONE_LINE
    assert list(job.spec.features) == ["a\nb"]
