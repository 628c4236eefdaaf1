"""What may happen to a process, drawn by a seed: begun at a named event, and over when it is left.

Each fault is a context. A fault waits for what it does to be felt where that can be seen, as the
coordinator's line about a lost silo; a freeze that nobody may notice lasts a given time.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tests.chaos.arena import LEASE_SECONDS, Arena
from tests.chaos.test_state_files import DAMAGES, damage

NO_DAMAGE = frozenset({"lock", "room", "ready"})


@dataclass(frozen=True, slots=True)
class Disturbance:
    """A fault that is to happen.

    Parameters
    ----------
    kind : str
        Key of :data:`KINDS`.
    victim : str
        Process that it happens to.
    watched, after : str, int
        It begins when this silo has offered so often.
    seed : int
        Of its own choices.
    """

    kind: str
    victim: str
    watched: str
    after: int
    seed: int

    def __str__(self) -> str:
        return f"{self.kind} {self.victim} after {self.after} offers of {self.watched}"


Fault = Callable[[Arena, str, random.Random], "Iterator[list[str]]"]


def _killed(fed: Arena, victim: str, rng: random.Random) -> Iterator[list[str]]:
    """SIGKILL; it starts again."""
    fed.kill(victim)
    yield []
    fed.restart(victim)


def _ended(fed: Arena, victim: str, rng: random.Random) -> Iterator[list[str]]:
    """SIGTERM; it starts again."""
    fed.kill(victim, signal.SIGTERM)
    assert fed.processes[victim].returncode == 0, fed.log(victim)[-2000:]
    yield []
    fed.restart(victim)


def _frozen(seconds: float) -> Fault:
    def frozen(fed: Arena, victim: str, rng: random.Random) -> Iterator[list[str]]:
        fed.kill(victim, signal.SIGSTOP)
        time.sleep(seconds * rng.uniform(0.5, 1.0))
        yield []
        fed.kill(victim, signal.SIGCONT)

    return frozen


def _damaged(fed: Arena, victim: str, rng: random.Random) -> Iterator[list[str]]:
    """One file of its state changes while it is down."""
    folder, older = fed.disk(victim), fed.folder / f"older-{victim}"
    shutil.rmtree(older, ignore_errors=True)
    shutil.copytree(folder, older)
    time.sleep(0.1)
    fed.kill(victim)
    results = set(folder.glob("jobs/*/*.*"))  # what a silo keeps of a job when it has ended
    files = sorted(
        (f for f in {*folder.rglob("*")} - results if f.is_file() and f.name not in NO_DAMAGE),
        key=lambda f: (f.stat().st_mtime_ns, str(f)),
    )
    # Files of this job are the newest; older jobs' are as good as any, but do nothing.
    file = rng.choice(files[-12:] if rng.random() < 0.7 else files)
    kind = rng.choice(DAMAGES)
    before = shutil.copytree(folder, fed.folder / f"before-{victim}", dirs_exist_ok=True)
    name = file.relative_to(folder)
    damage(file, older / name, kind, rng)
    yield [f"{kind} of {name}"]
    fed.restart(victim)
    if not fed.alive(victim):
        # It must say which file; an operator restores that file and starts it again.
        last = fed.log(victim).strip().splitlines()[-1]
        assert "Traceback" not in last
        assert fed.processes[victim].returncode == 2, last
        shutil.copy2(before / name, file)
        fed.restart(victim)
        assert fed.alive(victim), fed.log(victim)[-2000:]
    if name.parts[0] == "privacy":  # refused for good: an operator would restore it
        fed.damaged = (victim, folder / name, (before / name).read_bytes())
    shutil.rmtree(before)


def _damaged_coordinator(fed: Arena, victim: str, rng: random.Random) -> Iterator[list[str]]:
    """A checkpoint or a record inside a round changes while the coordinator is down."""
    fed.kill(victim)
    artefacts = fed.disk(victim) / "artefacts"
    files = sorted(
        [*artefacts.glob("*/checkpoints/*"), *artefacts.glob("*/journal/**/*.*")],
        key=lambda f: (f.stat().st_mtime_ns, str(f)),
    )
    names = []
    if files:
        kind = rng.choice(DAMAGES)
        damage(files[-1], files[0], kind, rng)
        names.append(f"{kind} of {files[-1].relative_to(artefacts)}")
    yield names
    fed.restart(victim)


def _disk_full(fed: Arena, victim: str, rng: random.Random) -> Iterator[list[str]]:
    filler = fed.disk(victim) / "filler"
    with filler.open("wb") as file:
        block = bytes(1 << 16)
        for size in (1 << 16, 1 << 12, 1):
            while True:
                try:
                    os.write(file.fileno(), block[:size])
                except OSError:
                    break
    time.sleep(rng.uniform(0.3, 3.0))
    yield []
    filler.unlink()


def _clock(seconds: float) -> Fault:
    def stepped(fed: Arena, victim: str, rng: random.Random) -> Iterator[list[str]]:
        fed.clock(victim).write_text(str(seconds * rng.uniform(0.1, 1.0)))
        time.sleep(0.5)
        yield []
        fed.clock(victim).write_text("0")

    return stepped


def _cut(fed: Arena, victim: str, rng: random.Random) -> Iterator[list[str]]:
    for _ in range(rng.randint(1, 4)):
        fed.proxies[_silo(victim)].cut()
        time.sleep(rng.uniform(0.0, 0.5))
    yield []


def _spoilt(fed: Arena, victim: str, rng: random.Random) -> Iterator[list[str]]:
    for _ in range(rng.randint(1, 3)):
        fed.proxies[_silo(victim)].trick(rng.choice(("repeat", "swap", "half")))
        time.sleep(rng.uniform(0.0, 0.5))
    yield []


def _delayed(fed: Arena, victim: str, rng: random.Random) -> Iterator[list[str]]:
    fed.proxies[_silo(victim)].delay(rng.uniform(0.01, 0.2))
    time.sleep(2.0)
    yield []
    fed.proxies[_silo(victim)].delay(0.0)


def _held(seconds: float) -> Fault:
    def held(fed: Arena, victim: str, rng: random.Random) -> Iterator[list[str]]:
        fed.proxies[_silo(victim)].hold(True)
        time.sleep(seconds * rng.uniform(0.5, 1.0))
        yield []
        fed.proxies[_silo(victim)].hold(False)

    return held


def _locked(fed: Arena, victim: str, rng: random.Random) -> Iterator[list[str]]:
    """Another process holds the database's lock: it is slow."""
    database = sqlite3.connect(fed.disk("coordinator") / "database/state.db", timeout=30.0)
    database.isolation_level = None
    database.execute("BEGIN IMMEDIATE")
    time.sleep(rng.uniform(0.3, 3.0))
    yield []
    database.execute("ROLLBACK")
    database.close()


