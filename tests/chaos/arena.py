"""One federation for many disturbed jobs: processes with mTLS, each agent behind a proxy."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hedgerow.boosting.exchange import Discloses
from hedgerow.services.process.ledgers import DATA_PLANE
from hedgerow.services.wire.job_view import JobView
from tests.chaos.proxy import Proxy
from tests.chaos.work import SILOS, job, tables
from tests.federation.processes import PATIENCE_SECONDS, ROOT, Federation

LEASE_SECONDS = 3.0
DISK_MB = 48
_LIBC = ctypes.CDLL(None, use_errno=True)
_OF_ONE_RUN = ("model", "digest", "anonymous")
"""Keys of a party's part that are drawn anew in each run."""


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """A job when nothing happens: its model, and how often each silo offers."""

    digests: dict[str, str]
    exchanges: dict[str, int]


@dataclass(frozen=True, slots=True)
class Size:
    """What a process holds."""

    threads: int
    descriptors: int
    resident_mb: float


class Arena(Federation):
    """A federation whose processes are disturbed, and mended, between its start and its end.

    Attributes
    ----------
    disks : bool
        Whether state folders are small disks of their own, which can be full.
    habits : dict
        How proxies cut connections that are made from now on; see :class:`Proxy`.
    """

    def __init__(
        self, folder: Path, silos: Sequence[str] = SILOS, small: bool = True, **coordinator: Any
    ) -> None:
        """Take not ``small`` for disks as large as the machine's."""
        disk = folder / "disk-coordinator"
        settings: dict[str, Any] = {
            "lease_seconds": LEASE_SECONDS,
            "database": f"sqlite:///{disk / 'database' / 'state.db'}",
            "artefacts": str(disk / "artefacts"),
            "log_json": True,
            **coordinator,
        }
        super().__init__(folder, tables(folder, silos), **settings)
        self.proxies: dict[str, Proxy] = {}
        self.habits: dict[str, float] = {}
        self.earlier: JobView | None = None
        self.damaged: tuple[str, Path, bytes] | None = None
        self.sizes: dict[int, list[Size]] = {}
        self._undisturbed: dict[str, Undisturbed] = {}
        self.names = ("coordinator", *(f"agent-{silo}" for silo in self.silos))
        mounted = [small and _mount(self.disk(name)) for name in self.names]
        self.disks = all(mounted)

    def disk(self, name: str) -> Path:
        """Return the folder that has all files of a process."""
        if name == "coordinator":
            return self.folder / "disk-coordinator"
        return self.folder / f"state-{name}"

    def environment(self, name: str) -> dict[str, str]:
        paths = [str(ROOT / "tests/chaos/clock"), os.environ.get("PYTHONPATH", str(ROOT))]
        clock = {"HEDGEROW_TEST_CLOCK": str(self.clock(name))}
        return {"PYTHONPATH": os.pathsep.join(paths)} | clock

    def clock(self, name: str) -> Path:
        """Return the file that has the seconds by which a process' time of day is wrong."""
        return self.folder / f"{name}.clock"

    def start_agent(self, silo: str, *, name: str = "", identity: str = "", **extra: Any) -> str:
        if silo not in self.proxies:
            self.proxies[silo] = Proxy(self.ports["coordinator"]["port"], **self.habits)
        address = f"127.0.0.1:{self.proxies[silo].port}"
        policy = {
            "may_send": [one.value for one in Discloses if one is not Discloses.NOTHING],
            "min_cell": 1,
            "max_explorations": 10_000,
            "max_binnings": 10_000,
            "max_label_binnings": 10_000,
        }
        settings = {"coordinator": address, "log_json": True, "policy": policy, **extra}
        return super().start_agent(silo, name=name, identity=identity, **settings)

    def restart(self, name: str) -> None:
        """Start a process that has ended."""
        if name == "coordinator":
            self.start_coordinator()
        else:
            self.start_agent(name.removeprefix("agent-"))

    def exchanges(self, silo: str, job_id: str) -> int:
        """Return how many payloads a silo's ledger has of a job, also while it is written."""
        try:
            data = (self.disk(f"agent-{silo}") / "ledger.jsonl").read_bytes()
        except OSError:
            return 0
        of_job, of_data = f'"job":"{job_id}"'.encode(), f'"call":"{DATA_PLANE}'.encode()
        return sum(of_job in line and of_data in line for line in data.splitlines())

    def digests(self, view: JobView) -> dict[str, str]:
        """Return the digests of all that a job gave: of the model, and of what each silo keeps."""
        found = hashlib.sha256()
        for name in sorted(view.artefacts):
            found.update(name.encode() + self.client.download(view.job_id, name)[1])
        digests = {"": found.hexdigest()}
        for silo in view.silos:
            found = hashlib.sha256()
            folder = self.disk(f"agent-{silo.name}") / "jobs" / view.job_id
            for file in sorted(folder.glob("*.*")):
                if file.name == "part.json":
                    part = json.loads(file.read_bytes())
                    found.update(
                        repr([v for k, v in part.items() if k not in _OF_ONE_RUN]).encode()
                    )
                elif file.name != "times.json":
                    found.update(file.name.encode() + file.read_bytes())
            digests[silo.name] = found.hexdigest()
        return digests

    def undisturbed(self, name: str, text: str = "", seconds: float = 90.0) -> Undisturbed:
        """Return what a job gives when nothing happens; silos keep its ``text`` too."""
        if name not in self._undisturbed:
            view = self.end(self.submit(text or job(name)), seconds)
            assert view.state == "SUCCEEDED", (name, view.state, view.detail)
            exchanges = {s.name: self.exchanges(s.name, view.job_id) for s in view.silos}
            self._undisturbed[name] = Undisturbed(self.digests(view), exchanges)
        return self._undisturbed[name]

    def events(self, name: str, job_id: str, event: str) -> list[dict[str, Any]]:
        """Return the lines of a process' log that are of a job and of a kind."""
        found = []
        for line in self.log(name).splitlines():
            with suppress(json.JSONDecodeError):
                entry = json.loads(line)
                if entry.get("job") == job_id and entry.get("event") == event:
                    found.append(entry)
        return found

    def size(self, name: str) -> Size:
        """Return what a process holds now."""
        proc = Path("/proc") / str(self.processes[name].pid)
        lines = dict(
            line.split(":", 1) for line in (proc / "status").read_text().splitlines() if ":" in line
        )
        resident = int(lines["VmRSS"].split()[0]) / 1024
        return Size(int(lines["Threads"]), len(list((proc / "fd").iterdir())), resident)

    def mend(self) -> None:
        """Restore a damaged file, without which no later job would take part."""
        if self.damaged is not None:
            (name, file, data), self.damaged = self.damaged, None
            self.kill(name)
            file.write_bytes(data)
            self.restart(name)

    def measure(self) -> None:
        """Note what all processes hold, after a job."""
        for name in self.names:
            self.sizes.setdefault(self.processes[name].pid, []).append(self.size(name))

    def stop(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self.processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE_SECONDS)
        super().stop()
        for proxy in self.proxies.values():
            proxy.close()
        if self.disks:
            for name in self.names:
                _LIBC.umount2(str(self.disk(name)).encode(), 2)


def _mount(folder: Path) -> bool:
    """Give a folder a small disk of its own, where that is permitted."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    options = f"size={DISK_MB}m,mode=700".encode()
    return bool(_LIBC.mount(b"none", str(folder).encode(), b"tmpfs", 0, options) == 0)


@contextmanager
def arena(folder: Path, *, start: bool = True, **settings: Any) -> Iterator[Arena]:
    made = Arena(folder, **settings)
    try:
        if start:
            made.start()
        yield made
    finally:
        made.stop()
