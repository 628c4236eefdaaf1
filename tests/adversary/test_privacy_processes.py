"""Jobs in a row against the budget of a table, with real processes that are killed in between."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hedgerow.client_agent.accountant import read_accounts
from tests.federation.forked import hedgerow
from tests.federation.processes import Federation, federation

JOB = 'strategy = "dp_tree"\nmin_silos = 3\n[dp_tree]\nepsilon = 400.0\ndepth = 2\n'
# One row count of FedGA has no room beside two trees, and a tree has none beside a row count more.
ROWS = (
    'strategy = "fedga"\nmin_silos = 3\n'
    "[fedga]\ngenerations = 2\npopulation = 4\nmax_depth = 2\nepsilon_rows = 200.5\n"
)
POLICY = {
    "max_epsilon": 1000.0,
    "max_epsilon_job": 400.0,
    "min_cell": 1,
    "may_send": ["keys", "schema", "masked", "noised", "trees", "scores"],
}


def spent(fed: Federation, silo: str) -> dict[str, Any]:
    """Return what ``hedgerow privacy`` tells of a silo."""
    done = hedgerow("privacy", fed.folder / f"state-agent-{silo}", "--json")
    assert done.returncode == 0, done.stderr
    (table,) = json.loads(done.stdout)
    found: dict[str, Any] = table
    return found


def test_jobs_in_a_row_are_declined_once_the_tables_budget_is_spent(tmp_path: Path) -> None:
    with federation(tmp_path, n_rows=1000, start=False) as fed:
        fed.start_coordinator()
        for silo in fed.silos:
            fed.start_agent(silo, policy=POLICY)
        weak = fed.end(fed.submit(JOB + "honest = 3\n"))
        assert weak.state == "FAILED"
        assert "policy rule min_colluders: of 3 silos none may tell" in weak.detail
        trees = [fed.end(fed.submit(JOB)) for _ in range(2)]
        assert [view.state for view in trees] == ["SUCCEEDED"] * 2, trees[-1].detail
        for silo in fed.silos:
            fed.kill(f"agent-{silo}")
            fed.start_agent(silo, policy=POLICY)
        for text in (JOB, ROWS, JOB):
            view = fed.end(fed.submit(text))
            assert view.state == "FAILED"
            assert "policy rule max_epsilon" in view.detail
            assert "the jobs before it leave 200 of 1000" in view.detail
        told = spent(fed, "s0")
        assert (told["spent"], told["max_epsilon"]) == (pytest.approx(800.0), 1000.0)
        assert [job["spent"] for job in told["jobs"]] == pytest.approx([400.0, 400.0])
        # What is not known to be unspent is not spent.
        fed.kill("agent-s0")
        file = fed.folder / "state-agent-s0/privacy/accounts.json"
        file.write_bytes(file.read_bytes().replace(b"400.0", b"100.0"))
        fed.start_agent("s0", policy=POLICY)
        view = fed.end(fed.submit("start_timeout_seconds = 10\n" + JOB.replace("400", "100")))
        assert view.state == "FAILED"
        assert "accounts.json is damaged" in view.detail
    assert all(
        read_accounts(tmp_path / f"state-agent-{silo}").summary()[0]["spent"]
        == pytest.approx(800.0)
        for silo in ("s1", "s2")
    )
