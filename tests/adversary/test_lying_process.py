"""A lying coordinator process against agents as they come, over TLS."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.adversary.liar import LEAVES, LOST, MODEL
from tests.federation.processes import federation, write_table
from tests.federation.test_faults import succeeded

LIAR = Path(__file__).with_name("liar.py")
JOB = (
    'strategy = "histogram"\nmin_silos = 3\nmax_attempts = 1\n'
    "start_timeout_seconds = 60\nstep_timeout_seconds = %d\n"
    f"silos = {json.dumps([f's{k}' for k in range(6)])}\n"
    "[histogram]\nrounds = 2\n[booster]\nmax_depth = 1\nmax_bin = 8\n"
)


@pytest.mark.process
@pytest.mark.slow
def test_a_coordinator_that_lies_between_sums_reads_no_silo(tmp_path: Path) -> None:
    """Leaves that it makes up, a silo that it says was lost, scores of a model that it made up."""
    lie = tmp_path / "lie"
    lie.write_text("")
    with federation(tmp_path, 6, n_rows=60, start=False) as fed:
        fed.start_coordinator([sys.executable, str(LIAR), str(lie)])
        tested = {"path": str(write_table(tmp_path / "test.parquet", 40, 8))}
        lets = {"may_send": ["schema", "keys", "masked", "scores"]}
        more: dict[str, dict[str, Any]] = {"s1": {"test": tested, "policy": lets}}
        for name in fed.silos:
            fed.start_agent(name, **more.get(name, {}))
        view = succeeded(fed.end(fed.submit(JOB % 120), 200))
        assert [name for name in view.rounds[-1].metrics if "@" in name] == ["test@s1"]
        ends = {}
        for what in (LEAVES, LOST, MODEL):
            lie.write_text(what)
            # The one that is said to be lost is waited for.
            ends[what] = fed.end(fed.submit(JOB % (20 if what == LOST else 120)), 200)
    refused = {
        LEAVES: "the coordinator has sent 2 totals that do not fit the silos' word",
        LOST: "no sum may be over s0, s1, s3, s4, s5: it is no union of whole groups",
    }
    for what, why in refused.items():
        assert (ends[what].state, why in ends[what].detail) == ("FAILED", True), ends[what].detail
    assert not [name for name in ends[MODEL].rounds[-1].metrics if "@" in name]
    opened = [line.split(" ") for line in lie.with_suffix(".opened").read_text().splitlines()]
    assert {tuple(silos) for _, _, *silos in opened} == {tuple(f"s{k}" for k in range(6))}
    assert {(said, round_) for said, round_, *_ in opened} == {
        ("", "0"), ("", "1"), (LEAVES, "0"), (LOST, "0"), (MODEL, "0"), (MODEL, "1"),
    }  # fmt: skip
