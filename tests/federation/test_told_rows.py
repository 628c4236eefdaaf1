"""How many rows silos tell the coordinator that they have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hedgerow.coordinator.operator import run_folder
from hedgerow.services.wire.job_view import JobView
from tests.federation.processes import federation

ROWS = 300

DP_TREE = """
strategy = "dp_tree"
min_silos = 3
[dp_tree]
epsilon = 4.0
depth = 2
"""
FEDGA = """
strategy = "fedga"
min_silos = 3
[fedga]
generations = 2
population = 6
max_depth = 2
"""
BAGGING = """
strategy = "bagging"
min_silos = 3
[bagging]
rounds = 1
[booster]
max_depth = 2
"""


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> dict[str, JobView]:
    """Jobs of three silos with 300 rows each, ended."""
    said = {"may_send": ["keys", "schema", "masked", "noised", "trees", "scores"]}
    with federation(tmp_path_factory.mktemp("rows"), n_rows=ROWS, start=False) as fed:
        fed.start_coordinator()
        for silo in fed.silos:
            fed.start_agent(silo, policy=said)
        jobs = {"dp_tree": DP_TREE, "fedga": FEDGA, "bagging": BAGGING}
        return {name: fed.end(fed.submit(text)) for name, text in jobs.items()}


@pytest.mark.parametrize("strategy", ["dp_tree", "fedga"])
def test_where_the_strategy_needs_no_exact_rows_only_the_next_power_of_two_is_told(
    views: dict[str, JobView], strategy: str, tmp_path: Path
) -> None:
    view = views[strategy]
    assert view.state == "SUCCEEDED", view.detail
    assert {silo.n_samples for silo in view.silos} == {512}
    run_folder.write(tmp_path, view, {})
    report = json.loads((tmp_path / "report.json").read_text())
    assert [silo["rows"] for silo in report["silos"]] == [512] * 3


def test_where_silos_are_weighted_by_rows_the_exact_number_is_told(
    views: dict[str, JobView],
) -> None:
    view = views["bagging"]
    assert view.state == "SUCCEEDED", view.detail
    assert {silo.n_samples for silo in view.silos} == {ROWS}
