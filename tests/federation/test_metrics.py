"""What a real Prometheus sees of a job is what its report says."""

from __future__ import annotations

import signal
import time
import urllib.request
from importlib.metadata import version
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hedgerow.client_agent.ledger import SiloLedger
from hedgerow.services.process import ledgers
from hedgerow.services.rpc.control_calls import REVEALS
from hedgerow.services.rpc.errors import NotFound
from hedgerow.services.rpc.federation import AttemptKey, Registration
from hedgerow.services.rpc.metering import CODES
from hedgerow.services.wire.results import Outcome
from tests.adversary.test_doors import agent_of
from tests.client_agent.test_ledger import disk_full_at
from tests.federation.processes import OF_SCRIPTS, federation, wait_until
from tests.federation.prometheus import prometheus
from tests.federation.test_faults import job, succeeded


def test_prometheus_report_and_ledgers_agree_to_the_byte(tmp_path: Path) -> None:
    with federation(tmp_path, lease_seconds=30.0) as fed:
        port = {name: f"127.0.0.1:{p['metrics_port']}" for name, p in fed.ports.items()}
        agents = [port[f"agent-s{k}"] for k in range(3)]
        targets = {"coordinator": [port["coordinator"]], "agents": agents}
        with prometheus(tmp_path / "prometheus", targets) as scraped:
            view = succeeded(fed.end(fed.submit(job(rounds=5))))
            up = {s.name: view.bytes_of(s.name)[0] for s in view.silos}
            down = {s.name: view.bytes_of(s.name)[1] for s in view.silos}
            by_silo = "sum by (silo) (hedgerow_message_bytes_total{%s})"
            data = 'job="coordinator",service="ExchangeService",direction="%s"'

            def seen(direction: str) -> dict[str, float]:
                found = scraped.query(by_silo % (data % direction))
                return {labels["silo"]: value for labels, value in found}

            wait_until(lambda: seen("up") == up, 15, "Prometheus has all bytes up")
            wait_until(lambda: seen("down") == down, 15, "Prometheus has all bytes down")
            of_agents = 'job="agents",service="ExchangeService",direction="up"'
            at_agents = f"sum(hedgerow_message_bytes_total{{{of_agents}}})"
            wait_until(
                lambda: scraped.query(at_agents)[0][1] == sum(up.values()), 15, "agents agree"
            )
            for series, value in (
                ('hedgerow_rounds_total{strategy="bagging"}', 5),
                ('hedgerow_silos{state="alive"}', 3),
                ('hedgerow_jobs{state="succeeded"}', 1),
            ):
                wait_until(
                    lambda series=series, value=value: scraped.query(series)[0][1] == value,
                    15,
                    f"{series} is {value}",
                )
            assert scraped.query('sum(hedgerow_round_bytes_sum{direction="up"})')[0][1] <= sum(
                up.values()
            )
            names = set(scraped.get("/api/v1/label/__name__/values"))
            assert {
                "hedgerow_message_bytes_total",
                "hedgerow_messages_total",
                "hedgerow_calls_total",
                "hedgerow_call_seconds_count",
                "hedgerow_round_seconds_count",
                "hedgerow_masked_values_total",
            } <= names
        for silo, n_bytes in up.items():
            entries = ledgers.read(tmp_path / f"state-agent-{silo}" / "ledger.jsonl")
            assert sum(entry.bytes for entry in entries if not entry.is_control) == n_bytes


def counters(port: int) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return the counts that a process shows, by name and labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=100) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in families
            if family.name.startswith("hedgerow_") and family.type in ("counter", "histogram")
            for sample in family.samples
            if not sample.name.endswith("_created")
        }


SECURE = """
strategy = "histogram"
min_silos = 3
metrics = ["auc"]
[histogram]
rounds = 3
[booster]
max_depth = 2
"""


def test_what_is_counted_was_there_before_it_was_counted(tmp_path: Path) -> None:
    with federation(tmp_path, start=False, lease_seconds=30.0) as fed:
        fed.start_coordinator()
        fresh = counters(fed.ports["coordinator"]["metrics_port"])
        assert not [name for (name, _), value in fresh.items() if value]
        assert {dict(labels).get("code") for name, labels in fresh if "calls_total" in name} == set(
            CODES
        )
        before = {}
        for silo in fed.silos:
            fed.start_agent(silo, crypto=fed.start_crypto(silo))
        for name, ports in fed.ports.items():
            before[name] = counters(ports["metrics_port"])
        job_id = fed.submit(SECURE)
        coordinator = before["coordinator"] | counters(fed.ports["coordinator"]["metrics_port"])
        before["coordinator"] = coordinator
        succeeded(fed.end(job_id))
        for name, ports in fed.ports.items():
            counted = counters(ports["metrics_port"])
            assert not sorted(map(str, counted.keys() - before[name].keys())), name
            assert any(counted.values())


