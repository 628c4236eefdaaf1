"""Proxies on the way that cut what is idle, or all connections every few minutes.

``IDLE_MINUTES=15 pytest tests/chaos/test_idle_proxies.py`` takes the times that such proxies have:
idle connections are cut after 60 s, all connections every 5 minutes, in a job of a quarter of an
hour. Without it the times are seconds, but longer than those of the keepalive.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.chaos.arena import arena
from tests.chaos.proxy import Proxy
from tests.chaos.work import job

MINUTES = float(os.environ.get("IDLE_MINUTES", "0"))
IDLE_SECONDS, EVERY_SECONDS = (60.0, 300.0) if MINUTES else (8.0, 5.0)
"""The server's keepalive sends something every 5 s."""
STRETCH_SECONDS = 1.5 * IDLE_SECONDS
N_STRETCHES = max(int(60.0 * MINUTES / STRETCH_SECONDS), 1)


@pytest.mark.timeout(300.0 + 120.0 * MINUTES)
def test_keepalive_holds_what_is_idle_and_what_is_cut_costs_no_attempt(tmp_path: Path) -> None:
    with arena(tmp_path, start=False, lease_seconds=2.0 * STRETCH_SECONDS) as fed:
        fed.start_coordinator()
        vault = {
            "listen": "127.0.0.1:0",
            "metrics": "127.0.0.1:0",
            "silo": "s0",
            "identity": str(tmp_path / "pki/crypto/s0"),
            "state": str(tmp_path / "vault"),
        }
        fed._spawn("crypto", "crypto", vault)
        # Between attempts' calls nothing passes on an agent's way to its crypto process.
        between = Proxy(fed.ports["crypto"]["port"], idle_seconds=IDLE_SECONDS)
        try:
            fed.habits = {"idle_seconds": IDLE_SECONDS}
            fed.start_agent("s0", crypto=f"127.0.0.1:{between.port}")
            fed.start_agent("s1")
            fed.habits = {"every_seconds": EVERY_SECONDS}
            fed.start_agent("s2")
            text = job("histogram", timeout=10.0 * STRETCH_SECONDS)
            undisturbed = fed.undisturbed("histogram", text)
            each = undisturbed.exchanges["s1"] // (N_STRETCHES + 1)
            job_id = fed.submit(text)
            before = between.cuts, fed.proxies["s0"].cuts
            for stretch in range(N_STRETCHES):
                fed.wait(
                    job_id, lambda v, n=stretch: v.ended or fed.exchanges("s1", job_id) > n * each
                )  # type: ignore[misc]
                fed.kill("agent-s1", signal.SIGSTOP)
                time.sleep(STRETCH_SECONDS)
                fed.kill("agent-s1", signal.SIGCONT)
            view = fed.end(job_id)
            assert (view.state, view.attempt) == ("SUCCEEDED", 1), view.detail
            assert fed.digests(view) == undisturbed.digests
            assert (between.cuts, fed.proxies["s0"].cuts) == before, "something was idle"
            assert fed.proxies["s2"].cuts > 0
            for name in fed.processes:
                assert "Traceback" not in fed.log(name)
        finally:
            between.close()
