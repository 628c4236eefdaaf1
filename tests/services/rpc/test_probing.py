"""Why a server cannot be reached, on real TLS servers; and what `hedgerow doctor` makes of it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner

from hedgerow.coordinator.cli import main
from hedgerow.services.identity.authority import throwaway
from hedgerow.services.identity.certificates import IdentityPaths
from hedgerow.services.rpc.metering import Metrics
from hedgerow.services.rpc.probing import probe, why_not
from hedgerow.services.rpc.server import Serving, serve
from tests.federation.processes import ROOT, toml, write_table

pytestmark = pytest.mark.process


@dataclass
class Ground:
    """Servers of federation ``ours``: a coordinator, one whose certificate has expired, crypto."""

    folder: Path
    port: int
    expired: int
    crypto: int

    def identity(self, federation: str, who: str) -> Path:
        return self.folder / federation / who


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    folder = tmp_path_factory.mktemp("probing")
    now, then = time.time(), time.time() - 90 * 86400
    throwaway(folder / "ours", ["north"], now)
    throwaway(folder / "theirs", ["north"], now)
    throwaway(folder / "old", ["north"], then)
    # Trusts the CA of `ours`, which did not sign it.
    shutil.copytree(folder / "theirs/silo/north", folder / "theirs/stranger")
    shutil.copy(folder / "ours/operator/ca.crt", folder / "theirs/stranger/ca.crt")
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def run(made: Callable[[], object]) -> object:
        return asyncio.run_coroutine_threadsafe(made(), loop).result(60)  # type: ignore[arg-type]

    servers: list[Serving] = []

    def listen(place: str) -> int:
        paths = IdentityPaths.of(folder / place)
        pair = (paths.key.read_bytes(), paths.certificate.read_bytes())
        # Not server_credentials, which refuses a certificate that has expired.
        credentials = grpc.ssl_server_credentials([pair], paths.roots.read_bytes(), True)
        found = run(lambda: serve("127.0.0.1:0", [], Metrics(), credentials))
        assert isinstance(found, Serving)
        servers.append(found)
        return found.port

    try:
        places = ("ours/coordinator", "old/coordinator", "ours/crypto/north")
        yield Ground(folder, *map(listen, places))
    finally:
        for server in servers:
            run(server.stop)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(200)
        loop.close()


def test_a_sound_server_is_found_at_each_step(ground: Ground) -> None:
    found = [
        *probe(f"localhost:{ground.port}", IdentityPaths.of(ground.identity("ours", "operator")))
    ]
    assert [(one.check, one.good) for one in found] == [
        ("dns", True),
        ("port", True),
        ("tls", True),
    ]
    assert found[-1].said == "hedgerow://local/coordinator/coordinator, for localhost"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_another_ca_is_called_that_however_many_addresses_the_host_has(
    ground: Ground, host: str
) -> None:
    said = why_not(f"{host}:{ground.port}", IdentityPaths.of(ground.identity("theirs", "operator")))
    assert f"{host}:{ground.port}: the server's certificate was issued by another CA" in said
    assert "theirs/operator/ca.crt" in said


def test_a_server_that_refuses_us_is_told_from_one_that_we_refuse(ground: Ground) -> None:
    paths = IdentityPaths.of(ground.identity("theirs", "stranger"))
    said = why_not(f"127.0.0.1:{ground.port}", paths)
    assert "it refuses our certificate (of another CA, expired, revoked)" in said


def test_an_expired_server_and_another_name_are_told(ground: Ground) -> None:
    old = IdentityPaths.of(ground.identity("old", "operator"))
    assert "the server's certificate has expired" in why_not(f"127.0.0.1:{ground.expired}", old)
    ours = IdentityPaths.of(ground.identity("ours", "operator"))
    said = why_not(f"127.0.0.1:{ground.port}", ours, "other.example")
    assert "is for localhost, 127.0.0.1, ::1, not for other.example" in said


def test_no_server_no_name_and_no_tls_are_told(ground: Ground) -> None:
    paths = IdentityPaths.of(ground.identity("ours", "operator"))
    assert "no server listens there (connection refused)" in why_not("127.0.0.1:1", paths)
    assert "the name nowhere.invalid is not known" in why_not("nowhere.invalid:1", paths)
    assert "expected HOST:PORT, received 'nowhere'" in why_not("nowhere", paths)
    with socket.create_server(("127.0.0.1", 0)) as plain:
        thread = threading.Thread(target=_say_hello, args=(plain,), daemon=True)
        thread.start()
        said = why_not(f"127.0.0.1:{plain.getsockname()[1]}", paths)
        thread.join(200)
    assert "no TLS 1.3 is spoken there" in said


def _say_hello(plain: socket.socket) -> None:
    connection, _ = plain.accept()
    with connection:
        connection.recv(1 << 14)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


COMMANDS = [
    ["jobs"], ["watch", "j"], ["cancel", "j"], ["download", "j", "--out", "x"],
    ["submit", "job.toml"], ["plan", "job.toml"], ["pki", "revoked"],
]  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words[:2]))
def test_every_command_to_a_coordinator_reports_a_wrong_ca_as_one(
    ground: Ground, tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hedgerow.services.rpc.jobs.RETRY_SECONDS", 0.0)
    monkeypatch.setattr("hedgerow.services.rpc.jobs.WATCH_SECONDS", 0.0)
    Path("job.toml").write_text('strategy = "bagging"\n')
    monkeypatch.setenv("HEDGEROW_COORDINATOR", f"localhost:{ground.port}")
    monkeypatch.setenv("HEDGEROW_IDENTITY", str(ground.identity("theirs", "operator")))
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2
    assert "was issued by another CA" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "text", ["nonsense", "host:", ":1", "host:65536", "::1:1", "http://host:1", "a b:1", "host:1,"]
)
def test_what_is_no_address_is_refused_before_anyone_is_dialled(ground: Ground, text: str) -> None:
    at = ["--coordinator", text, "--identity", str(ground.identity("ours", "operator"))]
    done = CliRunner().invoke(main, ["jobs", *at])
    assert done.exit_code == 2
    assert done.stderr == f"Error: expected HOST:PORT, received {text.rpartition(',')[2]!r}\n"


def doctor(*words: str) -> tuple[int, dict[str, dict[str, object]]]:
    done = CliRunner().invoke(main, ["doctor", *words, "--json"])
    found = json.loads(done.stdout)
    return done.exit_code, {one["check"]: one for one in found}


def test_the_doctor_finds_an_operator_sound_and_tells_another_ca(ground: Ground) -> None:
    words = ["--coordinator", f"localhost:{ground.port}", "--identity"]
    code, found = doctor(*words, str(ground.identity("ours", "operator")))
    assert code == 0
    assert found["coordinator"]["said"] == "answers"
    assert found["clock"]["good"]
    code, found = doctor(*words, str(ground.identity("theirs", "operator")))
    assert code == 1
    assert "another CA" in str(found["coordinator tls"]["said"])
    code, found = doctor(*words, str(ground.identity("old", "operator")))
    assert code == 1
    assert "renew it" in str(found["certificate"]["said"])
    assert "coordinator dns" not in found  # without a certificate nothing can be dialled


@pytest.mark.parametrize(
    ("seconds", "check", "said"),
    [
        (100, "clock", "s ahead of"),
        (-1000, "certificate", "not valid before"),
        (40 * 86400, "certificate", "expired"),
    ],
)
def test_the_doctor_finds_a_clock_that_is_wrong(
    ground: Ground, tmp_path: Path, seconds: int, check: str, said: str
) -> None:
    wrong = tmp_path / "clock"
    wrong.write_text(str(seconds))
    paths = os.pathsep.join([str(ROOT / "tests/chaos/clock"), str(ROOT)])
    words = ["--identity", str(ground.identity("ours", "operator"))]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "hedgerow",
            "doctor",
            "--json",
            *words,
            "--coordinator",
            f"localhost:{ground.port}",
        ],
        env={**os.environ, "PYTHONPATH": paths, "HEDGEROW_TEST_CLOCK": str(wrong)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 1
    found = {one["check"]: one for one in json.loads(done.stdout)}
    assert not found[check]["good"], found
    assert said in found[check]["said"]


def agent(ground: Ground, folder: Path, **changed: object) -> dict[str, object]:
    data = write_table(folder / "rows.parquet", 20, 1)
    return {
        "coordinator": f"localhost:{ground.port}",
        "identity": str(ground.identity("ours", "silo/north")),
        "crypto": f"127.0.0.1:{ground.crypto}",
        "state": str(folder / "state"),
        "data": {"path": str(data)},
        "policy": {"min_silos": 3},
        **changed,
    }


def test_the_doctor_looks_at_everything_that_an_agent_needs(ground: Ground, tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(toml(agent(ground, tmp_path)))
    code, found = doctor(str(file))
    assert code == 0, found
    assert found["table"]["said"] == "20 rows, 5 columns that a job could use"
    assert found["policy"]["said"] == "1 rules: min_silos"
    assert found["crypto tls"]["said"] == "hedgerow://local/crypto/north, for 127.0.0.1"
    assert {"certificate", "clock", "proxy", "disk", "coordinator dns"} <= found.keys()
    wrong = {"crypto": f"127.0.0.1:{ground.port}", "data": {"path": str(tmp_path / "none.csv")}}
    file.write_text(toml(agent(ground, tmp_path, **wrong)))
    code, found = doctor(str(file))
    assert code == 1
    assert "coordinator/coordinator" in str(found["crypto role"]["said"])
    assert "none.csv" in str(found["table"]["said"])
    file.write_text(toml(agent(ground, tmp_path, polcy={})))
    code, found = doctor(str(file))
    assert code == 1
    assert "did you mean policy?" in str(found["settings"]["said"])


def test_the_doctor_knows_whose_port_is_taken(ground: Ground, tmp_path: Path) -> None:
    file = tmp_path / "coordinator.toml"
    places = {"database": "sqlite://", "artefacts": str(tmp_path / "artefacts")}
    identity = str(ground.identity("ours", "coordinator"))
    file.write_text(toml({"listen": f"127.0.0.1:{ground.port}", "identity": identity, **places}))
    code, found = doctor(str(file))
    assert (code, found["port"]["said"]) == (0, f"{ground.port}: the process serves")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        taken.close()
        file.write_text(toml({"listen": f"127.0.0.1:{port}", "identity": identity, **places}))
        assert doctor(str(file))[1]["port"]["good"]
    file.write_text(toml({"listen": f"127.0.0.1:{ground.expired}", "identity": identity, **places}))
    code, found = doctor(str(file))
    assert code == 1
    assert "not by this process" in str(found["port"]["said"])
