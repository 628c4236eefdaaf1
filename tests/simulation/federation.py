"""The product's own processes on simulated disks and lines: coordinator, agents, operator."""

from __future__ import annotations

import asyncio
import hashlib
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from hedgerow.boosting.errors import FederationError
from hedgerow.boosting.exchange import Discloses
from hedgerow.client_agent import __main__ as agent_main
from hedgerow.client_agent.config import AgentSettings, Source
from hedgerow.client_agent.policy import Policy
from hedgerow.coordinator import __main__ as coordinator_main
from hedgerow.coordinator.config import CoordinatorSettings
from hedgerow.coordinator.operator.library.clients import client_for
from hedgerow.services.identity.authority import throwaway
from hedgerow.services.rpc import channel
from hedgerow.services.wire import job_file
from hedgerow.services.wire.job_view import JobView
from tests.simulation import disk, network, scheduler
from tests.simulation.loop import SimulatedLoop
from tests.simulation.scheduler import EPOCH, Process, World

ADDRESS = "10.0.0.1:7443"
LEASE_SECONDS = 4.0
N_ROWS = 40
COORDINATOR, OPERATOR = "coordinator", "operator"
_BODIES = {
    "histogram": """
[histogram]
rounds = 3
[booster]
max_depth = 2
max_bin = 8
""",
    "bagging": """
[bagging]
rounds = 4
[booster]
max_depth = 2
""",
    "dp_tree": """
[dp_tree]
epsilon = 8
depth = 2
[columns.ranges]
x0 = [-3, 3]
x1 = [-3, 3]
""",
}
NAMES = tuple(_BODIES)
ROUNDS = {"histogram": 3, "bagging": 4, "dp_tree": 3}
SUPERVISOR_SECONDS = 1.0
"""After how long a process that ended by itself is started again."""


def job_text(name: str, min_silos: int) -> str:
    """Return the file of a job."""
    return f"""
name = "{name}"
strategy = "{name}"
seed = 3
min_silos = {min_silos}
step_timeout_seconds = 30
start_timeout_seconds = 60
max_close_sums = 100
metrics = ["logloss"]
""" + _BODIES[name]


