"""docker-compose.yml as a project of its own on a real engine, to be disturbed."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hedgerow.boosting.errors import FederationError
from hedgerow.coordinator.operator.library.clients import client_for
from hedgerow.services.rpc.jobs import JobClient
from hedgerow.services.wire import job_file
from hedgerow.services.wire.job_view import JobView

TAG = os.environ.get("HEDGEROW_TAG", "dev")
ROOT = Path(__file__).resolve().parents[2]
BYTES = "surrogateescape"
"""What programs write and read may be no text."""
SERVICES = (
    "database",
    "coordinator",
    "agent-0",
    "agent-1",
    "agent-2",
    "crypto-0",
    "crypto-1",
    "crypto-2",
    "prometheus",
)


def run(*command: str, stdin: bytes | None = None, check: bool = True) -> bytes:
    """Return what a command prints."""
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=900)
    if check and done.returncode != 0:
        words = " ".join(command)
        raise AssertionError(f"{words}: {done.stderr.decode(errors='replace')[-2000:]}")
    return done.stdout


def docker(*arguments: str, check: bool = True) -> str:
    return run("docker", *arguments, check=check).decode().strip()


@dataclass
class Project:
    """A federation under a project name of its own; ``folder`` gets the operator's identity."""

    name: str
    folder: Path
    port: int = field(default_factory=lambda: free_port())
    console_port: int = field(default_factory=lambda: free_port())
    small_volumes: bool = False
    standby: bool = False
    standby_port: int = field(default_factory=lambda: free_port())
    hsm: dict[str, str] = field(default_factory=dict)
    """Variables of deploy/compose/hsm.yml, where it is used."""
    _client: JobClient | None = None

    def compose(self, *arguments: str, check: bool = True, stdin: str = "") -> str:
        files = ["-f", str(ROOT / "docker-compose.yml")]
        if self.small_volumes:
            files += ["-f", str(ROOT / "tests/containers/volumes.yml")]
        if self.standby:
            files += ["--profile", "standby"]
            files += ["--env-file", str(ROOT / "deploy/compose/standby.env")]
        if self.hsm:
            files += ["-f", str(ROOT / "deploy/compose/hsm.yml")]
        command = ["docker", "compose", "-p", self.name, "--ansi", "never", *files, *arguments]
        environment = {
            **os.environ,
            "HEDGEROW_PORT": str(self.port),
            "HEDGEROW_STANDBY_PORT": str(self.standby_port),
            "PROMETHEUS_PORT": "0",
            "ALERTMANAGER_PORT": "0",
            "CONSOLE_PORT": str(self.console_port),
            "COMPOSE_PROJECT_NAME": self.name,
            **self.hsm,
        }
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            timeout=900,
            input=stdin.encode(errors=BYTES),
        )
        if check and done.returncode != 0:
            words = " ".join(arguments)
            raise AssertionError(f"compose {words}: {done.stderr.decode(errors='replace')[-2000:]}")
        return done.stdout.decode(errors=BYTES)

    def container(self, service: str) -> str:
        return f"{self.name}-{service}-1"

    def network(self, name: str) -> str:
        return f"{self.name}_{name}"

    def volume(self, name: str) -> str:
        return f"{self.name}_{name}"

    def up(self, *services: str) -> None:
        if self.small_volumes:
            self.compose("create", "--no-build", "--pull", "never", "pki")
            for name in ("coordinator-state", "silo-1-state"):
                self._hold(name)
        self.compose("up", "--detach", "--no-build", "--pull", "never", *services)

    def _hold(self, name: str) -> None:
        """Keep a volume in memory mounted, whatever happens to the containers that use it."""
        self.compose("create", "--no-build", "--pull", "never", "coordinator", "agent-1")
        docker("run", "--detach", "--name", f"{self.name}-hold-{name}", "--network", "none",
               "--volume", f"{self.volume(name)}:/held", "--entrypoint", "sleep",
               f"hedgerow/crypto:{TAG}", "infinity")  # fmt: skip

    def fill(self, volume: str) -> None:
        """Fill one of the small volumes to the last byte."""
        script = "cat /dev/zero > /held/filling 2>/dev/null; true"
        docker("exec", f"{self.name}-hold-{volume}", "sh", "-c", script)

    def empty(self, volume: str) -> None:
        docker("exec", f"{self.name}-hold-{volume}", "rm", "-f", "/held/filling")

    def down(self) -> None:
        held = docker("ps", "-aq", "--filter", f"name={self.name}-hold-").split()
        if held:
            docker("rm", "--force", *held)
        self.compose("--profile", "*", "down", "--volumes", "--remove-orphans", "--timeout", "5")

    def left(self) -> str:
        """Return what the engine still has of this project."""
        return "\n".join(
            docker(*kind, "--quiet", "--filter", f"name={self.name}")
            for kind in (("ps", "--all"), ("volume", "ls"), ("network", "ls"))
        ).strip()

    def state(self, service: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(docker("inspect", self.container(service)))[0]
        return found

    def healthy(self) -> bool:
        for service in SERVICES:
            state = self.state(service)["State"]
            if not state["Running"] or state["Paused"]:
                return False
            if state.get("Health", {}).get("Status", "healthy") != "healthy":
                return False
        return True

    def log(self, service: str, since: float = 0.0) -> str:
        done = subprocess.run(
            ["docker", "logs", "--since", str(since), self.container(service)],
            capture_output=True,
            timeout=60,
        )
        return (done.stdout + done.stderr).decode(errors="replace")

    def check_kernels(self) -> None:
        """Fail where a process has met a kernel that the images have no code of."""
        said = self.compose("--profile", "*", "logs").splitlines()
        slow = [line for line in said if "runs as Python" in line or "kernels in" in line]
        assert not slow, slow[0]

    def issue(self, *arguments: str) -> None:
        """Let the one-shot that plays the CA issue certificates anew."""
        self.compose("run", "--rm", "--no-deps", "-T", "pki", *arguments)

    # --- jobs ---

    @property
    def client(self) -> JobClient:
        if self._client is None:
            identity = self.folder / "operator"
            packed = run("docker", "run", "--rm", "--network", "none", "--volume",
                         f"{self.volume('operator-identity')}:/identity:ro", "--entrypoint", "tar",
                         f"hedgerow/crypto:{TAG}", "-c", "-C", "/identity", ".")  # fmt: skip
            with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
                archive.extractall(identity, filter="data")
            known = [self.port, self.standby_port] if self.standby else [self.port]
            address = ",".join(f"127.0.0.1:{port}" for port in known)
            self._client = client_for(address, identity, None)
        return self._client

    def submit(self, text: str) -> str:
        return self.client.create(job_file.parse(text))

    def view(self, job_id: str) -> JobView | None:
        """Return the job, or None while the coordinator is away."""
        try:
            return self.client.get(job_id)
        except FederationError:
            return None

    def wait(self, job_id: str, until: Callable[[JobView], bool], seconds: float) -> JobView:
        deadline = time.monotonic() + seconds
        view = None
        while time.monotonic() < deadline:
            view = self.view(job_id) or view
            if view is not None and until(view):
                return view
            time.sleep(0.05)
        said = "never seen" if view is None else f"{view.state}, {len(view.rounds)} rounds"
        raise AssertionError(f"job {job_id}: not within {seconds:.0f} s; last {said}")

    def end(self, job_id: str, seconds: float) -> JobView:
        return self.wait(job_id, lambda view: view.ended, seconds)


@contextmanager
def project(folder: Path, **options: Any) -> Iterator[Project]:
    made = Project(f"hedgerow-{os.urandom(3).hex()}", folder, **options)
    try:
        yield made
        made.check_kernels()
    finally:
        made.down()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def eventually(reached: Callable[[], bool], seconds: float, what: str) -> float:
    """Wait; returns after how many seconds it was reached."""
    started = time.monotonic()
    while not reached():
        assert time.monotonic() - started < seconds, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.2)
    return time.monotonic() - started
