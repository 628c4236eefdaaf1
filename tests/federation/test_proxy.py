"""Agents and operators behind a real HTTP proxy, tinyproxy, that asks who they are."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from hedgerow.coordinator.cli import main
from hedgerow.services.rpc.proxies import Proxy
from tests.federation.processes import Federation, federation, wait_until
from tests.federation.test_faults import job

PASSWORD = "Word1"
"""Debian's tinyproxy takes letters and digits only."""
QUOTED = "%57ord1"


class Tinyproxy:
    """A running proxy."""

    def __init__(self, port: int, log: Path) -> None:
        self.port, self._log = port, log

    def url(self, password: str = QUOTED) -> str:
        return f"http://silo:{password}@127.0.0.1:{self.port}"

    @property
    def connects(self) -> int:
        return self._log.read_text().count("CONNECT 127.0.0.1:")

    @property
    def ready(self) -> bool:
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", self.port)) == 0


@contextmanager
def tinyproxy(folder: Path, ports: list[int]) -> Iterator[Tinyproxy]:
    """Run one that connects to some ports of 127.0.0.1 only; it is gone afterwards."""
    program = shutil.which("tinyproxy")
    assert program is not None, "tinyproxy is not installed: run `make services`"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = folder / "tinyproxy.log"
    lines = [f"Port {port}", "Listen 127.0.0.1", "Timeout 600", "LogLevel Connect",
             f'LogFile "{log}"', f"BasicAuth silo {PASSWORD}",
             *(f"ConnectPort {one}" for one in ports)]  # fmt: skip
    (folder / "tinyproxy.conf").write_text("\n".join(lines) + "\n")
    process = subprocess.Popen([program, "-d", "-c", str(folder / "tinyproxy.conf")])
    try:
        made = Tinyproxy(port, log)
        wait_until(lambda: made.ready or process.poll() is not None, 30, "tinyproxy listens")
        yield made
    finally:
        process.terminate()
        process.wait(200)


@pytest.fixture(autouse=True)
def _no_exceptions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this machine's own proxies, which may except 127.0.0.1."""
    for name in ("no_proxy", "https_proxy", "http_proxy", "all_proxy", "grpc_proxy"):
        for variable in (name, name.upper()):
            monkeypatch.delenv(variable, raising=False)


def port_of(fed: Federation) -> int:
    return fed.ports["coordinator"]["port"]


def test_a_job_runs_through_a_proxy_that_asks_for_a_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with federation(tmp_path, start=False) as fed:
        fed.start_coordinator()
        with tinyproxy(tmp_path, [port_of(fed)]) as proxy:
            fed.start_agent("s0", proxy=proxy.url())
            fed.start_agent("s1", proxy=proxy.url())
            fed.own["agent-s2"] = {"HTTPS_PROXY": proxy.url()}
            fed.start_agent("s2", proxy="environment")
            wait_until(lambda: proxy.connects >= 3, 60, "three agents have connected")
            before = proxy.connects
            monkeypatch.setenv("HEDGEROW_PROXY", proxy.url())
            job_id = fed.submit(job())
            view = fed.end(job_id)
            assert view.state == "SUCCEEDED", view.detail
            assert proxy.connects > before
            monkeypatch.setenv("no_proxy", "127.0.0.1")
            before = proxy.connects
            fed._clients.clear()
            assert fed.client.get(job_id).state == "SUCCEEDED"
            assert proxy.connects == before
        wait_until(lambda: "not reachable" in fed.log("agent-s0"), 60, "s0 says who is away")
        assert PASSWORD not in fed.log("agent-s0")
        assert QUOTED not in fed.log("agent-s0")


def test_doctor_tells_the_faults_of_a_proxy_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with federation(tmp_path, start=False) as fed:
        fed.start_coordinator()

        def doctor(proxy: str) -> dict[str, str]:
            monkeypatch.setenv("HEDGEROW_PROXY", proxy)
            operator = str(tmp_path / "pki/operator")
            words = ["doctor", "--coordinator", fed.address, "--identity", operator, "--json"]
            done = CliRunner().invoke(main, words)
            found = {one["check"]: one for one in json.loads(done.output)}
            assert done.exit_code == (0 if all(one["good"] for one in found.values()) else 1)
            assert PASSWORD not in done.output
            assert QUOTED not in done.output
            return {check: one["said"] for check, one in found.items()}

        with tinyproxy(tmp_path, [port_of(fed)]) as proxy:
            found = doctor(proxy.url())
            assert "connects to 127.0.0.1" in found["coordinator proxy"]
            assert "answers" in found["coordinator"]
            wrong = doctor(proxy.url("wrong"))["coordinator proxy"]
            assert "authentication refused" in wrong
            nobody = f"http://127.0.0.1:{proxy.port}"
            assert "authentication refused" in doctor(nobody)["coordinator proxy"]
        with tinyproxy(tmp_path, [1]) as proxy:
            assert "refused to connect" in doctor(proxy.url())["coordinator proxy"]
        gone = doctor(proxy.url())["coordinator proxy"]
        assert "not reachable (Connection refused)" in gone
        assert "no HTTP proxy answers there" in doctor(f"http://{fed.address}")["coordinator proxy"]
        assert "expected http://HOST:PORT" in doctor("socks5://127.0.0.1:1")["coordinator dns"]


@pytest.mark.parametrize("url", ["127.0.0.1:3128", "https://h:1", "http://h", "http://h:x", "x"])
def test_a_malformed_proxy_is_refused_when_the_agent_starts(tmp_path: Path, url: str) -> None:
    with pytest.raises(Exception, match="proxy: expected http://HOST:PORT"):
        Proxy.parse(url)


def test_a_proxy_that_is_shown_has_no_password() -> None:
    assert repr(Proxy.parse("http://user:hidden@proxy.example:3128")) == "Proxy(proxy.example:3128)"