def _away(fed: Arena, victim: str, rng: random.Random) -> Iterator[list[str]]:
    """The database's folder is elsewhere: open connections may only read, others find nothing."""
    folder = fed.disk("coordinator") / "database"
    folder.rename(folder.with_name("elsewhere"))
    time.sleep(rng.uniform(0.3, 3.0))
    yield []
    folder.with_name("elsewhere").rename(folder)


AGENT, COORDINATOR = "agent", "coordinator"
KINDS: dict[str, tuple[str, Fault]] = {
    "killed agent": (AGENT, _killed),
    "killed coordinator": (COORDINATOR, _killed),
    "ended agent": (AGENT, _ended),
    "ended coordinator": (COORDINATOR, _ended),
    "briefly frozen agent": (AGENT, _frozen(0.7 * LEASE_SECONDS)),
    "long frozen agent": (AGENT, _frozen(3.0 * LEASE_SECONDS)),
    "briefly frozen coordinator": (COORDINATOR, _frozen(0.7 * LEASE_SECONDS)),
    "long frozen coordinator": (COORDINATOR, _frozen(3.0 * LEASE_SECONDS)),
    "damaged state of agent": (AGENT, _damaged),
    "damaged state of coordinator": (COORDINATOR, _damaged_coordinator),
    "full disk of agent": (AGENT, _disk_full),
    "full disk of coordinator": (COORDINATOR, _disk_full),
    "clock of agent forward": (AGENT, _clock(86_400.0)),
    "clock of agent back": (AGENT, _clock(-120.0)),
    "clock of coordinator forward": (COORDINATOR, _clock(86_400.0)),
    "clock of coordinator back": (COORDINATOR, _clock(-120.0)),
    "cut connections": (AGENT, _cut),
    "spoilt connections": (AGENT, _spoilt),
    "slow connection": (AGENT, _delayed),
    "briefly held connection": (AGENT, _held(0.7 * LEASE_SECONDS)),
    "long held connection": (AGENT, _held(3.0 * LEASE_SECONDS)),
    "locked database": (COORDINATOR, _locked),
    "database away": (COORDINATOR, _away),
}
ON_DISKS = frozenset({"full disk of agent", "full disk of coordinator"})
"""Kinds that need small disks, which not everybody may mount."""
LOSSLESS = frozenset(
    {
        "briefly frozen agent",
        "briefly frozen coordinator",
        "clock of agent forward",
        "clock of agent back",
        "clock of coordinator forward",
        "clock of coordinator back",
        "slow connection",
        "briefly held connection",
        "locked database",
        "database away",
    }
)
"""Kinds after which both sides have counted the same bytes: no connection breaks."""
DAMAGING = frozenset({"damaged state of agent", "damaged state of coordinator"})
"""Kinds after which a job may fail, if it says why."""


@contextmanager
def happening(fed: Arena, one: Disturbance) -> Iterator[list[str]]:
    """Let a fault happen; yields what is known of it."""
    with ExitStack() as stack:
        context = contextmanager(KINDS[one.kind][1])
        yield stack.enter_context(context(fed, one.victim, random.Random(one.seed)))


def _silo(victim: str) -> str:
    return victim.removeprefix("agent-")