@dataclass
class SubmittedJob:
    """A job of a run."""

    name: str
    min_silos: int
    job_id: str = ""
    view: JobView | None = None
    refused: str = ""
    cancelled: bool = False
    files: dict[str, bytes] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Whether it is known to have ended, or was refused."""
        return bool(self.refused) or (self.view is not None and self.view.ended)


class Federation:
    """A federation of a simulation.

    Parameters
    ----------
    folder : Path
        Of its files; on a disk in memory.
    pki : Path
        Of certificates of all its processes.
    """

    def __init__(self, here: World, folder: Path, silos: tuple[str, ...]) -> None:
        self.world, self.folder, self.silos = here, folder, silos
        self.disks = disk.Disks(here)
        self.trace = hashlib.sha256()
        self.lines: list[str] = []
        self.taps: list[Callable[[network.Call, str, bytes], None]] = [self._trace]
        self.told: list[Callable[[str, str, Any], None]] = []
        """Called with a process, and the event and fields of a line of its log."""
        self.without_power: list[Callable[[str], None]] = []
        """Called with a process whose machine has lost its power."""
        self.network = network.Network(here, self._tap)
        self.processes: dict[str, Process] = {}
        self._armed: dict[str, tuple[int, str]] = {}
        """At which calls a process is killed once it runs again."""
        self.jobs: list[SubmittedJob] = []
        self.clients: dict[str, Any] = {}
        disk.use(self.disks)
        network.use(self.network)
        structlog.configure(processors=[self._logged], cache_logger_on_first_use=False)
        self.names = (COORDINATOR, *(f"agent-{silo}" for silo in silos))
        for name in self.names:
            (folder / name).mkdir()
            self.disks.by_name[name] = disk.Disk(folder / name)
        for k, silo in enumerate(silos):
            write_table(folder / f"{silo}.csv", k)

    @property
    def pki(self) -> Path:
        """The certificates."""
        return self.folder / "pki"

    # --- what is noted ---

    def note(self, text: str) -> None:
        """Note what happens, for people and for the digest of the run."""
        line = f"{self.world.now:10.4f} {text}"
        self.lines.append(line)
        self.trace.update(line.encode() + b"\n")

    def _tap(self, call: network.Call, way: str, data: bytes) -> None:
        for tap in self.taps:
            tap(call, way, data)

    def _trace(self, call: network.Call, way: str, data: bytes) -> None:
        digest = hashlib.sha256(data).hexdigest()[:12]
        method = call.path.rpartition("/")[2]
        self.note(f"{call.client.name} {way} {method} {len(data)} {digest}")

    def _logged(self, logger: object, name: str, event: Any) -> Any:
        process = self.world.process
        who = "-" if process is None else process.name
        words = " ".join(f"{key}={value}" for key, value in sorted(event.items()) if key != "event")
        self.note(f"{who} {name.upper()} {event['event']} {words}".replace(str(self.folder), "."))
        for tell in self.told:
            tell(who, event["event"], event)
        raise structlog.DropEvent

    # --- processes ---

    def start_all(self) -> None:
        """Start whatever does not run."""
        for name in self.names:
            self.start(name)

    def start(self, name: str) -> None:
        """Start a process, unless it runs."""
        if name in self.processes and self.processes[name].alive:
            return
        process = self.processes[name] = Process(self.world, name)
        process.armed, process.armed_at = self._armed.pop(name, (None, ""))
        process.ended.append(lambda: self._ended(process))
        self.note(f"start {name}")
        work = self._coordinator if name == COORDINATOR else lambda: self._agent(name[6:])
        self.world.spawn(process, lambda: self._main(process, work))

    def _main(self, process: Process, work: Callable[[], None]) -> None:
        try:
            work()
            self.note(f"{process.name} ends")
        except (FederationError, OSError) as error:
            why = f"{process.name} ends: {error}".replace(str(self.folder), ".")
            self.note(why)
            new = self.world.now - process.began < SUPERVISOR_SECONDS
            if process.alive and not (self.disks.by_name[process.name].full and new):
                self.world.defects.append(why)
        finally:
            if process.alive:
                self.world.kill(process)
                self.world.after(SUPERVISOR_SECONDS, lambda: self.start(process.name))

    def forget_arms(self) -> None:
        """Let no process be killed at a call any more."""
        self._armed.clear()

    def kill(self, name: str) -> None:
        """Kill a process at once."""
        self.note(f"kill {name}")
        self.world.kill(self.processes[name])

    def _ended(self, process: Process) -> None:
        self.note(f"{process.name} has ended{' without power' if process.power else ''}")
        self.network.process_ended(process)
        self.disks.close_all(process)
        if process.again:
            self._armed[process.name] = process.times, process.armed_at
            self.world.after(SUPERVISOR_SECONDS, lambda: self.start(process.name))
        if process.power:
            disk = self.disks.by_name[process.name]
            disk.lose_power(self.world.random)
            for what in disk.lost:
                self.note(f"{process.name} lost {what}")
            disk.lost.clear()
            for tell in self.without_power:
                tell(process.name)

    def _coordinator(self) -> None:
        folder = self.folder / COORDINATOR
        settings = CoordinatorSettings(
            listen=ADDRESS,
            identity=self.pki / "coordinator",
            database=f"sqlite:///{folder / 'state.db'}",
            artefacts=str(folder / "artefacts"),
            metrics="",
            lease_seconds=LEASE_SECONDS,
        )

        async def main() -> None:
            await coordinator_main.run(settings, asyncio.Event())

        with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
            runner.run(main())

    def _agent(self, silo: str) -> None:
        settings = AgentSettings(
            coordinator=ADDRESS,
            identity=self.pki / "silo" / silo,
            state=self.folder / f"agent-{silo}",
            metrics="",
            data=Source(path=str(self.folder / f"{silo}.csv")),
            calibrate=False,
            policy=Policy(
                may_send=tuple(one.value for one in Discloses if one is not Discloses.NOTHING),
                max_explorations=10_000,
                max_close_sums=1000,
            ),
        )
        agent, close, _ = agent_main.build(settings)
        try:
            agent.run()
        finally:
            close()

    # --- the operator ---

    def operate(self, what: str, work: Callable[[Any], None]) -> scheduler.Thread:
        """Let the operator do something; errors are noted."""

        def main() -> None:
            try:
                client = client_for(ADDRESS, self.pki / "operator", None)
                work(client)
            except FederationError as error:
                self.note(f"operator: {what}: {error}")

        process = self.processes.get(OPERATOR)
        if process is None:
            process = self.processes[OPERATOR] = Process(self.world, OPERATOR)
        return self.world.spawn(process, main)

    def submit(self, name: str, min_silos: int) -> SubmittedJob:
        """Submit a job, and keep looking at it until it has ended."""
        job = SubmittedJob(name, min_silos)
        self.jobs.append(job)
        signed: list[Any] = []

        def work(client: Any) -> None:
            from hedgerow.services.wire.signed_job import sign_job

            spec = job_file.parse(job_text(name, min_silos))
            signed.append(sign_job(spec, client._identity))
            while not job.job_id:
                try:
                    job.job_id = client.submit(signed[0])
                except FederationError as error:
                    if not _may_pass(error):
                        job.refused = str(error)
                        return
                scheduler.time.sleep(1.0)
            self.note(f"operator: {name} is job {job.job_id}")
            while not job.ended:
                scheduler.time.sleep(1.0)
                try:
                    job.view = client.get(job.job_id)
                except FederationError as error:
                    self.note(f"operator: {name}: {error}")
            assert job.view is not None
            for artefact in job.view.artefacts:
                while artefact not in job.files:
                    try:
                        job.files[artefact] = client.download(job.job_id, artefact)[1]
                    except FederationError as error:
                        self.note(f"operator: {artefact}: {error}")
                        if not _may_pass(error):
                            break
                    scheduler.time.sleep(0.2)
            self.note(f"operator: {name} {job.view.state} {job.view.detail}")

        job.thread = self.operate(f"submit {name}", work)  # type: ignore[attr-defined]
        return job

    def cancel(self, job: SubmittedJob) -> None:
        """Cancel a job."""

        def work(client: Any) -> None:
            job.cancelled = True
            client.cancel(job.job_id)

        if job.job_id:
            self.operate("cancel", work)

    @property
    def quiet(self) -> bool:
        """Whether all jobs have ended, and their operator knows the results."""
        return all(job.thread.over for job in self.jobs)  # type: ignore[attr-defined]


def _may_pass(error: FederationError) -> bool:
    from hedgerow.boosting.errors import Unreachable

    return isinstance(error, Unreachable)


def write_table(path: Path, k: int) -> None:
    """Write a silo's table."""
    draw = np.random.default_rng(k)
    X = draw.normal(size=(N_ROWS, 2)).round(3)
    y = (X[:, 0] + 0.5 * X[:, 1] + 0.3 * draw.normal(size=N_ROWS) > 0).astype(int)
    lines = ["x0,x1,label", *(f"{a},{b},{c}" for (a, b), c in zip(X, y, strict=True))]
    path.write_text("\n".join(lines) + "\n")


def certificates(folder: Path, silos: tuple[str, ...]) -> None:
    """Make the certificates of a federation."""
    throwaway(folder, sorted(silos), EPOCH)


def install() -> None:
    """Put the simulation's parts in place of what only a real network has."""

    def setitimer(which: int, seconds: float, interval: float = 0.0) -> tuple[float, float]:
        here = scheduler.world()
        process = here.process
        if process is not None:
            if (timer := getattr(process, "timer", None)) is not None:
                here.cancel(timer)
            process.timer = (  # type: ignore[attr-defined]
                here.after(seconds, lambda: here.kill(process)) if seconds else None
            )
        return 0.0, 0.0

    signal.setitimer = setitimer
    channel.why_not = lambda *_: ""
    channel.server_certificate = lambda address, *_: (
        network.network().servers[address].credentials().chain
    )
