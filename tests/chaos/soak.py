"""Hours of jobs of all horizontal strategies under random faults: nothing grows, no round is lost.

``make soak`` has 100 agents for two hours; ``AGENTS=20 MINUTES=20`` fit two cores. It prints a line
a job and a table at its end, and exits with 1 where a process has grown, a disk grows faster than
its jobs, or a job has ended otherwise than undisturbed.

A process is measured once a job, from its second round of all strategies on, when it has met all
that it loads: threads, open files and memory of its last third of jobs against the first third.
What a job adds to a disk is compared with earlier jobs of its strategy: each writes other amounts.
Faults that may end a job (damaged files), or that need small disks, are left to ``make chaos``.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from statistics import mean, median

from hedgerow.services.wire.job_view import JobView
from tests.chaos.arena import LEASE_SECONDS, Arena, Size, arena
from tests.chaos.faults import DAMAGING, KINDS, ON_DISKS, drawn, happening
from tests.chaos.oracle import left_running
from tests.chaos.work import NAMES, job
from tests.federation.processes import wait_until

GROWTH = Size(threads=8, descriptors=16, resident_mb=48.0)
"""Most by which a process may grow between its first and its last third of jobs."""
DISK_GROWTH = 1.5
"""Most by which later jobs may add more to a disk than earlier ones of the same strategies."""
DISK_SLACK = 256 << 10
"""Bytes by which it may do so anyway: databases grow by pages, logs until they are folded in."""
COMPILING_SECONDS = 900.0
"""Patience with the first job of a strategy, for which all processes compile its kernels."""
HORIZONTAL = tuple(name for name in NAMES if name != "secureboost")
QUIET = [kind for kind in KINDS if kind not in DAMAGING | ON_DISKS]


class Soak:
    """What is known of a federation that works for hours."""

    def __init__(self, fed: Arena, seed: int, patience: float) -> None:
        self.fed = fed
        self.sizes: dict[tuple[str, int], list[Size]] = {}
        self.disks: dict[str, dict[str, list[int]]] = {name: {} for name in fed.names}
        self.faults = self.n_jobs = self.n_rounds = self.n_attempts = 0
        self.wrong: list[str] = []
        self._seed = random.Random(seed)
        self._patience = patience

    def run(self, name: str) -> str:
        """Run a job under random faults; return what happened in a line."""
        fed, text = self.fed, self._job(name)
        undisturbed = fed.undisturbed(name, text, COMPILING_SECONDS)
        before = {process: _bytes(fed.disk(process)) for process in fed.names}
        faults = drawn(self._seed.randrange(1 << 30), undisturbed.exchanges, QUIET)
        job_id = fed.submit(text)
        first = faults[0]
        wait_until(
            lambda: (
                fed.exchanges(first.watched, job_id) >= first.after or fed.client.get(job_id).ended
            ),
            self._patience,
            str(first),
        )
        with ExitStack() as stack:
            for fault in faults:
                stack.enter_context(happening(fed, fault))
        view = self._ended(job_id)
        for process, held in before.items():
            added = self.disks[process].setdefault(name, [])
            added.append(_bytes(fed.disk(process)) - held)
        written = self.disks["coordinator"][name][-1] / 1e3
        story = f"{name}, {'; '.join(map(str, faults))}: {view.state}, {view.attempt} attempts"
        story += f", the coordinator's disk {written:+.0f} kB"
        self.n_jobs += 1
        self.faults += len(faults)
        self.n_rounds += len(view.rounds)
        self.n_attempts += view.attempt
        self.wrong += [f"{story}: {what}" for what in self._lost(view, undisturbed.digests[""])]
        return story

    def _ended(self, job_id: str) -> JobView:
        """Wait for a job's end; one that hangs is cancelled, and is a finding."""
        try:
            return self.fed.end(job_id, self._patience)
        except AssertionError:
            self.wrong.append(f"hangs: {self.fed.client.get(job_id).detail}")
            self.fed.client.cancel(job_id)
            return self.fed.end(job_id, self._patience)

    def _job(self, name: str) -> str:
        return job(name, timeout=self._patience, silos=sorted(self.fed.silos))

    def _lost(self, view: JobView, digest: str) -> Iterator[str]:
        if view.state != "SUCCEEDED":
            yield view.detail
            return
        if [one.round for one in view.rounds] != list(range(len(view.rounds))):
            yield f"rounds {[one.round for one in view.rounds]}"
        if self.fed.digests(view)[""] != digest:
            yield "another model than undisturbed"

    def measure(self) -> None:
        """Note what each process holds."""
        for name in self.fed.names:
            if not self.fed.alive(name):
                self.wrong.append(f"{name} has ended: {self.fed.log(name).splitlines()[-1][:300]}")
                self.fed.restart(name)
            key = (name, self.fed.processes[name].pid)
            self.sizes.setdefault(key, []).append(self.fed.size(name))

    def table(self) -> str:
        """Return what grew most, of the coordinator and of the agents; notes what grew too much."""
        lines = [f"{'':12}{'':13}{'processes':>10}{'first third':>13}{'last third':>12}{'most':>8}"]
        for part in ("coordinator", "agent"):
            for field, most in asdict(GROWTH).items():
                pairs = [
                    (name, *_thirds([getattr(size, field) for size in sizes[len(HORIZONTAL) :]]))
                    for (name, _), sizes in self.sizes.items()
                    if name.startswith(part) and len(sizes) >= len(HORIZONTAL) + 3
                ]
                if not pairs:
                    lines.append(f"{part:12}{field:13}{0:10}   none has lived long enough")
                    continue
                name, first, last = max(pairs, key=lambda pair: pair[2] - pair[1])
                lines.append(f"{part:12}{field:13}{len(pairs):10}{first:13.1f}{last:12.1f}{most:8}")
                if last - first > most:
                    self.wrong.append(f"{name} has grown: {field} from {first:.1f} to {last:.1f}")
            lines.append(self._disk_line(part))
        return "\n".join(lines)

    def _disk_line(self, part: str) -> str:
        """Return the bytes a job, early and late, of the disk that grows faster and faster."""
        rates = []
        for name, by_strategy in self.disks.items():
            halves = [(jobs, len(jobs) // 2) for jobs in by_strategy.values() if len(jobs) > 1]
            if name.startswith(part) and halves:
                early = mean(mean(jobs[:n]) for jobs, n in halves)
                late = mean(mean(jobs[-n:]) for jobs, n in halves)
                rates.append((late - early, early, late, name, sum(n for _, n in halves)))
        if not rates:
            return f"{part:12}{'bytes a job':13}{0:10}   too few jobs"
        _, early, late, name, n = max(rates)
        if late > DISK_GROWTH * early + DISK_SLACK / n:
            self.wrong.append(f"the disk of {name} grows by {early:.0f}, then {late:.0f} B a job")
        return f"{part:12}{'bytes a job':13}{len(rates):10}{early:13.0f}{late:12.0f}"


def _thirds(values: list[float]) -> tuple[float, float]:
    n = max(1, len(values) // 3)
    return median(values[:n]), median(values[-n:])


def _bytes(folder: Path) -> int:
    found = 0
    for file in folder.rglob("*"):
        try:
            found += file.stat().st_size if file.is_file() else 0
        except OSError:  # removed meanwhile
            continue
    return found


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description="Hours of disturbed jobs: nothing grows.")
    parser.add_argument("--agents", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    silos = [f"s{k}" for k in range(given.agents)]
    patience = max(300.0, 5.0 * given.agents)
    settings = {"silos": silos, "small": False, "lease_seconds": LEASE_SECONDS + given.agents / 10}
    with tempfile.TemporaryDirectory(prefix="hedgerow-soak-") as name:
        folder = Path(name)
        with arena(folder, **settings) as fed:
            soak = Soak(fed, given.seed, patience)
            began = time.monotonic()
            while time.monotonic() - began < 60 * given.minutes:
                strategy = HORIZONTAL[soak.n_jobs % len(HORIZONTAL)]
                said = soak.run(strategy)
                soak.measure()
                print(f"{(time.monotonic() - began) / 60:6.1f} min  {said}", flush=True)
        if left := left_running(folder):
            soak.wrong.append(f"left running: {left}")
    print(
        f"\n{given.agents} agents, {given.minutes:g} minutes: {soak.n_jobs} jobs, {soak.n_rounds} "
        f"rounds, {soak.faults} faults, {soak.n_attempts} attempts\n{soak.table()}"
    )
    print(*(f"WRONG: {line}" for line in soak.wrong), sep="\n")
    print(f"{len(soak.wrong)} wrong")
    return 1 if soak.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
