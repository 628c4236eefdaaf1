"""What others wrote is shown, not obeyed, by an operator's terminal."""

from __future__ import annotations

import json

import click
import pytest
from click.testing import CliRunner

from hedgerow.boosting.errors import FederationError
from hedgerow.coordinator.operator.progress import summary
from hedgerow.services.process.terminal import command, listing, tell

EVIL = "north\x1b[2J\x1b]0;you\x07\r\nsecond\tline \u202e\x9b1A"
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
    assert SHOWN in printed
    whole = CliRunner().invoke(said, ["text", "--json"], color=True).output
    assert json.loads(whole) == {"name": EVIL}


def test_a_silos_detail_is_spelled_out_in_the_closing_lines() -> None:
    silo = {"name": "north", "state": "LOST", "detail": EVIL}
    one = {"round": 0, "metrics": {}}
    moved = {"up": 1, "down": 1, "control": {"up": 0, "down": 0}}
    report = {"strategy": "bagging", "state": "FAILED", "seconds": 1.0, "best_round": 0,
              "rounds": [one], "bytes": moved, "silos": [silo]}  # fmt: skip
    assert SHOWN in list(summary(report))[-1]