def test_the_first_refused_call_and_the_first_rounds_are_increases(tmp_path: Path) -> None:
    """A counter that is born at 1 has no increase, and its alert would not fire."""
    with federation(tmp_path, lease_seconds=30.0) as fed:
        targets = {"coordinator": [f"127.0.0.1:{fed.ports['coordinator']['metrics_port']}"]}
        with prometheus(tmp_path / "prometheus", targets) as scraped:
            refused = 'hedgerow_calls_total{method="GetJob",code="NOT_FOUND"}'
            rounds = 'hedgerow_rounds_total{strategy="bagging"}'
            for series in (refused, rounds):
                wait_until(
                    lambda s=series: [value for _, value in scraped.query(s)] == [0.0],
                    15,
                    f"{series} is there",
                )
            with pytest.raises(NotFound):
                fed.client.get("no-such-job")
            succeeded(fed.end(fed.submit(job(rounds=4))))
            wait_until(
                lambda: [value for _, value in scraped.query(rounds)] == [4.0],
                15,
                "all rounds are counted",
            )
            for series, least in ((refused, 1.0), (rounds, 4.0)):
                (found,) = scraped.query(f"increase({series}[5m])")
                assert found[1] >= least, series


def test_every_byte_of_the_control_plane_is_in_the_ledgers_too(tmp_path: Path) -> None:
    with federation(tmp_path, lease_seconds=2.0) as fed:
        address = fed.ports["coordinator"]["metrics_port"]
        view = succeeded(fed.end(fed.submit(job(rounds=3))))
        for silo in fed.silos:  # an agent that ends writes what it has counted
            fed.kill(f"agent-{silo}", signal.SIGTERM)
        found = {silo: ledgers.verify(tmp_path / f"state-agent-{silo}/ledger.jsonl")
                 for silo in fed.silos}  # fmt: skip
        told = {
            silo: sum(entry.bytes for entry in verified.entries if entry.is_control)
            for silo, verified in found.items()
        }

        def seen() -> dict[str, float]:
            return control_bytes(address)

        wait_until(lambda: seen() == told, 15, f"{seen()} is {told}")
        methods = {e.call for verified in found.values() for e in verified.entries if e.is_control}
        assert methods | {"AnswerPreflight", *OF_SCRIPTS} == set(REVEALS)  # nobody asks for them
        of_job = sum(verified.control(view.job_id) for verified in found.values())
        # The record has the operator's calls too, and polls that brought the assignment.
        assert 0 < of_job < view.control_bytes_up


def test_scores_leave_after_their_line_and_without_room_for_it_only_the_end_does(
    tmp_path: Path,
) -> None:
    scores = Outcome(scores={"auc": 0.5})
    key = AttemptKey("job-1", 1)
    with federation(tmp_path, 1, start=False) as fed:
        fed.start_coordinator()
        port = fed.ports["coordinator"]["metrics_port"]
        path = tmp_path / "ledger.jsonl"
        own = SiloLedger(path, "s0", "coordinator", time.time)
        silo = agent_of(fed, "s0", own.record_call)
        lease_id = silo.register(Registration("i" * 32, version("hedgerow"), (), 0)).lease_id
        with disk_full_at(0):
            silo.report(lease_id, key, scores)
        assert [entry.call for entry in ledgers.read(path)] == ["RegisterSilo"]
        own.settle("job-1")
        silo.report(lease_id, key, scores)
        own.close()
        registered, end, scored = (entry.bytes for entry in ledgers.read(path))
        assert end < scored
        total = registered + end + scored
        wait_until(
            lambda: control_bytes(port) == {"s0": total}, 15, "the coordinator has these bytes"
        )


def control_bytes(port: int) -> dict[str, float]:
    """Bytes that the coordinator has received from each silo on the control plane."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=100) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        found: dict[str, float] = {}
        for sample in (s for f in families for s in f.samples):
            labels = sample.labels
            if (
                sample.name == "hedgerow_message_bytes_total"
                and labels["service"] == "FederationService"
                and labels["direction"] == "up"
                and sample.value
            ):
                found[labels["silo"]] = found.get(labels["silo"], 0.0) + sample.value
    return found
