"""Dashboards and rules: the committed files are generated, valid, and show a live federation."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard

from deploy.grafana import generate
from hedgerow.boosting.ports import JobParameters
from hedgerow.crypto.errors import VaultRefused
from hedgerow.services.identity.certificates import IdentityPaths
from hedgerow.services.identity.peers import channel_credentials
from hedgerow.services.rpc.channel import dial
from hedgerow.services.rpc.crypto import RemoteVault
from hedgerow.services.rpc.metering import Metrics
from tests.federation.processes import (
    PATIENCE_SECONDS,
    ROOT,
    Federation,
    federation,
    wait_until,
)
from tests.federation.prometheus import ALERTMANAGER, Prometheus, alertmanager, prometheus

GRAFANA = ROOT / "deploy/grafana"
RULES = ROOT / "deploy/prometheus/rules.yml"
BOARDS = sorted(generate.BOARDS)
CAUSES = tuple(
    f"tests/{path}.py"
    for path in ("federation/test_alerts", "chaos/test_alerts", "federation/test_serving_drift")
)
"""Where the causes of alerts are made, of real parts."""
JOB = """
name = "watched"
strategy = "histogram"
seed = 1
min_silos = 3
silos = ["s0", "s1", "s2"]
metrics = ["auc"]
[histogram]
rounds = 2000
secure = true
[booster]
max_depth = 2
"""


def promtool(*arguments: str | Path) -> None:
    program = shutil.which("promtool")
    assert program is not None, "promtool is not installed: run `make services`"
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def panels(board: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((GRAFANA / f"{board}.json").read_text())["panels"]
    return found


def expressions() -> Iterator[tuple[str, str]]:
    """Yield the name and the query of every target of every panel, its variables filled in."""
    for board in BOARDS:
        for panel in panels(board):
            for target in panel["targets"]:
                text = target["expr"]
                for name, value in (("$__rate_interval", "20s"), ("$__range", "5m")):
                    text = text.replace(name, value)
                assert "$" not in text, text
                yield f"{board}: {panel['title']} {target['refId']}", text


@pytest.mark.parametrize("board", BOARDS)
def test_committed_dashboards_are_what_the_generator_writes(board: str) -> None:
    assert (GRAFANA / f"{board}.json").read_text() == generate.render(board)


@pytest.mark.parametrize("board", BOARDS)
def test_grafanas_own_library_reads_every_field_of_a_dashboard(board: str) -> None:
    plugins.register_default_plugins()
    text = json.loads((GRAFANA / f"{board}.json").read_text())
    read = dashboard.Dashboard.from_json(text)
    assert json.loads(JSONEncoder(sort_keys=True).encode(read)) == text


def test_no_dashboard_is_left_that_nothing_generates() -> None:
    assert sorted(path.stem for path in GRAFANA.glob("*.json")) == BOARDS


def test_what_the_panel_of_times_leaves_out_are_calls() -> None:
    calls = re.findall(
        r"rpc (\w+)", "".join(p.read_text() for p in (ROOT / "proto").rglob("*.proto"))
    )
    assert set(generate.WAITS.split("|")) < set(calls)


def test_rules_and_configuration_are_valid() -> None:
    promtool("check", "config", ROOT / "deploy/prometheus/prometheus.yml")


def test_rules_raise_and_record_what_they_should() -> None:
    promtool("test", "rules", ROOT / "tests/deploy/rules.yml")


def test_a_job_that_waits_is_told_of_in_half_of_its_time() -> None:
    rule = RULES.read_text().partition("alert: HedgerowJobWaits")[2].partition("- alert:")[0]
    of_silos, of_steps, _ = (float(one) for one in re.findall(r"> (\d+)\)?\n", rule))
    unless_set = {one.name: one.default for one in fields(JobParameters)}
    assert of_silos == unless_set["start_timeout_seconds"] / 2
    assert of_steps == unless_set["step_timeout_seconds"] / 2


def test_every_alert_has_its_test_and_its_place_in_the_operations_guide() -> None:
    alerts = re.findall(r"- alert: (\w+)", RULES.read_text())
    tests = (ROOT / "tests/deploy/rules.yml").read_text()
    guide = (ROOT / "docs/operations.md").read_text()
    assert len(alerts) == len(set(alerts)) > 0
    for alert in alerts:
        assert re.search(rf"alertname: {alert}\n\s+exp_alerts:\n\s+- exp_labels", tests), alert
        assert f"`{alert}`" in guide, alert
    made = "".join((ROOT / path).read_text() for path in CAUSES)
    assert [one for one in alerts if one.removeprefix("Hedgerow") not in made] == []


def test_alertmanager_tells_who_is_to_hear_and_not_what_follows_from_another_alert(
    tmp_path: Path,
) -> None:
    text = ALERTMANAGER.read_text()
    assert set(re.findall(r"Hedgerow[A-Z]\w+", text)) <= set(
        re.findall(r"- alert: (\w+)", RULES.read_text())
    )

    def alert(name: str, severity: str, **labels: str) -> dict[str, str]:
        return {"alertname": name, "severity": severity, **labels}

    with alertmanager(tmp_path) as server:
        server.post(
            alert("HedgerowNoActiveCoordinator", "critical"),
            alert("HedgerowCertificateEnded", "critical", instance="a"),
        )
        wait_until(lambda: len(server.told) == 2, 60, "on-call hears")
        server.post(
            alert("HedgerowLeaseLost", "warning", instance="a"),
            alert("HedgerowCertificateEnding", "warning", instance="a"),
            alert("HedgerowCertificateEnding", "warning", instance="b"),
            alert("HedgerowDiskFilling", "warning", instance="c"),
            alert("HedgerowAgentDown", "warning", instance="d"),
            alert("HedgerowSiloAway", "warning", silo="e"),
        )
        wait_until(lambda: len(server.told) == 6, 60, "operators hear")
        assert sorted(server.told) == [
            ("on-call", "HedgerowCertificateEnded", "firing"),
            ("on-call", "HedgerowNoActiveCoordinator", "firing"),
            ("operators", "HedgerowAgentDown", "firing"),
            ("operators", "HedgerowCertificateEnding", "firing"),
            ("operators", "HedgerowDiskFilling", "firing"),
            ("operators", "HedgerowSiloAway", "firing"),
        ]


@contextmanager
def vaults(fed: Federation) -> Iterator[RemoteVault]:
    """Give every silo its crypto process; yields the vault of the first."""
    for silo in fed.silos:
        fed.start_agent(silo, crypto=fed.start_crypto(silo))
    address = f"127.0.0.1:{fed.ports['crypto-s0']['port']}"
    credentials = channel_credentials(IdentityPaths.of(fed.folder / "pki/silo/s0"))
    channel = dial(address, credentials, Metrics())
    try:
        yield RemoteVault(lambda: channel, address)
    finally:
        channel.close()


@contextmanager
def encrypting(vault: RemoteVault) -> Iterator[None]:
    """Keep a crypto process at work on ciphertexts, as a vertical job does."""
    ended = threading.Event()
    failures: list[VaultRefused] = []

    def work() -> None:
        try:
            vault.create_cipher_key("watched")
            while not ended.wait(0.2):
                found = vault.encrypt_integers("watched", [1, 2, 3])
                assert vault.decrypt_integers("watched", found) == [1, 2, 3]
        except VaultRefused as failure:
            failures.append(failure)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert not failures


def shown(scraped: Prometheus, expression: str) -> bool:
    """Tell whether a query has a finite value now."""
    return any(math.isfinite(value) for _, value in scraped.query(expression))


def test_every_panel_shows_a_live_job_and_what_it_moved_stays_visible(tmp_path: Path) -> None:
    with federation(tmp_path, n_rows=300, start=False, lease_seconds=10.0) as fed:
        fed.start_coordinator()
        with vaults(fed) as vault:
            port = {name: f"127.0.0.1:{p['metrics_port']}" for name, p in fed.ports.items()}
            targets = {
                "coordinator": [port["coordinator"]],
                "agents": [port[f"agent-{silo}"] for silo in fed.silos],
                "crypto": [port[f"crypto-{silo}"] for silo in fed.silos],
            }
            with prometheus(tmp_path / "prometheus", targets) as scraped, encrypting(vault):
                job_id = fed.submit(JOB)
                fed.wait(job_id, lambda view: view.ended or len(view.rounds) >= 5, 120)
                started = time.monotonic()
                empty = dict(expressions())
                rejected = "federation: Rejected offers A"  # there are none, and their counts are 0
                empty[rejected] = empty[rejected].replace(" > 0)", ")")
                assert len(empty) > 35
                while empty and time.monotonic() - started < PATIENCE_SECONDS:
                    empty = {k: text for k, text in empty.items() if not shown(scraped, text)}
                assert not empty
                # The plan of each step is beside what it moved; who is gone is awaited, by name.
                a_round = next(e for n, e in expressions() if "Bytes a round by step B" in n)
                of_steps = {labels["method"] for labels, _ in scraped.query(a_round)}
                assert {"ExchangeHistograms", "ExchangeSums"} <= of_steps
                fed.kill("agent-s2")
                awaited = 'hedgerow_awaited_seconds{silo="%s"}'
                wait_until(
                    lambda: any(v > 0 for _, v in scraped.query(awaited % "s2")),
                    60,
                    "s2 is awaited",
                )
                assert fed.client.cancel(job_id) == "CANCELLED"
                fed.kill("coordinator")
                for name, expression in expressions():
                    if "message_bytes" in expression and "5m" in expression:
                        assert shown(scraped, expression), name
