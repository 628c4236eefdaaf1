"""Agents and operators behind real proxies that ask who they are: tinyproxy and microsocks."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from hedgerow.boosting.errors import FederationError
from hedgerow.coordinator.cli import main
from hedgerow.services.rpc.proxies import Proxy, ProxyRefused
from tests.federation.processes import Federation, federation, wait_until
from tests.federation.test_faults import job

PASSWORD = "Word1"
"""Debian's tinyproxy takes letters and digits only."""
QUOTED = "%57ord1"


class Running:
    """A running proxy."""

    def __init__(self, scheme: str, port: int, log: Path, connected: str) -> None:
        self.scheme, self.port, self._log, self._connected = scheme, port, log, connected

    def url(self, password: str = QUOTED) -> str:
        return f"{self.scheme}://silo:{password}@127.0.0.1:{self.port}"

    @property
    def nameless(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def connects(self, host: str = "127.0.0.1") -> int:
        """Return how often it has connected to a host as its clients have named it."""
        return self._log.read_text().count(f"{self._connected} {host}:")

    @property
    def ready(self) -> bool:
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", self.port)) == 0


def found(program: str) -> str:
    path = shutil.which(program)
    assert path is not None, f"{program} is not installed: run `make services`"
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(made: Running, words: list[str], log: Path | None = None) -> Iterator[Running]:
    """Run a proxy, whose log is its standard error if it writes none; it is gone afterwards."""
    with open(log or "/dev/null", "w") as told:
        process = subprocess.Popen(words, stderr=told)
    try:
        wait_until(lambda: made.ready or process.poll() is not None, 30, f"{words[0]} listens")
        yield made
    finally:
        process.terminate()
        process.wait(200)


@contextmanager
def tinyproxy(folder: Path, ports: list[int]) -> Iterator[Running]:
    """Run one that connects to some ports of 127.0.0.1 only."""
    port, log = free_port(), folder / "tinyproxy.log"
    lines = [f"Port {port}", "Listen 127.0.0.1", "Timeout 600", "LogLevel Connect",
             f'LogFile "{log}"', f"BasicAuth silo {PASSWORD}",
             *(f"ConnectPort {one}" for one in ports)]  # fmt: skip
    (folder / "tinyproxy.conf").write_text("\n".join(lines) + "\n")
    words = [found("tinyproxy"), "-d", "-c", str(folder / "tinyproxy.conf")]
    with running(Running("http", port, log, "CONNECT"), words) as made:
        yield made


@contextmanager
def microsocks(folder: Path, _: object = None) -> Iterator[Running]:
    """Run a SOCKS5 proxy, which connects wherever somebody listens."""
    port, log = free_port(), folder / "microsocks.log"
    words = [found("microsocks"), "-i", "127.0.0.1", "-p", str(port), "-u", "silo", "-P", PASSWORD]
    with running(Running("socks5", port, log, "connected to"), words, log) as made:
        yield made


@pytest.fixture(autouse=True)
def _no_exceptions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this machine's own proxies, which may except 127.0.0.1."""
    for name in ("no_proxy", "https_proxy", "http_proxy", "all_proxy", "grpc_proxy"):
        for variable in (name, name.upper()):
            monkeypatch.delenv(variable, raising=False)


def port_of(fed: Federation) -> int:
    return fed.ports["coordinator"]["port"]


@pytest.mark.parametrize("kind", [tinyproxy, microsocks])
def test_a_job_runs_through_a_proxy_that_asks_for_a_password(
    kind: Callable[..., AbstractContextManager[Running]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with federation(tmp_path, start=False) as fed:
        fed.start_coordinator()
        with kind(tmp_path, [port_of(fed)]) as proxy:
            fed.start_agent("s0", proxy=proxy.url())
            fed.start_agent("s1", proxy=proxy.url())
            variable = "HTTPS_PROXY" if proxy.scheme == "http" else "ALL_PROXY"
            fed.own["agent-s2"] = {variable: proxy.url()}
            fed.start_agent("s2", proxy="environment")
            wait_until(lambda: proxy.connects() >= 3, 60, "three agents have connected")
            before = proxy.connects()
            monkeypatch.setenv("HEDGEROW_PROXY", proxy.url())
            job_id = fed.submit(job())
            view = fed.end(job_id)
            assert view.state == "SUCCEEDED", view.detail
            assert proxy.connects() > before
            monkeypatch.setenv("no_proxy", "127.0.0.1")
            before = proxy.connects()
            fed._clients.clear()
            assert fed.client.get(job_id).state == "SUCCEEDED"
            assert proxy.connects() == before
        wait_until(lambda: "not reachable" in fed.log("agent-s0"), 60, "s0 says who is away")
        assert PASSWORD not in fed.log("agent-s0")
        assert QUOTED not in fed.log("agent-s0")


Doctor = Callable[..., dict[str, str]]


@pytest.fixture
def doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Doctor:
    def run(proxy: str, address: str) -> dict[str, str]:
        monkeypatch.setenv("HEDGEROW_PROXY", proxy)
        operator = str(tmp_path / "pki/operator")
        words = ["doctor", "--coordinator", address, "--identity", operator, "--json"]
        done = CliRunner().invoke(main, words)
        found = {one["check"]: one for one in json.loads(done.output)}
        assert done.exit_code == (0 if all(one["good"] for one in found.values()) else 1)
        assert PASSWORD not in done.output
        assert QUOTED not in done.output
        return {check: one["said"] for check, one in found.items()}

    return run


@pytest.mark.parametrize("kind", [tinyproxy, microsocks])
def test_doctor_tells_the_faults_of_a_proxy_apart(
    kind: Callable[..., AbstractContextManager[Running]], tmp_path: Path, doctor: Doctor
) -> None:
    with federation(tmp_path, start=False) as fed:
        fed.start_coordinator()
        with kind(tmp_path, [port_of(fed)]) as proxy:
            found = doctor(proxy.url(), fed.address)
            assert "connects to 127.0.0.1" in found["coordinator proxy"]
            assert "answers" in found["coordinator"]
            wrong = doctor(proxy.url("wrong"), fed.address)["coordinator proxy"]
            assert "authentication refused" in wrong
            nameless = doctor(proxy.nameless, fed.address)["coordinator proxy"]
            assert "authentication refused" in nameless
            elsewhere = doctor(proxy.url(), f"127.0.0.1:{free_port()}")["coordinator proxy"]
            assert "refused to connect" in elsewhere
        gone = doctor(proxy.url(), fed.address)["coordinator proxy"]
        assert "not reachable (Connection refused)" in gone
        other = doctor(f"{proxy.scheme}://{fed.address}", fed.address)["coordinator proxy"]
        assert f"no {proxy.scheme.upper()} proxy answers there" in other
        malformed = doctor("ftp://127.0.0.1:1", fed.address)["coordinator dns"]
        assert "expected http:// or socks5://" in malformed


def test_a_socks_proxy_resolves_the_coordinators_name(tmp_path: Path, doctor: Doctor) -> None:
    with federation(tmp_path, start=False) as fed:
        fed.start_coordinator()
        with microsocks(tmp_path) as proxy:
            found = doctor(proxy.url(), f"localhost:{port_of(fed)}")
            assert "answers" in found["coordinator"]
            assert proxy.connects("localhost") >= 2  # by the probe and by gRPC
            unknown = doctor(proxy.url(), "nobody.invalid:7443")["coordinator proxy"]
            assert "refused to connect (to nobody.invalid:7443: " in unknown


def test_nobody_else_of_the_machine_goes_out_by_the_door(tmp_path: Path) -> None:
    with microsocks(tmp_path) as proxy, socket.create_server(("127.0.0.1", 0)) as server:
        there = f"127.0.0.1:{server.getsockname()[1]}"
        door = Proxy.parse(dict(Proxy.parse(proxy.url()).options)["grpc.http_proxy"])
        door.connect(there, 5).close()
        assert proxy.connects() == 1
        for stranger in (door._replace(password="guessed"), door._replace(user="", password="")):
            with pytest.raises(ProxyRefused, match="authentication refused"):
                stranger.connect(there, 5)
        assert proxy.connects() == 1


WRONG = [
    "127.0.0.1:3128",
    "https://h:1",
    "http://h",
    "http://h:x",
    "x",
    "socks4://h:1",
    "socks5://h",
]


@pytest.mark.parametrize("url", WRONG)
def test_a_malformed_proxy_is_refused_when_the_agent_starts(tmp_path: Path, url: str) -> None:
    with pytest.raises(FederationError, match="proxy: expected http:// or socks5://"):
        Proxy.parse(url)


def test_a_password_that_socks_cannot_carry_is_refused() -> None:
    with pytest.raises(FederationError, match="255 bytes of user and password at most") as refused:
        Proxy.parse(f"socks5://user:{'hidden' * 50}@h:1")
    assert "hidden" not in str(refused.value)


def test_a_proxy_that_is_shown_has_no_password() -> None:
    assert repr(Proxy.parse("http://user:hidden@proxy.example:3128")) == "Proxy(proxy.example:3128)"
