"""A federation of real processes on loopback, to be killed, frozen and restarted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hedgerow.coordinator.operator.library.clients import client_for
from hedgerow.services.identity.authority import throwaway
from hedgerow.services.rpc.jobs import JobClient
from hedgerow.services.wire import job_file
from hedgerow.services.wire.job_view import JobView
from tests.federation.forked import Forked

ROOT = Path(__file__).resolve().parents[2]


def write_table(path: Path, n: int, seed: int, **extra: Any) -> Path:
    """Write a small binary table; the same distribution for every seed."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4)).astype(np.float32)
    y = (X[:, 0] + X[:, 1] * X[:, 2] + 0.3 * rng.normal(size=n) > 0).astype(np.int8)
    columns = {f"x{j}": X[:, j] for j in range(4)} | {"label": y} | extra
    pq.write_table(pa.table(columns), path)
    return path


class Federation:
    """Coordinator and agents as processes, with their files under ``folder``."""

    def __init__(
        self,
        folder: Path,
        tables: Mapping[str, Path],
        *,
        make_certificates: bool = True,
        fresh: bool = False,
        **coordinator: Any,
    ) -> None:
        """Take ``fresh`` where a test is about what a process does when it starts."""
        self.folder = folder
        self.silos = dict(tables)
        self.fresh = fresh
        self.processes: dict[str, subprocess.Popen[bytes] | Forked] = {}
        self.ports: dict[str, dict[str, int]] = {}
        self.own: dict[str, dict[str, str]] = {}
        self._clients: dict[str, JobClient] = {}
        self.coordinator_settings: dict[str, Any] = {
            "lease_seconds": 12.0,
            "database": f"sqlite:///{folder / 'state.db'}",
            "artefacts": str(folder / "artefacts"),
            **coordinator,
        }
        if make_certificates:
            throwaway(folder / "pki", sorted(tables), time.time())

    def start(self) -> Federation:
        self.start_coordinator()
        for silo in self.silos:
            self.start_agent(silo)
        return self

    def start_coordinator(self, prefix: list[str] | None = None) -> None:
        port = self.ports.get("coordinator", {}).get("port", 0)
        self._spawn(
            "coordinator",
            "coordinator",
            {
                "listen": f"127.0.0.1:{port}",
                "identity": str(self.folder / "pki/coordinator"),
                "metrics": "127.0.0.1:0",
                **self.coordinator_settings,
            },
            prefix or [],
        )

    def start_agent(self, silo: str, *, name: str = "", identity: str = "", **extra: Any) -> str:
        name = name or f"agent-{silo}"
        self._spawn(
            name,
            "client_agent",
            {
                "coordinator": self.address,
                "identity": str(self.folder / "pki" / (identity or f"silo/{silo}")),
                "state": str(self.folder / f"state-{name}"),
                "metrics": "127.0.0.1:0",
                "data": {"path": str(self.silos[silo])},
                **extra,
            },
        )
        return name

    def start_crypto(self, silo: str, **extra: Any) -> str:
        """Start a silo's crypto process, where it was before; return its address."""
        name = f"crypto-{silo}"
        port = self.ports.get(name, {}).get("port", 0)
        self._spawn(
            name,
            "crypto",
            {
                "listen": f"127.0.0.1:{port}",
                "identity": str(self.folder / "pki/crypto" / silo),
                "silo": silo,
                "state": str(self.folder / f"keys-{silo}"),
                "metrics": "127.0.0.1:0",
                **extra,
            },
        )
        return f"127.0.0.1:{self.ports[name]['port']}"

    def _spawn(
        self, name: str, module: str, config: dict[str, Any], prefix: Sequence[str] = ()
    ) -> None:
        ready = self.folder / f"{name}.ready"
        ready.unlink(missing_ok=True)
        path = self.folder / f"{name}.toml"
        path.write_text(self._text({**config, "ready_file": str(ready)}))
        log = self.folder / f"{name}.log"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        own = self.environment(name)
        environment |= own
        program = (f"hedgerow.{module}", "--config", str(path))
        if prefix or own or self.fresh:
            with log.open("ab") as file:
                self.processes[name] = subprocess.Popen(
                    [*prefix, sys.executable, "-m", *program],
                    stdout=file,
                    stderr=file,
                    cwd=self.folder,
                    env=environment,
                )
        else:
            self.processes[name] = Forked(*program, log=log, cwd=self.folder, env=environment)
        wait_until(
            lambda: (ready.exists() and bool(ready.read_text())) or not self.alive(name),
            60,
            f"{name} is ready",
        )
        if ready.exists():
            self.ports[name] = json.loads(ready.read_text())

    def _text(self, config: dict[str, Any]) -> str:
        return toml(config)

    def environment(self, name: str) -> dict[str, str]:
        """Return what a process finds in its environment besides ours."""
        return self.own.get(name, {})

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.ports['coordinator']['port']}"

    @property
    def client(self) -> JobClient:
        if self.address not in self._clients:
            identity = self.folder / "pki/operator"
            self._clients[self.address] = client_for(self.address, identity, None)
        return self._clients[self.address]

    def alive(self, name: str) -> bool:
        return self.processes[name].poll() is None

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        self.processes[name].send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            self.processes[name].wait(PATIENCE_SECONDS)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def submit(self, text: str) -> str:
        return self.client.create(job_file.parse(text))

    def wait(
        self,
        job_id: str,
        until: Callable[[JobView], bool],
        seconds: float = 60,
        pause: float = 0.02,
    ) -> JobView:
        def reached() -> bool:
            return until(self.client.get(job_id))

        wait_until(reached, seconds, f"job {job_id}", pause)
        return self.client.get(job_id)

    def end(self, job_id: str, seconds: float = 90) -> JobView:
        # A view of a job costs its coordinator 5 ms of CPU: eight files that look fifty times a
        # second would keep a core busy.
        return self.wait(job_id, lambda view: view.ended, seconds, pause=0.2)

    def stop(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self.processes.values():
            try:
                process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def federation(
    folder: Path, n_silos: int = 3, n_rows: int = 400, *, start: bool = True, **coordinator: Any
) -> Iterator[Federation]:
    silos = {f"s{k}": write_table(folder / f"s{k}.parquet", n_rows, k) for k in range(n_silos)}
    made = Federation(folder, silos, **coordinator)
    try:
        yield made.start() if start else made
    finally:
        made.stop()


def toml(table: Mapping[str, Any]) -> str:
    lines = [f"{k} = {json.dumps(v)}" for k, v in table.items() if not isinstance(v, dict)]
    for key, value in table.items():
        if isinstance(value, dict):
            lines += [f"[{key}]", *(f"{k} = {json.dumps(v)}" for k, v in value.items())]
    return "\n".join(lines) + "\n"


PATIENCE_SECONDS = 200.0
"""Least time that a test waits: a deadline only ends what hangs, however busy the machine is."""


OF_SCRIPTS = ("GatherSites", "ProposeJob", "FollowJob")
"""Calls of scripts that train together, which no agent makes."""


def wait_until(reached: Callable[[], bool], seconds: float, what: str, pause: float = 0.02) -> None:
    """Look until a condition holds, and at least for :data:`PATIENCE_SECONDS`.

    At first every ``pause``; later ever less often, for a look at a job or a page costs CPU.
    """
    patience = max(seconds, PATIENCE_SECONDS)
    start = time.monotonic()
    while not reached():
        waited = time.monotonic() - start
        assert waited < patience, f"{what}: not within {patience} s"
        time.sleep(max(pause, min(waited / 20, 0.25)))
