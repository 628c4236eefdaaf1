"""Agents announce how fast their machines are, and plans tell seconds: real processes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.federation.processes import Federation, federation, wait_until
from tests.federation.test_commands import ask
from tests.federation.test_commands import job_file as written
from tests.federation.test_preflight import spec


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Two agents that measure, and one whose operator does not want to tell."""
    folder = tmp_path_factory.mktemp("seconds")
    with (
        pytest.MonkeyPatch.context() as patch,
        federation(folder, 3, start=False, lease_seconds=4.0) as made,
    ):
        made.start_coordinator()
        made.start_agent("s2")
        patch.setenv("HEDGEROW_AGENT_CALIBRATE", "true")
        made.start_agent("s0")
        made.start_agent("s1")
        wait_until(lambda: len(made.client.silos()) == 3, 60, "all have registered")
        yield made


def test_a_plan_tells_seconds_once_agents_have_announced_their_rates(fed: Federation) -> None:
    def told() -> bool:
        notes = fed.client.plan(spec()).notes
        return "taken to be as fast as the slowest of the others: s2" in notes

    wait_until(told, 120, "s0 and s1 have measured")
    found = fed.client.preflight(spec()).plan
    assert found.seconds is not None
    assert found.seconds > max(step.seconds or 0.0 for step in found.steps) > 0.0
    for silo in ("s0", "s1"):
        rates = json.loads((fed.folder / f"state-agent-{silo}/rates.json").read_text())["rates"]
        assert rates["PAILLIER_ENCRYPT"] > 0
    assert not (fed.folder / "state-agent-s2/rates.json").exists()


def test_the_command_line_says_how_long_a_job_takes(fed: Federation) -> None:
    path = str(written(fed.folder))
    told = json.loads(ask(fed, "plan", path, "--json").stdout)
    assert told["seconds"] > 0
    assert all(step["seconds"] > 0 for step in told["steps"])
    assert "rounds, about " in ask(fed, "plan", path).stdout
