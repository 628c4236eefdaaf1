"""What a real Prometheus sees of a job is what its report says."""

from __future__ import annotations

from pathlib import Path

from client_agent import ledger
from tests.federation.processes import federation, wait_until
from tests.federation.prometheus import prometheus
from tests.federation.test_faults import job, succeeded


def test_prometheus_report_and_ledgers_agree_to_the_byte(tmp_path: Path) -> None:
    with federation(tmp_path, lease_seconds=30.0) as fed:
        port = {name: f"127.0.0.1:{p['metrics_port']}" for name, p in fed.ports.items()}
        agents = [port[f"agent-s{k}"] for k in range(3)]
        targets = {"coordinator": [port["coordinator"]], "agents": agents}
        with prometheus(tmp_path / "prometheus", targets) as scraped:
            view = succeeded(fed.end(fed.submit(job(rounds=5))))
            up = {s.name: s.bytes_up for s in view.silos}
            down = {s.name: s.bytes_down for s in view.silos}
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
            entries = ledger.read(tmp_path / f"state-agent-{silo}" / "ledger.jsonl")
            assert sum(entry.bytes for entry in entries) == n_bytes
