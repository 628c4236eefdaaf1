"""Silos that hold to their own rules, and a coordinator that does not hold to the job."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from hedgerow.coordinator.operator import run_folder
from hedgerow.services.process import ledgers
from tests.federation.forked import hedgerow
from tests.federation.processes import Federation, federation
from tests.federation.test_faults import job as faults_job
from tests.federation.test_faults import rounds_done, succeeded

RULES = {
    "s0": {
        "strategies": ["bagging", "secureboost"],
        "min_silos": 2,
        "max_depth": 5,
        "max_rounds": 9,
        "max_bytes": 40_000,
        "features": ["x0", "x1", "x2"],
        "peers": ["s0", "s1"],
    },
    "s1": {"operators": ["oscar"]},
    "s2": {"min_rows": 401, "require_dp": True},
}


@pytest.fixture(scope="module")
def ruled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Three silos, each with rules of its own."""
    with federation(tmp_path_factory.mktemp("ruled"), start=False) as fed:
        fed.start_coordinator()
        for silo, rules in RULES.items():
            fed.start_agent(silo, policy=rules)
        yield fed


def asking(*silos: str, strategy: str = "bagging", depth: int = 3, rounds: int = 3) -> str:
    names = ", ".join(f'"{silo}"' for silo in silos)
    own = "" if strategy == "dp_tree" else f"[{strategy}]\nrounds = {rounds}\n"
    return (
        f'strategy = "{strategy}"\nmin_silos = {len(silos)}\nsilos = [{names}]\n'
        f'start_timeout_seconds = 20\nfeatures = ["x0", "x1"]\n{own}'
        f"[booster]\nmax_depth = {depth}\n"
    )


@pytest.mark.parametrize(
    ("text", "silo", "rule"),
    [
        (asking("s0", "s1", "s2", strategy="histogram"), "s0", "strategies"),
        (asking("s0"), "s0", "min_silos"),
        (asking("s0", "s1", depth=6), "s0", "max_depth"),
        (asking("s0", "s1", rounds=10), "s0", "max_rounds"),
        (asking("s0", "s1").replace('"x1"]', '"x3"]'), "s0", "features"),
        (asking("s0", "s2"), "s0", "peers"),
        (asking("s0", "s1", depth=5, rounds=9).replace("bagging]\n", "bagging]\n"
         "trees_per_round = 80\n"), "s0", "max_bytes"),
        (asking("s1"), "s1", "operators"),
        (asking("s2"), "s2", "min_rows"),
    ],
)  # fmt: skip
def test_a_job_that_breaks_a_rule_is_declined_and_the_record_names_the_rule(
    ruled: Federation, text: str, silo: str, rule: str
) -> None:
    view = ruled.end(ruled.submit(text))
    assert view.state == "FAILED"
    assert view.silos, view.detail
    by_name = {s.name: s for s in view.silos}
    assert silo in by_name, view
    assert by_name[silo].state == "declined", view
    assert by_name[silo].detail.startswith(f"policy rule {rule}: ")
    record = run_folder.report(view)
    assert f"{silo} declined (policy rule {rule}: " in record["detail"]
    assert not any(s["bytes_up"] for s in record["silos"])
    assert not [entry for entry in _entries(ruled, silo) if entry.job == view.job_id]
    answers = [entry.call for entry in _calls(ruled, silo) if entry.job == view.job_id]
    assert "AcceptAssignment" in answers


def test_watch_names_the_rule(ruled: Federation) -> None:
    job_id = ruled.submit(asking("s0", "s1", depth=6))
    ruled.end(job_id)
    identity = ruled.folder / "pki/operator"
    done = hedgerow("watch", job_id, "--coordinator", ruled.address, "--identity", identity)
    assert done.returncode == 1
    shown = " ".join(done.stdout.split())
    assert "silo s0 is declined: policy rule max_depth: 6 is over 5" in shown
    assert shown.count("policy rule max_depth: 6 is over 5") == 1
    assert "0 accepted; s" in shown
    assert "s0 declined at " in shown


def test_a_job_that_keeps_to_the_rules_runs(tmp_path: Path) -> None:
    with federation(tmp_path, 2, start=False) as fed:
        fed.start_coordinator()
        own = {"operators": ["operator", "local"], "may_send": ["schema", "trees", "scores"]}
        for silo in ("s0", "s1"):
            fed.start_agent(silo, policy={**RULES["s0"], **own})
        view = fed.end(fed.submit(asking("s0", "s1")))
        assert succeeded(view).operator in ("operator", "local")


def _read(fed: Federation, silo: str) -> Iterator[ledgers.Entry]:
    return ledgers.read(fed.folder / f"state-agent-{silo}" / "ledger.jsonl")


def _entries(fed: Federation, silo: str) -> list[ledgers.Entry]:
    return [entry for entry in _read(fed, silo) if not entry.is_control]


def _calls(fed: Federation, silo: str) -> list[ledgers.Entry]:
    return [entry for entry in _read(fed, silo) if entry.is_control]


def test_a_full_disk_stops_the_sending_and_the_record_says_so(tmp_path: Path) -> None:
    with federation(tmp_path) as fed:
        job_id = fed.submit(faults_job(rounds=3000, min_silos=2))
        fed.wait(job_id, rounds_done(4))
        agent = fed.processes["agent-s1"].pid
        path = tmp_path / "state-agent-s1" / "ledger.jsonl"
        resource.prlimit(agent, resource.RLIMIT_FSIZE, (path.stat().st_size + 100, -1))
        # A busy machine may lose another silo for a moment before.
        view = fed.wait(
            job_id,
            lambda v: v.ended or any("cannot be written" in s.detail for s in v.silos),
        )
        lost = {s.name: s.detail for s in view.silos if s.state == "lost"}
        assert "s1" in lost
        assert "the ledger of s1 cannot be written" in lost["s1"]
        assert "nothing was sent" in lost["s1"]
        fed.wait(job_id, rounds_done(len(view.rounds) + 3))  # the others go on
        fed.client.cancel(job_id)
        sent = sum(entry.bytes for entry in _entries(fed, "s1"))
        # What the last calls moved is stored a moment after the job's end.
        fed.wait(
            job_id,
            lambda v: v.ended and sent == v.bytes_of("s1")[0],
        )


def test_the_link_holds_the_policy_where_a_job_turns_out_otherwise(tmp_path: Path) -> None:
    """Three silos would mask the mean of their labels; the two that take part cannot."""
    masked_ones = ("s0", "s1")
    masked = {"may_send": ["keys", "schema", "masked", "trees"]}
    rules = {"s0": masked, "s1": masked, "s2": {"min_rows": 100_000}}
    text = (
        'strategy = "bagging"\ntask = "regression"\nmin_silos = 2\nstart_timeout_seconds = 20\n'
        'max_attempts = 1\n[bagging]\nrounds = 2\nevaluate = "none"\n'
    )
    with federation(tmp_path, start=False) as fed:
        fed.start_coordinator()
        for silo, own in rules.items():
            fed.start_agent(silo, policy=own)
        view = fed.end(fed.submit(text))
        assert view.state == "FAILED"
        refusal = "policy rule may_send: step 'sum-plain' would send scores"
        assert refusal in view.detail or any(refusal in fed.log(f"agent-{s}") for s in masked_ones)
        for silo in masked_ones:
            assert "sum-plain" not in {entry.step for entry in _entries(fed, silo)}
