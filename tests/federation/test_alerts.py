"""Alerts of a real Prometheus whose minutes are seconds: each cause is made, and no other fires.

Faults of stores and disks are in ``tests/chaos/test_alerts.py``, with the rules as they are.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from hedgerow.boosting.errors import FederationError, Unauthorised
from hedgerow.coordinator.operator.library.clients import client_for
from hedgerow.coordinator.server.standby import exclusive_lease
from hedgerow.services.identity.certificates import IdentityPaths, Role
from hedgerow.services.identity.peers import channel_credentials
from hedgerow.services.rpc.channel import dial
from hedgerow.services.rpc.crypto import RemoteVault
from hedgerow.services.rpc.errors import Damaged
from hedgerow.services.rpc.metering import Metrics
from tests.adversary.people import People
from tests.chaos.proxy import Proxy
from tests.federation.processes import ROOT, Federation, wait_until, write_table
from tests.federation.prometheus import Prometheus, free_port, prometheus
from tests.federation.test_faults import job, rounds_done, succeeded

pytestmark = pytest.mark.slow
RULES = ROOT / "deploy/prometheus/rules.yml"
SILOS = ("s0", "s1", "s2")
DAY = 86400.0
DOWN = {f"Hedgerow{name}Down" for name in ("Agent", "Crypto", "Coordinator")}
DOWN |= {"HedgerowNoActiveCoordinator"}
"""Alerts for which one scrape that took too long is enough here."""
QUEUED = 8
"""Calls at a time of a crypto process that has one worker."""


QUICK = (
    ("[1h]", "[60m]"), ("> 900", "> 15"), ("> 1e6", "> 16667"), ("for: 30s", "for: 1s"),
    # Not a sixtieth: so long may jobs of a busy machine wait for silos that are all there.
    ("> 60\n", "> 10\n"), ("> 300\n", "> 10\n"),
    # Not 30 s: a scrape that a busy machine misses begins it again.
    ("for: 30m", "for: 1s"),
    # Four starts of a process take a busy machine longer than 30 s.
    ("[30m]) > 3", "[600m]) > 3"),
)  # fmt: skip
"""What becomes a sixtieth beside minutes."""


def quickened(folder: Path) -> Path:
    """Write the rules with a sixtieth of each duration, longest wait and bytes an hour."""
    text, path = RULES.read_text(), folder / "rules.yml"
    for written, quick in QUICK:
        assert written in text
        text = text.replace(written, quick)
    path.write_text(re.sub(r"\b(\d+)m\b", r"\1s", text))
    return path


class Watched(Federation):
    """Three silos, one with a crypto process; their metrics are where Prometheus looks for them."""

    def __init__(self, folder: Path) -> None:
        self.people = People(folder / "pki")
        self.people.make("coordinator", Role.COORDINATOR, "coordinator", "127.0.0.1")
        self.people.make("operator", Role.OPERATOR, "ann")
        self.people.make("crypto/s0", Role.CRYPTO, "s0", "127.0.0.1")
        tables = {s: write_table(folder / f"{s}.parquet", 300, k) for k, s in enumerate(SILOS)}
        for silo in SILOS:
            self.people.make(f"silo/{silo}", Role.SILO, silo)
        names = ("coordinator", "crypto-s0", *(f"agent-{silo}" for silo in SILOS))
        self.metrics = {name: f"127.0.0.1:{free_port()}" for name in names}
        super().__init__(
            folder,
            tables,
            make_certificates=False,
            lease_seconds=4.0,
            metrics=self.metrics["coordinator"],
        )

    def start(self) -> Watched:
        self.start_coordinator()
        self.crypto = self.start_own_crypto()
        for silo in SILOS:
            self.start_own(silo)
        return self

    def start_own(self, silo: str, **extra: Any) -> None:
        crypto = {"crypto": self.crypto} if silo == "s0" else {}
        self.start_agent(silo, metrics=self.metrics[f"agent-{silo}"], **crypto, **extra)

    def start_own_crypto(self) -> str:
        return self.start_crypto("s0", metrics=self.metrics["crypto-s0"], workers=1)


@contextmanager
def watched(folder: Path) -> Iterator[tuple[Watched, Prometheus]]:
    """Start a federation and what looks at it; no alert fires before."""
    fed = Watched(folder)
    targets = {
        "coordinator": [fed.metrics["coordinator"]],
        "agents": [fed.metrics[f"agent-{silo}"] for silo in SILOS],
        "crypto": [fed.metrics["crypto-s0"]],
    }
    try:
        fed.start()
        wait_until(lambda: [one.alive for one in fed.client.silos()] == [True] * 3, 60, "all")
        with prometheus(folder / "prometheus", targets, quickened(folder)) as server:
            wait_until(lambda: sum(up for _, up in server.query("up")) == 5, 60, "all are seen")
            quiet(server)
            yield fed, server
    finally:
        fed.stop()


def fires(server: Prometheus, *alerts: str) -> None:
    """Wait until these alerts fire, and no other does (one scrape that is missed raises some)."""
    expected = {f"Hedgerow{alert}" for alert in alerts}
    seen: set[str] = set()

    def only_these() -> bool:
        nonlocal seen
        seen = server.firing()
        assert not (seen >= expected and seen - expected - DOWN), seen
        return seen == expected

    try:
        wait_until(only_these, 120, f"only {alerts} fire")
    except AssertionError as error:
        error.add_note(f"fire at last: {sorted(seen)}")
        raise


def quiet(server: Prometheus) -> None:
    wait_until(lambda: not server.firing(), 120, "no alert fires")


def test_processes_that_are_down_and_those_that_do_not_stay_up(tmp_path: Path) -> None:
    with watched(tmp_path) as (fed, server):
        fed.kill("agent-s2")
        fires(server, "AgentDown", "SiloAway")
        fed.start_own("s2")
        quiet(server)
        fed.kill("crypto-s0")
        fires(server, "CryptoDown")
        fed.start_own_crypto()
        quiet(server)
        fed.kill("coordinator")
        fires(server, "CoordinatorDown", "LeaseLost")
        # Somebody holds the database, as a restore does.
        with exclusive_lease(fed.coordinator_settings["database"]):
            fed.start_coordinator()
            fires(server, "NoActiveCoordinator", "LeaseLost")
        quiet(server)
        began = "max_over_time(process_start_time_seconds{job='crypto'}[10m])"
        for _ in range(4):
            before = server.query(began)[0][1]
            fed.kill("crypto-s0")
            fed.start_own_crypto()
            wait_until(lambda: server.query(began)[0][1] > before, 60, "it is seen")  # noqa: B023
        fires(server, "Restarts")


def test_a_job_that_waits_stalls_and_fails(tmp_path: Path) -> None:
    with watched(tmp_path) as (fed, server):
        waits = "".join(
            line for line in job(rounds=20_000).splitlines(True) if "timeout_seconds" not in line
        )
        job_id = fed.submit(waits)
        fed.wait(job_id, rounds_done(2))
        fed.kill("agent-s2", signal.SIGSTOP)
        fires(server, "AgentDown", "SiloAway", "JobWaits", "RoundsStalled")
        assert not fed.client.get(job_id).ended
        fed.kill("agent-s2", signal.SIGCONT)
        quiet(server)
        assert fed.client.cancel(job_id) == "CANCELLED"
        failing = fed.submit(job(rounds=20_000, timeout=3))
        fed.wait(failing, rounds_done(2))
        fed.kill("agent-s2", signal.SIGSTOP)
        wait_until(lambda: "HedgerowJobFailed" in server.firing(), 60, "it has failed")
        assert fed.client.get(failing).state == "FAILED"
        fed.kill("agent-s2", signal.SIGCONT)
        quiet(server)


def test_links_that_break_move_more_bytes_than_planned(tmp_path: Path) -> None:
    with watched(tmp_path) as (fed, server):
        port = fed.ports["coordinator"]["port"]
        breaking, slow = Proxy(port), Proxy(port)
        try:
            for silo, link in zip(SILOS, (breaking, breaking, slow), strict=True):
                fed.kill(f"agent-{silo}", signal.SIGTERM)
                fed.start_own(silo, coordinator=f"127.0.0.1:{link.port}")
            wait_until(lambda: [one.alive for one in fed.client.silos()] == [True] * 3, 60, "all")
            slow.delay(1.0)  # each round waits for this silo: the others offer again after a cut
            quiet(server)
            text = job(rounds=20_000, timeout=600)  # the size of trees is not planned
            job_id = fed.submit(text.replace("bagging", "histogram"))
            fed.wait(job_id, rounds_done(1))
            planned = "sum by (direction) (hedgerow_planned_bytes_total)"
            undisturbed = f"sum by (direction) (hedgerow_round_bytes_sum) / ({planned} > 0)"
            ratios: list[float] = []

            def seen() -> bool:
                ratios[:] = [ratio for _, ratio in server.query(undisturbed)]
                return len(ratios) == 2

            wait_until(seen, 60, "up and down are seen")
            assert max(ratios) < 1.2, ratios
            breaking.cut_every(1.0)
            fires(server, "BytesAbovePlan")
            assert fed.client.get(job_id).attempt == 1
            assert fed.client.cancel(job_id) == "CANCELLED"
        finally:
            breaking.close()
            slow.close()


def test_calls_that_are_refused_and_those_that_fail(tmp_path: Path) -> None:
    with watched(tmp_path) as (fed, server):
        stranger = client_for(fed.address, tmp_path / "pki/silo/s0", None)
        with pytest.raises(Unauthorised):
            stranger.silos()
        fires(server, "CallsRefused")
        quiet(server)
        job_id = fed.submit(job(rounds=2))
        succeeded(fed.end(job_id))
        name, _ = fed.client.download(job_id)
        model = tmp_path / "artefacts" / job_id / name
        model.write_bytes(model.read_bytes()[:-1])
        with pytest.raises(Damaged):
            fed.client.download(job_id)
        fires(server, "InternalErrors")
        quiet(server)


def test_certificates_that_end_have_ended_and_cannot_be_read(tmp_path: Path) -> None:
    with watched(tmp_path) as (fed, server):
        fed.people.make("silo/s2", Role.SILO, "s2", seconds=6 * DAY)
        fires(server, "CertificateEnding")
        fed.people.make("silo/s2", Role.SILO, "s2")
        quiet(server)
        certificate = IdentityPaths.of(tmp_path / "pki/silo/s1").certificate
        kept = certificate.read_bytes()
        certificate.write_bytes(b"")
        fires(server, "CertificateUnreadable")
        certificate.write_bytes(kept)
        quiet(server)
        fed.people.make("silo/s2", Role.SILO, "s2", seconds=20.0)
        wait_until(lambda: "HedgerowLeaseLost" in server.firing(), 60, "it is refused")
        ended = ("CertificateEnded", "CertificateEnding", "LeaseLost", "SiloAway", "CallsRefused")
        fires(server, *ended)
        assert fed.alive("agent-s2")


def test_calls_that_wait_for_a_crypto_process(tmp_path: Path) -> None:
    with watched(tmp_path) as (fed, server):
        channel = dial(
            fed.crypto, channel_credentials(IdentityPaths.of(tmp_path / "pki/silo/s0")), Metrics()
        )
        vault = RemoteVault(lambda: channel, fed.crypto)
        vault.create_cipher_key("watched")
        ended = threading.Event()

        def work() -> None:
            with suppress(FederationError):
                while not ended.is_set():
                    vault.encrypt_integers("watched", list(range(500)))

        threads = [threading.Thread(target=work) for _ in range(QUEUED)]
        for thread in threads:
            thread.start()
        try:
            fires(server, "CryptoQueue")
        finally:
            ended.set()
            for thread in threads:
                thread.join()
            channel.close()
        quiet(server)
